"""Every JSON message of seed 004, on its server: the registry and the reference profile."""

import pytest
from servers.seeds.seed_004 import create_registry, server

from dovetail import Server, ToolRegistry
from seeds.golden import contains, same
from wire import Wire

REVISION = "2025-11-25"


async def test_tools_call() -> None:
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "tell_fortune", "arguments": {"category": "wealth", "mood": "optimistic"}},
    }
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request)
    text = '{"category":"wealth","mood":"optimistic","fortune":"Financial opportunities are heading your way."}'
    same(answer, {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}]}})


async def test_tools_list() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
    contains(
        answer,
        {
            "jsonrpc": "2.0",
            "id": 2,
            "result": {
                "tools": [
                    {
                        "name": "calculate",
                        "description": "Perform basic arithmetic operations",
                        "inputSchema": {"type": "object", "properties": {"operation": {}, "a": {}, "b": {}}},
                        "annotations": {"readOnlyHint": True, "idempotentHint": True},
                    },
                    {
                        "name": "roll_dice",
                        "description": "Roll dice using standard notation",
                        "inputSchema": {"type": "object", "properties": {"notation": {}}},
                        "annotations": {"readOnlyHint": True, "idempotentHint": False},
                    },
                    {
                        "name": "tell_fortune",
                        "description": "Get a mystical fortune",
                        "inputSchema": {"type": "object", "properties": {"category": {}, "mood": {}}},
                        "annotations": {"readOnlyHint": True, "idempotentHint": False},
                    },
                ]
            },
        },
    )
    assert "nextCursor" not in answer["result"]


def result_server(result) -> Server:
    registry = ToolRegistry()

    async def handler(arguments):
        return result

    schema = {"type": "object", "properties": {"expression": {"type": "string"}}}
    registry.register_tool(name="calculate", description="Perform calculation", input_schema=schema, handler=handler)
    return Server("results", profile="reference", tools=registry)


@pytest.mark.parametrize(
    "result",
    [
        {"content": [{"type": "text", "text": "Operation completed successfully"}]},
        {"content": [{"type": "image", "data": "aW1hZ2U=", "mimeType": "image/png"}]},
        {
            "content": [
                {
                    "type": "resource",
                    "resource": {"uri": "file:///path/to/file.txt", "mimeType": "text/plain", "text": "contents"},
                }
            ]
        },
        {"content": [{"type": "text", "text": "Failed to process request"}], "isError": True},
        {
            "content": [
                {
                    "type": "text",
                    "text": "Detailed technical output...",
                    "annotations": {"audience": ["assistant"], "priority": 0.8},
                },
                {
                    "type": "text",
                    "text": "Summary for the user",
                    "annotations": {"audience": ["user"], "priority": 1.0},
                },
            ]
        },
    ],
    ids=["text", "image", "resource", "error", "annotated"],
)
async def test_results_pass_through(result) -> None:
    async with Wire(result_server(result), REVISION) as wire:
        same(await wire.ask("tools/call", {"name": "calculate", "arguments": {}}), result)


def test_the_registry_pages_and_tells() -> None:
    registry = create_registry()
    changes: list[str] = []
    listener = lambda: changes.append("changed")  # noqa: E731
    registry.on_tools_changed(listener)
    page = registry.list_tools(cursor=None, page_size=2)
    assert [tool.name for tool in page.tools] == ["calculate", "roll_dice"]
    rest = registry.list_tools(cursor=page.next_cursor, page_size=2)
    assert [tool.name for tool in rest.tools] == ["tell_fortune"]
    assert rest.next_cursor is None
    assert registry.unregister_tool("calculate")
    assert not registry.unregister_tool("calculate")
    assert changes == ["changed"]
    assert registry.has_tool("roll_dice")
    assert registry.get_tool("calculate") is None
    registry.off_tools_changed(listener)
    registry.clear()
    assert registry.get_all_tools() == []
    assert changes == ["changed"]
