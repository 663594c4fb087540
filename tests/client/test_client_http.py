"""Streamable HTTP: headers, responses, refusals, redirects and connections."""

import asyncio
import gzip
import sys
import time
import tracemalloc
from email.utils import formatdate
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import MODERN, Scripted, ScriptedRequest, brisk_client, free_port, handshake, modern, until

from dovetail import Client
from dovetail.client.transports.base import OutgoingMessage, ServerUrl
from dovetail.client.transports.http import mirror_headers
from dovetail.errors import BadResponse, ConnectionLost, NotSignedIn, ServerError, SetupError, TooManyRequests
from dovetail.protocol.headers import check_parameters, check_standard, header_parameters

pytestmark = pytest.mark.usefixtures("tidy")


async def test_modern_headers() -> None:
    async with Scripted(modern()) as server, brisk_client(server.url, headers={"Authorization": "Bearer x"}) as client:
        await client.call_tool("grüße")
        for uri in ("notes://1", " padded ", "=?base64?eA==?="):
            with pytest.raises(ServerError):
                await client.read_resource(uri)
        with pytest.raises(ServerError):
            await client.request("odd/method\u00e9")
    fixed = {
        "mcp-protocol-version": MODERN, "authorization": "Bearer x", "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }  # fmt: skip
    for request in server.requests:
        assert fixed.items() <= request.headers.items()
        assert request.headers["user-agent"].startswith("dovetail/")
        assert "mcp-session-id" not in request.headers
        assert request.headers["mcp-method"] == request.method or request.method == "odd/method\u00e9"
    assert [request.headers.get("mcp-name") for request in server.requests] == [
        None, None, "=?base64?Z3LDvMOfZQ==?=", "notes://1", "=?base64?IHBhZGRlZCA=?=",
        "=?base64?PT9iYXNlNjQ/ZUE9PT89?=", None,
    ]  # fmt: skip


REGION = {"type": "string", "x-mcp-header": "Region"}
NESTED = {"type": "object", "properties": {"retries": {"type": "integer", "x-mcp-header": "Retries"}}}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def params_of(request: ScriptedRequest) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith("mcp-param-")}


async def test_arguments_travel_as_headers_where_the_schema_says_so() -> None:
    flag = {"type": "boolean", "x-mcp-header": "Dry-Run"}
    offered = [tool("deploy", region=REGION, options=NESTED, dry=flag), tool("plain", region={"type": "string"})]
    async with Scripted(modern(offered)) as server, brisk_client(server.url) as client:
        await client.call_tool("deploy", {"region": "Köln", "options": {"retries": 3}, "dry": True})
        assert params_of(server.requests[-1]) == {
            "mcp-param-region": "=?base64?S8O2bG4=?=", "mcp-param-retries": "3", "mcp-param-dry-run": "true",
        }  # fmt: skip
        await client.call_tool("deploy", {"region": None, "options": {"retries": 2.0}})
        assert params_of(server.requests[-1]) == {"mcp-param-retries": "2"}
        await client.call_tool("deploy", {"region": ["a", "list"], "options": 7})
        assert params_of(server.requests[-1]) == {}
        await client.call_tool("plain", {"region": "x"})
        assert params_of(server.requests[-1]) == {}
        assert server.said().count("POST tools/list") == 1


async def test_a_schema_that_changed_is_read_again() -> None:
    schemas = [tool("deploy", region=REGION), tool("deploy", zone={"type": "string", "x-mcp-header": "Zone"})]

    def behave(request: ScriptedRequest) -> None:
        if request.method == "tools/list":
            modern([schemas[0] if server.said().count("POST tools/list") == 1 else schemas[1]])(request)
        elif request.method == "tools/call" and "mcp-param-zone" not in request.headers:
            request.error(-32020, 400, "Header mismatch: Mcp-Param-Zone is missing")
        else:
            modern()(request)

    async with Scripted(behave) as server, brisk_client(server.url) as client:
        assert (await client.call_tool("deploy", {"zone": "b"})).text == "called"
        assert server.said()[1:] == ["POST tools/list", "POST tools/call"] * 2
        with pytest.raises(ServerError, match="Mcp-Param-Zone is missing"):  # once, not for ever
            await client.call_tool("deploy", {})
        assert server.said()[5:] == ["POST tools/call", "POST tools/list", "POST tools/call"]


