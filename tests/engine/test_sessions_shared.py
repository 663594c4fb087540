"""Workers on one backend: each bounds the sessions that it has opened, and ends none that is used elsewhere."""

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import Server
from dovetail.engine.sessions import FRESH_SECONDS, MAX_LOOKS, HeldSession, Sessions
from dovetail.errors import Busy
from dovetail.protocol.methods import InitializeParams
from dovetail.protocol.revisions import R2025_06_18
from dovetail.state.base import StoreTrouble
from far_state import FarState
from http_serving import Clock

TIMEOUT = 1000.0
UNSEEN = TIMEOUT / 10  # so long a worker may keep to itself that it uses a session
SILENT = FRESH_SECONDS + UNSEEN + 1


class SlowState(FarState):
    """Others can do something before a record is there, too."""

    async def put(self, key: str, value: bytes, **options: Any) -> int:
        await self._travel("put")
        return await super().put(key, value, **options)


class Worker:
    def __init__(self, state: FarState, clock: Clock, most: int) -> None:
        self.server = Server("book", version="1.0.0")
        self.server.add_resource("test://one", lambda: "1", name="one")
        self.sessions = Sessions(self.server.engine, state, timeout=TIMEOUT, most=most, clock=clock)

    async def begin(self) -> HeldSession:
        """What `initialize` does."""
        params = InitializeParams(protocol_version="2025-06-18", capabilities={}, client_info={"name": "x"})
        return await self.sessions.open(params, R2025_06_18, owner=None, unheard_since=0)

    async def open(self) -> str:
        """With `initialized`."""
        return await self.initialize((await self.begin()).record.id)

    async def use(self, id: str) -> HeldSession | None:
        return await self.sessions.find(id, None)

    async def initialize(self, id: str) -> str:
        held = await self.use(id)
        assert held is not None
        await held.change(lambda record: record.replace(initialized=True))
        return id

    async def subscribe(self, id: str, *uris: str) -> None:
        held = await self.use(id)
        assert held is not None
        await held.change(lambda record: record.replace(subscriptions=frozenset(uris or {"test://one"})))

    @property
    def watches(self) -> set[str]:
        return set(self.server.engine.hub._wanted)


class Pair:
    """Two workers, a state that is far away, and a clock to turn."""

    def __init__(self, most: int = 2) -> None:
        self.clock = Clock()
        self.state = SlowState(clock=self.clock)
        self.here, self.there = (Worker(self.state, self.clock, most) for _ in range(2))

    def alive(self, ids: list[str]) -> list[bool]:
        """As the state knows it, without use."""
        return [self.state._entries.find(f"session/{id}", self.clock()) is not None for id in ids]


# ── who gives way ──


async def test_the_longest_silent_one_gives_way() -> None:
    pair = Pair(most=3)
    ids = [await pair.here.open() for _ in range(3)]
    pair.clock.sleep(1)
    await pair.here.use(ids[0])
    pair.clock.sleep(SILENT)
    ids.append(await pair.here.open())
    assert pair.alive(ids) == [True, False, True, True]


async def test_one_that_is_used_elsewhere_does_not() -> None:
    pair = Pair()
    ids = [await pair.here.open() for _ in range(2)]
    pair.clock.sleep(SILENT)
    await pair.there.use(ids[0])
    pair.clock.sleep(FRESH_SECONDS - 1)
    ids.append(await pair.here.open())
    assert pair.alive(ids) == [True, False, True]


async def test_nor_one_whose_use_elsewhere_the_backend_has_not_heard_of() -> None:
    pair = Pair(most=1)
    id = await pair.here.open()
    await pair.there.use(id)
    pair.clock.sleep(UNSEEN - 1)
    touches = pair.state.calls["touch"]
    await pair.there.use(id)
    assert pair.state.calls["touch"] == touches
    pair.clock.sleep(FRESH_SECONDS - 1)
    with pytest.raises(Busy):
        await pair.here.open()
    assert pair.alive([id]) == [True]
    pair.clock.sleep(FRESH_SECONDS + 1)  # it was looked at, and counts as used
    await pair.here.open()
    assert pair.alive([id]) == [False]


async def test_who_never_came_back_gives_way_before_all_others() -> None:
    pair = Pair(most=3)
    silent = await pair.here.open()
    pair.clock.sleep(SILENT)
    flood = [(await pair.here.begin()).record.id for _ in range(20)]
    assert pair.alive([silent]) == [True]
    assert pair.alive(flood) == [False] * 18 + [True] * 2


