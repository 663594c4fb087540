"""The bounds of a store: what is full refuses, what has expired makes room, and callers leave a quarter to others."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from contract import LONG, Clock, attempts, fill

import stores
from dovetail.state.base import CALLER_PREFIXES, LogPage, StateBackend, StoreFull
from dovetail.state.memory import RECORD_OVERHEAD, MemoryState
from dovetail.state.redis import RedisState
from dovetail.state.sqlite import SqliteState

Make = Callable[..., StateBackend]
ROOM = 400_000
FILE = ROOM * 4 // 3  # of SQLite, with a quarter for logs
PIECE = bytes(800)


@pytest.fixture
async def make_sqlite(tmp_path: Path, clock: Clock) -> AsyncIterator[Make]:
    made: list[SqliteState] = []

    def make(**options: object) -> SqliteState:
        made.append(SqliteState(tmp_path / "state.db", clock=clock, **options))
        return made[-1]

    yield make
    for state in made:
        await state.close()


@pytest.fixture(params=["memory", "sqlite"])
def small(request: pytest.FixtureRequest, clock: Clock, make_sqlite: Make) -> StateBackend:
    """A store that holds some 400,000 bytes of keys."""
    return make_sqlite(max_bytes=FILE) if request.param == "sqlite" else MemoryState(max_entry_bytes=ROOM, clock=clock)


async def fill_up(state: StateBackend, prefix: str = "session/", ttl: float = LONG) -> int:
    """How many keys it takes until it is full."""
    with contextlib.suppress(StoreFull):
        for n in itertools.count():
            await state.put(f"{prefix}{n}", PIECE, ttl=ttl)
    return n


async def test_a_full_store_refuses_what_is_new_and_goes_on_with_what_it_has(small: StateBackend) -> None:
    assert 300 < await fill_up(small) < 500
    with pytest.raises(StoreFull, match="full; try again later") as caught:
        await small.put("more", PIECE, ttl=LONG)
    assert caught.value.http_status == 503
    for size in (5_000, ROOM + 1):
        with pytest.raises(StoreFull):
            await small.put("session/0", bytes(size), ttl=LONG)
    assert (await small.get("session/0")).value == PIECE
    await small.put("session/0", b"less", ttl=LONG)
    assert await small.touch("session/1", LONG)
    for n in range(15):
        await small.delete(f"session/{n}")
    await small.put("more", PIECE, ttl=LONG)


@pytest.mark.parametrize("bound", ["max_entry_bytes=40001", "max_bytes=40002"])
async def test_only_the_log_names_the_bound_and_once(
    bound: str, make_sqlite: Make, caplog: pytest.LogCaptureFixture
) -> None:
    name, size = bound.split("=")
    make = MemoryState if name == "max_entry_bytes" else make_sqlite
    state = make(**{name: int(size)})
    await fill_up(state)
    with pytest.raises(StoreFull) as caught:
        await state.put("more", PIECE, ttl=LONG)
    assert "max" not in caught.value.message
    assert caplog.text.count(bound) == 1


async def test_what_has_expired_makes_room(small: StateBackend, clock: Clock) -> None:
    count = await fill_up(small, ttl=2)
    await small.touch("session/0", LONG)
    clock.now += 2
    assert abs(await fill_up(small, "new/") - count) < 10
    assert await small.get("session/0") is not None


@pytest.mark.parametrize("make", [MemoryState, SqliteState], ids=["memory", "sqlite"])
async def test_full_logs_lose_their_oldest_records_and_count_on(make: Make, tmp_path: Path) -> None:
    state = make(tmp_path / "state.db", max_bytes=4 * ROOM) if make is SqliteState else make(max_log_bytes=ROOM)
    await fill(state, "quiet", 2)
    await asyncio.gather(*(state.append("loud", PIECE, keep=1000, ttl=LONG) for _ in range(900)))
    page = await state.read("loud", 0, 1000)
    assert 200 < len(page.records) < 600
    assert page.first == 901 - len(page.records)
    assert await state.read("quiet", 0) == LogPage([], 3, 2)
    assert await fill(state, "quiet", 1) == [3]
    with pytest.raises(StoreFull, match="max_"):
        await state.append("loud", bytes(ROOM), keep=1, ttl=LONG)
    await state.put("key", PIECE, ttl=LONG)  # there is room for keys
    await state.close()


async def test_expired_logs_make_room_first(make_sqlite: Make, clock: Clock) -> None:
    state = make_sqlite(max_bytes=4 * ROOM)
    await fill(state, "kept", 1)
    for n in range(70):
        await state.append(f"log {n}", bytes(5_000), keep=1, ttl=1)
    clock.now += 1
    for _ in range(70):
        await state.append("new", bytes(5_000), keep=100, ttl=LONG)
    assert len((await state.read("kept", 0)).records) == 1


async def test_keys_take_no_room_from_logs_nor_records_of_any_size_from_the_file(
    make_sqlite: Make, tmp_path: Path
) -> None:
    state = make_sqlite(max_bytes=4 * ROOM)
    logs = [f"log {n}" for n in range(40)]
    for name in (*logs, "small", "large"):
        await fill(state, name, 1)
    await fill_up(state)
    for name in (*logs, "new"):
        await fill(state, name, 1)
    assert [len((await state.read(name, 0)).records) for name in logs] == [2] * 40
    for _ in range(3):
        await asyncio.gather(*(state.append("small", b"", keep=5_000, ttl=LONG) for _ in range(1_000)))
    for _ in range(20):
        await state.append("large", bytes(ROOM // 4), keep=100, ttl=LONG)
    assert len((await state.read("large", 0)).records) == 3
    await state.close()
    assert (tmp_path / "state.db").stat().st_size < 5 * ROOM


async def test_records_of_exactly_the_limits_of_a_file(make_sqlite: Make) -> None:
    state = make_sqlite(max_bytes=8 * ROOM)
    for size in (ROOM, ROOM - 2 * RECORD_OVERHEAD):  # together all that there is for logs
        await state.append("log", bytes(size), keep=9, ttl=LONG)
    assert (await state.read("log", 0)).first == 1
    await state.append("log", b"", keep=9, ttl=LONG)
    assert (await state.read("log", 0)).first == 2
    await state.put("key", bytes(ROOM), ttl=LONG)
    for attempt in (state.put("more", bytes(ROOM + 1), ttl=LONG), state.append("more", bytes(ROOM + 1), keep=1, ttl=1)):
        with pytest.raises(StoreFull, match=f"{ROOM + 1} bytes is too large for max_bytes={8 * ROOM}"):
            await attempt


class TestCallersShare:
    async def test_callers_leave_a_quarter(self, small: StateBackend) -> None:
        prefix = CALLER_PREFIXES[0]
        count = await fill_up(small, prefix)
        with pytest.raises(StoreFull):
            await small.put("dpop/more", PIECE, ttl=LONG)  # all prefixes together
        with pytest.raises(StoreFull):
            await small.put(f"{prefix}1", 3 * PIECE, ttl=LONG)  # nor by growing
        await small.put(f"{prefix}1", bytes(len(PIECE)), ttl=LONG)
        for name in ("dpop", "dpops/", "session/dpop/", "/dpop/", ""):  # are none of them
            await small.put(name, b"", ttl=LONG)
        assert count / 5 < await fill_up(small) < count / 2

    @pytest.mark.parametrize("prefix", [
        "authserver/", "caller-state/", "cancel/", "dpop/", "elicitations/", "ended/", "handle/", "idempotency/",
        "open-call/", "rate/", "step/",
    ])  # fmt: skip
    async def test_callers_leave_a_quarter_of_the_places(self, prefix: str) -> None:
        state = MemoryState(max_entries=8)
        for n in range(5):
            assert await state.claim(f"{prefix}{n}", b"", LONG)
        await state.append(f"{prefix}log", b"", keep=1, ttl=LONG)
        for attempt in attempts(state, f"{prefix}more"):
            with pytest.raises(StoreFull, match="full"):
                await attempt()
        await state.put("session/1", b"", ttl=LONG)
        await fill(state, "events/a", 1)
        for attempt in attempts(state, "session/more"):
            with pytest.raises(StoreFull, match="full"):
                await attempt()
        await state.put("session/1", b"new", ttl=LONG)
        assert await fill(state, "events/a", 2) == [2, 3]

    async def test_redis(self, tmp_path: Path) -> None:
        """By what it says of its memory, again and again."""
        stores.demand()
        store = stores.StoreServer(tmp_path / "store")
        state = RedisState(store.url)
        version = await state.put("dpop/0", b"", ttl=LONG)
        await state.put("session/0", bytes(20_000_000), ttl=LONG)
        async with asyncio.timeout(10):
            with contextlib.suppress(StoreFull):
                n = 0
                while n := n + 1:  # until it has looked
                    used = int(store.command("INFO", "memory").partition(b"used_memory:")[2].split()[0])
                    store.command("CONFIG", "SET", "maxmemory", str(used * 5 // 4))
                    await state.claim(f"dpop/{n}", b"", LONG)
        for attempt in attempts(state, "rate/more"):
            with pytest.raises(StoreFull, match="full"):
                await attempt()
        with pytest.raises(StoreFull, match="full"):
            await state.put("dpop/0", b"changed", ttl=LONG, if_version=version)
        await state.put("dpop/0", b"", ttl=LONG, if_version=version)
        for n, attempt in enumerate(attempts(state, "session/1")):
            await state.delete("session/1")
            assert await attempt(), n
        await state.check()
        await state.close()
        store.kill()


class TestReadiness:
    async def test_it_is_logged_when_no_session_has_room(self, make_sqlite: Make, clock: Clock) -> None:
        state, other = make_sqlite(max_bytes=ROOM), make_sqlite(max_bytes=ROOM, prefix="other")
        await fill_up(state, "dpop/")
        await state.check()
        await fill_up(state, ttl=1)
        for each in (state, other):  # they share the bounds of the file
            with pytest.raises(StoreFull, match="full"):
                await each.check()
        clock.now += 1
        await state.check()