async def test_tools_with_wrong_marks_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {"empty": {"type": "string", "x-mcp-header": ""}, "spaced": {"type": "string", "x-mcp-header": "a b"}}
    secret = {"type": "string", "format": "password", "x-mcp-header": "Key"}  # unwise, but not wrong
    offered = [tool(name, x=schema) for name, schema in wrong.items()] + [tool("twice", a=REGION, b=REGION)]
    offered += [tool("fine", a=REGION), tool("secret", key=secret)]
    async with Scripted(modern(offered)) as server, brisk_client(server.url) as client:
        assert [each.name for each in await client.list_tools()] == ["fine", "secret"]
        assert [each.name for each in (await client.list_tools_page()).items] == ["fine", "secret"]
        assert "the tool spaced is left out: x-mcp-header on 'x' can't work" in caplog.text
        await client.call_tool("secret", {"key": "s3"})
        assert params_of(server.requests[-1]) == {"mcp-param-key": "s3"}
        await client.call_tool("empty", {"x": "y"})  # the server may know better
        assert params_of(server.requests[-1]) == {}


BOMB = gzip.compress(b"[" + b"0," * 8_000_000 + b"0]")  # 16 KB, of 16 MB


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "identity, gzip"])
async def test_a_compressed_answer_is_refused_unread(encoding: str) -> None:
    def behave(request: ScriptedRequest) -> None:
        assert request.headers["accept-encoding"] == "identity"
        if request.method == "tools/call":
            return request.answer(200, BOMB, Content_Encoding=encoding)
        return modern()(request)

    async with Scripted(behave) as server, brisk_client(server.url) as client:
        tracemalloc.start()
        try:
            with pytest.raises(BadResponse, match="the server compressed its answer, which was not asked for"):
                await client.call_tool("any", timeout=30)
            assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
        finally:
            tracemalloc.stop()


async def test_a_modern_request_whose_connection_breaks_is_never_repeated() -> None:
    def behave(request: ScriptedRequest) -> None:
        if request.method != "tools/call":
            return modern()(request)
        if request.message["params"]["name"] == "at once":
            return request.cut()
        request.stream()
        request.event(None, id="1")  # an id means nothing in this revision
        request.cut() if request.message["params"]["name"] == "later" else request.end()
        return None

    async with Scripted(behave) as server, brisk_client(server.url) as client:
        await client.list_tools()
        for name, words in (("at once", "broke"), ("later", "broke before"), ("ends", "ended the stream before")):
            with pytest.raises(ConnectionLost, match=f"tools/call: .*{words}"):
                await client.call_tool(name)
        assert server.said().count("POST tools/call") == 3
        assert "GET" not in server.said()


STRANGE: dict[str, tuple[Any, type[Exception], str]] = {
    "a page": (lambda post: post.answer(200, b"<html>", "text/html"), BadResponse, "200 OK with text/html"),
    "accepted": (lambda post: post.answer(202), BadResponse, "202 Accepted .* no answer"),
    "nothing": (lambda post: post.answer(200), BadResponse, "200 OK"),
    "no JSON": (lambda post: post.answer(200, b"oops"), BadResponse, "no answer to the request"),
    "another": (lambda post: post.answer(200, {"jsonrpc": "2.0", "id": 77, "result": {}}), BadResponse, "no answer"),
    "nameless error": (lambda post: post.error(-32700, 200, "what?", id=False), ServerError, "what"),
    "404": (lambda post: post.error(-32601, 404, "Method not found"), ServerError, r"Method not found \(-32601\)"),
    "401": (lambda post: post.answer(401), NotSignedIn, "tools/call: .* 401 Unauthorized: it wants a token"),
    "401, in words": (lambda post: post.error(-32000, 401, "no"), NotSignedIn, "401 Unauthorized: it wants a token"),
    "403, in words": (lambda post: post.error(-32000, 403, "Origin", id=False), ServerError, r"Origin \(-32000\)"),
    "413": (lambda post: post.answer(413, b"<html>", "text/html"), ServerError, "413"),
    "418": (lambda post: post.answer(499), ServerError, "answered the status 499"),
    "429": (lambda post: post.answer(429), TooManyRequests, "tools/call: the server answered 429 Too Many Requests"),
    "500": (lambda post: post.error(-32603, 500, "sorry"), ServerError, r"sorry \(-32603\)"),
    "503, in words": (lambda post: post.error(-32603, 503, "busy"), ConnectionLost, "503 Service Unavailable: busy$"),
    "no error": (lambda post: post.answer(400, {"jsonrpc": "2.0", "error": 7}), BadResponse, "can't be read"),
    "no message": (lambda post: (post.stream(), post.event("oops"), post.end()), ConnectionLost, "before the answ"),
    "bad chunks": (lambda post: (post.stream(), post._writer.write(b"zz\r\n"), None), ConnectionLost, "tools/call"),
    "bad gzip": (lambda post: post.answer(200, b"no gzip", Content_Encoding="gzip"), BadResponse, "tools/call"),
    "too many headers": (lambda post: post.answer(200, b"{}", X="y" * 20_000), ConnectionLost, "HTTP as it should"),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "kind", "words"), STRANGE.values(), ids=STRANGE.keys())
