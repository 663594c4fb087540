"""The concurrency limit of a tool for all workers together: slots that are keys in the state which they share.

A slot is claimed for one lease, and renewed while its call runs. A worker that dies renews nothing, and others have its
slots when their leases have expired.
"""

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from dovetail.engine.limits import Limit
from dovetail.engine.member import BEAT_SECONDS, LEASE_SECONDS
from dovetail.errors import Busy, ToolBusy
from dovetail.state.base import Listener, StateBackend, StoreTrouble

log = logging.getLogger("dovetail")


Slot = tuple[str, bytes]  # a key that this worker has claimed, and the value that tells


class FleetLimit(Limit):
    """The `Limit` of one worker, whose calls need a slot in the store besides."""

    def __init__(
        self, state: StateBackend, tool: str, slots: int, queue: int, patience: float | None,
        *, lease: float = LEASE_SECONDS, beat: float = BEAT_SECONDS,
    ) -> None:  # fmt: skip
        super().__init__(slots, queue, subject=f"The tool {tool}", busy=ToolBusy)
        self._state = state
        self._topic = f"slot/{tool}"
        self._patience = patience  # seconds that a call may wait
        self._lease = lease
        self._beat = beat  # seconds between two renewals, and between two looks for slots that have expired
        self._held: deque[Slot] = deque()  # any call may give back any of them
        self._without = 0  # calls that go on without one
        self._looking = asyncio.Lock()  # the call that waits longest has it
        self._next = random.randrange(slots)  # where to look
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self) -> bool:
        return False  # that takes a trip to the store

    async def acquire(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await super().acquire()
                try:
                    await self._find_slot(may_wait=self._queue > 0)
                except BaseException:
                    super().release()
                    raise
        except TimeoutError:
            raise self._refusal(f"no slot became free within {self._patience:g} s") from None

    __aenter__ = acquire

    async def reclaim(self) -> None:
        await super().reclaim()
        try:
            await self._find_slot(may_wait=True)
        except BaseException as failure:
            self._without += 1
            if not isinstance(failure, Busy):  # else the store is in trouble, but this call is half done
                raise

    def overdraw(self) -> None:
        super().overdraw()
        self._without += 1

    def release(self) -> None:
        if self._without:
            self._without -= 1
            super().release()
            return
        with suppress(RuntimeError):  # a loop that died in mid-call is torn down from elsewhere
            self._begin(self._give_back, self._held.popleft()).add_done_callback(lambda _: Limit.release(self))

    async def _find_slot(self, *, may_wait: bool) -> None:
        """Raises Busy if none is free and the call may not wait, or if the store is in trouble."""
        listener: Listener | None = None
        try:
            async with self._looking:
                while not await self._claim():
                    if not may_wait:
                        raise self._refusal(f"all {self._slots} slots that the workers share are taken")
                    if listener is None:  # then once more: what became free before was not heard
                        listener = self._state.listen([self._topic])
                        continue
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._beat):
                            if not await listener.wait():
                                raise StoreTrouble  # it was closed
        except StoreTrouble as trouble:
            text = f"{self._subject} can't be called now: its limit is kept in a store that is in trouble"
            log.warning("%s: %s", text, trouble)
            raise Busy(f"{text}; try again later", http_status=503) from None
        finally:
            if listener is not None:
                listener.close()

    async def _claim(self) -> bool:
        for _ in range(self._slots):
            self._next = (self._next + 1) % self._slots
            slot = (f"{self._topic}/{self._next}", secrets.token_bytes(8))
            try:
                is_ours = await self._state.claim(*slot, self._lease)
            except asyncio.CancelledError:
                self._begin(self._give_back, slot)  # it may be ours
                raise
            if is_ours:
                self._held.append(slot)
                if self._renewing is None or self._renewing.done():
                    self._renewing = self._begin(self._renew)
                return True
        return False

    async def _is_ours(self, slot: Slot) -> bool:
        entry = await self._state.get(slot[0])
        return entry is not None and entry.value == slot[1]

    async def _give_back(self, slot: Slot) -> None:
        with suppress(Exception):  # then it stays taken until it expires
            if await self._is_ours(slot):
                await self._state.delete(slot[0])
                await self._state.publish(self._topic)

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(self._beat)
            for slot in tuple(self._held):
                with suppress(StoreTrouble):
                    is_kept = await self._is_ours(slot) and await self._state.touch(slot[0], self._lease)
                    if not is_kept and slot in self._held:
                        self._held.remove(slot)
                        self._without += 1
                        log.warning("%s: a call runs on although its slot has expired", self._topic)

    def _begin(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """What is given back reaches the store, which takes no longer than the store takes to answer."""
        if self._renewing is not None:
            self._renewing.cancel()
        while self._held:
            self._begin(self._give_back, self._held.popleft())
        if self._tasks:
            await asyncio.wait(self._tasks)
