"""The SQLite backend: the contract of all backends against a real file, its bounds, its file and its event loops."""

import asyncio
import contextlib
import logging
import os
import shutil
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from contract import LONG, BackendContract, Elapse, fill, heard, hears_nothing, record
from without_loop import Clock

from dovetail.errors import SetupError
from dovetail.state import sqlite as module
from dovetail.state import sqlite_desk, sqlite_file, sqlite_tables
from dovetail.state.base import LogPage, NoRoom, StoreTrouble
from dovetail.state.memory import RECORD_OVERHEAD
from dovetail.state.sqlite import SqliteState

Make = Callable[..., SqliteState]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
async def backend(path: Path, clock: Clock) -> AsyncIterator[SqliteState]:
    state = SqliteState(path, clock=clock)
    yield state
    await state.close()


@pytest.fixture
def elapse(clock: Clock) -> Elapse:
    async def elapse(seconds: float) -> None:
        clock.now += seconds

    return elapse


class TestSqliteState(BackendContract):
    """Everything of the contract."""


class TestBounds:
    @pytest.fixture
    async def make(self, path: Path, clock: Clock) -> AsyncIterator[Make]:
        made: list[SqliteState] = []

        def make(**bounds: int) -> SqliteState:
            made.append(SqliteState(path, clock=clock, **bounds))
            return made[-1]

        yield make
        for state in made:
            await state.close()

    async def test_keys_and_logs_have_one_limit(self, make: Make) -> None:
        state = make(max_entries=3)
        await state.put("key", b"", ttl=LONG)
        await state.add("counter", 1, LONG)
        await fill(state, "log", 1)
        for attempt in (
            lambda: state.put("more", b"", ttl=LONG),
            lambda: state.claim("more", b"", LONG),
            lambda: state.add("more", 1, LONG),
            lambda: state.append("more", b"", keep=1, ttl=LONG),
        ):
            with pytest.raises(NoRoom, match="max_entries=3"):
                await attempt()
        await state.put("key", b"new", ttl=LONG)
        assert await fill(state, "log", 2) == [2, 3]
        await state.delete("key")
        await state.put("other", b"", ttl=LONG)

    async def test_the_limits_count_for_all_who_use_the_file(self, make: Make) -> None:
        one, two = make(max_entries=2), make(max_entries=2)
        await one.put("a", b"", ttl=LONG)
        await two.put("b", b"", ttl=LONG)
        with pytest.raises(NoRoom):
            await one.put("c", b"", ttl=LONG)
        await two.delete("a")
        await one.put("c", b"", ttl=LONG)

    async def test_what_has_expired_makes_room(self, make: Make, clock: Clock) -> None:
        state = make(max_entries=100)
        for n in range(50):
            await state.put(f"key {n}", b"", ttl=1)
            await fill(state, f"log {n}", 1, ttl=1)
        clock.now += 1
        await asyncio.gather(*(state.put(f"new {n}", b"", ttl=LONG) for n in range(100)))

    async def test_the_bytes_of_values_are_bounded(self, make: Make, clock: Clock) -> None:
        state = make(max_entry_bytes=102)  # each name has a byte more, the end of its prefix
        await state.put("a", b"x" * 49, ttl=LONG)
        await state.put("b", b"x" * 49, ttl=1)
        for key in ("a", "b", "c"):
            with pytest.raises(NoRoom, match="max_entry_bytes=102"):
                await state.put(key, b"x" * 50, ttl=LONG)
        assert (await state.get("a")).value == b"x" * 49
        clock.now += 1
        await state.put("c", b"x" * 49, ttl=LONG)

    async def test_the_log_that_was_quiet_longest_loses_its_oldest_records(self, make: Make) -> None:
        state = make(max_log_bytes=6 * (8 + RECORD_OVERHEAD))
        for log in ("a", "b", "c", "a"):
            await fill(state, log, 1)
        await fill(state, "c", 2)  # the order is now b, a, c; with six records the store is full
        await fill(state, "c", 1)
        assert await state.read("b", 0) == LogPage([], 2, 1)
        await fill(state, "c", 4)
        assert await state.read("a", 0) == LogPage([], 3, 2)
        assert (await state.read("c", 0)).first == 3  # it has the store for itself, and loses its own oldest
        assert await fill(state, "b", 1) == [2]
        with pytest.raises(NoRoom, match="max_log_bytes"):
            await state.append("c", bytes(6 * (8 + RECORD_OVERHEAD)), keep=1, ttl=LONG)


