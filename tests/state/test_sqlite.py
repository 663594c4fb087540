"""The SQLite backend: the contract of all backends against a real file, its bounds, its file and its event loops."""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import sqlite3
import stat
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract import LONG, BackendContract, Clock, fill, received, receives_nothing, record

from dovetail.errors import SetupError
from dovetail.state.base import LogPage, StoreUnavailable
from dovetail.state.sqlite import KEEP_WAKES, SqliteState


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def held() -> threading.Lock:
    """While a test has it, the thread of `backend` stands still in its next call."""
    return threading.Lock()


@pytest.fixture
def timeout() -> float:
    return 10


@pytest.fixture
async def backend(path: Path, clock: Clock, held: threading.Lock, timeout: float) -> AsyncIterator[SqliteState]:
    def now() -> float:
        with held:
            return clock()

    state = SqliteState(path, clock=now, timeout=timeout, max_waiting=1000)
    yield state
    await state.close()


class TestSqliteState(BackendContract):
    """Everything of the contract."""


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

    def test_a_folder_that_does_not_exist(self, path: Path) -> None:
        with pytest.raises(SetupError, match=r"state.db can't be made .*make its folder"):
            SqliteState(path / "deeper" / "state.db")

    async def test_prefixes_do_not_meet(self, path: Path) -> None:
        one, two = SqliteState(path, prefix="a"), SqliteState(path, prefix="ab")
        with contextlib.closing(two.listen(["log", "blog"])) as listener:
            await one.put("key", b"value", ttl=LONG)
            await fill(one, "blog", 1)
            assert await two.get("key") is None
            assert await two.claim("key", b"other", LONG)
            assert await two.read("blog", 0) == LogPage([], 0, 0)
            assert await receives_nothing(listener)
        await one.close()
        await two.close()

    @pytest.mark.parametrize("statement", ["CREATE TABLE theirs (name)", "PRAGMA application_id = 7"])
    def test_a_file_that_is_not_for_us(self, path: Path, statement: str) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
        with pytest.raises(SetupError, match=r"state.db was made by another program, or another version of Dovetail"):
            SqliteState(path)

    @pytest.mark.parametrize("begin", [0, 4096], ids=["head", "middle"])
    def test_a_damaged_file(self, path: Path, begin: int) -> None:
        SqliteState(path)
        content = path.read_bytes()
        path.write_bytes(content[:begin] + b"nonsense" * 2000)
        with pytest.raises(SetupError, match=r"state: .*state.db .*(not a database|damaged); .*give another file"):
            SqliteState(path)
        assert not list(path.parent.glob("*-wal"))

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

    async def test_none_is_lost_however_late_the_listener_comes(self, backend: SqliteState, other: SqliteState) -> None:
        for n in range(40):
            busy = asyncio.create_task(backend.put("key", b"", ttl=LONG)) if n % 2 else None
            with contextlib.closing(backend.listen([f"topic {n}"])) as listener:
                await other.publish(f"topic {n}")
                assert f"topic {n}" in await received(listener)
            if busy is not None:
                await busy
        assert backend.outages == 0

    async def test_own_wake_ups_are_not_taken_for_missed_ones(self, backend: SqliteState, other: SqliteState) -> None:
        with contextlib.closing(backend.listen(["a", "b"])) as listener:
            for _ in range(200):
                await asyncio.gather(*(backend.publish("a" if n == 0 else f"{n}") for n in range(30)))
            assert await received(listener) == {"a"}
            await fill(other, "b", 1)
            assert await received(listener) == {"b"}
        assert (backend.outages, other.outages) == (0, 0)

    async def test_a_sleeper_is_notified_of_everything_and_wakes_do_not_pile_up(
        self, path: Path, backend: SqliteState, other: SqliteState, held: threading.Lock
    ) -> None:
        with contextlib.closing(backend.listen(["a", "b"])) as listener:
            await backend.get("key")
            with held:  # the thread of `backend` stands still
                busy = asyncio.create_task(backend.get("key"))
                await asyncio.sleep(0)
                for _ in range(200):
                    await asyncio.gather(*(other.publish(f"{n}") for n in range(30)))
            await busy
            assert await received(listener) == {"a", "b"}
            assert backend.outages == 1
            await other.publish("b")
            assert await received(listener) == {"b"}
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM wakes").fetchone()
            assert KEEP_WAKES <= count < KEEP_WAKES + 300


