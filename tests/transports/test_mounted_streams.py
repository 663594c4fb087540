"""Streams and disconnects through the middleware of a host: nothing is held back, and leaving is noticed."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware

from dovetail import Context, Server
from dovetail.transports.http import HttpApp
from hosting import hosted
from http_wire import MODERN, Exchange, HttpWire

PAGE = "http://localhost:3000"
PROMPTLY = 5.0


class Stage:
    """A server whose tools wait for the test, and tell it what became of them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.server = Server("staged", version="1.0.0")
        self.server.add_tool(self.tell)
        self.server.add_tool(self.wait)
        self.app = self.server.asgi(keep_alive=0.1)

    async def tell(self, ctx: Context) -> str:
        """Report something, and wait."""
        await ctx.report_progress(1)
        return await self.wait()

    async def wait(self) -> str:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "done" * 500


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    stage.go.set()
    async with asyncio.timeout(PROMPTLY):
        await stage.app.drain(1)


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Any:
    """Neither ours nor those of a host."""
    yield
    told = [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert [(record.name, record.getMessage()) for record in told] == []


# ── the middleware ──


def bare(host: FastAPI) -> None:
    """None at all."""


def base_http(host: FastAPI) -> None:
    @host.middleware("http")
    async def stamp(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-stamp"] = "1"
        return response


def reading(host: FastAPI) -> None:
    async def read(request: Any, call_next: Any) -> Any:
        assert await request.body() is not None
        return await call_next(request)

    host.add_middleware(BaseHTTPMiddleware, dispatch=read)


def gzip(host: FastAPI) -> None:
    host.add_middleware(GZipMiddleware, minimum_size=10)


def cors(host: FastAPI) -> None:
    host.add_middleware(CORSMiddleware, allow_origins=[PAGE], allow_headers=["*"], allow_methods=["*"])


def all_of_them(host: FastAPI) -> None:
    for add in (base_http, reading, gzip, cors, base_http):
        add(host)


every_middleware = pytest.mark.parametrize(
    "add", [bare, base_http, reading, gzip, cors, all_of_them], ids=lambda add: add.__name__
)
Add = Callable[[FastAPI], None]


def wired(app: HttpApp, add: Add) -> FastAPI:
    host = FastAPI()
    add(host)
    app.mount_on(host, "/x")
    return host


HEADERS: dict[str, str | None] = {"origin": PAGE}
ZIPPED: dict[str, str | None] = {"accept-encoding": "gzip"}
PROGRESS = {"meta": {"progressToken": "t"}, "headers": ZIPPED}


async def both_eras(host: Any) -> list[HttpWire]:
    return [
        HttpWire(host, path="/x", headers=HEADERS),
        await HttpWire.session(host, path="/x", headers=HEADERS),
    ]


# ── in this process ──


@every_middleware
async def test_what_is_told_comes_at_once(stage: Stage, add: Add) -> None:
    for wire in await both_eras(wired(stage.app, add)):
        stage.go.clear()
        call = wire.start_call("tell", **PROGRESS)
        assert (await call.message())["method"] == "notifications/progress"
        assert call.headers["content-type"] == "text/event-stream"
        assert "content-encoding" not in call.headers
        stage.go.set()
        assert (await call.message())["result"]["content"][0]["text"].startswith("done")
        await call.done()


@every_middleware
async def test_get_streams_stream(stage: Stage, add: Add) -> None:
    wire = await HttpWire.session(wired(stage.app, add), path="/x", headers=HEADERS)
    stream = wire.get(headers=ZIPPED)
    await stream.event()
    stage.server.remove_tool("wait")
    assert (await stream.message())["method"] == "notifications/tools/list_changed"
    stream.leave(quietly=True)
    await stream.done()


@every_middleware
async def test_sse_streams(stage: Stage, add: Add) -> None:
    wire = HttpWire(wired(stage.app, add), headers=HEADERS)
    stream = wire.raw("GET", b"", ZIPPED, path="/x/sse")
    assert (await stream.event()).event == "endpoint"
    await stream.until(lambda: b"\n: " in stream.raw)  # a keep-alive
    stream.leave(quietly=True)
    await stream.done()


@every_middleware
@pytest.mark.rule("MH-13")
async def test_who_leaves_a_stream_cancels_its_call(stage: Stage, add: Add) -> None:
    call = HttpWire(wired(stage.app, add), path="/x", headers=HEADERS).start_call("tell", **PROGRESS)
    await call.message()
    call.leave(quietly=True)
    async with asyncio.timeout(PROMPTLY):
        await stage.cancelled.wait()
    await call.done()


@every_middleware
@pytest.mark.rule("MH-13")
async def test_who_leaves_before_anything_was_said_cancels_too(stage: Stage, add: Add) -> None:
    wire = HttpWire(wired(stage.app, add), path="/x", headers=HEADERS, accept="application/json")
    call = wire.start_call("wait")
    await stage.begun.wait()
    call.leave(quietly=True)
    async with asyncio.timeout(PROMPTLY):
        await stage.cancelled.wait()
    await call.done()


@every_middleware
@pytest.mark.rule("SH-15")
async def test_a_session_may_leave_and_come_back(stage: Stage, add: Add) -> None:
    wire = await HttpWire.session(wired(stage.app, add), path="/x", headers=HEADERS)
    call = wire.start_call("tell", **PROGRESS)
    primed = await call.event()
    await stage.begun.wait()
    call.leave(quietly=True)
    await asyncio.sleep(0.1)
    assert not stage.cancelled.is_set()
    stage.go.set()
    rest = await wire.get(primed.id).done()
    assert rest.answer["result"]["content"][0]["text"].startswith("done")
    await call.done()


@pytest.mark.parametrize("add", [bare, base_http, gzip, cors], ids=lambda add: add.__name__)
async def test_a_client_that_leaves_before_it_has_said_all(stage: Stage, add: Add) -> None:
    call = HttpWire(wired(stage.app, add), path="/x", headers=HEADERS).raw("POST", b"{", complete=False)
    await asyncio.sleep(0.05)
    call.leave(quietly=True)
    await call.done()


@every_middleware
async def test_a_json_client_of_a_session_may_leave(stage: Stage, add: Add) -> None:
    wire = await HttpWire.session(wired(stage.app, add), path="/x", headers=HEADERS, accept="application/json")
    call = wire.start_call("wait")
    await stage.begun.wait()
    call.leave(quietly=True)
    await asyncio.sleep(0.1)
    stage.go.set()
    await call.done()
    assert not stage.cancelled.is_set()


@every_middleware
async def test_a_host_that_drains_ends_its_streams(stage: Stage, add: Add) -> None:
    host = wired(stage.app, add)
    session = await HttpWire.session(host, path="/x", headers=HEADERS)
    wire = HttpWire(host, path="/x", headers=HEADERS)
    listen = wire.start("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    streams: list[Exchange] = [session.get(), wire.raw("GET", path="/x/sse"), listen]
    for stream in streams:
        await stream.event()
    async with asyncio.timeout(1):
        await stage.app.drain()
    for stream in streams:
        await stream.done(1)
        assert stream.sent[-1].get("more_body", False) is False  # properly, not by a broken connection
    assert "result" in listen.answer


async def test_the_hosts_cors_and_ours_do_not_add_up(stage: Stage) -> None:
    wire = HttpWire(wired(stage.app, cors), path="/x", headers=HEADERS)
    stage.go.set()
    for answer in (await wire.call("wait"), await wire.raw("POST", b"{").done()):
        names = [name for name, _ in answer.sent[0]["headers"]]
        assert names.count(b"access-control-allow-origin") == 1
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "Mcp-Session-Id" in answer.headers["access-control-expose-headers"]
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "mcp-method,mcp-param-region"}
    preflight = await wire.raw("OPTIONS", b"", asking).done()
    assert preflight.status == 200
    assert "mcp-param-region" in preflight.headers["access-control-allow-headers"]


# ── on a socket ──


def call_of(tool: str) -> dict[str, Any]:
    """What aiohttp has to be given for a modern call that wants to hear of its progress."""
    message = HttpWire(None).message("tools/call", {"name": tool, "arguments": {}, "_meta": {"progressToken": "t"}})
    names = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **names}
    return {"data": json.dumps(message), "headers": headers}


@every_middleware
async def test_on_a_real_socket(stage: Stage, add: Add) -> None:
    async with hosted(wired(stage.app, add)) as url, aiohttp.ClientSession() as client:
        async with client.post(f"{url}/x", allow_redirects=False, **call_of("tell")) as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            first = await asyncio.wait_for(answer.content.readuntil(b"\n\n"), PROMPTLY)
            assert b"notifications/progress" in first
            stage.go.set()
            assert b"donedone" in await answer.read()
        stage.go.clear()

        async with client.post(f"{url}/x", **call_of("tell")) as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()
        await asyncio.wait_for(stage.cancelled.wait(), PROMPTLY)
        stage.cancelled.clear()
        stage.begun.clear()

        call = asyncio.create_task(client.post(f"{url}/x", **call_of("wait")))
        await asyncio.wait_for(stage.begun.wait(), PROMPTLY)
        call.cancel()
        await asyncio.wait_for(stage.cancelled.wait(), PROMPTLY)

        async with client.get(f"{url}/x/health") as answer:
            assert await answer.json() == {"status": "ok"}