class TestFile:
    async def test_it_is_for_its_owner_alone(self, path: Path, backend: SqliteState) -> None:
        await backend.put("key", b"value", ttl=LONG)
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["state.db", "state.db-shm", "state.db-wal"]
        if sys.platform != "win32":
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}

    async def test_everything_outlives_a_restart(self, path: Path, clock: Clock) -> None:
        first = SqliteState(path, clock=clock)
        version = await first.put("key", b"value", ttl=LONG)
        await first.add("counter", 41, LONG)
        await fill(first, "log", 5, keep=3)
        await first.close()
        assert [file.name for file in path.parent.iterdir()] == ["state.db"]
        second = SqliteState(path, clock=clock)
        assert await second.get("key") == (b"value", version)
        assert await second.put("key", b"new", ttl=LONG, if_version=version) > version
        assert await second.add("counter", 1, LONG) == 42
        assert await second.read("log", 0) == LogPage([record(3), record(4), record(5)], 3, 5)
        clock.now += LONG
        assert await second.get("key") is None
        await second.close()

    async def test_prefixes_do_not_meet(self, path: Path) -> None:
        one, two = SqliteState(path, prefix="a"), SqliteState(path, prefix="ab")
        with contextlib.closing(two.listen(["log", "blog"])) as listener:
            await one.put("key", b"value", ttl=LONG)
            await fill(one, "blog", 1)
            assert await two.get("key") is None
            assert await two.claim("key", b"other", LONG)
            assert await two.read("blog", 0) == LogPage([], 0, 0)
            assert await hears_nothing(listener)
        await one.close()
        await two.close()

    async def test_a_relative_path_means_the_folder_of_the_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        state = SqliteState("here.db")
        monkeypatch.chdir("/")
        await state.put("key", b"value", ttl=LONG)
        await state.close()
        assert (tmp_path / "here.db").exists()

    def test_nothing_is_left_open_before_the_first_call(self, path: Path) -> None:
        threads = threading.active_count()
        SqliteState(path)
        assert threading.active_count() == threads
        assert [file.name for file in path.parent.iterdir()] == ["state.db"]

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            ("PRAGMA user_version = 2", "another version of Dovetail .its format is 2, ours is 1"),
            ("PRAGMA application_id = 7", "another program; give another file"),
        ],
    )
    def test_a_file_that_is_not_for_us(self, path: Path, statement: str, message: str) -> None:
        SqliteState(path)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
        with pytest.raises(SetupError, match=message) as caught:
            SqliteState(path)
        assert str(path) in str(caught.value)

    def test_a_database_of_another_program(self, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE customers (name)")
        with pytest.raises(SetupError, match="another program"):
            SqliteState(path)

    @pytest.mark.parametrize("begin", [0, 4096], ids=["head", "middle"])
    def test_a_damaged_file(self, path: Path, begin: int) -> None:
        SqliteState(path)
        content = path.read_bytes()
        path.write_bytes(content[:begin] + b"nonsense" * 2000)
        with pytest.raises(
            SetupError, match=r"state: .*state.db is (not a file of SQLite|damaged); .*give another file"
        ):
            SqliteState(path)
        assert not list(path.parent.glob("*-wal"))

    def test_an_empty_file_is_filled(self, path: Path) -> None:
        path.touch()
        SqliteState(path)
        SqliteState(path)

    def test_a_folder_that_does_not_exist(self, path: Path) -> None:
        with pytest.raises(SetupError, match=r"the folder of .* does not exist; make it"):
            SqliteState(path / "deeper" / "state.db")

    def test_a_folder_instead_of_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match="is a folder; add the name of a file"):
            SqliteState(tmp_path)

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="may write everywhere")
    def test_a_file_that_may_not_be_written(self, path: Path) -> None:
        SqliteState(path)
        path.chmod(0o400)
        with pytest.raises(SetupError, match="rights"):
            SqliteState(path)


