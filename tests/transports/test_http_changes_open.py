"""The stream that a session GETs, while it is open: there is one at a time, and it is looked after."""

import asyncio
import json
import random
from typing import Any

import pytest
from changes_stage import RESOURCES, TOOLS, leave, methods

from dovetail.engine.subscriptions import Change
from dovetail.state.base import NoRoom
from dovetail.state.memory import MemoryState
from http_serving import Clock, PausingState, endpoint_of, serving, settle, until
from http_stage import Stage
from http_wire import Exchange, HttpWire

# ── one at a time ──


@pytest.mark.rule("SH-20")
async def test_the_newest_stream_owns_the_session() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        older = wire.get()
        await older.event()
        newer = wire.get()
        await newer.event()
        await older.done()
        assert older.sent[-1]["more_body"] is False
        stage.change_tools()
        assert (await newer.message())["method"] == TOOLS
        assert older.messages == []
        await leave(newer)
        assert endpoint_of(app)._streams._newest == {}


async def test_a_take_over_at_any_moment_loses_nothing_and_tells_nothing_twice() -> None:
    for turns in range(25):
        stage = Stage()
        async with serving(stage.server) as app:
            wire = await HttpWire.session(app)
            older = wire.get()
            await older.event()
            stage.change_tools()
            await settle(turns)
            newer = wire.get()
            await newer.event()
            await older.done()
            await settle()
            assert [*methods(older), *methods(newer)] == [TOOLS], turns
            await leave(newer)


async def test_a_take_over_with_a_backend_far_away_loses_nothing() -> None:
    for turns in range(25):
        stage = Stage()
        async with serving(stage.server, state=PausingState()) as app:
            wire = await HttpWire.session(app)
            older = wire.get()
            await older.event()
            stage.change_tools()
            await settle(turns)
            newer = wire.get()
            await older.done()
            await settle(50)
            assert TOOLS in [*methods(older), *methods(newer)], turns
            await leave(newer)


async def test_a_stream_that_hangs_is_taken_over() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        older = wire.get()
        await older.event()
        older.stall()
        stage.change_tools()
        await until(lambda: bool(older.messages))  # in some buffer, from where it may never go on
        newer = wire.get()
        assert (await newer.message())["method"] == TOOLS
        stage.server.engine.publish(Change("resources"))
        assert (await newer.message())["method"] == RESOURCES
        older.leave()
        await older.done()
        assert len(older.messages) == 1
        await leave(newer)


async def test_streams_of_calls_and_of_changes_do_not_take_over_each_other() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        changes = wire.get()
        await changes.event()
        call = wire.start_call("tell")
        first = await call.event()
        call.leave()
        rest = wire.get(first.id)
        await rest.message()
        stage.change_tools()
        assert (await changes.message())["method"] == TOOLS
        stage.go.set()
        await rest.done()
        assert not changes.ended
        assert [message.get("method") for message in rest.messages] == ["notifications/message"] * 2 + [None]
        await leave(changes)


# ── while it is open ──


@pytest.mark.rule("MH-12")
async def test_a_silent_stream_is_kept_alive() -> None:
    async with serving(Stage().server, keep_alive=0.02) as app:
        wire = await HttpWire.session(app)
        stream = wire.get()
        await until(lambda: stream.raw.count(b": keep-alive\n\n") == 3)
        assert stream.messages == []
        await leave(stream)


async def test_there_are_only_so_many() -> None:
    async with serving(Stage().server, max_streams=2) as app:
        wires = [await HttpWire.session(app) for _ in range(3)]
        streams = [await wire.get().started() for wire in wires[:2]]
        refused = await wires[2].get().done()
        assert refused.status == 503
        assert "max_streams" in refused.json["error"]["message"]
        assert refused.headers["retry-after"]
        await leave(streams[0])
        third = await wires[2].get().started()
        assert third.status == 200
        await leave(streams[1], third)


@pytest.mark.parametrize("how", ["leave", "cut"])
async def test_who_leaves_leaves_nothing_behind(how: str) -> None:
    async with serving(Stage().server) as app:
        wire = await HttpWire.session(app)
        before = asyncio.all_tasks()
        for _ in range(5):
            stream = await wire.get().started()
            await settle()
            if how == "cut":
                await stream.cut()
            else:
                await leave(stream)
        await settle()
        assert asyncio.all_tasks() == before
        assert not app._stay.traffic._streams


async def test_an_expired_session_gets_no_more_changes() -> None:
    clock = Clock()
    stage = Stage()
    async with serving(stage.server, clock=clock, session_timeout=100) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        clock.sleep(101)
        stage.change_tools()
        await stream.done()
        assert stream.messages == []


@pytest.mark.parametrize("accept", ["application/json", "text/html"])
async def test_who_does_not_read_streams_gets_none(accept: str) -> None:
    async with serving(Stage().server) as app:
        wire = await HttpWire.session(app, accept=accept)
        refused = await wire.get().done()
        assert refused.status == 406
        assert refused.json["error"]["code"] == -32600


async def sessions_with_streams(app: Any, count: int) -> list[Exchange]:
    return [await (await HttpWire.session(app)).get().started() for _ in range(count)]


async def test_a_client_that_reads_nothing_holds_up_nobody() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        slow, *others = await sessions_with_streams(app, 5)
        slow.stall()
        for _ in range(50):
            stage.change_tools()
            await until(lambda: all(stream.events[-1].data for stream in others))
            await settle()
        assert all(len(stream.messages) >= 1 for stream in others)
        assert len(slow.messages) <= 1
        slow.read_on()
        await until(lambda: len(slow.messages) == 2)  # what it missed, once
        await leave(slow, *others)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("state", [MemoryState, PausingState])
async def test_who_loses_every_connection_hears_of_everything(state: type[MemoryState], seed: int) -> None:
    chance = random.Random(seed)
    stage = Stage()
    uris = [f"test://n{number}" for number in range(20)]
    for uri in uris:
        stage.server.add_resource(uri, lambda: "x", name=uri)
    async with serving(stage.server, state=state()) as app:
        wire = await HttpWire.session(app)
        for uri in uris:
            await wire.ask("resources/subscribe", {"uri": uri})
        stream, last, heard = wire.get(), None, []
        for uri in uris:
            stage.server.notify_resource_updated(uri)
            await settle(chance.randrange(12))
            if stream.events and chance.random() < 0.5:
                taken = stream.events[: chance.randrange(1, 4)]  # the rest was lost on its way
                heard += [json.loads(event.data).get("params", {}).get("uri") for event in taken if event.data]
                last = taken[-1].id
                if chance.random() < 0.5:
                    stream.leave()
                stream = wire.get(last)
        await stream.until(lambda: any(uris[-1].encode() in event.data for event in stream.events))
        heard += [message["params"].get("uri") for message in stream.messages if "params" in message]
        assert [uri for uri in heard if uri] == uris
        await leave(stream)


async def test_a_stream_ends_properly_even_if_its_place_can_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        stage.change_tools()
        await stream.message()

        async def full(*_arguments: Any, **_options: Any) -> int:
            raise NoRoom("full")

        monkeypatch.setattr(app._state, "put", full)
        await app.drain()
        await stream.done()
        assert stream.sent[-1]["more_body"] is False
