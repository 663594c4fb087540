"""Clients that leave, or stop reading: what that means to their calls, in each revision."""

import asyncio
from typing import Any

import pytest
from leaving_stage import LOGS, WAYS, Threads, gone

from dovetail import Context
from dovetail.transports import response
from http_serving import endpoint_of, serving, settle, until
from http_stage import HANDSHAKE, MODERN, REVISIONS, Stage, open_wire, text_of
from http_wire import HttpWire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


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


@pytest.mark.parametrize("how", WAYS)
async def test_leaving_does_not_cancel_without_sessions_either(how: str) -> None:
    stage = Stage()
    async with serving(stage.server, stateless=True) as app:
        wire = HttpWire(app, "2025-06-18")
        call = wire.start_call("work", headers={"mcp-protocol-version": "2025-06-18"})
        await stage.entered.wait()
        await gone(call, how)
        await call.watched.wait()
        await settle()
        assert not stage.cancelled.is_set()
        stage.go.set()
        await until(lambda: not app._stay.traffic._calls)


@pytest.mark.parametrize("version", REVISIONS)
async def test_a_host_that_fails_to_receive_counts_as_gone(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        call = wire.start_call("work")
        receive = call._receive
        failed = asyncio.Event()

        async def broken() -> dict[str, Any]:
            if not call._pieces:
                failed.set()
                raise RuntimeError("this server is broken")
            return await receive()

        call._receive = broken  # type: ignore[method-assign]
        await stage.entered.wait()
        await asyncio.wait_for(failed.wait(), 10)
        await settle()
        assert stage.cancelled.is_set() is (version == MODERN)
        stage.go.set()
        await call.done()


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


async def test_a_large_answer_may_take_longer_than_one_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "SEND_SECONDS", 0.3)
    monkeypatch.setattr(response, "PIECE", 500)
    stage = Stage()

    @stage.server.tool
    async def much() -> str:
        return "x" * 10_000

    async with serving(stage.server) as app:
        call = HttpWire(app).start_call("much")
        send = call._send

        async def slowly(message: Any) -> None:
            await asyncio.sleep(0.02)
            await send(message)

        call._send = slowly  # type: ignore[method-assign]
        await call.done()
        assert len(text_of(call.json)) == 10_000


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
