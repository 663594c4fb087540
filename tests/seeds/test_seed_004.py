"""Every JSON message of seed 004, on its server: the registry and the reference profile."""

import json
import re
from typing import Any

import pytest
from servers.seeds.seed_004 import create_registry, server

import dovetail
from dovetail import Client, NotApproved, Server, SetupError, ToolDefinition, ToolRegistry
from seeds.golden import contains, same
from wire import Wire

REVISION = "2025-11-25"


@pytest.mark.seed("S4-32", "S4-33", "S4-34")
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


@pytest.mark.seed("S4-35", "S4-36", "S4-37", "S4-38")
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
    for tool in answer["result"]["tools"]:
        assert tool.keys() - {"title"} == {"name", "description", "inputSchema", "annotations"}


@pytest.mark.seed("S4-01", "S4-02", "S4-03", "S4-04", "S4-05", "S4-13", "S4-14", "S4-15", "S4-16")
async def test_the_three_tools_of_the_guide() -> None:
    hints = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
    async with Wire(server, REVISION) as wire:

        async def value_of(name: str, **arguments: Any) -> Any:
            result = await wire.ask("tools/call", {"name": name, "arguments": arguments})
            (block,) = result["content"]
            assert (block["type"], "isError" in result) == ("text", False)
            return json.loads(block["text"])

        tools = {tool["name"]: tool for tool in (await wire.ask("tools/list"))["tools"]}
        assert list(tools) == ["calculate", "roll_dice", "tell_fortune"]
        assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) for name in tools)
        assert [tool["annotations"] for tool in tools.values()] == [
            {**hints, "idempotentHint": True},
            {**hints, "idempotentHint": False},
            {**hints, "idempotentHint": False},
        ]
        for operation, result in (("add", 8), ("subtract", 4), ("multiply", 12), ("divide", 3)):
            assert (await value_of("calculate", operation=operation, a=6, b=2))["result"] == result
        fortune = await value_of("tell_fortune", category="general")
    assert list(fortune) == ["category", "mood", "fortune"]
    assert (fortune["category"], fortune["mood"]) == ("general", "mysterious")
    assert fortune["fortune"]


GUIDE = {
    "name": "tell_fortune",
    "title": "Fortune Teller",
    "description": "Get a fortune for categories: love, career, health, wealth, general. "
    "Moods: optimistic, mysterious, cautious.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "category": {
                "type": "string",
                "enum": ["love", "career", "health", "wealth", "general"],
                "description": "Fortune category",
            },
            "mood": {
                "type": "string",
                "enum": ["optimistic", "mysterious", "cautious"],
                "description": "Fortune mood (default: mysterious)",
            },
        },
        "required": ["category"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
}


@pytest.mark.seed("S4-02", "S4-07", "S4-09", "S4-10", "S4-11", "S4-12", "S4-13", "S4-14")
async def test_the_registration_of_the_guide() -> None:
    assert "ToolRegistry" in dovetail.__all__
    registry = ToolRegistry()

    async def handler(category: str, mood: str = "mysterious") -> dict[str, Any]:
        value = {"category": category, "mood": mood, "fortune": f"{mood} {category}"}
        return {"content": [{"type": "text", "text": json.dumps(value, separators=(",", ":"))}]}

    registry.register_tool(
        name=GUIDE["name"],
        title=GUIDE["title"],
        description=GUIDE["description"],
        input_schema=GUIDE["inputSchema"],
        annotations=GUIDE["annotations"],
        handler=handler,
    )
    async with Wire(Server("guide", profile="reference", tools=registry), REVISION) as wire:
        (listed,) = (await wire.ask("tools/list"))["tools"]
        same(listed, GUIDE)
        for category in ("love", "career", "health", "wealth", "general"):
            result = await wire.ask("tools/call", {"name": "tell_fortune", "arguments": {"category": category}})
            text = f'{{"category":"{category}","mood":"mysterious","fortune":"mysterious {category}"}}'
            same(result, {"content": [{"type": "text", "text": text}]})
        for mood in ("optimistic", "mysterious", "cautious"):
            told = {"name": "tell_fortune", "arguments": {"category": "love", "mood": mood}}
            assert f'"fortune":"{mood} love"' in (await wire.ask("tools/call", told))["content"][0]["text"]
        for wrong in ({}, {"category": "luck"}, {"category": "love", "mood": "grim"}, {"category": "love", "x": 1}):
            assert (await wire.ask("tools/call", {"name": "tell_fortune", "arguments": wrong}))["isError"] is True


