"""The app mounted in other apps: its paths, its start and drain, and streams through middleware."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from litestar import Litestar, asgi
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware

import http_serving
from dovetail import Context, Server
from dovetail.errors import SetupError
from dovetail.transports.http.app import HttpApp
from http_serving import hosted, settle
from http_wire import MODERN, HttpWire, hello, text_of
from processes import PROMPTLY


def make(name: str = "mounted", **options: Any) -> Server:
    server = Server(name, version="1.0.0", **options)

    server.add_tool(lambda: name, name="who")

    @server.custom_route("/about")
    def about(request: Any) -> str:
        return f"{name} at {request.path}"

    return server


@pytest.fixture
async def app() -> AsyncIterator[HttpApp]:
    app = make().asgi()
    yield app
    await app.drain(1)


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Any:
    """Neither ours nor those of a host."""
    yield
    logged = [record for record in caplog.get_records("call") if record.levelname in ("ERROR", "CRITICAL")]
    assert [(record.name, record.getMessage()) for record in logged] == []


def on(host: Any, app: HttpApp) -> Any:
    app.mount_on(host, "/x")
    return host


def below(app: HttpApp, *, cut: bool, is_stated: bool) -> Any:
    """A dispatcher in front of an app, which may cut its prefix off, and may say so."""

    async def host(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix("/x") if cut else scope["path"]
        await app({**scope, "path": path, "root_path": scope["root_path"] + ("/x" if is_stated else "")}, receive, send)

    return host


HOSTS = {
    "FastAPI": lambda app: on(FastAPI(), app),
    "router": lambda app: on(APIRouter(), app),
    "Litestar": lambda app: Litestar(  # it would configure the logs of this process
        route_handlers=[asgi("/x", is_mount=True, copy_scope=True)(app)], logging_config=None
    ),
    "another server": lambda app: Server("outer").asgi(routes={"/x/*": app}),
    "cut off": lambda app: below(app, cut=True, is_stated=True),
    "cut off in silence": lambda app: below(app, cut=True, is_stated=False),
    "as ASGI has it": lambda app: below(app, cut=False, is_stated=True),
}
every_host = pytest.mark.parametrize("mount", HOSTS.values(), ids=HOSTS)


async def works_at(host: Any, path: str, root_path: str = "") -> None:
    """Both eras are served there."""
    for wire in (
        HttpWire(host, path=path, root_path=root_path),
        await HttpWire.session(host, "2025-06-18", path=path, root_path=root_path),
    ):
        answer = await wire.call("who")
        assert answer.status == 200, answer.raw
        assert text_of(answer.answer) == "mounted"


async def sse_works_at(host: Any, path: str, root_path: str = "", *, seen_as: str) -> None:
    """The old transport too: the stream says where to POST to, as the client sees it."""
    wire = HttpWire(host, path=path, root_path=root_path)
    stream = wire.raw("GET")
    first = await stream.event()
    assert first.event == "endpoint"
    messages, _, query = first.data.decode().partition("?")
    assert messages == seen_as
    said, inside = json.dumps(hello("2024-11-05")).encode(), path.replace("/sse", "/messages")
    assert (await wire.raw("POST", said, path=inside, query=query).done()).status == 202
    assert (await stream.message())["result"]["protocolVersion"] == "2024-11-05"
    stream.leave()
    await stream.done()


# ── where it is ──


@every_host
async def test_the_endpoint_is_where_it_was_mounted_and_all_else_below(app: HttpApp, mount: Callable[..., Any]) -> None:
    host = mount(app)
    for path in ("/x", "/x/", "/x/mcp", "/x/mcp/"):
        await works_at(host, path)
    await sse_works_at(host, "/x/sse", seen_as="/x/messages")
    wire = HttpWire(host)
    for path in ("/x/health", "/x/health/live", "/x/ready", "/x/health/ready", "/x/health/"):
        answer = await wire.raw("GET", path=path).done()
        assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert (await wire.raw("GET", path="/x/about").done()).raw.startswith(b"mounted at /")
    nothing = await wire.raw("GET", path="/x/nothing").done()
    assert (nothing.status, nothing.json["error"]["code"]) == (404, -32600)
    for method in ("GET", "POST", "DELETE", "OPTIONS", "PUT", "HEAD"):
        for path in ("/x", "/x/"):
            answer = await wire.raw(method, path=path).done()
            assert not 300 <= answer.status < 400  # many clients follow no redirect


async def test_at_the_root_of_a_host_whose_own_paths_are_not_touched(app: HttpApp) -> None:
    host = FastAPI()

    @host.get("/xylophone")
    def xylophone() -> str:
        return "the host's own"

    app.mount_on(host, "/x")
    host.mount("/", app)
    answer = await HttpWire(host).raw("GET", path="/xylophone").done()
    assert answer.json == "the host's own"
    assert "/x" not in host.openapi()["paths"]
    await works_at(host, "/mcp")
    await sse_works_at(host, "/sse", seen_as="/messages")


@pytest.mark.parametrize(
    ("pattern", "tenant", "seen_as"),
    [
        ("/{tenant}", "/größe 1", "/gr%C3%B6%C3%9Fe%201"),
        ("/{tenant}", "/a\nb?c", "/a%0Ab%3Fc"),
        ("/{tenant:path}", "//evil.example", "/evil.example"),  # or else it would be another host
    ],
)
async def test_the_path_to_post_to_is_a_uri(app: HttpApp, pattern: str, tenant: str, seen_as: str) -> None:
    host = FastAPI()
    app.mount_on(host, f"{pattern}/x")
    await sse_works_at(host, f"{tenant}/x/sse", seen_as=f"{seen_as}/x/messages")


async def test_behind_a_proxy(app: HttpApp) -> None:
    """Which puts its root in front again, as uvicorn --root-path does it, or has cut it off."""
    host = on(FastAPI(), app)
    for path in ("/proxy/x", "/x"):
        for end in ("", "/", "/mcp"):
            await works_at(host, path + end, "/proxy")
        await sse_works_at(host, f"{path}/sse", "/proxy", seen_as="/proxy/x/messages")


def test_where_nothing_can_be_mounted() -> None:
    for path in ("", "/", "x", "/x/", "/mcp//"):
        with pytest.raises(SetupError, match="it must be like"):
            make().asgi().mount_on(FastAPI(), path)
    with pytest.raises(SetupError, match="mount on the app"):
        make().asgi().mount_on(APIRouter(prefix="/v1"), "/mcp")


# ── the beginning and the end ──


class Lived:
    """A server that notes what happens to its lifespan."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.slow = asyncio.Event()
        server = Server("lived", version="1.0.0", lifespan=self._lifespan)
        server.add_tool(self.spirit)
        self.app = server.asgi()
        self.host = on(FastAPI(), self.app)

    @asynccontextmanager
    async def _lifespan(self, server: Server) -> AsyncIterator[str]:
        self.notes.append("entering")
        await self.slow.wait()
        self.notes.append("entered")
        yield "alive"
        self.notes.append("left")

    async def spirit(self, ctx: Context) -> str:
        return str(ctx.lifespan)


