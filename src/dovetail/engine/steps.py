"""`ctx.step`: a side effect comes in, runs once however often its function is run again, and its result goes out.

What was done in one run is known to the next: it travels with the answers. But a client may send the same state twice,
so a run that began with a state claims each of its steps in the state backend before doing it. A claim says something
only as long as the store has forgotten no earlier one: a call knows in which life of the store it began, and once that
life is over no more steps are taken.
"""

import asyncio
import hashlib
import inspect
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from dovetail.engine.interview import Unanswered
from dovetail.errors import Busy, ProtocolError, SetupError, ToolError
from dovetail.registry.outputs import OutputError, encode_json
from dovetail.state.base import MAX_TTL, NoRoom, StateBackend

if TYPE_CHECKING:
    from dovetail.engine.core import Engine

LIFE = "life"  # the key of a name that the store has as long as it forgets nothing
BEGUN = b""  # in the place of a result; no JSON is empty
PATIENCE = 30.0  # seconds to wait for a step that another request has begun
MAX_NAME = 200

log = logging.getLogger("dovetail")


class Steps:
    """The steps of one run. `call` names the call in all its runs; None if nobody else can be at the same steps."""

    def __init__(
        self, engine: "Engine", done: dict[str, Raw], *, call: str | None = None, life: str = "", lifetime: float = 0.0
    ) -> None:
        self._engine = engine
        self._call = call
        self._life = life  # of the store, in which the call began
        self.done = done
        self._lifetime = lifetime  # seconds for which a claim is kept
        self.met: Counter[str] = Counter()  # how often each has come up in this run
        self._running: set[asyncio.Task[Raw]] = set()

    async def run(self, name: object, function: Callable[[], Any], *, in_thread: bool) -> Any:
        """Once begun it runs to its end, also if its call is cancelled: half a side effect would help nobody."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise SetupError(f"ctx.step: the name {name!r} must be a string of up to {MAX_NAME} characters")
        if not callable(function):
            raise SetupError(f"ctx.step({name!r}): give it a function, as in ctx.step({name!r}, lambda: save(note))")
        self.met[name] += 1
        key = f"{name}#{self.met[name]}"
        result = self.done.get(key)
        if result is None:
            task = asyncio.get_running_loop().create_task(self._do(key, function, in_thread))
            for running in (self._running, self._engine.running_steps):
                running.add(task)
                task.add_done_callback(running.discard)
            result = await asyncio.shield(task)
        return msgspec.json.decode(result)

    def not_met(self, earlier: Iterable[str]) -> list[str]:
        """Those of earlier runs that this run did not come to."""
        return [key for key in earlier if int(key.rpartition("#")[2]) > self.met[key.rpartition("#")[0]]]

    async def settle(self) -> None:
        """Wait for the steps that were begun: what they have done must be known to the next run."""
        while self._running:
            await asyncio.wait(self._running)

    async def _do(self, key: str, function: Callable[[], Any], in_thread: bool) -> Raw:
        if self._call is None:
            result = await self._effect(key, function, in_thread)
        else:
            result = await self._do_once(_place(self._call, key), key, function, in_thread)
        self.done[key] = result
        return result

    async def _do_once(self, place: str, key: str, function: Callable[[], Any], in_thread: bool) -> Raw:
        state = self._engine.state
        while not await self._claim(place):
            if (result := await self._result_of_another(place, key)) is not None:
                return result
        try:
            await self._check_life(key)
            result = await self._effect(key, function, in_thread)
        except (Exception, Unanswered) as failure:
            if not isinstance(failure, UnrememberedStep):  # which is done, as one that was cancelled may be
                await self._give_back(place)
            raise
        try:
            await state.put(place, bytes(result), ttl=self._lifetime)
            await state.publish(place)
        except Exception as failure:  # it is done, and this run knows; only another would not get the result
            log.warning("the result of the step %r can't be kept: %s", key, failure)
        return result

    async def _claim(self, place: str) -> bool:
        try:
            return await self._engine.state.claim(place, BEGUN, self._lifetime)
        except NoRoom as failure:
            log.warning("a step was refused: %s", failure.message)
            text = "The server can't keep more steps in mind at the moment; try again later"
            raise Busy(text, http_status=503) from None

    async def _check_life(self, key: str) -> None:
        """After the claim: if the life is still the same, the store has known all claims of the call until then."""
        if await life_now(self._engine.state) == self._life:
            return
        name = key.rpartition("#")[0]
        log.warning("the step %r was refused: the state store was emptied since its call began, or is another", name)
        raise ToolError(
            f"The step {name} was refused: the server has lost its record of what was done in this call. "
            "Look whether it has had its effect before you make this call again, from its beginning"
        )

    async def _give_back(self, place: str) -> None:
        """It failed, and may be tried again."""
        try:
            await self._engine.state.delete(place)
            await self._engine.state.publish(place)
        except Exception as failure:
            log.warning("a step that failed can't be tried again: %s", failure)

    async def _result_of_another(self, place: str, key: str) -> Raw | None:
        """The same state was sent twice, and another request was quicker. None if it failed."""
        state = self._engine.state
        listener = state.listen([place])
        try:
            async with asyncio.timeout(PATIENCE):
                while (entry := await state.get(place)) is not None and entry.value == BEGUN:
                    if not await listener.wait():  # the state has been closed
                        raise TimeoutError
        except TimeoutError:
            name = key.rpartition("#")[0]
            raise ToolError(
                f"The step {name} was begun by an earlier request and has not ended; it is not done a second time. "
                "Look whether it has had its effect before you make this call again"
            ) from None
        finally:
            listener.close()
        return None if entry is None else Raw(entry.value)

    async def _effect(self, key: str, function: Callable[[], Any], in_thread: bool) -> Raw:
        name = key.rpartition("#")[0]
        _step.set(name)  # for this task, which is the step's own, and for its thread
        if in_thread:
            value = await self._engine.threads.run(function, label=f"step {name}")
        else:
            value = function()
        if inspect.isawaitable(value):
            value = await value
        try:
            return Raw(encode_json(value))
        except OutputError as failure:
            text = f"ctx.step({name!r}): {failure}; it is remembered as JSON, so return what JSON can hold, or None"
            raise UnrememberedStep(text) from None


async def life_now(state: StateBackend) -> str:
    """The name of the store's life. One that was emptied, and one of another process, has another."""
    while (entry := await state.get(LIFE)) is None:
        await state.claim(LIFE, secrets.token_bytes(8), MAX_TTL)
    return entry.value.hex()


async def life_at_beginning(engine: "Engine") -> str:
    """For a call that begins, which need not wait for the store: what was last known is compared before each step."""
    with suppress(ProtocolError):
        if engine.store_life != (life := await life_now(engine.state)):
            await engine.state.touch(LIFE, MAX_TTL)  # for ten years more, by each process that begins
            engine.store_life = life
    return engine.store_life


class UnrememberedStep(SetupError):
    """A side effect has happened, but its result can't be remembered."""


_step: ContextVar[str | None] = ContextVar("step", default=None)


def refuse_in_step() -> None:
    """Raises in a step: for an answer it would have to run again."""
    if (name := _step.get()) is not None:
        raise SetupError(f"ctx.step({name!r}): a step can't ask the client, because it runs once; ask before it")


def _place(call: str, key: str) -> str:
    return f"step/{call}/{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
