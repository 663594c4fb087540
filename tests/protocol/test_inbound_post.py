"""The decision table of HTTP, row by row: which revision a POST belongs to, and what is wrong with it."""

import pytest
from inbound_stage import (
    CALL,
    CLIENT_KEY,
    ERROR_RESPONSE,
    LIST,
    LOG_KEY,
    MODERN,
    NOTIFICATION,
    PLAIN,
    RESPONSE,
    UNKNOWN_NOTIFICATION,
    from_post,
    hello,
    message,
    meta,
    mirrored,
    notice,
    old,
    refusal,
    rows,
    session,
)

from dovetail.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
)
from dovetail.protocol.inbound import CAPABILITIES_KEY, VERSION_KEY, Request


@pytest.mark.rule("MH-14", "MH-17", "MH-18", "MH-22", "MH-28", "LIFE-3", "LIFE-4", "LIFE-5", "LIFE-7")
@pytest.mark.parametrize(
    ("data", "headers", "live", "stateless", "revision"),
    rows(
        ("row3-modern", LIST, mirrored("tools/list"), None, False, MODERN),
        ("row3-ignores-unknown-session", LIST, mirrored("tools/list", mcp_session_id="x"), None, False, MODERN),
        ("row3-ignores-known-session", LIST, mirrored("tools/list", mcp_session_id="s"), "2025-06-18", False, MODERN),
        ("row3-stateless", LIST, mirrored("tools/list"), None, True, MODERN),
        ("row5-trims", LIST, mirrored("tools/list", version=f" {MODERN}\t"), None, False, MODERN),
        ("row8-name", CALL, mirrored("tools/call", "add"), None, False, MODERN),
        ("row8-name-base64", CALL, mirrored("tools/call", "=?base64?YWRk?="), None, False, MODERN),
        ("row8-uri", message("resources/read", {"uri": "a://b", **meta()}), mirrored("resources/read", "a://b"), None,
         False, MODERN),
        ("row8-prompt", message("prompts/get", {"name": "p", **meta()}), mirrored("prompts/get", "p"), None, False,
         MODERN),
        ("row14-no-header", message("initialize", hello()), old(), None, False, "2025-06-18"),
        ("row14-same-header", message("initialize", hello()), old("2025-06-18"), None, False, "2025-06-18"),
        ("row14-other-header", message("initialize", hello()), old("2025-03-26"), None, False, "2025-06-18"),
        ("row14-stateless", message("initialize", hello()), old(), None, True, "2025-06-18"),
        ("row14-unknown-version", message("initialize", hello("1.0")), old(), None, False, "2025-11-25"),
        ("row14-2026-07-28", message("initialize", hello(MODERN)), old(), None, False, "2025-11-25"),
        ("row14-stale-session", message("initialize", hello()), old(session_id="gone"), None, False, "2025-06-18"),
        ("row15-same", PLAIN, old("2025-06-18", "s"), "2025-06-18", False, "2025-06-18"),
        ("row15-absent", PLAIN, old(None, "s"), "2025-11-25", False, "2025-11-25"),
        ("row15-stale", PLAIN, old("2025-03-26", "s"), "2025-11-25", False, "2025-11-25"),
        ("row15-trims", PLAIN, old(" 2025-06-18 ", "s"), "2025-06-18", False, "2025-06-18"),
        ("row18-header", PLAIN, old("2025-06-18"), None, True, "2025-06-18"),
        ("row18-oldest", PLAIN, old("2024-11-05"), None, True, "2024-11-05"),
        ("row18-absent", PLAIN, old(), None, True, "2025-03-26"),
        ("row18-ignores-session", PLAIN, old(None, "gone"), None, True, "2025-03-26"),
    ),
)  # fmt: skip
def test_post_serves(data: bytes, headers: dict[str, str], live: str | None, stateless: bool, revision: str) -> None:
    request = from_post(data, headers, None if live is None else session(live), stateless)
    assert isinstance(request, Request)
    assert request.revision.name == revision
    assert (request.session is not None) == (live is not None and revision != MODERN)
    assert request.headers == {name: value.strip(" \t") for name, value in headers.items()}


