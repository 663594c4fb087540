"""Several workers, one server: any request of a session may come to any of them, and one of them may be lost."""

import asyncio
import json
from pathlib import Path

import pytest
from http_clients import (
    CAPABILITIES_KEY,
    TOOLS,
    Fleet,
    FleetOf,
    OldClient,
    SharedState,
    ask,
    given,
    leave,
    no_answer,
    reply,
    said,
)

from asking_stage import AskingStage, answer_to
from dovetail import Context, Server
from dovetail.auth import Principal
from dovetail.state.sqlite import SqliteState
from dovetail.transports.event_store import WORKER_LOST
from http_serving import Clock, endpoint_of, sessions_of, settle, until
from http_stage import HANDSHAKE, Stage, text_of
from http_wire import Exchange, HttpWire
from replaying import EVERYTHING, retry

JSON_ONLY = {"accept": "application/json"}


@pytest.fixture
async def asking_fleet(fleet_of: FleetOf) -> Fleet:
    return await fleet_of(AskingStage)


@pytest.fixture(params=["memory", "sqlite"])
async def on_any_store(request: pytest.FixtureRequest, fleet_of: FleetOf, tmp_path: Path) -> Fleet:
    return await fleet_of(Stage, store=SqliteState(tmp_path / "state.sqlite") if request.param == "sqlite" else None)


# ── any request, any worker ──


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_session_works_and_has_its_settings_everywhere(fleet: Fleet, version: str) -> None:
    wires = await fleet.session(version)
    for wire in wires:
        assert text_of((await wire.call("add", {"a": 1, "b": 2})).answer) == "3"
    await wires[0].ask("logging/setLevel", {"level": "error"})
    fleet.stages[1].go.set()
    assert "told" in text_of((await wires[1].call("tell")).json)  # without a warning before


async def test_the_end_of_a_session_ends_its_calls_and_streams_everywhere(fleet: Fleet) -> None:
    wires = await fleet.session()
    stream = await wires[1].get().started()
    call = await wires[0].start_call("work").started()  # it takes its time
    assert (await wires[2].delete()).status == 204
    await fleet.stages[0].cancelled.wait()
    await asyncio.gather(call.done(), stream.done())
    for wire in wires:
        assert (await wire.start("ping").done()).status == 404


async def test_the_rest_of_an_answer_is_had_elsewhere(fleet: Fleet) -> None:
    wires = await fleet.session()
    call = wires[0].start_call("tell", {"times": 2}, id="t")
    await call.message()
    place = call.events[-1].id
    assert (await call.message())["params"]["data"] == "first"
    await call.cut()
    rest = wires[1].get(place)
    assert (await rest.message())["params"]["data"] == "first"
    fleet.stages[0].go.set()
    assert (await rest.message())["params"]["data"] == "second"
    assert text_of(await rest.message()) == "told"
    await rest.done()
    again = await wires[2].get(place).done()
    assert again.messages == rest.messages


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_question_is_heard_and_answered_anywhere(asking_fleet: Fleet, version: str) -> None:
    wires = await asking_fleet.session(version, capabilities={"roots": {}})
    call = ask(wires[0])
    await reply(wires[2], answer_to(await call.message(), {"roots": []}))
    assert given(await call.done()) == [{"roots": []}]
    call = ask(wires[0], times=2)
    first = await call.message()
    await call.cut()
    rest = wires[1].get(call.events[-1].id)  # where the rest of the answer is
    for question in (first, await rest.message()):
        await reply(wires[2], answer_to(question, {}))
    assert given(await rest.done()) == [{}, {}]


async def test_a_visit_is_told_over_from_anywhere(fleet: Fleet) -> None:
    @fleet.stages[0].server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("Sign in", "https://example.com/in", elicitation_id="page")).action

    wires = await fleet.session(capabilities={"elicitation": {"url": {}}})
    stream = await wires[1].get().started()
    call = wires[0].start_call("visit")
    await reply(wires[2], answer_to(await call.message(), {"action": "accept"}))
    assert text_of((await call.done()).answer) == "accept"
    assert await fleet.stages[2].server.complete_elicitation("page")
    assert (await stream.message())["method"] == "notifications/elicitation/complete"
    assert not await fleet.stages[2].server.complete_elicitation("page")
    await leave(stream)


