"""`server.refresh()`: every worker runs the functions that change its catalogue, then the changes are told once.

How often there was a refresh stands in the state that the workers share. A worker that starts later, or was away, runs
the functions when it sees that it is behind. The number only grows: a state that has forgotten it is told by who knows.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dovetail.engine.streams import Change, ChangeKind
from dovetail.state.base import MAX_TTL, Conflict, Listener, NoRoom, StateBackend, StoreTrouble

if TYPE_CHECKING:
    from dovetail.engine.core import Engine

KEY = "refresh"  # the counter, and the topic
CLAIM_SECONDS = 3600.0
PATIENCE = 2.0  # seconds that the news of a refresh waits for the refresh itself
AGAIN_SECONDS = 1.0
ATTEMPTS = 10

log = logging.getLogger("dovetail")


class Refresher:
    """The functions of one server, and how far this worker has come."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._functions: list[Callable[[], Any]] = []
        self._lock = asyncio.Lock()
        self._reached = asyncio.Condition()
        self.count = 0  # the refresh that this worker has made last
        self._asked = 0  # those of this process, where nobody shares the state
        self._held_back: set[ChangeKind] | None = None  # what changes while the functions run

    def add(self, function: Callable[[], Any]) -> None:
        self._functions.append(function)

    def holds_back(self, kind: ChangeKind) -> bool:
        """Whether a change is told later, once for all; from any thread."""
        if self._held_back is None:
            return False
        self._held_back.add(kind)
        return True

    # ── here ──

    async def refresh(self) -> None:
        """At every worker; returns when it is done at this one. Raises what a function raises here."""
        state = self._engine.state
        if state.shared:
            count = await state.add(KEY, 1, MAX_TTL)
            if count <= self.count:  # it was forgotten
                count = await state.add(KEY, self.count, MAX_TTL)
            await state.publish(KEY)
        else:
            self._asked = max(self._asked, self.count) + 1
            count = self._asked
        await self._run(count, state)

    async def _run(self, count: int, state: StateBackend) -> None:
        """Whoever of the workers is first to have changed a list tells of it, also if a function failed after that."""
        async with self._lock:
            if count <= self.count:
                return
            changed: set[ChangeKind] = set()
            self._held_back = changed
            try:
                for function in self._functions:
                    await self._call(function)
            finally:
                self._held_back = None
                self.count = count
                async with self._reached:
                    self._reached.notify_all()
                for kind in changed:
                    if not state.shared or await _is_first(state, f"refreshed/{count}/{kind}"):
                        self._engine.publish(Change(kind))

    async def _call(self, function: Callable[[], Any]) -> None:
        if inspect.iscoroutinefunction(function):
            await function()
        else:
            value = await self._engine.threads.run(function, label="on_refresh")
            if inspect.isawaitable(value):
                await value

    # ── everywhere ──

    async def follow(self, state: StateBackend, listener: Listener) -> None:
        """Run the functions whenever another worker has refreshed, until the listener is closed."""
        while not listener.closed:
            try:
                await self.catch_up(state)
            except StoreTrouble:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if not await listener.wait():
                return

    async def catch_up(self, state: StateBackend) -> None:
        """Whoever has refreshed tells of the changes."""
        count = await self._number(state, self.count)
        if count > self.count:
            try:
                await self._run(count, state)
            except Exception:  # a function's own; the others go on as they are
                log.exception("a function of on_refresh failed")

    async def _number(self, state: StateBackend, known: int) -> int:
        """How many there were, which is at least what is known here."""
        for _ in range(ATTEMPTS):
            entry = await state.get(KEY)
            count = int(entry.value) if entry is not None and entry.value.isdigit() and len(entry.value) < 20 else 0
            if count >= known:
                return count
            with suppress(Conflict):  # somebody else was quicker
                await self._restore(state, known, 0 if entry is None else entry.version)
                return known
        return known

    async def _restore(self, state: StateBackend, count: int, version: int) -> None:
        with suppress(NoRoom):
            await state.put(KEY, b"%d" % count, ttl=MAX_TTL, if_version=version)
            await state.publish(KEY)

    async def reached(self, count: int, state: StateBackend) -> None:
        """Another worker has made so many: wait until this one has, for a while."""
        await self._number(state, count)
        try:
            async with asyncio.timeout(PATIENCE), self._reached:
                await self._reached.wait_for(lambda: self.count >= count)
        except TimeoutError:
            log.warning("a refresh was told of before it was made at this worker")


async def _is_first(state: StateBackend, claim: str) -> bool:
    """True also if nobody knows: what changed is rather told twice than never."""
    try:
        return await state.claim(claim, b"", CLAIM_SECONDS)
    except (StoreTrouble, NoRoom):
        return True