@pytest.mark.seed("S4-17")
async def test_a_client_reads_the_meanings_of_the_hints() -> None:
    kinds = {
        "look": {"readOnlyHint": True, "openWorldHint": False},
        "erase": {"destructiveHint": True, "openWorldHint": False},
        "set": {"destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        "search": {"readOnlyHint": True, "openWorldHint": True},
    }
    hinted = Server("hinted", profile="reference")
    for name, annotations in kinds.items():
        hinted.add_tool(lambda: "done", name=name, annotations=annotations)
    confirmed: list[str] = []

    def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        hints = tool.annotations
        assert hints is not None
        if hints.read_only_hint:
            return True  # by itself
        confirmed.append(f"{tool.name} {bool(hints.destructive_hint)} {bool(hints.idempotent_hint)}")
        return not hints.destructive_hint

    async with Client(hinted, protocol_version=REVISION, approve=approve) as client:
        for name in ("look", "set", "search"):
            assert (await client.call_tool(name)).text == "done"
        with pytest.raises(NotApproved):
            await client.call_tool("erase")
        open_world = [tool.name for tool in await client.list_tools() if tool.annotations.open_world_hint]
    assert confirmed == ["set False True", "erase True False"]
    assert open_world == ["search"]


@pytest.mark.seed("S4-18")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_annotations_came_with_2025_03_26_and_sep_1303_is_about_wrong_arguments(revision: str) -> None:
    async with Wire(server, revision) as wire:
        tools = (await wire.ask("tools/list"))["tools"]
        assert ["annotations" in tool for tool in tools] == [revision >= "2025-03-26"] * 3
        wrong = await wire.ask("tools/call", {"name": "calculate", "arguments": {"operation": "add", "a": "one"}})
    assert wrong["isError"] is True
    assert "Invalid arguments for calculate" in wrong["content"][0]["text"]


SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Search query", "minLength": 1, "maxLength": 100},
        "limit": {"type": "number", "description": "Maximum results", "minimum": 1, "maximum": 50, "default": 10},
        "filters": {"type": "array", "items": {"type": "string"}, "description": "Optional filters"},
    },
    "required": ["query"],
}


@pytest.mark.seed("S4-19", "S4-20")
async def test_the_keywords_of_the_guides_schema() -> None:
    seen: list[dict[str, Any]] = []
    registry = ToolRegistry()

    async def handler(args: dict[str, Any]) -> str:
        seen.append(args)
        return "found"

    registry.register_tool(name="search", description="Search", input_schema=SEARCH, handler=handler)
    closed = {**SEARCH, "properties": {"kind": {"enum": ["a", "b"]}}, "required": [], "additionalProperties": False}
    registry.register_tool(name="closed", description="Search", input_schema=closed, handler=handler)
    newer = {"type": "object", "properties": {"pair": {"prefixItems": [{"type": "string"}], "items": False}}}
    registry.register_tool(name="newer", description="A keyword of 2020-12", input_schema=newer, handler=handler)
    wrong: list[tuple[str, Any]] = [
        ("search", {}),
        ("search", {"query": ""}),
        ("search", {"query": "x" * 101}),
        ("search", {"query": "x", "limit": 0}),
        ("search", {"query": "x", "limit": "many"}),
        ("search", {"query": "x", "filters": [1]}),
        ("closed", {"kind": "c"}),
        ("closed", {"other": 1}),
        ("newer", {"pair": [1]}),
        ("newer", {"pair": ["a", "b"]}),
    ]
    async with Wire(Server("search", profile="reference", tools=registry), REVISION) as wire:
        tools = (await wire.ask("tools/list"))["tools"]
        assert [tool["inputSchema"] for tool in tools] == [SEARCH, closed, newer]
        for name, arguments in wrong:
            refused = await wire.ask("tools/call", {"name": name, "arguments": arguments})
            assert refused.get("isError") is True, arguments
        assert seen == []
        good = [("search", {"query": "x"}), ("search", {"query": "x" * 100, "limit": 50, "filters": ["new"]})]
        for name, arguments in (*good, ("closed", {"kind": "a"}), ("newer", {"pair": ["a"]})):
            assert "isError" not in await wire.ask("tools/call", {"name": name, "arguments": arguments})
    assert seen[0] == {"query": "x", "limit": 10}
    assert len(seen) == 4


