"""The facade: what comes and goes, the registry of tools, and what is refused."""

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from dovetail import ProtocolError, Server, SetupError, ToolRegistry
from wire import MODERN, Wire


def test_what_a_server_shows_of_itself_and_refuses() -> None:
    server = Server("weather")
    server.add_tool(lambda: "sun", name="today")
    assert server.name == "weather"
    assert repr(server) == "Server('weather', 1 tools)"
    with pytest.raises(SetupError, match="carrier pigeon"):
        server.run(transport="carrier pigeon")
    with pytest.raises(SetupError, match="ToolRegistry"):
        Server("x", tools=[evaluate])  # type: ignore[arg-type]


async def test_a_server_needs_no_name() -> None:
    async with Wire(Server(version="1.0.0"), "2025-11-25") as wire:
        assert wire.welcome["serverInfo"] == {"name": "dovetail-server", "version": "1.0.0"}
    for wrong in ("", 5):
        with pytest.raises(SetupError, match=r'write Server\("weather"\)'):
            Server(wrong)  # type: ignore[arg-type]


async def test_things_come_and_go_at_any_time() -> None:
    server = Server("weather")
    async with Wire(server, MODERN) as wire:
        server.add_prompt(lambda: "hi", name="hello")
        server.add_resource("a://b", lambda: "b", name="b")
        assert (await wire.ask("prompts/get", {"name": "hello"}))["messages"]
        assert (await wire.ask("resources/read", {"uri": "a://b"}))["contents"]
        assert server.remove_prompt("hello")
        assert server.remove_resource("a://b")
        assert (await wire.refusal("prompts/get", {"name": "hello"}))["code"] == -32602
        assert (await wire.refusal("resources/read", {"uri": "a://b"}))["code"] == -32602


# ── the registry ──