async def test_the_first_request_starts_the_server() -> None:
    """Some hosts cancel the request of a client that has left; the start goes on for those that came meanwhile."""
    lived = Lived()
    assert (await HttpWire(lived.host).raw("GET", path="/x/health").done()).status == 200
    assert lived.notes == []
    first, *others = (HttpWire(lived.host, path="/x").start_call("spirit") for _ in range(10))
    await settle(50)
    first.task.cancel()
    await settle(50)
    lived.slow.set()
    assert {text_of((await each.done()).answer) for each in others} == {"alive"}
    assert lived.notes == ["entering", "entered"]
    await lived.app.drain()
    assert lived.notes == ["entering", "entered", "left"]


def test_one_app_on_one_loop_after_the_other() -> None:
    """As test clients do it, which make a loop for each test."""
    lived = Lived()
    lived.slow.set()
    for _ in range(2):
        assert asyncio.run(HttpWire(lived.host, path="/x").ask("tools/call", {"name": "spirit", "arguments": {}}))
    assert lived.notes == ["entering", "entered"] * 2


async def test_a_second_loop_does_not_disturb_the_first(app: HttpApp, caplog: pytest.LogCaptureFixture) -> None:
    wire = await HttpWire.session(app)

    async def elsewhere() -> int:
        with pytest.raises(RuntimeError, match="another event loop"):
            await app.drain()
        return (await HttpWire(app).post("server/discover")).status

    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == 500
    assert "another event loop" in caplog.text
    caplog.clear()
    assert (await wire.post("ping")).status == 200
    assert (await wire.raw("GET", path="/ready").done()).status == 200


# ── the middleware ──


class Stage(http_serving.Stage):
    def __init__(self) -> None:
        super().__init__()
        self.server.add_tool(self.report)
        self.app = self.server.asgi(keep_alive=0.1)

    async def report(self, ctx: Context) -> str:
        await ctx.report_progress(1)
        return await self.work()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    stage.go.set()
    async with asyncio.timeout(PROMPTLY):
        await stage.app.drain(1)


