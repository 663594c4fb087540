"""Sessions as records: found, used, changed, ended; only so many of them, here and at other workers."""

import asyncio
import contextlib
from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.rate_limits import ANONYMOUS
from dovetail.engine.sessions import MAX_ID, RECENT_USE, SessionHandle, Sessions
from dovetail.engine.subscriptions import Hub
from dovetail.errors import Busy, ProtocolError, RateLimited
from dovetail.protocol.methods import InitializeParams
from dovetail.protocol.revisions import R2025_06_18
from dovetail.state.base import StoreUnavailable
from dovetail.state.memory import MemoryState
from http_serving import Clock, PausingState
from remote_state import RemoteState

TIMEOUT = 100.0


class Worker:
    """The sessions of one worker, the URIs that it has to watch, and a clock to turn."""

    def __init__(
        self, state: Any = MemoryState, clock: Clock | None = None, timeout: float = TIMEOUT, max_sessions: int = 10,
        **options: Any,
    ) -> None:  # fmt: skip
        self.watched: set[str] = set()
        hub = Hub(lambda uri, wanted: (self.watched.add if wanted else self.watched.remove)(uri))
        engine: Any = SimpleNamespace(
            hub=hub, announced_kinds=lambda: ["resources"], session_ended=lambda _: None, metrics=None
        )
        self.clock = clock or Clock()
        self.state = state(clock=self.clock) if isinstance(state, type) else state
        self.sessions = Sessions(
            engine, self.state, timeout=timeout, clock=self.clock, max_sessions=max_sessions, **options
        )

    async def open(
        self, owner: str | None = None, client: dict[str, Any] | None = None, caller: str = "a caller"
    ) -> SessionHandle:
        """What `initialize` does."""
        client = client or {"name": "x"}
        params = InitializeParams(protocol_version="2025-06-18", capabilities={}, client_info=client)
        return await self.sessions.open(params, R2025_06_18, owner=owner, resume_change=7, caller=caller)

    async def find(self, held: SessionHandle, owner: str | None = None) -> Any:
        return await self.sessions.find(held.record.id, owner)

    async def initialized(self, held: SessionHandle | None = None) -> SessionHandle:
        """One whose client has said so, at this worker; a new one if none is given."""
        found: SessionHandle = await self.find(held or await self.open())
        await found.change(lambda record: record.replace(initialized=True))
        return found

    async def subscribe(self, held: SessionHandle, *uris: str) -> None:
        """To these and no others."""
        found = await self.find(held)
        await found.change(lambda record: record.replace(subscriptions=frozenset(uris)))


UNSEEN = 100.0  # so long a worker may keep to itself that it uses a session
SILENT = RECENT_USE + UNSEEN + 1


class SlowState(RemoteState):
    """Others can do something before a record is there, too."""

    remote = (*RemoteState.remote, "put")


class Pair:
    """Two workers, a state that is far away, and a clock to turn."""

    def __init__(self, most: int = 2) -> None:
        self.clock = Clock()
        self.state = SlowState(clock=self.clock)
        self.here, self.there = (
            Worker(self.state, self.clock, timeout=10 * UNSEEN, max_sessions=most) for _ in range(2)
        )

    def alive(self, *sessions: SessionHandle) -> list[bool]:
        """As the state knows it, without use."""
        return [self.state._entries.find(f"session/{held.record.id}", self.clock()) is not None for held in sessions]


# ── found again ──


async def test_what_was_opened_is_found() -> None:
    worker = Worker()
    held = await worker.open()
    found = await worker.find(held)
    assert found.record == held.record
    assert (found.record.version, found.record.resume_change) == ("2025-06-18", 7)
    assert (found.record.announced, found.record.initialized) == ({"resources"}, False)


@pytest.mark.rule("SH-26", "SH-27")
async def test_ids_are_long_random_and_visible_ascii() -> None:
    worker = Worker(max_sessions=200)
    ids = {(await worker.open()).record.id for _ in range(200)}
    assert len(ids) == 200
    assert all(len(id) >= 32 and all(0x21 <= ord(character) <= 0x7E for character in id) for id in ids)
    assert len({id[:6] for id in ids}) == 200  # nothing is counted up


@pytest.mark.parametrize("id", ["", "unknown", "x" * MAX_ID, "x" * 100_000, "ÿ", "../state", "a\x00b"])
async def test_other_ids_find_nothing(id: str) -> None:
    worker = Worker()
    await worker.open()
    assert await worker.sessions.find(id, None) is None


