"""Coming back for the rest of an answer: by `Last-Event-ID`, after a broken connection or one that was closed."""

import asyncio
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dovetail import Context
from dovetail.state.memory import MemoryState
from dovetail.transports import event_log, sure_log
from http_serving import PausingState, endpoint_of, serving, settle, until
from http_stage import HANDSHAKE, Stage, text_of
from http_wire import HttpWire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


class Polling(Stage):
    """Its tools let go of the connection, once for each number in `closes`."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: asyncio.Queue[None] = asyncio.Queue()
        self.server.add_tool(self.poll)
        self.server.add_tool(self.poll_in_thread)
        self.closed = 0

    async def poll(self, ctx: Context, closes: int = 1, retry: float | None = None) -> str:
        for number in range(closes):
            await ctx.error(f"before {number}")
            await ctx.close_stream(retry)
            self.closed += 1
            await self.steps.get()
            await ctx.error(f"after {number}")
        return "polled"

    def poll_in_thread(self, ctx: Context) -> str:
        ctx.error("before")
        ctx.close_stream(0.5)
        self.closed += 1
        ctx.wait(self.steps.get())
        return "polled"


def said(exchange: Any) -> list[str]:
    return [each["params"]["data"] if "method" in each else text_of(each) for each in exchange.messages]


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
        await until(lambda: not endpoint_of(app)._calls)
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
        assert endpoint_of(app)._logs.running == {}
        assert app._state.log_bytes == 0


async def test_only_the_newest_events_of_a_stream_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sure_log, "KEEP_EVENTS", 5)
    stage = Stage()
    stage.go.set()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = await wire.call("tell", {"times": 20})
        rest = await wire.get(call.events[0].id).done()
        assert said(rest) == ["first", "first", "second", "told"]  # and the end, which is a record too


async def test_only_so_many_streams_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_LOGS", 3)
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        running = wire.start_call("tell")
        primed = await running.event()
        await stage.entered.wait()
        running.leave()
        stage.go.set()
        calls = [await wire.call("tell") for _ in range(6)]
        await until(lambda: not endpoint_of(app)._calls)
        kept = [(await wire.get(call.events[0].id).done()).status == 200 for call in calls]
        assert sum(kept) <= 4
        assert kept[-1]
        assert not kept[0]
        assert app._state.held <= 6
        assert (await wire.get(primed.id).done()).status in (200, 400)


# ── connections that the server lets go of ──


async def go_on(stage: Polling) -> None:
    stage.steps.put_nowait(None)
    await settle()


@pytest.mark.parametrize("retry", [None, 0, 0.25])
@pytest.mark.rule("SH-10", "SH-13")
async def test_a_tool_lets_go_of_the_connection_and_the_client_polls(retry: float | None) -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("poll", {"retry": retry})
        await until(lambda: bool(call.sent) and not call.sent[-1].get("more_body", True))
        assert said(call) == ["before 0"]
        assert call._decoder.retry == (1000 if retry is None else retry * 1000)
        tail = wire.get(call.events[-1].id)
        await tail.event()
        await go_on(stage)
        await tail.done()
        assert said(tail) == ["after 0", "polled"]
        await call.done()


async def test_it_may_let_go_as_often_as_it_likes() -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        connection = wire.start_call("poll", {"closes": 4, "retry": 0.1})
        everything = []
        for number in range(4):
            await until(lambda number=number: stage.closed == number + 1)
            last = connection.events[-1].id
            everything += said(connection)
            connection = wire.get(last)
            await connection.event()
            await go_on(stage)
        await connection.done()
        everything += said(connection)
        expected = [text for number in range(4) for text in (f"before {number}", f"after {number}")]
        assert everything == [*expected, "polled"]


async def test_it_may_let_go_while_nobody_is_there() -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("poll", {"closes": 3})
        first = await call.event()
        for _ in range(3):
            await go_on(stage)
        await call.done()
        rest = await wire.get(first.id).done()
        assert len(said(rest)) == 7
        assert said(rest)[-1] == "polled"


async def test_a_tool_in_a_thread_lets_go_too() -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("poll_in_thread")
        await until(lambda: stage.closed == 1)
        assert said(call) == ["before"]
        assert call._decoder.retry == 500
        await go_on(stage)
        await call.done()
        assert said(await wire.get(call.events[-1].id).done()) == ["polled"]


async def in_json(app: Any) -> HttpWire:
    return await HttpWire.session(app, accept="application/json")


async def in_stream(app: Any) -> HttpWire:
    return await HttpWire.session(app, accept="text/event-stream")


async def in_2025_03_26(app: Any) -> HttpWire:
    return await HttpWire.session(app, "2025-03-26")


async def in_2025_06_18(app: Any) -> HttpWire:
    return await HttpWire.session(app, "2025-06-18")


async def in_2026_07_28(app: Any) -> HttpWire:
    return HttpWire(app)


@pytest.mark.parametrize("tool", ["poll", "poll_in_thread"])
@pytest.mark.parametrize("client", [in_json, in_2025_03_26, in_2025_06_18, in_2026_07_28])
@pytest.mark.rule("SH-13")
async def test_who_can_not_come_back_is_not_let_go(client: Callable[[Any], Any], tool: str) -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await client(app)
        call = wire.start_call(tool)
        await until(lambda: stage.closed == 1)
        await settle()
        assert not call.sent or call.sent[-1].get("more_body", True)
        await go_on(stage)
        await call.done()
        assert text_of(call.answer) == "polled"


async def test_a_client_of_streams_only_is_let_go() -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await in_stream(app)
        call = wire.start_call("poll")
        await until(lambda: stage.closed == 1)
        last = call.events[-1].id
        await go_on(stage)
        assert said(await wire.get(last).done()) == ["after 0", "polled"]


async def test_it_lets_go_at_once_before_anything_was_said() -> None:
    stage = Stage()

    @stage.server.tool
    async def vanish(ctx: Context) -> str:
        await ctx.close_stream(2)
        stage.entered.set()
        await stage.go.wait()
        return "back"

    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("vanish")
        await stage.entered.wait()
        assert [event.data for event in call.events] == [b""]
        assert call.raw.endswith(b"retry: 2000\n\n")
        stage.go.set()
        await call.done()
        assert said(await wire.get(call.events[0].id).done()) == ["back"]


async def test_letting_go_of_who_is_just_coming_back() -> None:
    """At any moment of its coming: in the end it gets everything."""
    for turns in range(15):
        stage = Polling()
        async with serving(stage.server, state=PausingState()) as app:
            wire = await HttpWire.session(app)
            call = wire.start_call("poll", {"closes": 2})
            await until(lambda stage=stage: stage.closed == 1)
            tail = wire.get(call.events[-1].id)
            await settle(turns)
            await go_on(stage)  # it notifies and lets go again
            await until(lambda stage=stage: stage.closed == 2)
            await go_on(stage)
            await call.done()
            await tail.done()
            told = said(tail)
            if told[-1:] != ["polled"]:
                told += said(await wire.get(tail.events[-1].id).done())
            assert told == ["after 0", "before 1", "after 1", "polled"], turns


async def test_a_thread_that_lets_go_of_a_client_that_reads_nothing_is_not_held_for_ever() -> None:
    stage = Stage()
    back = threading.Event()

    @stage.server.tool
    def hold(ctx: Context) -> str:
        ctx.close_stream()
        back.set()
        return "held"

    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("hold")
        call.stall()
        await call.started()
        assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
        call.leave()
        await call.done()
        await until(back.is_set)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("state", [MemoryState, PausingState])
@pytest.mark.parametrize("version", HANDSHAKE)
async def test_who_loses_every_connection_misses_nothing(version: str, state: type[MemoryState], seed: int) -> None:
    chance = random.Random(seed)
    stage = Stage()

    @stage.server.tool
    async def count(ctx: Context) -> str:
        for number in range(40):
            await ctx.error(number)
            await settle(chance.randrange(3))
            if chance.random() < 0.1:
                await ctx.close_stream(0)
        return "counted"

    async with serving(stage.server, state=state()) as app:
        wire = await HttpWire.session(app, version)
        connection = wire.start_call("count")
        last, taken = "", []
        while not taken or b"counted" not in taken[-1].data:
            wanted = chance.randrange(1, 8)
            await connection.until(lambda c=connection, n=wanted: len(c.events) >= n or c.ended)
            for event in connection.events[:wanted]:
                last = event.id
                taken += [event] if event.data else []
            if chance.random() < 0.5:
                connection.leave()
            connection = wire.get(last)
        connection.leave()
        await connection.done()
        assert [json.loads(event.data)["params"]["data"] for event in taken[:-1]] == list(range(40))
        assert len({event.id for event in taken}) == 41
