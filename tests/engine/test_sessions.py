"""Sessions as records: found, used, changed, ended, and only so many of them."""

import asyncio
from typing import Any

import pytest

from dovetail import Server
from dovetail.engine import sessions
from dovetail.engine.networks import ANONYMOUS
from dovetail.engine.sessions import FRESH_SECONDS, MAX_ID, HeldSession, Sessions
from dovetail.errors import Busy, ProtocolError, RateLimited
from dovetail.protocol.methods import InitializeParams
from dovetail.protocol.revisions import R2025_06_18
from dovetail.state.memory import MemoryState
from http_serving import Clock, PausingState

TIMEOUT = 100.0


class Counting(MemoryState):
    """Counts how often a session is touched."""

    touches = 0

    async def touch(self, key: str, ttl: float) -> bool:
        self.touches += 1
        return await super().touch(key, ttl)


class Book:
    """The sessions of a server, and a clock to turn."""

    def __init__(self, *, most: int = 10, most_of_one: int | None = None, state: type[MemoryState] = Counting) -> None:
        self.server = Server("book", version="1.0.0")
        for name in ("one", "two", "three"):
            self.server.add_resource(f"test://{name}", lambda: "1", name=name)
        self.clock = Clock()
        self.state = state(clock=self.clock)
        self.sessions = self.reopened(most, most_of_one)

    def reopened(self, most: int = 10, most_of_one: int | None = None) -> Sessions:
        """As another process with the same state would."""
        limits = {"most": most, "most_of_one": most_of_one}
        return Sessions(self.server.engine, self.state, timeout=TIMEOUT, clock=self.clock, **limits)

    async def open(
        self, owner: str | None = None, client: dict[str, Any] | None = None, caller: str = "somebody"
    ) -> HeldSession:
        client = client or {"name": "x"}
        params = InitializeParams(protocol_version="2025-06-18", capabilities={}, client_info=client)
        return await self.sessions.open(params, R2025_06_18, owner=owner, unheard_since=7, caller=caller)

    async def find(self, held: HeldSession, owner: str | None = None) -> HeldSession | None:
        return await self.sessions.find(held.record.id, owner)

    async def subscribe(self, held: HeldSession, *uris: str) -> None:
        await held.change(lambda record: record.replace(subscriptions=record.subscriptions | set(uris)))

    @property
    def watched(self) -> set[str]:
        return set(self.server.engine.hub._wanted)


# ── found again ──


async def test_what_was_opened_is_found() -> None:
    book = Book()
    held = await book.open()
    found = await book.find(held)
    assert found is not None
    assert found.record == held.record
    assert found.record.version == "2025-06-18"
    assert found.record.unheard_since == 7
    assert found.record.announced == {"resources"}
    assert not found.record.initialized


@pytest.mark.rule("SH-26", "SH-27")
async def test_ids_are_long_random_and_visible_ascii() -> None:
    book = Book(most=200)
    ids = {(await book.open()).record.id for _ in range(200)}
    assert len(ids) == 200
    assert all(len(id) >= 32 and all(0x21 <= ord(character) <= 0x7E for character in id) for id in ids)
    assert len({id[:6] for id in ids}) == 200  # nothing is counted up


@pytest.mark.parametrize("id", ["", "unknown", "x" * MAX_ID, "x" * 100_000, "ÿ", "../state", "a\x00b"])
async def test_other_ids_find_nothing(id: str) -> None:
    book = Book()
    await book.open()
    assert await book.sessions.find(id, None) is None


@pytest.mark.parametrize(
    ("owner", "asking"), [("ann", "bob"), ("ann", None), (None, "ann"), ("ann", "Ann"), ("", None)]
)
async def test_nobody_else_finds_it(owner: str | None, asking: str | None) -> None:
    book = Book()
    held = await book.open(owner)
    book.clock.sleep(TIMEOUT - 1)
    assert await book.find(held, asking) is None
    book.clock.sleep(2)  # and who asked in vain has not kept it alive
    assert await book.find(held, owner) is None


async def test_another_process_finds_it_and_watches_for_it() -> None:
    book = Book()
    held = await book.open()
    await book.subscribe(held, "test://one")
    book.sessions.forget_all()
    assert book.watched == set()
    book.sessions = book.reopened()
    assert await book.find(held) is not None
    assert book.watched == {"test://one"}


# ── time ──


