"""The time limits of a client's requests: they stand still while somebody thinks about a question of the server's."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Patience:
    """A person may take longer to answer than a server may take to work; only the second is limited.

    A question holds the limits of the requests that were made before it. Others may be made because of it, and run.
    """

    def __init__(self) -> None:
        self._limits: set[_Limit] = set()

    @contextmanager
    def counting(self, timeout: asyncio.Timeout) -> Iterator[None]:
        """Inside, a request is on its way."""
        limit = _Limit(timeout)
        self._limits.add(limit)
        try:
            yield
        finally:
            limit.over = True
            self._limits.discard(limit)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Inside, a question is open."""
        held = tuple(self._limits)
        for limit in held:
            limit.hold()
        try:
            yield
        finally:
            for limit in held:
                limit.release()


class _Limit:
    """One timeout, and how many questions hold it."""

    __slots__ = ("_holds", "_left", "_timeout", "over")

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._holds = 0
        self._left = 0.0  # seconds, while it is held
        self.over = timeout.when() is None  # nothing to hold, or nothing any more

    def hold(self) -> None:
        self._holds += 1
        due = self._timeout.when()
        if self._holds == 1 and due is not None and not self._timeout.expired():
            self._left = due - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def release(self) -> None:
        self._holds -= 1
        if not self._holds and not self.over and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)
