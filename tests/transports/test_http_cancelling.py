"""Clients that cancel a call over HTTP: what that means to it, in each revision."""

import asyncio

import pytest
from leaving_stage import LOGS

from dovetail import Context
from http_serving import serving, settle
from http_stage import HANDSHAKE, Stage, text_of
from http_wire import HttpWire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


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


async def test_cancelling_twice_is_once() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("work", id=1)
        await stage.entered.wait()
        notices = [wire.notify("notifications/cancelled", {"requestId": 1}) for _ in range(3)]
        assert [(await notice).status for notice in notices] == [202] * 3
        await call.done()


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
