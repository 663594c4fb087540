"""The records of the SQLite backend, without event loops and threads: calls go in, rows change, answers come out.

Writes are made between `begin` and `commit`, several in one transaction. A call that is refused (`Conflict`, `NoRoom`,
`ValueError`) is refused before it has changed anything, so the others can be committed. Names come as the bytes that
the file holds; where a refusal shows the name, it comes as `text` as well.
"""

import re
import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from dovetail.state.base import MAX_COUNT, Conflict, Entry, LogPage, LogRecord, NoRoom
from dovetail.state.memory import NUMBER, RECORD_OVERHEAD
from dovetail.state.sqlite_ledger import Bounds, Ledger, count_guests, is_guest

SWEEP = 4  # expired things that a write frees; it adds one at most, so the sweep always catches up
STEP = 64  # things that are freed at once where room is needed
STEPS = 64  # in one transaction, for others wait for the file meanwhile; who finds no room by then is refused
A_SESSION = 1024  # bytes, about
KEEP_WAKES = 4096
TRIM_WAKES = 256  # wakes between two trims
LARGEST = 2**63 - 1  # that SQLite can compare with


class _Slot(NamedTuple):
    version: int
    size: int
    expires: float


class _Log:
    __slots__ = ("first", "id", "last", "name", "size")

    def __init__(self, name: bytes, id: int, first: int, last: int, size: int) -> None:
        self.name = name
        self.id = id
        self.first = first  # its oldest record, `last + 1` if it has none
        self.last = last
        self.size = size


