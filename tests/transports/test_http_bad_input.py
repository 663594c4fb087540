"""Whatever arrives over HTTP is answered with the right status and in JSON, and the next request works."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from asked_server import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    check_alive,
    check_refusal,
    message,
    new_server,
    post,
)

from http_serving import settle
from http_wire import MODERN, HttpWire

LIMIT = 1000
GIANTS = ["9" * 400, "-" + "9" * 4000, "9" * 5000, "9" * 500_000, "1e999", "1" + "0" * 400 + ".5"]
SLY = ["a\r\nSet-Cookie: x=1", "a\n\ndata: {}\n\n", "a\rid: 1", "\0", "\u2028\u2029\x85", '"}\n\n', "😀"]
PING = b'{"jsonrpc":"2.0","id":"q","method":"ping"}'


def short(value: object) -> str:
    """A name for a test whose value may be long."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:40]}...{len(text)}"


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    app = new_server().asgi(max_body_bytes=LIMIT, body_timeout=0.05)
    yield app
    await check_alive(app)
    await app.drain(0)


@pytest.fixture
async def roomy() -> AsyncIterator[Any]:
    app = new_server().asgi()
    yield app
    await check_alive(app)
    await app.drain(0)


# ── bodies that are cut, late or too large ──


@pytest.mark.parametrize("pieces", [[], [b""], [PING[:20]], [b"", PING[:5], PING[5:20]], [PING]])
async def test_who_leaves_within_the_body_is_not_answered(app: Any, pieces: list[bytes]) -> None:
    request = HttpWire(app).raw("POST", pieces, complete=False)
    await settle(50)
    request.leave()
    await request.done()
    assert request.sent == []


@pytest.mark.parametrize("pieces", [[], [b""], [PING[:20]], [PING]])
async def test_a_body_that_does_not_come_is_408(app: Any, pieces: list[bytes]) -> None:
    request = HttpWire(app).raw("POST", pieces, complete=False)
    text = check_refusal(await request.done(), 408, INVALID_REQUEST)
    assert "0.05 s" in text


@pytest.mark.parametrize("length", [str(LIMIT + 1), "9" * 12, "9" * 30, "9" * 5000], ids=short)
async def test_a_body_that_says_it_is_too_large_is_413_at_once(app: Any, length: str) -> None:
    request = HttpWire(app).raw("POST", [], {"content-length": length})
    text = check_refusal(await request.done(), 413, INVALID_REQUEST)
    assert "max_body_bytes" in text


@pytest.mark.parametrize("pieces", [[PING[:1], PING[1:]], [bytes([each]) for each in PING], [b"", PING, b"", b""]])
@pytest.mark.parametrize("fill", [0, LIMIT - len(PING)])
async def test_a_body_may_come_in_any_pieces_up_to_the_limit(app: Any, pieces: list[bytes], fill: int) -> None:
    wire = await HttpWire.session(app, "2025-11-25")
    answer = await wire.raw("POST", [*pieces, b" " * fill]).done()
    assert answer.json == {"jsonrpc": "2.0", "id": "q", "result": {}}


@pytest.mark.parametrize("length", ["", "abc", "-1", "+1", "1.0", "1e3", "0x10", "1 2", "1,1", "²", "1\0"])
async def test_a_length_that_is_no_number_is_400(app: Any, length: str) -> None:
    check_refusal(await HttpWire(app).raw("POST", PING, {"content-length": length}).done(), 400, INVALID_REQUEST)


# ── types and encodings ──


@pytest.mark.parametrize(
    "type",
    [None, "application/json", "APPLICATION/JSON", " application/json ", "application/json; charset=utf-8",
     'application/json;charset="UTF-8"', "application/json; charset=utf8; x=y", "application/vnd.mcp+json",
     "application/json; odata=verbose"],
)  # fmt: skip
async def test_json_by_any_of_its_names(app: Any, type: str) -> None:
    wire = await HttpWire.session(app, "2025-11-25")
    assert (await wire.raw("POST", PING, {"content-type": type}).done()).status == 200


