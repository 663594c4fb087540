"""What a page in a browser may ask for, send and read."""

import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Context, Field, Server
from dovetail.protocol.headers import Headers
from dovetail.transports.cors import MAX_HEADERS, MAX_HEADERS_LENGTH, METHODS, REQUEST_HEADERS, Cors
from dovetail.transports.http import HttpApp
from http_wire import BOTH, MODERN, Exchange, HttpWire

APP = "https://app.example.com"


def preflight(requested: str | None = None, origin: str | None = APP, method: str | None = "POST", **more: str):
    """The headers of the answer as a dict, or None."""
    given = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": requested,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value is not None]
    answer = Cors(True).preflight(Headers(raw))
    if answer is None:
        return None
    assert len(dict(answer)) == len(answer)
    return {name.decode(): value.decode() for name, value in answer}


def test_a_preflight_without_headers() -> None:
    assert preflight() == {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-max-age": "600",
        "vary": "Origin, Access-Control-Request-Headers",
    }


REQUESTED = [
    ("content-type", "content-type"),
    ("Content-Type,MCP-Protocol-Version", "Content-Type, MCP-Protocol-Version"),
    ("authorization, last-event-id ,\tmcp-session-id", "authorization, last-event-id, mcp-session-id"),
    ("mcp-method,mcp-name,mcp-param-region", "mcp-method, mcp-name, mcp-param-region"),
    ("Mcp-Param-A.b_c~1, mcp-param-", "Mcp-Param-A.b_c~1"),
    ("traceparent,tracestate,baggage,dpop,accept", "traceparent, tracestate, baggage, dpop, accept"),
    ("x-evil, cookie, content-type", "content-type"),
    ("content-type,Content-Type,CONTENT-TYPE", "content-type"),
    ("mcp-param-a b, mcp-param-a:b, mcp-param-é, mcp-param-\x00, mcp-param-a\r\nset-cookie: x", None),
    ("*", None),
    ("", None),
    (",,,", None),
]


@pytest.mark.parametrize(("requested", "allowed"), REQUESTED)
def test_known_headers_are_echoed_as_they_are_spelt(requested: str, allowed: str | None) -> None:
    assert preflight(requested).get("access-control-allow-headers") == allowed


def test_thousands_of_headers_are_cut() -> None:
    names = [f"mcp-param-{number}" for number in range(10_000)]
    assert preflight(",".join(names))["access-control-allow-headers"] == ", ".join(names[:MAX_HEADERS])
    long = [f"mcp-param-{'x' * 150}{number}" for number in range(10_000)]
    allowed = preflight(",".join(long))["access-control-allow-headers"]
    assert len(allowed) <= MAX_HEADERS_LENGTH + MAX_HEADERS
    assert set(allowed.split(", ")) < set(long)  # no half of one
    assert "access-control-allow-headers" not in preflight("mcp-param-" + "x" * 100_000)


def test_switched_off() -> None:
    raw = [(b"origin", APP.encode()), (b"access-control-request-method", b"POST")]
    assert Cors(False).preflight(Headers(raw)) is None
    assert Cors(False).response_headers(APP) == []


def test_responses() -> None:
    headers = dict(Cors(True).response_headers(APP))
    assert headers[b"access-control-allow-origin"] == APP.encode()
    assert headers[b"vary"] == b"Origin"
    exposed = headers[b"access-control-expose-headers"].decode().split(", ")
    assert {"Mcp-Session-Id", "WWW-Authenticate", "Retry-After"} <= set(exposed)
    assert Cors(True).response_headers(None) == []


@pytest.mark.parametrize("origin", ["", "a b", "https://x\r\nset-cookie: y", "é", "x\x00", "x" * 10_000])
def test_what_can_be_no_origin_is_never_echoed(origin: str) -> None:
    """The guard lets such a thing through only where every origin may come."""
    assert Cors(True).response_headers(origin) == []
    assert preflight(origin=origin) is None


LATIN = st.text(st.characters(max_codepoint=255), max_size=100)


@given(LATIN, LATIN, LATIN)
def test_nothing_can_be_smuggled_into_the_answer(requested: str, origin: str, method: str) -> None:
    answer = preflight(requested, origin, method) or {}
    answer.update((name.decode(), value.decode()) for name, value in Cors(True).response_headers(origin))
    assert all(value.isascii() and value.isprintable() for value in answer.values())
    assert "access-control-allow-credentials" not in answer
    assert answer.get("access-control-allow-methods", METHODS.decode()) == METHODS.decode()
    given = origin.strip(" \t")  # blanks around a value are not part of it
    assert answer.get("access-control-allow-origin", given) == given
    for name in answer.get("access-control-allow-headers", "accept").split(", "):
        assert name.lower() in REQUEST_HEADERS or name.lower().startswith("mcp-param-")


