"""The stream that a session GETs: what has changed, nothing else, and nothing lost."""

import asyncio
import json
import random
from typing import Any

import pytest

from dovetail.engine.streams import Change
from dovetail.state.base import NoRoom
from dovetail.state.memory import MemoryState
from http_serving import Clock, PausingState, endpoint_of, serving, settle, until
from http_stage import HANDSHAKE, Stage
from http_wire import CLIENT, Exchange, HttpWire

TOOLS = "notifications/tools/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"


def methods(stream: Exchange) -> list[str]:
    return [message["method"] for message in stream.messages]


async def leave(*streams: Exchange) -> None:
    for stream in streams:
        stream.leave()
        await stream.done()


# ── what is on it ──


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-16", "SH-17", "SH-18", "SH-20")
async def test_a_session_hears_of_what_has_changed(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        await wire.ask("resources/subscribe", {"uri": "test://one"})
        stream = await wire.get().started()
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["x-accel-buffering"] == "no"
        stage.change_tools()
        assert (await stream.message())["method"] == TOOLS
        stage.server.notify_resource_updated("test://one")
        assert (await stream.message())["params"] == {"uri": "test://one"}
        stage.server.notify_resource_updated("test://two")
        stage.go.set()
        await wire.call("tell")
        await wire.call("add", {"a": 1, "b": 2})
        await settle()
        assert methods(stream) == [TOOLS, UPDATED]
        await leave(stream)


async def test_a_new_tool_and_a_removed_one_are_told() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        stage.server.add_tool(stage.work, name="more")
        assert (await stream.message())["method"] == TOOLS
        stage.server.remove_tool("more")
        assert (await stream.message())["method"] == TOOLS
        await leave(stream)


async def test_unsubscribing_ends_it() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        for uri in ("test://one", "test://two"):
            await wire.ask("resources/subscribe", {"uri": uri})
        await wire.ask("resources/unsubscribe", {"uri": "test://one"})
        for uri in ("test://one", "test://two"):
            stage.server.notify_resource_updated(uri)
        assert (await stream.message())["params"] == {"uri": "test://two"}
        await settle()
        assert len(stream.messages) == 1
        await leave(stream)


@pytest.mark.rule("SH-20")
async def test_every_session_hears_of_it_once() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wires = [await HttpWire.session(app) for _ in range(10)]
        streams = [await wire.get().started() for wire in wires]
        stage.change_tools()
        await until(lambda: all(stream.messages for stream in streams))
        await settle()
        assert [methods(stream) for stream in streams] == [[TOOLS]] * 10
        await leave(*streams)


async def test_a_server_that_announces_no_changes_tells_none() -> None:
    stage = Stage(list_changed=False)
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        stage.server.add_tool(stage.work, name="more")
        stage.change_tools()
        await settle()
        assert stream.messages == []
        await leave(stream)


async def test_nothing_is_told_before_the_client_is_ready() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        wire = HttpWire(app, "2025-11-25")
        answer = await wire.raw("POST", json.dumps(hello).encode()).done()
        wire.session_id = answer.headers["mcp-session-id"]
        stream = await wire.get().started()
        stage.change_tools()
        await settle()
        assert stream.messages == []
        await wire.notify("notifications/initialized")
        assert (await stream.message())["method"] == TOOLS
        await leave(stream)


# ── nothing is lost ──


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_changes_before_the_first_stream_are_told_on_it(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        await wire.ask("resources/subscribe", {"uri": "test://one"})
        stage.change_tools()
        stage.server.notify_resource_updated("test://one")
        stage.change_tools()
        await settle()
        stream = wire.get()
        heard = {(await stream.message())["method"] for _ in range(2)}
        assert heard == {TOOLS, UPDATED}
        await settle()
        assert len(stream.messages) == 2
        await leave(stream)


async def test_changes_before_the_session_are_not() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        stage.change_tools()
        await settle()
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        await settle()
        assert stream.messages == []
        await leave(stream)


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_changes_between_two_streams_are_told_on_the_second(version: str) -> None:
    """Also to a client that has no event id to come back with."""
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        for _ in range(3):
            stream = await wire.get().started()
            await settle()
            await leave(stream)
            assert stream.messages == []
            stage.change_tools()
            await settle()
            stream = wire.get()
            assert (await stream.message())["method"] == TOOLS
            await settle()
            await leave(stream)
            assert len(stream.messages) == 1


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-23", "SH-24")
async def test_who_says_what_it_has_is_told_the_rest(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        stream = await wire.get().started()
        stage.change_tools()
        await stream.message()
        first = stream.events[-1].id
        stage.server.engine.publish(Change("resources"))
        await stream.message()
        await leave(stream)
        again = wire.get(first)
        assert (await again.message())["method"] == RESOURCES
        assert again.events[-1].id == stream.events[-1].id
        await settle()
        assert len(again.messages) == 1
        await leave(again)


@pytest.mark.rule("SH-9", "SH-21")
async def test_the_priming_event_says_where_to_go_on() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        stream = wire.get()
        primed = await stream.event()
        assert primed.data == b""
        assert stream._decoder.retry == 1000
        await leave(stream)
        stage.change_tools()
        await settle()
        again = wire.get(primed.id)
        assert (await again.message())["method"] == TOOLS
        ids = [event.id for event in (*stream.events, *again.events)]
        assert len(set(ids)) == len(ids)
        await leave(again)


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18"])
async def test_older_clients_get_no_event_without_data(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        stream = wire.get()
        stage.change_tools()
        await stream.message()
        assert all(event.data for event in stream.events)
        assert b"retry" not in stream.raw
        await leave(stream)


async def test_who_missed_more_than_is_kept_is_told_of_everything() -> None:
    stage = Stage()
    async with serving(stage.server, state=MemoryState(max_log_bytes=400)) as app:
        wire = await HttpWire.session(app)
        await wire.ask("resources/subscribe", {"uri": "test://one"})
        for _ in range(5):
            stage.change_tools()
            await settle()
        stream = await wire.get("changes.0").started()
        await until(lambda: len(stream.messages) == 3)
        assert set(methods(stream)) == {TOOLS, RESOURCES, UPDATED}
        await leave(stream)


async def test_who_hears_of_a_thousand_changes_of_others_is_told_its_own() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        await wire.ask("resources/subscribe", {"uri": "test://one"})
        for number in range(1000):
            stage.server.notify_resource_updated(f"test://other/{number}")
        stage.server.notify_resource_updated("test://one")
        stream = wire.get()
        assert (await stream.message())["method"] == UPDATED
        await settle()
        assert len(stream.messages) == 1
        await leave(stream)


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
        assert endpoint_of(app)._tails._owners == {}


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