@pytest.mark.rule("BASE-2")
@pytest.mark.parametrize(
    "headers",
    [
        *({"content-type": type} for type in (
            "text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
            "application/jsonx", "application", "json", "application/json, text/plain", "\xff\xfe", "*/*",
            "application/json; charset=utf-16", "application/json;charset=iso-8859-1", 'application/json; charset="x"',
            "a" * 10_000,
        )),
        *({"content-encoding": coding} for coding in ("gzip", "br", "deflate", "gzip, identity", "zstd", "x" * 9_999)),
    ],
    ids=short,
)  # fmt: skip
async def test_another_type_or_encoding_is_415(app: Any, headers: Any) -> None:
    """Even if the body would do: a page of any origin may send such a type without being asked about it."""
    check_refusal(await HttpWire(app).raw("POST", PING, headers).done(), 415, INVALID_REQUEST)


# ── bytes that are no message ──


@pytest.mark.rule("BASE-20", "BASE-2")
@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"\0", b"\xff", b"{", b"}", b"[", b'{"jsonrpc"', b'{"jsonrpc":"2.0",}', b"nul", b"'x'",
        b"\xef\xbb\xbf{}",
        b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":Infinity,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":01,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"pi\xffng"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\xc3\x28"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\xed\xa0\x80"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":-Infinity}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"} {}', PING + PING, PING + b"\n" + PING, b"<html></html>",
        PING.decode().encode("utf-16"), PING.decode().encode("utf-32"), b"--x\r\n\r\n{}\r\n--x--",
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", [None, MODERN, "2025-11-25"])
async def test_what_is_no_json_is_400(app: Any, body: bytes, version: str) -> None:
    headers = {"mcp-protocol-version": version}
    answer = await HttpWire(app).raw("POST", body, headers).done()
    assert answer.status == 400
    assert answer.json["error"]["code"] == PARSE_ERROR
    assert answer.json.get("id") in (None, 1)


def nested(depth: int, opening: str, closing: str) -> str:
    return opening * depth + "1" + closing * depth


