"""Every JSON message of seed 000, on its server."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.seeds.seed_000 import server

from dovetail import Audio, Client, EmbeddedResource, Image, ResourceContents, Server, SetupError, Text, ToolRegistry
from seeds.golden import Opaque, same
from wire import Wire

REVISION = "2025-03-26"
CALL = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "get_weather", "arguments": {"location": "New York"}},
}


@pytest.mark.seed("S0-01", "S0-04", "S0-05")
async def test_the_capabilities_are_tools_and_nothing_else() -> None:
    async with Wire(server, REVISION) as wire:
        same(wire.welcome["capabilities"], {"tools": {"listChanged": True}})


@pytest.mark.seed("S0-07", "S0-08", "S0-10", "S0-11", "S0-12", "S0-28")
async def test_tools_list() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    same(
        answer,
        {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {
                "tools": [
                    {
                        "name": "get_weather",
                        "description": "Get current weather information by city or zip code",
                        "inputSchema": {
                            "type": "object",
                            "properties": {"location": {"type": "string", "description": "City name or zip code"}},
                            "required": ["location"],
                        },
                    }
                ]
            },
        },
    )


@pytest.mark.seed("S0-14", "S0-17", "S0-18", "S0-19", "S0-21")
async def test_tools_call() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(CALL)
    same(
        answer,
        {
            "jsonrpc": "2.0",
            "id": 2,
            "result": {
                "content": [{"type": "text", "text": "Weather in New York: 72°F, partly cloudy"}],
                "isError": False,
            },
        },
    )


@pytest.mark.seed("S0-18", "S0-21", "S0-22", "S0-30")
async def test_a_failure_of_the_tool_is_a_result() -> None:
    request = {**CALL, "params": {"name": "get_weather", "arguments": {"location": "everywhere"}}}
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request)
    same(
        answer,
        {
            "jsonrpc": "2.0",
            "id": 2,
            "result": {
                "content": [{"type": "text", "text": "API request failed: rate limit exceeded"}],
                "isError": True,
            },
        },
    )


@pytest.mark.seed("S0-15", "S0-23")
async def test_an_unknown_tool_is_a_protocol_error() -> None:
    request = {**CALL, "params": {"name": "get_weather2", "arguments": {"location": "New York"}}}
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request)
    same(answer, {"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": "Unknown tool: get_weather2"}})


@pytest.mark.seed("S0-05", "S0-24", "S0-25")
async def test_a_changed_list_is_announced() -> None:
    announcement = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    async with Wire(server, REVISION) as wire:
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


STRANGER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    info = {"name": "stranger", "version": "1"}
    results = {
        "initialize": {"protocolVersion": "2025-03-26", "capabilities": {"tools": TOOLS}, "serverInfo": info},
        "tools/list": {"tools": [{"name": "one", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": []},
    }
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}), flush=True)
"""


@pytest.mark.seed("S0-06")
@pytest.mark.parametrize("tools", [{}, {"listChanged": False}], ids=["omitted", "false"])
async def test_both_spellings_of_no_announcements_are_understood(tools: dict[str, bool]) -> None:
    sent: list[str] = []

    def note(direction: str, message: bytes) -> None:
        if direction == "sent":
            sent.append(json.loads(message)["method"])

    command = [sys.executable, "-c", STRANGER.replace("TOOLS", repr(tools))]
    async with Client(command, protocol_version=REVISION, approve=lambda tool, arguments: True, transcript=note) as it:
        for _ in range(2):
            await it.call_tool("one")
    assert sent.index("tools/list") < sent.index("tools/call")
    rest = sent[sent.index("tools/call") + 1 :]
    assert rest.index("tools/list") < rest.index("tools/call")  # a list that nobody watches is read before each call


@pytest.mark.seed("S0-26")
async def test_a_client_that_hears_of_a_change_lists_again() -> None:
    seen: list[str] = []

    def note(direction: str, message: bytes) -> None:
        seen.append(f"{direction} {json.loads(message).get('method')}")
        if seen[-1] == "received notifications/tools/list_changed":
            heard.set()

    heard = asyncio.Event()
    changing = Server("changing", logging=False)
    changing.add_tool(lambda: "", name="one")
    options = {"approve": lambda tool, arguments: True, "transcript": note}
    async with Client(changing, protocol_version=REVISION, **options) as client:
        for _ in range(2):
            await client.call_tool("one")
        assert seen.count("sent tools/list") == 1
        changing.add_tool(lambda: "", name="two")
        async with asyncio.timeout(10):
            await heard.wait()
        await client.call_tool("two")
    assert seen.count("sent tools/list") == 2


# ── what the document says in words ──


@pytest.mark.seed("S0-02")
async def test_a_tool_acts_or_fetches_data_or_calls_an_api(tmp_path: Path) -> None:
    plugin = Server("plugin", logging=False)
    (tmp_path / "data.txt").write_text("42")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello " + await reader.readline())
        writer.close()

    api = await asyncio.start_server(answer, "127.0.0.1", 0)

    @plugin.tool
    def act(name: str) -> str:
        (tmp_path / name).touch()
        return "done"

    @plugin.tool
    def fetch() -> str:
        return (tmp_path / "data.txt").read_text()

    @plugin.tool
    async def call_api(name: str) -> str:
        reader, writer = await asyncio.open_connection(*api.sockets[0].getsockname())
        writer.write(f"{name}\n".encode())
        said = (await reader.read()).decode()
        writer.close()
        return said.strip()

    async with api, Wire(plugin, REVISION) as wire:

        async def text_of(name: str, /, **arguments: str) -> str:
            return (await wire.ask("tools/call", {"name": name, "arguments": arguments}))["content"][0]["text"]

        assert await text_of("act", name="made") == "done"
        assert (tmp_path / "made").exists()
        assert await text_of("fetch") == "42"
        assert await text_of("call_api", name="Ada") == "hello Ada"


