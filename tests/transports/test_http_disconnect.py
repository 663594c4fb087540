"""Clients that leave, stop reading or cancel: what that means to their calls, in each revision."""

import asyncio
import threading
from typing import Any

import pytest

from dovetail import Context
from dovetail.transports import response
from dovetail.transports.response import Response
from http_serving import endpoint_of, serving, settle, until
from http_stage import HANDSHAKE, MODERN, REVISIONS, Stage, open_wire, text_of
from http_wire import Exchange, HttpWire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


LOGS = {"io.modelcontextprotocol/logLevel": "debug", "progressToken": "p"}
WAYS = ["leave", "cut"]


async def gone(call: Exchange, how: str) -> None:
    if how == "cut":
        await call.cut()
    else:
        call.leave()


class Threads(Stage):
    """A tool in a thread that watches for its cancellation."""

    def __init__(self) -> None:
        super().__init__()
        self.in_thread = threading.Event()
        self.told = threading.Event()
        self.may_return = threading.Event()
        self.server.add_tool(self.block)

    def block(self, ctx: Context) -> str:
        self.in_thread.set()
        if ctx.cancelled.wait(0.2 if self.may_return.is_set() else 5):
            self.told.set()
        return "blocked"


# ── leaving ──


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.rule("MH-13", "CAN-8")
async def test_leaving_cancels_in_2026_07_28(how: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        call = HttpWire(app).start_call("work")
        await stage.entered.wait()
        await gone(call, how)
        await asyncio.wait_for(stage.cancelled.wait(), 1)
        await asyncio.wait({call.task})
        assert call.sent == []


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.rule("MH-13")
async def test_leaving_in_the_middle_of_a_stream_cancels_too(how: str) -> None:
    stage = Stage()
    finished: list[str] = []

    @stage.server.tool
    async def speak(ctx: Context) -> None:
        try:
            await ctx.error("one")
            stage.entered.set()
            await stage.go.wait()
        finally:
            await ctx.error("too late")
            finished.append("cleaned up")

    async with serving(stage.server) as app:
        call = HttpWire(app).start_call("speak", meta=LOGS)
        await stage.entered.wait()
        await gone(call, how)
        await until(lambda: bool(finished))
        await asyncio.wait({call.task})
        assert [message["params"]["data"] for message in call.messages] == ["one"]
        assert call.sent[-1]["more_body"] is True  # nothing was sent to who is not there


@pytest.mark.parametrize("how", WAYS)
async def test_leaving_tells_a_thread(how: str) -> None:
    stage = Threads()
    async with serving(stage.server) as app:
        call = HttpWire(app).start_call("block")
        await until(stage.in_thread.is_set)
        await gone(call, how)
        await until(stage.told.is_set)
        await asyncio.wait({call.task})


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-15", "CAN-8")
async def test_leaving_does_not_cancel_before(version: str, later: bool, how: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        call = wire.start_call("work")
        await stage.entered.wait()
        if later:
            await call.watched.wait()
        await gone(call, how)
        await call.watched.wait()
        await settle()
        assert not stage.cancelled.is_set()
        assert endpoint_of(app)._calls.here
        stage.go.set()
        await until(lambda: not endpoint_of(app)._calls.here)
        assert not stage.cancelled.is_set()
        assert (await wire.call("add", {"a": 1, "b": 2})).status == 200


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("unexpected ASGI message"), KeyError("stream")])
@pytest.mark.parametrize("version", REVISIONS)
async def test_a_host_that_fails_to_send_hurts_nobody(
    version: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        call = wire.start_call("tell", meta=LOGS)

        async def broken(_message: Any) -> None:
            raise error

        call._send = broken  # type: ignore[method-assign]
        stage.go.set()
        await call.done()
        await until(lambda: not app._stay.traffic._calls)
        assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# ── not reading ──


@pytest.mark.parametrize("version", REVISIONS)
async def test_a_call_waits_for_a_client_that_reads_slowly_and_nobody_else_does(version: str) -> None:
    stage = Stage()
    sent: list[int] = []

    @stage.server.tool
    async def flood(ctx: Context) -> str:
        for number in range(300):
            await ctx.error("x" * 1000)
            sent.append(number)
        return "flooded"

    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        call = wire.start_call("flood", meta=LOGS)
        call.stall()
        await settle(200)
        assert len(sent) <= 2  # nothing is heaped up for it
        assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
        call.read_on()
        await call.done()
        assert text_of(call.answer) == "flooded"
        assert len(call.messages) == 301


@pytest.mark.parametrize("version", REVISIONS)
async def test_who_reads_nothing_for_too_long_is_taken_for_gone(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "SEND_SECONDS", 0.03)
    stage = Stage()
    async with serving(stage.server, keep_alive=0.05) as app:
        wire = await open_wire(app, version)
        call = wire.start_call("tell", meta=LOGS)
        await stage.entered.wait()
        call.stall()
        await call.done(2)
        if version == MODERN:
            await until(lambda: not app._stay.traffic._calls)  # cancelled, as if it had left
            return
        assert app._stay.traffic._calls  # it may come back for the rest
        stage.go.set()
        await until(lambda: not app._stay.traffic._calls)
        rest = await wire.get(call.events[0].id).done()
        assert text_of(rest.answer) == "told"


@pytest.mark.parametrize("version", REVISIONS)
async def test_a_host_that_gives_the_body_again_and_again_stops_nobody(version: str) -> None:
    """A common way for middleware to read a body and pass it on; such a host never says that a client has left."""
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        call = wire.start_call("work")
        body = call._pieces[0]
        given: list[bytes] = []

        async def again() -> dict[str, Any]:
            given.append(body)
            return {"type": "http.request", "body": body, "more_body": False}

        call._receive = again  # type: ignore[method-assign]
        await asyncio.wait_for(stage.entered.wait(), 10)
        await until(lambda: len(given) > 2)
        assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
        stage.go.set()
        await call.done()
        assert text_of(call.answer) == "done"


@pytest.mark.seed("S1-17")
@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "application/json", "text/event-stream"])
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("CAN-2")
async def test_a_cancelled_request_ends_without_an_answer(version: str, later: bool, accept: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version, accept=accept)
        call = wire.start_call("work", id=5)
        await stage.entered.wait()
        if later:
            await call.watched.wait()
        assert (await wire.notify("notifications/cancelled", {"requestId": 5, "reason": "tired"})).status == 202
        await call.done()
        assert stage.cancelled.is_set()
        assert [event for event in call.events if event.data] == []
        assert call.status in (200, 204)
        assert call.status == (204 if accept == "application/json" else 200)
        if call.is_stream:
            assert call.sent[-1]["more_body"] is False
        else:
            assert call.raw == b""


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("CAN-2", "PROG-6")
async def test_nothing_is_said_after_a_cancellation(version: str) -> None:
    stage = Stage()

    @stage.server.tool
    async def babble(ctx: Context) -> str:
        await ctx.report_progress(1)
        stage.entered.set()
        try:
            await stage.go.wait()
        finally:
            await ctx.report_progress(2)
            await ctx.error("cancelled")
        return "never"

    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        call = wire.start_call("babble", id="b", meta=LOGS)
        await stage.entered.wait()
        await wire.notify("notifications/cancelled", {"requestId": "b"})
        await call.done()
        assert [message["method"] for message in call.messages] == ["notifications/progress"]
        if version == "2025-11-25":
            rest = await wire.get(call.events[-1].id).done()
            assert rest.messages == []  # and nothing waits for who comes back


