"""The limiter itself, with a clock that is handed in: how many calls get through, for whom, and in whose count."""

import asyncio
import itertools
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.auth.principal import Principal
from dovetail.engine import rates
from dovetail.engine.exchange import Exchange
from dovetail.engine.rates import Limiter, SharedCounts
from dovetail.errors import SetupError
from dovetail.registry.rates import Rate, parse_rates
from far_state import FarState

NOTHING: Any = None


class Clock:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def caller(principal: str | None = None, address: str | None = None) -> Exchange:
    who = None if principal is None else Principal(subject=principal)
    return Exchange(NOTHING, NOTHING, principal=who, peer=None if address is None else (address, 9))


ANYBODY = caller()


def limiter(text: str | list[str], clock: Clock, state: FarState | None = None) -> Limiter:
    shared = None if state is None else SharedCounts(state, clock)
    return Limiter("server", parse_rates(text, "Server"), shared, clock)


async def admitted(limiter: Limiter, calls: int, exchange: Exchange = ANYBODY) -> int:
    return sum([await limiter.refusal(exchange) is None for _ in range(calls)])


# ── what is written ──


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        (None, ()),
        ([], ()),
        ("1/second", (Rate(1, "second", "all"),)),
        ("60/minute per principal", (Rate(60, "minute", "principal"),)),
        (["10/second per address", "1000/day"], (Rate(10, "second", "address"), Rate(1000, "day", "all"))),
        (("5/hour", "5/hour per address"), (Rate(5, "hour", "all"), Rate(5, "hour", "address"))),
    ],
)
def test_what_can_be_written(text: Any, rates: tuple[Rate, ...]) -> None:
    assert parse_rates(text, "Server") == rates


@pytest.mark.parametrize(
    "text",
    ["", "60", "60/min", "60 / minute", "0/minute", "-1/minute", "1.5/minute", "60/minutes", "60/minute per tool",
     "60/Minute", "٣/minute", "1_000/day", "1000000000/day", "60/minute\n", 60, True, {"60/minute"}, [60], [None]],
)  # fmt: skip
def test_what_can_t_be_written(text: Any) -> None:
    with pytest.raises(SetupError, match=r"^tool f: rate_limit=.* is not possible; write it as \"60/minute\": "):
        parse_rates(text, "tool f")


def test_the_same_thing_is_limited_once() -> None:
    with pytest.raises(SetupError, match="limits the same thing twice"):
        parse_rates(["60/minute", "10/minute"], "Server")


# ── how many get through ──

STEPS = st.lists(st.tuples(st.floats(0, 3, allow_nan=False), st.integers(1, 8)), max_size=60)


@pytest.mark.parametrize("is_shared", [False, True])
@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 7), start=st.floats(0, 1e9), steps=STEPS)
def test_never_more_than_allowed(is_shared: bool, count: int, start: float, steps: list[tuple[float, int]]) -> None:
    """In no window more than its number, and between any two moments not more than a bucket would give."""
    clock = Clock(start)
    state = FarState(clock=clock) if is_shared else None
    workers = [limiter(f"{count}/second", clock, state) for _ in range(2 if is_shared else 1)]
    through: list[float] = []

    async def play() -> None:
        for pause, calls in steps:
            clock.now += pause
            refusals = [await workers[number % len(workers)].refusal(ANYBODY) for number in range(calls)]
            through.extend([clock.now] * refusals.count(None))

    asyncio.run(play())
    for moment in through:
        assert sum(int(each) == int(moment) for each in through) <= count
        for later in (each for each in through if each >= moment):
            between = sum(moment <= each <= later for each in through)
            assert between <= count + count * (later - moment) + 1.001


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("text", ["1/second", "7/second", "60/minute", "1000/hour"])
async def test_whoever_never_gives_up_gets_all_of_it_evenly(text: str, is_shared: bool) -> None:
    rate = parse_rates(text, "Server")[0]
    clock = Clock(rate.seconds * 1000.0)
    one = limiter(text, clock, FarState(clock=clock) if is_shared else None)
    assert await admitted(one, rate.count + 5) == rate.count  # at once, after a silence
    for _window in range(3):
        begun, moments = clock.now // rate.seconds, []
        clock.now = (begun + 1) * rate.seconds
        for step in range(rate.count * 4):
            clock.now = (begun + 1 + step / (rate.count * 4)) * rate.seconds
            if await one.refusal(ANYBODY) is None:
                moments.append(step)
        assert len(moments) == rate.count
        assert max((b - a for a, b in itertools.pairwise(moments)), default=0) <= 5


