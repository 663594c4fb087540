"""Errors over HTTP: every bad request gets the right status and JSON, and the next request works."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from http_clients import INSIDES, INVALID_REQUEST, LEGACY, LISTEN, PARSE_ERROR, check_alive, check_refusal, new_server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from http_serving import settle
from http_wire import BOTH, MODERN, HttpExchange, HttpWire, hello, message, mirrored, modern, open_wire, post

LIMIT = 1000
GIANTS = ["9" * 400, "-" + "9" * 5000, "9" * 500_000, "1e999"]
SLY = ["a\r\nSet-Cookie: x=1", "a\n\ndata: {}\n\n", "a\rid: 1", "\0", "\u2028\u2029\x85", '"}\n\n', "😀"]
PING = b'{"jsonrpc":"2.0","id":"q","method":"ping"}'


def short(value: object) -> str:
    """A name for a test whose value may be long."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:40]}...{len(text)}"


@pytest.fixture(params=[{"max_body_bytes": LIMIT, "body_timeout": 20}])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """It serves both eras in the end as if nothing had happened."""
    app = new_server().asgi(**request.param)
    yield app
    await check_alive(app)
    await app.drain(0)


with_room = pytest.mark.parametrize("app", [{}], indirect=True, ids=["with room"])


@pytest.mark.parametrize("pieces", [[], [b""], [PING[:20]], [b"", PING[:5], PING[5:20]], [PING]])
async def test_a_body_that_does_not_come_is_408_for_who_stays(
    app: Any, pass_time: Callable[[float], None], pieces: list[bytes]
) -> None:
    stays, leaves = (HttpWire(app).raw("POST", pieces, complete=False) for _ in range(2))
    await settle(50)
    leaves.leave()
    assert (await leaves.done()).sent == []
    pass_time(21)
    assert "20 s" in check_refusal(await stays.done(), 408, INVALID_REQUEST)


@pytest.mark.parametrize(
    "length", [str(LIMIT + 1), "9" * 5000, "", "abc", "-1", "+1", "1.0", "0x10", "1,1", "²"], ids=short
)
async def test_a_length_that_is_too_large_or_no_number_is_refused_at_once(app: Any, length: str) -> None:
    request = await HttpWire(app).raw("POST", [], {"content-length": length}).done()
    is_number = length.isascii() and length.isdigit()
    text = check_refusal(request, 413 if is_number else 400, INVALID_REQUEST)
    assert ("max_body_bytes" in text) == is_number


@pytest.mark.parametrize("pieces", [[PING[:1], PING[1:]], [bytes([each]) for each in PING], [b"", PING, b"", b""]])
async def test_a_body_may_come_in_any_pieces_up_to_the_limit(wire: HttpWire, pieces: list[bytes]) -> None:
    for fill, status in ((0, 200), (LIMIT - len(PING), 200), (LIMIT - len(PING) + 1, 413)):
        assert (await wire.raw("POST", [*pieces, b" " * fill]).done()).status == status


