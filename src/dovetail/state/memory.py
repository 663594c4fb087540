"""The state backend of a single process: dictionaries with bounds, and a clock that is handed in.

Nothing here suspends, locks or starts a task: each call is done when its first step returns. What has expired is found
when somebody asks for it, or by one of the next writes, each of which frees a few things. Data outlive an event loop;
a waiting listener belongs to its loop. All calls are made on the event loop, `publish` and `append` above all.
"""

import itertools
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

from dovetail.state.base import (
    GUEST_PART,
    GUESTS,
    MAX_COUNT,
    Conflict,
    Entry,
    Listener,
    LogPage,
    LogRecord,
    NoRoom,
    StateBackend,
    Topics,
    check_name,
    check_ttl,
)

MEBIBYTE = 1024 * 1024
RECORD_OVERHEAD = 128  # bytes that a record costs besides its data, about
SWEEP = 4  # alarms that a write looks at; it sets one at most, so the sweep always catches up
NUMBER = rb"0|-?[1-9][0-9]{0,18}"


class _Mortal:
    """Something that expires. Its alarm rings at `due`, which is never after `expires`."""

    __slots__ = ("due", "expires", "is_guest", "size")

    def __init__(self, is_guest: bool) -> None:
        self.expires = self.due = inf
        self.is_guest = is_guest
        self.size = 0  # bytes


class _Slot(_Mortal):
    __slots__ = ("entry",)

    def __init__(self, is_guest: bool) -> None:
        super().__init__(is_guest)
        self.entry = Entry(b"", 0)


class _Log(_Mortal):
    __slots__ = ("last", "records")

    def __init__(self, is_guest: bool) -> None:
        super().__init__(is_guest)
        self.records: dict[int, bytes] = {}  # without gaps, up to `last`
        self.last = 0

    @property
    def first(self) -> int:
        return self.last - len(self.records) + 1


T = TypeVar("T", bound=_Mortal)


class _Shelf(Generic[T]):
    """Things by name, each until it expires.

    There is a heap of alarms. A thing that is prolonged keeps its alarm, which is set anew when it rings, so that
    prolonging is cheap. An alarm whose thing is gone, or has another one, is stale and rings in vain.
    """

    def __init__(self) -> None:
        self.things: dict[str, T] = {}
        self.size = 0  # bytes of all things
        self.guests = 0  # things whose family is one of `GUESTS`
        self.guest_size = 0  # bytes of those
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
            if name not in self.things:
                self.guests += thing.is_guest
            self.things[name] = thing
            self._set_alarm(name, thing)

    def resize(self, thing: T, growth: int) -> None:
        thing.size += growth
        self.size += growth
        if thing.is_guest:
            self.guest_size += growth

    def discard(self, name: str) -> bool:
        thing = self.things.pop(name, None)
        if thing is None:
            return False
        self.size -= thing.size
        if thing.is_guest:
            self.guests -= 1
            self.guest_size -= thing.size
        return True

    def sweep(self, now: float, at_most: float = SWEEP) -> None:
        """Look at some of the alarms that ring, and free what has expired."""
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


class _Logs(_Shelf[_Log]):
    """All logs, and which of them was appended to least recently."""

    def __init__(self) -> None:
        super().__init__()
        self._filled: OrderedDict[str, _Log] = OrderedDict()  # those that hold records, in the order of their appends

    def append(self, name: str, log: _Log, data: bytes) -> None:
        log.last += 1
        log.records[log.last] = data
        self.resize(log, len(data) + RECORD_OVERHEAD)
        self._filled[name] = log
        self._filled.move_to_end(name)

    def trim(self, name: str, log: _Log, keep: int) -> None:
        """Drop the oldest records, so that `keep` of them stay."""
        while len(log.records) > keep:
            data = log.records.pop(log.first)
            self.resize(log, -len(data) - RECORD_OVERHEAD)
        if not log.records:
            self._filled.pop(name, None)

    def shrink(self, room: int, spare: str) -> None:
        """Drop records, oldest first, of the logs that were appended to least recently; those of `spare` last."""
        if spare in self._filled:
            self._filled.move_to_end(spare)
        while self.size > room:
            name, log = next(iter(self._filled.items()))
            self.trim(name, log, len(log.records) - 1)

    def discard(self, name: str) -> bool:
        self._filled.pop(name, None)
        return super().discard(name)


