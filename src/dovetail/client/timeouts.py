"""Time limits of a client's requests that stand still while a person decides, and begin again at progress."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class PausableTimeout:
    """One `asyncio.Timeout` that can be paused, and extended up to a maximum."""

    __slots__ = ("_due", "_first_due", "_paused_at", "_pauses", "_timeout")

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._due = self._first_due = timeout.when()  # None: without a limit, or over
        self._pauses = 0
        self._paused_at = 0.0

    def pause(self) -> None:
        self._pauses += 1
        if self._pauses == 1 and self._due is not None and not self._timeout.expired():
            self._paused_at = asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses or self._due is None or self._first_due is None or self._timeout.expired():
            return
        paused = asyncio.get_running_loop().time() - self._paused_at
        self._due, self._first_due = self._due + paused, self._first_due + paused
        self._timeout.reschedule(self._due)

    def extend(self, seconds: float, most: float) -> None:
        """Begin again with these seconds; all in all it takes `most`, not counting pauses."""
        if self._due is None or self._first_due is None or self._timeout.expired():
            return
        now = self._paused_at if self._pauses else asyncio.get_running_loop().time()
        self._due = min(now + seconds, self._first_due + max(0.0, most - seconds))
        if not self._pauses:
            self._timeout.reschedule(self._due)

    def end(self) -> None:
        self._due = None


class RequestTimeouts:
    """Those of all requests on their way: a person may take longer to answer than a server may take to work.

    A question pauses the requests that were made before it. Others may be made because of it, and run.
    """

    def __init__(self) -> None:
        self._limits: set[PausableTimeout] = set()

    @contextmanager
    def counting(self, timeout: asyncio.Timeout) -> Iterator[PausableTimeout]:
        """Inside, a request is on its way."""
        limit = PausableTimeout(timeout)
        self._limits.add(limit)
        try:
            yield limit
        finally:
            limit.end()
            self._limits.discard(limit)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, a question is open."""
        paused = tuple(self._limits)
        for limit in paused:
            limit.pause()
        try:
            yield
        finally:
            for limit in paused:
                limit.resume()