class Tables:
    """What the file holds, seen through one connection. `origin` tells this process from others in `wakes`."""

    def __init__(
        self, connection: sqlite3.Connection, bounds: Bounds, clock: Callable[[], float], origin: int = 0
    ) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self.connection = connection
        self.committing = False  # if a commit fails, it may still have happened
        self._bounds = bounds
        self._clock = clock
        self._origin = origin
        self._now = 0.0
        self._ledger: Ledger  # of the transaction at hand
        self._knows_guests = False
        self._steps = 0  # that are left in this transaction
        self.woken: dict[bytes | None, None] = {}  # topics of this transaction; None means all

    # ── transactions ──

    def begin(self) -> int:
        """Nobody else writes from now on. Returns the newest wake."""
        self.woken.clear()
        self.committing = False
        self._execute("BEGIN IMMEDIATE")
        self._now = self._clock()
        if not self._knows_guests:
            count_guests(self._execute)
            self._knows_guests = True
        self._ledger = Ledger(self._execute, self._bounds)
        self._steps = STEPS
        return self._ledger.wake

    def commit(self, calls: int = 1) -> int:
        """Also free a few things that have expired, and write down who is to be woken. Returns the newest wake."""
        self._sweep(SWEEP * calls)
        ledger = self._ledger
        if self.woken:
            first = ledger.wake + 1
            rows = [(id, self._origin, topic) for id, topic in enumerate(self.woken, first)]
            self._executemany("INSERT INTO wakes VALUES (?, ?, ?)", rows)
            ledger.wake += len(rows)
            if ledger.wake // TRIM_WAKES != (first - 1) // TRIM_WAKES:
                self._execute("DELETE FROM wakes WHERE id <= ?", (ledger.wake - KEEP_WAKES,))
        ledger.write(self._execute)
        self.committing = True
        self._execute("COMMIT")
        return ledger.wake

    def roll_back(self) -> None:
        self._knows_guests = False  # that may have been rolled back as well
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def look(self) -> None:
        """Begin to read: each call to `get`, `remaining` and `read` is a transaction of its own."""
        self._now = self._clock()

    # ── keys ──

    def get(self, key: bytes) -> Entry | None:
        row = self._execute("SELECT value, version FROM entries WHERE key = ? AND expires > ?", (key, self._now))
        return None if (found := row.fetchone()) is None else Entry(*found)

    def put(self, key: bytes, value: bytes, ttl: float, if_version: int | None, text: str) -> int:
        slot = self._find(key)
        if if_version is not None and if_version != (0 if slot is None else slot.version):
            raise Conflict(text)
        return self._write(key, slot, value, self._now + ttl)

    def touch(self, key: bytes, ttl: float) -> bool:
        values = (self._now + ttl, key, self._now)
        return self._execute("UPDATE entries SET expires = ? WHERE key = ? AND expires > ?", values).rowcount > 0

    def remaining(self, key: bytes) -> float | None:
        row = self._execute("SELECT expires FROM entries WHERE key = ? AND expires > ?", (key, self._now))
        return None if (found := row.fetchone()) is None else float(found[0]) - self._now

    def delete(self, key: bytes) -> bool:
        slot = self._find(key)
        if slot is None:
            return False
        self._forget_entry(key, slot.size)
        return True

    def claim(self, key: bytes, value: bytes, ttl: float) -> bool:
        if self._find(key) is not None:
            return False
        self._write(key, None, value, self._now + ttl)
        return True

    def add(self, key: bytes, n: int, ttl: float, text: str) -> int:
        slot = self._find(key)
        entry = None if slot is None else self.get(key)
        total = n if entry is None else n + _number(text, entry.value)
        if abs(total) > MAX_COUNT:
            raise ValueError(f"The counter {text!r} can't go beyond {MAX_COUNT}")
        self._write(key, slot, b"%d" % total, self._now + ttl if slot is None else slot.expires)
        return total

    def check(self) -> None:
        """Could a session be opened? A write that changes nothing for anybody."""
        self._find_bytes(A_SESSION, guest=False)
        self._admit(guest=False)
        self._ledger.serial += 1

    def _find(self, key: bytes) -> _Slot | None:
        """What a key has. What has expired is freed at once."""
        found = "SELECT version, length(key) + length(value), expires FROM entries WHERE key = ?"
        row = self._execute(found, (key,)).fetchone()
        if row is None:
            return None
        slot = _Slot(*row)
        if slot.expires > self._now:
            return slot
        self._forget_entry(key, slot.size)
        return None

    def _write(self, key: bytes, slot: _Slot | None, value: bytes, expires: float) -> int:
        """Give a key its value; `slot` is what it has, if any."""
        ledger = self._ledger
        growth = len(key) + len(value) - (0 if slot is None else slot.size)
        if growth > 0:
            self._find_bytes(growth, is_guest(key))
        if slot is None:
            self._admit(is_guest(key))
        ledger.serial += 1
        ledger.count(key, slot is None, growth)
        self._execute("REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, value, ledger.serial, expires))
        return ledger.serial

    def _forget_entry(self, key: bytes, size: int) -> None:
        self._execute("DELETE FROM entries WHERE key = ?", (key,))
        self._ledger.count(key, -1, -size)

    # ── logs ──

    def append(self, name: bytes, data: bytes, keep: int, ttl: float, if_last: int | None, text: str) -> int:
        room = self._bounds.max_log_bytes - len(data) - RECORD_OVERHEAD
        if room < 0:
            raise NoRoom(f"A record of {len(data)} bytes is too large for max_log_bytes={self._bounds.max_log_bytes}")
        log = self._find_log(name)
        if if_last is not None and if_last != (0 if log is None else log.last):
            raise Conflict(text)
        if log is None:
            self._admit(is_guest(name))
        ledger = self._ledger
        ledger.serial += 1
        if log is None:
            ledger.count(name, 1, 0)
            log = _Log(name, ledger.serial, 1, 0, 0)
        self._trim(log, keep - 1)
        while ledger.log_bytes > room and self._sweep_logs(STEP):
            pass
        if ledger.log_bytes > room:
            self._shrink(room, log)
        log.last += 1
        self._grow(log, len(data) + RECORD_OVERHEAD)
        self._execute("INSERT INTO records VALUES (?, ?, ?)", (log.id, log.last, data))
        row = (name, log.id, log.first, log.last, log.size, ledger.serial, self._now + ttl)
        self._execute("REPLACE INTO logs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self.woken[name] = None
        return log.last

    def read(self, name: bytes, after: int, limit: int) -> LogPage:
        rows = self._execute(
            "SELECT logs.first, logs.last, records.id, records.data FROM logs "
            "LEFT JOIN records ON records.log = logs.id AND records.id > ? "
            "WHERE logs.name = ? AND logs.expires > ? ORDER BY records.id LIMIT ?",
            (min(max(after, 0), LARGEST), name, self._now, min(max(limit, 1), LARGEST)),
        ).fetchall()
        if not rows:
            return LogPage([], 0, 0)
        records = [LogRecord(id, data) for _, _, id, data in rows[: max(limit, 0)] if id is not None]
        return LogPage(records, rows[0][0], rows[0][1])

    def drop(self, name: bytes) -> None:
        if (log := self._find_log(name)) is not None:
            self._forget_log(log)

    def _find_log(self, name: bytes) -> _Log | None:
        row = self._execute("SELECT name, id, first, last, size, expires FROM logs WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        log = _Log(*row[:-1])
        if row[-1] > self._now:
            return log
        self._forget_log(log)
        return None

    def _forget_log(self, log: _Log) -> None:
        self._execute("DELETE FROM records WHERE log = ?", (log.id,))
        self._execute("DELETE FROM logs WHERE name = ?", (log.name,))
        self._ledger.count(log.name, -1, 0)
        self._ledger.log_bytes -= log.size

    def _trim(self, log: _Log, keep: int) -> None:
        """Drop the oldest records, so that `keep` of them stay. The row of the log is not written."""
        surplus = log.last - log.first + 1 - keep
        if surplus <= 0:
            return
        oldest = "records WHERE log = ? AND id < ?"
        bounds = (log.id, log.first + surplus)
        (size,) = self._execute(f"SELECT sum(length(data)) FROM {oldest}", bounds).fetchone()
        self._execute(f"DELETE FROM {oldest}", bounds)
        log.first += surplus
        self._grow(log, -size - surplus * RECORD_OVERHEAD)

    def _grow(self, log: _Log, growth: int) -> None:
        log.size += growth
        self._ledger.log_bytes += growth

    def _shrink(self, room: int, spare: _Log) -> None:
        """Drop records, oldest first, of the logs that were appended to least recently; those of `spare` last."""
        quietest = "SELECT name, id, first, last, size FROM logs WHERE first <= last AND name <> ? ORDER BY appended"
        while (surplus := self._ledger.log_bytes - room) > 0:
            row = self._execute(f"{quietest} LIMIT 1", (spare.name,)).fetchone()
            log = spare if row is None else _Log(*row)
            sizes = self._execute("SELECT length(data) FROM records WHERE log = ? ORDER BY id LIMIT ?", (log.id, STEP))
            dropped = 0
            for (size,) in sizes.fetchall():
                dropped += 1
                surplus -= size + RECORD_OVERHEAD
                if surplus <= 0:
                    break
            self._trim(log, log.last - log.first + 1 - dropped)
            if log is not spare:
                self._execute("UPDATE logs SET first = ?, size = ? WHERE name = ?", (log.first, log.size, log.name))

    # ── wake-ups ──

    def publish(self, topic: bytes) -> None:
        self.woken[topic] = None

    def wake_all(self) -> None:
        self.woken[None] = None

    def newest_wake(self) -> int:
        (wake,) = self._execute("SELECT wake FROM ledger").fetchone()
        return int(wake)

    def version(self) -> int:
        """Changes whenever another connection has written."""
        (version,) = self._execute("PRAGMA data_version").fetchone()
        return int(version)

    def wakes_since(self, seen: int) -> tuple[int, set[bytes | None]]:
        """The newest wake, and what others have published after `seen`; None means all topics."""
        rows = self._execute("SELECT id, origin, topic FROM wakes WHERE id > ? ORDER BY id", (seen,)).fetchall()
        if not rows:
            return seen, set()
        topics: set[bytes | None] = {topic for _, origin, topic in rows if origin != self._origin}
        if rows[0][0] != seen + 1:  # some were trimmed before we came to see them
            topics.add(None)
        return rows[-1][0], topics

    # ── room ──

    def _admit(self, guest: bool) -> None:
        """Is there room for one more key or log?"""
        while not self._ledger.has_place(guest):
            if not self._make_room():
                raise NoRoom.beyond("max_entries", self._bounds.max_entries, guest)

    def _find_bytes(self, growth: int, guest: bool) -> None:
        """Is there room for so many bytes more, of keys and values?"""
        while not self._ledger.has_bytes(growth, guest):
            if not self._make_room():
                raise NoRoom.beyond("max_entry_bytes", self._bounds.max_entry_bytes, guest)

    def _make_room(self) -> bool:
        """False if there is nothing to free, or not now."""
        self._steps -= 1
        return self._steps >= 0 and self._sweep(STEP) > 0

    def _sweep(self, at_most: int) -> int:
        return self._sweep_entries(at_most) + self._sweep_logs(at_most)

    def _sweep_entries(self, at_most: int) -> int:
        """Free some of what has expired, and return how many."""
        expired = "SELECT key, length(key) + length(value) FROM entries WHERE expires <= ? LIMIT ?"
        rows = self._execute(expired, (self._now, at_most)).fetchall()
        for key, size in rows:
            self._forget_entry(key, size)
        return len(rows)

    def _sweep_logs(self, at_most: int) -> int:
        expired = "SELECT name, id, first, last, size FROM logs WHERE expires <= ? LIMIT ?"
        rows = self._execute(expired, (self._now, at_most)).fetchall()
        for row in rows:
            self._forget_log(_Log(*row))
        return len(rows)


def _number(text: str, value: bytes) -> int:
    if not re.fullmatch(NUMBER, value):
        raise ValueError(f"The key {text!r} holds no number that could be counted on")
    return int(value)
