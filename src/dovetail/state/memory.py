"""Memory state backend, for a single process: dictionaries with bounds.

No call suspends, locks or starts a task. Expired rows are freed by lookups, and once a second by a write. Data outlive
an event loop, a waiting listener does not. All calls are made on the event loop, `publish` and `append` above all.
"""

import itertools
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from dovetail.state.base import (
    Conflict,
    Entry,
    LogPage,
    LogRecord,
    StateBackend,
    StoreFull,
    Topics,
    add_to_counter,
    check_new,
    check_ttl,
    max_share,
    warn_once,
)

MEBIBYTE = 1024 * 1024
RECORD_OVERHEAD = 128  # bytes that a record costs besides its data, about


class _Key(msgspec.Struct):
    entry: Entry = Entry(b"", 0)
    expires: float = 0.0
    size: int = 0  # bytes


class _Log(msgspec.Struct):
    records: dict[int, bytes] = {}  # without gaps, up to `last`
    last: int = 0
    expires: float = 0.0
    size: int = 0

    @property
    def first(self) -> int:
        return self.last - len(self.records) + 1


T = TypeVar("T", _Key, _Log)


class _Table(Generic[T]):
    """Keys or logs by name, each until it expires."""

    def __init__(self) -> None:
        self.rows: dict[str, T] = {}
        self.size = 0  # bytes of all rows

    def find(self, name: str, now: float) -> T | None:
        row = self.rows.get(name)
        if row is not None and row.expires <= now:
            self.discard(name)
            return None
        return row

    def resize(self, row: T, growth: int) -> None:
        row.size += growth
        self.size += growth

    def discard(self, name: str) -> bool:
        row = self.rows.pop(name, None)
        self.size -= 0 if row is None else row.size
        return row is not None

    def sweep(self, now: float, most: int = 1000) -> bool:
        """Free expired rows. False if there may be more: one call is to take a few milliseconds at most."""
        expired = (name for name, row in self.rows.items() if row.expires <= now)
        names = tuple(itertools.islice(expired, most))
        for name in names:
            self.discard(name)
        return len(names) < most


class MemoryState(StateBackend):
    """Keys, logs and topics of one process. When full it refuses new keys and logs; logs lose their oldest records.

    `max_entries` counts keys and logs together; `max_entry_bytes` is for all keys with their values, `max_log_bytes`
    for all records, each with `RECORD_OVERHEAD`. `CALLER_PREFIXES` may use `CALLER_SHARE` of the first two.
    """

    shared = False
    outages = 0

    def __init__(
        self, *, max_entries: int = 100_000, max_entry_bytes: int = 64 * MEBIBYTE,
        max_log_bytes: int = 64 * MEBIBYTE, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._max_entries = max_entries
        self._max_entry_bytes = max_entry_bytes
        self._max_log_bytes = max_log_bytes
        self._clock = clock
        self._entries: _Table[_Key] = _Table()
        self._logs: _Table[_Log] = _Table()  # in the order of their last appends
        self._topics = Topics()
        self._sweep_at = 0.0
        self._versions = itertools.count(1)  # for all keys, so that no key has a version twice

    @property
    def held(self) -> int:
        """Keys and logs in memory, with expired ones that were not freed yet."""
        return len(self._entries.rows) + len(self._logs.rows)

    @property
    def log_bytes(self) -> int:
        """Bytes that count towards `max_log_bytes`."""
        return self._logs.size

    async def check(self) -> None:
        """Raise nothing: memory is always available."""

    async def get(self, key: str) -> Entry | None:
        row = self._entries.find(key, self._clock())
        return None if row is None else row.entry

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        check_new(key, ttl)
        now = self._clock()
        row = self._entries.find(key, now)
        if if_version is not None and if_version != (0 if row is None else row.entry.version):
            raise Conflict
        return self._write(key, row, value, now, now + ttl, max_share(key))

    async def touch(self, key: str, ttl: float) -> bool:
        check_ttl(ttl)
        now = self._clock()
        row = self._entries.find(key, now)
        if row is None:
            return False
        row.expires = now + ttl
        return True

    async def remaining(self, key: str) -> float | None:
        now = self._clock()
        row = self._entries.find(key, now)
        return None if row is None else row.expires - now

    async def delete(self, key: str) -> bool:
        return self._entries.find(key, self._clock()) is not None and self._entries.discard(key)

    async def add(self, key: str, n: int, ttl: float) -> int:
        check_new(key, ttl)
        now = self._clock()
        row = self._entries.find(key, now)
        total = add_to_counter(key, None if row is None else row.entry.value, n)
        expires, share = (now + ttl, max_share(key)) if row is None else (row.expires, 1.0)
        self._write(key, row, b"%d" % total, now, expires, share)
        return total

    async def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        check_new(log, ttl, keep)
        size = len(data) + RECORD_OVERHEAD
        if size > self._max_log_bytes:
            raise StoreFull(f"A record of {len(data)} bytes is too large for max_log_bytes={self._max_log_bytes}")
        now = self._clock()
        self._sweep(now)
        found = self._logs.find(log, now)
        if if_last is not None and if_last != (0 if found is None else found.last):
            raise Conflict
        if found is None:
            self._check_free(True, 0, max_share(log))
            found = self._logs.rows[log] = _Log()
        while len(found.records) >= keep:
            self._drop_oldest(found)
        found.expires = now + ttl
        self._logs.rows[log] = self._logs.rows.pop(log)  # the last in their order
        self._shrink_logs(size)
        found.last += 1
        found.records[found.last] = data
        self._logs.resize(found, size)
        self._topics.wake(log)
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
        self._topics.wake(topic)

    async def close(self) -> None:
        self._topics.close()
        self._entries, self._logs = _Table(), _Table()

    def _write(self, key: str, row: _Key | None, value: bytes, now: float, expires: float, share: float) -> int:
        """Write a key; `row` is the one that it has, if any. `share` of the store may be in use if it grows."""
        self._sweep(now)
        entries, size = self._entries, len(key) + len(value)
        growth = size if row is None else size - row.size
        if row is None or growth > 0:
            self._check_free(row is None, growth, share)
        if row is None:
            row = entries.rows[key] = _Key()
        row.entry = Entry(value, next(self._versions))
        entries.resize(row, growth)
        row.expires = expires
        return row.entry.version

    def _check_free(self, is_new: bool, growth: int, share: float) -> None:
        """Raises StoreFull if a new key or log, or `growth` more bytes, would exceed a share of the store."""
        has_slot = not is_new or self.held + 1 <= self._max_entries * share
        if has_slot and (growth <= 0 or self._entries.size + growth <= self._max_entry_bytes * share):
            return
        bounds = f"max_entries={self._max_entries}, max_entry_bytes={self._max_entry_bytes}"
        warn_once("The state store is full: %s", bounds)
        raise StoreFull

    def _sweep(self, now: float) -> None:
        if now >= self._sweep_at and self._entries.sweep(now) & self._logs.sweep(now):
            self._sweep_at = now + 1

    def _shrink_logs(self, size: int) -> None:
        """Drop the oldest records of the logs whose last append was longest ago."""
        while self._logs.size + size > self._max_log_bytes:
            name, log = next(iter(self._logs.rows.items()))
            if log.records:
                self._drop_oldest(log)
            else:
                self._logs.rows[name] = self._logs.rows.pop(name)

    def _drop_oldest(self, log: _Log) -> None:
        self._logs.resize(log, -len(log.records.pop(log.first)) - RECORD_OVERHEAD)