PAGE = "https://app.example.com"
SAFE_METHODS = ("GET", "HEAD", "POST")
SAFE_REQUEST_HEADERS = {"accept", "accept-language", "content-language", "range"}
SAFE_RESPONSE_HEADERS = {"cache-control", "content-language", "content-length", "content-type", "expires", "pragma"}


class Blocked(Exception):
    """What a page sees as `TypeError: Failed to fetch`."""


class Browser(HttpWire):
    """A page's `fetch`: asks first where it must, shows what it may."""

    def __init__(self, app: HttpApp, version: str = MODERN, *, origin: str = PAGE, **options: Any) -> None:
        super().__init__(app, version, headers={"origin": origin}, **options)
        self.origin = origin
        self.asked = 0

    async def fetch(
        self, method: str, body: bytes = b"", headers: dict[str, str] | None = None, *, path: str = "/mcp", **more: Any
    ) -> Exchange:
        """The response to an allowed request, with the headers that the page may see."""
        sent = {"accept": BOTH, **(headers or {})}
        if body:
            sent["content-type"] = "application/json"
        if method not in SAFE_METHODS or sent.keys() - SAFE_REQUEST_HEADERS:
            await self._ask_first(method, sorted(sent.keys() - SAFE_REQUEST_HEADERS), path)
        answer = await self.raw(method, body, sent, path=path, **more).started()
        self._allow(answer)
        return answer

    async def _ask_first(self, method: str, names: list[str], path: str) -> None:
        self.asked += 1
        asking = {"access-control-request-method": method, "access-control-request-headers": ",".join(names)}
        answer = await self.raw("OPTIONS", b"", {"accept": "*/*", **asking}, path=path).done()
        if not 200 <= answer.status < 300:
            raise Blocked(f"the preflight was answered with {answer.status}")
        self._allow(answer)
        allowed = _names(answer.headers.get("access-control-allow-methods", ""))
        if method.lower() not in allowed and method not in SAFE_METHODS:
            raise Blocked(f"{method} is not allowed")
        if missing := set(names) - _names(answer.headers.get("access-control-allow-headers", "")):
            raise Blocked(f"{missing} are not allowed")

    def _allow(self, answer: Exchange) -> None:
        raw = [name for name, _ in answer.sent[0]["headers"]]
        assert raw.count(b"access-control-allow-origin") <= 1  # browsers refuse two
        assert b"access-control-allow-credentials" not in raw
        if answer.headers.get("access-control-allow-origin") != self.origin:
            raise Blocked("the page may not see the answer")
        assert "origin" in _names(answer.headers["vary"])

    def shown(self, answer: Exchange) -> dict[str, str]:
        visible = SAFE_RESPONSE_HEADERS | _names(answer.headers.get("access-control-expose-headers", ""))
        return {name: value for name, value in answer.headers.items() if name in visible}


def _names(value: str) -> set[str]:
    return {name.strip().lower() for name in value.split(",")}


def modern(method: str, **params: Any) -> tuple[bytes, dict[str, str]]:
    message = HttpWire(None).message(method, params)
    headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return json.dumps(message).encode(), headers


def handshake(version: str = "2025-11-25") -> bytes:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()


def make() -> Server:
    server = Server("browsed", version="1.0.0")

    @server.tool
    async def where(region: Annotated[str, Field(header="Region")]) -> str:
        return region

    @server.tool
    async def tell(ctx: Context) -> str:
        await ctx.report_progress(1)
        return "told"

    return server


def serve(**options: Any) -> HttpApp:
    return make().asgi(**{"allowed_origins": [PAGE], **options})


# ── what a page can do ──


async def test_a_modern_page_calls_a_tool() -> None:
    page = Browser(serve())
    body, headers = modern("tools/call", name="where", arguments={"region": "north"})
    answer = await (await page.fetch("POST", body, {**headers, "mcp-param-region": "north"})).done()
    assert answer.answer["result"]["content"][0]["text"] == "north"
    assert page.asked == 1
    await page.app.drain()


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_page_has_a_session(version: str) -> None:
    page = Browser(serve())
    welcome = await (await page.fetch("POST", handshake(version))).done()
    session = {"mcp-session-id": page.shown(welcome)["mcp-session-id"], "mcp-protocol-version": version}
    stream = await page.fetch("GET", headers={**session, "accept": "text/event-stream"})
    assert stream.status == 200
    stream.leave()
    await stream.done()
    again = await page.fetch("GET", headers={**session, "last-event-id": "changes.0"})
    assert again.status == 200
    again.leave()
    await again.done()
    assert (await page.fetch("DELETE", headers=session)).status == 204
    gone = await page.fetch("POST", b'{"jsonrpc":"2.0","id":2,"method":"ping"}', session)
    assert gone.status == 404
    await page.app.drain()


async def test_a_page_uses_the_old_transport() -> None:
    page = Browser(serve())
    stream = await page.fetch("GET", headers={"accept": "text/event-stream", "cache-control": "no-store"}, path="/sse")
    first = await stream.event()
    query = first.data.decode().partition("?")[2]
    posted = await page.fetch("POST", handshake("2024-11-05"), path="/messages", query=query)
    assert posted.status == 202
    assert "result" in await stream.message()
    await page.app.drain()
    await stream.done()