@pytest.mark.parametrize("is_shared", [False, True])
async def test_there_is_no_second_helping_around_the_end_of_a_window(is_shared: bool) -> None:
    clock = Clock(1000 * 60 - 0.5)
    one = limiter("60/minute", clock, FarState(clock=clock) if is_shared else None)
    assert await admitted(one, 100) == 60
    clock.now += 1
    assert await admitted(one, 100) <= 1
    clock.now += 29.5
    assert await admitted(one, 100) in (29, 30)


@pytest.mark.parametrize("is_shared", [False, True])
@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 5), start=st.floats(0, 1e6), pauses=st.lists(st.floats(0, 2), max_size=8))
def test_who_waits_as_told_gets_through(is_shared: bool, count: int, start: float, pauses: list[float]) -> None:
    clock = Clock(start)
    one = limiter(f"{count}/second", clock, FarState(clock=clock) if is_shared else None)

    async def play() -> None:
        for pause in pauses:
            clock.now += pause
            while (refusal := await one.refusal(ANYBODY)) is None:
                pass
            assert 0 < refusal.wait <= 1
            clock.now += refusal.wait + 1e-6
            assert await one.refusal(ANYBODY) is None

    asyncio.run(play())


async def test_a_clock_that_is_set_back() -> None:
    clock = Clock()
    one = limiter("2/minute", clock)
    assert await admitted(one, 3) == 2
    clock.now -= 30
    assert await admitted(one, 3) == 0
    clock.now -= 7200
    assert await admitted(one, 3) == 2


async def test_of_several_limits_each_holds_and_a_refused_call_counts_for_none() -> None:
    for state in (None, FarState(clock=(clock := Clock(1000 * 86_400.0)))):
        one = limiter(["2/second", "5/minute"], clock, state)
        assert await admitted(one, 10) == 2
        clock.now += 2
        assert await admitted(one, 10) == 2
        clock.now += 2
        assert await admitted(one, 10) == 1
        refusal = await one.refusal(ANYBODY)
        assert refusal is not None
        assert refusal.rate.unit == "minute"


# ── who is counted ──


@pytest.mark.parametrize(
    ("text", "first", "second", "is_the_same"),
    [
        ("1/day", caller("ada"), caller("bob"), True),
        ("1/day per principal", caller("ada", "10.0.0.1"), caller("ada", "10.0.0.2"), True),
        ("1/day per principal", caller("ada", "10.0.0.1"), caller("bob", "10.0.0.1"), False),
        ("1/day per principal", caller(None, "10.0.0.1"), caller(None, "10.0.0.2"), False),
        ("1/day per principal", caller("10.0.0.1"), caller(None, "10.0.0.1"), False),
        ("1/day per principal", caller("anonymous"), caller(), False),
        ("1/day per address", caller("ada", "10.0.0.1"), caller("bob", "10.0.0.1"), True),
        ("1/day per address", caller(None, "2001:db8::1"), caller(None, "2001:db8::ffff:2"), True),
        ("1/day per address", caller(None, "2001:db8::1"), caller(None, "2001:db8:0:1::1"), False),
        ("1/day per address", caller(None, "::ffff:10.0.0.1"), caller(None, "10.0.0.1"), True),
        ("1/day per address", caller(None, "fe80::1%eth0"), caller(None, "fe80::2%eth1"), True),
        ("1/day per address", caller(None, "some:thing"), caller(None, "some:other"), False),
        ("1/day per address", caller(), caller(), True),
    ],
)
async def test_who_shares_a_limit(text: str, first: Exchange, second: Exchange, is_the_same: bool) -> None:
    one = limiter(text, Clock())
    assert await one.refusal(first) is None
    assert (await one.refusal(second) is not None) == is_the_same


ADA = Principal(subject="ada", client="editor", issuer="https://id.example.org", scopes=frozenset({"read"}))