async def evaluate(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": arguments["expression"]}]}


EXPRESSION = {"type": "object", "properties": {"expression": {"type": "string"}}}


@pytest.mark.seed("S4-28", "S4-30")
def test_a_registry_by_hand() -> None:
    registry = ToolRegistry()
    changes: list[int] = []

    def changed() -> None:
        changes.append(len(registry.get_all_tools()))

    registry.on_tools_changed(changed)
    for number in range(5):
        tool = registry.register_tool(f"t{number}", "Perform calculation", EXPRESSION, evaluate)
        assert registry.get_tool(f"t{number}") is tool
    assert registry.has_tool("t0")
    assert not registry.has_tool("t9")
    assert registry.get_tool("t9") is None
    page = registry.list_tools(page_size=2)
    assert [tool.name for tool in page.tools] == ["t0", "t1"]
    page = registry.list_tools(page.next_cursor, page_size=3)
    assert [tool.name for tool in page.tools] == ["t2", "t3", "t4"]
    assert page.next_cursor is None
    assert len(registry.list_tools().tools) == 5
    assert len(registry.list_tools(page_size=0).tools) == 1
    assert registry.unregister_tool("t0") is True
    assert registry.unregister_tool("t0") is False
    for _ in range(2):
        registry.clear()
    for _ in range(2):
        registry.off_tools_changed(changed)
    registry.register_tool("silent", "No one hears", EXPRESSION, evaluate)
    assert changes == [1, 2, 3, 4, 5, 4, 0]
    with pytest.raises(ProtocolError, match="cursor"):
        registry.list_tools("nonsense")


@pytest.mark.parametrize(
    "handler",
    [
        evaluate,
        lambda expression="": expression,
        lambda args: args["expression"],
        lambda args: {"content": [{"type": "text", "text": args["expression"]}], "isError": False},
    ],
    ids=["as the seed shows", "by name", "plain text", "with isError"],
)
async def test_what_a_handler_may_be(handler: Callable[..., Any]) -> None:
    registry = ToolRegistry()
    registry.register_tool("calculate", "Perform calculation", EXPRESSION, handler, title="Calculator")
    async with Wire(Server("calc", version="1.0.0", tools=registry), "2025-11-25") as wire:
        (tool,) = (await wire.ask("tools/list"))["tools"]
        assert (tool["title"], tool["inputSchema"]) == ("Calculator", EXPRESSION)
        assert "outputSchema" not in tool
        result = await wire.ask("tools/call", {"name": "calculate", "arguments": {"expression": "1+1"}})
        assert result == {"content": [{"type": "text", "text": "1+1"}], "isError": False}


async def test_a_handler_may_declare_its_output_schema() -> None:
    registry = ToolRegistry()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    registry.register_tool("good", "d", {"type": "object"}, lambda args: {"n": 1}, output_schema=schema)
    registry.register_tool("bad", "d", {"type": "object"}, lambda args: {"n": "x"}, output_schema=schema)
    wire_form = {"content": [{"type": "text", "text": "t"}], "structuredContent": {"n": 2}}
    registry.register_tool("both", "d", {"type": "object"}, lambda args: wire_form, output_schema=schema)
    async with Wire(Server("calc", version="1.0.0", tools=registry), "2025-11-25") as wire:
        good = await wire.ask("tools/call", {"name": "good"})
        assert (good["structuredContent"], good["content"][0]["text"]) == ({"n": 1}, '{"n":1}')
        assert (await wire.ask("tools/call", {"name": "bad"}))["isError"] is True
        assert await wire.ask("tools/call", {"name": "both"}) == {**wire_form, "isError": False}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a b", "d", EXPRESSION, evaluate), "a b"),
        (("t", "d", {"type": "array"}, evaluate), "object"),
        (("t", "d", None, evaluate), "input_schema"),
        (("t", "d", {}, evaluate), "object"),
        (("t", "d", EXPRESSION, 5), "called"),
        (("t", 5, EXPRESSION, evaluate), "description=5"),
    ],
)
def test_wrong_registrations(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        ToolRegistry().register_tool(*arguments)


DEFINITION = {
    "name": "calculate",
    "title": "Calculator",
    "description": "Perform calculation",
    "inputSchema": EXPRESSION,
    "annotations": {"readOnlyHint": True},
    "_meta": {"example.com/a": 1},
    "rateLimit": "5/minute",
    "handler": evaluate,
}


@pytest.mark.seed("S4-08")
async def test_a_tool_is_registered_by_one_object_too() -> None:
    registry = ToolRegistry()
    tool = registry.register_tool(DEFINITION)
    assert registry.get_tool("calculate") is tool
    assert tool.is_limited
    async with Wire(Server("calc", version="1.0.0", tools=registry), "2025-11-25") as wire:
        (listed,) = (await wire.ask("tools/list"))["tools"]
        assert listed == {key: value for key, value in DEFINITION.items() if key not in ("handler", "rateLimit")}
        result = await wire.ask("tools/call", {"name": "calculate", "arguments": {"expression": "1+1"}})
        assert result["content"] == [{"type": "text", "text": "1+1"}]


BESIDE = "can't be given beside a mapping"


@pytest.mark.parametrize(
    ("definition", "beside", "words"),
    [
        ({"inputSchem": EXPRESSION}, {}, "tool calculate: unknown options inputSchem (did you mean inputSchema?)"),
        ({"input_schema": EXPRESSION}, {}, "did you mean inputSchema?"),
        (
            {"shape": 5},
            {},
            "tool calculate: unknown options shape; known are _meta, alwaysVisible, annotations, authorize,",
        ),
        ({"handler": None}, {}, "handler is missing"),
        ({"inputSchema": None}, {}, "tool calculate: inputSchema is missing"),
        ({"name": None}, {}, "name is missing"),
        ({"name": "a b"}, {}, "a b"),
        ({}, {"description": "other"}, f"tool calculate: description {BESIDE}"),
        ({}, {"handler": evaluate, "timeout": 5}, f"tool calculate: handler, timeout {BESIDE}"),
    ],
)
def test_a_wrong_object_is_refused(definition: dict[str, Any], beside: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=re.escape(words)):
        ToolRegistry().register_tool({**DEFINITION, **definition}, **beside)


def test_a_misspelled_parameter_is_refused() -> None:
    with pytest.raises(SetupError, match=re.escape("tool t: unknown options inputSchema (did you mean input_schema?)")):
        ToolRegistry().register_tool("t", "d", inputSchema=EXPRESSION, handler=evaluate)  # type: ignore[call-arg]


@pytest.mark.seed("S4-31")
async def test_a_listener_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    registry = ToolRegistry()
    received: list[str] = []

    def clumsy() -> None:
        raise RuntimeError("dropped it")

    registry.register_tool("first", "d", EXPRESSION, evaluate)
    registry.on_tools_changed(lambda: received.append("before"))
    registry.on_tools_changed(clumsy)
    registry.on_tools_changed(lambda: received.append("after"))
    async with Wire(Server("calc", version="1.0.0", tools=registry), "2025-11-25") as wire:
        registry.register_tool("second", "d", EXPRESSION, evaluate)
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"
        assert registry.unregister_tool("first")
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"
    assert received == ["before", "after"] * 2
    assert [tool.name for tool in registry.get_all_tools()] == ["second"]
    assert "clumsy" in caplog.text
    assert "dropped it" in caplog.text


async def later() -> None: ...


class Later:
    async def __call__(self) -> None: ...


@pytest.mark.seed("S4-31")
@pytest.mark.parametrize("listener", [None, 5, "changed", later, Later(), functools.partial(later)])
def test_a_listener_is_a_plain_function(listener: Any) -> None:
    registry = ToolRegistry()
    with pytest.raises(SetupError, match="plain function"):
        registry.on_tools_changed(listener)
    registry.register_tool("t", "d", EXPRESSION, evaluate)
