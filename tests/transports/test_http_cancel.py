"""Calls that are cancelled over HTTP: at any moment, by any id, late, and at another worker than their own."""

import asyncio
import json
from typing import Any

import pytest
from http_clients import LOGS, Fleet, methods, said

from dovetail import Context
from http_serving import Serve, Stage, serving, settle, until
from http_wire import HttpExchange, HttpWire, text_of

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


async def cancel(wire: HttpWire, id: Any) -> None:
    assert (await wire.notify("notifications/cancelled", {"requestId": id})).status == 202


def batch(wire: HttpWire, *names: str) -> HttpExchange:
    calls = [wire.message("tools/call", {"name": name, "arguments": {}}, id=id) for id, name in enumerate(names, 1)]
    return wire.raw("POST", json.dumps(calls).encode())


@pytest.mark.seed("S1-17")
@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "application/json", "text/event-stream"])
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25"])
@pytest.mark.rule("CAN-2")
async def test_a_cancelled_request_ends_without_an_answer(
    stage: Stage, app: Any, version: str, later: bool, accept: str
) -> None:
    wire = await HttpWire.session(app, version, accept=accept)
    call = wire.start_call("work", id=5)
    await stage.entered.wait()
    if later:
        await call.watched.wait()
    assert (await wire.notify("notifications/cancelled", {"requestId": 5, "reason": "tired"})).status == 202
    await call.done()
    assert stage.cancelled.is_set()
    assert [event for event in call.events if event.data] == []
    assert call.status == (204 if accept == "application/json" else 200)
    if call.is_stream:
        assert call.sent[-1]["more_body"] is False
    else:
        assert call.raw == b""


@pytest.mark.rule("CAN-2", "PROG-6")
async def test_nothing_is_said_after_a_cancellation(stage: Stage, serve: Serve) -> None:
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

    wire = await HttpWire.session(await serve())
    call = wire.start_call("babble", id="b", meta=LOGS)
    await stage.entered.wait()
    await cancel(wire, "b")
    assert methods(await call.done()) == ["notifications/progress"]
    assert (await wire.get(call.events[-1].id).done()).messages == []  # nothing waits for who comes back
    call = wire.start_call("warn", id=1)
    first = await call.event()
    call.leave()
    resumed = wire.get(first.id)
    await resumed.message()
    await cancel(wire, 1)
    assert len((await resumed.done()).messages) == 1  # a new stream of a call ends too


@pytest.mark.parametrize("id", [0, "", 1, "1"])
@pytest.mark.rule("CAN-1", "CAN-3", "CAN-4")
async def test_a_call_is_cancelled_by_its_id_alone(stage: Stage, wire: HttpWire, id: int | str) -> None:
    assert text_of((await wire.call("add", {"a": 1, "b": 2}, id=id)).answer) == "3"
    await cancel(wire, id)  # too late
    calls = [wire.start_call("work", id=each) for each in (id, "other")]
    await until(lambda: len(stage.ran) == 2)
    for params in ({}, {"requestId": None}, {"requestId": [1]}, None):
        assert (await wire.notify("notifications/cancelled", params)).status == 202
    for nothing in (99, -1, "x", int(id or 0) if isinstance(id, str) else str(id)):
        await cancel(wire, nothing)
    await settle()
    assert not stage.cancelled.is_set()
    await cancel(wire, id)
    assert (await calls[0].done()).messages == []
    stage.go.set()
    assert text_of((await calls[1].done()).answer) == "done"


@pytest.mark.rule("CAN-4")
async def test_cancelling_at_any_moment() -> None:
    """Answered or not: it ends, and nothing is left."""
    for turns in range(15):
        stage = Stage()
        stage.go.set()
        async with serving(stage.server) as app:
            wire = await HttpWire.session(app)
            call = wire.start_call("warn", id=1)
            await settle(turns)
            await cancel(wire, 1)
            await call.done()
            assert sum("id" in each for each in (call.messages if call.is_stream else [])) <= 1


class OddError(BaseException):
    """Neither an `Exception` nor a cancellation."""


@pytest.mark.rule("CAN-2")
async def test_an_odd_end_of_a_cancelled_call_costs_a_batch_none_of_the_other_answers(
    stage: Stage, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    @stage.server.tool
    async def odd(ctx: Context) -> str:
        await ctx.warning("first")
        try:
            await stage.go.wait()
        except asyncio.CancelledError:
            raise OddError from None
        return "even"

    app = await serve()
    wire, other = await HttpWire.session(app), await HttpWire.session(app, "2025-03-26")
    call, running = wire.start_call("odd", id=1), batch(other, "odd", "work")
    await until(lambda: stage.ran == ["work"])
    await call.message()
    await running.message()
    for each in (wire, other):
        await cancel(each, 1)
    assert said(await call.done()) == ["first"]
    assert "OddError" in caplog.text
    stage.go.set()
    assert [each["id"] for each in (await running.done()).answer] == [2]


@pytest.mark.parametrize("moment", ["before it runs", "while it runs", "in a batch"])
async def test_a_cancellation_is_known_to_the_other_workers(fleet: Fleet, moment: str) -> None:
    """Also one of a call with an id that a call of another session, or another type of id, had here before."""
    version = "2025-03-26" if moment == "in a batch" else "2025-11-25"
    wires, others = await fleet.session(version), await fleet.session()
    await others[1].call("add", {"a": 1, "b": 2}, id=1)
    await wires[1].call("add", {"a": 1, "b": 2}, id="1")
    if moment == "before it runs":
        await cancel(wires[1], 1)
    call = batch(wires[0], "work") if moment == "in a batch" else wires[0].start_call("work", id=1)
    if moment != "before it runs":
        await fleet.stages[0].entered.wait()
        await cancel(wires[1], "other")
        await cancel(wires[1], 1)
    await asyncio.wait_for(fleet.stages[0].cancelled.wait(), 5)
    assert (await call.done()).messages == []