@pytest.mark.parametrize(
    ("other", "is_the_same"),
    [
        ({"scopes": frozenset({"read", "write"}), "claims": {"jti": "2"}, "expires_at": 9.0}, True),  # a newer token
        ({"subject": "bob"}, False),
        ({"client": "terminal"}, False),
        ({"issuer": "https://other.example.org"}, False),
    ],
    ids=["another token", "another user", "another program", "another issuer"],
)
async def test_a_quota_belongs_to_whoever_the_token_names(other: dict[str, Any], is_the_same: bool) -> None:
    """Wherever it comes from: the first is at another address than the second, which is at the same as a third."""
    one = limiter(["1000/second per principal", "1/day per principal"], Clock())
    somebody = Principal(**{**{name: getattr(ADA, name) for name in ("subject", "client", "issuer")}, **other})
    assert await one.refusal(Exchange(NOTHING, NOTHING, principal=ADA, peer=("10.0.0.1", 1))) is None
    second = await one.refusal(Exchange(NOTHING, NOTHING, principal=somebody, peer=("10.0.0.2", 1)))
    assert (second is not None) == is_the_same
    third = await one.refusal(Exchange(NOTHING, NOTHING, principal=Principal(subject="eve"), peer=("10.0.0.2", 1)))
    assert third is None


async def test_callers_are_kept_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_CALLERS", 100)
    one = limiter("1/day per principal", Clock())
    for number in range(1000):
        assert await one.refusal(caller(f"{number}")) is None
        if number:
            assert await one.refusal(caller("0")) is not None  # who calls again and again is not forgotten
    (meter,) = one._meters
    assert len(meter._tallies) == 100


# ── the count that workers share ──


async def test_workers_count_together() -> None:
    clock = Clock()
    state = FarState(clock=clock)
    workers = [limiter("10/minute", clock, state) for _ in range(4)]
    through = await asyncio.gather(*(worker.refusal(ANYBODY) for _ in range(10) for worker in workers))
    assert through.count(None) == 10


async def test_a_call_is_one_trip_and_a_refused_one_none() -> None:
    clock = Clock(6000.0)
    state = FarState(clock=clock)
    one = limiter("100/minute", clock, state)
    assert await admitted(one, 50) == 50
    assert state.calls == {"add": 50, "get": 1}  # once in a window: what was used of the one before
    assert await admitted(one, 1000) == 50
    assert state.calls == {"add": 102, "get": 1}  # the first that was refused is taken back


async def test_refused_calls_do_not_count() -> None:
    clock = Clock(6000.0)
    state = FarState(clock=clock)
    workers = [limiter("10/minute", clock, state) for _ in range(3)]
    for worker in workers:
        await admitted(worker, 20)
    clock.now += 60  # the ten of before are worth nine and a half from here on
    for _ in range(12):
        clock.now += 4.99
        for worker in workers:
            await admitted(worker, 5)
    assert sum(tally.count for worker in workers for tally in worker._meters[0]._tallies.values()) == 10


async def test_no_key_names_a_caller_and_all_expire() -> None:
    clock = Clock()
    state = FarState(clock=clock)
    one = limiter(["1/second per principal", "9/day per principal"], clock, state)
    await one.refusal(caller("s3cret" * 200))
    keys = list(state._entries.things)
    assert len(keys) == 2
    assert not any("s3cret" in key for key in keys)
    clock.now += 3 * 86_400
    assert [await state.get(key) for key in keys] == [None, None]


@pytest.mark.parametrize("value", [b"", b"-5", b"x", b"9" * 4000])
async def test_nothing_in_the_store_is_trusted(value: bytes) -> None:
    clock = Clock(6000.0)
    state = FarState(clock=clock)
    one = limiter("10/minute", clock, state)
    await one.refusal(ANYBODY)
    (key,) = state._entries.things
    await state.put(key, value, ttl=600)
    clock.now += 60 + 59
    assert await admitted(limiter("10/minute", clock, state), 20) in (9, 10)


