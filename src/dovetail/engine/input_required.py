"""Requests to the client since 2026-07-28: a call with open questions ends in `input_required`, and comes again.

Its function runs again then. An answer is keyed by the digest of the request and how often that occurred in the run,
so it finds its question whatever the order of things; a question that has changed is asked anew. Earlier answers and
the results of steps travel with the client, sealed.

`ctx.step` runs a side effect once, however often its function runs. A client may send the same state twice, so a run
that began with a state claims each of its steps in the state backend before doing it. A claim says something only as
long as the store has forgotten no earlier one: a call knows in which life of the store it began, and once that life is
over no more steps are taken.
"""

import asyncio
import hashlib
import inspect
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.engine.request_context import Mark, RequestContext, Unanswered, running_step
from dovetail.engine.request_state import BadSeal, TooLarge
from dovetail.errors import INVALID_PARAMS, ProtocolError, SetupError, ToolError, UrlElicitationRequired
from dovetail.protocol import jsonrpc, request_state
from dovetail.protocol.capabilities import require_client_support
from dovetail.protocol.elicitation import MAX_INPUT_REQUESTS, ClientRequest, InputRequest, InputRequired
from dovetail.protocol.methods import CallToolParams, GetPromptParams, ReadResourceParams
from dovetail.protocol.request_state import MAX_ROUNDS, Binding, Round
from dovetail.protocol.results import InputRequiredResult
from dovetail.schema.encode import OutputError, encode_json
from dovetail.state.base import MAX_TTL, StateBackend

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

log = logging.getLogger("dovetail")

AskingParams = CallToolParams | GetPromptParams | ReadResourceParams
NOT_YET_DONE = "The user has agreed to open the page that this needs, but is not done there; call again afterwards"
NOT_WILLING = "The user did not want to open the page that this needs"
BAD_STATE = "The request state can't be used; make the request again without it"
SUBJECTS = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}
CALL_LASTS = 4  # times as long as its first questions are good for: a claim must outlive every state of its call
LIFE = "life"  # the key of a name that the store has as long as it forgets nothing
BEGUN = b""  # in the place of a result; no JSON is empty
MAX_NAME = 200


def resume(engine: "Engine", context: RequestContext) -> None:
    """A request brings a state or answers: they are opened, or refused, before the function runs."""
    params: AskingParams = context.request.params
    if not context.request.revision.input_required or context.client_requests is not None:
        return  # where these fields mean nothing, or were read already
    responses = request_state.read_responses(params.input_responses)
    state = params.request_state
    before = _open(engine, context, state) if isinstance(state, str) else None
    context.client_requests = ReplayedRequests(engine, context, before, responses)


def _open(engine: "Engine", context: RequestContext, token: str) -> Round:
    """Whoever sends a state that is not right hears only that; why it is not stands in the log."""
    try:
        before = request_state.decode_round(engine.sealer.open(token))
    except BadSeal as bad:
        raise _refused(context, str(bad)) from None
    except msgspec.DecodeError:
        raise _refused(context, "it was sealed by another version of this library") from None
    if before.expires <= time.time():
        raise _refused(context, "it has expired")
    if (difference := _binding(engine, context).difference(before.binding)) is not None:
        raise _refused(context, f"it was made for another request, whose {difference} was different")
    return before


def _refused(context: RequestContext, reason: str) -> ProtocolError:
    log.warning("%s: a request state was refused: %s", context.request.method, reason)
    return ProtocolError(BAD_STATE, code=INVALID_PARAMS)


def _binding(engine: "Engine", context: RequestContext) -> Binding:
    params: AskingParams = context.arrived
    if isinstance(params, ReadResourceParams):
        name, arguments = params.uri, jsonrpc.NO_PARAMS
    else:
        name, arguments = params.name, params.arguments
    return Binding.from_request(context.request.method, name, arguments, context.owner, engine.info.name)


def interim(context: RequestContext) -> InputRequiredResult:
    """The questions that have kept a function from its end."""
    assert isinstance(context.client_requests, ReplayedRequests)
    return context.client_requests.interim()


