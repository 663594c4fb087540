"""The decision table, row by row over HTTP: what is sent, and the status, code and id of the answer."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from asked_server import (
    ANSWER,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LEGACY,
    MISMATCH,
    MISSING_CAPABILITY,
    NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED,
    H,
    check_alive,
    check_refusal,
    hello,
    message,
    mirrored,
    modern,
    new_server,
    post,
    row,
)

from dovetail.protocol.revisions import SUPPORTED
from http_wire import MODERN, HttpWire


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    app = new_server().asgi()
    yield app
    await app.drain(0)


LIST = modern("tools/list")
CALL = modern("tools/call", {"name": "add", "arguments": {"a": 1}})
READ = modern("resources/read", {"uri": "notes://all"})
PROMPT = modern("prompts/get", {"name": "review"})
REMOVED = (
    *("initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"),
    *("tasks/result", "tasks/list", "roots/list", "sampling/createMessage", "no/such"),
)

# ── POST: what concerns no session ──


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "id"),
    [
        row("1-no-json", "BASE-9 BASE-20", b"{", {}, 400, PARSE_ERROR, None),
        row("1-empty", "BASE-20", b"", {}, 400, PARSE_ERROR, None),
        row("1-modern", "BASE-9 BASE-20", b"{nonsense}", mirrored("tools/list"), 400, PARSE_ERROR, None),
        row("1-no-object", "BASE-20", b"5", {}, 400, INVALID_REQUEST, None),
        row("1-wrong-jsonrpc", "BASE-1 BASE-20", {**LIST, "jsonrpc": "1.0"}, {}, 400, INVALID_REQUEST, "q"),
        row("1-null-id", "BASE-3", {**LIST, "id": None}, mirrored("tools/list"), 400, INVALID_REQUEST, None),
        row("1-true-id", "BASE-3", {**LIST, "id": True}, mirrored("tools/list"), 400, INVALID_REQUEST, None),
        row("1-fraction-id", "BASE-3", {**LIST, "id": 1.5}, mirrored("tools/list"), 400, INVALID_REQUEST, None),
        row("1-object-id", "BASE-3", {**LIST, "id": {}}, mirrored("tools/list"), 400, INVALID_REQUEST, None),
        row("2-modern", "MH-4 BASE-11", [LIST], mirrored("tools/list"), 400, INVALID_REQUEST, None),
        row("2-2025-06-18", "BASE-11 SH-5", [LIST], H("2025-06-18"), 400, INVALID_REQUEST, None),
        row("2-2025-11-25", "BASE-11 SH-5", [LIST], H("2025-11-25"), 400, INVALID_REQUEST, None),
        row("2-unknown", "BASE-11 SH-32", [LIST], H("banana"), 400, INVALID_REQUEST, None),
        row("2-no-session", "SH-28", [message("ping")], {}, 400, INVALID_REQUEST, None),
        row("2-empty", "BASE-20", [], {}, 400, INVALID_REQUEST, None),
        row("4-no-version", "MH-14 MH-17 MH-21", LIST, mirrored("tools/list", version=None), 400, MISMATCH, "q"),
        row("4-no-headers", "MH-14 MH-17 MH-21", LIST, {}, 400, MISMATCH, "q"),
        row("5-differs", "MH-14 MH-20", LIST, mirrored("tools/list", version="2025-11-25"), 400, MISMATCH, "q"),
        row("5-unknown", "MH-14 MH-20", LIST, mirrored("tools/list", version="2099-01-01"), 400, MISMATCH, "q"),
        row("7-no-method", "MH-18 MH-21", LIST, H(MODERN), 400, MISMATCH, "q"),
        row("7-differs", "MH-20 MH-21", LIST, mirrored("prompts/list"), 400, MISMATCH, "q"),
        row("7-case", "MH-23", LIST, mirrored("TOOLS/LIST"), 400, MISMATCH, "q"),
        row("8-call-none", "MH-18 MH-21", CALL, mirrored("tools/call"), 400, MISMATCH, "q"),
        row("8-call-differs", "MH-20", CALL, mirrored("tools/call", "wait"), 400, MISMATCH, "q"),
        row("8-read-none", "MH-18 MH-21", READ, mirrored("resources/read"), 400, MISMATCH, "q"),
        row("8-read-differs", "MH-20", READ, mirrored("resources/read", "notes://ALL"), 400, MISMATCH, "q"),
        row("8-prompt-none", "MH-18 MH-21", PROMPT, mirrored("prompts/get"), 400, MISMATCH, "q"),
        row("8-prompt-differs", "MH-20", PROMPT, mirrored("prompts/get", "Review"), 400, MISMATCH, "q"),
        row("9-none", "LIFE-12 MH-29", modern("tools/list", capabilities=...), mirrored("tools/list"), 400,
            INVALID_PARAMS, "q"),
        row("9-array", "LIFE-12 MH-29", modern("tools/list", capabilities=[]), mirrored("tools/list"), 400,
            INVALID_PARAMS, "q"),
        row("9-level", "LIFE-12 LOG-5", modern("tools/list", log="loud"), mirrored("tools/list"), 400,
            INVALID_PARAMS, "q"),
        row("11-no-header", "MH-25", modern("tools/call", {"name": "weather", "arguments": {"region": "eu"}}),
            mirrored("tools/call", "weather"), 400, MISMATCH, "q"),
        row("12-no-meta", "LIFE-12 MH-29", message("tools/list"), mirrored("tools/list"), 400, INVALID_PARAMS, "q"),
        row("12-no-version", "LIFE-12 MH-29", modern("tools/list", version=...), mirrored("tools/list"), 400,
            INVALID_PARAMS, "q"),
        row("12-initialize", "LIFE-12", hello("2025-11-25"), H(MODERN), 400, INVALID_PARAMS, "q"),
        row("17-no-session", "SH-28", message("tools/list"), {}, 400, INVALID_REQUEST, "q"),
        row("17-ping", "SH-28", message("ping"), {}, 400, INVALID_REQUEST, "q"),
        row("17-notification", "SH-7 SH-28", message("notifications/initialized", id=None), {}, 400,
            INVALID_REQUEST, None),
        row("17-answer", "SH-7 SH-28", ANSWER, {}, 400, INVALID_REQUEST, None),
        row("21-result", "MH-4 MH-5", ANSWER, H(MODERN), 400, INVALID_REQUEST, None),
        row("21-error", "MH-4 MH-5", {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "m"}}, H(MODERN), 400,
            INVALID_REQUEST, None),
    ],
)  # fmt: skip
async def test_post_refuses(app: Any, body: Any, headers: Any, status: int, code: int, id: Any) -> None:
    answer = await post(HttpWire(app), body, headers)
    check_refusal(answer, status, code, id)
    assert "mcp-session-id" not in answer.headers
    await check_alive(app)


@pytest.mark.rule("LIFE-14", "MH-29")
async def test_post_refuses_who_lacks_a_capability(app: Any) -> None:
    body = modern("tools/call", {"name": "asking"})
    answer = await post(HttpWire(app), body, mirrored("tools/call", "asking"))
    check_refusal(answer, 400, MISSING_CAPABILITY, "q")
    assert answer.json["error"]["data"] == {"requiredCapabilities": {"elicitation": {}}}
    declared = modern("tools/call", {"name": "asking"}, capabilities={"elicitation": {}})
    assert (await post(HttpWire(app), declared, mirrored("tools/call", "asking"))).status == 200


@pytest.mark.parametrize(
    ("body", "headers", "id"),
    [
        row("6-future", "MH-15 LIFE-13", modern("no/such", version="2099-01-01"), mirrored("x", version="2099-01-01"),
            "q"),
        row("6-older", "MH-15 LIFE-13", modern("tools/list", version="2025-11-25"), mirrored("x", version="2025-11-25"),
            "q"),
        row("6-only-version", "MH-15", modern("no/such", version="1"), H("1"), "q"),
        row("13-request", "SH-32 LIFE-13", message("tools/list"), H("2099-01-01"), "q"),
        row("13-initialize", "SH-32", hello("2025-11-25"), H("banana"), "q"),
        row("13-notification", "SH-32 SH-7", message("notifications/initialized", id=None), H("banana"), None),
        row("13-answer", "SH-32 SH-7", ANSWER, H("banana"), None),
    ],
)  # fmt: skip
async def test_post_refuses_other_versions(app: Any, body: Any, headers: Any, id: Any) -> None:
    answer = await post(HttpWire(app), body, headers)
    check_refusal(answer, 400, UNSUPPORTED, id)
    requested = headers["mcp-protocol-version"]
    assert answer.json["error"]["data"] == {"supported": list(SUPPORTED), "requested": requested}
    discovered = await HttpWire(app).ask("server/discover")
    assert discovered["supportedVersions"] == list(SUPPORTED)


@pytest.mark.rule("MH-16", "BASE-19")
@pytest.mark.parametrize("method", [*REMOVED, "notifications/initialized"])
async def test_row_10_what_is_not_there_is_404_with_a_body(app: Any, method: str) -> None:
    answer = await post(HttpWire(app), modern(method), mirrored(method))
    check_refusal(answer, 404, NOT_FOUND, "q")


@pytest.mark.rule("MH-16")
@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "no such tool"}, INVALID_PARAMS),
        ("tools/call", {"name": "add", "arguments": []}, INVALID_PARAMS),
        ("prompts/get", {"name": "nothing"}, INVALID_PARAMS),
        ("resources/read", {"uri": "nothing://here"}, INVALID_PARAMS),
        ("tools/list", {"cursor": "forged"}, INVALID_PARAMS),
    ],
)
async def test_all_other_errors_travel_with_200(app: Any, method: str, params: dict[str, Any], code: int) -> None:
    answer = await HttpWire(app).post(method, params, id="q")
    check_refusal(answer, 200, code, "q")


# ── POST: what is served without a session ──


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        row("3-list", "MH-7 LIFE-21", LIST, mirrored("tools/list")),
        row("3-call", "MH-7 MH-18", CALL, mirrored("tools/call", "add")),
        row("3-read", "MH-7 MH-18", READ, mirrored("resources/read", "notes://all")),
        row("3-prompt", "MH-7 MH-18", PROMPT, mirrored("prompts/get", "review")),
        row("3-discover", "MH-7 LIFE-11", modern("server/discover"), mirrored("server/discover")),
        row("3-nobody", "LIFE-17", modern("tools/list", client=...), mirrored("tools/list")),
        row("3-extension", "LIFE-19", modern("tools/list", capabilities={"extensions": {"com.example/x": {}}}),
            mirrored("tools/list")),
        row("3-session", "MH-28", LIST, mirrored("tools/list", mcp_session_id="no such")),
        row("3-last-event", "MH-28", LIST, mirrored("tools/list", last_event_id="no-such-event")),
        row("3-string-id", "BASE-6", modern("tools/list", id="1"), mirrored("tools/list")),
        row("3-zero-id", "BASE-6", modern("tools/list", id=0), mirrored("tools/list")),
        row("3-empty-id", "BASE-6", modern("tools/list", id=""), mirrored("tools/list")),
        row("3-large-id", "BASE-6", modern("tools/list", id=-(10**40)), mirrored("tools/list")),
    ],
)  # fmt: skip
async def test_post_serves_2026_07_28(app: Any, body: Any, headers: Any) -> None:
    answer = await post(HttpWire(app), body, headers)
    assert answer.status == 200
    assert (answer.json["id"], type(answer.json["id"])) == (body["id"], type(body["id"]))
    assert answer.json["result"]["resultType"] == "complete"
    assert "mcp-session-id" not in answer.headers


@pytest.mark.rule("MH-28", "LIFE-21")
async def test_row_3_a_live_session_means_nothing_to_a_modern_request(app: Any) -> None:
    old = await HttpWire.session(app, "2025-06-18")
    assert old.session_id is not None
    answer = await post(HttpWire(app), LIST, mirrored("tools/list", mcp_session_id=old.session_id))
    assert answer.json["result"]["resultType"] == "complete"
    assert "mcp-session-id" not in answer.headers


@pytest.mark.rule("LIFE-2", "LIFE-3", "SH-25", "SH-26", "SH-27")
@pytest.mark.parametrize("version", LEGACY)
@pytest.mark.parametrize(("header", "stale"), [(None, None), ("2025-06-18", "gone")])
async def test_row_14_initialize_opens_a_session(app: Any, version: str, header: str, stale: str) -> None:
    answer = await post(HttpWire(app), hello(version), {"mcp-protocol-version": header, "mcp-session-id": stale})
    assert answer.status == 200
    assert answer.json["id"] == "q"
    assert answer.json["result"]["protocolVersion"] == version
    id = answer.headers["mcp-session-id"]
    assert len(id) >= 32
    assert all(0x21 <= ord(each) <= 0x7E for each in id)


@pytest.mark.rule("SH-25")
async def test_row_14_a_handshake_within_a_session_opens_another_one(app: Any) -> None:
    wire = await HttpWire.session(app, "2025-06-18")
    answer = await post(wire, hello("2025-11-25"))
    assert answer.json["result"]["protocolVersion"] == "2025-11-25"
    assert answer.headers["mcp-session-id"] != wire.session_id
    assert (await post(wire, message("ping"))).status == 200


@pytest.mark.rule("LIFE-4", "LIFE-5")
@pytest.mark.parametrize("version", [MODERN, "2099-01-01", "1.0", ""])
async def test_row_14_another_version_is_answered_with_the_newest_that_has_a_handshake(app: Any, version: str) -> None:
    answer = await post(HttpWire(app), hello(version))
    assert answer.json["result"]["protocolVersion"] == "2025-11-25"
    assert "mcp-session-id" in answer.headers


@pytest.mark.rule("LIFE-2")
@pytest.mark.parametrize("params", [{}, {"protocolVersion": 5}, [], None])
async def test_row_14_a_handshake_that_cannot_be_read_opens_nothing(app: Any, params: Any) -> None:
    answer = await post(HttpWire(app), message("initialize", params))
    check_refusal(answer, 200, INVALID_PARAMS, "q")
    assert "mcp-session-id" not in answer.headers


@pytest.mark.rule("MH-5", "MH-6")
@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/initialized", "no/such"])
@pytest.mark.parametrize(
    "headers", [H(MODERN), mirrored("other"), mirrored("no/such", mcp_session_id="gone")], ids=["H", "other", "S"]
)
async def test_row_20_a_modern_notification_is_accepted(app: Any, method: str, headers: Any) -> None:
    answer = await post(HttpWire(app), message(method, {"requestId": 1}, id=None), headers)
    assert (answer.status, answer.raw) == (202, b"")


every_revision = pytest.mark.parametrize("version", LEGACY)


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