# ── from one GET stream to the next ──


@pytest.mark.parametrize("key", ["session/", "hears/"])
async def test_an_older_stream_ends_also_if_trouble_meets_its_question_for_a_newer_one(fleet: Fleet, key: str) -> None:
    wires = await fleet.session()
    older = await wires[0].get().started()
    await settle(50)
    fleet.views[0].fate = no_answer("get", key)
    newer = await wires[1].get().started()
    await settle(50)
    fleet.views[0].fate = None  # there was no outage that all are told of
    await older.done()
    fleet.stages[2].change_tools()
    await newer.message()
    assert older.messages == []
    await leave(newer)


async def test_at_another_worker_it_misses_nothing(on_any_store: Fleet) -> None:
    """What was told since the last beat may be told once more."""
    fleet = on_any_store
    wires = await fleet.session()
    streams = [await wires[0].get().started()]
    for number in range(6):
        fleet.stages[number % 3].change_tools()
        await streams[-1].message()
        streams.append(await wires[(number * 7) % 3].get().started())
        await streams[-2].done()
    last = streams[-1]
    before = len(last.messages)
    fleet.stages[1].change_tools()
    await last.until(lambda: len(last.messages) > before)
    await leave(last)


async def test_of_streams_that_come_at_once_one_is_left(on_any_store: Fleet) -> None:
    wires = await on_any_store.session()
    streams = [wires[at].get() for at in (0, 1, 2, 0, 1, 2)]
    await asyncio.gather(*(stream.started() for stream in streams))
    await until(lambda: sum(not stream.ended for stream in streams) == 1)
    on_any_store.stages[0].change_tools()
    (left,) = (stream for stream in streams if not stream.ended)
    assert (await left.message())["method"] == TOOLS
    await leave(left)


# ── streams whose worker is killed ──


def beats(stream: Exchange) -> int:
    return stream.raw.count(b": keep-alive")


async def test_what_was_told_before_the_last_beat_is_not_told_again(fleet_of: FleetOf) -> None:
    fleet = await fleet_of(Stage, keep_alive=0.05)
    wires = await fleet.session()
    older = await wires[0].get().started()
    fleet.stages[2].change_tools()
    await older.message()
    told = beats(older)
    await older.until(lambda: beats(older) >= told + 2)
    fleet.views[0].fate = no_answer()  # as if it were killed: nobody hears what it has told
    newer = await wires[1].get().started()
    await settle(100)
    assert newer.messages == []
    await leave(newer, older)


async def test_beats_without_news_leave_the_session_alone(fleet_of: FleetOf) -> None:
    fleet = await fleet_of(Stage, keep_alive=0.02)
    wires = await fleet.session()
    stream = await wires[0].get().started()
    kept = []
    for _ in range(4):  # which this session did not ask for
        fleet.stages[1].server.notify_resource_updated("test://one")
        told = beats(stream)
        await stream.until(lambda told=told: beats(stream) >= told + 3)
        kept.append(await fleet.store.get(f"session/{wires[0].session_id}"))
    assert kept[-1] is not None
    assert kept[-1] == kept[-2]
    await leave(stream)


@pytest.mark.parametrize("is_answered", [True, False])
async def test_only_an_open_question_is_asked_again(asking_fleet: Fleet, is_answered: bool) -> None:
    wires = await asking_fleet.session(capabilities={"roots": {}})
    stream = await wires[0].get().started()
    call = wires[1].start("tools/call", {"name": "ask", "arguments": {}}, headers=JSON_ONLY)
    question = await stream.message()
    answer = json.dumps(answer_to(question, {"roots": []})).encode()
    if is_answered:
        await wires[2].raw("POST", answer).done()
        await call.done()
    asking_fleet.views[0].fate = no_answer()
    again = await wires[1].get().started()
    await settle(100)
    assert again.messages == ([] if is_answered else [question])
    await wires[2].raw("POST", answer).done()
    await call.done()
    await leave(again, stream)


