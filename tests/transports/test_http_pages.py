"""What is beside the endpoint: health paths that answer anybody, and pages of the users' own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from dovetail import Server
from dovetail.auth import ApiKeys, Auth
from dovetail.console import Console
from dovetail.errors import SetupError
from http_serving import settle, until
from http_wire import HttpWire

LIVE = ("/health", "/health/live")
READY = ("/ready", "/health/ready")
FOREIGN: dict[str, str | None] = {"host": "evil.example", "origin": "https://evil.example"}
PAGE = "http://localhost:3000"


def make(**options: Any) -> Server:
    server = Server("pages", version="1.0.0", **options)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


# ── health ──


@pytest.mark.parametrize("path", [*LIVE, *READY])
async def test_health_is_open_to_all(path: str) -> None:
    app = make().asgi(allowed_hosts=["mcp.example"])
    wire = HttpWire(app, path=path)
    for headers in ({}, FOREIGN, {"host": None}, {"host": "10.0.0.7"}, {"accept": "text/html"}):
        answer = await wire.raw("GET", b"", headers).done()
        assert (answer.status, answer.json) == (200, {"status": "ok"})
        assert answer.headers["cache-control"] == "no-store"
    assert (await wire.raw("GET", path=f"{path}/", query="x=1").done()).status == 200
    head = await wire.raw("HEAD").done()
    assert (head.status, head.raw) == (200, b"")


@pytest.mark.parametrize("path", [*LIVE, *READY])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
async def test_health_has_two_methods(path: str, method: str) -> None:
    answer = await HttpWire(make().asgi(), path=path).raw(method, b"{}").done()
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.json["jsonrpc"] == "2.0"
    assert "GET" in answer.json["error"]["message"]


async def test_ready_says_no_before_the_end() -> None:
    app = make().asgi()
    wire = HttpWire(app)
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
    app.begin_drain()
    for path in READY:
        answer = await wire.raw("GET", path=path).done()
        assert (answer.status, answer.json) == (503, {"status": "draining"})
    for path in LIVE:
        assert (await wire.raw("GET", path=path).done()).status == 200
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200  # it still serves
    await app.drain()


async def test_only_known_pages_may_read_the_health() -> None:
    wire = HttpWire(make().asgi(), path="/health")
    assert (await wire.raw("GET", b"", {"origin": PAGE}).done()).headers["access-control-allow-origin"] == PAGE
    for headers in (FOREIGN, {"origin": "https://evil.example"}, {}):
        assert "access-control-allow-origin" not in (await wire.raw("GET", b"", headers).done()).headers


# ── people ──

BROWSER: dict[str, str | None] = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


async def opened(app: Any, path: str, root_path: str = "", **headers: str) -> str:
    """What a browser shows."""
    answer = await HttpWire(app, path=path, root_path=root_path).raw("GET", b"", {**BROWSER, **headers}).done()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert (answer.headers["cache-control"], answer.headers["vary"]) == ("no-store", "accept")
    return answer.raw.decode()


@pytest.mark.parametrize("path", ["/", "/mcp", "/mcp/"])
async def test_a_browser_is_shown_what_this_is_and_how_to_connect(path: str) -> None:
    app = make(title="<script>alert(1)</script>", description='Fish & "chips"').asgi(allowed_hosts=["fish.example"])
    html = await opened(app, path, host="fish.example")
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "1.0.0" in html
    assert "Fish &amp; &quot;chips&quot;" in html
    assert html.count("http://fish.example/mcp") == 2
    assert "console" not in html
    refused = await HttpWire(app, path=path).raw("GET", b"", {**BROWSER, **FOREIGN}).done()
    assert (refused.status, refused.headers["content-type"]) == (403, "application/json")
    await app.drain()


@pytest.mark.parametrize("options", [{}, {"auth": ApiKeys({"ann": "a-key-of-16-or-more"})}], ids=["open", "keys"])
@pytest.mark.parametrize("path", ["/", "/mcp"])
async def test_head_gets_what_get_gets_without_the_body(path: str, options: dict[str, Any]) -> None:
    app = make(**options).asgi()
    got, asked = [await HttpWire(app, path=path).raw(name, b"", BROWSER).done() for name in ("GET", "HEAD")]
    assert (asked.status, asked.headers, asked.raw) == (200, got.headers, b"")
    assert int(asked.headers["content-length"]) == len(got.raw)
    await app.drain()


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"accept": "text/event-stream"}),
        ("GET", {"accept": "text/html, text/event-stream"}),
        ("GET", {"accept": "text/html, application/json"}),
        ("GET", {"accept": "text/html;q=0, */*"}),
        ("GET", {"accept": "*/*"}),
        ("GET", {"accept": None}),
        ("GET", {**BROWSER, "mcp-protocol-version": "2025-11-25"}),
        ("GET", {**BROWSER, "mcp-session-id": "x"}),
        ("GET", {**BROWSER, "last-event-id": "x"}),
        ("POST", BROWSER),
        ("DELETE", BROWSER),
    ],
    ids=str,
)
async def test_programs_are_shown_no_page(method: str, headers: dict[str, str | None]) -> None:
    app = make().asgi()
    answer = await HttpWire(app).raw(method, b"{}", headers).done()
    assert answer.status in (400, 404)
    assert answer.json["jsonrpc"] == "2.0"
    await app.drain()


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        (ApiKeys({"ann": "a-key-of-16-or-more"}), "Bearer &lt;your key&gt;"),
        (Auth(ApiKeys({"ann": "a-key-of-16-or-more"}), authorization_servers=["https://id.example"]), "sign in"),
    ],
)
async def test_strangers_see_how_to_get_in_and_nothing_else(auth: Any, words: str) -> None:
    app = make(auth=auth, description="For friends.").asgi()
    html = await opened(app, "/mcp")
    assert "<h1>pages" in html
    assert words in html
    for hidden in ("1.0.0", "For friends.", "a-key-of-16-or-more", "ann", "add"):
        assert hidden not in html.replace("padding", "")
    await app.drain()


async def test_a_page_of_your_own_is_shown_before_ours() -> None:
    server = make()
    server.custom_route("/")(mine)
    app = server.asgi()
    for place in ({"path": "/"}, {"path": "/x", "root_path": "/x"}):
        assert (await HttpWire(app, **place).raw("GET", b"", BROWSER).done()).raw == b"mine"
    assert "http://localhost:8000/mcp" in await opened(app, "/mcp")
    await app.drain()


async def test_below_another_app_the_page_names_that_place() -> None:
    app = make().asgi(routes=Console(make()).routes())
    html = await opened(app, "/x", "/x")
    assert "http://localhost:8000/x<" in html
    assert '<a href="/x/console/">' in html
    assert '<a href="/console/">' in await opened(app, "/")
    await app.drain()


# ── pages ──


async def mine(request: Any) -> str:
    return "mine"


async def test_pages_of_functions() -> None:
    server = make()

    @server.custom_route("/about")
    def about(request: Any) -> dict[str, Any]:
        return {"asked": request.query}

    @server.custom_route("/echo", methods=["POST", "PUT"])
    async def echo(request: Any) -> bytes:
        return await request.body()

    @server.custom_route("/broken")
    def broken(request: Any) -> str:
        raise ValueError("a secret detail")

    app = server.asgi(max_body_bytes=100)
    wire = HttpWire(app)
    assert (await wire.raw("GET", path="/about", query="a=1").done()).json == {"asked": {"a": ["1"]}}
    assert (await wire.raw("GET", path="/about/").done()).status == 200
    assert (await wire.raw("PUT", b"hello", path="/echo").done()).raw == b"hello"
    for refused, status in (
        (wire.raw("POST", path="/about"), 405),
        (wire.raw("GET", path="/echo"), 405),
        (wire.raw("POST", b"x" * 101, path="/echo"), 413),
        (wire.raw("GET", path="/broken"), 500),
        (wire.raw("GET", path="/about/more"), 404),
        (wire.raw("GET", b"", FOREIGN, path="/about"), 403),
    ):
        await refused.done()
        assert refused.status == status
        assert "secret" not in refused.json["error"]["message"]
    await app.drain()


async def test_pages_of_other_apps() -> None:
    async def where(request: Any) -> PlainTextResponse:
        return PlainTextResponse(f"{request.scope['root_path']} {request.url.path}")

    site = Starlette(routes=[Route("/", where), Route("/deep/er", where)])
    app = make().asgi(routes={"/site/*": site, "/exact": PlainTextResponse("exactly")})
    wire = HttpWire(app)
    assert (await wire.raw("GET", path="/site/deep/er").done()).raw == b"/site /site/deep/er"
    assert (await wire.raw("GET", path="/exact").done()).raw == b"exactly"
    assert (await wire.raw("GET", path="/exact/ly").done()).status == 404
    assert (await wire.raw("GET", b"", FOREIGN, path="/site/deep/er").done()).status == 403
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
    await app.drain()


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/sse", "/messages", "/health", "/ready", "/health/live"])
def test_what_is_taken(path: str) -> None:
    server = make()
    server.custom_route(path)(mine)
    with pytest.raises(SetupError, match="belongs to the server itself"):
        server.asgi()


async def test_what_is_not_taken_is_free() -> None:
    server = make()
    server.custom_route("/sse")(mine)
    app = server.asgi(sse=False, path="/tools")
    wire = HttpWire(app, path="/tools")
    assert (await wire.raw("GET", path="/sse").done()).raw == b"mine"
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
    assert (await wire.raw("POST", path="/mcp").done()).status == 404
    await app.drain()


async def test_a_page_at_the_root_does_not_hide_a_mounted_endpoint() -> None:
    server = make()
    server.custom_route("/")(mine)
    app = server.asgi()
    assert (await HttpWire(app, path="/").raw("GET").done()).raw == b"mine"
    assert (await HttpWire(app, path="/x", root_path="/x").call("add", {"a": 1, "b": 2})).status == 200
    await app.drain()


async def test_pages_live_as_long_as_the_server() -> None:
    """What a lifespan has opened is there for them, and is not closed in their middle."""
    notes: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        notes.append("opened")
        yield
        notes.append("closed")

    server = make(lifespan=lifespan)
    go = asyncio.Event()

    @server.custom_route("/slow")
    async def slow(request: Any) -> list[str]:
        await go.wait()
        return notes

    app = server.asgi()
    page = HttpWire(app, path="/slow").raw("GET")
    await until(lambda: notes == ["opened"])
    await settle()  # so that the page is being shown
    draining = asyncio.create_task(app.drain())
    await settle()
    late = await HttpWire(app, path="/slow").raw("GET").done()
    assert (late.status, late.json["error"]["message"]) == (503, "The server is shutting down")
    go.set()
    await draining
    assert (await page.done()).json == ["opened"]
    assert notes == ["opened", "closed"]


async def test_a_page_that_never_ends_does_not_keep_the_server() -> None:
    server = make()

    @server.custom_route("/stuck")
    async def stuck(request: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    app = server.asgi()
    page = HttpWire(app, path="/stuck").raw("GET")
    await asyncio.sleep(0.01)
    async with asyncio.timeout(2):
        await app.drain(0.05)
    with pytest.raises(asyncio.CancelledError):
        await page.done()


async def test_paths_that_lead_nowhere() -> None:
    wire = HttpWire(make().asgi())
    for method in ("GET", "POST", "DELETE", "PUT"):
        for path in ("/nothing", "/mcp/deeper", "/MCP", "/health/dead", "/../mcp", "/mcp%00", "/" + "x" * 10_000):
            answer = await wire.raw(method, b"{}", path=path).done()
            assert answer.status == 404
            assert answer.json["error"]["message"].endswith("the MCP endpoint is /mcp")
    assert json.loads(answer.raw)["jsonrpc"] == "2.0"
    await wire.app.drain()
