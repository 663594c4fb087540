"""Change notifications over HTTP: `subscriptions/listen`, of which a client may have several, and GET streams."""

import asyncio
import json
import random
from typing import Any

import pytest
from http_clients import ACKNOWLEDGED, INVALID_REQUEST, LOGS, TOOLS, check_refusal, gone, identify, leave, methods

from dovetail.engine.subscriptions import Change
from dovetail.state.memory import MemoryState
from http_serving import PausingState, Serve, Stage, serving, settle, until
from http_wire import HANDSHAKE, HttpExchange, HttpWire, unready

ALL = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
KEY = "io.modelcontextprotocol/subscriptionId"


def listen(app: Any, wanted: dict[str, Any] | None = None, **options: Any) -> HttpExchange:
    return HttpWire(app).start("subscriptions/listen", {"notifications": ALL if wanted is None else wanted}, **options)


def on(*uris: str) -> dict[str, Any]:
    return {"resourceSubscriptions": list(uris)}


@pytest.mark.rule("SUB-1", "SUB-2", "SUB-3", "SUB-4", "SUB-7", "SUB-9", "SUB-11", "PROG-10", "MH-8", "MH-11", "MH-30")
@pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")
async def test_only_what_was_asked_for_is_notified_and_neither_logs_nor_progress(stage: Stage, app: Any) -> None:
    """The acknowledgement comes first, and says what is honoured."""
    wants = {0: {"toolsListChanged": True}, "1": on("test://one", "test://nowhere"), "": {}}
    streams = [
        HttpWire(app).start("subscriptions/listen", {"notifications": each, "_meta": LOGS}, id=id)
        for id, each in wants.items()
    ]
    for (id, wanted), stream in zip(wants.items(), streams, strict=True):
        first = await stream.message()
        assert (first["method"], first["params"]["_meta"]) == (ACKNOWLEDGED, {KEY: id})
        assert first["params"]["notifications"] == (on("test://one") if id == "1" else wanted)
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["x-accel-buffering"] == "no"
    stage.go.set()
    assert (await HttpWire(app).start_call("warn", meta=LOGS).done()).is_stream
    stage.change_tools()
    stage.server.engine.publish(Change("resources"))
    stage.server.notify_resource_updated("test://two")
    stage.server.notify_resource_updated("test://one")
    changed = await streams[0].message()
    assert (changed["method"], changed["params"]["_meta"]) == (TOOLS, {KEY: 0})
    assert (await streams[1].message())["params"]["uri"] == "test://one"
    await settle()
    assert [len(stream.messages) for stream in streams] == [2, 2, 1]
    again = listen(app, headers={"last-event-id": "changes.0"})  # it has no event ids, and nothing is replayed
    await again.message()
    await settle()
    assert [len(again.messages), *(stream.raw.count(b"id: ") for stream in (again, *streams))] == [1, 0, 0, 0, 0]
    await leave(again)
    stage.change_tools()
    await asyncio.wait_for(app.drain(), 5)  # the server ends it with its result, and what was notified before is sent
    assert methods(await streams[0].done())[-2:] == [TOOLS, "answer"]
    for id, stream in zip(wants, streams, strict=True):
        last = (await stream.done()).answer
        assert (last["id"], type(last["id"]), stream.sent[-1]["more_body"]) == (id, type(id), False)
        assert (last["result"]["resultType"], last["result"]["_meta"][KEY]) == ("complete", id)


async def open_stream(app: Any, kind: str, **options: Any) -> HttpExchange:
    return listen(app, **options) if kind == "listen" else (await HttpWire.session(app, **options)).get()


both_kinds = pytest.mark.parametrize("kind", ["GET", "listen"])


@both_kinds
@pytest.mark.parametrize("how", ["leave", "cut"])
@pytest.mark.rule("MH-13", "CAN-8")
async def test_who_leaves_leaves_nothing_behind(stage: Stage, app: Any, kind: str, how: str) -> None:
    before = asyncio.all_tasks()
    for _ in range(3):
        stream = await (await open_stream(app, kind)).started()
        await settle()
        received = len(stream.messages)
        await gone(stream, how)
        await asyncio.wait({stream.task})
        stage.change_tools()
        await settle()
        assert len(stream.messages) == received
    assert asyncio.all_tasks() == before


@both_kinds
@pytest.mark.parametrize("accept", ["application/json", "text/html"])
async def test_who_does_not_read_streams_gets_none(app: Any, kind: str, accept: str) -> None:
    refused = await (await open_stream(app, kind, headers={"accept": accept})).done()
    check_refusal(refused, 406, INVALID_REQUEST, 1 if kind == "listen" else None)


@both_kinds
@pytest.mark.rule("MH-12", "SUB-10")
async def test_silent_streams_are_kept_alive_and_there_are_only_so_many(serve: Serve, kind: str) -> None:
    app = await serve(max_streams=2, keep_alive=0.02)
    streams = [await (await open_stream(app, kind)).started() for _ in range(2)]
    await until(lambda: streams[0].raw.count(b": keep-alive\n\n") >= 3)
    assert len(streams[0].messages) == (kind == "listen")
    refused = await (await open_stream(app, kind)).done()
    assert (refused.status, "max_streams" in refused.json["error"]["message"]) == (503, True)
    assert refused.headers["retry-after"]
    assert (await HttpWire(app).call("add", {"a": 1, "b": 2})).status == 200
    await leave(streams[0])
    third = await (await open_stream(app, kind)).started()
    assert third.status == 200
    await leave(streams[1], third)