async def test_in_trouble_each_worker_counts_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    clock = Clock(6000.0)
    state = FarState(clock=clock)
    workers = [limiter("10/minute", clock, state) for _ in range(2)]
    assert [await admitted(worker, 4) for worker in workers] == [4, 4]
    state.break_down()
    state.calls.clear()
    assert [await admitted(worker, 20) for worker in workers] == [6, 6]  # with what each has let through before
    assert state.calls["add"] == 2  # then the store is left in peace for a while
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2  # each of these has a store of its own
    clock.now += 60 + rates.PAUSE
    assert await admitted(workers[0], 20) in (0, 1)
    state.trouble = None
    clock.now += 55
    assert await admitted(workers[0], 20) >= 8
    assert caplog.records[-1].message == "rate limits are counted by all workers together again"


async def test_a_store_without_room_for_one_caller_goes_on_counting_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Or whoever fills it would loosen everybody's quota."""
    state = FarState(max_entries=3)  # of which callers may have two
    clock = Clock()
    workers = [limiter("3/day per principal", clock, state) for _ in range(4)]
    ann, bob, mallory = caller("ann"), caller("bob"), caller("mallory")
    assert [await admitted(workers[0], 1, each) for each in (ann, bob)] == [1, 1]
    assert [await admitted(worker, 5, mallory) for worker in workers] == [3, 3, 3, 3]
    assert sum([await admitted(worker, 5, ann) for worker in workers]) == 2
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "some callers' rates are counted by each worker for itself"
    ] * 4  # once for each of these workers


async def test_a_rate_without_room_leaves_the_others_to_the_store() -> None:
    clock = Clock(86_400 * 10.0)
    state = FarState(max_entries=4, clock=clock)  # of which callers may have three
    texts = ["4/minute per principal", "5/day per principal"]
    workers = [limiter(texts, clock, state) for _ in range(4)]
    ann = caller("ann")
    assert await admitted(workers[0], 1, ann) == 1
    assert await admitted(workers[1], 1, caller("mallory")) == 1  # who takes the last place
    clock.now += 61  # ann's new minute finds none, and her day has one
    assert [await admitted(worker, 9, ann) for worker in workers[:3]] == [4, 0, 0]
    state.calls.clear()
    assert await admitted(workers[3], 9, ann) == 0
    assert state.calls["add"] == 3, "both are counted, and the one that was is taken back"
    (day,) = [await state.get(key) for key in list(state._entries.things) if "/day/" in key]
    assert day is not None
    assert day.value == b"5", "what was refused is taken back"


async def test_a_store_without_room_is_not_in_trouble() -> None:
    clock = Clock()
    state = FarState(max_entries=3, clock=clock)  # of which callers may have two
    workers = [limiter("3/day per principal", clock, state) for _ in range(4)]
    ann, bob = caller("ann"), caller("bob")
    assert [await admitted(workers[0], 1, each) for each in (ann, bob)] == [1, 1]
    state.break_down()
    assert [await admitted(worker, 1, bob) for worker in workers] == [1, 1, 1, 1]
    state.trouble = None
    clock.now += rates.PAUSE + 1
    for worker in workers:  # the one call that looks whether the store is back finds no room there
        assert await admitted(worker, 1, caller("mallory")) == 1
    assert sum([await admitted(worker, 3, ann) for worker in workers]) == 2
    state.break_down()
    await admitted(workers[0], 1, bob)
    state.trouble = None
    clock.now += rates.PAUSE + 1
    assert await workers[0].goes_on("one"), "in this worker's own memory"
    assert not await workers[0].goes_on("one")
    assert not workers[0]._shared._is_away  # type: ignore[union-attr]


async def test_only_one_call_at_a_time_tries_a_store_in_trouble() -> None:
    clock = Clock()
    state = FarState(clock=clock)
    one = limiter("1000/minute", clock, state)
    state.break_down()
    await one.refusal(ANYBODY)
    clock.now += rates.PAUSE
    state.calls.clear()
    assert await asyncio.gather(*(one.refusal(ANYBODY) for _ in range(50))) == [None] * 50
    assert state.calls["add"] == 1


# ── rounds ──


async def test_a_call_goes_on_once_with_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_CALLERS", 3)
    for state in (None, FarState()):
        one = limiter("1/day", Clock(), state)
        assert [await one.goes_on(text) for text in ("a", "a", "b", "half \ud800", "a")] == [
            True, False, True, True, False,
        ]  # fmt: skip
    state.break_down()
    assert [await one.goes_on(text) for text in "cc"] == [True, False]
