"""The decision table over HTTP: the rows of tests/protocol as they are sent, and the headers that mirror a body."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from http_clients import INVALID_REQUEST, LEGACY, MISMATCH, UNSUPPORTED, check_alive, check_refusal, new_server

from dovetail.protocol.revisions import SUPPORTED
from http_serving import Serve, Stage
from http_wire import MODERN, H, HttpWire, hello, initialize, message, mirrored, modern, post, text_of

sys.path.insert(0, str(Path(__file__).parents[1] / "protocol"))

import test_inbound as table


def rows_of(test: Any) -> Any:
    """The same rows that the pure table is tested with."""
    (given,) = (mark for mark in test.pytestmark if mark.name == "parametrize")
    return pytest.mark.parametrize(*given.args)


@pytest.fixture
async def stage() -> Any:
    stage = Stage()
    stage.server = new_server()
    return stage


async def send(app: Any, data: bytes, headers: dict[str, str], live: str | None = None) -> Any:
    """As the row says; where it has a live session, that is `s`."""
    session = (await HttpWire.session(app, live)).session_id if live is not None else "s"
    own = {name: session if (name, value) == ("mcp-session-id", "s") else value for name, value in headers.items()}
    return await post(HttpWire(app), data, own)


def id_of(data: bytes) -> Any:
    """What a refusal has to echo: the id of a request, where it can be read."""
    try:
        sent = json.loads(data)
    except ValueError:
        return None
    return sent.get("id") if isinstance(sent, dict) and "method" in sent else None


@rows_of(table.test_post_serves)
@pytest.mark.rule(
    "MH-7", "MH-14", "MH-17", "MH-18", "MH-22", "MH-28", "LIFE-3", "LIFE-4", "LIFE-5", "LIFE-7", "LIFE-21"
)
async def test_post_serves(
    serve: Serve, data: bytes, headers: dict[str, str], live: str | None, stateless: bool, revision: str
) -> None:
    answer = await send(await serve(stateless=stateless), data, headers, live)
    assert answer.status == 200
    assert answer.json["id"] == 1
    result = answer.json.get("result", {})
    assert answer.json.get("error", {}).get("code") in (None, -32602)  # of what is not there
    assert not result or ("resultType" in result) == (revision == MODERN)
    assert result.get("protocolVersion", revision) == revision
    opens = b'"initialize"' in data and not stateless
    assert ("mcp-session-id" in answer.headers) == opens


@rows_of(table.test_post_refuses)
@pytest.mark.rule("BASE-9", "BASE-11", "BASE-19", "BASE-20", "LIFE-12", "LIFE-13", "LOG-5", "MH-4", "MH-14", "MH-15")
@pytest.mark.rule("MH-16", "MH-17", "MH-18", "MH-20", "MH-21", "MH-23", "MH-29", "SH-5", "SH-28", "SH-29", "SH-32")
async def test_post_refuses(
    app: Any, data: bytes, headers: dict[str, str], live: str | None, status: int, code: int, words: str
) -> None:
    answer = await send(app, data, headers, live)
    assert words in check_refusal(answer, status, code, id_of(data))
    if code == UNSUPPORTED:
        requested = headers["mcp-protocol-version"]
        assert answer.json["error"]["data"] == {"supported": list(SUPPORTED), "requested": requested}
    assert "mcp-session-id" not in answer.headers
    await check_alive(app)


@rows_of(table.test_post_accepts)
@pytest.mark.rule("MH-5", "MH-6", "SH-6", "BASE-10")
async def test_post_accepts(
    serve: Serve, data: bytes, headers: dict[str, str], live: str | None, stateless: bool, session_counts: bool
) -> None:
    answer = await send(await serve(stateless=stateless), data, headers, live)
    assert (answer.status, answer.raw) == (202, b"")
    assert "content-type" not in answer.headers


@rows_of(table.test_post_does_not_accept)
@pytest.mark.rule("MH-4", "MH-5", "SH-7", "SH-28", "SH-29", "SH-32")
async def test_post_does_not_accept(app: Any, data: bytes, headers: dict[str, str], status: int, code: int) -> None:
    check_refusal(await send(app, data, headers), status, code)


@pytest.mark.rule("LIFE-11", "LIFE-14", "LIFE-17", "LIFE-19", "MH-29")
async def test_a_client_that_lacks_a_capability_is_refused_with_its_name_and_may_have_others(app: Any) -> None:
    capable = {"elicitation": {}, "extensions": {"com.example/x": {}}}
    for meta in ({}, {"client": ..., "capabilities": capable}):
        call = modern("tools/call", {"name": "asking"}, **meta)
        answer = await post(HttpWire(app), call, mirrored("tools/call", "asking"))
        if meta:
            assert text_of(answer.json) == "asked"
        else:
            check_refusal(answer, 400, -32021, "q")
            assert answer.json["error"]["data"] == {"requiredCapabilities": {"elicitation": {}}}


@pytest.mark.rule("LIFE-2", "LIFE-3", "LIFE-7", "SH-25", "SH-26", "SH-27", "SH-31")
@pytest.mark.parametrize("version", LEGACY)
async def test_initialize_opens_a_session_with_an_id_that_can_not_be_guessed(app: Any, version: str) -> None:
    wire = await HttpWire.session(app, version)
    opened = [await initialize(app, version) for _ in range(20)]
    opened.append(await post(wire, hello(version)))  # also within another session, which stays
    assert {answer.json["result"]["protocolVersion"] for answer in opened} == {version}
    ids = {answer.headers["mcp-session-id"] for answer in opened}
    assert len(ids - {wire.session_id}) == 21
    assert all(len(id) >= 32 and all(0x21 <= ord(each) <= 0x7E for each in id) for id in ids)
    for header in (None, "2025-03-26", "2025-11-25"):  # what was agreed on counts
        listed = (await post(wire, message("tools/list"), {"mcp-protocol-version": header})).json["result"]
        assert ("outputSchema" in listed["tools"][0], "resultType" in listed) == (version >= "2025-06-18", False)


@pytest.mark.rule("BASE-4", "BASE-5")
async def test_an_id_that_is_in_flight_is_refused_and_free_again_afterwards(app: Any, wire: HttpWire) -> None:
    other = await HttpWire.session(app)
    running = wire.start_call("wait", {"seconds": 60}, id=7)
    assert (await other.call("add", {"a": 1}, id=7)).status == 200, "an id belongs to its session"
    check_refusal(await wire.call("add", {"a": 1}, id=7), 200, INVALID_REQUEST, 7)
    assert "result" in (await wire.call("add", {"a": 1}, id="7")).answer
    await wire.notify("notifications/cancelled", {"requestId": 7})
    await running.done()
    assert "result" in (await wire.call("add", {"a": 1}, id=7)).answer


@pytest.mark.rule("SH-28", "SH-29", "SH-32", "MH-28")
@pytest.mark.parametrize("verb", ["GET", "DELETE"])
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 400, INVALID_REQUEST),
        (H("2025-11-25"), 400, INVALID_REQUEST),
        ({"mcp-session-id": "gone", **H("2025-06-18")}, 404, INVALID_REQUEST),
        ({"mcp-session-id": "gone", **H("banana")}, 400, UNSUPPORTED),
        (H("banana"), 400, UNSUPPORTED),
        ({"mcp-session-id": "gone", **H(MODERN)}, 405, INVALID_REQUEST),
    ],
)
async def test_get_and_delete_without_a_session(app: Any, verb: str, headers: Any, status: int, code: int) -> None:
    check_refusal(await HttpWire(app).raw(verb, b"", headers).done(), status, code)


@pytest.mark.rule("SH-1", "SH-16", "MH-1", "MH-28")
@pytest.mark.parametrize("verb", ["PUT", "HEAD", "BREW", "post"])
async def test_other_verbs_are_405_at_each_name_of_the_endpoint(app: Any, verb: str) -> None:
    for path in ("/", "/mcp", "/mcp/"):
        assert (await HttpWire(app, path=path).call("add", {"a": 1})).status == 200
        answer = await HttpWire(app, path=path).raw(verb).done()
        check_refusal(answer, 405, INVALID_REQUEST)
        assert {"GET", "POST", "DELETE"} <= {each.strip() for each in answer.headers["allow"].split(",")}


@pytest.mark.rule("MH-20", "MH-21", "MH-22", "MH-23", "MH-24", "MH-25", "MH-26", "MH-27")
@pytest.mark.parametrize(
    ("arguments", "headers", "agrees"),
    [
        ({}, {"Mcp-Param-Unknown": "ignored", "Mcp-Param-": "x", "Mcp-Param-Unmarked": "y"}, True),
        ({"region": "eu"}, {"MCP-PARAM-REGION": " eu "}, True),
        ({"region": "Zürich\n"}, {"Mcp-Param-Region": "=?base64?WsO8cmljaAo=?="}, True),
        ({"place": {"zone": "UTC"}}, {"Mcp-Param-Time-Zone": "UTC"}, True),
        ({"region": "eu"}, {}, False),
        ({"region": "eu"}, {"Mcp-Param-Region": "EU"}, False),
        ({}, {"Mcp-Param-Region": "here"}, False),
        ({"place": {}}, {"Mcp-Param-Time-Zone": "UTC"}, False),
    ],
)
async def test_parameters_in_headers(app: Any, wire: HttpWire, arguments: Any, headers: Any, agrees: bool) -> None:
    """What exactly agrees is the table of tests/protocol/test_headers.py."""
    answer = await HttpWire(app).call("weather", arguments, headers=headers)
    if agrees:
        place = arguments.get("place", {}).get("zone", "nowhere")
        assert json.loads(text_of(answer.json)) == [arguments.get("region", "here"), 1, False, place, None]
    else:
        assert "Mcp-Param-" in check_refusal(answer, 400, MISMATCH, answer.json["id"])
    older = await wire.call("weather", {"region": "eu"}, headers={"mcp-method": "x", "mcp-name": "y", **headers})
    assert text_of(older.json).startswith('["eu"'), "older revisions have no such headers"


@pytest.mark.rule("MH-20", "MH-21")
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "weather")),
        *(("mcp-param-region", "eu"), ("host", "localhost"), ("origin", "http://localhost"), ("mcp-session-id", "10")),
        *(("content-type", "application/json"), ("content-length", "10")),
    ],
)
async def test_a_header_that_comes_twice_is_refused(app: Any, name: str, value: str, same: bool) -> None:
    """A proxy might have read the one, and we the other."""
    headers: dict[str, str | None] = {**mirrored("tools/call", "weather"), "mcp-param-region": "eu", name: value}
    body = json.dumps(modern("tools/call", {"name": "weather", "arguments": {"region": "eu"}})).encode()
    more = [(name.encode(), value.encode() if same else b"other")]
    answer = await HttpWire(app).raw("POST", body, headers, more=more).done()
    assert (answer.status, answer.json["error"]["code"] in (INVALID_REQUEST, MISMATCH)) == (400, True)
