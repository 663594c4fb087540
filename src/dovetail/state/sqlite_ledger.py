"""What the SQLite backend counts over all its tables: rows of the file come in, and whether there is room goes out.

The counts are read when a transaction begins and written when it ends, so they are right for all processes, and after
a crash. `GUESTS` are counted twice: among all, and among themselves.
"""

import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from dovetail.state.base import GUEST_PART, GUESTS

LEDGER = """
SELECT serial, wake, ledger.held, ledger.entry_bytes, log_bytes, guests.held, guests.entry_bytes FROM ledger, guests
"""
GUEST_NAMES = tuple(family.encode() for family in GUESTS)

Execute = Callable[..., sqlite3.Cursor]


class Bounds(NamedTuple):
    max_entries: int
    max_entry_bytes: int
    max_log_bytes: int


class Ledger:
    """Of one transaction."""

    __slots__ = ("_before", "_bounds", "entry_bytes", "guest_bytes", "guests", "held", "log_bytes", "serial", "wake")

    serial: int  # of all writes: versions, ids of logs, the order of appends
    wake: int  # the newest row of `wakes`, which have no gaps
    held: int  # keys and logs
    entry_bytes: int
    log_bytes: int
    guests: int  # those of `held` whose family is one of `GUESTS`
    guest_bytes: int  # the same of `entry_bytes`

    def __init__(self, execute: Execute, bounds: Bounds) -> None:
        self._bounds = bounds
        self._before: tuple[int, ...] = execute(LEDGER).fetchone()
        self.serial, self.wake, self.held, self.entry_bytes, self.log_bytes, self.guests, self.guest_bytes = (
            self._before
        )

    def write(self, execute: Execute) -> None:
        row = (self.serial, self.wake, self.held, self.entry_bytes, self.log_bytes)
        guest_row = (self.guests, self.guest_bytes)
        if row != self._before[: len(row)]:
            execute("UPDATE ledger SET serial = ?, wake = ?, held = ?, entry_bytes = ?, log_bytes = ?", row)
        if guest_row != self._before[len(row) :]:
            execute("UPDATE guests SET held = ?, entry_bytes = ?", guest_row)

    def count(self, name: bytes, things: int, entry_bytes: int) -> None:
        """So many more, or less, under this name."""
        self.held += things
        self.entry_bytes += entry_bytes
        if is_guest(name):
            self.guests += things
            self.guest_bytes += entry_bytes

    def has_place(self, guest: bool) -> bool:
        """For one more key or log."""
        most = self._bounds.max_entries
        return self.held < most and not (guest and self.guests >= most // GUEST_PART)

    def has_bytes(self, growth: int, guest: bool) -> bool:
        """For so many bytes more, of keys and values."""
        most = self._bounds.max_entry_bytes
        return self.entry_bytes + growth <= most and not (guest and self.guest_bytes + growth > most // GUEST_PART)


def is_guest(name: bytes) -> bool:
    """Whether its family, which stands after the prefix of its server, is one of `GUESTS`."""
    return name.startswith(GUEST_NAMES, name.find(b"\0") + 1)


def count_guests(execute: Execute) -> None:
    """In a file that has no such table yet they are counted once; from then on with every write."""
    execute("CREATE TABLE IF NOT EXISTS guests (held INTEGER NOT NULL, entry_bytes INTEGER NOT NULL)")
    if execute("SELECT 1 FROM guests").fetchone() is None:
        keys = execute("SELECT key, length(key) + length(value) FROM entries").fetchall()
        logs = execute("SELECT name, 0 FROM logs").fetchall()
        sizes = [size for name, size in (*keys, *logs) if is_guest(name)]
        execute("INSERT INTO guests VALUES (?, ?)", (len(sizes), sum(sizes)))
