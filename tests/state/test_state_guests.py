"""What people outside can make grow has a part of the store for itself, and leaves the rest to sessions and logs."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from contract import LONG, fill
from without_loop import Clock

from dovetail import Server
from dovetail.state import sqlite_tables
from dovetail.state.base import GUESTS, NoRoom, StateBackend
from dovetail.state.memory import MemoryState
from dovetail.state.sqlite import SqliteState
from http_serving import serving
from http_wire import HttpWire

Make = Callable[..., StateBackend]
HALF = "half of the state store that callers can fill is full"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
async def make_sqlite(path: Path, clock: Clock) -> AsyncIterator[Make]:
    made: list[SqliteState] = []

    def make(**options: object) -> SqliteState:
        made.append(SqliteState(path, clock=clock, **options))
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


@pytest.mark.parametrize("family", GUESTS)
async def test_guests_leave_half_of_the_places_to_others(make: Make, family: str) -> None:
    state = make(max_entries=10)
    for n in range(4):
        assert await state.claim(f"{family}{n}", b"", LONG)
    await state.append(f"{family}log", b"", keep=1, ttl=LONG)
    for attempt in attempts(state, "dpop/more"):  # they have that half together
        with pytest.raises(NoRoom, match=rf"{HALF}: max_entries=10") as caught:
            await attempt()
        assert caught.value.http_status == 503
    for n in range(4):
        await state.put(f"session/{n}", b"", ttl=LONG)
    await fill(state, "events/a", 1)
    for attempt in attempts(state, "session/more"):
        with pytest.raises(NoRoom, match="The state store is full: max_entries=10"):
            await attempt()


async def test_guests_leave_half_of_the_bytes_to_others(make: Make) -> None:
    state = make(max_entry_bytes=400)
    await state.put("dpop/1", b"x" * 180, ttl=LONG)
    for name, value in (("dpop/1", b"x" * 200), ("rate/2", b"x" * 20)):
        with pytest.raises(NoRoom, match=rf"{HALF}: max_entry_bytes=400"):
            await state.put(name, value, ttl=LONG)
    await state.put("session/1", b"x" * 180, ttl=LONG)
    await state.put("dpop/1", b"", ttl=LONG)
    await state.put("rate/2", b"x" * 20, ttl=LONG)


async def test_others_may_have_what_no_guest_takes(make: Make) -> None:
    state = make(max_entries=4)
    for n in range(4):
        await state.put(f"session/{n}", b"", ttl=LONG)
    await state.delete("session/0")
    await state.put("dpop/1", b"", ttl=LONG)


async def test_what_is_there_can_be_changed_in_a_full_store(make: Make) -> None:
    state = make(max_entries=4)
    await state.add("rate/1", 1, LONG)
    version = await state.put("authserver/grant", b"good", ttl=LONG)
    await state.put("session/1", b"old", ttl=LONG)
    await fill(state, "events/a", 1)
    assert await state.add("rate/1", 1, LONG) == 2
    await state.put("authserver/grant", b"ends", ttl=LONG, if_version=version)
    await state.put("session/1", b"new", ttl=LONG)
    assert await state.touch("session/1", LONG)
    assert not await state.claim("rate/1", b"", LONG)
    assert await fill(state, "events/a", 2) == [2, 3]


async def test_what_was_lowered_can_still_be_changed(make_sqlite: Make) -> None:
    """The bounds are smaller than when it was filled: who needs no more room gets what he asks for."""
    before = make_sqlite(max_entries=100)
    for n in range(20):
        await before.put(f"dpop/{n:02}", b"12345", ttl=LONG)
    after = make_sqlite(max_entries=10, max_entry_bytes=20)
    await after.put("dpop/01", b"54321", ttl=LONG)
    assert await after.delete("dpop/02")
    with pytest.raises(NoRoom):
        await after.put("dpop/02", b"12345", ttl=LONG)


async def test_guests_that_have_expired_make_room(make: Make, clock: Clock) -> None:
    state = make(max_entries=200)
    for n in range(30):
        await state.put(f"session/{n}", b"", ttl=1)  # these end first, and lie in the way
    for n in range(100):
        await state.put(f"dpop/{n}", b"", ttl=2)
    with pytest.raises(NoRoom, match=HALF):
        await state.put("dpop/more", b"", ttl=LONG)
    clock.now += 2
    for n in range(100):
        await state.put(f"dpop/new {n}", b"", ttl=LONG)
    with pytest.raises(NoRoom, match=HALF):
        await state.put("dpop/more", b"", ttl=LONG)


@pytest.mark.parametrize("name", ["dpop", "dpops/1", "session/dpop/1", "/dpop/1", ""])
async def test_only_the_family_counts(make: Make, name: str) -> None:
    state = make(max_entries=1)  # half of it is nothing
    await state.put(name, b"", ttl=LONG)


async def test_servers_that_share_a_file_share_the_half_for_guests(make_sqlite: Make) -> None:
    one, two = make_sqlite(prefix="notes", max_entries=4), make_sqlite(prefix="dpop/x", max_entries=4)
    await one.put("dpop/1", b"", ttl=LONG)
    await two.put("dpop/1", b"", ttl=LONG)
    for state in (one, two):
        with pytest.raises(NoRoom, match=HALF):
            await state.put("dpop/2", b"", ttl=LONG)
        await state.put("session/1", b"", ttl=LONG)
    await two.delete("dpop/1")
    await one.put("dpop/2", b"", ttl=LONG)


async def test_a_file_of_before_is_counted_once(path: Path, make_sqlite: Make) -> None:
    before = make_sqlite(max_entries=4)
    await before.put("dpop/1", b"", ttl=LONG)
    await before.append("visits/1", b"", keep=1, ttl=LONG)
    await before.put("session/1", b"", ttl=LONG)
    await before.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE guests")
    connection.close()
    after = make_sqlite(max_entries=4)
    assert await after.get("dpop/1") is not None
    with pytest.raises(NoRoom, match=HALF):
        await after.put("dpop/2", b"", ttl=LONG)
    await after.put("session/2", b"", ttl=LONG)


async def test_no_transaction_sweeps_for_long(make_sqlite: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for the file. A guest who is refused has brought the sweep further, and may try again."""
    monkeypatch.setattr(sqlite_tables, "STEP", 4)
    monkeypatch.setattr(sqlite_tables, "STEPS", 2)
    state = make_sqlite(max_entries=60)
    for n in range(30):
        await state.put(f"session/{n}", b"", ttl=1)
    for n in range(30):
        await state.put(f"dpop/{n}", b"", ttl=2)
    clock.now += 2
    refused = 0
    while True:
        try:
            await state.put("dpop/new", b"", ttl=LONG)
            break
        except NoRoom:
            refused += 1
        assert refused < 10
    assert refused > 0


class TestReadiness:
    async def test_guests_alone_leave_it_ready(self, make_sqlite: Make) -> None:
        state = make_sqlite(max_entries=4)
        for n in range(2):
            await state.put(f"dpop/{n}", b"", ttl=LONG)
        await state.check()

    async def test_it_tells_when_no_session_has_a_place(self, make_sqlite: Make, clock: Clock) -> None:
        state = make_sqlite(max_entries=4)
        await state.put("dpop/1", b"", ttl=LONG)
        for n in range(3):
            await state.put(f"session/{n}", b"", ttl=1)
        with pytest.raises(NoRoom, match="max_entries=4"):
            await state.check()
        clock.now += 1
        await state.check()

    async def test_it_tells_when_no_session_has_bytes(self, make_sqlite: Make) -> None:
        state = make_sqlite(max_entry_bytes=4000)
        await state.put("session/1", b"x" * 2900, ttl=LONG)
        await state.check()
        await state.put("session/2", b"x" * 500, ttl=LONG)
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