class MemoryState(StateBackend):
    """Keys, logs and topics of one process. What is full refuses new keys and logs; logs lose their oldest records.

    `max_entries` counts keys and logs together; `max_entry_bytes` is for all keys with their values, `max_log_bytes`
    for all records, each with `RECORD_OVERHEAD`. Of entries and their bytes, `GUESTS` get one part in `GUEST_PART`.
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
        self._logs = _Logs()
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
        check_name(key)
        check_ttl(ttl)
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
        check_name(key)
        check_ttl(ttl)
        now = self._clock()
        if self._entries.find(key, now) is not None:
            return False
        self._write(key, None, value, now, now + ttl)
        return True

    async def add(self, key: str, n: int, ttl: float) -> int:
        check_name(key)
        check_ttl(ttl)
        now = self._clock()
        slot = self._entries.find(key, now)
        total = n if slot is None else n + _number(key, slot.entry.value)
        if abs(total) > MAX_COUNT:
            raise ValueError(f"The counter {key!r} can't go beyond {MAX_COUNT}")
        self._write(key, slot, b"%d" % total, now, now + ttl if slot is None else slot.expires)
        return total

    async def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        check_name(log)
        check_ttl(ttl)
        if keep < 1:
            raise ValueError(f"keep={keep!r} is not possible; a log keeps one record at least")
        room = self._max_log_bytes - len(data) - RECORD_OVERHEAD
        if room < 0:
            raise NoRoom(f"A record of {len(data)} bytes is too large for max_log_bytes={self._max_log_bytes}")
        now = self._clock()
        self._sweep(now)
        found = self._logs.find(log, now)
        if if_last is not None and if_last != (0 if found is None else found.last):
            raise Conflict(log)
        if found is None:
            found = _Log(log.startswith(GUESTS))
            self._admit(found.is_guest, now)
        self._logs.trim(log, found, keep - 1)
        if self._logs.size > room:
            self._logs.sweep(now, at_most=inf)
            self._logs.shrink(room, spare=log)
        self._logs.append(log, found, data)
        self._logs.keep(log, found, now + ttl)
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
        self._logs = _Logs()

    def _write(self, key: str, slot: _Slot | None, value: bytes, now: float, expires: float) -> int:
        """Give a key its value; `slot` is the one it has, if any."""
        self._sweep(now)
        entries = self._entries
        is_new = slot is None
        slot = slot or _Slot(key.startswith(GUESTS))
        growth = len(key) + len(value) - slot.size
        if growth > 0 and not self._has_bytes(growth, slot.is_guest):
            entries.sweep(now, at_most=inf)
            if not self._has_bytes(growth, slot.is_guest):
                raise NoRoom.beyond("max_entry_bytes", self._max_entry_bytes, slot.is_guest)
        if is_new:
            self._admit(slot.is_guest, now)
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

    def _admit(self, is_guest: bool, now: float) -> None:
        """Is there room for one more key or log?"""
        if not self._has_place(is_guest):
            for shelf in (self._entries, self._logs):
                shelf.sweep(now, at_most=inf)
            if not self._has_place(is_guest):
                raise NoRoom.beyond("max_entries", self._max_entries, is_guest)

    def _has_place(self, is_guest: bool) -> bool:
        guests = self._entries.guests + self._logs.guests
        return self.held < self._max_entries and not (is_guest and guests >= self._max_entries // GUEST_PART)

    def _has_bytes(self, growth: int, is_guest: bool) -> bool:
        most, entries = self._max_entry_bytes, self._entries
        return entries.size + growth <= most and not (is_guest and entries.guest_size + growth > most // GUEST_PART)


def _number(key: str, value: bytes) -> int:
    if not re.fullmatch(NUMBER, value):
        raise ValueError(f"The key {key!r} holds no number that could be counted on")
    return int(value)
