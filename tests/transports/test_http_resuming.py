"""Coming back for the rest of an answer: by `Last-Event-ID`, after a broken connection."""

import pytest
from polling_stage import said

from dovetail import Context
from dovetail.state.memory import MemoryState
from dovetail.transports.event_store import ANSWER_LOST
from http_serving import endpoint_of, serving, settle, until
from http_stage import HANDSHAKE, Stage, text_of
from http_wire import HttpWire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


# ── a connection that broke ──


@pytest.mark.parametrize("breaks", ["leave", "cut"])
@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-15", "SH-23", "SH-24", "CAN-8")
async def test_the_answer_waits_for_who_comes_back(version: str, breaks: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        call = wire.start_call("tell")
        while not (event := await call.event()).data:
            pass
        if breaks == "cut":
            await call.cut()
        else:
            call.leave()
        stage.go.set()
        await until(lambda: not endpoint_of(app)._calls.here)
        rest = await wire.get(event.id).done()
        assert rest.status == 200
        assert rest.headers["content-type"] == "text/event-stream"
        assert rest.headers["x-accel-buffering"] == "no"
        assert said(rest) == ["second", "told"]
        assert rest.sent[-1]["more_body"] is False


async def test_whoever_comes_back_while_it_runs_gets_the_rest_as_it_comes() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell")
        first = await call.event()
        call.leave()
        rest = wire.get(first.id)
        assert (await rest.message())["params"]["data"] == "first"
        await settle()
        assert not rest.ended
        stage.go.set()
        await rest.done()
        assert said(rest) == ["first", "second", "told"]


async def test_whoever_comes_back_twice_gets_the_same_twice() -> None:
    stage = Stage()
    stage.go.set()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = await wire.call("tell")
        for event in call.events:
            rest = [(await wire.get(event.id).done()) for _ in range(2)]
            assert said(rest[0]) == said(rest[1])
            assert [each.id for each in rest[0].events[1:]] == [each.id for each in rest[1].events[1:]]
            remaining = call.events[call.events.index(event) + 1 :]
            assert [each.data for each in rest[0].events if each.data] == [each.data for each in remaining]


async def test_the_newest_connection_owns_the_rest() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell", {"times": 0})
        first = await call.event()
        older = wire.get(first.id)
        await older.event()
        await call.done()  # the one that it came by was closed
        newer = wire.get(first.id)
        await newer.event()
        await older.done()
        stage.go.set()
        await newer.done()
        assert said(newer) == ["second", "told"]
        assert older.messages == call.messages == []


@pytest.mark.rule("SH-21")
async def test_no_two_events_of_a_session_have_the_same_id() -> None:
    stage = Stage()
    stage.go.set()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        calls = [await wire.call("tell") for _ in range(3)]
        ids = {event.id: event.data for call in calls for event in call.events}
        assert len(ids) == 12
        for call in calls:
            for _ in range(2):
                for event in (await wire.get(call.events[0].id).done()).events:
                    if event.id in ids:  # the same event, sent again
                        assert ids[event.id] == event.data != b""
                    else:
                        assert event.data == b""
                    ids[event.id] = event.data


async def test_a_priming_event_is_a_place_to_come_back_to() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell")
        await call.event()
        last = (await call.event()).id
        call.leave()
        for _ in range(3):
            tail = wire.get(last)
            last = (await tail.event()).id
            assert last.count(".") == 2
            tail.leave()
            await tail.done()
        stage.go.set()
        assert said(await wire.get(last).done()) == ["second", "told"]


# ── what is not there ──


@pytest.mark.parametrize(
    "id",
    ["x", "abc.1", "1.1", ".1", "changes", "changes.-1", "changes.1.2.3", "é.1", "a" * 40 + ".1", "b.1234567890123456"],
)
async def test_an_id_that_is_none_of_ours(id: str) -> None:
    async with serving(Stage().server) as app:
        wire = await HttpWire.session(app)
        refused = await wire.get(id).done()
        assert refused.status == 400
        assert refused.json["error"]["code"] == -32600
        assert "Last-Event-ID" in refused.json["error"]["message"]


@pytest.mark.rule("SH-23")
async def test_an_event_of_another_session_is_unknown() -> None:
    stage = Stage()
    stage.go.set()
    async with serving(stage.server) as app:
        ann, bob = await HttpWire.session(app), await HttpWire.session(app)
        call = await ann.call("tell")
        for event in call.events:
            assert (await bob.get(event.id).done()).status == 400
        stage.go.clear()
        running = ann.start_call("work")
        primed = await running.event()
        assert (await bob.get(primed.id).done()).status == 400
        stage.go.set()
        assert text_of((await running.done()).answer) == "done"


@pytest.mark.rule("SH-23")
async def test_an_event_that_has_not_happened_is_unknown() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell")
        stream = (await call.event()).id.split(".")[0]
        await stage.entered.wait()
        assert (await wire.get(f"{stream}.2").done()).status == 400
        stage.go.set()
        await call.done()
        assert (await wire.get(f"{stream}.9").done()).status == 400


async def test_a_json_answer_has_nothing_to_come_back_to() -> None:
    async with serving(Stage().server) as app:
        wire = await HttpWire.session(app)
        await wire.call("add", {"a": 1, "b": 2})
        assert endpoint_of(app)._store.running == {}
        assert app._state.log_bytes == 0


# ── answers that are not kept any more ──


async def fill(wire: HttpWire, times: int) -> None:
    """Other calls need room for what they say."""
    for _ in range(times):
        await wire.call("say", {"size": 5000})


class TalkativeStage(Stage):
    def __init__(self) -> None:
        super().__init__()
        self.server.add_tool(self.say)
        self.go.set()

    async def say(self, ctx: Context, size: int) -> str:
        await ctx.warning("x" * size)
        return "y" * size


@pytest.mark.rule("SH-23")
async def test_whoever_comes_back_for_an_answer_that_is_gone_is_told_so() -> None:
    async with serving(TalkativeStage().server, state=MemoryState(max_log_bytes=100_000)) as app:
        ann, bob = await HttpWire.session(app), await HttpWire.session(app)
        call = await ann.call("tell")
        await fill(bob, 11)
        for event in call.events[:-1]:
            assert (await ann.get(event.id).done()).status == 400
        rest = await ann.get(call.events[-1].id).done()  # it has everything
        assert (rest.status, rest.messages) == (200, [])


async def test_what_is_dropped_of_a_call_that_runs_does_not_keep_its_client_out() -> None:
    stage = TalkativeStage()
    stage.go.clear()
    async with serving(stage.server, state=MemoryState(max_log_bytes=100_000)) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell")
        primed = await call.event()
        await stage.entered.wait()
        await fill(wire, 11)
        rest = wire.get(primed.id)
        await rest.event()
        stage.go.set()
        assert [text_of(each) for each in (await rest.done()).messages if "result" in each] == ["told"]


async def test_an_answer_that_there_is_no_room_for_is_an_error_to_who_comes_back() -> None:
    async with serving(TalkativeStage().server, state=MemoryState(max_log_bytes=4000)) as app:
        wire = await HttpWire.session(app)
        told = await wire.call("tell")
        call = await wire.call("say", {"size": 5000})
        assert text_of(call.answer) == "y" * 5000
        rest = await wire.get(call.events[0].id).done()
        assert rest.answer["error"]["message"] == ANSWER_LOST
        assert text_of((await wire.get(told.events[0].id).done()).answer) == "told"
