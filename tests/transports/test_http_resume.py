"""Resuming the stream of a call with `Last-Event-ID`, after a connection broke or was closed on purpose."""

import asyncio
import json
import random
from typing import Any

import pytest
from http_clients import INVALID_REQUEST, JSON, check_refusal, gone, leave, said

from dovetail import Context
from dovetail.state.memory import MemoryState
from http_serving import Clock, PausingState, Serve, Stage, endpoint_of, serving, settle, until
from http_wire import BOTH, HANDSHAKE, REVISIONS, HttpWire, open_wire, text_of

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


class Talking(Stage):
    """Its tools say much, or let go of the connection, once for each number in `closes`."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: asyncio.Queue[None] = asyncio.Queue()
        self.closed = 0
        self.server.add_tool(self.poll)
        self.server.add_tool(self.poll_in_thread)
        self.server.add_tool(self.say)

    async def poll(self, ctx: Context, closes: int = 1, retry: float | None = None) -> str:
        for number in range(closes):
            await ctx.error(f"before {number}")
            await ctx.close_stream(retry)
            self.closed += 1
            await self.steps.get()
            await ctx.error(f"after {number}")
        return "polled"

    def poll_in_thread(self, ctx: Context, closes: int, retry: float) -> str:
        for number in range(closes):
            ctx.error(f"before {number}")
            ctx.close_stream(retry)
            self.closed += 1
            ctx.wait(self.steps.get())
            ctx.error(f"after {number}")
        return "polled"

    async def say(self, ctx: Context, size: int) -> str:
        await ctx.warning("x" * size)
        return "y" * size

    async def go_on(self) -> None:
        self.steps.put_nowait(None)
        await settle()


@pytest.fixture
async def stage() -> Talking:
    return Talking()


@pytest.mark.parametrize(("version", "breaks"), [*((each, "leave") for each in HANDSHAKE), ("2025-11-25", "cut")])
@pytest.mark.rule("SH-15", "SH-23", "SH-24", "CAN-8")
async def test_the_response_waits_for_a_client_that_resumes(
    stage: Talking, app: Any, version: str, breaks: str
) -> None:
    wire = await HttpWire.session(app, version)
    call = wire.start_call("warn")
    while not (event := await call.event()).data:
        pass
    await gone(call, breaks)
    stage.go.set()
    await until(lambda: not endpoint_of(app).calls.by_id)
    rest = await wire.get(event.id).done()
    assert (rest.status, rest.headers["content-type"]) == (200, "text/event-stream")
    assert rest.headers["x-accel-buffering"] == "no"
    assert said(rest) == ["second", "warned"]
    assert rest.sent[-1]["more_body"] is False


async def test_the_newest_connection_gets_the_next_events_as_they_come(stage: Talking, wire: HttpWire) -> None:
    call = wire.start_call("warn")
    older = wire.get((await call.event()).id)
    assert (await older.message())["params"]["data"] == "first"
    await call.done()  # the one that it came by was closed
    newer = wire.get(older.events[-1].id)
    await newer.event()
    await older.done()
    await settle()
    assert not newer.ended
    stage.go.set()
    assert (said(await newer.done()), said(older)) == (["second", "warned"], ["first"])


@pytest.mark.rule("SH-21")
async def test_a_client_that_resumes_twice_gets_the_same_twice(stage: Talking, wire: HttpWire) -> None:
    stage.go.set()
    call = await wire.call("warn")
    ids = {event.id for event in call.events}
    for place, event in enumerate(call.events):
        for _ in range(2):
            primed, *rest = (await wire.get(event.id).done()).events
            assert [(each.id, each.data) for each in rest] == [
                (each.id, each.data) for each in call.events[place + 1 :]
            ]
            assert primed.data == b""
            assert primed.id not in ids
            ids.add(primed.id)
            assert (await wire.get(primed.id).done()).events[1:] == rest  # a place to come back to as well


async def test_a_client_that_resumes_finds_the_response_of_a_very_long_call(
    stage: Talking, clock: Clock, serve: Serve
) -> None:
    wire = await HttpWire.session(await serve(clock=clock))
    call = wire.start_call("warn")
    await call.message()
    last = call.events[-1].id
    call.leave()
    resumed = wire.get(last)
    await resumed.event()
    clock.sleep(1000)  # more than event_timeout
    stage.go.set()
    assert text_of((await resumed.done()).answer) == "warned"
    assert text_of((await wire.get(last).done()).answer) == "warned"


@pytest.mark.rule("SH-23")
@pytest.mark.parametrize(
    "id",
    ["x", ".1", "a.", "a.b", "a.-1", "A.1", "é.1", "b.1234567890123456", "0123456789abcdef.0", "a" * 60_000,
     "session/x.1", "a\r\nb.1", "changes", "changes.-1", "changes.1.2.3", "changes.1-", "changes.1-1-1"],
    ids=lambda id: ascii(id)[:40],
)  # fmt: skip
async def test_an_event_id_of_another_server(wire: HttpWire, id: str) -> None:
    assert "Last-Event-ID" in check_refusal(await wire.get(id).done(), 400, INVALID_REQUEST)


@pytest.mark.rule("SH-21", "SH-23")
async def test_an_event_of_another_session_or_of_later_is_unknown(stage: Talking, app: Any) -> None:
    ann, bob = await HttpWire.session(app), await HttpWire.session(app)
    call = ann.start_call("warn")
    stream = (await call.event()).id.split(".")[0]
    await call.message()
    for _ in range(2):  # while it runs, and afterwards
        for wire, id in ((bob, f"{stream}.0"), (bob, f"{stream}.1"), (ann, f"{stream}.9"), (ann, f"{stream}.1-1")):
            assert (await wire.get(id).done()).status == 400
        stage.go.set()
        await call.done()
    for event in call.events:
        assert (await ann.get(event.id).done()).status == 200


@pytest.mark.rule("SH-23")
async def test_resuming_a_stream_that_has_expired_is_refused(stage: Talking, serve: Serve) -> None:
    stage.go.set()
    app = await serve(state=MemoryState(max_log_bytes=100_000))
    ann, bob = await HttpWire.session(app), await HttpWire.session(app)
    call = await ann.call("warn")
    for _ in range(11):  # which needs room for its events
        await bob.call("say", {"size": 5000})
    statuses = [(await ann.get(event.id).done()).status for event in call.events]
    assert statuses == [*[400] * (len(statuses) - 1), 200]  # a client that has everything gets 200 and no more


@pytest.mark.parametrize(("tool", "retry"), [("poll", None), ("poll", 0), ("poll", 0.25), ("poll_in_thread", 0.5)])
@pytest.mark.rule("SH-10", "SH-13", "SH-19")
async def test_a_tool_closes_each_connection_and_the_client_polls(
    stage: Talking, wire: HttpWire, tool: str, retry: float | None
) -> None:
    connection = wire.start_call(tool, {"closes": 3, "retry": retry})
    everything: list[str] = []
    for number in range(3):
        await until(lambda number=number: stage.closed == number + 1)
        await connection.until(lambda c=connection: not c.sent[-1].get("more_body", True))
        assert b"retry: %d\n" % (1000 if retry is None else retry * 1000) in connection.raw
        everything += said(connection)
        connection = wire.get(connection.events[-1].id)
        await connection.event()
        await stage.go_on()
    everything += said(await connection.done())
    assert everything == [f"{when} {number}" for number in range(3) for when in ("before", "after")] + ["polled"]


@pytest.mark.parametrize(
    ("version", "accept"), [("2025-11-25", JSON), *((each, BOTH) for each in REVISIONS if each != "2025-11-25")]
)
@pytest.mark.rule("SH-13")
async def test_the_connection_of_a_client_that_can_not_resume_is_not_closed(
    stage: Talking, app: Any, version: str, accept: str
) -> None:
    call = (await open_wire(app, version, accept=accept)).start_call("poll")
    await until(lambda: stage.closed == 1)
    await settle()
    assert not call.sent or call.sent[-1].get("more_body", True)
    await stage.go_on()
    assert text_of((await call.done()).answer) == "polled"


async def test_closing_the_connection_of_a_client_that_is_just_resuming() -> None:
    """At any moment of its coming: in the end it gets everything."""
    for turns in range(15):
        stage = Talking()
        async with serving(stage.server, state=PausingState()) as app:
            wire = await HttpWire.session(app)
            call = wire.start_call("poll", {"closes": 2})
            await until(lambda stage=stage: stage.closed == 1)
            resumed = wire.get(call.events[-1].id)
            await settle(turns)
            await stage.go_on()  # it notifies and lets go again
            await until(lambda stage=stage: stage.closed == 2)
            await stage.go_on()
            await call.done()
            texts = said(await resumed.done())
            if texts[-1:] != ["polled"]:
                texts += said(await wire.get(resumed.events[-1].id).done())
            assert texts == ["after 0", "before 1", "after 1", "polled"], turns


@pytest.mark.parametrize("state", [MemoryState, PausingState])
@pytest.mark.parametrize(("version", "seed"), [("2025-03-26", 0), ("2025-11-25", 1), ("2025-11-25", 2)])
async def test_a_client_that_loses_every_connection_misses_nothing(
    stage: Talking, serve: Serve, version: str, state: type[MemoryState], seed: int
) -> None:
    chance = random.Random(seed)

    @stage.server.tool
    async def count(ctx: Context) -> str:
        for number in range(40):
            await ctx.error(number)
            await settle(chance.randrange(3))
            if chance.random() < 0.1:
                await ctx.close_stream(0)
        return "counted"

    wire = await HttpWire.session(await serve(state=state()), version)
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
    await leave(connection)
    assert [json.loads(event.data)["params"]["data"] for event in taken[:-1]] == list(range(40))
    assert len({event.id for event in taken}) == 41
