"""The app inside of other apps: every path where it should be, streams that stream, nothing to wire."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from fastapi import APIRouter, FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount

from dovetail import Server
from dovetail.errors import SetupError
from dovetail.transports.http import HttpApp
from hosting import hosted
from http_wire import HttpWire

SUM = {"a": 1, "b": 2}


def make(name: str = "mounted", **options: Any) -> Server:
    server = Server(name, version="1.0.0", **options)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def who() -> str:
        return name

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
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


# ── hosts ──


def in_fastapi(app: HttpApp) -> Any:
    host = FastAPI()
    app.mount_on(host, "/x")
    return host


def in_starlette(app: HttpApp) -> Any:
    host = Starlette()
    app.mount_on(host, "/x")
    return host


def in_a_router(app: HttpApp) -> Any:
    router = APIRouter()
    app.mount_on(router, "/x")
    return router


def in_litestar(app: HttpApp) -> Any:
    return Litestar(route_handlers=[asgi("/x", is_mount=True, copy_scope=True)(app)])


def in_another_server(app: HttpApp) -> Any:
    return Server("outer").asgi(routes={"/x/*": app})


def in_django_style(app: HttpApp) -> Any:
    """A dispatcher in front of another app, which cuts its prefix off and says so."""

    async def host(scope: Any, receive: Any, send: Any) -> None:
        rest = scope["path"].removeprefix("/x")
        await app({**scope, "path": rest, "root_path": scope["root_path"] + "/x"}, receive, send)

    return host


def in_silence(app: HttpApp) -> Any:
    """The same, but it does not say so."""

    async def host(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "path": scope["path"].removeprefix("/x")}, receive, send)

    return host


def by_root_path(app: HttpApp) -> Any:
    """As ASGI has it: the path stays whole."""

    async def host(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": "/x"}, receive, send)

    return host


HOSTS = [
    *(in_fastapi, in_starlette, in_a_router, in_litestar),
    *(in_another_server, in_django_style, in_silence, by_root_path),
]
every_host = pytest.mark.parametrize("mount", HOSTS, ids=lambda mount: mount.__name__)


async def works_at(host: Any, path: str, root_path: str = "") -> None:
    """Both eras are served there."""
    for wire in (
        HttpWire(host, path=path, root_path=root_path),
        await HttpWire.session(host, "2025-06-18", path=path, root_path=root_path),
    ):
        answer = await wire.call("add", SUM)
        assert answer.status == 200, answer.raw
        assert answer.answer["result"]["content"][0]["text"] == "3"


async def sse_works_at(host: Any, path: str, root_path: str = "", *, seen_as: str) -> None:
    """The old transport too: the stream says where to POST to, as the client sees it."""
    wire = HttpWire(host, path=path, root_path=root_path)
    stream = wire.raw("GET")
    first = await stream.event()
    assert first.event == "endpoint"
    messages, _, query = first.data.decode().partition("?")
    assert messages == seen_as
    params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    inside = path.replace("/sse", "/messages")
    assert (await wire.raw("POST", json.dumps(hello).encode(), path=inside, query=query).done()).status == 202
    assert (await stream.message())["result"]["protocolVersion"] == "2024-11-05"
    stream.leave()
    await stream.done()


# ── where it is ──


@every_host
@pytest.mark.parametrize("path", ["/x", "/x/", "/x/mcp", "/x/mcp/"])
async def test_the_endpoint_is_where_it_was_mounted(app: HttpApp, mount: Callable[..., Any], path: str) -> None:
    await works_at(mount(app), path)


@every_host
async def test_what_is_below(app: HttpApp, mount: Callable[..., Any]) -> None:
    host = mount(app)
    await sse_works_at(host, "/x/sse", seen_as="/x/messages")
    await sse_works_at(host, "/x/sse/", seen_as="/x/messages")
    wire = HttpWire(host)
    for path in ("/x/health", "/x/health/live", "/x/ready", "/x/health/ready", "/x/health/"):
        answer = await wire.raw("GET", path=path).done()
        assert (answer.status, answer.json) == (200, {"status": "ok"})
    about = await wire.raw("GET", path="/x/about").done()
    assert about.raw.startswith(b"mounted at /")
    nothing = await wire.raw("GET", path="/x/nothing").done()
    assert (nothing.status, nothing.json["error"]["code"]) == (404, -32600)


@every_host
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "PUT", "HEAD"])
async def test_no_method_is_redirected(app: HttpApp, mount: Callable[..., Any], method: str) -> None:
    host = mount(app)
    for path in ("/x", "/x/"):
        answer = await HttpWire(host).raw(method, path=path).done()
        assert not 300 <= answer.status < 400
        assert "location" not in answer.headers


async def test_why_mount_alone_is_not_enough(app: HttpApp) -> None:
    """The host answers `/x` itself, with a redirect that clients need not follow; `/x/` is ours."""
    for host in (FastAPI(), Starlette()):
        host.mount("/x", app)
        await works_at(host, "/x/")
        await works_at(host, "/x/mcp")
        await sse_works_at(host, "/x/sse", seen_as="/x/messages")
        assert (await HttpWire(host).raw("POST", path="/x").done()).status == 307


async def test_at_the_root_of_a_host(app: HttpApp) -> None:
    host = FastAPI()
    host.mount("/", app)
    await works_at(host, "/mcp")
    await sse_works_at(host, "/sse", seen_as="/messages")


async def test_the_rest_of_the_host_is_not_touched(app: HttpApp) -> None:
    host = FastAPI()

    @host.get("/xylophone")
    def xylophone() -> str:
        return "the host's own"

    app.mount_on(host, "/x")
    answer = await HttpWire(host).raw("GET", path="/xylophone").done()
    assert answer.json == "the host's own"
    assert "/x" not in host.openapi()["paths"]


async def test_mounts_in_mounts(app: HttpApp) -> None:
    inner = FastAPI()
    app.mount_on(inner, "/tools/x")
    host = Starlette(routes=[Mount("/api", Mount("/v1", inner))])
    for path in ("/api/v1/tools/x", "/api/v1/tools/x/", "/api/v1/tools/x/mcp"):
        await works_at(host, path)
    await sse_works_at(host, "/api/v1/tools/x/sse", seen_as="/api/v1/tools/x/messages")


async def test_a_mount_with_a_parameter(app: HttpApp) -> None:
    host = FastAPI()
    app.mount_on(host, "/{tenant}/x")
    for path in ("/acme/x", "/acme/x/", "/größe 1/x"):
        await works_at(host, path)
    await sse_works_at(host, "/acme/x/sse", seen_as="/acme/x/messages")


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


PROXIED = [
    # what the proxy hands on, below which root; with what the client sees
    ("/x", "", "/x"),
    ("/proxy/x", "/proxy", "/proxy/x"),  # uvicorn --root-path: it puts the root in front again
    ("/x", "/proxy", "/proxy/x"),  # the root is known, and cut off
]


@pytest.mark.parametrize(("path", "root_path", "seen_as"), PROXIED)
async def test_behind_a_proxy(app: HttpApp, path: str, root_path: str, seen_as: str) -> None:
    host = FastAPI()
    app.mount_on(host, "/x")
    for end in ("", "/", "/mcp"):
        await works_at(host, path + end, root_path)
    await sse_works_at(host, f"{path}/sse", root_path, seen_as=f"{seen_as}/messages")


@pytest.mark.parametrize(
    ("path", "root_path"), [("/proxy/mcp", "/proxy"), ("/mcp", "/proxy"), ("/proxy/mcp", "/proxy/"), ("/mcp", "/mcp")]
)
async def test_not_mounted_behind_a_proxy(app: HttpApp, path: str, root_path: str) -> None:
    await works_at(app, path, root_path)
    await works_at(app, f"{path}/", root_path)


@pytest.mark.parametrize("path", ["/sse", "/proxy/sse"])
async def test_not_mounted_sse_behind_a_proxy(app: HttpApp, path: str) -> None:
    await sse_works_at(app, path, "/proxy", seen_as="/proxy/messages")


@pytest.mark.parametrize("path", ["", "/", "x", "/x/", "/mcp//"])
def test_where_nothing_can_be_mounted(path: str) -> None:
    with pytest.raises(SetupError, match="it must be like"):
        make().asgi().mount_on(Starlette(), path)


async def test_two_servers_in_one_host() -> None:
    one, two = make("one").asgi(), make("two").asgi()
    host = FastAPI()
    one.mount_on(host, "/one")
    two.mount_on(host, "/two")
    for name in ("one", "two"):
        who = await (await HttpWire.session(host, path=f"/{name}")).call("who")
        assert who.answer["result"]["content"][0]["text"] == name
    stranger = await HttpWire.session(host, path="/one")
    stranger.path = "/two"
    assert (await stranger.call("who")).status == 404
    await one.drain()
    assert (await HttpWire(host, path="/one").call("who")).status == 503
    assert (await HttpWire(host, path="/two").call("who")).status == 200
    await two.drain()


@pytest.mark.parametrize("mount", [in_fastapi, in_litestar, in_another_server], ids=lambda mount: mount.__name__)
async def test_uvicorn_with_a_root_path(app: HttpApp, mount: Callable[..., Any]) -> None:
    """`uvicorn --root-path /proxy`: the proxy has cut that off, uvicorn puts it in front again."""
    async with hosted(mount(app), root_path="/proxy") as url, aiohttp.ClientSession() as client:
        for path in ("/x", "/x/"):
            async with client.post(url + path, json={}, allow_redirects=False) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (400, -32600)
        async with client.get(f"{url}/x/sse") as stream:
            first = await asyncio.wait_for(stream.content.readuntil(b"\n\n"), 5)
            assert b"data: /proxy/x/messages?session_id=" in first