# ── a page can read why it was refused ──


def plain(body: bytes = b"", **headers: str) -> dict[str, Any]:
    return {"method": "POST", "body": body, "headers": {name.replace("_", "-"): text for name, text in headers.items()}}


DISCOVER = modern("server/discover")
REFUSALS = [
    (plain(b"{"), 400),
    (plain(b"[]"), 400),
    (plain(DISCOVER[0]), 400),  # its headers are missing
    (plain(*DISCOVER[:1], mcp_protocol_version=MODERN, mcp_method="tools/list"), 400),
    (plain(b'{"jsonrpc":"2.0","id":1,"method":"ping"}'), 400),  # no session
    (plain(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', mcp_session_id="unknown"), 404),
    ({"method": "POST", "body": modern("nonsense")[0], "headers": modern("nonsense")[1]}, 404),
    (plain(b"x" * 1001), 413),
    ({"method": "GET", "headers": {"accept": "application/json", "mcp-session-id": "unknown"}}, 404),
    ({"method": "GET", "headers": {"mcp-protocol-version": MODERN}}, 405),
    ({"method": "DELETE", "headers": {"mcp-session-id": "unknown"}}, 404),
    ({"method": "GET", "path": "/nothing"}, 404),
    ({"method": "POST", "body": b"{}", "path": "/messages"}, 400),
    ({"method": "POST", "body": b"{}", "path": "/messages", "query": "session_id=x"}, 404),
]


@pytest.mark.parametrize(("request_parts", "status"), REFUSALS)
async def test_a_refusal_can_be_read(request_parts: dict[str, Any], status: int) -> None:
    page = Browser(serve(max_body_bytes=1000))
    answer = await (await page.fetch(**request_parts)).done()
    assert answer.status == status
    assert answer.json["error"]["message"]
    await page.app.drain()


async def test_a_busy_server_can_be_read() -> None:
    page = Browser(serve(max_streams=1))
    first = await page.fetch("GET", path="/sse")
    busy = await (await page.fetch("GET", path="/sse")).done()
    assert (busy.status, page.shown(busy)["retry-after"]) == (503, "1")
    await page.app.drain()
    await first.done()
    leaving = await (await page.fetch("POST", *DISCOVER)).done()
    assert (leaving.status, page.shown(leaving)["retry-after"]) == (503, "1")


# ── who may not ──


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://app.example.com:8443", "http://app.example.com", "null"]
)
async def test_an_unknown_page_is_told_nothing(origin: str) -> None:
    """Not even why: whoever reads that may know what runs on a visitor's machine. The log tells those who may know."""
    page = Browser(serve(), origin=origin)
    for parts in ({"method": "POST", "body": DISCOVER[0], "headers": DISCOVER[1]}, {"method": "GET", "path": "/sse"}):
        with pytest.raises(Blocked):
            await page.fetch(**parts)
    for method in ("OPTIONS", "POST", "GET"):
        refused = await page.raw(method, b"", {"access-control-request-method": "POST"}).done()
        assert refused.status == 403
        assert not [name for name in refused.headers if name.startswith("access-control")]
        assert refused.json["error"]["message"].startswith("The Origin header")


@pytest.mark.parametrize("name", ["x-evil", "cookie2", "mcp-param-", "mcp-other"])
async def test_a_header_of_no_use_is_not_allowed(name: str) -> None:
    with pytest.raises(Blocked, match=name):
        await Browser(serve()).fetch("POST", DISCOVER[0], {**DISCOVER[1], name: "1"})


# ── settings ──


@pytest.mark.parametrize(
    ("allowed", "origin"),
    [
        ([], "http://localhost:5173"),
        ([], "http://127.0.0.1"),
        (["https://*.example.com"], "https://deep.app.example.com"),
        (["*"], "https://anybody.example"),
        (["*"], "null"),
        (["null"], "null"),
        (["vscode-webview://*"], "vscode-webview://1a2b"),
    ],
)
async def test_each_page_is_allowed_by_its_own_name(allowed: list[str], origin: str) -> None:
    page = Browser(serve(allowed_origins=allowed), origin=origin)
    assert (await page.fetch("POST", *DISCOVER)).status == 200
    await page.app.drain()


async def test_without_cors() -> None:
    app = serve(cors=False)
    with pytest.raises(Blocked):
        await Browser(app).fetch("POST", *DISCOVER)
    with pytest.raises(Blocked):
        await Browser(app).fetch("GET", path="/sse")
    wire = HttpWire(app, headers={"origin": PAGE})
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    for answer in (await wire.raw("OPTIONS", b"", asking).done(), await wire.post("server/discover")):
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert (await HttpWire(app).post("server/discover")).status == 200  # a page of the same origin needs none
    await app.drain()