class ReplayedRequests:
    """The interview of one run: what is known from before, and what this run asks besides.

    From the first question that stays unanswered the run is over, whatever its function still does: it may have caught
    what was raised, and then it knows less than it should. So it may ask nothing more, and take no step.
    """

    def __init__(
        self,
        engine: "Engine",
        context: RequestContext,
        before: Round | None = None,
        responses: dict[str, Raw] | None = None,
    ) -> None:
        self._engine = engine
        self._context = context
        self._responses = responses or {}
        self._before = before = before or Round(call=secrets.token_hex(16))
        self._fresh = {place: self._responses[place] for place in before.asked if place in self._responses}
        self._answers = before.answers | self._fresh
        self._life = before.life
        self._steps = Steps(engine, dict(before.steps), before if before.number else None)
        self.begin_again()

    def begin_again(self, mark: Mark | None = None) -> None:
        """A middleware makes the request twice: a second run, in the same round."""
        questions, steps = mark or (Counter(), Counter())
        self._occurrences = questions.copy()
        self._steps.met = steps.copy()
        self._taken: set[str] = set()  # places whose answers this run has used
        self._open: dict[str, Any] = {}  # what this run asks in vain, by place or by the function's own key
        self._timeouts: list[float] = []  # of what it asks
        self._own_keys: set[str] = set()
        self._own_state: Raw | None = None
        self._is_over = False

    def mark(self) -> Mark:
        return self._occurrences.copy(), self._steps.met.copy()

    @property
    def input_responses(self) -> Mapping[str, Any]:
        return {key: jsonrpc.parse(response) for key, response in self._responses.items()}

    @property
    def request_state(self) -> Any:
        state = self._before.state
        return None if isinstance(state, UnsetType) else jsonrpc.parse(state)

    @property
    def is_waiting(self) -> bool:
        return bool(self._open) or self._own_state is not None

    # ── asking ──

    async def answer(self, inquiry: InputRequest[Any], timeout: float) -> Raw:
        await self._go_on()
        place = self._place(inquiry.client_request)
        answer = self._answers.get(place)
        if answer is not None:
            self._taken.add(place)
            return answer
        self._leave_open({place: inquiry}, timeout)
        try:
            await self._let_others_ask()
        finally:
            self._is_over = True
        raise Unanswered

    async def _go_on(self) -> None:
        """Raises Unanswered if the run is over."""
        if not self._is_over:
            return
        await asyncio.sleep(0.001)  # it may be in a loop that never ends
        raise Unanswered

    async def _let_others_ask(self, turns: int = 3) -> None:
        """What is asked beside each other, within some turns of the loop, travels in one round."""
        known = 0
        while known < len(self._open):
            known = len(self._open)
            for _ in range(turns):
                await asyncio.sleep(0)

    def _place(self, question: ClientRequest) -> str:
        kind = question.method.partition("/")[0]
        place = f"{kind}-{question.digest}"
        self._occurrences[place] += 1
        return f"{place}-{self._occurrences[place]}"

    def _leave_open(self, inquiries: Mapping[str, InputRequest[Any]], timeout: float) -> None:
        """All of them, or none if the client can't answer one."""
        request = self._context.request
        for inquiry in inquiries.values():
            require_client_support(inquiry.client_request, request.revision, request.capabilities)
        for key, inquiry in inquiries.items():
            if len(self._open) < MAX_INPUT_REQUESTS:  # the next round will come to the others
                params = inquiry.params(request.revision)
                self._open[key] = {"method": inquiry.client_request.method, **({"params": params} if params else {})}
                self._timeouts.append(timeout)

    async def ask_together(self, required: InputRequired) -> None:
        await self._go_on()
        state = Raw(b"null" if required.state is UNSET else encode_json(required.state))
        self._leave_open(required.requests, self._engine.options.answer_timeout)
        self._own_keys.update(required.requests)
        self._own_state = state
        self._is_over = True
        raise Unanswered

    async def require_urls(self, required: UrlElicitationRequired) -> None:
        """Each page is shown once: whoever was there, or did not want to, is not sent there again in this call."""
        await self._go_on()
        answered: list[bool] = []
        for inquiry in required.elicitations:
            place = self._place(inquiry.client_request)
            if (answer := self._answers.get(place)) is not None:
                self._taken.add(place)
                answered.append(inquiry.read(answer, self._context.request.revision).accepted)
            else:
                self._leave_open({place: inquiry}, self._engine.options.answer_timeout)
        if self._open:
            self._is_over = True
            raise Unanswered
        raise ToolError(NOT_YET_DONE if all(answered) else NOT_WILLING)

    async def step(self, name: str, function: Callable[[], Any], *, in_thread: bool) -> Any:
        await self._go_on()
        return await self._steps.run(name, function, in_thread=in_thread)

    # ── the end of a round ──

    async def settle(self) -> None:
        await self._steps.settle()
        if not self._before.number:
            self._life = await life_at_beginning(self._engine)

    def finished(self) -> None:
        """A run that did not come to all that earlier ones did was another run: which one is right is not known."""
        before = self._before
        met = {f"{name}#{number + 1}" for name, times in self._steps.met.items() for number in range(times)}
        missed = len({*before.used} - self._taken) + len(before.steps.keys() - met)
        if missed:
            text = (
                "%s has ended without coming to %d questions or steps of its earlier runs: what it reads must be the "
                "same in every run of a call, or be kept by ctx.step; or else its code has changed meanwhile"
            )
            log.error(text, self._subject, missed)

    def interim(self) -> InputRequiredResult:
        """What goes out instead of a result. Raises ToolError if the call can't go on like that."""
        self._is_over = True
        if self._before.number >= MAX_ROUNDS:
            raise self._given_up(f"it has asked {MAX_ROUNDS} times without coming to an end")
        useless = self._fresh and not self._taken & self._fresh.keys()
        wasted = self._before.wasted + 1 if useless else 0
        if wasted >= request_state.MAX_WASTED:
            raise self._given_up(
                f"it asks something else each time it is run again: the answers of {wasted} rounds were of no use. "
                "A question must not depend on the time, on chance or on what changes; keep such values by ctx.step"
            )
        try:
            state = self._engine.sealer.seal(request_state.encode_round(self._round(wasted)))
        except TooLarge as failure:
            raise self._given_up(f"its answers and steps are too large to be kept: {failure}") from None
        return InputRequiredResult(self._open, state)

    def _round(self, wasted: int) -> Round:
        before, now, usual = self._before, time.time(), self._engine.options.answer_timeout
        timeouts = self._timeouts or [usual]
        ends = before.ends or now + CALL_LASTS * max(usual, *timeouts)
        return Round(
            call=before.call,
            number=before.number + 1,
            expires=min(now + min(timeouts), ends),
            ends=ends,
            binding=_binding(self._engine, self._context),
            life=self._life,
            asked=[place for place in self._open if place not in self._own_keys],
            answers=self._answers,
            used=sorted({*before.used, *self._taken}),
            steps=self._steps.done,
            wasted=wasted,
            state=before.state if self._own_state is None else self._own_state,
        )

    @property
    def _subject(self) -> str:
        params: AskingParams = self._context.request.params
        name = params.uri if isinstance(params, ReadResourceParams) else params.name
        shown = "".join(filter(str.isprintable, name[:128]))  # a URI is what a stranger wrote
        return f"The {SUBJECTS[self._context.request.method]} {shown}"

    def _given_up(self, reason: str) -> ToolError:
        text = f"{self._subject} can't go on: {reason}"
        log.error(text)
        return ToolError(text)


