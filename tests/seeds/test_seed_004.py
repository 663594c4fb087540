"""Every JSON message of seed 004, on its server: the registry and the reference profile."""

import json
from typing import Any

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


async def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    async with Wire(server, REVISION) as wire:
        return await wire.ask("tools/call", {"name": name, "arguments": arguments})


def value_in(result: dict[str, Any]) -> Any:
    (block,) = result["content"]
    same(result, {"content": [{"type": "text", "text": block["text"]}]})
    return json.loads(block["text"])


@pytest.mark.parametrize(
    ("operation", "value"), [("add", 11.5), ("subtract", 4.5), ("multiply", 28.0), ("divide", 8 / 3.5)]
)
async def test_calculate(operation: str, value: float) -> None:
    assert value_in(await called("calculate", {"operation": operation, "a": 8, "b": 3.5})) == {"result": value}


@pytest.mark.parametrize(
    ("notation", "count", "sides", "modifier"),
    [("2d6+3", 2, 6, 3), ("2d6-1", 2, 6, -1), ("d20", 1, 20, 0), ("100d1", 100, 1, 0), ("1d100", 1, 100, 0)],
)
async def test_roll_dice(notation: str, count: int, sides: int, modifier: int) -> None:
    value = value_in(await called("roll_dice", {"notation": notation}))
    assert len(value["rolls"]) == count
    assert all(1 <= roll <= sides for roll in value["rolls"])
    assert (value["modifier"], value["total"]) == (modifier, sum(value["rolls"]) + modifier)


@pytest.mark.parametrize("category", ["love", "career", "health", "wealth", "general"])
async def test_tell_fortune(category: str) -> None:
    value = value_in(await called("tell_fortune", {"category": category}))
    assert list(value) == ["category", "mood", "fortune"]
    assert (value["category"], value["mood"]) == (category, "mysterious")
    assert value["fortune"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        *(
            ("roll_dice", {"notation": bad}, "2d6+3")
            for bad in ("1d0", "0d6", "", "d", "2d6+", "2d6 + 3", "two", "-1d6")
        ),
        ("roll_dice", {"notation": "9" * 21 + "d6"}, "notation"),
        ("calculate", {"operation": "divide", "a": 1, "b": 0}, "Failed"),
        ("calculate", {"operation": "power", "a": 1, "b": 0}, "operation"),
        ("tell_fortune", {}, "category"),
        ("tell_fortune", {"category": "love", "mood": "grim"}, "mood"),
        ("tell_fortune", {"category": "love", "colour": "red"}, "colour"),
    ],
)
async def test_what_can_not_be_done_is_told_in_words(name: str, arguments: dict[str, Any], words: str) -> None:
    result = await called(name, arguments)
    assert result["isError"] is True
    assert words in result["content"][0]["text"]


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


async def test_a_registration_as_the_guide_writes_it() -> None:
    async def handler(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": arguments["expression"]}]}

    registry = ToolRegistry()
    schema = {"type": "object", "properties": {"expression": {"type": "string"}}}
    definition = {"name": "calculate", "description": "Perform calculation", "inputSchema": schema}
    registry.register_tool({**definition, "handler": handler})
    async with Wire(Server("guide", profile="reference", tools=registry), REVISION) as wire:
        same(await wire.ask("tools/list"), {"tools": [definition]})
        result = await wire.ask("tools/call", {"name": "calculate", "arguments": {"expression": "1 + 1"}})
        same(result, {"content": [{"type": "text", "text": "1 + 1"}]})


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
