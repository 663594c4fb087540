"""Routes beside the endpoint: health paths and custom pages; what pages may return and how they fail."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from dovetail import Server
from dovetail.auth import ApiKeys, Auth
from dovetail.errors import Busy, ProtocolError, SetupError
from dovetail.transports.http.asgi import App
from dovetail.transports.http.routes import RouteRequest, RouteResponse, RouteTable, route_app
from http_serving import Serve, settle
from http_wire import HttpExchange, HttpWire


async def ask(app: App, method: str = "GET", body: bytes | list[bytes] = b"", **options: Any) -> HttpExchange:
    place = {name: options.pop(name) for name in ("path", "root_path") if name in options}
    return await HttpWire(app, **{"path": "/page", **place}).raw(method, body, **options).done()


def error_of(got: HttpExchange) -> dict[str, Any]:
    """The error, after the checks that every refusal has to pass."""
    assert got.json.keys() == {"jsonrpc", "error"}
    return got.json["error"]


def route_app_of(function: Any, methods: Any = ("GET", "POST"), **options: Any) -> App:
    async def directly(function: Any, *, label: str) -> Any:
        return function()

    return route_app(function, methods, **{"max_body_bytes": 1000, "run_in_thread": directly, **options})


def page_of(make: Any) -> App:
    """Of an async page that does this."""

    async def page(request: RouteRequest) -> Any:
        return make()

    return route_app_of(page)


async def read_body(request: RouteRequest) -> str:
    return str(len(await request.body()))


RETURNED = [
    ("hello é", 200, "text/plain; charset=utf-8", "hello é".encode()),
    (b"\x00\xff", 200, "application/octet-stream", b"\x00\xff"),
    ({"a": [1, None]}, 200, "application/json", b'{"a":[1,null]}'),
    ([], 200, "application/json", b"[]"),
    (RouteResponse("<p>", media_type="text/html"), 200, "text/html; charset=utf-8", b"<p>"),
    (RouteResponse("<p>", headers={"Content-Type": "text/html"}), 200, "text/html; charset=utf-8", b"<p>"),
    (RouteResponse({"ok": False}, 503), 503, "application/json", b'{"ok":false}'),
    (RouteResponse("a", media_type="image/svg+xml"), 200, "image/svg+xml", b"a"),
    (HTMLResponse("<p>"), 200, "text/html; charset=utf-8", b"<p>"),
]


@pytest.mark.parametrize(("value", "status", "kind", "body"), RETURNED)
async def test_what_a_page_may_return(value: Any, status: int, kind: str, body: bytes) -> None:
    def blocking_page(request: RouteRequest) -> Any:
        return value

    for app in (page_of(lambda: value), route_app_of(blocking_page)):
        got = await ask(app)
        assert (got.status, got.headers["content-type"], got.raw) == (status, kind, body)
        assert got.headers["content-length"] == str(len(body))


async def test_the_request() -> None:
    seen: list[RouteRequest] = []

    async def page(request: RouteRequest) -> dict[str, Any]:
        seen.append(request)
        assert await request.body() is await request.body()
        return {"json": await request.json()}

    twice = [(b"x-a", b"1"), (b"x-a", b"2")]
    got = await ask(route_app_of(page), "POST", [b'{"a"', b":1}"], query="a=1&b=%C3%A9&a=&c", more=twice)
    assert got.raw == b'{"json":{"a":1}}'
    (request,) = seen
    assert (request.method, request.path, request.client) == ("POST", "/page", "127.0.0.1")
    assert request.query == {"a": ["1", ""], "b": ["é"], "c": [""]}
    assert request.headers.all("x-a") == ["1", "2"]


async def read_query(request: RouteRequest) -> str:
    return str(len(request.query))


async def read_json(request: RouteRequest) -> list[Any]:
    return [await request.json()]


BAD_REQUESTS = [
    *((read_body, {"body": b"x" * 1001}, 413), (read_body, {"body": [b"x" * 600, b"y" * 600, b""]}, 413)),
    *((read_body, {"headers": {"content-length": "9" * 20}}, 413), (read_body, {"body": b"x" * 1000}, 200)),
    *((read_json, {"body": b"{"}, 400), (read_json, {"body": b""}, 400)),
    *((read_query, {"query": "a&" * 2000}, 400), (read_query, {"query": "\xff=%ff&%"}, 200)),
]


async def test_bad_requests() -> None:
    for function, request_parts, status in BAD_REQUESTS:
        got = await ask(route_app_of(function), "POST", **request_parts)
        assert got.status == status
        assert status == 200 or error_of(got)["message"]
    got = await ask(route_app_of(read_body, ["GET", "POST"]), "NONSENSE" * 100)
    assert (got.status, got.headers["allow"]) == (405, "GET, POST, HEAD")
    assert "NONSENSE" * 100 not in error_of(got)["message"]


async def test_a_page_may_take_a_request_of_starlette_and_return_its_responses() -> None:
    async def page(request: Request) -> Response:
        assert await request.json() == await request.json() == {"n": 1}
        return JSONResponse({"query": request.query_params["a"], "host": request.url.hostname}, 201, {"x-a": "b"})

    def blocking(asked: Request) -> Response:
        return PlainTextResponse(asked.method)

    got = await ask(route_app_of(page), "POST", [b'{"n"', b":1}"], query="a=1")
    assert (got.status, got.json, got.headers["x-a"]) == (201, {"query": "1", "host": "localhost"}, "b")
    assert (await ask(route_app_of(blocking))).raw == b"GET"


async def test_a_request_of_starlette_has_the_limits_of_any_other() -> None:
    async def page(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    for body, status in ((b"x" * 1001, 413), ([b"x" * 600, b"y" * 600], 413), (b"x" * 1000, 200)):
        got = await ask(route_app_of(page), "POST", body)
        assert got.status == status
    left = HttpWire(route_app_of(page), path="/page").raw("POST", b"x", complete=False)
    left.leave()
    assert (await left.done()).sent == [] or left.status == 499


# ── what goes wrong ──


def fail(failure: BaseException) -> None:
    raise failure


FAILURES = [
    *(lambda: fail(ValueError("the secret")), lambda: fail(SystemExit(3)), lambda: fail(asyncio.CancelledError())),
    *(lambda: None, lambda: 7, lambda: {"a": object()}),
    lambda: RouteResponse("x", headers={"x": "a\r\nset-cookie: b"}),
    lambda: RouteResponse("x", headers={"x y": "a"}),
    lambda: RouteResponse("x", headers={"Content-Length": "1"}),
    lambda: RouteResponse("x", media_type="text/html\r\nx: y"),
    lambda: RouteResponse("x", status=99),
]


@pytest.mark.parametrize("make", FAILURES)
async def test_a_failure_is_reported_in_the_log_and_nowhere_else(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    got = await ask(page_of(make))
    assert (got.status, error_of(got)) == (500, {"code": -32603, "message": "Internal error"})
    (record,) = caplog.records
    assert (record.levelno, record.exc_info is None) == (logging.ERROR, False)
    assert "route page (" in record.getMessage()


async def test_refusals_of_the_pages_own_keep_their_words(caplog: pytest.LogCaptureFixture) -> None:
    async def busy(*_: Any, label: str) -> None:
        raise Busy(f"{label} can't run")

    def blocking(request: RouteRequest) -> str:
        return ""

    refusal = ProtocolError("There is no such thing", code=-32600, http_status=404)
    got = await ask(page_of(lambda: fail(refusal)))
    assert (got.status, error_of(got)["message"]) == (404, "There is no such thing")
    got = await ask(route_app_of(blocking, run_in_thread=busy))
    assert (got.status, got.headers["retry-after"]) == (503, "1")
    assert "can't run" in error_of(got)["message"]
    assert not caplog.records
    got = await ask(page_of(lambda: fail(ProtocolError("at db.internal"))))  # not meant for callers
    assert (got.status, error_of(got)["message"], "at db.internal" in caplog.text) == (500, "Internal error", True)


async def test_a_failure_in_the_middle_of_an_answer_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        fail(ValueError("the secret"))

    got = await ask(page_of(lambda: half))
    assert (got.status, got.raw, got.sent[-1]["more_body"]) == (200, b"half", True)
    assert len(caplog.records) == 1


def no_parameter() -> str:
    return ""


def two(request: RouteRequest, other: int) -> str:
    return ""


BAD_PAGES = [
    (no_parameter, ["GET"], "write no_parameter(request: RouteRequest)"),
    (two, ["GET"], "parameter other: a route gets the request and nothing else"),
    (7, ["GET"], "can't be called"),
    (read_body, [], "methods=[]"),
    (read_body, "GET", "methods='GET'"),
    (read_body, ["GE T"], "methods=['GE T']"),
    (read_body, None, "methods=None"),
]


def test_what_can_be_no_page_is_refused_at_once() -> None:
    for function, methods, words in BAD_PAGES:
        with pytest.raises(SetupError, match="route ") as refused:
            route_app_of(function, methods)
        assert words in str(refused.value)


# ── paths ──


RESERVED = ["/mcp", "/sse", "/messages", "/health", "/health/live"]


async def named(scope: Any, receive: Any, send: Any) -> None:
    await RouteResponse(f"{scope['root_path']}|{scope['path']}")(scope, receive, send)


def test_paths_are_found_with_and_without_a_slash() -> None:
    apps = {path: (lambda *_, path=path: path) for path in ("/", "/about", "/a/b/", "/größe")}
    table = RouteTable(apps, RESERVED)
    for path in ("/about", "/about/", "/a/b", "/a/b/", "/größe", "/", ""):
        app = table.find(path)
        assert app is not None
        assert app().strip("/") == path.strip("/")
    for path in ("/abou", "/about/x", "/about//", "/a", "/ABOUT", "about", "/mcp"):
        assert table.find(path) is None


async def test_a_mount_gets_its_root_path() -> None:
    table = RouteTable({"/files/*": named, "/files/deep/*": named, "/files/exact": route_app_of(read_body)}, RESERVED)
    found = {path: (await ask(table.find(path), path=path)).raw for path in ("/files", "/files/", "/files/a/b")}
    assert found == {"/files": b"/files|/files", "/files/": b"/files|/files/", "/files/a/b": b"/files|/files/a/b"}
    assert (await ask(table.find("/files/deep/x"), path="/files/deep/x")).raw == b"/files/deep|/files/deep/x"
    assert (await ask(table.find("/files/exact"), path="/files/exact")).raw == b"0"
    assert table.find("/filesystem") is None
    rest = RouteTable({"/*": named, "/about": route_app_of(read_body)}, RESERVED)
    assert rest.find("/anything/else") is rest.find("/") is not None
    assert rest.find("/about") is not rest.find("/")
    assert [rest.find(path) for path in ("/mcp", "/mcp/", "/health/live")] == [None] * 3
    assert (await ask(table.find("/files/a"), path="/app/files/a", root_path="/app")).raw == b"/app/files|/app/files/a"
    assert (await ask(table.find("/files/a"), path="/files/a", root_path="/app/")).raw == b"/app/files|/app/files/a"


BAD_ROUTES = {
    "begins with a slash": ("about", 7),
    "belongs to the server": ("/mcp", "/mcp/*"),
    "compared as they are": ("/users/{id}", "/a*", "/a b", "/a?b", "/a/../b"),
}


def test_bad_paths_are_refused_at_once() -> None:
    for words, paths in BAD_ROUTES.items():
        for path in paths:
            with pytest.raises(SetupError, match=words) as refused:
                RouteTable({path: named}, RESERVED)  # type: ignore[dict-item]
            assert str(refused.value).startswith(f"route {path!r}: ")
    with pytest.raises(SetupError, match="there are two"):
        RouteTable({"/a": named, "/a/": named}, RESERVED)


FOREIGN: dict[str, str | None] = {"host": "evil.example", "origin": "https://evil.example"}


def make(**options: Any) -> Server:
    return Server("pages", version="1.0.0", **options)


async def test_the_endpoint_may_be_the_root(serve: Serve) -> None:
    app = await serve(make(), path="/", allowed_hosts=["mcp.example"])
    for path in ("", "/"):
        wire = HttpWire(app, path=path, headers={"host": "mcp.example"})
        assert (await wire.ask("server/discover"))["supportedVersions"]
    assert "<pre>http://mcp.example</pre>" in await opened(app, "/", host="mcp.example")
    elsewhere = await wire.raw("POST", b"{}", path="/mcp").done()
    assert elsewhere.status == 404
    assert error_of(elsewhere)["message"].endswith("; the MCP endpoint is /")
    server = make()
    server.custom_route("/")(read_body)
    with pytest.raises(SetupError, match="belongs to the server itself"):
        server.asgi(path="/")


# ── health, and people ──


@pytest.mark.parametrize("path", ["/health", "/health/live", "/ready", "/health/ready"])
async def test_health_is_open_to_all(serve: Serve, path: str) -> None:
    app = await serve(make(), allowed_hosts=["mcp.example"])
    wire = HttpWire(app, path=path)
    for headers in ({}, FOREIGN, {"host": None}, {"host": "10.0.0.7"}, {"accept": "text/html"}):
        answer = await wire.raw("GET", b"", headers).done()
        assert (answer.status, answer.json) == (200, {"status": "ok"})
        assert answer.headers["cache-control"] == "no-store"
    assert (await wire.raw("GET", path=f"{path}/", query="x=1").done()).status == 200
    head = await wire.raw("HEAD").done()
    assert (head.status, head.raw) == (200, b"")


@pytest.mark.parametrize("path", ["/health", "/health/live", "/ready", "/health/ready/"])
async def test_a_page_of_the_author_replaces_a_health_path(serve: Serve, path: str) -> None:
    server = make()

    @server.custom_route(path)
    async def health(request: Request) -> Response:
        return PlainTextResponse("fine")

    app = await serve(server, allowed_hosts=["mcp.example"])
    wire = HttpWire(app, path=path, headers={"host": "mcp.example"})
    assert (await wire.raw("GET").done()).raw == b"fine"
    assert (await wire.raw("GET", b"", FOREIGN).done()).status == 403  # it is a page like any other
    others = {"/health", "/health/live", "/ready", "/health/ready"} - {path.rstrip("/")}
    for other in others:
        assert (await wire.raw("GET", path=other).done()).json == {"status": "ok"}


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
async def test_a_browser_is_shown_what_this_is_and_how_to_connect(serve: Serve, path: str) -> None:
    server = make(title="<script>alert(1)</script>", description='Fish & "chips"')
    app = await serve(server, allowed_hosts=["fish.example"])
    html = await opened(app, path, host="fish.example")
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "1.0.0" in html
    assert "Fish &amp; &quot;chips&quot;" in html
    assert html.count("http://fish.example/mcp") == 2
    assert "console" not in html
    refused = await HttpWire(app, path=path).raw("GET", b"", {**BROWSER, **FOREIGN}).done()
    assert (refused.status, refused.headers["content-type"]) == (403, "application/json")


PROGRAMS = [
    *(
        ("GET", {"accept": each})
        for each in ("text/event-stream", "text/html, text/event-stream", "text/html;q=0, */*")
    ),
    *(("GET", {**BROWSER, **more}) for more in ({"mcp-protocol-version": "2025-11-25"}, {"last-event-id": "x"})),
    ("POST", BROWSER),
]


async def test_programs_are_shown_no_page(serve: Serve) -> None:
    app = await serve(make())
    for method, headers in PROGRAMS:
        answer = await HttpWire(app).raw(method, b"{}", headers).done()
        assert (answer.status in (400, 404), answer.json["jsonrpc"]) == (True, "2.0"), headers


KEYS = ApiKeys({"ann": "a-key-of-16-or-more"})
STRANGERS = [(KEYS, "Bearer &lt;your key&gt;"), (Auth(KEYS, authorization_servers=["https://id.example"]), "sign in")]


@pytest.mark.parametrize(("auth", "words"), STRANGERS)
async def test_strangers_see_how_to_get_in_and_nothing_else(serve: Serve, auth: Any, words: str) -> None:
    html = await opened(await serve(make(auth=auth, description="For friends.")), "/mcp")
    said = {word: word in html for word in ("<h1>pages", words, "1.0.0", "For friends.", "a-key-of-16", "ann")}
    assert list(said.values()) == [True, True, False, False, False, False], said


async def test_a_page_of_your_own_is_shown_before_ours(serve: Serve) -> None:
    server = make()

    @server.custom_route("/")
    async def mine(request: Any) -> str:
        return "mine"

    app = await serve(server)
    for place in ({"path": "/"}, {"path": "/x", "root_path": "/x"}):
        assert (await HttpWire(app, **place).raw("GET", b"", BROWSER).done()).raw == b"mine"
        assert (await HttpWire(app, **place).raw("GET", b"", {**BROWSER, **FOREIGN}).done()).status == 403
    assert "http://localhost:8000/mcp" in await opened(app, "/mcp")


async def test_what_a_lifespan_has_opened_is_not_closed_in_the_middle_of_a_page() -> None:
    notes: list[str] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        notes.append("opened")
        yield
        notes.append("closed")

    server = make(lifespan=lifespan)

    @server.custom_route("/slow")
    async def slow(request: Any) -> list[str]:
        begun.set()
        await go.wait()
        return notes

    app = server.asgi()
    page = HttpWire(app, path="/slow").raw("GET")
    await begun.wait()
    draining = asyncio.create_task(app.drain())
    await settle()
    assert (await HttpWire(app, path="/slow").raw("GET").done()).status == 503
    go.set()
    await draining
    assert (await page.done()).json == ["opened"]
    assert notes == ["opened", "closed"]
