"""The stream that a session GETs: what has changed, nothing else, and nothing lost."""

import json

import pytest
from changes_stage import RESOURCES, TOOLS, UPDATED, leave, methods

from dovetail.engine.subscriptions import Change
from dovetail.state.memory import MemoryState
from http_serving import serving, settle, until
from http_stage import HANDSHAKE, Stage
from http_wire import CLIENT, HttpWire

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
