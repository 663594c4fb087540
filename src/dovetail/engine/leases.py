"""The concurrency limit of a tool for all workers together: calls come in, wait, and go on when a slot is theirs.

A slot is a key in the state that workers share, claimed for some seconds and renewed while a call runs: a lease. A
worker that dies renews nothing, and others have its slots when its leases have expired.

`Leases` keeps those of one process. `FleetLimit` is a `Limit` whose slots are leases.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from math import inf
from typing import Any

from dovetail.engine.limits import Limit
from dovetail.errors import Busy, ToolBusy
from dovetail.state.base import Listener, StateBackend, StoreTrouble

LEASE_SECONDS = 6.0  # after which the slots of a dead worker are free
RENEW_SECONDS = 2.0
CERTAIN_SECONDS = 3.0  # since its last renewal, for which a lease is ours beyond doubt, whatever is still on its way
LOOK_SECONDS = 2.0  # between two looks for slots that have become free without a word
TURN_SECONDS = 1.0  # for which calls of one worker hand a slot on among themselves while others may wait
STAND_BACK = 0.02  # seconds that whoever has just had a slot leaves to others

log = logging.getLogger("dovetail")


class Lease:
    """One slot that this process has claimed."""

    __slots__ = ("claimed", "is_lost", "number", "renewed", "topic")

    def __init__(self, topic: str, number: int, now: float) -> None:
        self.topic = topic
        self.number = number
        self.claimed = self.renewed = now
        self.is_lost = False

    @property
    def key(self) -> str:
        return f"{self.topic}/{self.number}"


class Leases:
    """All leases of this process, renewed and given back by one task, which lives as long as there are any."""

    def __init__(self, state: StateBackend) -> None:
        self.state = state
        self._held: set[Lease] = set()
        self._returned: list[Lease] = []  # those that the store still has to hear of
        self._news = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._searches: set[asyncio.Task[None]] = set()

    def begin(self, search: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task that ends with the server at the latest."""
        task = asyncio.get_running_loop().create_task(search)
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)
        return task

    async def claim(self, topic: str, number: int) -> Lease | None:
        """The slot with this number, if nobody has it."""
        lease = Lease(topic, number, time.monotonic())
        if not await self.state.claim(lease.key, b"", LEASE_SECONDS):
            return None
        self._held.add(lease)
        self._keep_on()
        return lease

    def give_back(self, lease: Lease) -> None:
        self._held.discard(lease)
        if not lease.is_lost:
            self._returned.append(lease)
            with suppress(RuntimeError):  # a loop that died in mid-call is torn down from elsewhere
                self._news.set()
                self._keep_on()

    def _keep_on(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        due = time.monotonic() + RENEW_SECONDS
        while self._held or self._returned:
            try:
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            await self._return()
            if time.monotonic() >= due:
                due = time.monotonic() + RENEW_SECONDS
                await asyncio.gather(*(self._renew(lease) for lease in self._held))

    async def _renew(self, lease: Lease) -> None:
        now = time.monotonic()
        try:
            kept = now - lease.renewed < LEASE_SECONDS and await self.state.touch(lease.key, LEASE_SECONDS)
            kept = kept or await self.state.claim(lease.key, b"", LEASE_SECONDS)  # perhaps nobody was quicker
        except Exception as trouble:
            log.debug("a slot can't be renewed now: %s", trouble)
            return
        if kept:
            lease.renewed = now
        else:
            lease.is_lost = True
            self._held.discard(lease)
            log.warning("%s: a call runs on although its slot has expired, and another worker has it", lease.topic)

    async def _return(self) -> None:
        """What is not certainly ours any more expires, or belongs to somebody else."""
        returned, self._returned = self._returned, []
        now = time.monotonic()
        certain = [lease for lease in returned if now - lease.renewed < CERTAIN_SECONDS]
        try:
            await asyncio.gather(*(self.state.delete(lease.key) for lease in certain))
            for topic in {lease.topic for lease in certain}:
                await self.state.publish(topic)
        except Exception as trouble:
            log.debug("slots stay taken until they expire: %s", trouble)

    async def close(self) -> None:
        """Give back all that there is; it takes no longer than the store takes to answer."""
        searches = list(self._searches)
        for search in searches:
            search.cancel()
        if searches:
            await asyncio.wait(searches)
        for lease in tuple(self._held):
            self.give_back(lease)
        self._news.set()
        if self._keeper is not None:
            await asyncio.wait([self._keeper])


class FleetLimit(Limit):
    """Its slots are all taken, as far as `Limit` knows, but for those that one task finds while somebody waits.

    Within a worker it is first come, first served. Among workers whoever is quickest has a slot; but none keeps it to
    itself for more than a moment while others wait, and then those who have gone without for longer are quicker.
    """

    __slots__ = (
        "_found", "_had_one", "_is_full", "_leases", "_next", "_patience", "_returning", "_search", "_topic",
    )  # fmt: skip

    def __init__(self, leases: Leases, tool: str, slots: int, queue: int, *, patience: float | None) -> None:
        super().__init__(slots, queue, subject=f"The tool {tool}", busy=ToolBusy)
        self._free = 0  # less while calls go on without a lease
        self._leases = leases
        self._topic = f"slot/{tool}"
        self._patience = patience  # seconds in line
        self._found: deque[Lease] = deque()  # which calls have; any of them may give any of these back
        self._next = random.randrange(slots)  # where to look first
        self._returning: set[asyncio.Future[None]] = set()  # turns of those who are never refused
        self._search: asyncio.Task[None] | None = None
        self._is_full = False
        self._had_one = -inf  # when a slot was given back

    @property
    def running(self) -> int:
        """In this worker."""
        return len(self._found) - self._free

    def take(self) -> bool:
        return False  # that takes a trip to the store

    async def acquire(self) -> None:
        if len(self._line) >= self._queue + (0 if self._is_full else self._slots):
            raise self._full()
        try:
            async with asyncio.timeout(self._patience):
                await self._until(self._stand_in_line())
        except TimeoutError:
            raise self._refusal(f"no slot became free within {self._patience:g} s") from None

    __aenter__ = acquire

    async def reclaim(self) -> None:
        turn = self._stand_in_line()
        self._returning.add(turn)
        try:
            await self._until(turn)
        except asyncio.CancelledError:
            self.overdraw()
            raise
        except Busy:  # the store is in trouble, but this call is half done
            self.overdraw()
        finally:
            self._returning.discard(turn)

    def release(self) -> None:
        if self._free < 0:  # as many have leases as before
            self._free += 1
            return
        lease = self._found.popleft()
        if self._line and not lease.is_lost and time.monotonic() - lease.claimed < TURN_SECONDS:
            self._hand_on(lease)
        else:
            self._had_one = time.monotonic()
            self._leases.give_back(lease)

    def _hand_on(self, lease: Lease) -> None:
        """To the one who waits longest; back to the store if nobody does."""
        self._found.append(lease)
        super().release()
        if self._free > 0:
            self._free = 0
            self._leases.give_back(self._found.pop())

    def _stand_in_line(self) -> "asyncio.Future[None]":
        turn = super()._stand_in_line()
        if self._search is None or self._search.done():
            self._search = self._leases.begin(self._look_for_slots())
        return turn

    async def _look_for_slots(self) -> None:
        """As long as somebody waits."""
        listener: Listener | None = None
        try:
            while self._line:
                if (lease := await self._look()) is not None:
                    self._hand_on(lease)
                elif listener is None:  # then once more: what became free before was not heard
                    listener = self._leases.state.listen([self._topic])
                else:
                    self._refuse(self._newcomers()[self._queue :], self._full)
                    await self._news(listener)
        except Exception as trouble:
            text = f"{self._subject} can't be called now: its limit is kept in a store that is in trouble"
            log.warning("%s: %s", text, trouble)
            self._refuse(list(self._line), lambda: Busy(f"{text}; try again later", http_status=503))
        finally:
            if listener is not None:
                listener.close()

    async def _look(self) -> Lease | None:
        """Try each slot that is not ours already."""
        ours = {lease.number for lease in self._found}
        for step in range(self._slots):
            number = (self._next + step) % self._slots
            if number not in ours and (lease := await self._leases.claim(self._topic, number)) is not None:
                self._next = number + 1
                return lease
        return None

    async def _news(self, listener: Listener) -> None:
        """Wait until slots may have become free. That some have expired is said by nobody."""
        self._is_full = True
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                if not await listener.wait():
                    raise StoreTrouble  # it was closed
        except TimeoutError:
            pass
        finally:
            self._is_full = False
        since = time.monotonic() - self._had_one
        await asyncio.sleep(STAND_BACK * max(0.0, 1 - since / (10 * TURN_SECONDS)))

    def _newcomers(self) -> "list[asyncio.Future[None]]":
        return [turn for turn in self._line if turn not in self._returning]

    def _refuse(self, turns: "Iterable[asyncio.Future[None]]", refusal: Callable[[], Busy]) -> None:
        for turn in turns:
            self._line.remove(turn)
            if not turn.done():
                turn.set_exception(refusal())

    def _full(self) -> Busy:
        waiting = min(self.waiting, self._queue)
        return self._refusal(
            f"all {self._slots} slots that the workers share are taken and {waiting} calls waiting here"
        )
