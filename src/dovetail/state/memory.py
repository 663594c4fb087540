"""Memory state backend, for a single process: dictionaries with bounds.

Nothing here suspends, locks or starts a task: each call is done when its first step returns. What has expired is found
when it is asked for, or by one of the next writes, each of which frees a few things. Data outlive an event loop; a
waiting listener belongs to its loop. All calls are made on the event loop, `publish` and `append` above all.
"""

import itertools
import time
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

from dovetail.state.base import (
    CALLER_FAMILIES,
    Conflict,
    Entry,
    Listener,
    LogPage,
    LogRecord,
    NoRoom,
    StateBackend,
    Topics,
    check_new,
    check_ttl,
    counted,
    full_beyond,
)

MEBIBYTE = 1024 * 1024
RECORD_OVERHEAD = 128  # bytes that a record costs besides its data, about


class _Slot:
    """A key."""

    __slots__ = ("due", "entry", "expires", "size")

    def __init__(self) -> None:
        self.expires = self.due = inf  # its alarm rings at `due`, never after `expires`
        self.size = 0  # bytes
        self.entry = Entry(b"", 0)


class _Log:
    __slots__ = ("due", "expires", "last", "records", "size")

    def __init__(self) -> None:
        self.expires = self.due = inf
        self.size = 0
        self.records: dict[int, bytes] = {}  # without gaps, up to `last`
        self.last = 0

    @property
    def first(self) -> int:
        return self.last - len(self.records) + 1


T = TypeVar("T", _Slot, _Log)


class _Shelf(Generic[T]):
    """Keys or logs by name, each until it expires.

    There is a heap of alarms. A thing that is prolonged keeps its alarm, which is set anew when it rings, so that
    prolonging is cheap. An alarm whose thing is gone, or has another one, is stale and rings in vain.
    """

    def __init__(self) -> None:
        self.things: dict[str, T] = {}
        self.size = 0  # bytes of all things
        self.alarms: list[tuple[float, str]] = [(inf, "")]  # a heap; the last one never rings

    def find(self, name: str, now: float) -> T | None:
        thing = self.things.get(name)
        if thing is not None and thing.expires <= now:
            self.discard(name)
            return None
        return thing

    def keep(self, name: str, thing: T, expires: float) -> None:
        """Take a new thing, or change the time of one that is here."""
        thing.expires = expires
        if expires < thing.due:  # always so if it is new
            self.things[name] = thing
            self._set_alarm(name, thing)

    def move_to_end(self, name: str) -> None:
        self.things[name] = self.things.pop(name)

    def resize(self, thing: T, growth: int) -> None:
        thing.size += growth
        self.size += growth

    def discard(self, name: str) -> bool:
        thing = self.things.pop(name, None)
        if thing is None:
            return False
        self.size -= thing.size
        return True

    def sweep(self, now: float, at_most: float = 4) -> None:
        """Look at some of the alarms that ring, and free what has expired. A write sets one at most."""
        while at_most > 0 and self.alarms[0][0] <= now:
            at_most -= 1
            due, name = heappop(self.alarms)
            thing = self.things.get(name)
            if thing is None or thing.due != due:
                continue
            if thing.expires <= now:
                self.discard(name)
            else:
                self._set_alarm(name, thing)

    def _set_alarm(self, name: str, thing: T) -> None:
        thing.due = thing.expires
        heappush(self.alarms, (thing.due, name))
        if len(self.alarms) > 2 * len(self.things) + 64:  # most are stale: begin anew
            self.alarms = [(inf, ""), *((thing.due, name) for name, thing in self.things.items())]
            heapify(self.alarms)