async def test_an_answer_that_is_none(reply: Any, kind: type[Exception], words: str) -> None:
    def behave(request: ScriptedRequest) -> None:
        is_strange = request.method == "tools/call" and request.message["params"]["name"] == "strange"
        reply(request) if is_strange else modern()(request)

    async with Scripted(behave) as server, brisk_client(server.url) as client:
        with pytest.raises(kind, match=words):
            await client.call_tool("strange")
        assert (await client.call_tool("plain")).text == "called"


@pytest.mark.parametrize(("code", "status"), [(-32600, 200), (-32600, 400), (-32601, 404), (-32000, 429), (None, 403)])
async def test_an_error_has_the_status_of_the_response_that_refused_its_request(code: int | None, status: int) -> None:
    def behave(request: ScriptedRequest) -> None:
        if request.method != "tools/call":
            modern()(request)
        elif code is None:
            request.answer(status)
        else:
            request.error(code, status)

    async with Scripted(behave) as server, brisk_client(server.url) as client:
        with pytest.raises(ServerError) as caught:
            await client.call_tool("any")
    assert (caught.value.code, caught.value.status) == (code or status, None if status == 200 else status)


def _later(seconds: int) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


TOO_MANY: dict[str, tuple[Any, int, tuple[float, float] | None]] = {
    "in seconds": (lambda post: post.answer(429, Retry_After="7"), 429, (7, 7)),
    "at a time": (lambda post: post.answer(429, Retry_After=_later(100)), 429, (90, 100)),
    "in the past": (lambda post: post.answer(429, Retry_After=_later(-100)), 429, (0, 0)),
    "in a hundred years": (lambda post: post.answer(429, Retry_After="9" * 400), 429, (86_400, 86_400)),
    "soon": (lambda post: post.answer(429, Retry_After="soon"), 429, None),
    "never": (lambda post: post.answer(429, Retry_After="-7"), 429, None),
    "not said": (lambda post: post.error(-32000, 429, "slow down"), -32000, None),
    "in the body": (lambda post: post.error(-32603, 429, "busy", data={"retryAfter": 3}), -32603, (3, 3)),
    "in a success": (lambda post: post.error(-32603, 200, "busy", data={"retryAfter": 2}), -32603, (2, 2)),
}


@pytest.mark.parametrize(("reply", "code", "wait"), TOO_MANY.values(), ids=TOO_MANY.keys())
async def test_when_to_try_again(reply: Any, code: int, wait: tuple[float, float] | None) -> None:
    behave: Any = lambda request: reply(request) if request.method == "tools/call" else modern()(request)  # noqa: E731
    async with Scripted(behave) as server, brisk_client(server.url) as client:
        with pytest.raises(TooManyRequests) as refused:
            await client.call_tool("any")
    seconds = refused.value.retry_after
    assert refused.value.code == code
    assert seconds is None if wait is None else seconds is not None and wait[0] <= seconds <= wait[1]


async def test_a_server_that_is_busy_is_not_taken_for_an_old_one() -> None:
    async with Scripted(lambda request: request.answer(429, Retry_After="1")) as server:
        with pytest.raises(TooManyRequests, match="server/discover: the server answered 429"):
            async with brisk_client(server.url):
                pass
        assert server.said() == ["POST server/discover"]