def lock(path: Path) -> sqlite3.Connection:
    """Another program holds the file, until the connection is closed."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_answers_of_reads_do_not_wait_for_the_lock_of_writes(path: Path, backend: SqliteState) -> None:
    await backend.put("key", b"old", ttl=LONG)
    with contextlib.closing(lock(path)):
        reads = [asyncio.create_task(backend.get("key")) for _ in range(20)]
        write = asyncio.create_task(backend.put("key", b"new", ttl=LONG))  # it is taken up together with some of them
        assert {entry.value for entry in await asyncio.gather(*reads)} == {b"old"}
        assert not write.done()
    await write


async def test_all_streams_of_a_worker_may_read_at_once(path: Path) -> None:
    state = SqliteState(path)
    await fill(state, "changes", 1)
    pages = await asyncio.gather(*(state.read("changes", 0) for _ in range(2_500)))
    assert {page.last for page in pages} == {1}
    await state.close()


@pytest.mark.long
class TestTrouble:
    @pytest.fixture
    def timeout(self) -> float:
        return 0.3

    async def test_a_lock_that_stays(self, path: Path, backend: SqliteState) -> None:
        await backend.put("key", b"value", ttl=LONG)
        with contextlib.closing(backend.listen(["a", "b"])) as listener, contextlib.closing(lock(path)):
            for attempt in (lambda: backend.put("key", b"new", ttl=LONG), backend.check, lambda: backend.publish("a")):
                with pytest.raises(StoreUnavailable):
                    await attempt()
            assert (await backend.get("key")).value == b"value"  # reading goes on
            assert backend.outages == 0
            assert await receives_nothing(listener)
        with contextlib.closing(backend.listen(["a", "b"])) as listener:
            await backend.check()
            assert backend.outages == 1
            assert await received(listener) == {"a", "b"}
            await backend.check()
            assert backend.outages == 1

    async def test_a_lock_that_is_let_go_in_time(self, path: Path, backend: SqliteState) -> None:
        with contextlib.closing(lock(path)) as held:
            adding = [asyncio.create_task(backend.add("key", 1, LONG)) for _ in range(10)]
            await asyncio.sleep(0)
            held.execute("ROLLBACK")
            assert await asyncio.gather(*adding) == list(range(1, 11))
        assert backend.outages == 0

    async def test_the_number_of_waiting_calls_is_bounded(self, path: Path, backend: SqliteState) -> None:
        with contextlib.closing(lock(path)):
            calls = [asyncio.create_task(backend.add("key", 1, LONG)) for _ in range(1010)]
            await asyncio.sleep(0)
            assert sum(call.done() for call in calls) == 10
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        assert await backend.add("key", 1, LONG)

    async def test_a_system_that_does_not_come_back(self, backend: SqliteState, held: threading.Lock) -> None:
        await backend.put("key", b"", ttl=LONG)
        with held, pytest.raises(StoreUnavailable):
            await backend.get("key")
        assert await backend.get("key") is not None

    async def test_a_file_that_was_removed_with_its_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        state = SqliteState(folder / "state.db", timeout=1)
        version = await state.put("key", b"value", ttl=LONG)
        with contextlib.closing(state.listen(["a"])) as listener:
            for file in folder.iterdir():
                file.unlink()
            assert await received(listener) == {"a"}
            assert await state.get("key") is None
            assert await state.put("key", b"value", ttl=LONG) > version
            assert state.outages == 1
        shutil.rmtree(folder)
        with contextlib.suppress(StoreUnavailable):
            while True:  # until it is noticed
                await state.get("key")
        with pytest.raises(StoreUnavailable):
            await state.check()
        folder.mkdir()
        assert await state.get("key") is None
        await state.check()
        assert state.outages == 3  # reading and writing came back one after the other
        await state.close()

    @pytest.mark.parametrize("part", ["middle", "all"])
    async def test_a_damaged_file_is_reported_once_and_counts_as_out_of_reach_until_it_is_replaced(
        self, path: Path, backend: SqliteState, caplog: pytest.LogCaptureFixture, part: str
    ) -> None:
        caplog.set_level(logging.INFO, "dovetail.state")
        keys = [f"key {n}" for n in range(80)]
        for key in keys:  # more than SQLite caches
            await backend.put(key, bytes(60_000), ttl=LONG)
        damage(path, part)
        with contextlib.closing(backend.listen(["a"])) as listener:
            with contextlib.suppress(StoreUnavailable):
                for key in itertools.cycle(keys):  # until it is noticed
                    await backend.get(key)
            for _ in range(5):
                for attempt in (backend.check(), backend.get("key 0"), backend.publish("a")):
                    with pytest.raises(StoreUnavailable):
                        await attempt
                assert await receives_nothing(listener)
            assert backend.outages == 0
            logged = [record.getMessage() for record in caplog.records]
            assert len(logged) == (2 if part == "all" else 1)  # another file has taken its place
            assert logged[-1].startswith(f"The state file {path} is damaged; move it away, and a new one is made")
            path.rename(path.with_name("damaged"))  # noqa: ASYNC240
            assert await received(listener) == {"a"}
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
    else:
        with path.open("r+b") as file:
            file.seek(size // 4)
            file.write(b"nonsense" * (size // 16))


class TestEventLoops:
    def test_data_and_listeners_outlive_a_loop(self, path: Path) -> None:
        async def together() -> None:
            asyncio.create_task(state.add("key", 1, LONG))  # noqa: RUF006, cancelled with the loop, but it is done
            await asyncio.gather(*(state.add("key", 1, LONG) for _ in range(4)))
            await state.publish("a")

        state = SqliteState(path)
        listener = state.listen(["a"])
        for n in range(1, 4):
            asyncio.run(together())
            assert asyncio.run(state.get("key")).value == b"%d" % (5 * n)
            assert asyncio.run(listener.wait()) == {"a"}
        asyncio.run(state.close())

    async def test_close_waits_for_what_was_asked_for(self, path: Path) -> None:
        state = SqliteState(path)
        calls = [asyncio.create_task(state.add("key", 1, LONG)) for _ in range(200)]
        await asyncio.sleep(0)
        await state.close()
        assert sorted(await asyncio.gather(*calls)) == list(range(1, 201))
        with pytest.raises(StoreUnavailable):
            await state.get("key")
        await state.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "dovetail-state"]
