"""`subscriptions/listen` over HTTP: a stream that is a request, of which a client may have several."""

import asyncio
from typing import Any

import pytest
from session_opening import identify

from dovetail.engine.subscriptions import Change
from http_serving import endpoint_of, serving, settle, until
from http_stage import Stage
from http_wire import Exchange, HttpWire

ALL = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
KEY = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS = "notifications/tools/list_changed"


def listen(app: Any, wanted: dict[str, Any] | None = None, **options: Any) -> Exchange:
    return HttpWire(app).start("subscriptions/listen", {"notifications": ALL if wanted is None else wanted}, **options)


def on(*uris: str) -> dict[str, Any]:
    return {"resourceSubscriptions": list(uris)}


async def leave(*streams: Exchange) -> None:
    for stream in streams:
        stream.leave()
        await stream.done()


# ── what is on it ──


@pytest.mark.rule("SUB-2", "SUB-3", "SUB-4", "MH-11")
async def test_the_acknowledgement_comes_first_and_says_what_is_honoured() -> None:
    async with serving(Stage().server) as app:
        stream = listen(app, {**ALL, **on("test://one", "test://nowhere")}, id="l1")
        first = await stream.message()
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["x-accel-buffering"] == "no"
        assert first["method"] == ACKNOWLEDGED
        assert first["params"]["_meta"] == {KEY: "l1"}
        honoured = first["params"]["notifications"]
        assert honoured == {"toolsListChanged": True, "resourcesListChanged": True, **on("test://one")}
        await leave(stream)


