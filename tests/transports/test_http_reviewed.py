"""What a review of the HTTP app has found: answers that were driven out, sessions that end meanwhile, odd failures."""

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
from dovetail.transports import event_log, sure_log
from http_serving import Clock, PausingState, endpoint_of, serving, sessions_of, settle, until
from http_stage import Stage, text_of
from http_wire import Exchange, HttpWire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


class OddError(BaseException):
    """Neither an `Exception` nor a cancellation."""


class OddStage(Stage):
    def __init__(self) -> None:
        super().__init__()
        self.server.add_tool(self.odd)
        self.server.add_tool(self.large)

    async def odd(self, ctx: Context) -> str:
        await ctx.warning("first")
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            raise OddError from None
        return "even"

    async def large(self, ctx: Context, size: int, times: int = 1) -> str:
        for _ in range(times):
            await ctx.warning("x" * size)
        return "y" * size


def batch(wire: HttpWire, *names: str) -> Exchange:
    calls = [wire.message("tools/call", {"name": name, "arguments": {}}, id=id) for id, name in enumerate(names, 1)]
    return wire.raw("POST", json.dumps(calls).encode())


def drop_all_but(state: MemoryState, records: int) -> None:
    """As if others had needed the room."""
    for name, log in tuple(state._logs.things.items()):
        if name.startswith("events/"):
            state._logs.trim(name, log, records)


# ── answers that are not kept any more ──


@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.rule("SH-23")
async def test_whoever_comes_back_for_an_answer_that_is_gone_is_told_so(kept: int) -> None:
    stage = Stage()
    stage.go.set()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = await wire.call("tell")
        primed, *_, before, answer = [event.id for event in call.events]
        drop_all_but(app._state, kept)
        for id in (primed, before):
            rest = await wire.get(id).done()
            if kept == 2:  # the answer and the end
                assert text_of(rest.answer) == "told"
            else:
                assert rest.status == 400
        rest = await wire.get(answer).done()  # it has everything
        assert (rest.status, rest.messages) == (200, [])


async def test_one_session_may_drive_out_the_answer_of_another_but_not_without_a_word() -> None:
    stage = OddStage()
    stage.go.set()
    async with serving(stage.server, state=MemoryState(max_log_bytes=100_000)) as app:
        ann, bob = await HttpWire.session(app), await HttpWire.session(app)
        call = await ann.call("tell")
        for _ in range(11):
            await bob.call("large", {"size": 5000})
        assert (await ann.get(call.events[-2].id).done()).status == 400


async def test_what_is_dropped_of_a_call_that_runs_does_not_keep_its_client_out() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell")
        primed = await call.event()
        await stage.entered.wait()
        drop_all_but(app._state, 0)
        rest = wire.get(primed.id)
        await rest.event()
        stage.go.set()
        assert [text_of(each) for each in (await rest.done()).messages if "result" in each] == ["told"]


async def test_a_noisy_call_loses_its_own_events_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sure_log, "KEEP_BYTES", 20_000)
    stage = OddStage()
    stage.go.set()
    async with serving(stage.server, state=MemoryState(max_log_bytes=60_000)) as app:
        ann, bob = await HttpWire.session(app), await HttpWire.session(app)
        quiet = await ann.call("tell")
        noisy = await bob.call("large", {"size": 5000, "times": 100})
        assert app._state.log_bytes < 25_000
        assert text_of((await ann.get(quiet.events[0].id).done()).answer) == "told"
        rest = await bob.get(noisy.events[0].id).done()
        assert [event.id for event in rest.events[1:]] == [event.id for event in noisy.events[-3:]]


async def test_an_answer_larger_than_what_a_stream_may_keep_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sure_log, "KEEP_BYTES", 1000)
    stage = OddStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = await wire.call("large", {"size": 5000, "times": 3})
        rest = await wire.get(call.events[0].id).done()
        assert [text_of(each) for each in rest.messages] == ["y" * 5000]


async def test_an_answer_that_the_backend_has_no_room_for_is_not_waited_for() -> None:
    stage = OddStage()
    async with serving(stage.server, state=MemoryState(max_log_bytes=4000)) as app:
        wire = await HttpWire.session(app)
        stage.go.set()
        told = await wire.call("tell")
        call = await wire.call("large", {"size": 5000})
        assert text_of(call.answer) == "y" * 5000
        rest = await wire.get(call.events[0].id).done()
        assert rest.answer["error"]["message"] == event_log.ANSWER_LOST
        assert text_of((await wire.get(told.events[0].id).done()).answer) == "told"


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
        assert not endpoint_of(app)._logs.running
        (name,) = [name for name in app._state._logs.things if name.startswith("events/")]
        left = app._state._logs.things[name].expires - app._state._clock()
        assert left <= endpoint_of(app)._logs.ttl
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
