"""One POST for every message: what goes into its headers, and how much may come back."""

from typing import Any

import pytest
from modern_script import MODERN, modern, text
from served_http import Scripted, Visit, handshake

from dovetail import Client
from dovetail.client import requests
from dovetail.errors import BadAnswer, ServerError

pytestmark = pytest.mark.usefixtures("brisk", "tidy")


# ── headers ──


async def test_modern_headers() -> None:
    async with Scripted(modern()) as server, Client(server.url, headers={"Authorization": "Bearer x"}) as client:
        await client.call_tool("grüße")
        for uri in ("notes://1", " padded ", "=?base64?eA==?="):
            with pytest.raises(ServerError):
                await client.read_resource(uri)
        with pytest.raises(ServerError):
            await client.request("odd/method\u00e9")
    for visit in server.visits:
        assert visit.headers["mcp-protocol-version"] == MODERN
        assert visit.headers["authorization"] == "Bearer x"
        assert visit.headers["accept"] == "application/json, text/event-stream"
        assert visit.headers["content-type"] == "application/json"
        assert visit.headers["user-agent"].startswith("dovetail/")
        assert "mcp-session-id" not in visit.headers
    assert [visit.headers["mcp-method"] for visit in server.visits[:3]] == [
        "server/discover", "tools/list", "tools/call",
    ]  # fmt: skip
    assert [visit.headers.get("mcp-name") for visit in server.visits] == [
        None, None, "=?base64?Z3LDvMOfZQ==?=", "notes://1", "=?base64?IHBhZGRlZCA=?=",
        "=?base64?PT9iYXNlNjQ/ZUE9PT89?=", None,
    ]  # fmt: skip


REGION = {"type": "string", "x-mcp-header": "Region"}
NESTED = {"type": "object", "properties": {"retries": {"type": "integer", "x-mcp-header": "Retries"}}}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def params_of(visit: Visit) -> dict[str, str]:
    return {name: value for name, value in visit.headers.items() if name.startswith("mcp-param-")}


async def test_arguments_travel_as_headers_where_the_schema_says_so() -> None:
    flag = {"type": "boolean", "x-mcp-header": "Dry-Run"}
    offered = [tool("deploy", region=REGION, options=NESTED, dry=flag), tool("plain", region={"type": "string"})]
    async with Scripted(modern(offered)) as server, Client(server.url) as client:
        await client.call_tool("deploy", {"region": "Köln", "options": {"retries": 3}, "dry": True})
        assert params_of(server.visits[-1]) == {
            "mcp-param-region": "=?base64?S8O2bG4=?=", "mcp-param-retries": "3", "mcp-param-dry-run": "true",
        }  # fmt: skip
        await client.call_tool("deploy", {"region": None, "options": {"retries": 2.0}})
        assert params_of(server.visits[-1]) == {"mcp-param-retries": "2"}
        await client.call_tool("deploy", {"region": ["a", "list"], "options": 7})
        assert params_of(server.visits[-1]) == {}
        await client.call_tool("plain", {"region": "x"})
        assert params_of(server.visits[-1]) == {}
        assert server.said().count("POST tools/list") == 1


async def test_a_schema_that_changed_is_read_again() -> None:
    schemas = [tool("deploy", region=REGION), tool("deploy", zone={"type": "string", "x-mcp-header": "Zone"})]

    def behave(visit: Visit) -> None:
        if visit.method == "tools/list":
            modern([schemas[0] if server.said().count("POST tools/list") == 1 else schemas[1]])(visit)
        elif visit.method == "tools/call" and "mcp-param-zone" not in visit.headers:
            visit.error(-32020, 400, "Header mismatch: Mcp-Param-Zone is missing")
        else:
            modern()(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        assert (await client.call_tool("deploy", {"zone": "b"})).text == "called"
        assert server.said()[1:] == ["POST tools/list", "POST tools/call"] * 2
        with pytest.raises(ServerError, match="Mcp-Param-Zone is missing"):  # once, not for ever
            await client.call_tool("deploy", {})
        assert server.said()[5:] == ["POST tools/call", "POST tools/list", "POST tools/call"]


async def test_tools_with_wrong_marks_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {
        "empty": {"type": "string", "x-mcp-header": ""},
        "spaced": {"type": "string", "x-mcp-header": "a b"},
        "number": {"type": "number", "x-mcp-header": "N"},
        "hidden": {"type": "array", "items": REGION},
        "no text": {"type": "string", "x-mcp-header": 7},
    }
    secret = {"type": "string", "format": "password", "x-mcp-header": "Key"}  # unwise, but not wrong
    offered = [tool(name, x=schema) for name, schema in wrong.items()] + [tool("twice", a=REGION, b=REGION)]
    offered += [tool("fine", a=REGION), tool("secret", key=secret)]
    async with Scripted(modern(offered)) as server, Client(server.url) as client:
        assert [each.name for each in await client.list_tools()] == ["fine", "secret"]
        assert [each.name for each in (await client.list_tools_page()).items] == ["fine", "secret"]
        assert "the tool spaced is left out: x-mcp-header on 'x' can't work" in caplog.text
        await client.call_tool("secret", {"key": "s3"})
        assert params_of(server.visits[-1]) == {"mcp-param-key": "s3"}
        await client.call_tool("empty", {"x": "y"})  # the server may know better
        assert params_of(server.visits[-1]) == {}


async def test_the_handshake_era_has_no_such_headers() -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/list":
            visit.result({"tools": [tool("wrong", x={"type": "number", "x-mcp-header": "N"}), tool("ok", r=REGION)]})
        elif not handshake(visit):
            visit.result(text("called"))

    async with Scripted(behave) as server, Client(server.url) as client:
        assert [each.name for each in await client.list_tools()] == ["wrong", "ok"]
        await client.call_tool("ok", {"r": "x"})
        assert not any(name.startswith(("mcp-param", "mcp-name", "mcp-method")) for name in server.visits[-1].headers)


# ── limits ──


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_message_that_is_too_long(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    monkeypatch.setattr(requests, "MAX_MESSAGE_BYTES", 100_000)

    async def behave(visit: Visit) -> None:
        if visit.method != "tools/call" or visit.message["params"]["name"] == "plain":
            return modern()(visit)
        visit.stream() if streamed else visit.head(
            200, {"Content-Type": "application/json", "Content-Length": "90000000"}
        )
        while not visit._writer.transport.is_closing():
            visit.chunk(b"data: " + b"x" * 30_000) if streamed else visit._writer.write(b"x" * 30_000)
            await visit._writer.drain()
        return None

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(BadAnswer, match="100000 bytes"):
            await client.call_tool("big")
        assert (await client.call_tool("plain")).text == "called"
