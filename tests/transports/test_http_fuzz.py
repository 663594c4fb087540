"""Good requests that are changed in a few places, and random ones.

Each is answered with a legal status and in JSON, nothing is raised or logged, and the next request works.
"""

import asyncio
import json
import logging
from typing import Any

import pytest
from asked_server import INSIDES, LEGACY, check_alive, hello, message, mirrored, modern, new_server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from http_wire import BOTH, META, MODERN, Exchange, HttpWire

STATUSES = {200, 202, 204, 400, 403, 404, 405, 406, 408, 413, 415}
SESSION = "the live session"  # replaced by its id
PLAUSIBLE = {
    "host": ["localhost", "127.0.0.1:8000", "[::1]", "evil.example", "", "localhost:99999"],
    "origin": ["http://localhost", "https://evil.example", "null", ""],
    "accept": ["application/json", "text/event-stream", "*/*", "text/html", "application/json;q=0", ";;q=,,"],
    "content-type": ["application/json", "text/plain", "application/json; charset=utf-16"],
    "content-length": ["0", "10", "99999999", "-1", "x"],
    "content-encoding": ["identity", "gzip"],
    "mcp-protocol-version": [MODERN, *LEGACY, "banana", ""],
    "mcp-session-id": [SESSION, "gone", ""],
    "mcp-method": ["tools/call", "tools/list", "ping"],
    "mcp-name": ["add", "weather", "=?base64?YWRk?=", "=?base64?x?="],
    "mcp-param-region": ["eu", "=?base64?ZXU=?="],
    "last-event-id": ["changes.0", "changes.99", "0123456789abcdef.1", "x"],
    "transfer-encoding": ["chunked"],
    "access-control-request-method": ["POST"],
}


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


METHODS = (
    *("initialize", "ping", "tools/list", "tools/call", "resources/read", "resources/subscribe", "prompts/get"),
    *("logging/setLevel", "completion/complete", "server/discover", "notifications/initialized", "no/such"),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
metas = st.sampled_from([META, {**META, "io.modelcontextprotocol/clientCapabilities": None}]) | values
params = st.fixed_dictionaries(
    {},
    optional={
        "_meta": metas,
        "name": st.sampled_from(["add", "weather", "chatty", "review"]) | values,
        "arguments": st.sampled_from([{"a": 1}, {"region": "eu"}, {}]) | values,
        "uri": st.sampled_from(["notes://all", "notes://x", "nothing://"]) | values,
        "level": st.sampled_from(["debug", "loud"]),
        "protocolVersion": st.sampled_from([*LEGACY, MODERN, "x"]) | values,
        "capabilities": st.just({}) | values,
        "clientInfo": st.just({"name": "f", "version": "1"}) | values,
        "cursor": values,
    },
)
messages = st.fixed_dictionaries(
    {"jsonrpc": st.sampled_from(["2.0"] * 9 + ["1.0"])},
    optional={
        "id": st.sampled_from([1, "a", 0, None, 1.5]) | values,
        "method": st.sampled_from(METHODS) | values,
        "params": params | values,
        "result": values,
        "error": values,
    },
)
GOOD: list[tuple[str, str, dict[str, str | None], Any]] = [
    ("POST", "/mcp", mirrored("tools/list"), modern("tools/list")),
    ("POST", "/mcp", mirrored("tools/call", "add"), modern("tools/call", {"name": "add", "arguments": {"a": 1}})),
    ("POST", "/", mirrored("resources/read", "notes://all"), modern("resources/read", {"uri": "notes://all"})),
    ("POST", "/mcp", mirrored("subscriptions/listen"), modern("subscriptions/listen", {"notifications": {}})),
    ("POST", "/mcp", {}, hello("2025-11-25")),
    ("POST", "/mcp", {"mcp-session-id": SESSION}, message("ping")),
    (
        "POST",
        "/mcp",
        {"mcp-session-id": SESSION},
        message("tools/call", {"name": "chatty", "_meta": {"progressToken": 1}}),
    ),
    ("POST", "/mcp", {"mcp-session-id": SESSION}, [message("ping", id=1), message("no/such", id=None), message("x")]),
    ("POST", "/mcp", {"mcp-session-id": SESSION}, message("notifications/cancelled", {"requestId": 1}, id=None)),
    ("GET", "/mcp", {"mcp-session-id": SESSION}, None),
    ("GET", "/mcp", {"mcp-session-id": SESSION, "last-event-id": "changes.0"}, None),
    ("OPTIONS", "/mcp", {"origin": "http://localhost", "access-control-request-method": "POST"}, None),
    ("GET", "/health", {}, None),
    ("GET", "/sse", {}, None),
]


def changed(good: Any, more: Any) -> Any:
    return {**good, **more} if isinstance(good, dict) and isinstance(more, dict) else more


random_bodies = st.binary(max_size=100) | (messages | st.lists(messages, max_size=3) | values).map(encoded)
plausible = st.sampled_from(list(PLAUSIBLE)).flatmap(
    lambda name: st.tuples(
        st.just(name.encode()), st.sampled_from(PLAUSIBLE[name]).map(str.encode) | st.binary(max_size=20)
    )
)
unknown = st.tuples(st.from_regex(rb"[a-z0-9-]{1,20}", fullmatch=True), st.binary(max_size=20))


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, list[tuple[bytes, bytes]], bytes]:
    """A verb, a path, headers and a body: a good request with some changes."""
    verb, path, headers, value = draw(st.sampled_from(GOOD))
    change = draw(st.sampled_from(("nothing", "nothing", "fields", "body", "cut", "verb", "path")))
    body = b"" if value is None else encoded(value)
    if change == "fields":
        body = encoded(changed(value, draw(messages)))
    elif change == "body":
        body = draw(random_bodies)
    elif change == "cut":
        body = body[: draw(st.integers(0, 200))]
    elif change == "verb":
        verb = draw(st.sampled_from(["POST", "GET", "DELETE", "PUT", "HEAD"]) | st.text("ABC", min_size=1, max_size=9))
    elif change == "path":
        path = "/" + draw(st.sampled_from(["mcp/", "messages", "ready", "x"]) | st.text(max_size=20)).lstrip("/")
    others = draw(st.lists(plausible | unknown, max_size=2))
    usual = {"host": "localhost", "accept": BOTH, "content-type": "application/json", **headers}
    own = [(name.encode(), (text or "").encode()) for name, text in usual.items()]
    return verb, path, [*(each for each in own if each[0] not in dict(others)), *others], body


