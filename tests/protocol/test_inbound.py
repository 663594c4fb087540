"""The decision table of pipes, row by row, and what the rows of both tables have in common."""

import json
from typing import Any

import pytest
from inbound_stage import (
    CLIENT_KEY,
    HANDSHAKE,
    LOG_KEY,
    MODERN,
    PLAIN,
    from_pipe,
    from_post,
    hello,
    message,
    meta,
    old,
    refusal,
    rows,
    session,
)
from msgspec import Raw

from dovetail.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
)
from dovetail.protocol import inbound, jsonrpc, revisions
from dovetail.protocol.inbound import CAPABILITIES_KEY, VERSION_KEY, Request
from dovetail.protocol.jsonrpc import BadMessage, Envelope
from dovetail.protocol.methods import CallToolParams, InitializeParams

# ── 3.2: the pipe ──


@pytest.mark.rule("LIFE-1", "LIFE-2", "LIFE-3", "LIFE-4", "LIFE-5", "LIFE-7", "LIFE-17", "LIFE-21", "META-5")
@pytest.mark.parametrize(
    ("data", "live", "revision"),
    rows(
        ("row3-modern", message("tools/list", meta()), None, MODERN),
        ("row3-modern-no-other-params-needed", message("server/discover", meta()), None, MODERN),
        ("row3-modern-beside-a-session", message("tools/list", meta()), "2025-11-25", MODERN),
        ("row3-modern-with-client-info", message("tools/list", meta(client={"name": "c"})), None, MODERN),
        ("row3-modern-with-unknown-keys", message("tools/list", meta(**{"com.example/x": [1]})), None, MODERN),
        ("row4-2024-11-05", message("initialize", hello("2024-11-05")), None, "2024-11-05"),
        ("row4-2025-03-26", message("initialize", hello("2025-03-26")), None, "2025-03-26"),
        ("row4-2025-06-18", message("initialize", hello("2025-06-18")), None, "2025-06-18"),
        ("row4-2025-11-25", message("initialize", hello("2025-11-25")), None, "2025-11-25"),
        ("row4-unknown", message("initialize", hello("1999-01-01")), None, "2025-11-25"),
        ("row4-future", message("initialize", hello("2099-01-01")), None, "2025-11-25"),
        ("row4-empty", message("initialize", hello("")), None, "2025-11-25"),
        ("row4-unknown-fields", message("initialize", hello(future=1, _meta={"a": 1})), None, "2025-06-18"),
        ("row5-2026-07-28", message("initialize", hello(MODERN)), None, "2025-11-25"),
        ("row7-session", message("tools/list", {}), "2025-03-26", "2025-03-26"),
        ("row7-session-no-params", message("tools/list"), "2024-11-05", "2024-11-05"),
        ("row7-session-null-params", message("tools/list", None), "2024-11-05", "2024-11-05"),
        ("row7-session-ping", message("ping"), "2025-06-18", "2025-06-18"),
        ("row7-session-capabilities-alone", message("ping", meta(version=...)), "2025-06-18", "2025-06-18"),
        ("row8-early-ping", message("ping"), None, "2025-11-25"),
        ("row14-both-eras", message("prompts/list", meta()), "2024-11-05", MODERN),
    ),
)
def test_pipe_serves(data: bytes, live: str | None, revision: str) -> None:
    request = from_pipe(data, None if live is None else session(live))
    assert isinstance(request, Request)
    assert request.revision.name == revision
    assert (request.session is not None) == (live is not None and revision != MODERN)
    assert request.headers is None