@pytest.mark.parametrize(
    ("owner", "asking"), [("ann", "bob"), ("ann", None), (None, "ann"), ("ann", "Ann"), ("", None)]
)
async def test_no_other_owner_finds_it(owner: str | None, asking: str | None) -> None:
    worker = Worker()
    held = await worker.open(owner)
    worker.clock.sleep(TIMEOUT - 1)
    assert await worker.find(held, asking) is None
    worker.clock.sleep(2)  # and who asked in vain has not kept it alive
    assert await worker.find(held, owner) is None


# ── time ──


@pytest.mark.rule("SH-29")
async def test_silence_ends_it() -> None:
    worker = Worker()
    held = await worker.open()
    await worker.subscribe(held, "test://one")
    worker.clock.sleep(TIMEOUT - 0.1)
    assert await worker.find(held) is not None
    worker.clock.sleep(TIMEOUT + 0.1)
    assert await worker.find(held) is None
    assert worker.sessions.last_used(10) == (0, [])
    assert worker.watched == set()


async def test_use_keeps_it_for_ever_and_touches_it_every_tenth() -> None:
    worker = Worker(RemoteState)
    held = await worker.open()
    for _ in range(1000):  # ten times its life, a hundredth at a time
        worker.clock.sleep(TIMEOUT / 100)
        assert await worker.find(held) is not None
    assert 80 <= worker.state.calls["touch"] <= 100


# ── the cap ──


async def test_what_a_client_says_of_itself_is_bounded() -> None:
    worker = Worker()
    icons = [{"src": "data:image/png;base64," + "A" * 200_000}]
    held = await worker.open(client={"name": "vain", "version": "1", "icons": icons})
    assert held.record.client == b'{"name":"vain","version":"1"}'
    with pytest.raises(ProtocolError, match="16384 bytes"):
        await worker.open(client={"name": "x" * 20_000, "version": "1"})
    assert worker.sessions.last_used(10)[0] == 1


async def test_small_records_stay_decoded_for_those_used_last_only() -> None:
    worker = Worker(max_decoded=2)
    opened = [await worker.open() for _ in range(3)]
    first, *_, last = [await worker.find(held) for held in opened]
    assert (await worker.find(opened[2])).record is last.record
    again = await worker.find(opened[0])
    assert again.record is not first.record
    assert again.record == first.record


class Gated(MemoryState):
    """The next new record waits at the gate."""

    gate: asyncio.Event | None = None

    async def put(self, key: str, value: bytes, **options: Any) -> int:
        if options.get("if_version") == 0 and (gate := self.gate) is not None:
            self.gate = None
            await gate.wait()
        return await super().put(key, value, **options)


async def test_one_that_gives_way_while_it_is_opened_is_refused_and_leaves_nothing() -> None:
    worker = Worker(max_sessions=3, state=Gated)
    greedy = [await worker.initialized(await worker.open(caller="ann")) for _ in range(2)]
    gate = worker.state.gate = asyncio.Event()
    opening = asyncio.create_task(worker.open(caller="ann"))
    while worker.state.gate is not None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for each in greedy:
        await each.touch()
    other = await worker.initialized(await worker.open(caller="bob"))
    gate.set()
    with pytest.raises(Busy, match="no room"):
        await opening
    assert [await worker.find(each) is not None for each in (*greedy, other)] == [True] * 3
    assert worker.sessions.last_used(10)[0] == 3


# ── who gives way ──


class Entry(msgspec.Struct, eq=False):
    held: SessionHandle
    caller: str
    used: float
    is_heard: bool = False  # its client has said `initialized`


class Rule:
    """The rule in plain words, over a list of the sessions, the one that was used longest ago first."""

    def __init__(self, most: int, max_per_caller: int) -> None:
        self.most = most
        self.max_per_caller = max_per_caller
        self.entries: list[Entry] = []
        self.in_order_of_opening: list[Entry] = []

    def gives_way(self, caller: str, now: float) -> Entry | type[ProtocolError] | None:
        """Which session gives way to one of this caller; or how that is refused."""
        held = Counter([each.caller for each in self.entries] + [caller])
        is_full = len(self.entries) >= self.most
        is_share_full = held[caller] > self.max_per_caller and caller != ANONYMOUS
        if not is_full and not is_share_full:
            return None
        unheard = [each for each in self.in_order_of_opening if not each.is_heard]
        unheard = [each for each in unheard if each.caller == caller or not is_share_full]
        unheard = [each for each in unheard if held[each.caller] >= held[caller]]
        if unheard:
            return unheard[0]
        most = max(held.values())
        holder = next((each.caller for each in self.entries if held[each.caller] == most), caller)
        holder = caller if is_share_full else holder
        silent = next((each for each in self.entries if each.caller == holder), None)
        if silent is not None and (held[holder] > held[caller] or now - silent.used >= RECENT_USE):
            return silent
        return RateLimited if is_share_full and not is_full else Busy

    def use(self, entry: Entry, now: float) -> None:
        entry.used = now
        self.entries.remove(entry)
        self.entries.append(entry)

    def remove(self, entry: Entry) -> None:
        self.entries.remove(entry)
        self.in_order_of_opening.remove(entry)


