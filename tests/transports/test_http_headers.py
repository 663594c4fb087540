"""The headers of 2026-07-28 that mirror the body, as they meet the server: `Mcp-Method`, `Mcp-Name`, `Mcp-Param-*`."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asked_server import INVALID_REQUEST, LEGACY, MISMATCH, check_refusal, mirrored, modern, new_server, post
from hypothesis import given, settings
from hypothesis import strategies as st

from http_wire import MODERN, HttpWire


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    server = new_server()
    for name in ("café", " padded ", "=?base64?eA==?=", "two  words", "UPPER"):
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


# ── Mcp-Method ──


@pytest.mark.rule("MH-18", "MH-20", "MH-21", "MH-23")
@pytest.mark.parametrize(
    "value",
    [None, "", "tools/list2", "Tools/list", '"tools/list"', "tools%2Flist", sentinel("tools/list")],
)
async def test_a_method_that_differs(app: Any, value: str) -> None:
    text = check_refusal(await ask(app, "tools/list", {}, mcp_method=value), 400, MISMATCH, "q")
    assert "Mcp-Method" in text


@pytest.mark.rule("MH-23")
@pytest.mark.parametrize("value", [" tools/list", "tools/list\t", " \t tools/list  "])
async def test_whitespace_around_a_value_is_no_part_of_it(app: Any, value: str) -> None:
    version = {"mcp_protocol_version": f" {MODERN} "}
    assert (await ask(app, "tools/list", {}, mcp_method=value, **version)).status == 200


@pytest.mark.rule("MH-14", "MH-23")
@pytest.mark.parametrize("value", [None, "", "2026-07-29", "2026-7-28", sentinel(MODERN), f"{MODERN}, {MODERN}"])
async def test_a_version_that_differs(app: Any, value: str) -> None:
    check_refusal(await ask(app, "tools/list", {}, mcp_protocol_version=value), 400, MISMATCH, "q")


# ── Mcp-Name ──

NAMED = [
    ("tools/call", {"name": "add", "arguments": {"a": 1}}, "add"),
    ("prompts/get", {"name": "review"}, "review"),
    ("resources/read", {"uri": "notes://all"}, "notes://all"),
    ("resources/read", {"uri": "notes://with%20blank"}, "notes://with%20blank"),
    ("prompts/get", {"name": "two  words"}, "two  words"),
]


@pytest.mark.rule("MH-18", "MH-22")
@pytest.mark.parametrize(("method", "params", "name"), NAMED)
async def test_a_name_that_agrees(app: Any, method: str, params: dict[str, Any], name: str) -> None:
    for value in (name, f" {name}\t", sentinel(name)):
        answer = await ask(app, method, params, mcp_name=value)
        assert answer.status == 200
        assert "result" in answer.json


@pytest.mark.rule("MH-18", "MH-20", "MH-21", "MH-22", "MH-23")
@pytest.mark.parametrize(("method", "params", "name"), NAMED)
async def test_a_name_that_differs(app: Any, method: str, params: dict[str, Any], name: str) -> None:
    others = (None, "", name.upper(), f"{name}/", f"{name},{name}", sentinel(f"{name} "), sentinel(""), name[:-1])
    for value in (*others, sentinel(name).replace("base64", "BASE64"), sentinel(name)[:-1]):
        text = check_refusal(await ask(app, method, params, mcp_name=value), 400, MISMATCH, "q")
        assert "Mcp-Name" in text


@pytest.mark.rule("MH-22")
@pytest.mark.parametrize("name", ["café", " padded ", "=?base64?eA==?="])
async def test_names_that_no_header_can_hold_come_as_base64(app: Any, name: str) -> None:
    params = {"name": name}
    assert (await ask(app, "prompts/get", params, mcp_name=sentinel(name))).status == 200
    plain = name.encode().decode("latin-1")
    check_refusal(await ask(app, "prompts/get", params, mcp_name=plain), 400, MISMATCH, "q")


@pytest.mark.rule("MH-21", "MH-22")
@pytest.mark.parametrize(
    "payload", ["YWR", "YWRk=", "YW Rk", "YWRk\n", "Y-_k", "YWR$", "====", "/////w==", "7aCA", "YWRkZ"]
)
async def test_base64_that_is_none(app: Any, payload: str) -> None:
    """The last two that look right are no UTF-8."""
    answer = await ask(app, "tools/call", {"name": "add"}, mcp_name=f"=?base64?{payload}?=")
    check_refusal(answer, 400, MISMATCH, "q")


@pytest.mark.rule("MH-16")
async def test_a_name_where_none_is_asked_for_means_nothing(app: Any) -> None:
    assert (await ask(app, "tools/list", {}, mcp_name="whatever")).status == 200


# ── Mcp-Param-* ──


async def weather(app: Any, arguments: dict[str, Any], headers: dict[str, str | None] | None = None) -> Any:
    body = modern("tools/call", {"name": "weather", "arguments": arguments})
    return await post(HttpWire(app), body, {**mirrored("tools/call", "weather"), **(headers or {})})


@pytest.mark.rule("MH-20", "MH-22", "MH-25", "MH-26", "MH-27")
@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({}, {}),
        ({"unmarked": "x"}, {}),
        ({"region": "eu"}, {"Mcp-Param-Region": "eu"}),
        ({"region": "eu"}, {"MCP-PARAM-REGION": " eu "}),
        ({"region": "eu"}, {"Mcp-Param-Region": sentinel("eu")}),
        ({"region": ""}, {"Mcp-Param-Region": ""}),
        ({"region": ""}, {"Mcp-Param-Region": sentinel("")}),
        ({"region": "Zürich\n"}, {"Mcp-Param-Region": sentinel("Zürich\n")}),
        ({"region": " padded "}, {"Mcp-Param-Region": sentinel(" padded ")}),
        ({"region": "=?base64?eA==?="}, {"Mcp-Param-Region": sentinel("=?base64?eA==?=")}),
        ({"region": "=?base64?half"}, {"Mcp-Param-Region": "=?base64?half"}),
        ({"region": "=?BASE64?eA==?="}, {"Mcp-Param-Region": "=?BASE64?eA==?="}),
        ({"days": 42}, {"Mcp-Param-Days": "42"}),
        ({"days": 42}, {"Mcp-Param-Days": "42.0"}),
        ({"days": 0}, {"Mcp-Param-Days": "0"}),
        ({"days": -7}, {"Mcp-Param-Days": "-7"}),
        ({"days": 2**53 - 1}, {"Mcp-Param-Days": str(2**53 - 1)}),
        ({"brief": True}, {"Mcp-Param-Brief": "true"}),
        ({"brief": False}, {"Mcp-Param-Brief": "false"}),
        ({"place": {"zone": "UTC"}}, {"Mcp-Param-Time-Zone": "UTC"}),
        ({"region": "eu", "days": 3, "brief": True, "place": {"zone": "UTC"}},
         {"Mcp-Param-Region": "eu", "Mcp-Param-Days": "3", "Mcp-Param-Brief": "true", "Mcp-Param-Time-Zone": "UTC"}),
        ({}, {"Mcp-Param-Unknown": "ignored", "Mcp-Param-": "x", "Mcp-Param-Unmarked": "y"}),
    ],
)  # fmt: skip
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
        ({"region": ""}, {}),
        ({"region": "eu"}, {"Mcp-Param-Region": "us"}),
        ({"region": "eu"}, {"Mcp-Param-Region": "EU"}),
        ({"region": "eu"}, {"Mcp-Param-Region": ""}),
        ({"region": "eu"}, {"Mcp-Param-Region": "eu, eu"}),
        ({"region": "eu"}, {"Mcp-Param-Region": sentinel("us")}),
        ({"region": "eu"}, {"Mcp-Param-Region": "=?base64?ZXU?="}),
        ({"region": "Zürich"}, {"Mcp-Param-Region": "Zürich"}),
        ({"region": "a\0b"}, {"Mcp-Param-Region": "a\0b"}),
        ({"region": "a\x7f"}, {"Mcp-Param-Region": "a\x7f"}),
        ({}, {"Mcp-Param-Region": "here"}),
        ({"region": None}, {"Mcp-Param-Region": ""}),
        ({"region": None}, {"Mcp-Param-Region": "null"}),
        ({"days": 42}, {}),
        ({"days": 0}, {}),
        ({"days": 42}, {"Mcp-Param-Days": "43"}),
        ({"days": 42}, {"Mcp-Param-Days": "42.5"}),
        ({"days": 42}, {"Mcp-Param-Days": "4.2e1"}),
        ({"days": 42}, {"Mcp-Param-Days": "0x2a"}),
        ({"days": 42}, {"Mcp-Param-Days": "forty-two"}),
        ({"days": 2**53}, {"Mcp-Param-Days": str(2**53)}),
        ({"days": 10**30}, {"Mcp-Param-Days": str(10**30)}),
        ({"days": 1}, {"Mcp-Param-Days": "9" * 5000}),
        ({"brief": True}, {}),
        ({"brief": False}, {}),
        ({"brief": True}, {"Mcp-Param-Brief": "True"}),
        ({"brief": True}, {"Mcp-Param-Brief": "1"}),
        ({"brief": True}, {"Mcp-Param-Brief": "false"}),
        ({"place": {"zone": "UTC"}}, {}),
        ({"place": {"zone": "UTC"}}, {"Mcp-Param-Time-Zone": "CET"}),
        ({"place": {}}, {"Mcp-Param-Time-Zone": "UTC"}),
        ({"place": "UTC"}, {"Mcp-Param-Time-Zone": "UTC"}),
        ({"region": ["eu"]}, {"Mcp-Param-Region": "eu"}),
        ({"region": 42}, {"Mcp-Param-Region": "forty-two"}),
    ],
)
async def test_parameters_that_differ(app: Any, arguments: dict[str, Any], headers: dict[str, str | None]) -> None:
    text = check_refusal(await weather(app, arguments, headers), 400, MISMATCH, "q")
    assert "Mcp-Param-" in text


@pytest.mark.rule("MH-25")
@pytest.mark.parametrize("arguments", [{"region": None}, {"days": None}, {"place": None}, {"place": {"zone": None}}])
async def test_null_needs_no_header(app: Any, arguments: dict[str, Any]) -> None:
    """Whether the tool takes it is another question."""
    answer = await weather(app, arguments)
    assert answer.status == 200
    assert answer.json["result"]["isError"] in (True, False)


@pytest.mark.rule("MH-25")
@pytest.mark.parametrize("arguments", [{"region": ["eu"]}, {"days": 1.5}, {"brief": {}}, {"place": []}])
async def test_what_has_no_place_in_a_header_is_told_as_an_argument(app: Any, arguments: dict[str, Any]) -> None:
    answer = await weather(app, arguments)
    assert answer.status == 200
    assert answer.json["result"]["isError"] is True


@pytest.mark.rule("MH-25")
@pytest.mark.parametrize("arguments", [None, ...])
async def test_no_arguments_need_no_headers(app: Any, arguments: Any) -> None:
    params = {"name": "weather"} if arguments is ... else {"name": "weather", "arguments": arguments}
    assert (await ask(app, "tools/call", params, mcp_name="weather")).status == 200


@pytest.mark.rule("MH-24")
async def test_a_mismatch_is_400_for_who_reads_streams_only(app: Any) -> None:
    wire = HttpWire(app, accept="text/event-stream")
    body = modern("tools/call", {"name": "weather", "arguments": {"region": "eu"}})
    check_refusal(await post(wire, body, mirrored("tools/call", "weather")), 400, MISMATCH, "q")


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


# ── whatever they hold ──

header_values = st.text(st.characters(codec="latin-1"), max_size=30)


@given(
    values=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-region", "mcp-param-days"),
            header_values | st.sampled_from(["weather", "tools/call", MODERN, "=?base64?ZXU=?=", "=?base64??="]),
        ),
    ),
    region=st.none() | st.text(max_size=5) | st.integers(),
)
@settings(max_examples=60)
async def test_any_headers_are_accepted_or_refused(values: dict[str, str | None], region: Any) -> None:
    app = new_server().asgi()
    body = modern("tools/call", {"name": "weather", "arguments": {"region": region}})
    answer = await post(HttpWire(app), body, {**mirrored("tools/call", "weather"), **values})
    assert answer.status in (200, 400)
    if answer.status == 400:
        assert answer.json["error"]["code"] == MISMATCH
    await app.drain(0)
