"""Every JSON message of seed 000, on its server."""

import asyncio
import json
from pathlib import Path

import pytest
from servers.seeds.seed_000 import server

from dovetail import Client, Server
from seeds.golden import call_of, request, same, shows
from wire import Wire

REVISION = "2025-03-26"


@pytest.mark.seed("S0-07", "S0-08", "S0-10", "S0-11", "S0-12", "S0-28")
async def test_tools_list() -> None:
    tool = {
        "name": "get_weather",
        "description": "Get current weather information by city or zip code",
        "inputSchema": {
            "type": "object",
            "properties": {"location": {"type": "string", "description": "City name or zip code"}},
            "required": ["location"],
        },
    }
    await shows(server, REVISION, request(1, "tools/list"), {"tools": [tool]})


@pytest.mark.seed("S0-14", "S0-17", "S0-18", "S0-19", "S0-21", "S0-22", "S0-30")
@pytest.mark.parametrize(
    ("location", "text", "failed"),
    [
        ("New York", "Weather in New York: 72°F, partly cloudy", False),
        ("everywhere", "API request failed: rate limit exceeded", True),
    ],
)
async def test_tools_call(location: str, text: str, failed: bool) -> None:
    result = {"content": [{"type": "text", "text": text}], "isError": failed}
    await shows(server, REVISION, call_of("get_weather", location=location), result)


@pytest.mark.seed("S0-15", "S0-23")
async def test_an_unknown_tool_is_a_protocol_error() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(call_of("get_weather2", location="New York"))
    same(answer, {"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": "Unknown tool: get_weather2"}})


@pytest.mark.seed("S0-05", "S0-24", "S0-25")
async def test_a_changed_list_is_announced() -> None:
    announcement = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    async with Wire(server, REVISION) as wire:
        same(wire.welcome["capabilities"], {"tools": {"listChanged": True}})
        server.add_tool(lambda: "loaded", name="another")
        same(await wire.receive(), announcement)
        assert [tool["name"] for tool in (await wire.ask("tools/list"))["tools"]] == ["get_weather", "another"]
        assert (await wire.ask("tools/call", {"name": "another"}))["content"][0]["text"] == "loaded"
        server.remove_tool("another")
        same(await wire.receive(), announcement)
        assert [tool["name"] for tool in (await wire.ask("tools/list"))["tools"]] == ["get_weather"]
        assert (await wire.refusal("tools/call", {"name": "another"}))["message"] == "Unknown tool: another"


@pytest.mark.seed("S0-06", "S0-25")
async def test_a_server_that_announces_nothing_does_not_say_that_it_would() -> None:
    quiet = Server("quiet", logging=False, list_changed=False)
    quiet.add_tool(lambda: "", name="one")
    async with Wire(quiet, REVISION) as wire:
        same(wire.welcome["capabilities"], {"tools": {}})
        quiet.add_tool(lambda: "", name="two")
        await wire.quiet()
        assert len((await wire.ask("tools/list"))["tools"]) == 2
    sent: list[str] = []

    def note(_: str, message: bytes) -> None:
        sent.append(json.loads(message).get("method"))

    async with Client(quiet, protocol_version=REVISION, approve=lambda *_: True, transcript=note) as client:
        for _ in range(2):
            await client.call_tool("one")
    asked = [method for method in sent if method in ("tools/list", "tools/call")]
    assert asked[-2:] == ["tools/list", "tools/call"]  # a list without a subscription is read before each call


@pytest.mark.seed("S0-26")
async def test_a_client_that_is_notified_of_a_change_lists_again() -> None:
    seen: list[str] = []

    def note(direction: str, message: bytes) -> None:
        seen.append(f"{direction} {json.loads(message).get('method')}")
        if seen[-1] == "received notifications/tools/list_changed":
            received.set()

    received = asyncio.Event()
    changing = Server("changing", logging=False)
    changing.add_tool(lambda: "", name="one")
    options = {"approve": lambda tool, arguments: True, "transcript": note}
    async with Client(changing, protocol_version=REVISION, **options) as client:
        for _ in range(2):
            await client.call_tool("one")
        assert seen.count("sent tools/list") == 1
        changing.add_tool(lambda: "", name="two")
        async with asyncio.timeout(10):
            await received.wait()
        await client.call_tool("two")
    assert seen.count("sent tools/list") == 2


# ── what the document says in words ──


@pytest.mark.seed("S0-02")
async def test_a_tool_acts_or_fetches_data_or_calls_an_api(tmp_path: Path) -> None:
    plugin = Server("plugin", logging=False)

    @plugin.tool
    def act(text: str) -> str:
        (tmp_path / "data.txt").write_text(text)
        return "done"

    @plugin.tool
    def fetch() -> str:
        return (tmp_path / "data.txt").read_text()

    @plugin.tool
    async def call_api(location: str) -> str:
        async with Client(server) as elsewhere:
            return (await elsewhere.call_tool("get_weather", {"location": location})).text

    async with Client(plugin, protocol_version=REVISION) as client:
        assert (await client.call_tool("act", {"text": "42"})).text == "done"
        assert (await client.call_tool("fetch")).text == "42"
        assert "Rome" in (await client.call_tool("call_api", {"location": "Rome"})).text


@pytest.mark.seed("S0-03")
async def test_a_client_discovers_the_tools_and_calls_them() -> None:
    async with Client(server, protocol_version=REVISION) as client:
        (tool,) = await client.list_tools()
        arguments = dict.fromkeys(tool.input_schema["required"], "New York")
        result = await client.call_tool(tool.name, arguments)
    assert result.text == "Weather in New York: 72°F, partly cloudy"


@pytest.mark.seed("S0-01", "S0-04", "S0-05", "S0-31")
async def test_the_minimal_flow_needs_nothing_but_tools() -> None:
    minimal = Server("minimal", logging=False)
    minimal.add_tool(lambda city: f"Sun in {city}", name="get_weather")
    hello = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "client", "version": "1"}}
    async with Wire(minimal) as wire:
        welcome = await wire.ask("initialize", hello)
        same(welcome["capabilities"], {"tools": {"listChanged": True}})
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert [tool["name"] for tool in (await wire.ask("tools/list"))["tools"]] == ["get_weather"]
        result = await wire.ask("tools/call", {"name": "get_weather", "arguments": {"city": "Rome"}})
        same(result, {"content": [{"type": "text", "text": "Sun in Rome"}], "isError": False})
        for method in ("prompts/list", "resources/list", "resources/templates/list"):
            assert (await wire.refusal(method))["code"] == -32601
        assert (await wire.refusal("logging/setLevel", {"level": "info"}))["code"] == -32601
        minimal.remove_tool("get_weather")
        same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