OPENED = st.tuples(st.just("open"), st.sampled_from(["ann", "bob", "cid", ANONYMOUS]))
OTHERS = st.tuples(st.sampled_from(["use", "initialize", "initialize", "end"]), st.integers(0, 5))
SLEPT = st.tuples(st.just("sleep"), st.sampled_from([1.0, RECENT_USE - 1, RECENT_USE]))


@given(st.integers(1, 6), st.integers(1, 6), st.lists(st.one_of(OPENED, OPENED, OTHERS, SLEPT), max_size=40))
async def test_the_session_that_gives_way_is_the_one_that_the_rule_names(
    most: int, max_per_caller: int, steps: list[tuple[str, Any]]
) -> None:
    worker, rule = Worker(timeout=1e6, max_sessions=most, max_per_caller=max_per_caller), Rule(most, max_per_caller)
    for step, value in steps:
        if step == "sleep":
            worker.clock.sleep(value)
        elif step == "open":
            await opened_by_rule(worker, rule, value)
        elif rule.entries:
            entry = rule.entries[value % len(rule.entries)]
            if step == "end":
                await worker.sessions.end(entry.held.record.id)
                rule.remove(entry)
                continue
            rule.use(entry, worker.clock())
            if step == "initialize":
                await worker.initialized(entry.held)
                entry.is_heard = True
            else:
                assert await worker.find(entry.held) is not None
        count, last = worker.sessions.last_used(100)
        assert {id for id, *_ in last} == {each.held.record.id for each in rule.entries}
        assert count <= most


async def opened_by_rule(worker: Worker, rule: Rule, caller: str) -> None:
    expected = rule.gives_way(caller, worker.clock())
    if isinstance(expected, type):
        with pytest.raises(expected) as refusal:
            await worker.open(caller=caller)
        given = (refusal.value.http_status, getattr(refusal.value, "retry_after", None))
        assert given == ((429, RECENT_USE) if expected is RateLimited else (503, given[1]))
        return
    if expected is not None:
        rule.remove(expected)
    entry = Entry(await worker.open(caller=caller), caller, worker.clock())
    rule.entries.append(entry)
    rule.in_order_of_opening.append(entry)


async def test_sessions_that_say_initialized_elsewhere_keep_no_caller_out() -> None:
    """However many of them this worker has to look at, the caller that holds most gives way."""
    worker = Worker(max_sessions=30)
    elsewhere = Worker(worker.state, worker.clock)
    for _ in range(30):
        await elsewhere.initialized(await worker.open(caller="bob"))
    await worker.open(caller="ann")
    assert worker.sessions.last_used(1)[0] == 30


# ── changes ──


async def test_changes_that_meet_are_all_kept() -> None:
    worker = Worker(state=PausingState)
    held = await worker.open()

    async def subscribe(each: SessionHandle, uri: str) -> None:
        await each.change(lambda record: record.replace(subscriptions=record.subscriptions | {uri}))

    requests = [await worker.find(held) for _ in range(30)]
    await asyncio.gather(*(subscribe(each, f"test://{n}") for n, each in enumerate(requests) if each))
    found = await worker.find(held)
    assert found.record.subscriptions == {f"test://{n}" for n in range(30)}
    assert worker.watched == found.record.subscriptions


async def test_a_change_does_not_bring_back_what_has_ended() -> None:
    worker = Worker()
    held = await worker.open()
    listener = worker.state.listen([f"session/{held.record.id}"])
    await worker.sessions.end(held.record.id)
    assert await asyncio.wait_for(listener.wait(), 5)
    assert await held.has_ended()
    listener.close()
    await held.change(lambda record: record.replace(subscriptions=frozenset({"test://one"})))
    await held.touch()
    assert await worker.find(held) is None
    assert worker.watched == set()


# ── two workers ──


async def test_one_whose_use_elsewhere_is_not_yet_stored_stays() -> None:
    pair = Pair(most=1)
    held = await pair.here.initialized()
    await pair.there.find(held)
    pair.clock.sleep(UNSEEN - 1)
    touches = pair.state.calls["touch"]
    await pair.there.find(held)
    assert pair.state.calls["touch"] == touches
    pair.clock.sleep(RECENT_USE - 1)
    with pytest.raises(Busy):
        await pair.here.open()
    assert pair.alive(held) == [True]
    pair.clock.sleep(RECENT_USE + 1)  # it was looked at, and counts as used
    await pair.here.open()
    assert pair.alive(held) == [False]


