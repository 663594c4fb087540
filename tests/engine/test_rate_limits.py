"""Rate limits: how many calls get through, for whom, in whose count, and the error of a caller that comes too often."""

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Client, Context, Server
from dovetail.auth.principal import Principal
from dovetail.engine.rate_limits import COUNTED, STORE_RETRY_DELAY, RateLimiter
from dovetail.engine.request_context import RequestContext
from dovetail.errors import INTERNAL_ERROR, SetupError
from dovetail.registry.registration import Rate, parse_rates
from http_serving import Clock
from remote_state import RemoteState
from server_requests import asking_client, retry
from wire import MODERN, Wire

NOTHING: Any = None


def caller(principal: str | None = None, address: str | None = None) -> RequestContext:
    who = None if principal is None else Principal(subject=principal)
    return RequestContext(NOTHING, NOTHING, principal=who, locate=lambda: address)


ANY_CALLER = caller()


def limiter(text: str | list[str], clock: Clock, state: RemoteState | None = None, **options: Any) -> RateLimiter:
    return RateLimiter("server", parse_rates(text, "Server"), state, clock, **options)


async def admitted(limiter: RateLimiter, calls: int, context: RequestContext = ANY_CALLER) -> int:
    return sum([await limiter.refusal(context) is None for _ in range(calls)])


# ── what is written ──


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        (None, ()),
        ([], ()),
        ("60/minute per principal", (Rate(60, "minute", "principal"),)),
        (("10/second per address", "1000/day"), (Rate(10, "second", "address"), Rate(1000, "day", "all"))),
        (["5/hour", "5/hour per address"], (Rate(5, "hour", "all"), Rate(5, "hour", "address"))),
    ],
)
def test_what_can_be_written(text: Any, rates: tuple[Rate, ...]) -> None:
    assert parse_rates(text, "Server") == rates


@pytest.mark.parametrize(
    "text",
    ["", "60", "60/min", "60 / minute", "0/minute", "-1/minute", "1.5/minute", "60/minutes", "60/minute per tool",
     "60/Minute", "٣/minute", "1_000/day", "1000000000/day", "60/minute\n", 60, True, {"60/minute"}, [60], [None],
     ["60/minute", "10/minute"]],
)  # fmt: skip
def test_what_can_t_be_written_is_found_at_registration(text: Any) -> None:
    with pytest.raises(SetupError, match=r"^Server: rate_limit=.* (is not possible; write it as|limits the same)"):
        Server("limited", rate_limit=text)
    with pytest.raises(SetupError, match=r"work.*rate_limit="):
        Server("limited").tool(rate_limit=text)(work)


# ── how many get through ──

STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 1.0, 7.0, 60.0, -0.2]), st.integers(0, 2), st.sampled_from("ab")),
    max_size=60,
)


