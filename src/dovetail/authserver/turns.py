"""Checking passwords takes a core and much memory, so few are checked at a time: whoever has one waits here.

Strangers wait in a line that has an end. Users at a browser where they have signed in before have one of their own: no
crowd of strangers keeps them waiting. Whoever comes gets a place first, and then the turn.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from dovetail.authserver.refusals import OAuthRefusal

MOST_WAITING = 20  # in one line, the one whose turn it is included
WAIT_SECONDS = 5.0  # what is told to whoever finds the line full


class _Queue:
    """One at a time, the others after it as they came."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0

    @contextmanager
    def place(self) -> Iterator[asyncio.Semaphore]:
        if self._waiting >= MOST_WAITING:
            raise OAuthRefusal.too_many("people signing in at this moment", WAIT_SECONDS)
        self._waiting += 1
        try:
            yield self._turn
        finally:
            self._waiting -= 1


class Turns:
    """The two lines, on each event loop: what waits on one can't be woken from another."""

    def __init__(self) -> None:
        self._lines: dict[asyncio.AbstractEventLoop, dict[bool, _Queue]] = {}

    def place(self, *, is_known: bool) -> AbstractContextManager[asyncio.Semaphore]:
        """Gives the turn to wait for. Entering raises OAuthRefusal if the line is full."""
        return self._here()[is_known].place()

    def _here(self) -> dict[bool, _Queue]:
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            for ended in [each for each in tuple(self._lines) if each.is_closed()]:  # other loops add theirs meanwhile
                self._lines.pop(ended, None)
            self._lines[loop] = {True: _Queue(), False: _Queue()}
        return self._lines[loop]