async def test_notifications_stay_in_order() -> None:
    order: list[str] = []

    async def behave(request: ScriptedRequest) -> None:
        if request.method in ("server/discover", "initialize") or request.verb != "POST":
            handshake(request)
            return
        await asyncio.sleep(0.03 if request.method == "notifications/initialized" else 0)
        order.append(request.method or "")
        if not handshake(request):
            request.result({})

    async with Scripted(behave) as server, brisk_client(server.url) as client:
        await asyncio.gather(client.notify("notifications/one"), client.notify("notifications/two"))
        await client.ping()
        assert order == ["notifications/initialized", "notifications/one", "notifications/two", "ping"]


@pytest.mark.parametrize("by", ["timeout", "cancel", "close"])
@pytest.mark.parametrize("opened", [False, True])
async def test_leaving_a_modern_request_closes_its_stream(by: str, opened: bool) -> None:
    left = asyncio.Event()

    async def behave(request: ScriptedRequest) -> None:
        if request.method != "tools/call":
            return modern()(request)
        if opened:
            request.stream()
            request.chunk(": still there\n\n")
        await request.gone()
        left.set()
        return None

    async with Scripted(behave) as server:
        client = brisk_client(server.url)
        await client.__aenter__()
        call = asyncio.create_task(client.call_tool("slow", timeout=0.3 if by == "timeout" else 5))
        await until(lambda: "POST tools/call" in server.said())
        if by == "cancel":
            call.cancel()
        if by == "close":
            await client.close()
        with pytest.raises((TimeoutError, asyncio.CancelledError, ConnectionLost)):
            await call
        await asyncio.wait_for(left.wait(), 5)
        await client.close()
        assert server.said() == ["POST server/discover", "POST tools/list", "POST tools/call"]


async def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ConnectionLost, match=r"initialize: http://127\.0\.0\.1:\d+/mcp: can't connect: Connection ref"):
        async with brisk_client(f"http://127.0.0.1:{free_port()}/mcp?token=secret") as client:
            await client.list_tools()


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_is_followed(status: int) -> None:
    def behave(request: ScriptedRequest) -> None:
        request.answer(status, Location="/mcp/") if request.path == "/mcp" else modern()(request)

    async with Scripted(behave) as server, brisk_client(server.url, headers={"Authorization": "x"}) as client:
        assert (await client.call_tool("any")).text == "called"
        assert {request.path for request in server.requests} == {"/mcp", "/mcp/"}
        assert all(request.headers["authorization"] == "x" for request in server.requests)


@pytest.mark.parametrize(
    ("status", "location", "words"),
    [
        (307, "http://localhost:1/mcp", "307 Temporary Redirect: redirected, but .*localhost:1/mcp', .*another"),
        (307, "//evil.example/mcp", "another origin"),
        (308, "ftp://127.0.0.1/x", "can't be used: a URL has to begin with http:// or https://"),
        (308, "http://user:word@127.0.0.1/x", "can't be used"),
        (302, "/elsewhere", "302 Found: redirected to http://127.*/elsewhere; use that URL"),
        (301, "/elsewhere", "301 Moved Permanently"),
        (307, "/mcp", "redirected too often"),
        (307, None, "307 Temporary Redirect"),
        (300, None, "300 Multiple Choices"),
    ],
)  # fmt: skip
async def test_other_redirects_are_not(status: int, location: str | None, words: str) -> None:
    named = {} if location is None else {"Location": location}
    async with Scripted(lambda request: request.answer(status, **named)) as server:
        with pytest.raises(ServerError, match=words) as caught:
            async with brisk_client(server.url, protocol_version=MODERN):
                pass
        assert caught.value.code == status


