"""Every JSON message of seed 004, on its server: the registry and the reference profile."""

import json
import re
from typing import Any

import pytest
from servers.seeds.seed_004 import server

import dovetail
from dovetail import Client, NotApproved, Server, SetupError, ToolDefinition, ToolRegistry
from seeds.golden import TELL_FORTUNE, call_of, contains, request, same, shows
from wire import Wire

REVISION = "2025-11-25"


@pytest.mark.seed("S4-32", "S4-33", "S4-34")
async def test_tools_call() -> None:
    arguments = {"category": "wealth", "mood": "optimistic"}
    asked = request(1, "tools/call", {"name": "tell_fortune", "arguments": arguments})
    text = '{"category":"wealth","mood":"optimistic","fortune":"Financial opportunities are heading your way."}'
    await shows(server, REVISION, asked, {"content": [{"type": "text", "text": text}]})


@pytest.mark.seed("S4-35", "S4-36", "S4-37", "S4-38")
async def test_tools_list() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request(2, "tools/list"))
    tools = [
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
    contains(answer, {"jsonrpc": "2.0", "id": 2, "result": {"tools": tools}})
    assert "nextCursor" not in answer["result"]
    for tool in answer["result"]["tools"]:
        assert tool.keys() - {"title"} == {"name", "description", "inputSchema", "annotations"}


@pytest.mark.seed("S4-01", "S4-02", "S4-03", "S4-04", "S4-05", "S4-06", "S4-13", "S4-14", "S4-15", "S4-16")
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
        dice = await value_of("roll_dice", notation="2d6+3")
        fortune = await value_of("tell_fortune", category="general")
    assert (len(dice["rolls"]), dice["modifier"], dice["total"]) == (2, 3, sum(dice["rolls"]) + 3)
    assert list(fortune) == ["category", "mood", "fortune"]
    assert (fortune["category"], fortune["mood"]) == ("general", "mysterious")
    assert fortune["fortune"]


def text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


FILE = {"uri": "file:///path/to/file.txt", "mimeType": "text/plain", "text": "contents"}
FOR_THE_MODEL = {"audience": ["assistant"], "priority": 0.8}
FOR_THE_USER = {"audience": ["user"], "priority": 1.0}
RESULTS: dict[str, dict[str, Any]] = {
    "text": {"content": [text("Operation completed successfully")]},
    "image": {"content": [{"type": "image", "data": "aW1hZ2U=", "mimeType": "image/png"}]},
    "resource": {"content": [{"type": "resource", "resource": FILE}]},
    "error": {"content": [text("Failed to process request")], "isError": True},
    "annotated": {
        "content": [
            text("Detailed technical output...", annotations=FOR_THE_MODEL),
            text("Summary for the user", annotations=FOR_THE_USER),
        ]
    },
}


@pytest.mark.seed("S4-21", "S4-22", "S4-23", "S4-24", "S4-25", "S4-26", "S4-27")
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
async def test_results_pass_through(result: dict[str, Any]) -> None:
    registry = ToolRegistry()
    registry.register_tool("calculate", "Perform calculation", {"type": "object"}, lambda arguments: result)
    results = Server("results", profile="reference", tools=registry)
    await shows(results, REVISION, call_of("calculate"), result)


@pytest.mark.seed("S4-02", "S4-07", "S4-09", "S4-10", "S4-11", "S4-12", "S4-13", "S4-14")
async def test_the_registration_of_the_guide() -> None:
    assert "ToolRegistry" in dovetail.__all__
    registry = ToolRegistry()

    async def handler(category: str, mood: str = "mysterious") -> dict[str, Any]:
        value = {"category": category, "mood": mood, "fortune": f"{mood} {category}"}
        return {"content": [{"type": "text", "text": json.dumps(value, separators=(",", ":"))}]}

    registry.register_tool(
        name=TELL_FORTUNE["name"],
        title=TELL_FORTUNE["title"],
        description=TELL_FORTUNE["description"],
        input_schema=TELL_FORTUNE["inputSchema"],
        annotations=TELL_FORTUNE["annotations"],
        handler=handler,
    )
    async with Wire(Server("guide", profile="reference", tools=registry), REVISION) as wire:
        (listed,) = (await wire.ask("tools/list"))["tools"]
        same(listed, TELL_FORTUNE)
        for category in ("love", "career", "health", "wealth", "general"):
            result = await wire.ask("tools/call", {"name": "tell_fortune", "arguments": {"category": category}})
            text = f'{{"category":"{category}","mood":"mysterious","fortune":"mysterious {category}"}}'
            same(result, {"content": [{"type": "text", "text": text}]})
        for mood in ("optimistic", "mysterious", "cautious"):
            call = {"name": "tell_fortune", "arguments": {"category": "love", "mood": mood}}
            assert f'"fortune":"{mood} love"' in (await wire.ask("tools/call", call))["content"][0]["text"]
        for wrong in ({}, {"category": "luck"}, {"category": "love", "mood": "grim"}, {"category": "love", "x": 1}):
            assert (await wire.ask("tools/call", {"name": "tell_fortune", "arguments": wrong}))["isError"] is True


@pytest.mark.seed("S2-44", "S2-72", "S3-03", "S3-14", "S4-17")
async def test_a_human_is_asked_before_each_call_and_reads_the_hints() -> None:
    kinds = {
        "look": {"readOnlyHint": True, "openWorldHint": False},
        "erase": {"destructiveHint": True, "openWorldHint": False},
        "set": {"destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        "search": {"readOnlyHint": True, "openWorldHint": True},
    }
    hinted = Server("hinted", profile="reference")
    for name, annotations in kinds.items():
        hinted.add_tool(lambda: "done", name=name, annotations=annotations)
    asked: list[str] = []
    confirmed: list[str] = []

    def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        asked.append(tool.name)
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
    assert asked == ["look", "set", "search", "erase"]
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


@pytest.mark.seed("S0-16", "S0-27", "S0-29", "S4-19", "S4-20")
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
    wrong: dict[str, list[dict[str, Any]]] = {
        "search": [{}, *({"query": "x", **bad} for bad in ({"query": "x" * 101}, {"limit": 0}, {"filters": [1]}))],
        "closed": [{"kind": "c"}, {"other": 1}],
        "newer": [{"pair": [1]}, {"pair": ["a", "b"]}],
    }
    assert all(registry.has_tool(name) for name in wrong)
    async with Wire(Server("search", profile="reference", tools=registry), REVISION) as wire:
        tools = (await wire.ask("tools/list"))["tools"]
        assert [tool["inputSchema"] for tool in tools] == [SEARCH, closed, newer]
        for name, arguments in [(name, each) for name, bad in wrong.items() for each in bad]:
            refused = await wire.ask("tools/call", {"name": name, "arguments": arguments})
            assert refused.get("isError") is True, arguments
            assert f"Invalid arguments for {name}" in refused["content"][0]["text"]
        assert seen == []
        good = [("search", {"query": "x"}), ("search", {"query": "x" * 100, "limit": 50, "filters": ["new"]})]
        for name, arguments in (*good, ("closed", {"kind": "a"}), ("newer", {"pair": ["a"]})):
            assert "isError" not in await wire.ask("tools/call", {"name": name, "arguments": arguments})
    assert seen[0] == {"query": "x", "limit": 10}
    assert len(seen) == 4


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