TYPES = (
    *(None, "application/json", "APPLICATION/JSON", " application/json ", "application/json; charset=utf-8"),
    *('application/json;charset="UTF-8"', "application/json; charset=utf8; x=y", "application/vnd.mcp+json"),
    "application/json; charset=us-ascii",
)
OTHERS = (
    *("text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "*/*"),
    *("application/jsonx", "application", "json", "application/json, text/plain", "\xff\xfe", "a" * 10_000),
    *("application/json; charset=utf-16", "application/json;charset=iso-8859-1", 'application/json; charset="x"'),
)


@pytest.mark.rule("BASE-2")
@pytest.mark.parametrize("type", [*TYPES, *OTHERS], ids=short)
async def test_json_has_some_names_and_another_type_or_encoding_is_415(wire: HttpWire, type: str | None) -> None:
    """Even if the body would do: a page of any origin may send such a type without being asked about it."""
    answer = await wire.raw("POST", PING, {"content-type": type}).done()
    if type in TYPES:
        assert answer.status == 200
    else:
        check_refusal(answer, 415, INVALID_REQUEST)
    for coding in ("gzip", "br", "gzip, identity", "x" * 9_999):
        encoded = await wire.raw("POST", PING, {"content-type": type, "content-encoding": coding}).done()
        check_refusal(encoded, 415, INVALID_REQUEST)


@pytest.mark.rule("BASE-20", "BASE-2")
@pytest.mark.parametrize(
    "body",
    [
        b"", b"\0", b"\xff", b"{", b'{"jsonrpc":"2.0",}', b"\xef\xbb\xbf{}", b"<html></html>", PING + b"\n" + PING,
        b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\xed\xa0\x80"}}',
        PING.decode().encode("utf-16"), PING.decode().encode("utf-32"),
    ],
)  # fmt: skip
async def test_what_is_no_json_is_400(app: Any, wire: HttpWire, body: bytes) -> None:
    for answer in (await post(wire, body), await post(HttpWire(app), body, {"mcp-protocol-version": MODERN})):
        assert (answer.status, answer.json["error"]["code"]) == (400, PARSE_ERROR)
        assert answer.json.get("id") in (None, 1)


@with_room
@pytest.mark.rule("BASE-20")
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("place", ["%s", '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":%s}}'])
async def test_a_hundred_thousand_levels(app: Any, opening: str, closing: str, place: str) -> None:
    body = (place % (opening * 100_000 + "1" + closing * 100_000)).encode()
    for wire in (HttpWire(app), await HttpWire.session(app, "2025-03-26")):
        answer = await post(wire, body)
        assert (answer.status, answer.json["error"]["code"] in (PARSE_ERROR, INVALID_REQUEST)) == (400, True)


@with_room
@pytest.mark.parametrize("number", GIANTS, ids=short)
@pytest.mark.parametrize(
    "place",
    [
        '{"jsonrpc":"2.0","id":%s,"method":"ping"}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":%s}}}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":%s}}}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}',
    ],
)
async def test_giant_numbers(app: Any, number: str, place: str) -> None:
    wire = await HttpWire.session(app, "2025-11-25")
    answer = await post(wire, (place % number).encode())
    assert answer.status in (200, 202, 400)
    if answer.status == 200 and '"id":%s' in place:
        assert answer.raw == b'{"jsonrpc":"2.0","id":%s,"result":{}}' % number.encode(), "nothing of it is lost"


@pytest.mark.rule("SH-29")
@pytest.mark.parametrize(
    "session",
    ["", " ", "x", "x" * 129, "x" * 60_000, "../../etc/passwd", "\xe9\xff", "a\r\nb: c", "\0", "session/x", "changes"],
    ids=short,
)
async def test_a_session_that_is_none_is_404(app: Any, session: str) -> None:
    for verb in ("POST", "GET", "DELETE"):
        answer = await HttpWire(app).raw(verb, PING, {"mcp-session-id": session}).done()
        check_refusal(answer, 404, INVALID_REQUEST, "q" if verb == "POST" else None)
        assert len(session) < 4 or session not in answer.raw.decode()
        assert "mcp-session-id" not in answer.headers


@pytest.mark.rule("BASE-6")
@pytest.mark.parametrize("sly", SLY)
@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25", MODERN])
async def test_ids_and_tokens_stay_what_they_are(app: Any, sly: str, version: str) -> None:
    call = (await open_wire(app, version)).start_call("chatty", id=sly, meta={"progressToken": sly})
    *notified, answer = (await call.done()).messages
    assert [each["params"]["progressToken"] for each in notified] == [sly, sly]
    assert answer["id"] == sly
    assert call.headers.keys() <= {"content-type", "cache-control", "x-accel-buffering"}
    assert b"\nSet-Cookie" not in call.raw


@pytest.mark.parametrize(
    "path",
    ["/mcp/nothing", "/mcp/..", "/mcp%2f", "//mcp", "/MCP", "/\x00", "/" + "x" * 60_000, "/sse/x", "*", "http://x/mcp"],
    ids=short,
)
async def test_an_unknown_path_is_404(app: Any, path: str) -> None:
    for verb in ("POST", "GET", "PUT"):
        refused = await HttpWire(app).raw(verb, PING, path=path).done()
        assert "/mcp" in check_refusal(refused, 404, INVALID_REQUEST)


async def test_a_websocket_is_closed_at_once(app: Any) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await app({"type": "websocket", "path": "/mcp", "headers": []}, receive, send)
    assert [event["type"] for event in sent] == ["websocket.close"]


# ── good requests that are changed in a few places, and random ones ──

STATUSES = {200, 202, 204, 400, 403, 404, 405, 406, 408, 413, 415}
SESSION = "the live session"  # replaced by its id
HEADERS = (
    *("host", "origin", "accept", "content-type", "content-length", "content-encoding", "transfer-encoding", "x-other"),
    *("mcp-protocol-version", "mcp-session-id", "mcp-method", "mcp-name", "mcp-param-region", "last-event-id"),
)
VALUES = (
    *("", "localhost", "evil.example", "http://localhost", "null", "application/json", "text/event-stream", "*/*"),
    *("text/plain", ";;q=,,", "0", "-1", "99999999", "gzip", "chunked", MODERN, *LEGACY, SESSION, "tools/call"),
    *("add", "=?base64?YWRk?=", "=?base64?x?=", "changes.0", "changes.99", "0123456789abcdef.1"),
)
LIVE = {"mcp-session-id": SESSION}
CHATTY = {"name": "chatty", "_meta": {"progressToken": 1}}
GOOD: list[tuple[str, str, dict[str, str], Any]] = [
    ("POST", "/mcp", mirrored("tools/list"), modern("tools/list")),
    ("POST", "/mcp", mirrored("tools/call", "add"), modern("tools/call", {"name": "add", "arguments": {"a": 1}})),
    ("POST", "/mcp", mirrored("subscriptions/listen"), modern("subscriptions/listen", LISTEN)),
    ("POST", "/mcp", {}, hello("2025-11-25")),
    ("POST", "/mcp", LIVE, message("tools/call", CHATTY)),
    ("POST", "/mcp", LIVE, [message("ping", id=1), message("no/such", id=None), message("x")]),
    ("POST", "/mcp", LIVE, message("notifications/cancelled", {"requestId": 1}, id=None)),
    ("GET", "/mcp", {**LIVE, "last-event-id": "changes.0"}, None),
    ("OPTIONS", "/mcp", {"origin": "http://localhost", "access-control-request-method": "POST"}, None),
    ("GET", "/health", {}, None),
    ("GET", "/sse", {}, None),
]


some_header = st.tuples(st.sampled_from(HEADERS), st.sampled_from(VALUES)).map(
    lambda pair: (pair[0].encode(), pair[1].encode())
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, list[tuple[bytes, bytes]], bytes]:
    """A verb, a path, headers and a body: a good request with some changes. Bad messages are for tests/test_fuzz.py."""
    verb, path, headers, value = draw(st.sampled_from(GOOD))
    verb = draw(st.sampled_from([*[verb] * 5, "POST", "GET", "DELETE", "PUT", "HEAD", "BREW"]))
    path = draw(st.sampled_from([*[path] * 5, "/mcp/", "/messages", "/ready", "/x", "/\0é"]))
    body = b"" if value is None else json.dumps(value).encode()
    body = draw(st.sampled_from([*[body] * 5, b"", b"\xff", body[:20], b'{"jsonrpc": ""}']))
    others = draw(st.lists(some_header, max_size=2))
    usual = {"host": "localhost", "accept": BOTH, "content-type": "application/json", **headers}
    own = [(name.encode(), text.encode()) for name, text in usual.items()]
    return verb, path, [*(each for each in own if each[0] not in dict(others)), *others], body


def check_answer(exchange: HttpExchange) -> None:
    """What ASGI demands: one start, then bodies, the last of which says so; and a status and words that we give."""
    start, *bodies = exchange.sent
    assert (start["type"], {event["type"] for event in bodies} - {"http.response.body"}) == (
        "http.response.start",
        set(),
    )
    if not exchange.is_stream:  # whose client disconnected
        assert [event.get("more_body", False) for event in bodies] == [True] * (len(bodies) - 1) + [False]
    assert all(name == name.lower() and not set(value) & set(b"\r\n\0") for name, value in start["headers"])
    assert int(exchange.headers.get("content-length", len(exchange.raw))) == len(exchange.raw)
    assert exchange.status in STATUSES, exchange.raw
    if exchange.is_stream or exchange.status in (202, 204):
        assert exchange.is_stream or not exchange.raw
    elif exchange.status != 200 and exchange.raw:
        text = str(exchange.json["error"])
        assert not any(word in text for word in INSIDES), text


@pytest.mark.rule("BASE-20", "MH-21", "SH-7")
@given(st.lists(requests(), min_size=1, max_size=20))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
async def test_any_request_is_answered(caplog: pytest.LogCaptureFixture, thrown: list[Any]) -> None:
    """Nothing is raised or logged, and the next request works."""
    caplog.set_level(logging.ERROR)
    app = new_server().asgi(body_timeout=0.5)
    session = str((await HttpWire.session(app, "2025-03-26")).session_id).encode()
    for verb, path, headers, body in thrown:
        own = [(name, session if value == SESSION.encode() else value) for name, value in headers]
        exchange = HttpWire(app).raw(verb, body, dict.fromkeys(("host", "accept", "content-type")), path=path, more=own)
        await exchange.started()
        if exchange.is_stream:
            exchange.leave()
        check_answer(await exchange.done())
    await check_alive(app)
    await app.drain(0)
    assert caplog.records == []
