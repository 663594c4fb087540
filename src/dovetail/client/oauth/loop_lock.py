"""A lock for objects that outlive an event loop: each loop that comes by has one of its own."""

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary


class LoopLock:
    """As asyncio.Lock, which belongs to the first loop in which somebody had to wait for it."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def acquire(self) -> None:
        await self._own().acquire()

    def release(self) -> None:
        self._own().release()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _own(self) -> asyncio.Lock:
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
