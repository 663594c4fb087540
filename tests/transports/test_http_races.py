"""Moments in which two things happen at once: each of these tests holds one of them still."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from dovetail import Context
from dovetail.state.memory import MemoryState
from http_serving import Clock, PausingState, endpoint_of, serving, settle, until
from http_stage import Stage, open_wire, text_of
from http_wire import HttpWire

# ── the first event of a stream ──


async def test_the_priming_event_comes_first_even_if_the_headers_are_slow() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell", {"times": 0})
        await stage.entered.wait()
        call.stall()
        await call.started()  # after 50 ms the stream opens, and hangs in its first send
        stage.go.set()
        await settle()
        call.read_on()
        await call.done()
        assert [bool(event.data) for event in call.events] == [False, True, True]
        assert call.events[0].id.endswith(".0")


# ── cancelled before the first step ──


@pytest.mark.parametrize("id", [0, "", 1, "1"])
async def test_whatever_the_id_is_its_call_can_be_cancelled(id: int | str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("work", id=id)
        await stage.entered.wait()
        assert (await wire.notify("notifications/cancelled", {"requestId": id})).status == 202
        await call.done()
        assert stage.cancelled.is_set()


async def test_a_malformed_cancellation_cancels_nothing() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("work", id="")
        await stage.entered.wait()
        for params in ({}, {"requestId": None}, {"requestId": [1]}, None):
            assert (await wire.notify("notifications/cancelled", params)).status == 202
        stage.go.set()
        assert text_of((await call.done()).answer) == "done"


# ── the log of a call that is silent for longer than logs are kept ──


async def test_the_answer_of_a_very_long_call_is_found_by_who_is_resuming() -> None:
    stage, clock = Stage(), Clock()
    async with serving(stage.server, clock=clock) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell", {"times": 3})
        await stage.entered.wait()
        await until(lambda: len(call.events) == 4)
        last = call.events[-1].id
        call.leave()
        tail = wire.get(last)
        await tail.event()
        clock.sleep(1000)  # more than event_timeout
        stage.go.set()
        await tail.done()
        assert text_of(tail.answer) == "told"
        assert text_of((await wire.get(last).done()).answer) == "told"


# ── a log that has no room ──


async def test_without_room_for_a_log_the_client_still_gets_everything() -> None:
    stage = Stage()
    async with serving(stage.server, state=MemoryState(max_entries=1)) as app:
        wire = await HttpWire.session(app)
        stage.go.set()
        call = await wire.start_call("tell").done()
        assert text_of(call.answer) == "told"
        assert len(call.messages) == 3


async def test_a_change_that_could_not_be_written_is_written_later(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    state = MemoryState(max_entries=1)
    async with serving(stage.server, state=state) as app:
        wire = await HttpWire.session(app)
        stage.change_tools()
        await settle()
        state._max_entries = 10
        stream = wire.get()
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        stream.leave()
        await stream.done()


# ── streams that are refused, or taken over ──


async def test_a_refused_stream_costs_no_change_and_leaves_no_listener() -> None:
    stage = Stage()
    async with serving(stage.server, max_streams=1) as app:
        other, wire = await HttpWire.session(app), await HttpWire.session(app)
        stage.change_tools()
        await settle()
        taken = await other.get().started()
        assert (await wire.get().done()).status == 503
        taken.leave()
        await taken.done()
        stream = wire.get()
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        stream.leave()
        await stream.done()


# ── the task of a request, and who may end it ──


class Stubborn(Stage):
    """Its tool answers although it was cancelled."""

    async def work(self) -> str:
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
        return "done all the same"


@pytest.mark.parametrize("kind", [Stage, Stubborn])
@pytest.mark.rule("CAN-2", "MH-13")
async def test_the_task_of_a_request_has_no_cancellation_left_in_it(kind: type[Stage]) -> None:
    """What we asked for, we take back; the ASGI server may have something to do in that task."""
    stage = kind()
    left: list[int] = []

    async with serving(stage.server) as app:

        async def host(scope, receive, send) -> None:
            await app(scope, receive, send)
            task = asyncio.current_task()
            assert task is not None
            left.append(task.cancelling())

        call = HttpWire(host).start_call("work")
        await stage.entered.wait()
        call.leave()
        await call.done()
        assert stage.cancelled.is_set()
        assert left == [0]
        assert call.sent == []


# ── a client that does not read, and comes back by another connection ──


async def test_a_connection_that_hangs_does_not_hold_its_call_when_the_client_is_back() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell")
        await stage.entered.wait()
        call.stall()
        stage.go.set()
        await until(lambda: len(call.events) == 3)  # the second notification hangs on its way
        back = wire.get(call.events[1].id)
        await back.done(1)
        assert [each.get("method", "answer") for each in back.messages] == ["notifications/message", "answer"]
        await call.done(1)


async def test_two_who_notify_at_once_are_sent_in_the_order_of_the_log() -> None:
    stage = Stage()

    @stage.server.tool
    async def both(ctx: Context) -> str:
        await asyncio.gather(*(ctx.warning(number) for number in range(5)))
        return "both"

    async with serving(stage.server, state=PausingState()) as app:
        wire = await HttpWire.session(app)
        call = await wire.call("both")
        numbers = [int(event.id.split(".")[1]) for event in call.events]
        assert numbers == sorted(numbers)
        assert text_of(call.answer) == "both"
        again = await wire.get(call.events[0].id).done()
        assert again.messages == call.messages


# ── requests that are not complete when the server stops ──


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
async def test_a_request_that_is_complete_too_late_is_refused(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = HttpWire(app) if version == "2026-07-28" else await HttpWire.session(app, version)
        body = json.dumps(wire.message("tools/call", {"name": "work", "arguments": {}})).encode()
        headers = {"mcp-protocol-version": version, "mcp-method": "tools/call", "mcp-name": "work"}
        late = wire.raw("POST", [body[:10], body[10:]], headers)
        gate = asyncio.Event()
        original = late._receive

        async def slowly() -> dict:
            if len(late._pieces) == 1:
                await gate.wait()
            return await original()

        late._receive = slowly  # type: ignore[method-assign]
        await settle()
        await app.drain()
        gate.set()
        await late.done()
        assert late.status == 503
        assert stage.ran == []


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_middleware_that_changes_ids_confuses_nobody(version: str, fails: bool) -> None:
    stage = Stage()

    @stage.server.middleware
    async def rename(request: Any, call_next: Any) -> Any:
        if request.method != "tools/call":
            return await call_next(request)
        result = await call_next(msgspec.structs.replace(request, id="renamed"))
        if fails:
            raise ValueError("broken")
        return result

    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        answer = await wire.call("add", {"a": 1, "b": 2}, id=5)
        assert answer.answer["id"] == 5
        assert not endpoint_of(app)._calls.here