@pytest.mark.rule("BASE-20")
@pytest.mark.parametrize("depth", [2_000, 100_000])
@pytest.mark.parametrize("value", [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize(
    "place",
    [
        "%s",
        "[%s]",
        '{"jsonrpc":"2.0","id":%s,"method":"ping"}',
        '{"jsonrpc":"2.0","id":1,"method":%s}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":%s}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":%s}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":%s}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":%s}}}',
        '{"jsonrpc":"2.0","id":1,"result":%s}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":%s}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","unknown":%s}',
    ],
)
async def test_a_hundred_thousand_levels(roomy: Any, depth: int, value: Any, place: str) -> None:
    body = (place % nested(depth, *value)).encode()
    for wire in (HttpWire(roomy), await HttpWire.session(roomy, "2025-03-26")):
        answer = await wire.raw("POST", body).done()
        assert answer.status == 400
        assert answer.json["error"]["code"] in (PARSE_ERROR, INVALID_REQUEST)


@pytest.mark.parametrize("number", GIANTS, ids=short)
@pytest.mark.parametrize(
    "place",
    [
        '{"jsonrpc":"2.0","id":%s,"method":"ping"}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":%s}}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":%s}}}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}',
        '{"jsonrpc":"2.0","id":%s,"result":{}}',
    ],
)
async def test_giant_numbers(roomy: Any, number: str, place: str) -> None:
    wire = await HttpWire.session(roomy, "2025-11-25")
    answer = await wire.raw("POST", (place % number).encode()).done()
    assert answer.status in (200, 202, 400)
    if answer.status == 200 and '"id":%s' in place:
        assert answer.raw == b'{"jsonrpc":"2.0","id":%s,"result":{}}' % number.encode(), "nothing of it is lost"


# ── sessions and events that are not one's own ──


@pytest.mark.rule("SH-29")
@pytest.mark.parametrize(
    "session",
    ["", " ", "x", "0", "null", "x" * 128, "x" * 129, "x" * 60_000, "../../etc/passwd", "a b", "\xe9\xff", "a\r\nb: c",
     "\0", "*", "%s%s%n", "session/x", "changes", "'; drop table sessions; --"],
    ids=short,
)  # fmt: skip
@pytest.mark.parametrize("verb", ["POST", "GET", "DELETE"])
async def test_a_session_that_is_none_is_404(app: Any, verb: str, session: str) -> None:
    answer = await HttpWire(app).raw(verb, PING, {"mcp-session-id": session}).done()
    check_refusal(answer, 404, INVALID_REQUEST, "q" if verb == "POST" else None)
    assert len(session) < 4 or session not in answer.raw.decode()
    assert "mcp-session-id" not in answer.headers


@pytest.mark.rule("SH-23")
@pytest.mark.parametrize(
    "id",
    ["x", "1", ".", "a.", ".1", "a.b", "a.1.1", "a.-1", "A.1", "0123456789abcdef.0", "0123456789abcdef.7", "a" * 60_000,
     "a." + "9" * 60_000, "changes", "changes.", "changes.x", "session/x.1", "\xe9.1", "a\r\nb.1", "a.1 a.2", "²."],
    ids=short,
)  # fmt: skip
async def test_an_event_that_is_none_is_400(app: Any, id: str) -> None:
    wire = await HttpWire.session(app, "2025-11-25")
    check_refusal(await wire.get(id).done(), 400, INVALID_REQUEST)


@pytest.mark.rule("SH-23", "SH-21")
async def test_an_event_of_another_session_is_400(app: Any) -> None:
    one, other = await HttpWire.session(app, "2025-11-25"), await HttpWire.session(app, "2025-11-25")
    call = await one.start_call("chatty", meta={"progressToken": 1}).done()
    ids = [event.id for event in call.events]
    assert len(set(ids)) == 4
    for id in ids:
        check_refusal(await other.get(id).done(), 400, INVALID_REQUEST)
        assert (await one.get(id).done()).status == 200


# ── values that would like to be headers or events ──


@pytest.mark.rule("BASE-6")
@pytest.mark.parametrize("sly", SLY)
@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25", MODERN])
async def test_ids_and_tokens_stay_what_they_are(app: Any, sly: str, version: str) -> None:
    wire = HttpWire(app) if version == MODERN else await HttpWire.session(app, version)
    call = await wire.start_call("chatty", id=sly, meta={"progressToken": sly}).done()
    told = [each for each in call.messages if "method" in each]
    assert [each["params"]["progressToken"] for each in told] == [sly, sly]
    assert call.answer["id"] == sly
    assert call.headers.keys() <= {"content-type", "cache-control", "x-accel-buffering"}
    assert len(call.messages) == 3
    assert b"\nSet-Cookie" not in call.raw


async def test_names_are_not_shown_whole(app: Any) -> None:
    wire = await HttpWire.session(app, "2025-11-25")
    for method, params in (("x" * 600, {}), ("tools/call", {"name": "x" * 600}), ("prompts/get", {"name": "x" * 600})):
        answer = await post(wire, message(method, params))
        assert answer.json["error"]["code"] in (-32601, INVALID_PARAMS)
        assert len(answer.json["error"]["message"]) < 300


# ── places and scopes ──


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/mcp/nothing", "/mcp/..", "/mcp%2f", "//mcp", "/MCP", "/.env", "/\x00", "/é", "/" + "x" * 60_000,
     "/sse/x", "/messages/x", "/health/x", "*", "http://localhost/mcp"],
    ids=short,
)  # fmt: skip
@pytest.mark.parametrize("verb", ["POST", "GET", "PUT"])
async def test_an_unknown_path_is_404(app: Any, path: str, verb: str) -> None:
    text = check_refusal(await HttpWire(app).raw(verb, PING, path=path).done(), 404, INVALID_REQUEST)
    assert "/mcp" in text


async def test_a_websocket_is_closed_at_once(app: Any) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await app({"type": "websocket", "path": "/mcp", "headers": []}, receive, send)
    assert [event["type"] for event in sent] == ["websocket.close"]