@pytest.mark.rule(
    "BASE-20", "LIFE-12", "LIFE-13", "LOG-5", "MH-14", "MH-15", "MH-16", "MH-17", "MH-18", "MH-20", "MH-21", "MH-22",
    "MH-29",
)  # fmt: skip
@pytest.mark.parametrize(
    ("data", "headers", "live", "status", "code", "words"),
    rows(
        ("row1", b"{", {}, None, 400, PARSE_ERROR, "JSON"),
        ("row1-modern", b"\xff", mirrored("ping"), None, 400, PARSE_ERROR, "JSON"),
        ("row1-no-message", b"5", {}, None, 400, INVALID_REQUEST, "object"),
        ("row2-session", b"[1]", old(None, "s"), "2025-06-18", 400, INVALID_REQUEST, "Batches"),
        ("row2-session-wins", b"[1]", old("2025-03-26", "s"), "2025-06-18", 400, INVALID_REQUEST, "Batches"),
        ("row2-header", b"[1]", old("2025-06-18"), None, 400, INVALID_REQUEST, "Batches"),
        ("row2-modern", b"[1]", old(MODERN), None, 400, INVALID_REQUEST, "Batches"),
        ("row2-unknown", b"[1]", old("x"), None, 400, INVALID_REQUEST, "Batches"),
        ("row4", LIST, mirrored("tools/list", version=None), None, 400, HEADER_MISMATCH, "MCP-Protocol-Version"),
        ("row4-before-6", message("tools/list", meta(version="x")), {}, None, 400, HEADER_MISMATCH, "missing"),
        ("row4-whatever-the-session", LIST, old(None, "s"), "2025-06-18", 400, HEADER_MISMATCH, "missing"),
        ("row4-before-9", message("tools/list", meta(log="x")), {}, None, 400, HEADER_MISMATCH, "missing"),
        ("row5", LIST, mirrored("tools/list", version="2025-11-25"), None, 400, HEADER_MISMATCH, "Version"),
        ("row5-before-6", message("tools/list", meta(version="x")), mirrored("tools/list", version="y"), None, 400,
         HEADER_MISMATCH, "Version"),
        ("row5-case", message("tools/list", meta(version="X")), mirrored("tools/list", version="x"), None, 400,
         HEADER_MISMATCH, "Version"),
        ("row6", message("tools/list", meta(version="2099-01-01")), mirrored("tools/list", version="2099-01-01"), None,
         400, UNSUPPORTED_VERSION, "2099-01-01"),
        ("row6-legacy", message("tools/list", meta(version="2025-11-25")), mirrored("x", version="2025-11-25"), None,
         400, UNSUPPORTED_VERSION, "initialize"),
        ("row6-before-7", message("tools/list", meta(version="x")), {"mcp-protocol-version": "x"}, None, 400,
         UNSUPPORTED_VERSION, "x"),
        ("row7-missing", LIST, {"mcp-protocol-version": MODERN}, None, 400, HEADER_MISMATCH, "Mcp-Method"),
        ("row7-differs", LIST, mirrored("tools/call"), None, 400, HEADER_MISMATCH, "Mcp-Method"),
        ("row7-case", LIST, mirrored("Tools/List"), None, 400, HEADER_MISMATCH, "Mcp-Method"),
        ("row7-before-10", message("no/such", meta()), mirrored("tools/list"), None, 400, HEADER_MISMATCH, "Method"),
        ("row8-missing", CALL, mirrored("tools/call"), None, 400, HEADER_MISMATCH, "Mcp-Name"),
        ("row8-differs", CALL, mirrored("tools/call", "sub"), None, 400, HEADER_MISMATCH, "Mcp-Name"),
        ("row8-case", CALL, mirrored("tools/call", "ADD"), None, 400, HEADER_MISMATCH, "Mcp-Name"),
        ("row8-bad-base64", CALL, mirrored("tools/call", "=?base64?YWR?="), None, 400, HEADER_MISMATCH, "base64"),
        ("row8-uri", message("resources/read", {"uri": "a://b", **meta()}), mirrored("resources/read", "a://B"), None,
         400, HEADER_MISMATCH, "Mcp-Name"),
        ("row8-prompt", message("prompts/get", {"name": "p", **meta()}), mirrored("prompts/get"), None, 400,
         HEADER_MISMATCH, "Mcp-Name"),
        ("row9-none", message("tools/list", meta(capabilities=...)), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         CAPABILITIES_KEY),
        ("row9-array", message("tools/list", meta(capabilities=[])), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         "must be an object, not an array"),
        ("row9-null", message("tools/list", meta(capabilities=None)), mirrored("tools/list"), None, 400,
         INVALID_PARAMS, "must be an object, not null"),
        ("row9-string", message("tools/list", meta(capabilities="x")), mirrored("tools/list"), None, 400,
         INVALID_PARAMS, "must be an object, not a string"),
        ("row9-level", message("tools/list", meta(log="loud")), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         f"_meta.{LOG_KEY} must be one of debug, info"),
        ("row9-level-case", message("tools/list", meta(log="INFO")), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         LOG_KEY),
        ("row9-level-number", message("tools/list", meta(log=3)), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         LOG_KEY),
        ("row9-level-sly", message("tools/list", meta(log="x - at `$.name`")), mirrored("tools/list"), None, 400,
         INVALID_PARAMS, LOG_KEY),
        ("row9-client", message("tools/list", meta(client="x")), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         CLIENT_KEY),
        ("row9-token", message("tools/list", meta(progressToken=True)), mirrored("tools/list"), None, 400,
         INVALID_PARAMS, "_meta.progressToken"),
        ("row9-token-fraction", message("tools/list", meta(progressToken=1.5)), mirrored("tools/list"), None, 400,
         INVALID_PARAMS, "_meta.progressToken"),
        ("row9-before-10", message("no/such", meta(capabilities=...)), mirrored("no/such"), None, 400, INVALID_PARAMS,
         CAPABILITIES_KEY),
        ("row9-before-10-level", message("no/such", meta(log="loud")), mirrored("no/such"), None, 400, INVALID_PARAMS,
         LOG_KEY),
        ("row9-before-misfit", message("tools/call", {"name": 5, **meta(capabilities=5)}), mirrored("tools/call"),
         None, 400, INVALID_PARAMS, CAPABILITIES_KEY),
        *(
            (f"row10-{method}", message(method, meta()), mirrored(method), None, 404, METHOD_NOT_FOUND, method)
            for method in (
                "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe",
                "tasks/result", "tasks/list", "no/such", "sampling/createMessage", "notifications/cancelled",
            )
        ),
        ("row10-then-misfit", message("tools/call", meta()), mirrored("tools/call"), None, 200, INVALID_PARAMS,
         "name is missing"),
        ("row12", PLAIN, mirrored("tools/list"), None, 400, INVALID_PARAMS, f"{VERSION_KEY} and {CAPABILITIES_KEY}"),
        ("row12-no-version", message("tools/list", meta(version=...)), mirrored("tools/list"), None, 400,
         INVALID_PARAMS, f"must hold {VERSION_KEY}. "),
        ("row12-before-headers", PLAIN, mirrored("other"), None, 400, INVALID_PARAMS, VERSION_KEY),
        ("row12-in-a-session", PLAIN, mirrored("tools/list", mcp_session_id="s"), "2025-06-18", 400, INVALID_PARAMS,
         VERSION_KEY),
        ("row12-initialize", message("initialize", hello(MODERN)), old(MODERN), None, 400, INVALID_PARAMS, VERSION_KEY),
        ("row12-misfit", message("tools/call", {}), mirrored("tools/call"), None, 400, INVALID_PARAMS, VERSION_KEY),
        ("row12-array", message("tools/call", []), mirrored("tools/call"), None, 400, INVALID_PARAMS, VERSION_KEY),
        ("row12-null", message("tools/list", None), mirrored("tools/list"), None, 400, INVALID_PARAMS, VERSION_KEY),
        ("row12-version-5", message("tools/list", meta(version=5)), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         "must be a string, not an integer"),
        ("row12-meta-5", message("tools/list", {"_meta": 5}), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         "_meta must be an object"),
        ("row12-bad-level", message("tools/list", {"_meta": {LOG_KEY: "x"}}), mirrored("tools/list"), None, 400,
         INVALID_PARAMS, VERSION_KEY),
        ("row13", PLAIN, old("2099-01-01"), None, 400, UNSUPPORTED_VERSION, "2099-01-01"),
        ("row13-empty", PLAIN, old(""), None, 400, UNSUPPORTED_VERSION, ""),
        ("row13-in-a-session", PLAIN, old("x", "s"), "2025-06-18", 400, UNSUPPORTED_VERSION, "x"),
        ("row13-initialize", message("initialize", hello()), old("x"), None, 400, UNSUPPORTED_VERSION, "x"),
        ("row14-misfit", message("initialize", {}), old(), None, 200, INVALID_PARAMS, "protocolVersion is missing"),
        ("row15-unknown-method", message("no/such"), old(None, "s"), "2025-11-25", 200, METHOD_NOT_FOUND, "no/such"),
        ("row15-modern-method", message("server/discover"), old(None, "s"), "2025-11-25", 200, METHOD_NOT_FOUND,
         "discover"),
        ("row15-misfit", message("tools/call", {}), old(None, "s"), "2025-11-25", 200, INVALID_PARAMS, "name"),
        ("row15-bad-token", message("tools/list", {"_meta": {"progressToken": []}}), old(None, "s"), "2025-11-25", 200,
         INVALID_PARAMS, "_meta.progressToken"),
        ("row16", PLAIN, old(None, "gone"), None, 404, INVALID_REQUEST, "no such session"),
        ("row16-unknown-method", message("no/such"), old(None, "gone"), None, 404, INVALID_REQUEST, "session"),
        ("row16-misfit", message("tools/call", 5), old("2025-06-18", "gone"), None, 404, INVALID_REQUEST, "session"),
        ("row17", PLAIN, old(), None, 400, INVALID_REQUEST, "Mcp-Session-Id is missing"),
        ("row17-header", PLAIN, old("2025-11-25"), None, 400, INVALID_REQUEST, "initialize"),
        ("row17-ping", message("ping"), old(), None, 400, INVALID_REQUEST, "Mcp-Session-Id is missing"),
    ),
)  # fmt: skip
def test_post_refuses(
    data: bytes, headers: dict[str, str], live: str | None, status: int, code: int, words: str
) -> None:
    failure = refusal(data, headers, None if live is None else session(live), via=from_post)
    assert (failure.http_status, failure.code) == (status, code)
    assert words in failure.message