PAGE = "http://localhost:3000"


def cors(host: FastAPI) -> None:
    host.add_middleware(CORSMiddleware, allow_origins=[PAGE], allow_headers=["*"], allow_methods=["*"])


def all_of_them(host: FastAPI) -> None:
    async def stamp(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-stamp"] = "1"
        return response

    async def read(request: Any, call_next: Any) -> Any:
        assert await request.body() is not None
        return await call_next(request)

    host.add_middleware(BaseHTTPMiddleware, dispatch=stamp)
    host.add_middleware(BaseHTTPMiddleware, dispatch=read)
    host.add_middleware(GZipMiddleware, minimum_size=10)
    cors(host)
    host.add_middleware(BaseHTTPMiddleware, dispatch=stamp)


def wired(app: HttpApp, add: Callable[[FastAPI], None]) -> FastAPI:
    host = FastAPI()
    add(host)
    return on(host, app)


HEADERS: dict[str, str | None] = {"origin": PAGE}
ZIPPED: dict[str, str | None] = {"accept-encoding": "gzip"}
PROGRESS = {"meta": {"progressToken": "t"}, "headers": ZIPPED}


@pytest.mark.parametrize("add", [lambda host: None, all_of_them], ids=["bare", "all"])
@pytest.mark.rule("MH-13", "SH-15")
async def test_streams_through_middleware(stage: Stage, add: Callable[[FastAPI], None]) -> None:
    """Notifications come at once; a modern client that disconnects cancels its call, one of a session may come back."""
    host = wired(stage.app, add)
    modern = HttpWire(host, path="/x", headers=HEADERS)
    session = await HttpWire.session(host, path="/x", headers=HEADERS)
    for wire in (modern, session):
        stage.go.clear()
        call = wire.start_call("report", **PROGRESS)
        assert (await call.message())["method"] == "notifications/progress"
        assert call.headers["content-type"] == "text/event-stream"
        assert "content-encoding" not in call.headers
        stage.go.set()
        assert text_of(await call.message()) == "done"
        await call.done()
    stage.go.clear()
    stream = session.get(headers=ZIPPED)
    await stream.event()
    stage.server.remove_tool("add")
    assert (await stream.message())["method"] == "notifications/tools/list_changed"
    stream.leave(quietly=True)
    call = session.start_call("report", **PROGRESS)
    primed = await call.event()
    await call.message()
    call.leave(quietly=True)
    left = modern.start_call("report", **PROGRESS)
    await left.message()
    left.leave(quietly=True)
    async with asyncio.timeout(PROMPTLY):
        await stage.cancelled.wait()
    stage.go.set()
    rest = await session.get(primed.id).done()
    assert text_of(rest.answer) == "done"
    for each in (stream, call, left):
        await each.done()


async def test_the_hosts_cors_and_ours_do_not_add_up(stage: Stage) -> None:
    wire = HttpWire(wired(stage.app, cors), path="/x", headers=HEADERS)
    stage.go.set()
    for answer in (await wire.call("work"), await wire.raw("POST", b"{").done()):
        assert [name for name, _ in answer.sent[0]["headers"]].count(b"access-control-allow-origin") == 1
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "Mcp-Session-Id" in answer.headers["access-control-expose-headers"]
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "mcp-method,mcp-param-region"}
    preflight = await wire.raw("OPTIONS", b"", asking).done()
    assert "mcp-param-region" in preflight.headers["access-control-allow-headers"]


def call_of(tool: str) -> dict[str, Any]:
    """What aiohttp has to be given for a modern call that asks for its progress."""
    message = HttpWire(None).message("tools/call", {"name": tool, "arguments": {}, "_meta": {"progressToken": "t"}})
    names = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **names}
    return {"data": json.dumps(message), "headers": headers}


async def test_on_a_real_socket(stage: Stage) -> None:
    async with hosted(wired(stage.app, all_of_them)) as url, aiohttp.ClientSession() as client:
        async with client.post(f"{url}/x", allow_redirects=False, **call_of("report")) as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            assert b"notifications/progress" in await asyncio.wait_for(answer.content.readuntil(b"\n\n"), PROMPTLY)
            stage.go.set()
            assert b"done" in await answer.read()
        stage.go.clear()
        stage.entered.clear()
        call = asyncio.create_task(client.post(f"{url}/x", **call_of("work")))
        await asyncio.wait_for(stage.entered.wait(), PROMPTLY)
        call.cancel()
        await asyncio.wait_for(stage.cancelled.wait(), PROMPTLY)