@pytest.mark.rule("SH-29")
async def test_silence_ends_it() -> None:
    book = Book()
    held = await book.open()
    await book.subscribe(held, "test://one")
    book.clock.sleep(TIMEOUT - 0.1)
    assert await book.find(held) is not None
    book.clock.sleep(TIMEOUT + 0.1)
    assert await book.find(held) is None
    assert len(book.sessions._known) == 0
    assert book.watched == set()


async def test_use_keeps_it_for_ever_and_touches_it_every_tenth() -> None:
    book = Book()
    held = await book.open()
    for _ in range(1000):  # ten times its life, a hundredth at a time
        book.clock.sleep(TIMEOUT / 100)
        assert await book.find(held) is not None
    assert isinstance(book.state, Counting)
    assert 80 <= book.state.touches <= 100


async def test_who_was_used_just_before_the_next_touch_lives_nine_tenths() -> None:
    book = Book()
    held = await book.open()
    book.clock.sleep(TIMEOUT / 10 - 0.1)
    assert await book.find(held) is not None
    book.clock.sleep(TIMEOUT * 0.9 - 0.1)
    assert await book.find(held) is not None


async def test_those_that_fell_silent_are_forgotten_when_a_new_one_comes() -> None:
    book = Book()
    for _ in range(5):
        await book.subscribe(await book.open(), "test://one")
    book.clock.sleep(TIMEOUT + 1)
    await book.open()
    assert len(book.sessions._known) == 1
    assert book.watched == set()


# ── the cap ──


async def came_back(held: HeldSession) -> HeldSession:
    await held.change(lambda record: record.replace(initialized=True))
    return held


async def test_who_never_came_back_gives_way_before_all_others() -> None:
    book = Book(most=3)
    real = await came_back(await book.open())
    flood = [await book.open() for _ in range(20)]
    late = await came_back(await book.open())
    assert len(book.sessions._known) == 3
    assert await book.find(real) is not None
    assert await book.find(late) is not None
    assert [await book.find(each) is not None for each in flood] == [False] * 19 + [True]


async def test_what_a_client_says_of_itself_is_bounded() -> None:
    book = Book()
    icons = [{"src": "data:image/png;base64," + "A" * 200_000}]
    held = await book.open(client={"name": "vain", "version": "1", "icons": icons})
    assert held.record.client == b'{"name":"vain","version":"1"}'
    with pytest.raises(ProtocolError, match="16384 bytes"):
        await book.open(client={"name": "x" * 20_000, "version": "1"})
    assert len(book.sessions._known) == 1


async def test_small_records_stay_decoded_for_those_used_last_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "RECENT", 2)
    book = Book()
    opened = [await book.open() for _ in range(3)]
    first, *_, last = [await book.find(held) for held in opened]
    assert first is not None
    assert last is not None
    assert (await book.find(opened[2])).record is last.record
    again = await book.find(opened[0])
    assert again.record is not first.record
    assert again.record == first.record
    assert len(book.sessions._recent) == 2
    await book.sessions.end(again.record.id)
    assert list(book.sessions._recent) == [opened[2].record.id]


async def test_a_change_elsewhere_is_seen_though_the_record_was_decoded() -> None:
    book = Book()
    held = await book.open()
    await book.find(held)
    there = await book.reopened().find(held.record.id, None)
    await there.change(lambda record: record.replace(initialized=True))
    assert (await book.find(held)).record.initialized


async def test_a_large_record_is_not_decoded_for_every_request() -> None:
    book = Book()
    held = await book.open()
    await held.change(lambda record: record.replace(subscriptions=frozenset(f"test://{n}" for n in range(500))))
    first, second = await book.find(held), await book.find(held)
    assert first is not None
    assert second is not None
    assert first.record is second.record
    await first.change(lambda record: record.replace(initialized=True))
    third = await book.find(held)
    assert third is not None
    assert third.record.initialized


async def test_the_longest_silent_one_gives_way() -> None:
    book = Book(most=3)
    first, second, third = [await came_back(await book.open()) for _ in range(3)]
    book.clock.sleep(1)
    assert await book.find(first) is not None
    book.clock.sleep(FRESH_SECONDS + 1)
    fourth = await book.open()
    assert [await book.find(each) is not None for each in (first, second, third, fourth)] == [True, False, True, True]
    assert len(book.sessions._known) == 3


async def test_but_not_if_it_was_used_a_moment_ago() -> None:
    book = Book(most=2)
    both = [await came_back(await book.open()) for _ in range(2)]
    book.clock.sleep(FRESH_SECONDS - 0.1)
    with pytest.raises(Busy) as refusal:
        await book.open()
    assert refusal.value.http_status == 503
    assert "2 sessions" in refusal.value.message
    assert all([await book.find(each) is not None for each in both])