@pytest.mark.seed("S4-39")
async def test_arguments_of_tools_are_completed() -> None:
    completing = Server("completing", profile="reference", tools=create_registry())

    @completing.completion(tool="tell_fortune", argument="mood")
    def moods(value: str) -> list[str]:
        return [mood for mood in ("optimistic", "mysterious", "cautious") if mood.startswith(value)]

    async with Wire(completing, REVISION) as wire:
        assert wire.welcome["capabilities"]["completions"] == {}
        params = {"ref": {"type": "ref/tool", "name": "tell_fortune"}, "argument": {"name": "mood", "value": "m"}}
        assert (await wire.ask("completion/complete", params))["completion"]["values"] == ["mysterious"]


async def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    async with Wire(server, REVISION) as wire:
        return await wire.ask("tools/call", {"name": name, "arguments": arguments})


def value_in(result: dict[str, Any]) -> Any:
    (block,) = result["content"]
    same(result, {"content": [{"type": "text", "text": block["text"]}]})
    return json.loads(block["text"])


@pytest.mark.seed("S4-06")
@pytest.mark.parametrize(
    ("notation", "count", "sides", "modifier"),
    [("2d6+3", 2, 6, 3), ("2d6-1", 2, 6, -1), ("d20", 1, 20, 0), ("100d1", 100, 1, 0), ("1d100", 1, 100, 0)],
)
async def test_roll_dice(notation: str, count: int, sides: int, modifier: int) -> None:
    value = value_in(await called("roll_dice", {"notation": notation}))
    assert len(value["rolls"]) == count
    assert all(1 <= roll <= sides for roll in value["rolls"])
    assert (value["modifier"], value["total"]) == (modifier, sum(value["rolls"]) + modifier)


@pytest.mark.seed("S4-06")
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


@pytest.mark.seed("S4-21", "S4-22", "S4-23", "S4-24", "S4-25", "S4-26", "S4-27")
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


@pytest.mark.seed("S4-02", "S4-28", "S4-29", "S4-30")
async def test_a_minimal_registration() -> None:
    registry = ToolRegistry()
    seen: list[Any] = []

    async def handler(args: Any) -> dict[str, Any]:
        seen.append(args)
        return {"content": [{"type": "text", "text": "2"}]}

    schema = {"type": "object", "properties": {"expression": {"type": "string"}}}
    registry.register_tool(name="calculate", description="Perform calculation", input_schema=schema, handler=handler)
    with pytest.raises(SetupError, match="already a tool 'calculate'"):
        registry.register_tool(name="calculate", description="Again", input_schema=schema, handler=handler)
    page = registry.list_tools(None, 50)
    assert ([tool.name for tool in page.tools], page.next_cursor) == (["calculate"], None)
    async with Wire(Server("minimal", profile="reference", tools=registry), REVISION) as wire:
        (listed,) = (await wire.ask("tools/list"))["tools"]
        same(listed, {"name": "calculate", "description": "Perform calculation", "inputSchema": schema})
        result = await wire.ask("tools/call", {"name": "calculate", "arguments": {"expression": "1+1"}})
    same(result, {"content": [{"type": "text", "text": "2"}]})
    assert seen == [{"expression": "1+1"}]


@pytest.mark.seed("S4-08")
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


@pytest.mark.seed("S4-28", "S4-30")
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