@pytest.mark.parametrize("call", ["get", "remaining", "delete"])
async def test_while_the_store_is_out_of_reach_nothing_is_miscounted(call: str) -> None:
    pair = Pair()
    opened = [await (pair.here.initialized if call == "remaining" else pair.here.open)() for _ in range(2)]
    pair.clock.sleep(SILENT)
    travel = pair.state.travel

    async def trouble(name: str) -> None:
        if name == call:
            raise StoreUnavailable
        await travel(name)

    pair.state.travel = trouble  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await pair.here.open()
    assert len(pair.here.sessions.last_used(9)[1]) == 2
    pair.state.travel = travel  # type: ignore[method-assign]
    pair.clock.sleep(SILENT)
    newer = [await pair.here.initialized() for _ in range(2)]
    assert pair.alive(*opened, *newer) == [False, False, True, True]


async def test_many_at_once_do_not_exceed_the_cap() -> None:
    pair = Pair(most=3)
    opened = await asyncio.gather(*(pair.here.open() for _ in range(10)), return_exceptions=True)
    kept = [each for each in opened if isinstance(each, SessionHandle)]
    assert pair.alive(*kept) == [True] * 3
    assert sum(isinstance(each, Busy) for each in opened) == 7


async def test_those_that_fell_silent_are_forgotten_at_all_workers_when_a_new_one_comes() -> None:
    pair = Pair(most=10)
    for number in range(6):
        await pair.here.subscribe(await (pair.here, pair.there)[number % 2].initialized(), "test://one")
    assert pair.here.watched
    pair.clock.sleep(10 * UNSEEN + 1)
    await pair.here.open()
    assert len(pair.here.sessions.last_used(9)[1]) == 1
    assert not pair.here.watched


async def test_of_those_of_other_workers_only_so_many_are_remembered() -> None:
    pair = Pair(most=3)
    mine = await pair.there.initialized()
    for _ in range(5):
        theirs = [await pair.here.initialized() for _ in range(3)]
        for each in theirs:
            await pair.there.subscribe(each, "test://one")
        assert pair.there.sessions.last_used(9)[0] <= 4
        assert all(pair.alive(mine, *theirs))
        pair.clock.sleep(SILENT)
        await pair.there.find(mine)
    for each in theirs:
        await pair.there.sessions.end(each.record.id)
    assert not pair.there.watched


@pytest.mark.parametrize("way", ["find", "reload"])
async def test_what_a_session_subscribes_to_elsewhere_is_watched_by_who_reads_of_it(way: str) -> None:
    """So it does not depend on the worker that was asked, which may stop."""
    pair = Pair()
    held = await pair.here.initialized()

    async def read() -> set[str]:
        assert await (pair.here.find(held) if way == "find" else held.reload())
        return pair.here.watched

    await pair.there.subscribe(held, "test://one", "test://two")
    assert not pair.here.watched
    assert await read() == {"test://one", "test://two"}
    pair.there.sessions.forget_all()
    await pair.there.subscribe(held, "test://two")
    assert await read() == {"test://two"}
    await pair.here.sessions.end(held.record.id)
    assert not pair.here.watched


STEPS = st.tuples(
    st.sampled_from(["open", "initialize", "use", "end", "wait", "wait long"]), st.booleans(), st.integers(0, 9)
)


@given(st.lists(STEPS, max_size=60))
async def test_in_any_history_the_bound_holds_and_none_in_use_is_ended(steps: list[tuple[str, bool, int]]) -> None:
    pair = Pair(most=2)
    opened: list[tuple[SessionHandle, Worker]] = []
    used: dict[SessionHandle, float] = {}  # when, of those whose client has come back
    for what, elsewhere, number in steps:
        worker = pair.there if elsewhere else pair.here
        if what == "open":
            with contextlib.suppress(Busy):
                opened.append((await worker.open(), worker))
        elif what.startswith("wait"):
            pair.clock.sleep(number * (7 if what == "wait" else 130))
        elif opened:
            held = opened[-1 - number % len(opened)][0]
            if what == "end":
                await worker.sessions.end(held.record.id)
                used.pop(held, None)
            elif await worker.find(held) is not None and (what == "initialize" or held in used):
                await worker.initialized(held)
                used[held] = pair.clock()
        for each in (pair.here, pair.there):
            assert sum(pair.alive(*(held for held, opener in opened if opener is each))) <= 2
        fresh = [held for held, when in used.items() if pair.clock() - when < RECENT_USE]
        assert all(pair.alive(*fresh)), what