async def test_who_came_back_elsewhere_has_come_back() -> None:
    pair = Pair()
    first, second = [(await pair.here.begin()).record.id for _ in range(2)]
    await pair.there.initialize(first)
    third = await pair.here.open()
    assert pair.alive([first, second, third]) == [True, False, True]
    with pytest.raises(Busy, match="2 sessions"):
        await pair.here.begin()
    assert pair.alive([first, third]) == [True, True]


async def test_who_came_back_elsewhere_and_fell_silent_gives_way_in_its_turn() -> None:
    """Also if there are many of them: none of those that come is refused for their sake."""
    pair = Pair(most=3 * MAX_LOOKS)
    ids = [(await pair.here.begin()).record.id for _ in range(3 * MAX_LOOKS)]
    for id in ids:
        await pair.there.initialize(id)
    pair.clock.sleep(SILENT)
    newer = [await pair.here.open() for _ in range(3 * MAX_LOOKS)]
    assert not any(pair.alive(ids))
    assert all(pair.alive(newer))


async def test_who_has_ended_elsewhere_makes_room() -> None:
    pair = Pair()
    ids = [await pair.here.open() for _ in range(2)]
    pair.clock.sleep(SILENT)
    await pair.there.sessions.end(ids[0])
    ids.append(await pair.here.open())
    assert pair.alive(ids) == [False, True, True]


async def test_those_of_other_workers_are_left_alone() -> None:
    pair = Pair()
    theirs = [await pair.there.open() for _ in range(2)]
    for id in theirs:
        await pair.here.use(id)
    pair.clock.sleep(SILENT)
    mine = [await pair.here.open() for _ in range(2)]
    assert all(pair.alive(theirs + mine))


# ── who is refused ──


async def test_if_all_are_in_use_elsewhere_a_new_one_is_refused() -> None:
    pair = Pair()
    ids = [await pair.here.open() for _ in range(2)]
    pair.clock.sleep(SILENT)
    for id in ids:
        await pair.there.use(id)
    with pytest.raises(Busy) as refusal:
        await pair.here.open()
    assert refusal.value.http_status == 503
    asked = pair.state.calls.copy()
    with pytest.raises(Busy):  # what was just learned is not asked for again
        await pair.here.open()
    assert pair.state.calls == asked
    assert pair.alive(ids) == [True, True]
    assert len(pair.here.sessions._known) == 2


async def test_only_some_are_looked_at_and_next_time_others() -> None:
    pair = Pair(most=MAX_LOOKS + 1)
    ids = [await pair.here.open() for _ in range(MAX_LOOKS + 1)]
    pair.clock.sleep(SILENT)
    for id in ids[:-1]:
        await pair.there.use(id)
    with pytest.raises(Busy):
        await pair.here.open()
    assert pair.state.calls["remaining"] == MAX_LOOKS
    ids.append(await pair.here.open())
    assert pair.alive(ids) == [True] * MAX_LOOKS + [False, True]


@pytest.mark.parametrize("call", ["get", "remaining", "delete"])
async def test_while_the_store_is_out_of_reach_nothing_is_miscounted(call: str) -> None:
    pair = Pair()
    ids = [(await pair.here.begin()).record.id for _ in range(2)]
    if call == "remaining":
        await pair.here.initialize(ids[0])
        await pair.here.initialize(ids[1])
        pair.clock.sleep(SILENT)
    travel = pair.state._travel

    async def trouble(name: str) -> None:
        if name == call:
            raise StoreTrouble
        await travel(name)

    pair.state._travel = trouble  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(StoreTrouble):
            await pair.here.begin()
    assert len(pair.here.sessions._known) == 2
    pair.state._travel = travel  # type: ignore[method-assign]
    pair.clock.sleep(SILENT)
    newer = [await pair.here.open() for _ in range(2)]
    assert pair.alive(ids + newer) == [False, False, True, True]


# ── at once ──


async def test_many_at_once_do_not_exceed_the_cap() -> None:
    pair = Pair(most=3)
    opened = await asyncio.gather(*(pair.here.begin() for _ in range(10)), return_exceptions=True)
    ids = [each.record.id for each in opened if isinstance(each, HeldSession)]
    assert len(ids) == 3
    assert all(pair.alive(ids))
    assert sum(isinstance(each, Busy) for each in opened) == 7


@pytest.mark.parametrize("came_back", [True, False])
async def test_no_more_end_than_have_to(came_back: bool) -> None:
    pair = Pair(most=5)
    ids = [await pair.here.open() if came_back else (await pair.here.begin()).record.id for _ in range(5)]
    pair.clock.sleep(SILENT)
    newer = [held.record.id for held in await asyncio.gather(*(pair.here.begin() for _ in range(3)))]
    assert pair.alive(ids) == [False] * 3 + [True] * 2
    assert all(pair.alive(newer))


