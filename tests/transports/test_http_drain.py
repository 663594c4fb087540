"""The end of a server: what is refused, what may finish, and what is stopped."""

import asyncio
import json
import threading
from typing import Any

import pytest
from drain_stage import LISTEN, Alive, in_time, status

from dovetail import Context
from http_serving import PausingState, serving, settle, until
from http_stage import HANDSHAKE, MODERN, REVISIONS, Stage, open_wire, text_of
from http_wire import CLIENT, HttpWire

# ── what is refused ──


@pytest.mark.parametrize("version", REVISIONS)
async def test_new_requests_are_refused_in_json(version: str) -> None:
    async with serving(Stage().server) as app:
        wire = await open_wire(app, version)
        await in_time(app)
        refused = await wire.call("add", {"a": 1, "b": 2})
        assert refused.status == 503
        assert refused.headers["retry-after"]
        assert refused.json["error"] == {"code": -32603, "message": "The server is shutting down"}
        if version != MODERN:
            assert (await wire.get().done()).status == 503
            assert (await wire.delete()).status == 503
            assert (await wire.notify("notifications/initialized")).status == 503


async def test_it_is_alive_but_not_ready() -> None:
    async with serving(Stage().server) as app:
        assert [await status(app, path) for path in ("/health", "/health/live", "/ready", "/health/ready")] == [200] * 4
        app.begin_drain()
        assert [await status(app, path) for path in ("/health", "/health/live")] == [200] * 2
        assert [await status(app, path) for path in ("/ready", "/health/ready")] == [503] * 2
        assert (await HttpWire(app).call("add", {"a": 1, "b": 2})).status == 200  # as before
        await in_time(app)
        assert [await status(app, path) for path in ("/health", "/ready")] == [200, 503]


async def test_new_streams_are_refused_while_calls_finish() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("work")
        await stage.entered.wait()
        drain = asyncio.create_task(app.drain())
        await settle()
        assert (await HttpWire(app).post("subscriptions/listen", LISTEN)).status == 503
        assert (await wire.get().done()).status == 503
        assert (await wire.call("add", {"a": 1, "b": 2})).status == 503
        assert await status(app, "/ready") == 503
        assert not drain.done()
        stage.go.set()
        await drain
        assert text_of((await call.done()).answer) == "done"


# ── what ends at once ──


async def test_open_streams_end_at_once_and_properly() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        streams = [await (await HttpWire.session(app, version)).get().started() for version in HANDSHAKE]
        listens = [HttpWire(app).start("subscriptions/listen", LISTEN, id=number) for number in range(3)]
        for listen in listens:
            await listen.message()
        assert await in_time(app) < 0.5
        for stream in streams:
            await stream.done()
            assert stream.messages == []
            assert stream.sent[-1]["more_body"] is False
        for number, listen in enumerate(listens):
            await listen.done()
            assert listen.answer["id"] == number
            assert listen.answer["result"]["resultType"] == "complete"


async def test_the_last_bytes_are_sent_before_it_is_over() -> None:
    async with serving(Stage().server) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        listen = HttpWire(app).start("subscriptions/listen", LISTEN)
        await listen.message()
        for each in (stream, listen):
            send = each._send

            async def slowly(message: Any, send: Any = send) -> None:
                await asyncio.sleep(0.01)
                await send(message)

            each._send = slowly  # type: ignore[method-assign]
        await settle()
        await in_time(app)
        assert stream.sent[-1]["more_body"] is False
        assert listen.sent[-1]["more_body"] is False


async def test_clients_that_read_nothing_do_not_hold_it_up() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        streams = [await wire.get().started(), HttpWire(app).start("subscriptions/listen", LISTEN)]
        await streams[1].message()
        for stream in streams:
            stream.stall()
        stage.change_tools()
        await until(lambda: all(b"tools/list_changed" in stream.raw for stream in streams))
        assert await in_time(app, 30) < 1.5
        for stream in streams:
            stream.leave()
            await stream.done()


# ── what may finish ──


@pytest.mark.parametrize("version", REVISIONS)
async def test_calls_finish(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        call = wire.start_call("work")
        await stage.entered.wait()
        drain = asyncio.create_task(app.drain())
        await asyncio.sleep(0.02)
        assert not drain.done()
        stage.go.set()
        await drain
        assert text_of((await call.done()).answer) == "done"
        assert not stage.cancelled.is_set()


async def test_a_call_that_was_resumed_finishes_where_its_client_is() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell")
        first = await call.event()
        call.leave()
        tail = wire.get(first.id)
        await tail.message()
        drain = asyncio.create_task(app.drain())
        await settle()
        assert not tail.ended
        stage.go.set()
        await drain
        assert text_of((await tail.done()).answer) == "told"


async def test_a_call_whose_client_has_left_is_waited_for_too() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("work")
        await stage.entered.wait()
        await call.cut()
        drain = asyncio.create_task(app.drain())
        await settle()
        assert not drain.done()
        stage.go.set()
        await drain


async def test_batches_finish() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, "2025-03-26")
        messages = [wire.message("tools/call", {"name": "work", "arguments": {}}), wire.message("ping")]
        batch = wire.raw("POST", json.dumps(messages).encode())
        await stage.entered.wait()
        drain = asyncio.create_task(app.drain())
        await settle()
        stage.go.set()
        await drain
        assert [answer["id"] for answer in (await batch.done()).json] == [message["id"] for message in messages]


