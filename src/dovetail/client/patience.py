"""The time limits of a client's requests: they stand still while somebody thinks about a question of the server's, and
begin again whenever the server tells of progress.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf


class Patience:
    """A person may take longer to answer than a server may take to work; only the second is limited.

    A question holds the limits of the requests that were made before it. Others may be made because of it, and run.
    """

    def __init__(self) -> None:
        self._limits: set[TimeLimit] = set()

    @contextmanager
    def counting(self, timeout: asyncio.Timeout) -> Iterator["TimeLimit"]:
        """Inside, a request is on its way."""
        limit = TimeLimit(timeout)
        self._limits.add(limit)
        try:
            yield limit
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


class TimeLimit:
    """One timeout, how many questions hold it, and whether it has begun again."""

    __slots__ = (
        "_first_due",
        "_held_since",
        "_holds",
        "_left",
        "_timeout",
        "_waited",
        "is_extended",
        "is_last",
        "over",
    )

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._holds = 0
        self._held_since = 0.0
        self._left = 0.0  # seconds, while it is held
        self._waited = 0.0  # seconds that it was held before
        self.is_extended = False
        self.is_last = False  # whether it can't be extended any more
        self._first_due = timeout.when()
        self.over = self._first_due is None  # nothing to hold, or nothing any more

    def hold(self) -> None:
        self._holds += 1
        due = self._timeout.when()
        if self._holds == 1 and due is not None and not self._timeout.expired():
            self._held_since = asyncio.get_running_loop().time()
            self._left = due - self._held_since
            self._timeout.reschedule(None)

    def release(self) -> None:
        self._holds -= 1
        if not self._holds and not self.over and not self._timeout.expired():
            now = asyncio.get_running_loop().time()
            self._waited += now - self._held_since
            self._timeout.reschedule(now + self._left)

    def extend(self, seconds: float, most: float = inf) -> None:
        """It begins again with its seconds; all in all it takes `most`, not counting the time that it was held."""
        if self.over or self._first_due is None or self._timeout.expired():
            return
        now = self._held_since if self._holds else asyncio.get_running_loop().time()
        latest = self._first_due + max(0.0, most - seconds) + self._waited
        self.is_extended, self.is_last = True, now + seconds >= latest
        due = min(now + seconds, latest)
        if self._holds:
            self._left = due - now
        else:
            self._timeout.reschedule(due)
