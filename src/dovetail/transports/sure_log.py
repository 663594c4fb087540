"""A log with one writer, which appends each record once: drafts go in, the numbers of their records come out.

A store that is in trouble may have taken a record without saying so. As long as that is not known, nothing more is
sent: what has become of the record is read first. Nobody else writes to the log, unless this worker was taken for lost.
"""

import asyncio
import hashlib
from collections import deque

from dovetail.errors import DovetailError
from dovetail.state.base import Conflict, NoRoom, StateBackend, StoreTrouble

KEEP_EVENTS = 1000  # of one stream
KEEP_BYTES = 4 * 1024 * 1024  # of one stream, so that a noisy one loses its own events before those of others
MAX_UNSURE = 64  # for each of them the store was read, which did not have the record, and gave no answer to the next


class Replaced(DovetailError):
    """Others took this worker for lost, and have ended the log in its place."""

    def __init__(self) -> None:
        super().__init__("Another worker has ended this log")


class Forgotten(NoRoom):
    """Records are gone, so that nothing can come after them: their numbers are known to clients."""

    def __init__(self) -> None:
        super().__init__("The server's state store has forgotten a stream")


class Draft:
    """What is to become one record, however often it is tried."""

    __slots__ = ("_digested", "data", "sent")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sent: frozenset[bytes] = frozenset()  # digests of what the store may have
        self._digested: tuple[bytes, bytes] | None = None  # which data, and their digest

    @property
    def digest(self) -> bytes:
        """Made once for the same data: they may be large, and are tried again and again."""
        if self._digested is None or self._digested[0] is not self.data:
            self._digested = (self.data, hashlib.sha256(self.data).digest())
        return self._digested[1]


class Room:
    """What stays of a log: its newest records."""

    __slots__ = ("_bytes", "_sizes")

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()  # of the records that are there
        self._bytes = 0  # of all of them

    def with_one_more(self, size: int) -> int:
        """How many stay if it comes. One that is empty does not drive out a large one before it."""
        count, total = len(self._sizes) + 1, self._bytes + size
        for oldest in self._sizes:
            if count <= KEEP_EVENTS and (total <= KEEP_BYTES or not size):
                break
            count, total = count - 1, total - oldest
        return count

    def take(self, size: int, keep: int) -> None:
        """It has come, and so many have stayed."""
        self._sizes.append(size)
        self._bytes += size
        while len(self._sizes) > keep:
            self._bytes -= self._sizes.popleft()


class SureLog:
    """Each append ends in a number, or raises: NoRoom (it is not there), Replaced, or StoreTrouble (nobody knows)."""

    __slots__ = ("_room", "_state", "_unsure", "last", "name")

    def __init__(self, state: StateBackend, name: str) -> None:
        self._state = state
        self.name = name
        self.last = 0  # the newest number that is known
        self._room = Room()
        self._unsure: tuple[bytes, ...] = ()  # digests of records one of which may come after it

    async def append(self, draft: Draft, *, ttl: float) -> int:
        """After StoreTrouble it may be tried again, at once or later; also with other data, if need be."""
        if self._unsure and await self._is_there(draft):
            return self.last
        size = len(draft.data)
        keep = self._room.with_one_more(size)
        try:
            number = await self._state.append(self.name, draft.data, keep=keep, ttl=ttl, if_last=self.last)
        except (StoreTrouble, asyncio.CancelledError):
            self._remember(draft)
            raise
        except Conflict:  # one of ours was on its way for long, or somebody else has written
            if not await self._is_there(draft):
                raise StoreTrouble from None
            return self.last
        self.last = number
        self._room.take(size, keep)
        self._unsure = ()
        return number

    def _remember(self, draft: Draft) -> None:
        """The store may have it; among those of which that is true it is the newest, however often it was sent."""
        draft.sent |= {draft.digest}
        others = (each for each in self._unsure if each != draft.digest)
        self._unsure = (*others, draft.digest)[-MAX_UNSURE:]

    async def _is_there(self, draft: Draft) -> bool:
        """Which of the unsure ones is there, if any: is it this one?"""
        page = await self._state.read(self.name, self.last, 1)
        if page.last == self.last:
            return False
        if page.last < self.last:
            raise Forgotten
        data = page.records[0].data if page.records else b"driven out by others"
        found = hashlib.sha256(data).digest()
        if found not in self._unsure:
            raise Replaced
        self.last += 1
        self._room.take(len(data), self._room.with_one_more(len(data)))
        self._unsure = ()  # no other one can come any more
        return found in draft.sent