# ── steps ──


class Steps:
    """The steps of one run."""

    def __init__(
        self, engine: "Engine", done: dict[str, Raw], before: Round | None = None, patience: float = 30.0
    ) -> None:
        """Other requests may bring the state of `before` too; `patience` seconds are waited for a step of theirs."""
        self._engine = engine
        self._before = before
        self._patience = patience
        self.done = done
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

    async def settle(self) -> None:
        """Wait for the steps that were begun: what they have done must be known to the next run."""
        while self._running:
            await asyncio.wait(self._running)

    async def _do(self, key: str, function: Callable[[], Any], in_thread: bool) -> Raw:
        if self._before is None:
            result = _remembered(key, await self._effect(key, function, in_thread))
        else:
            result = await self._do_once(self._before, key, function, in_thread)
        self.done[key] = result
        return result

    async def _do_once(self, before: Round, key: str, function: Callable[[], Any], in_thread: bool) -> Raw:
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        place = f"step/{before.call}/{digest}"
        lifetime = max(before.ends - time.time(), 0.0) + 3600.0  # a claim outlives the state, for its last run
        while not await self._engine.state.claim(place, BEGUN, lifetime):
            if (result := await self._result_of_another(place, key)) is not None:
                return result
        try:
            await self._check_life(key, before.life)
            value = await self._effect(key, function, in_thread)
        except (Exception, Unanswered):  # one that was cancelled may be done
            await self._tell(place, key, None, lifetime)
            raise
        result = _remembered(key, value)
        await self._tell(place, key, result, lifetime)
        return result

    async def _tell(self, place: str, key: str, result: Raw | None, lifetime: float) -> None:
        """Others get the result of a step, or may try it themselves if it failed."""
        state = self._engine.state
        try:
            if result is None:
                await state.delete(place)
            else:
                await state.put(place, bytes(result), ttl=lifetime)
            await state.publish(place)
        except Exception as failure:  # this run knows how it ended; only another would not
            log.warning("the outcome of the step %r can't be kept: %s", key, failure)

    async def _check_life(self, key: str, life: str) -> None:
        """After the claim: if the life is still the same, the store has known all claims of the call until then."""
        if await life_now(self._engine.state) == life:
            return
        name = key.rpartition("#")[0]
        log.warning("the step %r was refused: the state store was emptied since its call began, or is another", name)
        raise ToolError(
            f"The step {name} was refused: the server has lost its record of what was done in this call. "
            "Look whether it has had its effect before you make this call again, from its beginning"
        )

    async def _result_of_another(self, place: str, key: str) -> Raw | None:
        """The same state was sent twice, and another request was quicker. None if it failed."""
        state = self._engine.state
        listener = state.listen([place])
        try:
            async with asyncio.timeout(self._patience):
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

    async def _effect(self, key: str, function: Callable[[], Any], in_thread: bool) -> Any:
        name = key.rpartition("#")[0]
        running_step.set(name)  # for this task, which is the step's own, and for its thread
        value = await self._engine.threads.run(function, label=f"step {name}") if in_thread else function()
        return await value if inspect.isawaitable(value) else value


def _remembered(key: str, value: Any) -> Raw:
    """Once this fails, the side effect has happened nevertheless."""
    try:
        return Raw(encode_json(value))
    except OutputError as failure:
        text = f"{failure}; it is remembered as JSON, so return what JSON can hold, or None"
        raise SetupError(f"ctx.step({key.rpartition('#')[0]!r}): {text}") from None


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