# ── a worker is lost ──


async def test_whoever_waits_for_a_lost_worker_is_told_once(fleet: Fleet) -> None:
    wires, rest = await fleet.resumed_elsewhere()
    primed = rest.events[0].id
    other = wires[2].get(primed)
    await other.event()
    await fleet.lose(0)
    for each in (rest, other):
        await each.done()
        assert (each.answer["id"], each.answer["error"]["message"]) == ("t", WORKER_LOST)
    fleet.stages[0].go.set()  # it lives after all, and comes too late
    await settle(100)
    again = await wires[1].get(primed).done()
    assert [each for each in again.messages if "id" in each] == [rest.answer]


async def test_a_call_that_said_nothing_before_its_worker_was_lost(fleet: Fleet) -> None:
    wires = await fleet.session()
    call = wires[0].start_call("work", id=7)
    primed = (await call.event()).id
    await call.cut()
    await fleet.lose(0)
    (lost,) = (await wires[1].get(primed).done()).messages
    assert (lost["id"], lost["error"]["message"]) == (7, WORKER_LOST)
    fleet.stages[0].go.set()


async def test_a_worker_that_only_could_not_show_itself_is_not_lost(fleet: Fleet) -> None:
    """The store stood still for longer than a lease lasts."""
    _, rest = await fleet.resumed_elsewhere()
    alive = endpoint_of(fleet.apps[0]).member
    await fleet.store.delete(f"worker/{alive.id}")
    for _ in range(5):
        fleet.store.come_back()
        await settle(100)
    await fleet.store.put(f"worker/{alive.id}", b"", ttl=60)
    fleet.stages[0].go.set()
    assert said(await rest.done()) == ["first", "second", "told"]


async def test_news_of_the_session_do_not_hide_that_the_worker_is_lost(fleet: Fleet) -> None:
    wires, rest = await fleet.resumed_elsewhere()

    async def news() -> None:
        while True:
            await fleet.store.publish(f"session/{wires[0].session_id}")
            await asyncio.sleep(0.005)

    telling = asyncio.create_task(news())
    await fleet.lose(0)
    await rest.done(3)
    assert "error" in rest.answer
    telling.cancel()
    await asyncio.wait([telling])


async def test_a_drain_ends_it_properly(fleet: Fleet) -> None:
    wires, rest = await fleet.resumed_elsewhere()
    await asyncio.wait_for(fleet.apps[1].drain(5), 5)
    await rest.done()
    assert rest.sent[-1]["more_body"] is False
    assert len(rest.messages) == 1
    fleet.stages[0].go.set()
    again = await wires[2].get(rest.events[-1].id).done()
    assert "result" in again.answer


# ── HTTP+SSE ──


async def test_what_an_sse_client_posts_elsewhere_reaches_its_stream(fleet: Fleet) -> None:
    client = await OldClient(fleet.apps[0]).open()
    client.wire.app = fleet.apps[1]
    await client.shake_hands()
    client.wire.app = fleet.apps[2]
    assert await client.call("add", a=1, b=2) == "3"
    await client.leave()
    await settle()
    assert (await client.ping()).status == 404


# ── what does not need the store ──


async def test_a_plain_call_does_not_touch_the_store(fleet: Fleet) -> None:
    endpoint_of(fleet.apps[0]).member._renewing.cancel()
    touched = []

    async def fate(name: str, key: str) -> bool:
        touched.append(name)
        return True

    fleet.views[0].fate = fate
    assert text_of((await HttpWire(fleet.apps[0]).call("add", {"a": 1, "b": 2})).answer) == "3"
    assert touched == []


# ── whose it is ──


PEOPLE = {
    "anns-token": Principal(subject="ann", scopes=frozenset({"notes:read"})),
    "anns-other": Principal(subject="ann"),
    "bobs-token": Principal(subject="bob", scopes=frozenset({"notes:read"})),
}
CAPABILITIES = {"io.modelcontextprotocol/clientCapabilities": EVERYTHING}


