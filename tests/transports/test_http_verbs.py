"""The rest of the decision table: POST in sessions (rows 15 to 19), GET, DELETE, other verbs, and who may come."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from asked_server import (
    ANSWER,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LEGACY,
    NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED,
    H,
    check_alive,
    check_refusal,
    hello,
    message,
    new_server,
    post,
)

from http_wire import MODERN, HttpWire

every_revision = pytest.mark.parametrize("version", LEGACY)


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    app = new_server().asgi()
    yield app
    await app.drain(0)


# ── POST in a session ──


@every_revision
@pytest.mark.rule("LIFE-7", "SH-31")
@pytest.mark.parametrize("header", [None, *LEGACY])
async def test_row_15_the_negotiated_version_counts_whatever_the_header(app: Any, version: str, header: str) -> None:
    wire = await HttpWire.session(app, version)
    answer = await post(wire, message("tools/list"), {"mcp-protocol-version": header})
    assert answer.status == 200
    titled = "outputSchema" in answer.json["result"]["tools"][0]
    assert titled == (version >= "2025-06-18")
    assert "resultType" not in answer.json["result"]


@every_revision
@pytest.mark.rule("SH-32", "LIFE-12")
@pytest.mark.parametrize(
    ("header", "code"),
    [("banana", UNSUPPORTED), ("", UNSUPPORTED), ("2099-01-01", UNSUPPORTED), (MODERN, INVALID_PARAMS)],
)
async def test_rows_12_and_13_count_in_a_session_too(app: Any, version: str, header: str, code: int) -> None:
    wire = await HttpWire.session(app, version)
    check_refusal(await post(wire, message("tools/list"), H(header)), 400, code, "q")


@every_revision
@pytest.mark.rule("BASE-6", "BASE-19")
@pytest.mark.parametrize("id", [0, "", "line\nend\r\n: x", "\u2028é😀", 10**40])
async def test_row_15_the_id_comes_back_as_it_was(app: Any, version: str, id: Any) -> None:
    wire = await HttpWire.session(app, version)
    answer = await post(wire, message("ping", id=id))
    assert answer.json == {"jsonrpc": "2.0", "id": id, "result": {}}
    check_refusal(await post(wire, message("no/such", id=id)), 200, NOT_FOUND, id)


@every_revision
@pytest.mark.parametrize("method", ["no/such", "server/discover", "subscriptions/listen"])
@pytest.mark.rule("BASE-19")
async def test_row_15_an_unknown_method_is_never_404_in_a_session(app: Any, version: str, method: str) -> None:
    wire = await HttpWire.session(app, version)
    check_refusal(await post(wire, message(method)), 200, NOT_FOUND, "q")


@every_revision
@pytest.mark.rule("BASE-20", "BASE-9", "SH-5")
@pytest.mark.parametrize(
    ("body", "code", "id"),
    [
        (b"{", PARSE_ERROR, None),
        (b"\xff\xfe", PARSE_ERROR, None),
        (b"null", INVALID_REQUEST, None),
        (b'"text"', INVALID_REQUEST, None),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, INVALID_REQUEST, None),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, INVALID_REQUEST, None),
        ({"jsonrpc": "1.0", "id": 5, "method": "ping"}, INVALID_REQUEST, 5),
        ({"jsonrpc": "2.0", "id": 5}, INVALID_REQUEST, 5),
        ({"jsonrpc": "2.0", "id": 5, "method": "ping", "result": {}}, INVALID_REQUEST, 5),
        ({"jsonrpc": "2.0", "id": 5, "result": {}, "error": {"code": 1, "message": "m"}}, INVALID_REQUEST, None),
    ],
)
async def test_row_1_what_is_no_message_is_400(app: Any, version: str, body: Any, code: int, id: Any) -> None:
    """Over HTTP an error without a readable id leaves it out in every revision: they all allow that body."""
    wire = await HttpWire.session(app, version)
    check_refusal(await post(wire, body), 400, code, id)
    assert (await post(wire, message("ping"))).status == 200


@pytest.mark.rule("SH-29")
@pytest.mark.parametrize("header", [None, *LEGACY])
@pytest.mark.parametrize(
    "body",
    [
        message("tools/list"),
        message("no/such"),
        message("tools/call", 5),
        message("notifications/initialized", id=None),
        ANSWER,
    ],
    ids=["request", "unknown-method", "misfit", "notification", "answer"],
)
async def test_row_16_an_unknown_session_is_404(app: Any, header: str, body: Any) -> None:
    headers = {"mcp-session-id": "no such session", "mcp-protocol-version": header}
    id = body.get("id") if "method" in body else None
    check_refusal(await post(HttpWire(app), body, headers), 404, INVALID_REQUEST, id)


@every_revision
@pytest.mark.rule("SH-29", "SH-30")
async def test_row_16_an_ended_session_is_404(app: Any, version: str) -> None:
    wire = await HttpWire.session(app, version)
    assert (await wire.delete()).status == 204
    check_refusal(await post(wire, message("ping")), 404, INVALID_REQUEST, "q")
    check_refusal(await wire.get().done(), 404, INVALID_REQUEST)
    check_refusal(await wire.delete(), 404, INVALID_REQUEST)
    assert (await post(wire, hello(version))).status == 200, "a new one may begin"


@every_revision
@pytest.mark.rule("SH-28")
async def test_row_17_a_missing_session_is_400(app: Any, version: str) -> None:
    text = check_refusal(await post(HttpWire(app), message("tools/list"), H(version)), 400, INVALID_REQUEST, "q")
    assert "Mcp-Session-Id" in text
    assert "initialize" in text


@every_revision
@pytest.mark.rule("SH-6", "BASE-10")
@pytest.mark.parametrize(
    "body",
    [
        message("notifications/initialized", id=None),
        message("notifications/cancelled", {"requestId": "nothing"}, id=None),
        message("notifications/cancelled", {"requestId": None}, id=None),
        message("notifications/cancelled", [5], id=None),
        message("no/such", {"x": 1}, id=None),
        ANSWER,
        {"jsonrpc": "2.0", "id": "nobody asked", "error": {"code": 1, "message": "m"}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "m"}},
    ],
)
async def test_row_19_is_accepted_without_a_body(app: Any, version: str, body: Any) -> None:
    wire = await HttpWire.session(app, version)
    answer = await post(wire, body)
    assert (answer.status, answer.raw) == (202, b"")
    assert "content-type" not in answer.headers


@every_revision
@pytest.mark.rule("BASE-4", "BASE-5")
async def test_an_id_that_is_in_flight_is_refused_and_free_again_afterwards(app: Any, version: str) -> None:
    wire = await HttpWire.session(app, version)
    running = wire.start_call("wait", {"seconds": 0.1}, id=7)
    other = await HttpWire.session(app, version)
    assert (await other.call("add", {"a": 1}, id=7)).status == 200, "an id belongs to its session"
    check_refusal(await wire.call("add", {"a": 1}, id=7), 200, INVALID_REQUEST, 7)
    assert "result" in (await wire.call("add", {"a": 1}, id="7")).answer
    assert "result" in (await running.done()).answer
    assert "result" in (await wire.call("add", {"a": 1}, id=7)).answer


# ── GET ──


@every_revision
@pytest.mark.rule("SH-1", "SH-16")
async def test_get_opens_a_stream_in_a_session(app: Any, version: str) -> None:
    wire = await HttpWire.session(app, version)
    stream = await wire.get().started()
    assert stream.status == 200
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["x-accel-buffering"] == "no"
    stream.leave()
    await stream.done()


@pytest.mark.rule("SH-28", "SH-29", "SH-32", "MH-28")
@pytest.mark.parametrize("verb", ["GET", "DELETE"])
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 400, INVALID_REQUEST),
        (H("2025-11-25"), 400, INVALID_REQUEST),
        ({"mcp-session-id": "gone"}, 404, INVALID_REQUEST),
        ({"mcp-session-id": "gone", **H("2025-06-18")}, 404, INVALID_REQUEST),
        ({"mcp-session-id": "gone", **H("banana")}, 400, UNSUPPORTED),
        (H("banana"), 400, UNSUPPORTED),
        (H(MODERN), 405, INVALID_REQUEST),
        ({"mcp-session-id": "gone", **H(MODERN)}, 405, INVALID_REQUEST),
    ],
    ids=["nothing", "H", "S", "S+H", "S+bad-H", "bad-H", "modern", "S+modern"],
)
async def test_get_and_delete_without_a_session(app: Any, verb: str, headers: Any, status: int, code: int) -> None:
    check_refusal(await HttpWire(app).raw(verb, b"", headers).done(), status, code)
    await check_alive(app)


async def test_get_needs_a_client_that_reads_streams(app: Any) -> None:
    wire = await HttpWire.session(app, "2025-11-25", accept="application/json")
    check_refusal(await wire.get().done(), 406, INVALID_REQUEST)


# ── DELETE and other verbs ──


@every_revision
@pytest.mark.rule("SH-30")
@pytest.mark.parametrize("header", [None, "2025-06-18"])
async def test_delete_ends_a_session_and_no_other(app: Any, version: str, header: str) -> None:
    wire, other = await HttpWire.session(app, version), await HttpWire.session(app, version)
    answer = await wire.raw("DELETE", b"", {"mcp-protocol-version": header}).done()
    assert (answer.status, answer.raw) == (204, b"")
    assert (await post(wire, message("ping"))).status == 404
    assert (await post(other, message("ping"))).status == 200


@pytest.mark.rule("SH-16", "MH-28")
@pytest.mark.parametrize("verb", ["PUT", "PATCH", "HEAD", "TRACE", "CONNECT", "BREW", "post"])
async def test_other_verbs_are_405(app: Any, verb: str) -> None:
    answer = await HttpWire(app).raw(verb).done()
    check_refusal(answer, 405, INVALID_REQUEST)
    assert {"GET", "POST", "DELETE"} <= {each.strip() for each in answer.headers["allow"].split(",")}
    await check_alive(app)


@pytest.mark.rule("MH-1", "SH-1")
@pytest.mark.parametrize("path", ["/", "/mcp", "/mcp/"])
async def test_the_endpoint_has_no_other_name(app: Any, path: str) -> None:
    assert (await HttpWire(app, path=path).call("add", {"a": 1})).status == 200
    check_refusal(await HttpWire(app, path="/mcpx").raw("POST").done(), 404, INVALID_REQUEST)


# ── who may come ──


@pytest.mark.rule("SH-2", "SH-3", "MH-2")
@pytest.mark.parametrize("verb", ["POST", "GET", "DELETE", "OPTIONS", "PUT"])
@pytest.mark.parametrize("version", ["2025-11-25", MODERN, None])
async def test_a_foreign_origin_is_403_before_anything_else(app: Any, verb: str, version: str) -> None:
    """With a Host that is allowed: it is the Origin that is judged."""
    headers = {"origin": "https://evil.example", "mcp-protocol-version": version, "content-type": "text/plain"}
    text = check_refusal(await HttpWire(app).raw(verb, b"x", headers).done(), 403, INVALID_REQUEST)
    assert "evil.example" in text
    assert "allowed_origins" in text
    await check_alive(app)
