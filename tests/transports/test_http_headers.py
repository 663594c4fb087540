"""The headers of 2026-07-28 that mirror the body, as they meet the server: `Mcp-Method`, `Mcp-Name`, `Mcp-Param-*`."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asked_server import INVALID_REQUEST, LEGACY, MISMATCH, check_refusal, mirrored, modern, new_server, post

from http_wire import MODERN, HttpWire


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    server = new_server()
    for name in ("café", " padded ", "=?base64?eA==?=", "two  words"):
        server.add_prompt(hello, name=name)
    app = server.asgi()
    yield app
    await app.drain(0)


async def hello() -> str:
    return "hello"


def sentinel(text: str | bytes) -> str:
    raw = text if isinstance(text, bytes) else text.encode()
    return f"=?base64?{b64encode(raw).decode()}?="


async def ask(app: Any, method: str, params: dict[str, Any], **headers: str | None) -> Any:
    """A request whose headers are all right but for those that are given."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await post(HttpWire(app), modern(method, params), {**mirrored(method), **named})


# ── Mcp-Method and Mcp-Name; what exactly agrees is the table of tests/protocol/test_headers.py ──


@pytest.mark.rule("MH-14", "MH-18", "MH-20", "MH-21", "MH-23")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("mcp_method", value) for value in (None, "", "Tools/list", "tools%2Flist", sentinel("tools/list"))),
        *(
            ("mcp_protocol_version", value)
            for value in (None, "", "2026-07-29", sentinel(MODERN), f"{MODERN}, {MODERN}")
        ),
    ],
)
async def test_a_method_or_version_that_differs(app: Any, name: str, value: str | None) -> None:
    check_refusal(await ask(app, "tools/list", {}, **{name: value}), 400, MISMATCH, "q")


@pytest.mark.rule("MH-23")
async def test_whitespace_around_a_value_is_no_part_of_it(app: Any) -> None:
    answer = await ask(app, "tools/list", {}, mcp_method=" \t tools/list  ", mcp_protocol_version=f" {MODERN} ")
    assert answer.status == 200


NAMED = [
    ("tools/call", {"name": "add", "arguments": {"a": 1}}, "add"),
    ("prompts/get", {"name": "two  words"}, "two  words"),
    ("resources/read", {"uri": "notes://with%20blank"}, "notes://with%20blank"),
]


@pytest.mark.rule("MH-18", "MH-20", "MH-21", "MH-22", "MH-23")
@pytest.mark.parametrize(("method", "params", "name"), NAMED)
async def test_names(app: Any, method: str, params: dict[str, Any], name: str) -> None:
    for value in (name, f" {name}\t", sentinel(name)):
        assert "result" in (await ask(app, method, params, mcp_name=value)).json
    for value in (None, "", name.upper(), f"{name},{name}", sentinel(f"{name} "), sentinel(name)[:-1]):
        text = check_refusal(await ask(app, method, params, mcp_name=value), 400, MISMATCH, "q")
        assert "Mcp-Name" in text


@pytest.mark.rule("MH-16", "MH-22")
async def test_names_that_no_header_can_hold_come_as_base64(app: Any) -> None:
    for name in ("café", " padded ", "=?base64?eA==?="):
        assert (await ask(app, "prompts/get", {"name": name}, mcp_name=sentinel(name))).status == 200
        plain = name.encode().decode("latin-1")
        check_refusal(await ask(app, "prompts/get", {"name": name}, mcp_name=plain), 400, MISMATCH, "q")
    assert (await ask(app, "tools/list", {}, mcp_name="where none is asked for")).status == 200


# ── Mcp-Param-* ──


async def weather(app: Any, arguments: dict[str, Any], headers: dict[str, str | None] | None = None) -> Any:
    body = modern("tools/call", {"name": "weather", "arguments": arguments})
    return await post(HttpWire(app), body, {**mirrored("tools/call", "weather"), **(headers or {})})


