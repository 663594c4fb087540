"""What clients may make the server hold: bodies, unread answers, streams, words of themselves; and limited calls."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from old_client import PROMPTLY, OldClient, connected
from old_client import Stage as OldStage

from dovetail import PageRequest, Server
from dovetail.protocol.session import MAX_CLIENT, MAX_RECORD, MAX_SUBSCRIPTIONS
from dovetail.transports import request, sse, traffic
from dovetail.transports.http import HttpApp
from http_serving import serving, settle, until
from http_stage import REVISIONS, Stage, open_wire, text_of
from http_wire import CLIENT, MODERN, Exchange, HttpWire
from wire import Wire

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


async def test_small_bodies_are_served_whatever_the_others_hold() -> None:
    async with bounded() as app:
        waiting = await two_that_wait(app)
        wire = HttpWire(app)
        headers: dict[str, str | None] = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
        text = "x" * (request.FREE_BYTES - 1000)
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


def limited(**options: Any) -> Server:
    server = Server("limited", version="1.0.0", **options)

    @server.tool
    async def free() -> str:
        return "done"

    @server.tool(rate_limit="1/hour")
    async def dear() -> str:
        return "done"

    return server


@pytest.mark.parametrize("version", REVISIONS)
async def test_the_servers_own_limit_is_a_429(version: str) -> None:
    async with serving(limited(rate_limit="2/hour")) as app:
        wire = await open_wire(app, version)
        for _ in range(2):
            assert text_of((await wire.call("free")).answer) == "done"
        refused = await wire.call("free")
        assert refused.status == 429
        seconds = int(refused.headers["retry-after"])
        assert 0 < seconds <= 3600
        assert refused.json["error"]["data"] == {"retryAfter": seconds}
        assert (await wire.post("tools/list")).status == 200  # which does not count


@pytest.mark.parametrize("version", REVISIONS)
async def test_a_tools_limit_is_told_to_the_model(version: str) -> None:
    async with serving(limited()) as app:
        wire = await open_wire(app, version)
        assert text_of((await wire.call("dear")).answer) == "done"
        told = await wire.call("dear")
        assert (told.status, told.answer["result"]["isError"]) == (200, True)
        assert "dear" in text_of(told.answer)
        assert text_of((await wire.call("free")).answer) == "done"


def crowded(**options: Any) -> tuple[Server, asyncio.Event]:
    """A server with a tool that has one slot, and with `options` for all calls together."""
    server, go = Server("crowded", version="1.0.0", max_queue=0, **options), asyncio.Event()

    @server.tool(max_concurrency=1)
    async def narrow() -> str:
        await go.wait()
        return "done"

    @server.tool
    async def wide() -> str:
        return "done"

    @server.prompt
    async def ask() -> str:
        return "What?"

    return server, go


@pytest.mark.parametrize("version", REVISIONS)
async def test_a_server_without_a_free_slot_is_a_429(version: str) -> None:
    server, go = crowded(max_concurrency=1)
    async with serving(server) as app:
        wire = await open_wire(app, version)
        running = wire.start_call("narrow")
        await until(lambda: server.engine.limit.running == 1)
        for refused in (await wire.call("wide"), await wire.post("prompts/get", {"name": "ask"})):
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.json["error"] == {
                "code": -32603,
                "message": "The server is busy: 1 calls running and 0 waiting; try again in 1 s.",
                "data": {"retryAfter": 1},
            }
        go.set()
        await running.done()
        assert text_of((await wire.call("wide")).answer) == "done"


@pytest.mark.parametrize(("per", "statuses"), [("principal", [200, 429, 200, 429]), ("address", [200, 429, 429, 429])])
async def test_who_is_counted(per: str, statuses: list[int]) -> None:
    callers = iter(["one", "one", "other", "other"])  # all of them at one address
    server = limited(rate_limit=f"1/hour per {per}")
    async with serving(server, identify=lambda _: next(callers)) as app:
        assert [(await HttpWire(app).call("free")).status for _ in range(4)] == statuses


@pytest.mark.parametrize(("per", "statuses"), [("principal", [200, 429, 429]), ("address", [200, 200, 429])])
async def test_one_caller_at_two_addresses(per: str, statuses: list[int]) -> None:
    server = limited(rate_limit=f"1/day per {per}")
    async with serving(server, identify=lambda _: "ada", trusted_proxies=["127.0.0.1"]) as app:
        addresses = ("192.0.2.1", "192.0.2.2", "192.0.2.1")
        wires = [HttpWire(app, headers={"x-forwarded-for": address}) for address in addresses]
        assert [(await wire.call("free")).status for wire in wires] == statuses


async def test_clients_of_the_older_transport_are_counted_by_address() -> None:
    async with serving(limited(rate_limit="1/hour per address"), trusted_proxies=["127.0.0.1"]) as app:
        refused = []
        for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
            async with connected(app, **{"x-forwarded-for": address}) as client:
                refused.append("error" in await client.ask("tools/call", {"name": "free"}))
        assert refused == [False, True, False]


INFO = "io.modelcontextprotocol/clientInfo"

Refusal = Callable[[dict[str, Any], dict[str, Any]], Awaitable[Any]]


async def on_pipe(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with Wire(Server("x", version="1.0.0")) as wire:
        return await wire.exchange(wire.request("initialize", hello(capabilities, client)))


async def on_modern_pipe(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with Wire(Server("x", version="1.0.0", declare=["tools"]), MODERN) as wire:
        meta = {CAPABILITIES: capabilities, INFO: client}
        return await wire.exchange(wire.request("tools/list", {"_meta": meta}))


async def over_http(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with serving(Server("x", version="1.0.0")) as app:
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello(capabilities, client)}
        return (await HttpWire(app).raw("POST", json.dumps(message).encode()).done()).json


async def over_modern_http(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with serving(Server("x", version="1.0.0", declare=["tools"])) as app:
        meta = {CAPABILITIES: capabilities, INFO: client}
        return (await HttpWire(app).start("tools/list", {"_meta": meta}).done()).json


async def over_sse(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with serving(OldStage().server) as app:
        old = await OldClient(app).open()
        answer = await old.ask("initialize", hello(capabilities, client))
        await old.leave()
        return answer


EVERYWHERE = pytest.mark.parametrize("say", [on_pipe, on_modern_pipe, over_http, over_modern_http, over_sse])


@EVERYWHERE
async def test_who_says_too_much_is_told_the_bound(say: Refusal) -> None:
    for said in (worst(MAX_CLIENT + 4_000), CLIENT), ({}, {**CLIENT, "title": "x" * MAX_CLIENT}):
        error = (await say(*said))["error"]
        assert error["code"] == -32602
        assert str(MAX_CLIENT) in error["message"]


@EVERYWHERE
async def test_icons_do_not_count(say: Refusal) -> None:
    icons = [{"src": "data:image/png;base64," + "A" * MAX_CLIENT}]
    assert "result" in await say({}, {**CLIENT, "icons": icons})


async def test_subscriptions_of_a_session_are_bounded_on_every_transport() -> None:
    version, server = "2025-11-25", Server("x", version="1.0.0")

    @server.resource("wide://{name}")
    def wide(name: str) -> str:
        return name

    long = "wide://" + "x" * 1_000
    async with Wire(server, version) as wire, serving(server) as app:
        http = await HttpWire.session(app, version)
        for number in range(MAX_RECORD // 1_000 + 1):
            uri = {"uri": f"{long}{number}"}
            pipe_answer = await wire.exchange(wire.request("resources/subscribe", uri))
            http_answer = (await http.post("resources/subscribe", uri)).answer
        for answer in (pipe_answer, http_answer):
            assert answer["error"]["code"] == -32602
            assert str(MAX_RECORD) in answer["error"]["message"]
            assert str(MAX_SUBSCRIPTIONS) in answer["error"]["message"]


CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


def worst(size: int = MAX_CLIENT) -> dict[str, Any]:
    """Capabilities of so many bytes, with CLIENT: three bytes for each empty list, which is 25 times as large."""
    room = size - len(json.dumps({"experimental": {"x": []}})) - len(json.dumps(CLIENT))
    return {"experimental": {"x": [[]] * (room // 4)}}  # json.dumps adds a blank


def hello(capabilities: dict[str, Any], client: dict[str, Any]) -> dict[str, Any]:
    return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": client}