@pytest.mark.rule("BASE-12", "BASE-20", "LIFE-1", "LIFE-8", "LIFE-12", "LIFE-13")
@pytest.mark.parametrize(
    ("data", "live", "code", "words"),
    rows(
        ("row1-not-json", b"{", None, PARSE_ERROR, "not valid JSON"),
        ("row1-not-json-in-a-session", b"{", "2025-06-18", PARSE_ERROR, "not valid JSON"),
        ("row2-array", b"[1]", None, INVALID_REQUEST, "Batches"),
        ("row2-array-2024-11-05", b"[1]", "2024-11-05", INVALID_REQUEST, "Batches"),
        ("row2-array-2025-06-18", b"[1]", "2025-06-18", INVALID_REQUEST, "Batches"),
        ("row2-array-2025-11-25", b"[1]", "2025-11-25", INVALID_REQUEST, "Batches"),
        ("row2-empty-array", b"[]", "2025-03-26", INVALID_REQUEST, "at least one"),
        ("row3-unknown", message("tools/list", meta(version="2099-01-01")), None, UNSUPPORTED_VERSION, "2099-01-01"),
        ("row3-legacy", message("tools/list", meta(version="2025-11-25")), None, UNSUPPORTED_VERSION, "initialize"),
        ("row3-empty", message("tools/list", meta(version="")), "2025-11-25", UNSUPPORTED_VERSION, ""),
        ("row3-before-method", message("no/such", meta(version="x")), None, UNSUPPORTED_VERSION, "x"),
        ("row3-no-capabilities", message("tools/list", meta(capabilities=...)), None, INVALID_PARAMS, CAPABILITIES_KEY),
        ("row3-removed-initialize", message("initialize", {**hello(), **meta()}), None, METHOD_NOT_FOUND, "initialize"),
        ("row3-removed-ping", message("ping", meta()), "2025-11-25", METHOD_NOT_FOUND, "ping"),
        ("row3-removed-setLevel", message("logging/setLevel", meta()), None, METHOD_NOT_FOUND, "logging/setLevel"),
        ("row3-unknown-method", message("no/such", meta()), None, METHOD_NOT_FOUND, "no/such"),
        (
            "row4-no-version",
            message("initialize", hello(...) | {"protocolVersion": None}),
            None,
            INVALID_PARAMS,
            "proto",
        ),
        ("row4-no-params", message("initialize"), None, INVALID_PARAMS, "protocolVersion is missing"),
        ("row4-array", message("initialize", []), None, INVALID_PARAMS, "params must be an object"),
        ("row4-no-client", message("initialize", hello(clientInfo=5)), None, INVALID_PARAMS, "clientInfo"),
        ("row6-again", message("initialize", hello()), "2025-06-18", INVALID_REQUEST, "already initialised"),
        ("row6-again-and-bad", message("initialize", 5), "2025-06-18", INVALID_REQUEST, "already initialised"),
        ("row7-modern-method", message("subscriptions/listen", {}), "2025-11-25", METHOD_NOT_FOUND, "subscriptions"),
        ("row7-unknown-method", message("no/such"), "2025-11-25", METHOD_NOT_FOUND, "no/such"),
        ("row7-client-method", message("sampling/createMessage"), "2025-11-25", METHOD_NOT_FOUND, "sampling"),
        ("row7-notification-as-request", message("notifications/initialized"), "2025-11-25", METHOD_NOT_FOUND, "not"),
        ("row7-misfit", message("tools/call", {}), "2025-11-25", INVALID_PARAMS, "name is missing"),
        ("row7-array-params", message("tools/call", ["add"]), "2025-11-25", INVALID_PARAMS, "not an array"),
        ("row7-string-params", message("ping", "x"), "2025-11-25", INVALID_PARAMS, "not a string"),
        ("row8-ping-misfit", message("ping", []), None, INVALID_PARAMS, "not an array"),
        ("row9-no-meta", message("server/discover"), None, INVALID_PARAMS, VERSION_KEY),
        ("row9-in-a-session", message("server/discover", {}), "2025-11-25", INVALID_PARAMS, VERSION_KEY),
        ("row9-no-version", message("server/discover", meta(version=...)), None, INVALID_PARAMS, VERSION_KEY),
        ("row9-no-capabilities", message("server/discover", meta(capabilities=...)), None, INVALID_PARAMS, "Capabil"),
        ("row9-version-5", message("server/discover", meta(version=5)), None, INVALID_PARAMS, "must be a string"),
        ("row9-array", message("server/discover", []), None, INVALID_PARAMS, VERSION_KEY),
        ("row10-before-all", message("tools/list"), None, INVALID_PARAMS, "initialize"),
        ("row10-unknown-method", message("no/such"), None, INVALID_PARAMS, "2025-11-25"),
        ("row10-misfit", message("tools/call", []), None, INVALID_PARAMS, VERSION_KEY),
        ("row10-version-5", message("tools/list", meta(version=5)), None, INVALID_PARAMS, "must be a string"),
    ),
)
def test_pipe_refuses(data: bytes, live: str | None, code: int, words: str) -> None:
    failure = refusal(data, None if live is None else session(live))
    assert failure.code == code
    assert words in failure.message