@pytest.mark.rule("BASE-11")
@pytest.mark.parametrize(
    ("headers", "live"),
    rows(
        ("row2-session", old("2025-06-18", "s"), "2025-03-26"),
        ("row2-header", old("2025-03-26"), None),
        ("row2-no-header", old(), None),
    ),
)
def test_post_takes_a_batch(headers: dict[str, str], live: str | None) -> None:
    items = from_post(b"[%b]" % PLAIN, headers, None if live is None else session(live))
    assert isinstance(items, list)


@pytest.mark.rule("MH-5", "MH-6")
@pytest.mark.parametrize(
    ("data", "headers", "live", "stateless", "session_counts"),
    rows(
        ("row19-notification", NOTIFICATION, old("2025-06-18", "s"), "2025-06-18", False, True),
        ("row19-no-version", NOTIFICATION, old(None, "s"), "2025-06-18", False, True),
        ("row19-response", RESPONSE, old("2025-06-18", "s"), "2025-06-18", False, True),
        ("row19-error", ERROR_RESPONSE, old(None, "s"), "2025-06-18", False, True),
        ("row19-unknown", UNKNOWN_NOTIFICATION, old(None, "s"), "2025-06-18", False, True),
        ("row19-stateless", NOTIFICATION, old(), None, True, False),
        ("row20", NOTIFICATION, old(MODERN), None, False, False),
        ("row20-unknown", UNKNOWN_NOTIFICATION, old(MODERN), None, False, False),
        ("row20-wrong-method-header", NOTIFICATION, mirrored("x"), None, False, False),
        ("row20-ignores-session", NOTIFICATION, old(MODERN, "s"), "2025-06-18", False, False),
        ("row20-ignores-lost-session", NOTIFICATION, old(MODERN, "gone"), None, False, False),
    ),
)
def test_post_accepts(
    data: bytes, headers: dict[str, str], live: str | None, stateless: bool, session_counts: bool
) -> None:
    found = notice(data, headers, None if live is None else session(live), stateless)
    assert (found is not None) == session_counts


