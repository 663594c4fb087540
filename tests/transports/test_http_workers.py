"""Several workers of one server: any worker may get any request of a session, and a worker may be lost."""

import asyncio
from pathlib import Path

import pytest
from http_clients import (
    INVALID_REQUEST,
    TOOLS,
    Fleet,
    FleetOf,
    OldClient,
    ask,
    check_refusal,
    given,
    leave,
    no_answer,
    reply,
    said,
)

from dovetail import Context
from dovetail.auth import Principal
from dovetail.state.sqlite import SqliteState
from dovetail.transports.http.event_store import WORKER_LOST
from http_serving import Stage, endpoint_of, settle, until
from http_wire import HANDSHAKE, HttpWire, text_of
from server_requests import AskingStage, answer_to


@pytest.fixture
async def asking_fleet(fleet_of: FleetOf) -> Fleet:
    return await fleet_of(AskingStage)


@pytest.fixture(params=["memory", "sqlite"])
async def on_any_store(request: pytest.FixtureRequest, fleet_of: FleetOf, tmp_path: Path) -> Fleet:
    return await fleet_of(Stage, store=SqliteState(tmp_path / "state.sqlite") if request.param == "sqlite" else None)


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_session_works_and_has_its_settings_everywhere(fleet: Fleet, version: str) -> None:
    wires = await fleet.session(version)
    for wire in wires:
        assert text_of((await wire.call("add", {"a": 1, "b": 2})).answer) == "3"
    await wires[0].ask("logging/setLevel", {"level": "error"})
    fleet.stages[1].go.set()
    assert "warned" in text_of((await wires[1].call("warn")).json)  # without a warning before


async def test_the_end_of_a_session_ends_its_calls_and_streams_everywhere(fleet: Fleet) -> None:
    wires = await fleet.session()
    stream = await wires[1].get().started()
    call = await wires[0].start_call("work").started()  # it takes its time
    assert (await wires[2].delete()).status == 204
    await fleet.stages[0].cancelled.wait()
    await asyncio.gather(call.done(), stream.done())
    for wire in wires:
        assert (await wire.start("ping").done()).status == 404


@pytest.mark.parametrize("look", [1, 2])
@pytest.mark.rule("SH-29")
async def test_no_stream_begins_in_a_session_that_another_worker_ends_meanwhile(fleet: Fleet, look: int) -> None:
    """Whenever its worker looks for it: 404 tells the client to begin another one."""
    wires, looks = await fleet.session(), list[str]()

    async def end_the_session(asked: str, key: str) -> bool:
        if asked == "get" and key == f"session/{wires[0].session_id}":
            looks.append(key)
            if len(looks) == look:
                assert (await wires[0].delete()).status == 204
        return True

    fleet.views[1].fate = end_the_session
    check_refusal(await wires[1].get().done(), 404, INVALID_REQUEST)
    assert len(looks) == look


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_question_is_received_and_answered_at_any_worker(asking_fleet: Fleet, version: str) -> None:
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


async def test_the_end_of_a_url_elicitation_reaches_the_session_from_any_worker(fleet: Fleet) -> None:
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


async def test_at_another_worker_it_misses_nothing(on_any_store: Fleet) -> None:
    """What was sent since the last beat may be sent once more."""
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


async def test_what_was_sent_before_the_last_beat_is_not_sent_again(fleet_of: FleetOf) -> None:
    fleet = await fleet_of(Stage, keep_alive=0.05)
    wires = await fleet.session()
    older = await wires[0].get().started()
    fleet.stages[2].change_tools()
    await older.message()
    comments = older.raw.count(b": keep-alive")
    await older.until(lambda: older.raw.count(b": keep-alive") >= comments + 2)
    fleet.views[0].fate = no_answer  # as if it were killed: no worker gets what it has published
    newer = await wires[1].get().started()
    await settle(100)
    assert newer.messages == []
    await leave(newer, older)


@pytest.mark.parametrize("is_answered", [True, False])
async def test_only_an_open_question_is_asked_again(asking_fleet: Fleet, is_answered: bool) -> None:
    wires = await asking_fleet.session(capabilities={"roots": {}})
    stream = await wires[0].get().started()
    call = ask(wires[1], headers={"accept": "application/json"})
    question = await stream.message()
    if is_answered:
        await reply(wires[2], answer_to(question, {"roots": []}))
        await call.done()
    asking_fleet.views[0].fate = no_answer
    again = await wires[1].get().started()
    await settle(100)
    assert again.messages == ([] if is_answered else [question])
    await reply(wires[2], answer_to(question, {"roots": []}))
    await call.done()
    await leave(again, stream)


async def test_clients_that_wait_for_a_lost_worker_are_notified_once(fleet: Fleet) -> None:
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


async def test_a_call_that_ends_while_its_worker_is_checked_is_read_to_its_end(fleet: Fleet) -> None:
    wires = await fleet.session()
    call = wires[0].start_call("warn")
    await call.message()
    await call.cut()
    rest = wires[1].get(call.events[0].id)

    async def end_the_call(asked: str, key: str) -> bool:
        if asked == "get" and key.startswith("stream-request/") and rest.sent:
            fleet.stages[0].go.set()
            await until(lambda: not endpoint_of(fleet.apps[0]).calls.by_id)
        return True

    fleet.views[1].fate = end_the_call
    assert said(await rest.done()) == ["first", "second", "warned"]


async def test_a_drain_ends_it_properly(fleet: Fleet) -> None:
    wires, rest = await fleet.resumed_elsewhere()
    await asyncio.wait_for(fleet.apps[1].drain(5), 5)
    await rest.done()
    assert rest.sent[-1]["more_body"] is False
    assert len(rest.messages) == 1
    fleet.stages[0].go.set()
    again = await wires[2].get(rest.events[-1].id).done()
    assert "result" in again.answer


PEOPLE = {
    "anns-token": Principal(subject="ann", scopes=frozenset({"notes:read"})),
    "anns-other": Principal(subject="ann"),
    "bobs-token": Principal(subject="bob", scopes=frozenset({"notes:read"})),
}


class Guarded(Stage):
    def __init__(self) -> None:
        super().__init__(auth=self.verify)

    async def verify(self, token: str) -> Principal | None:
        return PEOPLE.get(token)


@pytest.mark.rule("SEC-7", "SEC-12")
async def test_sessions_and_sse_streams_are_their_owners_at_every_worker(fleet_of: FleetOf) -> None:
    """A stream of SSE with the same rights too: what is posted is done with those of the stream."""
    guarded = await fleet_of(Guarded, count=2)
    bearers: list[dict[str, str | None]] = [{"authorization": f"Bearer {token}"} for token in PEOPLE]
    opened = await HttpWire.session(guarded.apps[0], headers=bearers[0])
    client = await OldClient(guarded.apps[0], **bearers[0]).open()
    client.wire.app = guarded.apps[1]
    await client.shake_hands()  # what is posted elsewhere reaches its stream
    assert await client.call("add", a=1, b=2) == "3"
    for app in guarded.apps:
        client.wire.app = opened.app = app
        assert [(await client.ping(headers=bearer)).status for bearer in bearers] == [202, 404, 404]
        statuses = [(await opened.post("ping", headers=bearer)).status for bearer in bearers]
        assert statuses == [200, 200, 404]
    await client.leave()
    await settle()
    assert (await client.ping()).status == 404