@pytest.mark.rule("CAN-1", "CAN-3", "CAN-4")
async def test_cancelling_what_is_not_there_is_accepted() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        done = await wire.call("add", {"a": 1, "b": 2}, id=3)
        assert text_of(done.answer) == "3"
        for id in (3, 99, "3", -1):
            assert (await wire.notify("notifications/cancelled", {"requestId": id})).status == 202
        call = wire.start_call("work", id=3)
        await stage.entered.wait()
        await wire.notify("notifications/cancelled", {"requestId": "3"})  # another one
        stage.go.set()
        assert text_of((await call.done()).answer) == "done"


@pytest.mark.rule("CAN-4")
async def test_cancelling_at_any_moment() -> None:
    """Answered or not: it ends, and nothing is left."""
    for turns in range(15):
        stage = Stage()
        stage.go.set()
        async with serving(stage.server) as app:
            wire = await HttpWire.session(app)
            call = wire.start_call("tell", id=1)
            await settle(turns)
            assert (await wire.notify("notifications/cancelled", {"requestId": 1})).status == 202
            await call.done()
            messages = call.messages if call.is_stream else []
            answers = [message for message in messages if "id" in message]
            assert len(answers) <= 1


async def test_cancelling_a_resumed_call_ends_its_new_stream() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell", id=1)
        first = await call.event()
        call.leave()
        tail = wire.get(first.id)
        await tail.message()
        await wire.notify("notifications/cancelled", {"requestId": 1})
        await tail.done()
        assert len(tail.messages) == 1


async def test_a_stubborn_tool_keeps_its_silence() -> None:
    stage = Stage()

    @stage.server.tool
    async def stubborn() -> str:
        stage.entered.set()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await stage.go.wait()
        return "all the same"

    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("stubborn", id=1)
        await stage.entered.wait()
        await wire.notify("notifications/cancelled", {"requestId": 1})
        again = await wire.post("ping", id=1)
        assert "still in flight" in again.json["error"]["message"]
        stage.go.set()
        await call.done()
        assert call.events == []
        assert (await wire.post("ping", id=1)).json["result"] == {}


class Heard:
    """Where a response is sent to."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])


async def test_there_is_one_answer_also_for_who_left() -> None:
    heard = Heard()
    response = Response(heard)
    response.abandon()
    await response.json(200, b"{}")
    assert heard.statuses == []
    await response.settle()
    await response.settle()
    await response.json(200, b"{}")
    assert heard.statuses == [499]
    assert response.ended


async def test_nobody_is_answered_twice() -> None:
    heard = Heard()
    response = Response(heard)
    await response.json(200, b"{}")
    await response.settle()
    assert heard.statuses == [200]


async def test_nothing_follows_half_an_event() -> None:
    sent: list[bytes] = []
    reading = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) == 3:  # the start, a first piece, and then it takes no more
            await reading.wait()

    response = Response(send)
    await response.open()
    writing = asyncio.create_task(response.event(b"data: " + b"A" * 700_000 + b"\n\n"))
    await settle(5)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    before = len(sent)
    reading.set()
    await response.event(b"data: the answer\n\n")
    await response.close()
    assert len(sent) == before
