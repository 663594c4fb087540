"""The lifespan of a server: entered by its first user, left after its last, in one task of its own.

Users may come and go in any task, and a lifespan may hold what has to end where it began.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from dovetail.errors import ConnectionLost

Enter = Callable[[], AbstractAsyncContextManager[Any]]


class Life:
    """One stay. `value` is what the lifespan yielded; `at_end` runs before it is left."""

    def __init__(self, enter: Enter, at_end: Callable[[], Awaitable[None]]) -> None:
        self.value: Any = None
        self._enter = enter
        self._at_end = at_end
        self._users = 0
        self._ending = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._task = self._loop.create_task(self._run(), context=contextvars.Context())

    @property
    def is_here(self) -> bool:
        """Whether it lives on this loop; one that was left behind on a dead loop counts no more."""
        return self._loop is asyncio.get_running_loop()

    @property
    def is_elsewhere(self) -> bool:
        """Whether it lives on another loop that still runs."""
        return not self.is_here and self._loop.is_running() and not self._task.done()

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    async def ended(self) -> None:
        await asyncio.wait([self._task])

    async def join(self) -> None:
        """One more user; returns when the lifespan is entered, raises what it raised."""
        self._users += 1
        try:
            await asyncio.shield(self._started)
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """One user less. The last one waits until the lifespan is left, and is told what went wrong there."""
        self._users -= 1
        if self._users:
            return
        self._ending.set()
        if self._started.done():
            await asyncio.shield(self._task)
        else:  # nobody wants any more what is still being set up
            self._task.cancel()
            await self.ended()

    async def _run(self) -> None:
        try:
            async with self._enter() as self.value:
                self._started.set_result(None)
                await self._ending.wait()
                await self._at_end()
        except Exception as failure:
            if self._started.done():
                raise
            self._started.set_exception(failure)
        finally:
            self._ending.set()
            if not self._started.done():
                self._started.set_exception(ConnectionLost("The server was stopped while it started"))
                self._started.exception()  # seen: there may be nobody left who waits for it
