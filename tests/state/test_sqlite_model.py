"""Random histories: the tables of the SQLite backend do what the naive model of the memory backend does."""

import contextlib
import sqlite3
import time
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from test_memory_model import (
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    MAX_LOG_BYTES,
    NAMES,
    RECORDS,
    TIMES,
    VALUES,
    NaiveState,
    Outcome,
)
from without_loop import Clock

from dovetail.state.base import GUEST_PART, GUESTS, Conflict, NoRoom
from dovetail.state.memory import RECORD_OVERHEAD
from dovetail.state.sqlite_file import APPLICATION, SCHEMA, SCHEMA_VERSION
from dovetail.state.sqlite_ledger import Bounds
from dovetail.state.sqlite_tables import Tables

SUMS = """
SELECT (SELECT count(*) FROM entries) + (SELECT count(*) FROM logs),
    (SELECT coalesce(sum(length(key) + length(value)), 0) FROM entries),
    (SELECT coalesce(sum(length(data) + ?), 0) FROM records),
    (SELECT coalesce(sum(size), 0) FROM logs)
"""
COUNTED = "SELECT ledger.held, ledger.entry_bytes, log_bytes, log_bytes FROM ledger"
GUESTS_HELD = "SELECT key, length(key) + length(value) FROM entries UNION ALL SELECT name, 0 FROM logs"


class TablesAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        number = time.time_ns() // 1000
        self.connection.executescript(SCHEMA.format(number=number, application=APPLICATION, version=SCHEMA_VERSION))
        self.reopen()
        self.began = False
        self.naive = NaiveState()
        self.versions: dict[int, int] = {0: 0}  # of the model to those of the tables

    @rule()
    def reopen(self) -> None:
        self.tables = Tables(self.connection, Bounds(MAX_ENTRIES, MAX_ENTRY_BYTES, MAX_LOG_BYTES), self.clock)

    @precondition(lambda self: self.began)
    @rule()
    def forget_the_count(self) -> None:
        """As in a file of before there was one."""
        self.connection.execute("DROP TABLE guests")
        self.reopen()
        self.write(lambda tables: None)

    @rule(name=NAMES, value=VALUES, ttl=TIMES)
    def crash(self, name: str, value: bytes, ttl: int) -> None:
        """A write that is never committed."""
        self.tables.begin()
        with contextlib.suppress(NoRoom):
            self.tables.put(name.encode(), value, ttl, None, name)
        self.tables.roll_back()

    @property
    def model(self) -> NaiveState:
        return self.naive.at(self.clock.now)

    def write(self, work: Callable[[Tables], object]) -> Outcome:
        self.tables.begin()
        self.began = True
        try:
            return work(self.tables)
        except (Conflict, NoRoom, ValueError) as error:
            return type(error)
        finally:
            self.tables.commit()  # a refusal is committed too

    def read(self, work: Callable[[Tables], object]) -> Outcome:
        self.tables.look()
        return work(self.tables)

    @rule(seconds=st.integers(1, 5))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(name=NAMES, value=VALUES, ttl=TIMES, expect=st.sampled_from(["anything", "nothing", "this", "older"]))
    def put(self, name: str, value: bytes, ttl: int, expect: str) -> None:
        model = self.model
        expected = {"anything": None, "nothing": 0, "this": model.version(name), "older": max(model.serial - 1, 0)}
        wanted = expected[expect]
        want = Conflict if wanted not in (None, model.version(name)) else model.write(name, value, model.now + ttl)
        theirs = None if wanted is None else self.versions.get(wanted, 2**70)
        got = self.write(lambda tables: tables.put(name.encode(), value, ttl, theirs, name))
        if isinstance(want, int):
            assert isinstance(got, int)
            assert got > max(self.versions.values())
            self.versions[want] = got
        else:
            assert got is want

    @rule(name=NAMES, ttl=TIMES)
    def touch(self, name: str, ttl: int) -> None:
        key = self.model.keys.get(name)
        if key is not None:
            key.expires = self.clock.now + ttl
        assert self.write(lambda tables: tables.touch(name.encode(), ttl)) is (key is not None)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        known = self.model.keys.pop(name, None) is not None
        assert self.write(lambda tables: tables.delete(name.encode())) is known

    @rule(name=NAMES, value=VALUES, ttl=TIMES)
    def claim(self, name: str, value: bytes, ttl: int) -> None:
        model = self.model
        want = model.write(name, value, model.now + ttl) if name not in model.keys else False
        got = self.write(lambda tables: tables.claim(name.encode(), value, ttl))
        assert got is (want if want is NoRoom or want is False else True)
        self.learn_version(name)

    @rule(name=NAMES, n=st.integers(-9, 9), ttl=TIMES)
    def add(self, name: str, n: int, ttl: int) -> None:
        want = self.model.add(name, n, ttl)
        assert self.write(lambda tables: tables.add(name.encode(), n, ttl, name)) == want
        self.learn_version(name)

    def learn_version(self, name: str) -> None:
        if version := self.model.version(name):
            self.versions[version] = self.read(lambda tables: tables.get(name.encode())).version

    @rule(name=NAMES, data=RECORDS, keep=st.integers(1, 6), ttl=TIMES, expect=st.sampled_from(["any", "last", "none"]))
    def append(self, name: str, data: bytes, keep: int, ttl: int, expect: str) -> None:
        model = self.model
        last = model.logs[name].last if name in model.logs else 0
        if_last = {"any": None, "last": last, "none": 0}[expect]
        fits = len(data) + RECORD_OVERHEAD <= MAX_LOG_BYTES
        want = Conflict if fits and if_last not in (None, last) else model.append(name, data, keep, ttl)
        assert self.write(lambda tables: tables.append(name.encode(), data, keep, ttl, if_last, name)) == want
        assert self.tables.woken == ({name.encode(): None} if isinstance(want, int) else {})

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.write(lambda tables: tables.drop(name.encode()))
        self.model.logs.pop(name, None)

    @rule(name=NAMES, after=st.integers(-1, 12), limit=st.integers(0, 7))
    def look(self, name: str, after: int, limit: int) -> None:
        model = self.model
        key = model.keys.get(name)
        want = None if key is None else (key.value, self.versions[key.version])
        assert self.read(lambda tables: tables.get(name.encode())) == want
        assert self.read(lambda tables: tables.read(name.encode(), after, limit)) == model.read(name, after, limit)

    @invariant()
    def the_ledger_agrees_with_the_tables(self) -> None:
        counted = self.connection.execute(COUNTED).fetchone()
        assert counted == self.connection.execute(SUMS, (RECORD_OVERHEAD,)).fetchone()
        assert len(self.model.keys) + len(self.model.logs) <= counted[0] <= MAX_ENTRIES

    @invariant()
    def guests_are_counted(self) -> None:
        if not self.began:
            return
        held = self.connection.execute(GUESTS_HELD).fetchall()
        sizes = [size for name, size in held if name.decode().startswith(GUESTS)]
        counted = self.connection.execute("SELECT held, entry_bytes FROM guests").fetchone()
        assert counted == (len(sizes), sum(sizes))
        assert len(sizes) <= MAX_ENTRIES // GUEST_PART
        assert sum(sizes) <= MAX_ENTRY_BYTES // GUEST_PART

    def teardown(self) -> None:
        for name in "abcd":
            self.look(name, 0, 100)
        self.connection.close()


TablesAgainstModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTablesAgainstModel = pytest.mark.slow(TablesAgainstModel.TestCase)