@pytest.mark.rule("MH-20", "MH-22", "MH-25", "MH-26", "MH-27")
@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({}, {}),
        ({"region": "eu"}, {"MCP-PARAM-REGION": " eu "}),
        ({"region": "Zürich\n"}, {"Mcp-Param-Region": sentinel("Zürich\n")}),
        ({"days": 42}, {"Mcp-Param-Days": "42.0"}),
        ({"brief": False}, {"Mcp-Param-Brief": "false"}),
        ({"place": {"zone": "UTC"}}, {"Mcp-Param-Time-Zone": "UTC"}),
        ({}, {"Mcp-Param-Unknown": "ignored", "Mcp-Param-": "x", "Mcp-Param-Unmarked": "y"}),
    ],
)
async def test_parameters_that_agree(app: Any, arguments: dict[str, Any], headers: dict[str, str | None]) -> None:
    answer = await weather(app, arguments, headers)
    assert answer.status == 200
    given = {"region": "here", "days": 1, "brief": False, "place": {"zone": "nowhere"}, "unmarked": None, **arguments}
    expected = [given["region"], given["days"], given["brief"], given["place"]["zone"], given["unmarked"]]
    assert json.loads(answer.json["result"]["content"][0]["text"]) == expected


@pytest.mark.rule("MH-20", "MH-21", "MH-22", "MH-23", "MH-24", "MH-25", "MH-26")
@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"region": "eu"}, {}),
        ({"region": "eu"}, {"Mcp-Param-Region": "EU"}),
        ({"region": "a\0b"}, {"Mcp-Param-Region": "a\0b"}),
        ({}, {"Mcp-Param-Region": "here"}),
        ({"region": None}, {"Mcp-Param-Region": "null"}),
        ({"days": 1}, {"Mcp-Param-Days": "9" * 5000}),
        ({"brief": True}, {"Mcp-Param-Brief": "1"}),
        ({"place": {}}, {"Mcp-Param-Time-Zone": "UTC"}),
        ({"region": 42}, {"Mcp-Param-Region": "forty-two"}),
    ],
)
async def test_parameters_that_differ(app: Any, arguments: dict[str, Any], headers: dict[str, str | None]) -> None:
    for accept in ("application/json, text/event-stream", "text/event-stream"):
        body = modern("tools/call", {"name": "weather", "arguments": arguments})
        wire = HttpWire(app, accept=accept)
        answer = await post(wire, body, {**mirrored("tools/call", "weather"), **headers})
        assert "Mcp-Param-" in check_refusal(answer, 400, MISMATCH, "q")


@pytest.mark.rule("MH-25")
@pytest.mark.parametrize("arguments", [{"region": None}, {"place": {"zone": None}}, {"days": 1.5}, {"place": []}])
async def test_what_has_no_place_in_a_header_is_told_as_an_argument(app: Any, arguments: dict[str, Any]) -> None:
    answer = await weather(app, arguments)
    assert answer.status == 200
    assert "isError" in answer.json["result"]


@pytest.mark.rule("MH-21")
async def test_the_headers_of_a_changed_tool_count_at_once(app: Any) -> None:
    server = new_server()
    app = server.asgi()
    assert (await weather(app, {"region": "eu"}, {"Mcp-Param-Region": "eu"})).status == 200
    server.remove_tool("weather")

    @server.tool(name="weather")
    async def other(region: str) -> str:
        return region

    assert (await weather(app, {"region": "eu"}, {})).status == 200


@pytest.mark.parametrize("version", LEGACY)
async def test_older_revisions_have_no_such_headers(app: Any, version: str) -> None:
    wire = await HttpWire.session(app, version)
    headers = {"mcp-method": "x", "mcp-name": "y", "mcp-param-region": "z"}
    answer = await wire.call("weather", {"region": "eu"}, headers=headers)
    assert answer.json["result"]["content"][0]["text"].startswith('["eu"')


# ── more than once ──


@pytest.mark.rule("MH-20", "MH-21")
@pytest.mark.parametrize("name", ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-region"])
async def test_a_header_that_comes_twice_is_refused(app: Any, name: str) -> None:
    """A proxy might have read the one, and we the other."""
    good = {**mirrored("tools/call", "weather"), "mcp-param-region": "eu"}
    body = json.dumps(modern("tools/call", {"name": "weather", "arguments": {"region": "eu"}})).encode()
    for other in (good[name], "other"):
        answer = await HttpWire(app).raw("POST", body, good, more=[(name.encode(), other.encode())]).done()
        assert check_refusal(answer, 400, MISMATCH)


@pytest.mark.parametrize("name", ["host", "origin", "content-type", "content-length", "mcp-session-id"])
async def test_other_headers_that_decide_something_come_once(app: Any, name: str) -> None:
    values = {"host": "localhost", "origin": "http://localhost", "content-type": "application/json"}
    value = values.get(name, "10")
    more = [(name.encode(), value.encode())] * 2
    answer = await HttpWire(app).raw("POST", b"{}", {name: None}, more=more).done()
    assert answer.status == 400
    assert answer.json["error"]["code"] in (INVALID_REQUEST, MISMATCH)
