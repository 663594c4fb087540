"""Random histories: memory and SQLite do what a naive model does that knows neither heaps nor sweeps."""

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from contract import Clock
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dovetail.state.base import CALLER_PREFIXES, CALLER_SHARE, Conflict, LogPage, StateBackend, StoreFull
from dovetail.state.memory import RECORD_OVERHEAD, MemoryState
from dovetail.state.sqlite import SqliteState

MAX_ENTRIES = 5
MAX_ENTRY_BYTES = 32
MAX_LOG_BYTES = 5 * RECORD_OVERHEAD

NAMES = st.sampled_from(["a", "b", "c", "d", "rate/a", "rate/b", "dpop/c"])  # callers cause the last three
VALUES = st.sampled_from([b"", b"7", b"-12", b"four", b"seven b", b"sixteen bytes ..."])
RECORDS = st.sampled_from(
    [b"x" * size for size in (0, 1, RECORD_OVERHEAD, MAX_LOG_BYTES - RECORD_OVERHEAD, MAX_LOG_BYTES)]
)
TIMES = st.integers(1, 8)
Outcome = object  # what a call returned, or the type of what it raised


@dataclass
class Key:
    value: bytes
    version: int
    expires: float


@dataclass
class Log:
    expires: float = 0
    last: int = 0
    appended: int = 0  # a serial number
    records: list[tuple[int, bytes]] = field(default_factory=list)


class NaiveState:
    """Goes through everything, each time. A write's outcome is its key's new version, or the type of its error."""

    def __init__(self, is_bounded: bool = True) -> None:
        self.is_bounded = is_bounded
        self.now = 0.0
        self.keys: dict[str, Key] = {}
        self.logs: dict[str, Log] = {}
        self.serial = 0

    def at(self, now: float) -> "NaiveState":
        self.now = now
        self.keys = {name: key for name, key in self.keys.items() if key.expires > now}
        self.logs = {name: log for name, log in self.logs.items() if log.expires > now}
        return self

    def write(self, name: str, value: bytes, expires: float, *, is_counter: bool = False) -> Outcome:
        sizes = {key: len(key) + len(self.keys[key].value) for key in self.keys}
        grows = name not in sizes or len(value) > len(self.keys[name].value)
        sizes[name] = len(name) + len(value)
        share = 1 if is_counter and name in self.keys else self.share(name)
        if self.is_bounded and grows and sum(sizes.values()) > MAX_ENTRY_BYTES * share:
            return StoreFull
        if name not in self.keys and self.full(name):
            return StoreFull
        self.serial += 1
        self.keys[name] = Key(value, self.serial, expires)
        return self.serial

    def full(self, name: str) -> bool:
        """For one more of that name."""
        return self.is_bounded and len(self.keys) + len(self.logs) + 1 > MAX_ENTRIES * self.share(name)

    def share(self, name: str) -> float:
        return CALLER_SHARE if name.startswith(CALLER_PREFIXES) else 1

    def version(self, name: str) -> int:
        return self.keys[name].version if name in self.keys else 0

    def add(self, name: str, n: int, ttl: float) -> Outcome:
        known = self.keys.get(name)
        if known is not None and known.value not in {b"%d" % number for number in range(-100, 100)}:
            return ValueError
        total = n + (int(known.value) if known else 0)
        expires = known.expires if known else self.now + ttl
        written = self.write(name, b"%d" % total, expires, is_counter=True)
        return StoreFull if written is StoreFull else total

    def append(self, name: str, data: bytes, keep: int, ttl: float) -> Outcome:
        is_large = self.is_bounded and len(data) + RECORD_OVERHEAD > MAX_LOG_BYTES
        if is_large or (name not in self.logs and self.full(name)):
            return StoreFull
        log = self.logs.setdefault(name, Log())
        self.serial += 1
        log.appended = self.serial
        log.expires = self.now + ttl
        log.last += 1
        log.records = [*log.records, (log.last, data)][-keep:]
        while self.is_bounded and self.log_bytes() > MAX_LOG_BYTES:
            filled = [log for log in self.logs.values() if log.records]
            del min(filled, key=lambda log: log.appended).records[0]
        return log.last

    def log_bytes(self) -> int:
        return sum(len(data) + RECORD_OVERHEAD for log in self.logs.values() for _, data in log.records)

    def read(self, name: str, after: int, limit: int) -> LogPage:
        if name not in self.logs:
            return LogPage([], 0, 0)
        log = self.logs[name]
        first = log.records[0][0] if log.records else log.last + 1
        return LogPage([record for record in log.records if record[0] > after][:limit], first, log.last)