def check_sequence(exchange: Exchange) -> None:
    """What ASGI demands: one start, then bodies, the last of which says so; and headers that are none but headers."""
    kinds = [event["type"] for event in exchange.sent]
    assert kinds == ["http.response.start"] + ["http.response.body"] * (len(kinds) - 1)
    assert len(kinds) > 1
    assert [event.get("more_body", False) for event in exchange.sent[1:]] == [True] * (len(kinds) - 2) + [False]
    for name, value in exchange.sent[0]["headers"]:
        assert name == name.lower()
        assert not set(value) & set(b"\r\n\0")
    if (length := exchange.headers.get("content-length")) is not None:
        assert int(length) == len(exchange.raw)


def check_answer(exchange: Exchange) -> None:
    assert exchange.status in STATUSES, exchange.raw
    if exchange.scope["method"] == "HEAD" and not exchange.raw:
        return
    if exchange.is_stream or exchange.status in (202, 204):
        assert exchange.status in (200, 202, 204)
        assert exchange.is_stream or not exchange.raw
        return
    body = exchange.json
    if exchange.status != 200:
        text = body["error"]["message"] if "jsonrpc" in body else body["error"]
        assert not any(word in text for word in INSIDES), text


async def throw(app: Any, session: str, request: Any) -> None:
    verb, path, headers, body = request
    own = [(name, session.encode() if value == SESSION.encode() else value) for name, value in headers]
    nothing: dict[str, str | None] = dict.fromkeys(("host", "accept", "content-type"))
    exchange = HttpWire(app).raw(verb, body, nothing, path=path, more=own)
    await exchange.started()
    if exchange.is_stream:
        await asyncio.sleep(0)
        exchange.leave()
    await exchange.done()
    check_answer(exchange)
    if not exchange.is_stream:
        check_sequence(exchange)


@pytest.mark.slow
@pytest.mark.rule("BASE-20", "MH-21", "SH-7")
@given(st.lists(requests(), min_size=1, max_size=20))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
async def test_any_request_is_answered(caplog: pytest.LogCaptureFixture, thrown: list[Any]) -> None:
    caplog.set_level(logging.ERROR)
    app = new_server().asgi(body_timeout=0.5)
    session = (await HttpWire.session(app, "2025-03-26")).session_id
    assert session is not None
    for request in thrown:
        await throw(app, session, request)
    await check_alive(app)
    await app.drain(0)
    assert caplog.records == []
