"""Sessions that end while something is going on in them, batches whose client leaves, and failures of odd kinds."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from dovetail import Context
from dovetail.engine.sessions import topic
from dovetail.protocol import sse
from dovetail.state.base import Listener
from dovetail.state.memory import MemoryState
from http_serving import Clock, PausingState, endpoint_of, serving, sessions_of, settle, until
from http_stage import Stage
from http_wire import Exchange, HttpWire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


class OddError(BaseException):
    """Neither an `Exception` nor a cancellation."""


class OddStage(Stage):
    def __init__(self) -> None:
        super().__init__()
        self.server.add_tool(self.odd)

    async def odd(self, ctx: Context) -> str:
        await ctx.warning("first")
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            raise OddError from None
        return "even"


def batch(wire: HttpWire, *names: str) -> Exchange:
    calls = [wire.message("tools/call", {"name": name, "arguments": {}}, id=id) for id, name in enumerate(names, 1)]
    return wire.raw("POST", json.dumps(calls).encode())


# ── sessions that end meanwhile ──


@pytest.mark.parametrize("first", ["GET", "DELETE"])
async def test_no_stream_stays_open_on_a_session_that_ends_at_the_same_moment(first: str) -> None:
    async with serving(Stage().server, state=PausingState()) as app:
        for turns in range(12):
            wire = await HttpWire.session(app)
            exchanges = [wire.raw(first)]
            await settle(turns)
            exchanges.append(wire.raw("DELETE" if first == "GET" else "GET"))
            for each in exchanges:
                await each.done(2)
                assert each.status in (200, 204, 404)


class EndsUnheard(MemoryState):
    """Its session ends at the last moment at which nobody listens."""

    session = ""

    def listen(self, topics: Iterable[str]) -> Listener:
        self._entries.discard(topic(self.session))
        return super().listen(topics)


async def test_a_session_that_ends_before_somebody_listens_has_no_stream() -> None:
    state = EndsUnheard()
    async with serving(Stage().server, state=state) as app:
        wire = await HttpWire.session(app)
        state.session = str(wire.session_id)
        refused = await wire.get().done(2)
        assert (refused.status, refused.json["error"]["code"]) == (404, -32600)


async def test_no_call_goes_on_in_a_session_that_ends_at_the_same_moment() -> None:
    stage = Stage()
    async with serving(stage.server, state=PausingState()) as app:
        for turns in range(12):
            wire = await HttpWire.session(app)
            ending = wire.raw("DELETE")
            await settle(turns)
            calls = [wire.start_call("work") for _ in range(3)]
            for each in (ending, *calls):
                await each.done(2)


@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25"])
async def test_a_call_whose_session_was_ended_ends(version: str) -> None:
    """Also if that was before the call was among those that an ending session cancels."""
    stage = Stage()
    async with serving(stage.server, keep_alive=0.02) as app:
        wire = await HttpWire.session(app, version)
        call = batch(wire, "work", "work") if version == "2025-03-26" else wire.start_call("work")
        await stage.entered.wait()
        await sessions_of(app).end(str(wire.session_id))
        await call.done(2)
        assert stage.cancelled.is_set()
        assert call.messages == []


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_stream_ends_with_its_session_that_has_expired(resumed: bool) -> None:
    stage, clock = Stage(), Clock()
    async with serving(stage.server, clock=clock, session_timeout=100, keep_alive=0.01) as app:
        wire = await HttpWire.session(app)
        last = None
        if resumed:
            call = wire.start_call("tell")
            last = (await call.event()).id
            call.leave()
        stream = await wire.get(last).started()
        await settle()
        assert not stream.ended
        clock.sleep(101)
        await stream.done(2)
        assert (await wire.get().done()).status == 404
        stage.go.set()


# ── batches: one connection, looked after once ──


async def test_a_batch_has_the_keep_alives_of_one_connection() -> None:
    stage = Stage()
    async with serving(stage.server, keep_alive=0.05) as app:
        wire = await HttpWire.session(app, "2025-03-26")
        begun = asyncio.get_running_loop().time()
        running = batch(wire, *["work"] * 20)
        await running.until(lambda: running.raw.count(sse.KEEP_ALIVE) >= 2)
        await settle()
        assert running.raw.count(sse.KEEP_ALIVE) <= 1 + (asyncio.get_running_loop().time() - begun) / 0.05
        stage.go.set()
        assert len((await running.done()).answer) == 20


@pytest.mark.rule("SH-15")
async def test_the_request_of_a_batch_ends_when_its_client_has_left_and_the_batch_goes_on() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, "2025-03-26")
        running = batch(wire, "work", "work")
        await stage.entered.wait()
        running.leave(quietly=True)
        await running.done(2)
        assert len(endpoint_of(app)._calls.here) == 2
        assert not stage.cancelled.is_set()
        stage.go.set()
        await until(lambda: not endpoint_of(app)._calls.here)


# ── failures that are no exceptions ──


@pytest.mark.rule("CAN-2")
async def test_an_odd_end_of_a_cancelled_call_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    stage = OddStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("odd", id=5)
        await stage.entered.wait()
        await wire.notify("notifications/cancelled", {"requestId": 5})
        await call.done(2)
        assert [each["params"]["data"] for each in call.messages] == ["first"]
        assert "OddError" in caplog.text


@pytest.mark.rule("CAN-2")
async def test_an_odd_end_of_one_call_costs_a_batch_none_of_the_other_answers() -> None:
    stage = OddStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, "2025-03-26")
        running = batch(wire, "odd", "work")
        await until(lambda: stage.entered.is_set() and stage.ran == ["work"])
        await wire.notify("notifications/cancelled", {"requestId": 1})
        await settle()
        stage.go.set()
        answer: Any = (await running.done(2)).answer
        assert [each["id"] for each in answer] == [2]