class AgainstModel(RuleBasedStateMachine):
    naive: NaiveState

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.state = self.make()
        self.versions: dict[int, int] = {0: 0}  # of the model to those of the state

    def make(self) -> StateBackend:
        raise NotImplementedError

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        raise NotImplementedError

    def outcome(self, call: Coroutine[Any, Any, Any]) -> Outcome:
        try:
            return self.run(call)
        except (Conflict, StoreFull, ValueError) as error:
            return type(error)

    @property
    def model(self) -> NaiveState:
        return self.naive.at(self.clock.now)

    @rule(seconds=st.integers(1, 5))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(name=NAMES, value=VALUES, ttl=TIMES, expect=st.sampled_from(["anything", "nothing", "this", "older"]))
    def put(self, name: str, value: bytes, ttl: int, expect: str) -> None:
        model = self.model
        expected = {"anything": None, "nothing": 0, "this": model.version(name), "older": max(model.serial - 1, 0)}
        if_version = expected[expect]
        if if_version not in (None, model.version(name)):
            want: Outcome = Conflict
        else:
            want = model.write(name, value, model.now + ttl)
        theirs = None if if_version is None else self.versions.get(if_version, 2**70)
        got = self.outcome(self.state.put(name, value, ttl=ttl, if_version=theirs))
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
        assert self.outcome(self.state.touch(name, ttl)) is (key is not None)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        assert self.outcome(self.state.delete(name)) is (self.model.keys.pop(name, None) is not None)

    @rule(name=NAMES, n=st.integers(-9, 9), ttl=TIMES)
    def add(self, name: str, n: int, ttl: int) -> None:
        want = self.model.add(name, n, ttl)
        assert self.outcome(self.state.add(name, n, ttl)) == want
        self.learn_version(name)

    def learn_version(self, name: str) -> None:
        """`add` does not tell it."""
        if version := self.model.version(name):
            self.versions[version] = self.run(self.state.get(name)).version

    @rule(name=NAMES)
    def get(self, name: str) -> None:
        key = self.model.keys.get(name)
        want = None if key is None else (key.value, self.versions[key.version])
        assert self.run(self.state.get(name)) == want

    @rule(name=NAMES, data=RECORDS, keep=st.integers(1, 6), ttl=TIMES)
    def append(self, name: str, data: bytes, keep: int, ttl: int) -> None:
        want = self.model.append(name, data, keep, ttl)
        assert self.outcome(self.state.append(name, data, keep=keep, ttl=ttl)) == want

    @rule(name=NAMES, after=st.integers(-1, 12), limit=st.integers(0, 7))
    def read(self, name: str, after: int, limit: int) -> None:
        assert self.run(self.state.read(name, after, limit)) == self.model.read(name, after, limit)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.run(self.state.drop(name))
        self.model.logs.pop(name, None)

    def teardown(self) -> None:
        self.run(self.state.close())


class MemoryAgainstModel(AgainstModel):
    def __init__(self) -> None:
        super().__init__()
        self.naive = NaiveState()

    def make(self) -> MemoryState:
        bounds = {"max_entries": MAX_ENTRIES, "max_entry_bytes": MAX_ENTRY_BYTES, "max_log_bytes": MAX_LOG_BYTES}
        return MemoryState(clock=self.clock, **bounds)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """No call of this backend suspends."""
        with pytest.raises(StopIteration) as ended:
            call.send(None)
        return ended.value.value

    @invariant()
    def bounds_hold_and_nothing_alive_is_missing(self) -> None:
        model = self.model
        assert len(model.keys) + len(model.logs) <= self.state.held <= MAX_ENTRIES
        assert model.log_bytes() <= self.state.log_bytes <= MAX_LOG_BYTES


class SqliteAgainstModel(AgainstModel):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        super().__init__()
        self.naive = NaiveState(is_bounded=False)

    def make(self) -> SqliteState:
        return SqliteState(Path(self.folder.name) / "state.db", clock=self.clock)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    def teardown(self) -> None:
        super().teardown()
        self.runner.close()
        self.folder.cleanup()


MemoryAgainstModel.TestCase.settings = settings(stateful_step_count=40)
TestMemoryAgainstModel = pytest.mark.slow(MemoryAgainstModel.TestCase)
SqliteAgainstModel.TestCase.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
TestSqliteAgainstModel = pytest.mark.slow(SqliteAgainstModel.TestCase)
