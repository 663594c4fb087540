"""The decision tables of connections and HTTP POSTs, row by row, and arbitrary messages."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from dovetail.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    ProtocolError,
)
from dovetail.protocol import inbound, jsonrpc, revisions
from dovetail.protocol.headers import Headers
from dovetail.protocol.inbound import CAPABILITIES_KEY, VERSION_KEY, Request
from dovetail.protocol.jsonrpc import BadMessage, Envelope
from dovetail.protocol.methods import REQUESTS, CallToolParams, InitializeParams, Params
from dovetail.protocol.session import Session

MODERN = "2026-07-28"
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LOG_KEY = "io.modelcontextprotocol/logLevel"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
META = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}

Batch = list[Envelope | BadMessage]


def message(method: str, params: Any = ..., *, id: Any = 1) -> bytes:
    body = {"jsonrpc": "2.0", "id": id, "method": method}
    return json.dumps(body if params is ... else {**body, "params": params}).encode()


def meta(**changes: Any) -> dict[str, Any]:
    """Params that hold a good modern `_meta`, changed."""
    keys = {"version": VERSION_KEY, "capabilities": CAPABILITIES_KEY, "log": LOG_KEY, "client": CLIENT_KEY}
    values = {**META, **{keys.get(name, name): value for name, value in changes.items()}}
    return {"_meta": {name: value for name, value in values.items() if value is not ...}}


def session(version: str = "2025-06-18") -> Session:
    return Session(id="s", version=version, client=b'{"name":"c"}', capabilities=b'{"sampling":{}}')


def hello(version: Any = "2025-06-18", **changes: Any) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}, **changes}


def from_pipe(data: bytes, live: Session | None = None) -> Request | Batch:
    """The outcome of a line on a connection."""
    received = jsonrpc.decode(data)
    if isinstance(received, list):
        inbound.allow_batch(None if live is None else live.revision)
        return received
    parsed = inbound.parse_request(received)
    return inbound.modern(parsed) or inbound.on_connection(parsed, live)


def from_post(
    data: bytes, headers: dict[str, str], live: Session | None = None, stateless: bool = False
) -> Request | Batch:
    """What an HTTP endpoint does with the body of a POST."""
    received, sent = jsonrpc.decode(data), as_sent(headers)
    if isinstance(received, list):
        inbound.allow_batch(inbound.http_batch_revision(sent, live))
        return received
    parsed = inbound.parse_request(received)
    return inbound.modern(parsed, sent) or inbound.on_http(parsed, sent, live, stateless=stateless)


def as_sent(headers: dict[str, str]) -> Headers:
    return Headers([(name.encode(), value.encode()) for name, value in headers.items()])


def refusal(*arguments: Any, via: Any = from_pipe, **options: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        via(*arguments, **options)
    assert "`" not in caught.value.message
    json.loads(jsonrpc.error(1, caught.value))
    return caught.value


def rows(*table: tuple[Any, ...]) -> list[Any]:
    """The first cell of a line is its id."""
    return [pytest.param(*line[1:], id=line[0]) for line in table]


def mirrored(method: str, name: str | None = None, version: str | None = MODERN, **more: str) -> dict[str, str]:
    """The headers of a good modern request."""
    headers = {"mcp-method": method}
    if version is not None:
        headers["mcp-protocol-version"] = version
    if name is not None:
        headers["mcp-name"] = name
    return headers | {key.replace("_", "-"): value for key, value in more.items()}


def old(version: str | None = None, session_id: str | None = None) -> dict[str, str]:
    """The headers of a handshake-era request."""
    headers = {} if version is None else {"mcp-protocol-version": version}
    return headers if session_id is None else headers | {"mcp-session-id": session_id}


LIST = message("tools/list", meta())
CALL = message("tools/call", {"name": "add", "arguments": {}, **meta()})
PLAIN = message("tools/list")


def notice(
    data: bytes, headers: dict[str, str], live: Session | None = None, stateless: bool = False
) -> Session | None:
    received = jsonrpc.decode(data)
    assert isinstance(received, Envelope)
    return inbound.accept_on_http(received, as_sent(headers), live, stateless=stateless)


NOTIFICATION = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
UNKNOWN_NOTIFICATION = b'{"jsonrpc":"2.0","method":"nobody/knows","params":[1]}'
RESPONSE = b'{"jsonrpc":"2.0","id":1,"result":{}}'
ERROR_RESPONSE = b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}'


# ── 3.2: the pipe ──


@pytest.mark.rule("LIFE-1", "LIFE-2", "LIFE-3", "LIFE-4", "LIFE-5", "LIFE-7", "LIFE-17", "LIFE-21", "META-5")
@pytest.mark.parametrize(
    ("data", "live", "revision"),
    rows(
        ("row3-modern", message("tools/list", meta()), None, MODERN),
        ("row3-modern-no-other-params-needed", message("server/discover", meta()), None, MODERN),
        ("row3-modern-beside-a-session", message("tools/list", meta()), "2025-11-25", MODERN),
        ("row3-modern-with-unknown-keys", message("tools/list", meta(**{"com.example/x": [1]})), None, MODERN),
        ("row4-2024-11-05", message("initialize", hello("2024-11-05")), None, "2024-11-05"),
        ("row4-2025-11-25", message("initialize", hello("2025-11-25")), None, "2025-11-25"),
        ("row4-unknown", message("initialize", hello("1999-01-01")), None, "2025-11-25"),
        ("row4-empty", message("initialize", hello("")), None, "2025-11-25"),
        ("row4-unknown-fields", message("initialize", hello(future=1, _meta={"a": 1})), None, "2025-06-18"),
        ("row5-2026-07-28", message("initialize", hello(MODERN)), None, "2025-11-25"),
        ("row7-session", message("tools/list", {}), "2025-03-26", "2025-03-26"),
        ("row7-session-null-params", message("tools/list", None), "2024-11-05", "2024-11-05"),
        ("row7-session-ping", message("ping"), "2025-06-18", "2025-06-18"),
        ("row7-session-capabilities-alone", message("ping", meta(version=...)), "2025-06-18", "2025-06-18"),
        ("row8-early-ping", message("ping"), None, "2025-11-25"),
    ),
)
def test_connection_serves(data: bytes, live: str | None, revision: str) -> None:
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
        ("row2-array", b"[1]", None, INVALID_REQUEST, "Batches"),
        ("row2-array-2025-06-18", b"[1]", "2025-06-18", INVALID_REQUEST, "Batches"),
        ("row2-empty-array", b"[]", "2025-03-26", INVALID_REQUEST, "at least one"),
        ("row3-unknown", message("tools/list", meta(version="2099-01-01")), None, UNSUPPORTED_VERSION, "2099-01-01"),
        ("row3-legacy", message("tools/list", meta(version="2025-11-25")), None, UNSUPPORTED_VERSION, "initialize"),
        ("row3-empty", message("tools/list", meta(version="")), "2025-11-25", UNSUPPORTED_VERSION, ""),
        ("row3-before-method", message("no/such", meta(version="x")), None, UNSUPPORTED_VERSION, "x"),
        ("row3-no-capabilities", message("tools/list", meta(capabilities=...)), None, INVALID_PARAMS, CAPABILITIES_KEY),
        ("row3-removed-ping", message("ping", meta()), "2025-11-25", METHOD_NOT_FOUND, "ping"),
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
        ("row7-modern-method", message("subscriptions/listen", {}), "2025-11-25", METHOD_NOT_FOUND, "subscriptions"),
        ("row7-unknown-method", message("no/such"), "2025-11-25", METHOD_NOT_FOUND, "no/such"),
        ("row7-notification-as-request", message("notifications/initialized"), "2025-11-25", METHOD_NOT_FOUND, "not"),
        ("row7-bad-params", message("tools/call", {}), "2025-11-25", INVALID_PARAMS, "name is missing"),
        ("row7-array-params", message("tools/call", ["add"]), "2025-11-25", INVALID_PARAMS, "not an array"),
        ("row8-ping-bad-params", message("ping", []), None, INVALID_PARAMS, "not an array"),
        ("row9-no-meta", message("server/discover"), None, INVALID_PARAMS, VERSION_KEY),
        ("row9-in-a-session", message("server/discover", {}), "2025-11-25", INVALID_PARAMS, VERSION_KEY),
        ("row9-no-capabilities", message("server/discover", meta(capabilities=...)), None, INVALID_PARAMS, "Capabil"),
        ("row10-before-all", message("tools/list"), None, INVALID_PARAMS, "initialize"),
        ("row10-unknown-method", message("no/such"), None, INVALID_PARAMS, "2025-11-25"),
        ("row10-version-5", message("tools/list", meta(version=5)), None, INVALID_PARAMS, "must be a string"),
    ),
)
def test_connection_refuses(data: bytes, live: str | None, code: int, words: str) -> None:
    failure = refusal(data, None if live is None else session(live))
    assert failure.code == code
    assert words in failure.message


@pytest.mark.rule("BASE-11")
def test_connection_row2_takes_a_batch_at_2025_03_26_only() -> None:
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
        ("row12-large", {"requestId": 2**70}, 2**70),
        ("row12-null", {"requestId": None}, None),
        ("row12-true", {"requestId": True}, None),
        ("row12-whole-fraction", {"requestId": 7.0}, None),
        ("row12-array-params", [7], None),
        ("row12-null-params", None, None),
    ),
)
def test_connection_cancellation_names_an_id_or_is_ignored(params: Any, id: Any) -> None:
    notice = jsonrpc.decode(
        json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).encode()
    )
    assert isinstance(notice, Envelope)
    found = inbound.read_cancelled_id(notice)
    assert found == id
    assert type(found) is type(id)


# ── what every row has in common ──


@pytest.mark.rule("LIFE-13", "MH-15")
@pytest.mark.parametrize("requested", ["2099-01-01", "2025-06-18", "", "x" * 500, "é😀"])
def test_an_unsupported_version_gets_the_supported_ones(requested: str) -> None:
    failure = refusal(message("tools/list", meta(version=requested)))
    assert failure.data == {"supported": list(revisions.SUPPORTED), "requested": requested}
    assert failure.data["supported"] == [MODERN, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
    assert failure.http_status == 400
    assert len(failure.message) < 200
    assert refusal(PLAIN, old("2030-01-01"), via=from_post).data == {**failure.data, "requested": "2030-01-01"}
    assert len(refusal(message("x" * 10_000, meta())).message) < 200


@pytest.mark.parametrize(
    ("version", "hint"), [(MODERN, ""), ("2025-11-25", "; use initialize for it"), ("2099-01-01", ""), ("", "")]
)
def test_http_sse_takes_no_request_that_names_its_version(version: str, hint: str) -> None:
    def parsed(data: bytes) -> inbound.ParsedRequest:
        received = jsonrpc.decode(data)
        assert isinstance(received, Envelope)
        return inbound.parse_request(received)

    for good in (PLAIN, message("initialize", hello()), message("tools/list", meta(version=...))):
        inbound.refuse_modern(parsed(good))
    failure = refusal(parsed(message("tools/list", meta(version=version))), via=inbound.refuse_modern)
    assert (failure.code, failure.http_status) == (UNSUPPORTED_VERSION, 400)
    assert failure.message == f"Unsupported protocol version: {version}{hint}"
    assert failure.data == {"supported": list(HANDSHAKE[::-1]), "requested": version}


@pytest.mark.parametrize(("length", "end"), [(100, "x"), (101, "x…")])
def test_long_names_are_cut_in_messages(length: int, end: str) -> None:
    name = "x" * length
    for failure in (refusal(message("tools/list", meta(version=name))), refusal(message(name, meta()))):
        assert failure.message.partition(": ")[2] == "x" * 99 + end


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
    least = from_pipe(message("tools/list", meta()), session("2025-06-18"))
    assert isinstance(least, Request)
    assert (least.capabilities, least.client, least.log_level) == ({}, None, None)


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
        inbound.parse_request(envelope)
    assert (caught.value.code, caught.value.id, caught.value.http_status) == (PARSE_ERROR, "a", 400)


def test_params_that_were_not_decoded_do_no_harm_later() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":%b,"_meta":{"y":1}}}'
    request = from_pipe(data % b"1E999", session())
    assert isinstance(request, Request)
    assert request.meta == {"y": 1}
    request = from_pipe(data % (b"9" * 5_000), session())
    assert isinstance(request, Request)
    assert request.meta == {}


@pytest.mark.rule("LIFE-2")
def test_initialize_is_read_whole() -> None:
    request = from_pipe(message("initialize", hello("2025-11-25", capabilities={"roots": {"listChanged": True}})))
    assert isinstance(request, Request)
    assert isinstance(request.params, InitializeParams)
    assert jsonrpc.encode(request.params.capabilities) == b'{"roots":{"listChanged": true}}'
    assert jsonrpc.encode(request.params.client_info) == b'{"name":"c","version":"1"}'


@pytest.mark.rule("MH-14", "MH-17", "MH-18", "MH-22", "MH-28", "LIFE-3", "LIFE-4", "LIFE-5", "LIFE-7")
@pytest.mark.parametrize(
    ("data", "headers", "live", "stateless", "revision"),
    rows(
        ("row3-modern", LIST, mirrored("tools/list"), None, False, MODERN),
        ("row3-ignores-unknown-session", LIST, mirrored("tools/list", mcp_session_id="x"), None, False, MODERN),
        ("row3-ignores-known-session", LIST, mirrored("tools/list", mcp_session_id="s"), "2025-06-18", False, MODERN),
        ("row5-trims", LIST, mirrored("tools/list", version=f" {MODERN}\t"), None, False, MODERN),
        ("row8-name", CALL, mirrored("tools/call", "add"), None, False, MODERN),
        ("row8-name-base64", CALL, mirrored("tools/call", "=?base64?YWRk?="), None, False, MODERN),
        ("row8-uri", message("resources/read", {"uri": "a://b", **meta()}), mirrored("resources/read", "a://b"), None,
         False, MODERN),
        ("row8-prompt", message("prompts/get", {"name": "p", **meta()}), mirrored("prompts/get", "p"), None, False,
         MODERN),
        ("row14-no-header", message("initialize", hello()), old(), None, False, "2025-06-18"),
        ("row14-other-header", message("initialize", hello()), old("2025-03-26"), None, False, "2025-06-18"),
        ("row14-stateless", message("initialize", hello()), old(), None, True, "2025-06-18"),
        ("row14-2026-07-28", message("initialize", hello(MODERN)), old(), None, False, "2025-11-25"),
        ("row14-stale-session", message("initialize", hello()), old(session_id="gone"), None, False, "2025-06-18"),
        ("row15-same", PLAIN, old("2025-06-18", "s"), "2025-06-18", False, "2025-06-18"),
        ("row15-absent", PLAIN, old(None, "s"), "2025-11-25", False, "2025-11-25"),
        ("row15-stale", PLAIN, old("2025-03-26", "s"), "2025-11-25", False, "2025-11-25"),
        ("row18-header", PLAIN, old("2025-06-18"), None, True, "2025-06-18"),
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
        ("row2-session", b"[1]", old(None, "s"), "2025-06-18", 400, INVALID_REQUEST, "Batches"),
        ("row2-session-wins", b"[1]", old("2025-03-26", "s"), "2025-06-18", 400, INVALID_REQUEST, "Batches"),
        ("row2-header", b"[1]", old("2025-06-18"), None, 400, INVALID_REQUEST, "Batches"),
        ("row2-modern", b"[1]", old(MODERN), None, 400, INVALID_REQUEST, "Batches"),
        ("row2-unknown", b"[1]", old("x"), None, 400, INVALID_REQUEST, "Batches"),
        ("row4", LIST, mirrored("tools/list", version=None), None, 400, HEADER_MISMATCH, "MCP-Protocol-Version"),
        ("row4-before-6", message("tools/list", meta(version="x")), {}, None, 400, HEADER_MISMATCH, "missing"),
        ("row5", LIST, mirrored("tools/list", version="2025-11-25"), None, 400, HEADER_MISMATCH, "Version"),
        ("row5-before-6", message("tools/list", meta(version="x")), mirrored("tools/list", version="y"), None, 400,
         HEADER_MISMATCH, "Version"),
        ("row6", message("tools/list", meta(version="2099-01-01")), mirrored("tools/list", version="2099-01-01"), None,
         400, UNSUPPORTED_VERSION, "2099-01-01"),
        ("row6-legacy", message("tools/list", meta(version="2025-11-25")), mirrored("x", version="2025-11-25"), None,
         400, UNSUPPORTED_VERSION, "initialize"),
        ("row6-before-7", message("tools/list", meta(version="x")), {"mcp-protocol-version": "x"}, None, 400,
         UNSUPPORTED_VERSION, "x"),
        ("row7-missing", LIST, {"mcp-protocol-version": MODERN}, None, 400, HEADER_MISMATCH, "Mcp-Method"),
        ("row7-differs", LIST, mirrored("tools/call"), None, 400, HEADER_MISMATCH, "Mcp-Method"),
        ("row7-before-10", message("no/such", meta()), mirrored("tools/list"), None, 400, HEADER_MISMATCH, "Method"),
        ("row8-missing", CALL, mirrored("tools/call"), None, 400, HEADER_MISMATCH, "Mcp-Name"),
        ("row8-differs", CALL, mirrored("tools/call", "sub"), None, 400, HEADER_MISMATCH, "Mcp-Name"),
        ("row8-bad-base64", CALL, mirrored("tools/call", "=?base64?YWR?="), None, 400, HEADER_MISMATCH, "base64"),
        ("row8-uri", message("resources/read", {"uri": "a://b", **meta()}), mirrored("resources/read", "a://B"), None,
         400, HEADER_MISMATCH, "Mcp-Name"),
        ("row8-prompt", message("prompts/get", {"name": "p", **meta()}), mirrored("prompts/get"), None, 400,
         HEADER_MISMATCH, "Mcp-Name"),
        ("row9-none", message("tools/list", meta(capabilities=...)), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         CAPABILITIES_KEY),
        ("row9-array", message("tools/list", meta(capabilities=[])), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         "must be an object, not an array"),
        ("row9-level", message("tools/list", meta(log="loud")), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         f"_meta.{LOG_KEY} must be one of debug, info"),
        ("row9-client", message("tools/list", meta(client="x")), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         CLIENT_KEY),
        ("row9-before-10", message("no/such", meta(capabilities=...)), mirrored("no/such"), None, 400, INVALID_PARAMS,
         CAPABILITIES_KEY),
        *(
            (f"row10-{method}", message(method, meta()), mirrored(method), None, 404, METHOD_NOT_FOUND, method)
            for method in (
                "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe",
                "tasks/result", "tasks/list", "no/such", "sampling/createMessage", "notifications/cancelled",
            )
        ),
        ("row10-then-bad-params", message("tools/call", meta()), mirrored("tools/call"), None, 200, INVALID_PARAMS,
         "name is missing"),
        ("row12", PLAIN, mirrored("tools/list"), None, 400, INVALID_PARAMS, f"{VERSION_KEY} and {CAPABILITIES_KEY}"),
        ("row12-no-version", message("tools/list", meta(version=...)), mirrored("tools/list"), None, 400,
         INVALID_PARAMS, f"must hold {VERSION_KEY}. "),
        ("row12-before-headers", PLAIN, mirrored("other"), None, 400, INVALID_PARAMS, VERSION_KEY),
        ("row12-initialize", message("initialize", hello(MODERN)), old(MODERN), None, 400, INVALID_PARAMS, VERSION_KEY),
        ("row12-bad-params", message("tools/call", {}), mirrored("tools/call"), None, 400, INVALID_PARAMS, VERSION_KEY),
        ("row12-version-5", message("tools/list", meta(version=5)), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         "must be a string, not an integer"),
        ("row12-meta-5", message("tools/list", {"_meta": 5}), mirrored("tools/list"), None, 400, INVALID_PARAMS,
         "_meta must be an object"),
        ("row13", PLAIN, old("2099-01-01"), None, 400, UNSUPPORTED_VERSION, "2099-01-01"),
        ("row13-in-a-session", PLAIN, old("x", "s"), "2025-06-18", 400, UNSUPPORTED_VERSION, "x"),
        ("row13-initialize", message("initialize", hello()), old("x"), None, 400, UNSUPPORTED_VERSION, "x"),
        ("row14-bad-params", message("initialize", {}), old(), None, 200, INVALID_PARAMS, "protocolVersion is missing"),
        ("row15-unknown-method", message("no/such"), old(None, "s"), "2025-11-25", 200, METHOD_NOT_FOUND, "no/such"),
        ("row16", PLAIN, old(None, "gone"), None, 404, INVALID_REQUEST, "no such session"),
        ("row16-params", message("tools/call", 5), old("2025-06-18", "gone"), None, 404, INVALID_REQUEST, "session"),
        ("row17", PLAIN, old(), None, 400, INVALID_REQUEST, "Mcp-Session-Id is missing"),
        ("row17-header", PLAIN, old("2025-11-25"), None, 400, INVALID_REQUEST, "initialize"),
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
        ("row19-unknown", UNKNOWN_NOTIFICATION, old(None, "s"), "2025-06-18", False, True),
        ("row19-stateless", NOTIFICATION, old(), None, True, False),
        ("row20", NOTIFICATION, old(MODERN), None, False, False),
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
        ("row16-notification", NOTIFICATION, old(None, "gone"), 404, INVALID_REQUEST),
        ("row17-notification", NOTIFICATION, old(), 400, INVALID_REQUEST),
        ("row21-result", RESPONSE, old(MODERN), 400, INVALID_REQUEST),
        ("row21-mirrored", RESPONSE, mirrored("tools/list"), 400, INVALID_REQUEST),
    ),
)
def test_post_does_not_accept(data: bytes, headers: dict[str, str], status: int, code: int) -> None:
    failure = refusal(data, headers, via=notice)
    assert (failure.http_status, failure.code) == (status, code)
    assert refusal(RESPONSE, old(MODERN, "s"), session(), via=notice).http_status == 400


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
METHODS = st.sampled_from([row.name for row in REQUESTS]) | st.text(max_size=10)
VERSIONS = st.sampled_from([MODERN, *HANDSHAKE, "x", ""])
META_KEYS = st.sampled_from([VERSION_KEY, CAPABILITIES_KEY, LOG_KEY, CLIENT_KEY, "progressToken"])
METAS = st.dictionaries(META_KEYS, VERSIONS | VALUES | st.just({}), max_size=5)
FIELDS = st.sampled_from(["name", "arguments", "uri", "cursor", "level", "ref", "argument", "context", "notifications"])
PARAMS = VALUES | st.dictionaries(FIELDS, VALUES, max_size=4).flatmap(
    lambda fields: METAS.map(lambda found: {**fields, "_meta": found})
)
HEADERS = st.dictionaries(
    st.sampled_from(["mcp-protocol-version", "mcp-session-id", "mcp-method", "mcp-name"]),
    VERSIONS | METHODS,
    max_size=4,
)
KNOWN_CODES = {INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_VERSION, HEADER_MISMATCH, PARSE_ERROR}


def served_or_refused(act: Any, *arguments: Any) -> None:
    try:
        request = act(*arguments)
    except ProtocolError as failure:
        check_refusal(failure)
        return
    assert isinstance(request, Request)
    assert isinstance(request.params, Params)
    assert request.revision.name in request.row.versions
    assert request.revision.handshake == (VERSION_KEY not in request.meta)
    assert isinstance(request.capabilities, dict)
    assert request.client is None or isinstance(request.client, dict)


def check_refusal(failure: ProtocolError) -> None:
    assert json.loads(jsonrpc.error(1, failure))["error"]["code"] in KNOWN_CODES
    assert failure.http_status in (200, 400, 404)


@pytest.mark.rule("BASE-20", "LIFE-7", "LIFE-21")
@given(METHODS, PARAMS, st.none() | st.sampled_from(HANDSHAKE))
def test_connection_serves_or_refuses_anything(method: str, params: Any, live: str | None) -> None:
    served_or_refused(from_pipe, message(method, params), None if live is None else session(live))


@pytest.mark.rule("BASE-20", "LIFE-7", "LIFE-21")
@example("ping", {"_meta": {CAPABILITIES_KEY: "no object", CLIENT_KEY: 7}}, {}, None, True)
@given(METHODS, PARAMS, HEADERS, st.none() | st.sampled_from(HANDSHAKE), st.booleans())
def test_post_serves_or_refuses_anything(
    method: str, params: Any, headers: dict[str, str], live: str | None, stateless: bool
) -> None:
    served_or_refused(from_post, message(method, params), headers, None if live is None else session(live), stateless)