async def verify(token: str) -> Principal | None:
    return PEOPLE.get(token)


def bank() -> Server:
    server = Server("bank", version="1.0.0", auth=verify)

    @server.tool
    async def pay(ctx: Context) -> str:
        return f"paid: {(await ctx.elicit('Sure?', str)).data}"

    @server.tool
    async def whose(ctx: Context) -> str:
        assert ctx.principal is not None
        return str(ctx.principal.subject)

    return server


def bearer(token: str) -> dict[str, str | None]:
    return {"authorization": f"Bearer {token}"}


class Bank:
    def __init__(self) -> None:
        self.server = bank()


@pytest.fixture
async def banks(fleet_of: FleetOf) -> Fleet:
    return await fleet_of(Bank, count=2)


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SEC-7", "SEC-12")
async def test_a_session_is_its_owners_at_every_worker(banks: Fleet, version: str) -> None:
    opened = await HttpWire.session(banks.apps[0], version, headers=bearer("anns-token"))

    def at_the_other(token: str) -> HttpWire:
        wire = HttpWire(banks.apps[1], version, headers=bearer(token))
        wire.session_id = opened.session_id
        return wire

    stranger = at_the_other("bobs-token")
    for refused in (await stranger.call("whose"), await stranger.get().done(), await stranger.delete()):
        assert refused.status == 404
    assert text_of((await at_the_other("anns-other").call("whose")).answer) == "ann"


@pytest.mark.rule("SEC-8")
async def test_a_request_state_is_its_owners_at_every_worker(banks: Fleet) -> None:
    call = {"name": "pay", "arguments": {}, "_meta": {CAPABILITIES_KEY: EVERYTHING}}
    asked = await HttpWire(banks.apps[0], headers=bearer("anns-token")).ask("tools/call", call)
    again = {**call, **retry(asked, {"Sure?": "yes"})}
    stranger = await HttpWire(banks.apps[1], headers=bearer("bobs-token")).post("tools/call", again)
    assert stranger.answer["error"]["code"] == -32602
    paid = await HttpWire(banks.apps[1], headers=bearer("anns-other")).post("tools/call", again)
    assert text_of(paid.answer) == "paid: yes"


async def test_an_sse_stream_is_its_owners_at_every_worker(banks: Fleet) -> None:
    """With the same rights too: what is posted is done with those of the stream."""
    client = await OldClient(banks.apps[0], **bearer("anns-token")).open()
    for app in banks.apps:
        client.wire.app = app
        statuses = [(await client.ping(headers=bearer(token))).status for token in PEOPLE]
        assert statuses == [202, 404, 404]
    await client.leave()


# ── `max_sessions`: each worker bounds those that it opened ──

SILENT = 245  # seconds: a minute, and a tenth of `session_timeout` in which use elsewhere may go untold


@pytest.fixture
async def bounded(fleet_of: FleetOf, clock: Clock) -> Fleet:
    """Two workers that open two sessions each."""
    fleet = await fleet_of(Stage, count=2, store=SharedState(clock=clock), max_sessions=2)
    for app in fleet.apps:
        sessions_of(app)._clock = clock
    return fleet


async def used(wire: HttpWire) -> int:
    return (await wire.call("add", {"a": 1, "b": 1})).status


async def alive(fleet: Fleet, *wires: HttpWire) -> list[bool]:
    return [await fleet.store.get(f"session/{wire.session_id}") is not None for wire in wires]


async def test_what_is_used_at_another_worker_stays_and_what_is_silent_goes(bounded: Fleet, clock: Clock) -> None:
    (_, busy), (silent, there) = [await bounded.session() for _ in range(2)]
    stream = await there.get().started()
    clock.sleep(SILENT)
    assert await used(busy) == 200
    clock.sleep(50)
    newcomer, _ = await bounded.session()
    assert await alive(bounded, busy, silent, newcomer) == [True, False, True]
    assert [await used(wire) for wire in (silent, busy)] == [404, 200]
    await stream.done()