@pytest.mark.parametrize("workers", [0, 1, 3])
@given(steps=STEPS, counts=st.tuples(st.integers(1, 4), st.integers(1, 9)))
async def test_as_many_as_a_model_lets_through(workers: int, steps: list[tuple[float, int, str]], counts: Any) -> None:
    """The model: so many in each window of each caller; a refused call counts for none. 0 workers: none share."""
    clock, latest = Clock(), 0.0
    texts = [f"{counts[0]}/second per principal", f"{counts[1]}/minute per principal"]
    state = RemoteState(clock=clock) if workers else None
    limiters = [limiter(texts, clock, state) for _ in range(max(1, workers))]
    used: dict[tuple[str, int, int], int] = {}
    for pause, worker, name in steps:
        clock.now += pause if pause > 0 or clock.now + pause >= latest else 0
        if int(clock.now) < int(latest):
            continue  # that is another test
        latest = max(latest, clock.now)
        windows = [(name, unit, int(clock.now // unit)) for unit in (1, 60)]
        is_in_time = all(used.get(each, 0) < most for each, most in zip(windows, counts, strict=True))
        refusal = await limiters[worker % len(limiters)].refusal(caller(name))
        assert (refusal is None) == is_in_time
        for each in windows if is_in_time else ():
            used[each] = used.get(each, 0) + 1
        if refusal is not None:
            assert 0 < refusal.wait <= refusal.rate.seconds
            end = (clock.now // refusal.rate.seconds + 1) * refusal.rate.seconds
            assert clock.now + refusal.wait == pytest.approx(end)


@pytest.mark.parametrize(("unit", "seconds"), [("second", 1), ("minute", 60), ("hour", 60 * 60), ("day", 24 * 60 * 60)])
async def test_a_limit_ends_with_its_unit_of_time(unit: str, seconds: int) -> None:
    clock = Clock()
    clock.now = 1_000.0 * seconds
    one = limiter(f"2/{unit}", clock)
    assert await admitted(one, 3) == 2
    clock.now += seconds - 0.5
    assert await admitted(one, 3) == 0
    clock.now += 0.5
    assert await admitted(one, 3) == 2


async def test_a_clock_that_is_set_back() -> None:
    clock = Clock()
    clock.sleep(9_020)  # to the beginning of a minute
    one = limiter("2/minute", clock)
    assert await admitted(one, 3) == 2
    clock.now -= 30
    assert await admitted(one, 3) == 0
    clock.now -= 7200
    assert await admitted(one, 3) == 2


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
async def test_who_shares_a_limit(text: str, first: RequestContext, second: RequestContext, is_the_same: bool) -> None:
    one = limiter(text, Clock())
    assert await one.refusal(first) is None
    assert (await one.refusal(second) is not None) == is_the_same


async def test_callers_are_kept_in_bounds() -> None:
    one = limiter("1/day per principal", Clock(), max_callers=100)
    for number in range(200):
        assert await one.refusal(caller(f"{number}")) is None
        if number:
            assert await one.refusal(caller("0")) is not None  # who calls again and again is not forgotten
    assert await one.refusal(caller("1")) is None  # who was silent longest is


# ── the count that workers share ──


async def test_workers_that_count_at_once_let_no_more_through() -> None:
    clock = Clock()
    state = RemoteState(clock=clock)
    workers = [limiter("10/minute", clock, state) for _ in range(4)]
    through = await asyncio.gather(*(worker.refusal(ANY_CALLER) for _ in range(10) for worker in workers))
    assert through.count(None) == 10


async def test_a_call_is_one_trip_and_those_after_a_refusal_none() -> None:
    state = RemoteState(clock=(clock := Clock()))
    one = limiter("100/minute", clock, state)
    assert await admitted(one, 1000) == 100
    assert state.calls == {"add": 100}
    assert await admitted(other := limiter("100/minute", clock, state), 1000) == 0
    assert state.calls == {"add": 101}
    clock.now += 60
    assert await admitted(other, 1000) == 100


async def test_no_key_names_a_caller_and_all_expire() -> None:
    state = RemoteState(clock=(clock := Clock()))
    one = limiter(["1/second per principal", "9/day per principal"], clock, state)
    await one.refusal(caller("s3cret" * 200))
    keys = list(state._entries.rows)
    assert len(keys) == 2
    assert not any("s3cret" in key for key in keys)
    clock.now += 2 * 86_400
    assert [await state.get(key) for key in keys] == [None, None]


async def test_in_trouble_each_worker_counts_on_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    state = RemoteState(clock=(clock := Clock()))
    workers = [limiter("10/minute", clock, state) for _ in range(2)]
    assert [await admitted(worker, 4) for worker in workers] == [4, 4]
    state.break_down()
    state.calls.clear()
    assert [await admitted(worker, 20) for worker in workers] == [6, 2]  # each from what it knows on
    assert state.calls["add"] == 2  # then the store is left in peace for a while
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    clock.now += 60
    assert await asyncio.gather(*(workers[0].refusal(ANY_CALLER) for _ in range(5))) == [None] * 5
    assert state.calls["add"] == 3  # only one call at a time tries it
    state.error = None
    clock.now += STORE_RETRY_DELAY
    assert await admitted(workers[0], 20) == 5
    assert "all again" in caplog.text


async def test_a_store_without_room_for_one_caller_claim_round_counting_the_others() -> None:
    """Or a caller that fills it would loosen the quota of all."""
    clock = Clock()
    state = RemoteState(max_entries=3, clock=clock)  # of which callers may have two
    workers = [limiter("3/day per principal", clock, state) for _ in range(4)]
    ann, bob, mallory = caller("ann"), caller("bob"), caller("mallory")
    assert [await admitted(workers[0], 1, each) for each in (ann, bob)] == [1, 1]
    assert [await admitted(worker, 5, mallory) for worker in workers] == [3, 3, 3, 3]
    assert sum([await admitted(worker, 5, ann) for worker in workers]) == 2


async def test_a_call_claim_round_once_with_each_state() -> None:
    for state in (None, RemoteState()):
        one = limiter("1/day", Clock(), state, max_callers=3)
        texts = ("a", "a", "b", "half \ud800", "a")
        assert [await one.claim_round(text) for text in texts] == [True, False, True, True, False]
    state.break_down()
    assert [await one.claim_round(text) for text in "cc"] == [True, False]


# ── as clients meet them ──


def work() -> str:
    return "done"


def offering(**options: Any) -> Server:
    server = Server("limited", **options)
    server.add_tool(work)
    server.add_prompt(lambda: "hello", name="greet")
    server.add_resource("note://one", lambda: "text", name="one")
    return server


REQUESTS: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "work"}, "prompts/get": {"name": "greet"}, "resources/read": {"uri": "note://one"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "x", "value": ""}},
    "tools/list": {}, "prompts/list": {}, "resources/list": {}, "resources/templates/list": {}, "ping": {},
    "logging/setLevel": {"level": "info"},
}  # fmt: skip


async def test_which_requests_count() -> None:
    for method, params in REQUESTS.items():
        async with Wire(offering(rate_limit="1/day", declare=["completions"]), "2025-11-25") as wire:
            answers = [await wire.exchange(wire.request(method, params)) for _ in range(3)]
        assert ["error" in answer for answer in answers] == [False, *[method in COUNTED] * 2], method


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_a_caller_that_comes_too_often_is_refused_with_the_reason(version: str) -> None:
    server = offering(rate_limit="3/day")
    server.add_tool(work, name="rare", rate_limit="1/hour per principal")
    async with Wire(server, version) as wire:
        served, refused = [await wire.ask("tools/call", {"name": "rare"}) for _ in range(2)]
        assert (served["isError"], refused["isError"]) == (False, True)
        text = "The tool rare takes 1 call per hour from each caller; try again in "  # for the model
        assert refused["content"][0]["text"].startswith(text)
        assert (await wire.ask("tools/call", {"name": "work"}))["isError"] is False
        error = await wire.refusal("tools/call", {"name": "work"})
    seconds = error["data"]["retryAfter"]
    assert 0 < seconds <= 86_400
    text = f"This server takes 3 requests per day from all callers together; try again in {seconds} s."
    assert (error["code"], error["message"]) == (INTERNAL_ERROR, text)


@pytest.mark.parametrize("is_shared", [False, True])
async def test_the_rounds_of_a_call_are_one_call_and_wrong_arguments_do_not_count(is_shared: bool) -> None:
    server = Server("limited")

    @server.tool(rate_limit="1/day")
    async def greet(ctx: Context, times: int) -> str:
        return " ".join([str((await ctx.elicit(f"{n}?", str)).data) for n in range(times)])

    if is_shared:
        server.engine.state = RemoteState()
    params: dict[str, Any] = {"name": "greet", "arguments": {"times": 2}}
    async with asking_client(server) as client:
        wrong = await client.request("tools/call", {"name": "greet", "arguments": {"times": "?"}})
        assert wrong["isError"] is True
        again = {**params, **retry(await client.request("tools/call", params), {"0?": "Ada"})}
        last = {**params, **retry(await client.request("tools/call", again), {"1?": "Lovelace"})}
        assert (await client.request("tools/call", last))["content"][0]["text"] == "Ada Lovelace"
        for repeated in (again, last, params):  # that would be as good as another call
            assert (await client.request("tools/call", repeated))["isError"] is True


async def test_two_servers_with_one_state_count_together_and_others_never_ask_it() -> None:
    state = RemoteState()
    servers = [offering(rate_limit="3/day") for _ in range(2)]
    unlimited = offering()
    for server in (*servers, unlimited):
        server.add_tool(lambda: "", name="rare", rate_limit="1/day")
        server.engine.state = state
    async with Client(servers[0]) as one, Client(servers[1]) as other, Client(unlimited) as third:
        assert not (await one.call_tool("rare", raise_on_error=False)).is_error
        assert (await other.call_tool("rare", raise_on_error=False)).is_error
        await other.call_tool("work")
        with pytest.raises(Exception, match="This server takes 3 requests per day"):
            await one.call_tool("work")
        state.calls.clear()
        await third.call_tool("work")
        assert not state.calls