BAD_TARGETS: list[tuple[str, dict[str, Any], str]] = [
    ("http://user:pass@127.0.0.1/mcp", {}, "holds a user or a password"),
    ("http://127.0.0.1/mcp#part", {}, "has a part after #"),
    ("http:///mcp", {}, "no host"),
    ("http://127.0.0.1:99999/mcp", {}, "its host or its port can't be read"),
    ("http://[::1/mcp", {}, "its host or its port can't be read"),
    ("ftp://x", {}, "can't connect to 'ftp://x': a URL has to begin with http:// or https://"),
    ("ftp://user:pass@x/mcp", {}, "can't connect to 'ftp://…': a URL has to begin with http:// or https://"),
    ("http://user:pass@x y/mcp", {}, "can't connect to 'http://…': it holds spaces"),
    ("ftp://x/mcp?key=pass@y", {}, "can't connect to 'ftp://…': a URL has to begin with http:// or https://"),
    ("http://127.0.0.1/a b", {}, "spaces"),
    ("http://127.0.0.1\\@evil.example/", {}, "backslashes"),
    ("http://127.0.0.1/\r\nX: y", {}, "control characters"),
    ("http://127.0.0.1/mcp", {"env": {}}, "env= and cwd= are for a command"),
    ("http://127.0.0.1/mcp", {"headers": {"a b": "c"}}, "not the name of a header"),
    ("http://127.0.0.1/mcp", {"headers": {"Authorization": "Bearer x\n"}}, "one line"),
    ("http://127.0.0.1/mcp", {"headers": {"X": 7}}, "one line"),
    ("http://127.0.0.1/mcp", {"headers": {"Mcp-Session-Id": "x"}}, "sets that one itself"),
    ("http://127.0.0.1/mcp", {"headers": {"CONTENT-type": "x"}}, "sets that one itself"),
    ("http://127.0.0.1/mcp", {"transport": "websocket"}, "use \"http\", \"sse\" or none"),
    ("http://127.0.0.1/mcp", {"transport": "sse", "protocol_version": MODERN}, "does not exist over HTTP\\+SSE"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "options", "words"), BAD_TARGETS)
async def test_a_url_that_can_not_be_used(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words) as caught:
        Client(url, **options)
    assert "pass" not in str(caught.value).replace("password", "")


async def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(SetupError, match=r'pip install "dovetail-mcp\[client\]"'):
        async with Client("http://127.0.0.1:1/mcp"):
            pass


SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "x-mcp-header": "Text"},
        "deep": {"type": "object", "properties": {"number": {"type": "integer", "x-mcp-header": "Number"}}},
        "flag": {"type": "boolean", "x-mcp-header": "Flag"},
    },
}

PARAMETERS = header_parameters(SCHEMA)
safe = 2**53 - 1

arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text() | st.none() | st.just("=?base64?eA==?="),
        "deep": st.fixed_dictionaries({}, optional={"number": st.integers(-safe, safe) | st.just(4.0) | st.none()}),
        "flag": st.booleans(),
        "other": st.text(),
    },
)


@pytest.mark.rule("MH-20", "MH-22")
@given(st.text(min_size=1), arguments)
def test_a_server_agrees_with_the_headers(name: str, given_arguments: dict[str, Any]) -> None:
    """What the client writes is what the server's own check looks for."""
    out = OutgoingMessage(b"", 1, "tools/call", {"name": name, "arguments": given_arguments})
    headers = {key.lower(): value for key, value in mirror_headers(out, {name: PARAMETERS}).items()}
    assert all(value.replace("\t", "").isprintable() and value.isascii() for value in headers.values())
    check_standard(headers, method="tools/call", name=name)
    check_parameters(headers, PARAMETERS, given_arguments)


HOME = ServerUrl.parse("https://example.org/a/mcp?key=secret")


@pytest.mark.parametrize(
    "reference",
    [
        "http://example.org/x", "https://example.org:8443/x", "https://example.com/x", "//example.com",
        "https:/\\evil/x", "/a b", "/a\nb",
        "https://example.org@evil.example/", "https://user:word@example.org/", "data:text/plain,x", "https://[::1",
        "https://example.org:0x1bb/", "https://example.org:99999/", "https://evil.example\\@example.org/",
    ],
)  # fmt: skip
def test_what_a_server_may_not_name(reference: str) -> None:
    with pytest.raises(BadResponse, match="the server names"):
        HOME.join(reference)


@given(st.text() | st.text(alphabet="htps:/\\@.#?[]%examplorgv0123"))
def test_no_reference_leads_elsewhere(reference: str) -> None:
    try:
        url = HOME.join(reference)
    except BadResponse:
        return
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname, parts.port or 443, parts.username) == ("https", "example.org", 443, None)