@pytest.mark.rule("BASE-11")
def test_pipe_row2_takes_a_batch_at_2025_03_26_only() -> None:
    items = from_pipe(b"[%b,%b]" % (message("ping"), message("ping", id="b")), session("2025-03-26"))
    assert isinstance(items, list)
    assert [item.id for item in items] == [1, "b"]
    assert [row.name for row in revisions.ALL if row.batches] == ["2025-03-26"]


@pytest.mark.rule("CAN-1", "CAN-5")
@pytest.mark.parametrize(
    ("params", "id"),
    rows(
        ("row12-number", {"requestId": 7, "reason": "enough"}, 7),
        ("row12-string", {"requestId": "7"}, "7"),
        ("row12-zero", {"requestId": 0}, 0),
        ("row12-empty", {"requestId": ""}, ""),
        ("row12-odd-reason", {"requestId": 7, "reason": None}, 7),
        ("row12-large", {"requestId": 2**70}, 2**70),
        ("row12-none", {}, None),
        ("row12-null", {"requestId": None}, None),
        ("row12-true", {"requestId": True}, None),
        ("row12-fraction", {"requestId": 7.5}, None),
        ("row12-whole-fraction", {"requestId": 7.0}, None),
        ("row12-object", {"requestId": {}}, None),
        ("row12-array-params", [7], None),
        ("row12-null-params", None, None),
    ),
)
def test_pipe_cancellation_names_an_id_or_is_ignored(params: Any, id: Any) -> None:
    notice = jsonrpc.decode(
        json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).encode()
    )
    assert isinstance(notice, Envelope)
    found = inbound.cancelled_request(notice)
    assert found == id
    assert type(found) is type(id)


# ── what every row has in common ──