async def test_an_ended_one_makes_room_at_once() -> None:
    book = Book(most=1)
    await book.sessions.end((await book.open()).record.id)
    await book.open()


async def test_who_gives_way_is_told() -> None:
    book = Book(most=1)
    held = await book.open()
    listener = book.state.listen([f"session/{held.record.id}"])
    book.clock.sleep(FRESH_SECONDS + 1)
    await book.open()
    assert await asyncio.wait_for(listener.wait(), 1)
    assert not await book.sessions.reload(held)
    listener.close()


async def test_many_at_once_do_not_exceed_the_cap() -> None:
    book = Book(most=3, state=PausingState)
    opened = await asyncio.gather(*(book.open() for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(each, HeldSession) for each in opened) == 3
    assert sum(isinstance(each, Busy) for each in opened) == 7
    assert len(book.sessions._known) == 3


class Gated(MemoryState):
    """The next new record waits at the gate."""

    gate: asyncio.Event | None = None

    async def put(self, key: str, value: bytes, **options: Any) -> int:
        if options.get("if_version") == 0 and (gate := self.gate) is not None:
            self.gate = None
            await gate.wait()
        return await super().put(key, value, **options)


async def test_one_that_gives_way_while_it_is_opened_is_refused_and_leaves_nothing() -> None:
    book = Book(most=3, state=Gated)
    assert isinstance(book.state, Gated)
    greedy = [await came_back(await book.open(caller="ann")) for _ in range(2)]
    gate = book.state.gate = asyncio.Event()
    opening = asyncio.create_task(book.open(caller="ann"))
    while book.state.gate is not None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for each in greedy:
        await each.use()
    other = await came_back(await book.open(caller="bob"))
    gate.set()
    with pytest.raises(Busy, match="no room"):
        await opening
    assert [await book.find(each) is not None for each in (*greedy, other)] == [True] * 3
    assert book.sessions.glance(10)[0] == 3


# ── each caller's share ──


async def test_who_holds_most_gives_way_though_others_are_silent_longer() -> None:
    book = Book(most=4)
    idle = await came_back(await book.open(caller="ann"))
    book.clock.sleep(FRESH_SECONDS + 1)
    greedy = [await came_back(await book.open(caller="bob")) for _ in range(3)]
    new = await came_back(await book.open(caller="cid"))
    greedy += [await came_back(await book.open(caller="dan"))]
    alive = [await book.find(each) is not None for each in (idle, new, *greedy)]
    assert alive == [True, True, False, False, True, True]


async def test_nobody_can_end_those_of_others_by_opening_many() -> None:
    book = Book(most=4)
    idle = await came_back(await book.open(caller="ann"))
    book.clock.sleep(FRESH_SECONDS + 1)
    for _ in range(20):  # without a word more: each takes the place of one of their own
        await book.open(caller="bob")
    mine = [await came_back(await book.open(caller="bob")) for _ in range(3)]
    with pytest.raises(Busy):
        await book.open(caller="bob")
    assert all([await book.find(each) is not None for each in (idle, *mine)])


async def test_of_the_one_who_holds_most_the_one_that_never_came_back_gives_way() -> None:
    book = Book(most=3)
    used = await came_back(await book.open(caller="bob"))
    new = await book.open(caller="bob")
    also = await came_back(await book.open(caller="bob"))
    await book.open(caller="ann")
    assert [await book.find(each) is not None for each in (used, new, also)] == [True, False, True]


async def test_among_equals_the_longest_silent_one_gives_way() -> None:
    book = Book(most=3)
    opened = [await came_back(await book.open(caller=name)) for name in ("ann", "bob", "cid")]
    with pytest.raises(Busy):
        await book.open(caller="dan")
    book.clock.sleep(FRESH_SECONDS + 1)
    assert await book.find(opened[0]) is not None
    await book.open(caller="dan")
    assert [await book.find(each) is not None for each in opened] == [True, False, True]


async def test_one_caller_has_only_so_many() -> None:
    book = Book(most=10, most_of_one=2)
    mine = [await came_back(await book.open(caller="bob")) for _ in range(2)]
    with pytest.raises(RateLimited, match="max_per_caller") as refusal:
        await book.open(caller="bob")
    assert (refusal.value.http_status, refusal.value.retry_after) == (429, FRESH_SECONDS)
    await book.open(caller="ann")
    book.clock.sleep(FRESH_SECONDS + 1)
    mine.append(await book.open(caller="bob"))
    assert [await book.find(each) is not None for each in mine] == [False, True, True]


async def test_newcomers_that_never_come_back_end_none_that_is_in_use() -> None:
    book = Book(most=100)
    office = [await came_back(await book.open(caller="office")) for _ in range(10)]
    for number in range(300):  # each from another network
        await book.open(caller=f"network {number}")
    assert all([await book.find(each) is not None for each in office])
    assert len(book.sessions._known) == 100


async def test_one_that_was_just_opened_does_not_give_way_to_a_caller_that_holds_more() -> None:
    book = Book(most=4)
    for _ in range(3):
        await came_back(await book.open(caller="bob"))
    new = await book.open(caller="ann")
    with pytest.raises(Busy):
        await book.open(caller="bob")
    assert await book.find(new) is not None


async def test_sessions_that_say_initialized_elsewhere_keep_nobody_out() -> None:
    """However many of them this worker has to look at, the caller that holds most gives way."""
    book = Book(most=30)
    elsewhere = book.reopened()
    for _ in range(30):
        held = await book.open(caller="bob")
        await came_back(await elsewhere.find(held.record.id, None))
    await book.open(caller="ann")
    assert len(book.sessions._known) == 30


async def test_callers_of_whom_nothing_is_known_share_all_places() -> None:
    book = Book(most=10, most_of_one=2)
    unknown = [await came_back(await book.open(caller=ANONYMOUS)) for _ in range(10)]
    with pytest.raises(Busy, match="10 sessions"):
        await book.open(caller=ANONYMOUS)
    await book.open(caller="ann")  # they hold most
    assert sum([await book.find(each) is not None for each in unknown]) == 9


# ── changes ──


async def test_changes_that_meet_are_all_kept() -> None:
    book = Book(state=PausingState)
    held = await book.open()
    requests = [await book.find(held) for _ in range(30)]
    await asyncio.gather(*(book.subscribe(each, f"test://{n}") for n, each in enumerate(requests) if each))
    found = await book.find(held)
    assert found is not None
    assert found.record.subscriptions == {f"test://{n}" for n in range(30)}
    assert book.watched == found.record.subscriptions


async def test_a_change_is_told() -> None:
    book = Book()
    held = await book.open()
    listener = book.state.listen([f"session/{held.record.id}"])
    await held.change(lambda record: record.replace(initialized=True))
    assert await asyncio.wait_for(listener.wait(), 1)
    other = await book.find(held)
    assert other is not None
    assert other.record.initialized
    listener.close()


async def test_reloading_shows_what_others_have_changed() -> None:
    book = Book()
    held = await book.open()
    other = await book.find(held)
    assert other is not None
    await other.change(lambda record: record.replace(log_level="error"))
    assert held.record.log_level is None
    assert await book.sessions.reload(held)
    assert held.record.log_level == "error"


async def test_a_refused_change_changes_nothing() -> None:
    book = Book()
    held = await book.open()

    def refuse(_record: object) -> None:
        raise Busy("no")

    with pytest.raises(Busy):
        await held.change(refuse)  # type: ignore[arg-type]
    assert await book.find(held) is not None


async def test_a_change_does_not_bring_back_what_has_ended() -> None:
    book = Book()
    held = await book.open()
    await book.sessions.end(held.record.id)
    await book.subscribe(held, "test://one")
    assert await book.find(held) is None
    assert book.watched == set()


async def test_neither_does_use() -> None:
    book = Book()
    held = await book.open()
    await book.subscribe(held, "test://one")
    await book.sessions.end(held.record.id)
    await held.use()
    assert len(book.sessions._known) == 0
    assert book.watched == set()


# ── what is watched for whom ──


async def test_a_resource_is_watched_as_long_as_one_session_wants_it() -> None:
    book = Book()
    ann, bob = await book.open(), await book.open()
    await book.subscribe(ann, "test://one", "test://two")
    await book.subscribe(bob, "test://one")
    assert book.watched == {"test://one", "test://two"}
    await ann.change(lambda record: record.replace(subscriptions=frozenset()))
    assert book.watched == {"test://one"}
    await book.sessions.end(bob.record.id)
    assert book.watched == set()


async def test_when_the_process_stops_nothing_is_watched_and_all_records_stay() -> None:
    book = Book()
    held = await book.open()
    await book.subscribe(held, "test://one")
    book.sessions.forget_all()
    assert book.watched == set()
    assert len(book.sessions._known) == 0
    found = await book.find(held)
    assert found is not None
    assert found.record.subscriptions == {"test://one"}
