"""What clients may make the server hold, all together: bodies on their way, answers that nobody reads, streams."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from old_client import PROMPTLY, OldClient
from old_client import Stage as OldStage

from dovetail import PageRequest, Server
from dovetail.transports import sse, traffic, visit
from dovetail.transports.http import HttpApp
from http_serving import serving, settle, until
from http_stage import Stage
from http_wire import Exchange, HttpWire

KIB = 1024
LISTEN = {"notifications": {"toolsListChanged": True}}


# ── bodies that are being read ──


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "BODY_BYTES", 1000 * KIB)


@asynccontextmanager
async def bounded() -> AsyncIterator[HttpApp]:
    """Room for two bodies of 400 KiB, and no third; in the end nothing is held."""
    server = Server("bounded", version="1.0.0")

    @server.custom_route("/page", methods=["POST"])
    async def page(request: PageRequest) -> str:
        return str(len(await request.body()))

    @server.tool
    def size(text: str) -> int:
        return len(text)

    async with serving(server, max_body_bytes=400 * KIB, body_timeout=0.5) as app:
        yield app
        await until(lambda: held(app) == 0)


def held(app: HttpApp) -> int:
    assert app._stay is not None
    return app._stay.traffic.bodies.held


def unfinished(app: HttpApp, path: str = "/mcp", size: int = 400 * KIB) -> Exchange:
    """A client that sends nearly all of a body, and then nothing."""
    return HttpWire(app).raw("POST", [b"x" * KIB] * (size // KIB - 1), path=path, complete=False)


async def two_that_wait(app: HttpApp) -> list[Exchange]:
    waiting = [unfinished(app), unfinished(app, "/page")]
    await until(lambda: held(app) == 2 * 399 * KIB)
    return waiting


async def test_bodies_have_a_common_limit() -> None:
    async with bounded() as app:
        waiting = await two_that_wait(app)
        for path in ("/mcp", "/page"):
            refused = await unfinished(app, path).done(0.3)
            assert refused.status == 503
            assert refused.headers["retry-after"]
            assert "bodies" in refused.json["error"]["message"]
        assert held(app) == 2 * 399 * KIB  # what was refused holds nothing
        for each in waiting:
            assert (await each.done()).status == 408
        assert held(app) == 0


async def test_messages_beside_a_stream_share_it() -> None:
    async with bounded() as app:
        client = await OldClient(app).open()
        waiting = await two_that_wait(app)
        refused = await client.post(b"x", query=client.query).done()
        assert refused.status == 400  # small ones are read on
        large = client.wire.raw("POST", [b"x" * KIB] * 399, path="/messages", query=client.query, complete=False)
        assert (await large.done(0.3)).status == 503
        for each in waiting:
            each.leave()
        await client.leave()


async def test_small_bodies_are_served_whatever_the_others_hold() -> None:
    async with bounded() as app:
        waiting = await two_that_wait(app)
        wire = HttpWire(app)
        headers: dict[str, str | None] = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
        text = "x" * (visit.FREE_BYTES - 1000)
        message = json.dumps(wire.message("tools/call", {"name": "size", "arguments": {"text": text}})).encode()
        pieces = [message[begin : begin + 1000] for begin in range(0, len(message), 1000)]
        answer = await wire.raw("POST", pieces, {**headers, "mcp-name": "size"}).done(0.3)
        assert answer.answer["result"]["content"][0]["text"] == str(len(text))
        for each in waiting:
            each.leave()


@pytest.mark.parametrize("path", ["/mcp", "/page"])
async def test_who_leaves_gives_its_room_back(path: str) -> None:
    async with bounded() as app:
        for quietly in (False, True):
            leaving = unfinished(app, path)
            await until(lambda: held(app) > 0)
            leaving.leave(quietly=quietly)
            await leaving.done(0.3)
            assert held(app) == 0
        cut = unfinished(app, path)
        await until(lambda: held(app) > 0)
        await cut.cut()
        assert held(app) == 0


async def test_a_body_that_is_read_or_refused_gives_its_room_back() -> None:
    async with bounded() as app:
        for _ in range(5):
            whole = await HttpWire(app).raw("POST", [b"x" * KIB] * 400, path="/page").done()
            assert whole.raw == b"%d" % (400 * KIB)
            too_large = await HttpWire(app).raw("POST", [b"x" * KIB] * 401, path="/page").done()
            assert too_large.status == 413
            assert held(app) == 0


async def test_the_largest_body_always_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "BODY_BYTES", 10)
    async with serving(Stage().server, max_body_bytes=100 * KIB) as app:
        whole = await HttpWire(app).raw("POST", [b"x" * KIB] * 100).done()
        assert whole.status == 400


# ── answers that wait for a client of HTTP+SSE ──


async def call_many(client: OldClient, stage: OldStage, calls: int, size: int) -> None:
    """Answers that are all there at the same moment."""

    async def held_back(size: int) -> str:
        await stage.go.wait()
        return "x" * size

    stage.server.add_tool(held_back)
    for number in range(calls):
        params = {"name": "held_back", "arguments": {"size": size}}
        message = {"jsonrpc": "2.0", "id": f"c{number}", "method": "tools/call", "params": params}
        assert (await client.post(message).done()).status == 202


async def endless(client: OldClient, stage: OldStage) -> None:
    """One more call, which never ends by itself."""

    async def sleep() -> None:
        await asyncio.Event().wait()

    stage.server.add_tool(sleep)
    await client.begin("sleep")


async def test_a_client_that_lets_too_much_wait_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sse, "MOST_BYTES", 100_000)
    async with OldStage.live(caplog) as stage:
        client = await OldClient(stage.serve()).open()
        await client.shake_hands()
        client.stream.stall()
        with caplog.at_level(logging.WARNING, "dovetail"):
            await call_many(client, stage, 50, 10_000)
            stage.go.set()
            await client.stream.done(PROMPTLY)
        assert [record.getMessage() for record in caplog.records] == [
            "an SSE client was left: more than 100000 bytes waited for it"
        ]
        assert (await client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}).done()).status == 404


async def test_one_large_answer_is_no_reason(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sse, "MOST_BYTES", 1000)
    async with OldStage.live(caplog) as stage:
        client = await OldClient(stage.serve()).open()
        await client.shake_hands()
        for _ in range(3):
            assert len(await client.call("large", size=100_000)) == 100_000
        await client.leave()


async def test_a_client_is_given_up_during_a_drain_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sse, "MOST_BYTES", 100_000)
    async with OldStage.live(caplog) as stage:
        app = stage.serve()
        client = await OldClient(app).open()
        await client.shake_hands()
        client.stream.stall()
        await call_many(client, stage, 50, 10_000)
        await endless(client, stage)
        drain = asyncio.create_task(app.drain(30))
        await settle()
        stage.go.set()
        await asyncio.wait_for(drain, 2)
        await client.stream.done(PROMPTLY)


# ── streams whose client does not read ──


async def get_stream(stage: Stage, app: HttpApp) -> Exchange:
    return await (await HttpWire.session(app)).get().started()


async def listen_stream(stage: Stage, app: HttpApp) -> Exchange:
    listen = HttpWire(app).start("subscriptions/listen", LISTEN)
    await listen.message()
    return listen


async def old_stream(stage: Stage, app: HttpApp) -> Exchange:
    return (await OldClient(app).open()).stream


async def old_session(stage: Stage, app: HttpApp) -> Exchange:
    client = await OldClient(app).open()
    await client.shake_hands()
    return client.stream


STREAMS = {"GET": get_stream, "listen": listen_stream, "SSE": old_stream, "SSE with a session": old_session}


@pytest.mark.parametrize("told", ["nothing to tell", "something to tell"])
@pytest.mark.parametrize("kind", STREAMS)
async def test_a_drain_is_over_within_a_second(kind: str, told: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        streams = [await STREAMS[kind](stage, app) for _ in range(3)]
        await settle()
        for stream in streams:
            stream.stall()
        if told == "something to tell":
            stage.change_tools()
            await settle()
        begun = time.monotonic()
        await app.drain(30)
        for stream in streams:
            await stream.done(0.1)
        assert time.monotonic() - begun < 1


async def test_a_drain_with_all_kinds_of_streams_is_over_within_a_second() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        streams = [await open_stream(stage, app) for open_stream in STREAMS.values()]
        await settle()
        for stream in streams:
            stream.stall()
        stage.change_tools()
        await settle()
        begun = time.monotonic()
        await app.drain(30)
        for stream in streams:
            await stream.done(0.1)
        assert time.monotonic() - begun < 1


async def test_changes_that_wait_for_a_full_stream_do_not_hold_up_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "FULL_BYTES", 10)
    stage = Stage()
    async with serving(stage.server) as app:
        stream = await old_session(stage, app)
        stream.stall()
        for _ in range(5):
            stage.change_tools()
            await settle()
        await asyncio.wait_for(app.drain(30), 1)
        await stream.done(0.1)


async def test_the_rest_of_a_call_is_given_up_when_the_call_is_over() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("tell")
        first = await call.event()
        call.leave()
        tail = wire.get(first.id)
        await tail.message()
        tail.stall()
        drain = asyncio.create_task(app.drain(30))
        await settle()
        assert not drain.done()
        stage.go.set()
        await asyncio.wait_for(drain, 1)
        await tail.done(0.1)


@pytest.mark.parametrize("kind", ["GET", "SSE"])
async def test_who_reads_gets_the_end_of_its_stream(kind: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        stream = await STREAMS[kind](stage, app)
        await app.drain(30)
        await stream.done(0.1)
        assert stream.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