class TestWakeUps:
    """Two backends on one file, as in two processes."""

    @pytest.fixture
    async def other(self, path: Path, clock: Clock) -> AsyncIterator[SqliteState]:
        state = SqliteState(path, clock=clock)
        yield state
        await state.close()

    async def test_they_cross(self, backend: SqliteState, other: SqliteState) -> None:
        with contextlib.closing(backend.listen(["topic", "log"])) as listener:
            await other.publish("topic")
            assert await heard(listener) == {"topic"}
            await fill(other, "log", 1)
            assert await heard(listener) == {"log"}
            await other.publish("nobody")
            assert await hears_nothing(listener)
        assert (backend.outages, other.outages) == (0, 0)

    async def test_none_is_lost_however_late_the_listener_comes(self, backend: SqliteState, other: SqliteState) -> None:
        for n in range(40):
            busy = asyncio.create_task(backend.put("key", b"", ttl=LONG)) if n % 2 else None
            with contextlib.closing(backend.listen([f"topic {n}"])) as listener:
                await other.publish(f"topic {n}")
                assert f"topic {n}" in await heard(listener)
            if busy is not None:
                await busy
        assert backend.outages == 0

    async def test_what_was_published_while_nobody_listened(self, backend: SqliteState, other: SqliteState) -> None:
        with contextlib.closing(backend.listen(["a"])):
            pass
        await other.publish("a")
        await backend.put("key", b"", ttl=LONG)
        with contextlib.closing(backend.listen(["a"])) as listener:
            assert await hears_nothing(listener)

    async def test_own_wake_ups_are_not_taken_for_missed_ones(
        self, backend: SqliteState, other: SqliteState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_tables, "KEEP_WAKES", 300)
        with contextlib.closing(backend.listen(["a", "b"])) as listener:
            for _ in range(1000):
                await backend.publish("a")
            assert await heard(listener) == {"a"}
            await other.publish("b")
            assert await heard(listener) == {"b"}
            await other.publish("b")
            await backend.publish("a")
            assert await heard(listener) == {"a", "b"}  # a write finds what others have published
        assert backend.outages == 0

    async def test_who_sleeps_too_long_is_told_of_everything(
        self, backend: SqliteState, other: SqliteState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_tables, "KEEP_WAKES", 300)
        with contextlib.closing(backend.listen(["a", "b"])) as listener:
            await backend.get("key")
            with backend._desk.using:  # the thread stands still
                for n in range(1000):
                    await other.publish(f"topic {n}")
            assert await heard(listener) == {"a", "b"}
            assert backend.outages == 1
            await other.publish("b")
            assert await heard(listener) == {"b"}

    async def test_wakes_do_not_pile_up(self, path: Path, backend: SqliteState) -> None:
        for _ in range(300):
            await asyncio.gather(*(backend.publish(f"{m}") for m in range(30)))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM wakes").fetchone()
        assert sqlite_tables.KEEP_WAKES <= count < sqlite_tables.KEEP_WAKES + 2 * sqlite_tables.TRIM_WAKES