@pytest.mark.seed("S0-03")
async def test_a_client_discovers_the_tools_and_calls_them() -> None:
    async with Client(server, protocol_version=REVISION) as client:
        (tool,) = await client.list_tools()
        arguments = dict.fromkeys(tool.input_schema["required"], "New York")
        result = await client.call_tool(tool.name, arguments)
    assert result.text == "Weather in New York: 72°F, partly cloudy"


@pytest.mark.seed("S0-09")
def test_a_name_is_given_once() -> None:
    with pytest.raises(SetupError, match="already a tool 'get_weather'"):
        server.add_tool(lambda: "", name="get_weather")


@pytest.mark.seed("S0-11", "S0-28")
async def test_a_signature_becomes_the_conventional_schema() -> None:
    signed = Server("signed", logging=False)

    @signed.tool
    def book(city: str, nights: int, breakfast: bool = False) -> str:
        """Book a room.

        Args:
            city: City name or zip code
        """
        return city

    async with Wire(signed, REVISION) as wire:
        (tool,) = (await wire.ask("tools/list"))["tools"]
    schema = tool["inputSchema"]
    assert (tool["description"], schema["type"], schema["required"]) == ("Book a room.", "object", ["city", "nights"])
    same(
        schema["properties"],
        {
            "city": {"type": "string", "description": "City name or zip code"},
            "nights": {"type": "integer"},
            "breakfast": {"type": "boolean", "default": False},
        },
    )


@pytest.mark.seed("S0-13")
async def test_many_tools_come_in_pages() -> None:
    many = Server("many", logging=False, page_size=2)
    for number in range(3):
        many.add_tool(lambda: "", name=f"tool_{number}")
    async with Wire(many, REVISION) as wire:
        first = await wire.ask("tools/list")
        rest = await wire.ask("tools/list", {"cursor": first["nextCursor"]})
    same(first["nextCursor"], Opaque(str))
    assert [tool["name"] for tool in first["tools"]] == ["tool_0", "tool_1"]
    assert [tool["name"] for tool in rest["tools"]] == ["tool_2"]
    assert "nextCursor" not in rest


@pytest.mark.seed("S0-15", "S0-16", "S0-17", "S0-18", "S0-27", "S0-29")
async def test_a_call_is_looked_up_validated_executed_and_answered() -> None:
    ran: list[str] = []
    registry = ToolRegistry()
    schema = {
        "type": "object",
        "properties": {"unit": {"type": "string", "pattern": "^[CF]$"}, "days": {"type": "integer", "maximum": 7}},
        "required": ["unit"],
        "dependentRequired": {"hours": ["days"]},
    }

    def handler(name: str) -> Callable[[dict[str, Any]], str]:
        def run(arguments: dict[str, Any]) -> str:
            ran.append(name)
            return f"{name} in {arguments['unit']}"

        return run

    for name in ("today", "tomorrow"):
        registry.register_tool(name=name, description="Weather", input_schema=schema, handler=handler(name))
    assert registry.has_tool("tomorrow")
    wrong: list[Any] = [
        {},
        {"unit": "K"},
        {"unit": "C", "days": 8},
        {"unit": "C", "hours": 1},
        {"unit": "C", "days": "x"},
    ]
    async with Wire(Server("registry", logging=False, tools=registry), REVISION) as wire:
        for arguments in wrong:
            refused = await wire.ask("tools/call", {"name": "tomorrow", "arguments": arguments})
            assert refused["isError"] is True
            assert "Invalid arguments for tomorrow" in refused["content"][0]["text"]
        assert ran == []
        answer = await wire.ask("tools/call", {"name": "tomorrow", "arguments": {"unit": "C", "days": 7}})
    same(answer, {"content": [{"type": "text", "text": "tomorrow in C"}], "isError": False})
    assert ran == ["tomorrow"]


TEXT = {"type": "text", "text": "72°F"}
IMAGE = {"type": "image", "data": "cGl4ZWxz", "mimeType": "image/png"}


@pytest.mark.seed("S0-20", "S0-30")
@pytest.mark.parametrize(
    ("blocks", "shown"),
    [
        (Text("72°F"), [TEXT]),
        (Image(b"pixels", "image/png"), [IMAGE]),
        (Audio(b"noise", "audio/wav"), [{"type": "audio", "data": "bm9pc2U=", "mimeType": "audio/wav"}]),
        (
            EmbeddedResource(ResourceContents("file:///a.txt", "text/plain", text="hello")),
            [{"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "hello"}}],
        ),
        ([Text("72°F"), Image(b"pixels", "image/png")], [TEXT, IMAGE]),
    ],
    ids=["text", "image", "audio", "resource", "several"],
)
async def test_content_of_every_kind(blocks: Any, shown: list[Any]) -> None:
    content = Server("content", logging=False)
    content.add_tool(lambda: blocks, name="show")
    async with Wire(content, REVISION) as wire:
        same(await wire.ask("tools/call", {"name": "show"}), {"content": shown, "isError": False})


@pytest.mark.seed("S0-01", "S0-31")
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