@pytest.mark.parametrize("id", [1, "1", 0, "", 2**53 + 1, "ÿ\u2028"])
@pytest.mark.rule("SUB-4")
async def test_ids_keep_their_type(id: int | str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        stream = listen(app, id=id)
        await stream.message()
        stage.change_tools()
        changed = await stream.message()
        assert changed["params"]["_meta"] == {KEY: id}
        assert type(changed["params"]["_meta"][KEY]) is type(id)
        await leave(stream)


@pytest.mark.rule("SUB-1")
async def test_only_what_was_asked_for_is_told() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        tools, one, nothing = listen(app, {"toolsListChanged": True}), listen(app, on("test://one")), listen(app, {})
        for stream in (tools, one, nothing):
            await stream.message()
        stage.change_tools()
        stage.server.engine.publish(Change("resources"))
        stage.server.notify_resource_updated("test://two")
        stage.server.notify_resource_updated("test://one")
        assert (await tools.message())["method"] == TOOLS
        assert (await one.message())["params"]["uri"] == "test://one"
        await settle()
        assert [len(stream.messages) for stream in (tools, one, nothing)] == [2, 2, 1]
        await leave(tools, one, nothing)


@pytest.mark.rule("SUB-9", "PROG-10", "MH-8")
@pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")
async def test_neither_logs_nor_progress_are_on_it() -> None:
    stage = Stage()
    stage.go.set()
    async with serving(stage.server) as app:
        meta = {"_meta": {"io.modelcontextprotocol/logLevel": "debug", "progressToken": "p"}}
        stream = HttpWire(app).start("subscriptions/listen", {"notifications": ALL, **meta})
        await stream.message()
        assert (await HttpWire(app).start_call("tell", meta=meta["_meta"]).done()).is_stream
        await settle()
        assert len(stream.messages) == 1
        await leave(stream)


@pytest.mark.rule("MH-30", "SUB-11")
async def test_it_has_no_event_ids_and_nothing_is_replayed() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        stream = listen(app)
        await stream.message()
        await leave(stream)
        stage.change_tools()
        await settle()
        again = listen(app, headers={"last-event-id": "changes.0"})
        assert (await again.message())["method"] == ACKNOWLEDGED
        await settle()
        assert len(again.messages) == 1
        assert b"id: " not in again.raw
        await leave(again)


@pytest.mark.rule("SUB-10", "MH-12")
async def test_it_is_kept_alive() -> None:
    async with serving(Stage().server, keep_alive=0.02) as app:
        stream = listen(app)
        await until(lambda: stream.raw.count(b": keep-alive\n\n") == 3)
        assert len(stream.messages) == 1
        await leave(stream)


# ── how it ends ──


@pytest.mark.rule("SUB-7")
async def test_the_server_ends_it_with_its_result() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        streams = [listen(app, id=id) for id in (1, "1", "x")]
        for stream in streams:
            await stream.message()
        stage.change_tools()
        await asyncio.wait_for(app.drain(), 1)
        for stream, id in zip(streams, (1, "1", "x"), strict=True):
            await stream.done()
            *_, changed, last = stream.messages
            assert changed["method"] == TOOLS  # what was said before is still told
            assert last["id"] == id
            assert type(last["id"]) is type(id)
            assert last["result"]["resultType"] == "complete"
            assert last["result"]["_meta"][KEY] == id
            assert stream.sent[-1]["more_body"] is False


@pytest.mark.parametrize("how", ["leave", "cut"])
@pytest.mark.rule("MH-13", "CAN-8")
async def test_who_leaves_hears_nothing_more(how: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        stream = listen(app, {**ALL, **on("test://one")})
        await stream.message()
        assert stage.server.engine.hub._wanted
        if how == "cut":
            await stream.cut()
        else:
            await leave(stream)
        stage.change_tools()
        await settle()
        assert len(stream.messages) == 1
        assert not stage.server.engine.hub._wanted
        assert not app._stay.traffic._streams


# ── bounds ──


async def test_there_are_only_so_many() -> None:
    async with serving(Stage().server, max_streams=2) as app:
        streams = [listen(app) for _ in range(2)]
        for stream in streams:
            await stream.message()
        refused = await listen(app, id=9).done()
        assert refused.status == 503
        assert refused.json["id"] == 9
        assert "max_streams" in refused.json["error"]["message"]
        assert (await HttpWire(app).call("add", {"a": 1, "b": 2})).status == 200
        await leave(streams[0])
        again = listen(app)
        assert (await again.message())["method"] == ACKNOWLEDGED
        await leave(again, streams[1])


async def test_one_caller_keeps_nobody_from_streams() -> None:
    """The one that holds most gives up its oldest, of whatever kind, to whoever holds less; and has a cap besides."""
    stage = Stage()
    async with serving(stage.server, max_streams=4, max_per_caller=3, identify=identify) as app:
        bob, ann = {"x-user": "bob"}, {"x-user": "ann"}
        session = await HttpWire.session(app, headers=bob)
        tail = await session.get().started()
        old = HttpWire(app, headers=bob).raw("GET", b"", {"accept": "text/event-stream"}, path="/sse")
        await old.event()
        third = listen(app, headers=bob)
        await third.message()
        refused = await listen(app, headers=bob).done()
        assert refused.status == 429
        assert "max_per_caller" in refused.json["error"]["message"]
        streams = [listen(app, headers=ann) for _ in range(2)]
        for stream in streams:
            assert (await stream.message())["method"] == ACKNOWLEDGED
        await tail.done()  # the oldest of those who held most
        assert not old.ended
        refused = await listen(app, headers=ann).done()  # now both have two
        assert refused.status == 503
        assert app._stay.traffic.open_streams == 4
        await leave(old, third, *streams)


async def test_it_does_not_count_as_a_call() -> None:
    """However many listen: calls find their place."""
    stage = Stage(max_concurrency=1, max_queue=0)
    async with serving(stage.server) as app:
        streams = [listen(app) for _ in range(5)]
        for stream in streams:
            await stream.message()
        assert (await HttpWire(app).call("add", {"a": 1, "b": 2})).json["result"]
        assert not endpoint_of(app)._calls.here
        await leave(*streams)


async def test_who_does_not_read_streams_can_not_listen() -> None:
    async with serving(Stage().server) as app:
        refused = await listen(app, headers={"accept": "application/json"}, id=3).done()
        assert refused.status == 406
        assert refused.json["id"] == 3
        assert not app._stay.traffic._streams