def lock(path: Path) -> sqlite3.Connection:
    """Another program holds the file, until the connection is closed."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


class TestTrouble:
    @pytest.fixture(autouse=True)
    def in_a_hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_desk, "PATIENCE", 0.3)
        monkeypatch.setattr(sqlite_desk, "LOOK_AT_FILE", 0.05)
        monkeypatch.setattr(module, "WATCH", 0.05)
        monkeypatch.setattr(module, "LONGEST_WAIT", 0.6)

    async def test_a_lock_that_stays(self, path: Path, backend: SqliteState) -> None:
        await backend.put("key", b"value", ttl=LONG)
        with contextlib.closing(backend.listen(["a", "b"])) as listener, contextlib.closing(lock(path)):
            begin = time.monotonic()
            for attempt in (lambda: backend.put("key", b"new", ttl=LONG), backend.check, lambda: backend.publish("a")):
                with pytest.raises(StoreTrouble):
                    await attempt()
            assert 0.8 < time.monotonic() - begin < 3
            assert (await backend.get("key")).value == b"value"  # reading goes on
            assert backend.outages == 0
            assert await hears_nothing(listener)
        with contextlib.closing(backend.listen(["a", "b"])) as listener:
            await backend.check()
            assert backend.outages == 1
            assert await heard(listener) == {"a", "b"}
            await backend.check()
            assert backend.outages == 1

    async def test_others_hear_of_it_too(self, path: Path, backend: SqliteState) -> None:
        """For what could not be published."""
        other = SqliteState(path)
        with contextlib.closing(other.listen(["a", "b"])) as listener:
            with contextlib.closing(lock(path)), pytest.raises(StoreTrouble):
                await backend.publish("a")
            assert await hears_nothing(listener)
            await backend.check()
            assert await heard(listener) == {"a", "b"}
        await other.close()

    async def test_a_lock_that_is_let_go_in_time(self, path: Path, backend: SqliteState) -> None:
        with contextlib.closing(lock(path)) as held:
            adding = [asyncio.create_task(backend.add("key", 1, LONG)) for _ in range(10)]
            await asyncio.sleep(0.1)
            held.execute("ROLLBACK")
            assert await asyncio.gather(*adding) == list(range(1, 11))
        assert backend.outages == 0

    async def test_the_event_loop_runs_on(self, path: Path, backend: SqliteState) -> None:
        with contextlib.closing(lock(path)):
            waiting = asyncio.create_task(backend.check())
            turns = 0
            while not waiting.done():
                await asyncio.sleep(0.01)
                turns += 1
            assert turns > 5
            with pytest.raises(StoreTrouble):
                await waiting

    async def test_the_number_of_waiting_calls_is_bounded(
        self, path: Path, backend: SqliteState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_WAITING", 5)
        with contextlib.closing(lock(path)):
            calls = [asyncio.create_task(backend.add("key", 1, LONG)) for _ in range(20)]
            await asyncio.sleep(0.05)
            assert sum(call.done() for call in calls) == 15
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreTrouble}
        assert await backend.add("key", 1, LONG) == 1

    async def test_a_system_that_does_not_come_back(
        self, backend: SqliteState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stuck = threading.Event()
        monkeypatch.setattr(sqlite_tables.Tables, "get", lambda *_: stuck.wait(5))
        begin = time.monotonic()
        with pytest.raises(StoreTrouble):
            await backend.get("key")
        assert 0.5 < time.monotonic() - begin < 2
        stuck.set()
        assert await backend.put("key", b"", ttl=LONG)

    async def test_a_full_disk(self, path: Path, backend: SqliteState, monkeypatch: pytest.MonkeyPatch) -> None:
        def open_small(path: str) -> sqlite3.Connection:
            connection = sqlite_file.open_file(path)
            connection.execute("PRAGMA max_page_count = 40")
            return connection

        monkeypatch.setattr(module, "open_file", open_small)
        await backend.put("key", bytes(50_000), ttl=LONG)
        large = [backend.append("log", bytes(200_000), keep=9, ttl=LONG), backend.put("big", bytes(90_000), ttl=LONG)]
        small = [backend.add("counter", 1, LONG) for _ in range(10)]
        outcomes = await asyncio.gather(small[0], large[0], *small[1:], large[1], return_exceptions=True)
        assert [type(outcomes[1]), type(outcomes[-1])] == [StoreTrouble, StoreTrouble]
        assert [outcomes[0], *outcomes[2:-1]] == list(range(1, 11))  # one spoils nothing for the others
        assert await backend.read("log", 0) == LogPage([], 0, 0)
        await backend.delete("key")
        await backend.put("big", bytes(90_000), ttl=LONG)

    async def test_a_mistake_in_one_call_does_not_reach_the_others(self, backend: SqliteState) -> None:
        wrong = backend.put("key", {}, ttl=LONG)  # type: ignore[arg-type]
        outcomes = await asyncio.gather(
            backend.add("a", 1, LONG), wrong, backend.add("a", 1, LONG), return_exceptions=True
        )
        assert (outcomes[0], outcomes[2]) == (1, 2)
        assert isinstance(outcomes[1], Exception)

    async def test_a_file_that_was_removed(self, path: Path, backend: SqliteState) -> None:
        version = await backend.put("key", b"value", ttl=LONG)
        with contextlib.closing(backend.listen(["a"])) as listener:
            for file in path.parent.iterdir():
                file.unlink()
            assert await heard(listener) == {"a"}
            assert backend.outages == 1
            assert await backend.get("key") is None
            assert await backend.put("key", b"value", ttl=LONG) > version
        assert os.path.exists(path)  # noqa: ASYNC240

    async def test_a_folder_that_was_removed_and_comes_back(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        state = SqliteState(folder / "state.db")
        await state.put("key", b"value", ttl=LONG)
        shutil.rmtree(folder)
        await asyncio.sleep(0.06)
        for attempt in (state.check, lambda: state.get("key")):
            with pytest.raises(StoreTrouble):
                await attempt()
        folder.mkdir()
        assert await state.get("key") is None
        await state.check()
        assert state.outages == 2  # reading and writing came back one after the other
        await state.close()

    async def test_a_file_that_is_damaged_while_it_is_used(self, path: Path, backend: SqliteState) -> None:
        await backend.put("key", bytes(5000), ttl=LONG)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.write(b"nonsense" * 8000)
        with backend._desk.using:
            backend._desk.let_go()
        with pytest.raises(StoreTrouble) as caught:
            await backend.get("key")
        assert "nonsense" not in str(caught.value)

    @pytest.mark.parametrize("part", ["head", "middle", "second half", "all"])
    async def test_a_damaged_file_is_told_of_once_and_counts_as_out_of_reach_until_it_is_replaced(
        self, path: Path, backend: SqliteState, caplog: pytest.LogCaptureFixture, part: str
    ) -> None:
        """Also where some of it can still be read or written."""
        caplog.set_level(logging.INFO, "dovetail.state")
        keys = [f"key {n}" for n in range(80)]
        await asyncio.gather(*(backend.put(key, bytes(60_000), ttl=LONG) for key in keys))  # more than SQLite caches
        damage(path, part)
        with contextlib.closing(backend.listen(["a"])) as listener:
            with contextlib.suppress(StoreTrouble):
                while True:  # until it is noticed
                    await asyncio.gather(*(backend.get(key) for key in keys))
            for _ in range(5):
                for attempt in (backend.check(), backend.get("key 0"), backend.publish("a")):
                    with pytest.raises(StoreTrouble):
                        await attempt
                assert await hears_nothing(listener)
            assert backend.outages == 0
            told = [record.getMessage() for record in caplog.records]
            assert len(told) == (2 if part == "all" else 1)  # another file has taken its place
            assert told[-1].startswith(f"The state file {path} is damaged; move it away, and a new one is made")
            path.rename(path.with_name("damaged"))  # noqa: ASYNC240
            assert await heard(listener) == {"a"}
        await backend.check()
        assert await backend.get("key 0") is None
        await backend.publish("a")
        assert [record.getMessage() for record in caplog.records].count(f"The state file {path} can be used again") == 1


def damage(path: Path, part: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    if part == "all":
        path.with_name("nonsense").write_bytes(b"nonsense" * (size // 8))
        path.with_name("nonsense").replace(path)
    elif part == "second half":
        os.truncate(path, size // 2)
    else:
        with path.open("r+b") as file:
            file.seek(0 if part == "head" else size // 4)
            file.write(b"nonsense" * (size // 16))


class TestEventLoops:
    def test_data_and_listeners_outlive_a_loop(self, path: Path) -> None:
        async def together() -> None:
            await asyncio.gather(*(state.add("key", 1, LONG) for _ in range(5)))
            await state.publish("a")

        state = SqliteState(path)
        listener = state.listen(["a"])
        for n in range(1, 4):
            asyncio.run(together())
            assert asyncio.run(state.get("key")).value == b"%d" % (5 * n)
            assert asyncio.run(listener.wait()) == {"a"}
        asyncio.run(state.close())

    def test_a_call_that_ended_with_its_loop(self, path: Path) -> None:
        async def begin() -> None:
            asyncio.create_task(state.add("key", 1, LONG))  # noqa: RUF006
            await asyncio.sleep(0)

        state = SqliteState(path)
        for _ in range(5):
            asyncio.run(begin())  # which cancels the task at its end
        assert asyncio.run(state.add("key", 1, LONG)) == 6  # what was asked for is done
        asyncio.run(state.close())

    async def test_close_waits_for_what_was_asked_for(self, path: Path) -> None:
        state = SqliteState(path)
        calls = [asyncio.create_task(state.add("key", 1, LONG)) for _ in range(200)]
        await asyncio.sleep(0)
        await state.close()
        assert sorted(await asyncio.gather(*calls)) == list(range(1, 201))
        with pytest.raises(StoreTrouble):
            await state.get("key")
        await state.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "dovetail-state"]

    async def test_close_without_any_call(self, path: Path) -> None:
        state = SqliteState(path)
        await state.close()
        assert await state.listen(["a"]).wait() == set()
        assert not [thread for thread in threading.enumerate() if thread.name == "dovetail-state"]