async def test_every_moment_of_a_request_is_good_for_a_drain() -> None:
    """Served or refused, it gets an answer, and no call runs in a server that is over."""
    for state in (None, PausingState):
        for turns in range(20):
            stage = Alive()
            async with serving(stage.server, state=state and state()) as app:
                wire = await HttpWire.session(app)
                call = wire.start_call("spirit")
                await settle(turns)
                await in_time(app)
                await call.done()
                assert call.status in (200, 503), turns
                assert call.status == 503 or text_of(call.answer) == "alive", turns


async def test_every_moment_of_initialize_is_good_for_a_drain() -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    for turns in range(15):
        async with serving(Stage().server, state=PausingState()) as app:
            answer = HttpWire(app).raw("POST", hello)
            await settle(turns)
            await in_time(app)
            await answer.done()
            assert answer.status in (200, 503), turns


# ── what is stopped ──


@pytest.mark.parametrize("version", REVISIONS)
async def test_late_calls_are_stopped_and_their_clients_told(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        call = wire.start_call("work", id=4)
        await stage.entered.wait()
        assert 0.02 <= await in_time(app, 0.02) < 0.5
        await call.done()
        assert stage.cancelled.is_set()
        assert call.answer["id"] == 4
        assert call.answer["error"]["message"] == "The server is shutting down and has stopped this call"
        assert call.status == (503 if version == MODERN else 200)


@pytest.mark.parametrize("version", REVISIONS)
async def test_late_calls_that_have_notified_are_told_in_their_stream(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)

        @stage.server.tool
        async def slow(ctx: Context) -> str:
            await ctx.report_progress(1)
            stage.entered.set()
            await stage.go.wait()
            return "never"

        call = wire.start_call("slow", meta={"progressToken": 1})
        await stage.entered.wait()
        await in_time(app, 0)
        await call.done()
        assert [message.get("method", "error") for message in call.messages] == ["notifications/progress", "error"]
        assert call.sent[-1]["more_body"] is False


async def test_a_batch_that_is_late_is_answered() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, "2025-03-26")
        messages = [wire.message("tools/call", {"name": "work", "arguments": {}}), wire.message("ping")]
        batch = wire.raw("POST", json.dumps(messages).encode())
        await stage.entered.wait()
        await in_time(app, 0)
        late, ping = (await batch.done()).json
        assert "stopped" in late["error"]["message"]
        assert ping["result"] == {}


async def test_a_stuck_thread_does_not_hang_it(caplog: pytest.LogCaptureFixture) -> None:
    stage = Alive()
    inside, free = threading.Event(), threading.Event()

    @stage.server.tool
    def stuck() -> str:
        inside.set()
        free.wait(10)
        return "free"

    async with serving(stage.server) as app:
        call = HttpWire(app).start_call("stuck")
        await until(inside.is_set)
        assert await in_time(app, 0.02) < 0.5
        await call.done()
        assert "stopped" in call.answer["error"]["message"]
        assert stage.notes == ["entered", "left"]
        free.set()
        await until(lambda: stage.server.engine.threads.stuck == 0)
    assert "tool stuck is stuck" in caplog.text


async def test_a_tool_that_will_not_stop_does_not_hang_it() -> None:
    stage = Alive()

    @stage.server.tool
    async def stubborn() -> str:
        stage.entered.set()
        while not stage.go.is_set():
            try:
                await stage.go.wait()
            except asyncio.CancelledError:
                stage.cancelled.set()
        return "stubborn"

    async with serving(stage.server) as app:
        call = HttpWire(app).start_call("stubborn")
        await stage.entered.wait()
        assert await in_time(app, 0) < 1.5
        assert stage.notes == ["entered", "left"]
        stage.go.set()
        await call.done()


async def test_a_client_that_does_not_take_its_answer_does_not_hang_it() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        call = HttpWire(app).start_call("add", {"a": 1, "b": 2})
        call.stall()
        await call.started()
        assert await in_time(app, 0.02) < 1.5
        call.leave()
        await call.done()
