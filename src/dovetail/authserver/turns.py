"""Checking passwords takes a core and much memory, so few are checked at a time: whoever has one waits here.

Strangers wait in a line that has an end. Users at a browser where they have signed in before have one of their own: no
crowd of strangers keeps them waiting.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dovetail.authserver.refusals import OAuthRefusal

MOST_WAITING = 20
WAIT_SECONDS = 5.0  # what is told to whoever finds the line full


class _Queue:
    """One at a time, the others after it as they came."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if self._waiting >= MOST_WAITING:
            raise OAuthRefusal.too_many("people signing in at this moment", WAIT_SECONDS)
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1


class Turns:
    """The two lines, on each event loop: what waits on one can't be woken from another."""

    def __init__(self) -> None:
        self._lines: dict[asyncio.AbstractEventLoop, dict[bool, _Queue]] = {}

    @asynccontextmanager
    async def turn(self, *, is_known: bool) -> AsyncIterator[None]:
        """Raises OAuthRefusal if the line is full."""
        async with self._here()[is_known].turn():
            yield

    def _here(self) -> dict[bool, _Queue]:
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            for ended in [each for each in self._lines if each.is_closed()]:
                del self._lines[ended]
            self._lines[loop] = {True: _Queue(), False: _Queue()}
        return self._lines[loop]