class MemoryState(StateBackend):
    """Keys, logs and topics of one process. What is full refuses new keys and logs; logs lose their oldest records.

    `max_entries` counts keys and logs together; `max_entry_bytes` is for all keys with their values, `max_log_bytes`
    for all records, each with `RECORD_OVERHEAD`. For `CALLER_FAMILIES` the first two end at their share.
    """

    shared = False
    outages = 0

    def __init__(
        self,
        *,
        max_entries: int = 100_000,
        max_entry_bytes: int = 64 * MEBIBYTE,
        max_log_bytes: int = 64 * MEBIBYTE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries = max_entries
        self._max_entry_bytes = max_entry_bytes
        self._max_log_bytes = max_log_bytes
        self._clock = clock
        self._entries: _Shelf[_Slot] = _Shelf()
        self._logs: _Shelf[_Log] = _Shelf()  # in the order of their last appends
        self._topics = Topics()
        self._versions = itertools.count(1)  # one row of numbers for all keys, so that no key has a version twice

    @property
    def held(self) -> int:
        """Keys and logs in memory, with those that have expired and were not freed yet."""
        return len(self._entries.things) + len(self._logs.things)

    @property
    def log_bytes(self) -> int:
        """What counts towards `max_log_bytes`."""
        return self._logs.size

    async def check(self) -> None:
        """It is always there."""

    async def get(self, key: str) -> Entry | None:
        slot = self._entries.find(key, self._clock())
        return None if slot is None else slot.entry

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        check_new(key, ttl)
        now = self._clock()
        slot = self._entries.find(key, now)
        if if_version is not None and if_version != (0 if slot is None else slot.entry.version):
            raise Conflict(key)
        return self._write(key, slot, value, now, now + ttl)

    async def touch(self, key: str, ttl: float) -> bool:
        check_ttl(ttl)
        now = self._clock()
        slot = self._entries.find(key, now)
        if slot is None:
            return False
        self._entries.keep(key, slot, now + ttl)
        return True

    async def remaining(self, key: str) -> float | None:
        now = self._clock()
        slot = self._entries.find(key, now)
        return None if slot is None else slot.expires - now

    async def delete(self, key: str) -> bool:
        return self._entries.find(key, self._clock()) is not None and self._entries.discard(key)

    async def claim(self, key: str, value: bytes, ttl: float) -> bool:
        check_new(key, ttl)
        now = self._clock()
        if self._entries.find(key, now) is not None:
            return False
        self._write(key, None, value, now, now + ttl)
        return True

    async def add(self, key: str, n: int, ttl: float) -> int:
        check_new(key, ttl)
        now = self._clock()
        slot = self._entries.find(key, now)
        total = counted(key, None if slot is None else slot.entry.value, n)
        self._write(key, slot, b"%d" % total, now, now + ttl if slot is None else slot.expires)
        return total

    async def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        check_new(log, ttl, keep)
        size = len(data) + RECORD_OVERHEAD
        if size > self._max_log_bytes:
            raise NoRoom(f"A record of {len(data)} bytes is too large for max_log_bytes={self._max_log_bytes}")
        now = self._clock()
        self._sweep(now)
        found = self._logs.find(log, now)
        if if_last is not None and if_last != (0 if found is None else found.last):
            raise Conflict(log)
        if found is None:
            self._admit(log, now)
            found = _Log()
        while len(found.records) >= keep:
            self._drop_oldest(found)
        self._logs.keep(log, found, now + ttl)
        self._logs.move_to_end(log)
        self._make_room_for(size, now)
        found.last += 1
        found.records[found.last] = data
        self._logs.resize(found, size)
        self._topics.tell(log)
        return found.last

    async def read(self, log: str, after: int, limit: int = 100) -> LogPage:
        found = self._logs.find(log, self._clock())
        if found is None:
            return LogPage([], 0, 0)
        first, last = found.first, found.last
        begin = max(after + 1, first)
        ids = range(begin, min(begin + limit, last + 1))
        return LogPage([LogRecord(id, found.records[id]) for id in ids], first, last)

    async def drop(self, log: str) -> None:
        self._logs.discard(log)

    async def publish(self, topic: str) -> None:
        self._topics.tell(topic)

    def listen(self, topics: Iterable[str]) -> Listener:
        return self._topics.listen(topics)

    async def close(self) -> None:
        self._topics.close()
        self._entries = _Shelf()
        self._logs = _Shelf()

    def _write(self, key: str, slot: _Slot | None, value: bytes, now: float, expires: float) -> int:
        """Give a key its value; `slot` is the one it has, if any."""
        self._sweep(now)
        entries, size = self._entries, len(key) + len(value)
        growth = size if slot is None else size - slot.size
        if growth > 0:
            most = full_beyond(self._max_entry_bytes, slot is None and key.startswith(CALLER_FAMILIES))
            if entries.size + growth > most:
                entries.sweep(now, at_most=inf)
                if entries.size + growth > most:
                    raise NoRoom(f"The state store is full: max_entry_bytes={self._max_entry_bytes}")
        if slot is None:
            self._admit(key, now)
            slot = _Slot()
        slot.entry = Entry(value, next(self._versions))
        entries.resize(slot, growth)
        entries.keep(key, slot, expires)
        return slot.entry.version

    def _sweep(self, now: float) -> None:
        """Free a few things that have expired."""
        if self._entries.alarms[0][0] <= now:
            self._entries.sweep(now)
        if self._logs.alarms[0][0] <= now:
            self._logs.sweep(now)

    def _admit(self, name: str, now: float) -> None:
        """Is there room for one more key or log?"""
        most = full_beyond(self._max_entries, name.startswith(CALLER_FAMILIES))
        if self.held + 1 > most:
            for shelf in (self._entries, self._logs):
                shelf.sweep(now, at_most=inf)
            if self.held + 1 > most:
                raise NoRoom(f"The state store is full: max_entries={self._max_entries}")

    def _make_room_for(self, size: int, now: float) -> None:
        """Drop the oldest records of the logs that were not appended to for longest."""
        if self._logs.size + size > self._max_log_bytes:
            self._logs.sweep(now, at_most=inf)
        while self._logs.size + size > self._max_log_bytes:
            name, log = next(iter(self._logs.things.items()))
            if log.records:
                self._drop_oldest(log)
            else:
                self._logs.move_to_end(name)

    def _drop_oldest(self, log: _Log) -> None:
        self._logs.resize(log, -len(log.records.pop(log.first)) - RECORD_OVERHEAD)
