"""Every JSON message of seed 001, on its server: the pocket profile."""

from servers.seeds.seed_001 import server

from seeds.golden import same
from wire import Wire

REVISION = "2025-06-18"


def call(arguments: dict) -> dict:
    return {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "describe", "arguments": arguments},
    }


async def test_the_capabilities() -> None:
    async with Wire(server, REVISION) as wire:
        same(wire.welcome["capabilities"], {"tools": {"listChanged": True}})


async def test_next_cursor_is_always_a_string() -> None:
    async with Wire(server, REVISION) as wire:
        result = await wire.ask("tools/list", {"cursor": ""})
    assert result["nextCursor"] == ""
    (tool,) = result["tools"]
    assert {"name", "description", "inputSchema"} <= tool.keys()


async def test_the_result_of_a_call() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(call({"subject": "everything"}))
    assert answer["id"] == 7
    same(
        answer["result"],
        {"content": [{"type": "text", "text": "…"}], "structuredContent": {}, "isError": False},
    )


async def test_a_tool_that_fails_says_so_in_its_result() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(call({"subject": "the ineffable"}))
    assert answer["result"]["isError"] is True
    assert answer["result"]["content"] == [{"type": "text", "text": "Words fail."}]


async def test_bad_arguments_and_unknown_tools_are_protocol_errors() -> None:
    async with Wire(server, REVISION) as wire:
        bad = await wire.refusal("tools/call", {"name": "describe", "arguments": {"subject": 5}})
        unknown = await wire.refusal("tools/call", {"name": "nothing", "arguments": {}})
    assert bad["code"] == unknown["code"] == -32602
    assert "subject" in bad["message"]


async def test_a_changed_list_is_announced() -> None:
    async with Wire(server, REVISION) as wire:
        server.add_tool(lambda: "", name="another")
        try:
            same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        finally:
            server.remove_tool("another")