@pytest.mark.rule("LIFE-13", "MH-15")
@pytest.mark.parametrize("requested", ["2099-01-01", "2025-06-18", "", "x" * 500, "é😀"])
def test_an_unsupported_version_is_told_what_is_supported(requested: str) -> None:
    failure = refusal(message("tools/list", meta(version=requested)))
    assert failure.data == {"supported": list(revisions.SUPPORTED), "requested": requested}
    assert failure.data["supported"] == [MODERN, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
    assert failure.http_status == 400
    assert len(failure.message) < 200


@pytest.mark.rule("MH-15")
def test_an_unsupported_header_is_told_what_is_supported() -> None:
    failure = refusal(PLAIN, old("2030-01-01"), via=from_post)
    assert failure.data == {"supported": list(revisions.SUPPORTED), "requested": "2030-01-01"}


def test_a_long_method_is_not_echoed_whole() -> None:
    assert len(refusal(message("x" * 10_000, meta())).message) < 200


@pytest.mark.rule("LIFE-7", "LIFE-16", "LIFE-21")
def test_a_modern_request_brings_everything_itself() -> None:
    capabilities = {"elicitation": {"form": {}}, "future": {"x": 1}}
    params = meta(capabilities=capabilities, client={"name": "me"}, log="warning", progressToken=0)
    request = from_pipe(message("tools/list", params), session("2025-06-18"))
    assert isinstance(request, Request)
    assert request.capabilities == capabilities
    assert request.client == {"name": "me"}
    assert request.log_level == "warning"
    assert request.params.meta.progress_token == 0
    assert request.session is None
    assert request.meta == params["_meta"]


@pytest.mark.rule("LIFE-17", "LOG-3")
def test_what_a_modern_request_leaves_out_is_not_made_up() -> None:
    request = from_pipe(message("tools/list", meta()), session("2025-06-18"))
    assert isinstance(request, Request)
    assert (request.capabilities, request.client, request.log_level) == ({}, None, None)


@pytest.mark.rule("LIFE-7")
def test_a_session_brings_what_initialize_agreed_on() -> None:
    live = session("2025-06-18")
    request = from_pipe(message("tools/list", {"_meta": {"progressToken": ""}}), live)
    assert isinstance(request, Request)
    assert (request.capabilities, request.client, request.session) == ({"sampling": {}}, {"name": "c"}, live)
    assert request.params.meta.progress_token == ""


@pytest.mark.rule("META-5", "META-3")
@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.parametrize(
    "odd", [{LOG_KEY: "loud"}, {CAPABILITIES_KEY: 5}, {CLIENT_KEY: [], LOG_KEY: None}, {"x": None}]
)
def test_keys_that_mean_nothing_yet_are_passed_through(version: str, odd: dict[str, Any]) -> None:
    """They are new in 2026-07-28; up to then any value is as good as another, and the rest is still read."""
    params = {"name": "add", "arguments": {"big": 2**80, "n": 1.0}, "_meta": {**odd, "progressToken": "t"}}
    request = from_pipe(message("tools/call", params), session(version))
    assert isinstance(request, Request)
    assert isinstance(request.params, CallToolParams)
    assert request.params.meta.progress_token == "t"
    assert request.meta == params["_meta"]
    assert json.loads(bytes(request.params.arguments)) == params["arguments"]
    assert request.log_level is None


@pytest.mark.rule("META-5")
def test_a_real_mistake_beside_such_keys_is_still_found() -> None:
    params = {"name": 5, "_meta": {LOG_KEY: "loud"}}
    assert "name must be a string" in refusal(message("tools/call", params), session()).message


@pytest.mark.rule("PROG-1")
@pytest.mark.parametrize("token", [0, 1, -1, "", "t", 2**70])
def test_good_progress_tokens(token: int | str) -> None:
    for params, live in ((meta(progressToken=token), None), ({"_meta": {"progressToken": token}}, session())):
        request = from_pipe(message("tools/list", params), live)
        assert isinstance(request, Request)
        assert request.params.meta.progress_token == token
        assert type(request.params.meta.progress_token) is type(token)


@pytest.mark.rule("PROG-1")
@pytest.mark.parametrize("token", [True, False, None, 1.5, 1.0, [], {}])
def test_bad_progress_tokens(token: Any) -> None:
    for params, live in ((meta(progressToken=token), None), ({"_meta": {"progressToken": token}}, session())):
        failure = refusal(message("tools/list", params), live)
        assert failure.code == INVALID_PARAMS
        assert "_meta.progressToken" in failure.message


def test_params_that_are_not_json_are_a_parse_error_with_the_id() -> None:
    envelope = Envelope("2.0", id="a", method="tools/list", params=Raw(b'{"cursor":"\xff"}'))
    with pytest.raises(BadMessage) as caught:
        inbound.open_request(envelope)
    assert (caught.value.code, caught.value.id, caught.value.http_status) == (PARSE_ERROR, "a", 400)


def test_params_that_nobody_read_can_not_hurt_later() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":%b,"_meta":{"y":1}}}'
    request = from_pipe(data % b"1E999", session())
    assert isinstance(request, Request)
    assert request.meta == {"y": 1}
    request = from_pipe(data % (b"9" * 5_000), session())
    assert isinstance(request, Request)
    assert request.meta == {}


def test_meta_is_empty_where_there_is_none() -> None:
    request = from_pipe(message("ping"))
    assert isinstance(request, Request)
    assert request.meta == {}


@pytest.mark.rule("LIFE-2")
def test_initialize_is_read_whole() -> None:
    request = from_pipe(message("initialize", hello("2025-11-25", capabilities={"roots": {"listChanged": True}})))
    assert isinstance(request, Request)
    assert isinstance(request.params, InitializeParams)
    assert jsonrpc.encode(request.params.capabilities) == b'{"roots":{"listChanged": true}}'
    assert jsonrpc.encode(request.params.client_info) == b'{"name":"c","version":"1"}'


@pytest.mark.rule("BASE-6")
@pytest.mark.parametrize("id", [0, "0", "", 2**70])
def test_the_id_stays_what_it_was(id: int | str) -> None:
    request = from_pipe(message("ping", id=id), session())
    assert isinstance(request, Request)
    assert request.id == id
    assert type(request.id) is type(id)