# ── what is remembered ──


async def test_one_that_lives_on_elsewhere_still_counts() -> None:
    pair = Pair(most=1)
    id = await pair.here.open()
    for _ in range(30):
        pair.clock.sleep(UNSEEN + 1)
        await pair.there.use(id)
    with pytest.raises(Busy):
        await pair.here.open()
    pair.clock.sleep(SILENT)
    newer = await pair.here.open()
    assert pair.alive([id, newer]) == [False, True]


async def test_those_that_fell_silent_are_forgotten_when_a_new_one_comes() -> None:
    pair = Pair(most=10)
    for number in range(6):
        id = await (pair.here, pair.there)[number % 2].open()
        await pair.here.subscribe(id)
    assert pair.here.watches
    pair.clock.sleep(TIMEOUT + 1)
    await pair.here.open()
    assert len(pair.here.sessions._known) == 1
    assert not pair.here.watches


async def test_of_those_of_other_workers_only_so_many_are_remembered() -> None:
    pair = Pair(most=3)
    mine = await pair.there.open()
    for _ in range(5):
        theirs = [await pair.here.open() for _ in range(3)]
        for id in theirs:
            await pair.there.subscribe(id)
        assert len(pair.there.sessions._known) <= 4
        assert all(pair.alive([mine, *theirs]))
        pair.clock.sleep(SILENT)
        await pair.there.use(mine)
    for id in theirs:
        await pair.there.sessions.end(id)
    assert not pair.there.watches


# ── what is watched ──


@pytest.mark.parametrize("way", ["find", "reload"])
async def test_what_a_session_subscribes_to_elsewhere_is_watched_by_who_reads_of_it(way: str) -> None:
    """So it does not depend on the worker that was asked, which may stop."""
    pair = Pair()
    id = await pair.here.open()
    held = await pair.here.use(id)
    assert held is not None

    async def read() -> set[str]:
        assert await (pair.here.use(id) if way == "find" else held.reload())
        return pair.here.watches

    await pair.there.subscribe(id, "test://one", "test://two")
    assert not pair.here.watches
    assert await read() == {"test://one", "test://two"}
    pair.there.sessions.forget_all()
    assert await read() == {"test://one", "test://two"}
    await pair.there.subscribe(id, "test://two")
    assert await read() == {"test://two"}
    await pair.here.sessions.end(id)
    assert not pair.here.watches


async def test_an_older_record_that_is_used_changes_nothing() -> None:
    """Of a call that runs for long."""
    pair = Pair()
    id = await pair.here.open()
    old = await pair.here.use(id)
    assert old is not None
    await pair.there.subscribe(id)
    await pair.here.use(id)
    pair.clock.sleep(UNSEEN + 1)
    assert await old.use()
    assert pair.here.watches == {"test://one"}


# ── any history ──

STEPS = st.tuples(
    st.sampled_from(["begin", "initialize", "use", "end", "wait", "wait long"]), st.booleans(), st.integers(0, 9)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_whatever_happens_the_bound_holds_and_nobody_in_use_is_ended(steps: list[tuple[str, bool, int]]) -> None:
    asyncio.run(_history(steps))


async def _history(steps: list[tuple[str, bool, int]]) -> None:
    pair = Pair(most=2)
    opened: list[tuple[str, Worker]] = []
    used: dict[str, float] = {}  # when, of those whose client has come back
    for what, elsewhere, number in steps:
        worker = pair.there if elsewhere else pair.here
        id = opened[-1 - number % len(opened)][0] if opened else ""
        if what == "begin":
            await _unless_busy(worker, opened)
        elif what.startswith("wait"):
            pair.clock.sleep(number * (7 if what == "wait" else 130))
        elif what == "end":
            await worker.sessions.end(id)
            used.pop(id, None)
        elif (held := await worker.use(id)) is not None and (what == "initialize" or id in used):
            await held.change(lambda record: record.replace(initialized=True))
            used[id] = pair.clock()
        for each in (pair.here, pair.there):
            assert sum(pair.alive([id for id, opener in opened if opener is each])) <= 2
        fresh = [id for id, when in used.items() if pair.clock() - when < FRESH_SECONDS]
        assert all(pair.alive(fresh)), what


async def _unless_busy(worker: Worker, opened: list[Any]) -> None:
    with contextlib.suppress(Busy):
        opened.append(((await worker.begin()).record.id, worker))