async def test_one_caller_keeps_no_other_from_streams(serve: Serve) -> None:
    """The one that holds most gives up its oldest, of any kind, to one that holds less; and has a cap besides."""
    app = await serve(max_streams=4, max_per_caller=3, identify=identify)
    bob, ann = {"x-user": "bob"}, {"x-user": "ann"}
    get_stream = await (await open_stream(app, "GET", headers=bob)).started()
    old = HttpWire(app, headers=bob).raw("GET", b"", {"accept": "text/event-stream"}, path="/sse")
    third = listen(app, headers=bob)
    await asyncio.gather(old.event(), third.event())
    refused = await listen(app, headers=bob).done()
    assert (refused.status, "max_per_caller" in refused.json["error"]["message"]) == (429, True)
    streams = [listen(app, headers=ann) for _ in range(2)]
    for stream in streams:
        assert (await stream.message())["method"] == ACKNOWLEDGED
    await get_stream.done()  # the oldest of those who held most
    assert not old.ended
    assert (await listen(app, headers=ann).done()).status == 503  # now both have two
    await leave(old, third, *streams)


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-9", "SH-12", "SH-16", "SH-17", "SH-18", "SH-20")
async def test_a_session_is_notified_of_what_has_changed_and_the_stream_of_a_call_is_not(
    stage: Stage, app: Any, version: str
) -> None:
    stage.server.engine.publish(Change("resources"))  # before the session: it need not be notified
    await settle()
    wire = await HttpWire.session(app, version)
    for uri in ("test://one", "test://two"):
        await wire.ask("resources/subscribe", {"uri": uri})
    await wire.ask("resources/unsubscribe", {"uri": "test://two"})
    early = await unready(app)
    waiting, stream = await early.get().started(), await wire.get().started()
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
    assert stream.headers["x-accel-buffering"] == "no"
    call = wire.start_call("warn")
    await stage.entered.wait()
    stage.change_tools()
    assert (await stream.message())["method"] == TOOLS
    for uri in ("test://two", "test://one"):
        stage.server.notify_resource_updated(uri)
    assert (await stream.message())["params"] == {"uri": "test://one"}
    stage.go.set()
    await call.done()
    await settle()
    assert methods(stream) == [TOOLS, "notifications/resources/updated"]
    assert (b"retry: 1000\n" in stream.raw) == (version == "2025-11-25")
    assert methods(call) == ["notifications/message", "notifications/message", "answer"]
    assert waiting.messages == []  # its client is not ready yet
    await early.notify("notifications/initialized")
    assert (await waiting.message())["method"] == TOOLS
    await leave(stream, waiting)


@pytest.mark.parametrize("state", [MemoryState, PausingState])
@pytest.mark.rule("SH-20")
async def test_a_take_over_at_any_moment_loses_nothing_and_repeats_nothing(state: type[MemoryState]) -> None:
    for turns in range(25):
        stage = Stage()
        async with serving(stage.server, state=state()) as app:
            wire = await HttpWire.session(app)
            older = wire.get()
            await older.event()
            stage.change_tools()
            await settle(turns)
            newer = wire.get()
            await newer.event()
            await older.done()
            assert older.sent[-1]["more_body"] is False
            await settle(50)
            assert [*methods(older), *methods(newer)] == [TOOLS], turns
            stage.change_tools()
            assert (await newer.message())["method"] == TOOLS
            await leave(newer)


async def test_a_stream_that_hangs_is_taken_over(stage: Stage, wire: HttpWire) -> None:
    older = wire.get()
    await older.event()
    older.stall()
    stage.change_tools()
    await until(lambda: bool(older.messages))  # in some buffer, from where it may never go on
    newer = wire.get()
    assert (await newer.message())["method"] == TOOLS
    await leave(older, newer)
    assert len(older.messages) == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("state", [MemoryState, PausingState])
async def test_who_loses_every_connection_is_notified_of_everything(
    stage: Stage, serve: Serve, state: type[MemoryState], seed: int
) -> None:
    chance = random.Random(seed)
    uris = [f"test://n{number}" for number in range(20)]
    for uri in uris:
        stage.server.add_resource(uri, lambda: "x", name=uri)
    wire = await HttpWire.session(await serve(state=state()))
    for uri in uris:
        await wire.ask("resources/subscribe", {"uri": uri})
    stream, last, received = wire.get(), None, []
    for uri in uris:
        stage.server.notify_resource_updated(uri)
        await settle(chance.randrange(12))
        if stream.events and chance.random() < 0.5:
            taken = stream.events[: chance.randrange(1, 4)]  # the rest was lost on its way
            received += [json.loads(event.data).get("params", {}).get("uri") for event in taken if event.data]
            last = taken[-1].id
            if chance.random() < 0.5:
                stream.leave()
            stream = wire.get(last)
    await stream.until(lambda: any(uris[-1].encode() in event.data for event in stream.events))
    received += [message["params"].get("uri") for message in stream.messages if "params" in message]
    assert [uri for uri in received if uri] == uris
    await leave(stream)