@pytest.mark.rule("MH-4", "MH-5")
@pytest.mark.parametrize(
    ("data", "headers", "status", "code"),
    rows(
        ("row13-notification", NOTIFICATION, old("x"), 400, UNSUPPORTED_VERSION),
        ("row13-response", RESPONSE, old("x"), 400, UNSUPPORTED_VERSION),
        ("row16-notification", NOTIFICATION, old(None, "gone"), 404, INVALID_REQUEST),
        ("row16-response", RESPONSE, old("2025-06-18", "gone"), 404, INVALID_REQUEST),
        ("row17-notification", NOTIFICATION, old(), 400, INVALID_REQUEST),
        ("row21-result", RESPONSE, old(MODERN), 400, INVALID_REQUEST),
        ("row21-error", ERROR_RESPONSE, old(MODERN), 400, INVALID_REQUEST),
        ("row21-mirrored", RESPONSE, mirrored("tools/list"), 400, INVALID_REQUEST),
    ),
)
def test_post_does_not_accept(data: bytes, headers: dict[str, str], status: int, code: int) -> None:
    failure = refusal(data, headers, via=notice)
    assert (failure.http_status, failure.code) == (status, code)


@pytest.mark.rule("MH-4")
def test_post_row21_counts_in_a_session_too() -> None:
    assert refusal(RESPONSE, old(MODERN, "s"), session(), via=notice).http_status == 400
