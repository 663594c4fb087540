"""Every JSON message of seed 000, on its server."""

from servers.seeds.seed_000 import server

from seeds.golden import same
from wire import Wire

REVISION = "2025-03-26"
CALL = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "get_weather", "arguments": {"location": "New York"}},
}


async def test_the_capabilities_are_tools_and_nothing_else() -> None:
    async with Wire(server, REVISION) as wire:
        same(wire.welcome["capabilities"], {"tools": {"listChanged": True}})


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


async def test_an_unknown_tool_is_a_protocol_error() -> None:
    request = {**CALL, "params": {"name": "get_weather2", "arguments": {"location": "New York"}}}
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request)
    same(answer, {"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": "Unknown tool: get_weather2"}})


async def test_a_changed_list_is_announced() -> None:
    async with Wire(server, REVISION) as wire:
        server.add_tool(lambda: "", name="another")
        try:
            same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        finally:
            server.remove_tool("another")
