"""The bounds of a store: what is full refuses, what has expired makes room, and callers leave a quarter to others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from contract import LONG, fill
from without_loop import Clock

import stores
from dovetail import Server
from dovetail.state.base import CALLER_FAMILIES, LogPage, NoRoom, StateBackend
from dovetail.state.memory import RECORD_OVERHEAD, MemoryState
from dovetail.state.redis import RedisState
from dovetail.state.sqlite import SqliteState
from http_serving import serving
from http_wire import HttpWire

Make = Callable[..., StateBackend]


@pytest.fixture
def clock() -> Clock:
    return Clock()


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
def make(request: pytest.FixtureRequest, clock: Clock, make_sqlite: Make) -> Make:
    return make_sqlite if request.param == "sqlite" else lambda **bounds: MemoryState(clock=clock, **bounds)


def attempts(state: StateBackend, name: str) -> list[Callable[[], object]]:
    """Everything that makes a new thing."""
    return [
        lambda: state.put(name, b"", ttl=LONG),
        lambda: state.put(name, b"", ttl=LONG, if_version=0),
        lambda: state.claim(name, b"", LONG),
        lambda: state.add(name, 1, LONG),
        lambda: state.append(name, b"", keep=1, ttl=LONG),
    ]


async def test_a_full_store_refuses_what_is_new_and_goes_on_with_what_it_has(make: Make) -> None:
    state = make(max_entries=3)
    await state.put("key", b"", ttl=LONG)
    await state.add("counter", 1, LONG)
    await fill(state, "log", 1)
    for attempt in attempts(state, "more"):
        with pytest.raises(NoRoom, match="max_entries=3") as caught:
            await attempt()
        assert caught.value.http_status == 503
    await state.put("key", b"new", ttl=LONG)
    assert await fill(state, "log", 2) == [2, 3]
    assert await state.touch("key", LONG)
    await state.delete("key")
    await state.put("other", b"", ttl=LONG)


async def test_what_has_expired_makes_room(make: Make, clock: Clock) -> None:
    state = make(max_entries=101)
    await state.put("kept", b"", ttl=1)
    for n in range(50):
        await state.put(f"key {n}", b"", ttl=1)
        await fill(state, f"log {n}", 1, ttl=1)
    await state.touch("kept", LONG)
    clock.now += 1
    await asyncio.gather(*(state.put(f"new {n}", b"", ttl=LONG) for n in range(100)))


async def test_the_bytes_of_values_are_bounded(make: Make, clock: Clock) -> None:
    state = make(max_entry_bytes=102)  # in SQLite each name has a byte more, the end of its prefix
    await state.put("a", b"x" * 49, ttl=LONG)
    await state.put("b", b"x" * 49, ttl=1)
    for key in ("a", "b", "c"):
        with pytest.raises(NoRoom, match="max_entry_bytes=102"):
            await state.put(key, b"x" * 52, ttl=LONG)
    assert (await state.get("a")).value == b"x" * 49
    clock.now += 1
    await state.put("c", b"x" * 49, ttl=LONG)


async def test_many_small_things_that_have_expired_make_room_for_a_large_one(make: Make, clock: Clock) -> None:
    state = make(max_entry_bytes=200, max_log_bytes=20 * RECORD_OVERHEAD)
    await fill(state, "kept", 1)
    for n in range(50):
        await state.put(f"{n:02}", b"", ttl=1)
    for n in range(10):
        await fill(state, f"log {n}", 1, ttl=1)
    clock.now += 1
    await state.put("k", b"x" * 190, ttl=LONG)
    await state.append("large", bytes(17 * RECORD_OVERHEAD), keep=1, ttl=LONG)
    assert len((await state.read("kept", 0)).records) == 1


async def test_full_logs_lose_their_oldest_records_and_count_on(make: Make) -> None:
    state = make(max_log_bytes=6 * (8 + RECORD_OVERHEAD))
    await fill(state, "quiet", 2)
    await fill(state, "loud", 5)
    assert (await state.read("quiet", 0)).first == 2
    await fill(state, "loud", 2)
    assert await state.read("quiet", 0) == LogPage([], 3, 2)
    assert (await state.read("loud", 0)).first == 2  # it has the store for itself, and loses its own oldest
    assert await fill(state, "quiet", 1) == [3]
    with pytest.raises(NoRoom, match="max_log_bytes"):
        await state.append("loud", bytes(6 * (8 + RECORD_OVERHEAD)), keep=1, ttl=LONG)
    for _ in range(100):
        await state.append("empty", b"", keep=1000, ttl=LONG)
    assert len((await state.read("empty", 0)).records) == 6


async def test_processes_share_the_bounds_of_a_file(make_sqlite: Make) -> None:
    one, two = make_sqlite(max_entries=2), make_sqlite(max_entries=2, prefix="other")
    await one.put("a", b"", ttl=LONG)
    await two.put("b", b"", ttl=LONG)
    with pytest.raises(NoRoom):
        await one.put("c", b"", ttl=LONG)
    await two.delete("b")
    await one.put("c", b"", ttl=LONG)


class TestCallersShare:
    @pytest.mark.parametrize("family", CALLER_FAMILIES)
    async def test_callers_leave_a_quarter_of_the_places(self, make: Make, family: str) -> None:
        state = make(max_entries=8)
        for n in range(5):
            assert await state.claim(f"{family}{n}", b"", LONG)
        await state.append(f"{family}log", b"", keep=1, ttl=LONG)
        for attempt in attempts(state, "dpop/more"):  # all families together
            with pytest.raises(NoRoom, match="max_entries=8"):
                await attempt()
        await state.put(f"{family}1", b"changed", ttl=LONG)
        await state.put("session/1", b"", ttl=LONG)
        await fill(state, "events/a", 1)
        for attempt in attempts(state, "session/more"):
            with pytest.raises(NoRoom, match="max_entries=8"):
                await attempt()

    async def test_callers_leave_a_quarter_of_the_bytes(self, make: Make, clock: Clock) -> None:
        state = make(max_entry_bytes=400)
        await state.put("dpop/1", b"x" * 280, ttl=1)
        with pytest.raises(NoRoom, match="max_entry_bytes=400"):
            await state.put("rate/2", b"x" * 20, ttl=LONG)
        await state.put("session/1", b"x" * 80, ttl=LONG)
        clock.now += 1
        await state.put("rate/2", b"x" * 20, ttl=LONG)

    @pytest.mark.parametrize("name", ["dpop", "dpops/1", "session/dpop/1", "/dpop/1", ""])
    async def test_only_the_family_counts(self, make: Make, name: str) -> None:
        await make(max_entries=1).put(name, b"", ttl=LONG)  # three quarters of one are none

    async def test_redis(self, tmp_path: Path) -> None:
        """By what it says of its memory, again and again."""
        stores.demand()
        store = stores.StoreServer(tmp_path / "store")
        state = RedisState(store.url)
        version = await state.put("dpop/0", b"", ttl=LONG)
        await state.put("session/0", bytes(20_000_000), ttl=LONG)
        async with asyncio.timeout(10):
            with contextlib.suppress(NoRoom):
                n = 0
                while n := n + 1:  # until it has looked
                    used = int(store.command("INFO", "memory").partition(b"used_memory:")[2].split()[0])
                    store.command("CONFIG", "SET", "maxmemory", str(used * 5 // 4))
                    await state.claim(f"dpop/{n}", b"", LONG)
        for attempt in attempts(state, "rate/more"):
            with pytest.raises(NoRoom, match="full"):
                await attempt()
        await state.put("dpop/0", b"changed", ttl=LONG, if_version=version)
        for n, attempt in enumerate(attempts(state, "session/1")):
            await state.delete("session/1")
            assert await attempt(), n
        await state.check()
        await state.close()
        store.kill()


class TestReadiness:
    async def test_callers_alone_leave_it_ready(self, make_sqlite: Make) -> None:
        state = make_sqlite(max_entries=4)
        for n in range(3):
            await state.put(f"dpop/{n}", b"", ttl=LONG)
        await state.check()

    async def test_it_tells_when_no_session_has_a_place_or_bytes(self, make_sqlite: Make, clock: Clock) -> None:
        state = make_sqlite(max_entries=4, max_entry_bytes=4000)
        for n in range(4):
            await state.put(f"session/{n}", b"", ttl=1)
        with pytest.raises(NoRoom, match="max_entries=4"):
            await state.check()
        clock.now += 1
        await state.check()
        await state.put("session/1", b"x" * 3500, ttl=LONG)
        with pytest.raises(NoRoom, match="max_entry_bytes=4000"):
            await state.check()

    async def test_it_tells_probes(self, make_sqlite: Make) -> None:
        state = make_sqlite(max_entries=10)
        async with serving(Server("notes", version="1.0.0"), state=state) as app:
            await HttpWire(app).until_ready(200)
            with contextlib.suppress(NoRoom):  # the app has something there too
                for n in range(10):
                    await state.put(f"session/{n}", b"", ttl=LONG)
            answer = await HttpWire(app).until_ready(503)
            assert b"state store full" in answer.raw
