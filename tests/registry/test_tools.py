"""From functions and raw schemas to tools: what is listed, what is refused, and how a handler gets its arguments."""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict

import pytest

from dovetail import Client, Context, Field, Server, SetupError, Text, ToolResult
from dovetail.engine.context import warn_deprecated
from dovetail.registry.tools import compile_tool
from wire import MODERN, Wire

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def new_server(**options: Any) -> Server:
    return Server("tools", version="1.0.0", **options)


async def listed(server: Server, version: str = MODERN) -> dict[str, dict[str, Any]]:
    async with Wire(server, version) as wire:
        return {tool["name"]: tool for tool in (await wire.ask("tools/list"))["tools"]}


async def text_of(server: Server, name: str, **arguments: Any) -> str:
    async with Wire(server, "2025-11-25") as wire:
        result = await wire.ask("tools/call", {"name": name, "arguments": arguments})
        assert not result["isError"], result
        return result["content"][0]["text"]


# ── registration ──


async def test_the_decorator_works_bare_and_with_options_and_returns_the_function() -> None:
    server = new_server()

    def plain(a: int) -> int:
        """Double it."""
        return a * 2

    async def later(a: int) -> str:
        return str(a)

    assert server.tool(plain) is plain
    assert server.tool(name="other", title="Other", description="Mine")(later) is later
    assert server.tool(plain, name="third") is plain
    assert plain(4) == 8
    tools = await listed(server)
    assert list(tools) == ["plain", "other", "third"]
    assert tools["plain"]["description"] == "Double it."
    assert (tools["other"]["title"], tools["other"]["description"]) == ("Other", "Mine")


async def test_everything_that_can_be_said_about_a_tool_is_listed() -> None:
    server = new_server()
    icons = [{"src": "https://example.org/i.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}]
    hints, said = {"readOnlyHint": True, "title": "Hint"}, {"title": "T", "description": "Does t."}
    server.add_tool(lambda: "", name="t", annotations=hints, icons=icons, tags=["x"], meta={"org.example/a": 1}, **said)
    newest = (await listed(server))["t"]
    assert newest.items() >= {**said, "annotations": hints, "icons": icons}.items()
    assert newest["_meta"] == {"org.example/a": 1, "dovetail/tags": ["x"]}


async def test_the_tags_of_a_set_are_listed_in_one_order() -> None:
    words = ["pear", "fig", "apple", "plum", "date", "quince"]
    server = new_server()
    server.add_tool(lambda: "", name="eat", tags=set(words))
    server.add_tool(lambda: "", name="sell", tags=words)  # in the order that their author gave them
    server.add_prompt(lambda: "", name="praise", tags=frozenset(words))
    server.add_resource("fruits://all", lambda: "", name="all", tags=set(words))
    async with Client(server) as client:
        listed = [*await client.list_tools(), *await client.list_prompts(), *await client.list_resources()]
    tags = [(each.meta or {})["dovetail/tags"] for each in listed]
    assert tags == [sorted(words), words, sorted(words), sorted(words)]


async def test_the_context_is_injected_wherever_it_stands_and_not_in_the_schema() -> None:
    server = new_server()

    @server.tool
    async def first(ctx: Context, a: int) -> str:
        return f"{a} {ctx.protocol_version}"

    @server.tool
    def last(a: int = 3, *, context: Context | None) -> str:
        assert context is not None
        return f"{a} {context.protocol_version}"

    @server.tool
    async def typed(a: int, one: Context[str], two: Context[str, Any] | None = None) -> str:
        return f"{a} {one.protocol_version} {two is one}"

    assert [list(tool["inputSchema"]["properties"]) for tool in (await listed(server)).values()] == [["a"]] * 3
    assert await text_of(server, "first", a=1) == "1 2025-11-25"
    assert await text_of(server, "typed", a=2) == "2 2025-11-25 True"
    assert await text_of(server, "last") == "3 2025-11-25"


async def test_a_plain_function_may_return_something_awaitable() -> None:
    server = new_server()

    async def inner() -> str:
        return "awaited"

    server.add_tool(lambda: inner(), name="in_a_thread")
    server.add_tool(lambda: inner(), name="on_the_loop", thread=False)
    assert await text_of(server, "in_a_thread") == await text_of(server, "on_the_loop") == "awaited"


def test_a_result_takes_structured_content_too() -> None:
    value = {"n": 1}
    result = ToolResult(content=[Text("one")], structured_content=value)
    assert result == ToolResult(content=[Text("one")], structured=value)
    assert result.structured_content == result.structured == value
    nothing = ToolResult(content=[Text("one")], structured_content=None)
    assert (nothing, nothing.structured_content) == (ToolResult(content=[Text("one")]), None)
    with pytest.raises(TypeError, match="ToolResult: structured= and structured_content= say the same"):
        ToolResult(structured=value, structured_content=value)


async def test_structured_content_is_sent_and_checked() -> None:
    server = new_server()

    @server.tool(output_schema={"type": "object", "required": ["n"]})
    async def count(n: int | None = None) -> Any:
        return ToolResult(structured_content={} if n is None else {"n": n})

    @server.middleware
    async def brand(request: Any, call_next: Any) -> Any:
        result = await call_next(request)
        if isinstance(result, ToolResult) and not result.is_error:
            return ToolResult(structured_content={**result.structured_content, "by": "us"}, text_copy=False)
        return result

    async with Wire(server, MODERN) as wire:
        assert (await wire.ask("tools/call", {"name": "count"}))["isError"] is True
        result = await wire.ask("tools/call", {"name": "count", "arguments": {"n": 1}})
    assert result["structuredContent"] == {"n": 1, "by": "us"}


# ── what is refused ──


def takes_a(a: int) -> str:
    return str(a)


async def async_takes_a(a: int) -> str:
    return str(a)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "has space"}, "has space"), ({"name": 5}, "name=5"), ({"titel": "typo"}, "titel"),
        ({"title": 5}, "title=5"), ({"description": b"x"}, "description="), ({"timeout": 0}, "timeout=0"),
        ({"timeout": -1.5}, "timeout=-1.5"), ({"timeout": "5"}, "timeout='5'"),
        ({"timeout": float("nan")}, "timeout=nan"), ({"timeout": True}, "timeout=True"),
        ({"max_concurrency": 0}, "max_concurrency=0"), ({"max_concurrency": 1.5}, "max_concurrency=1.5"),
        ({"requires": "sampling"}, "requires='sampling'"),
        ({"tags": "one"}, "tags='one'"), ({"output": "json"}, "output='json'"),
        ({"structured_output": "no"}, "structured_output='no'"), ({"thread": "yes"}, "thread='yes'"),
        ({"meta": {"a": object()}}, "meta="), ({"annotations": {"readOnly": True}}, "readOnly"),
        ({"annotations": {"readOnlyHint": "yes"}}, "annotations="), ({"icons": [{"href": "x"}]}, "icons="),
        ({"icons": [{"src": "x", "colour": "red"}]}, "colour"),
        ({"input_schema": {"type": "string"}}, "object"),
        ({"input_schema": "{}"}, "input_schema"),
        ({"input_schema": {"type": "object", "properties": {"a": {"type": 5}}}}, "input_schema"),
        ({"input_schema": {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}}, "'b'"),
        ({"input_schema": {"type": "object", "properties": {"a": {}, "b": {}}}}, "does not require ['a']"),
        ({"input_schema": {"type": "object", "properties": {"a": True}}}, "does not require ['a']"),
        ({"output_schema": {"type": "nonsense"}}, "output"),
    ],
)  # fmt: skip
def test_wrong_options_name_the_function_the_option_and_the_fix(options: dict[str, Any], words: str) -> None:
    server = new_server()
    with pytest.raises(SetupError) as caught:
        server.add_tool(takes_a, **options)
    assert "takes_a" in str(caught.value) or str(options.get("name")) in str(caught.value)
    assert words in str(caught.value)
    assert len(server.engine.tools) == 0


def test_none_means_that_an_option_is_not_given() -> None:
    tool = compile_tool(takes_a, {"title": None, "description": None, "tags": None, "requires": None})  # type: ignore[typeddict-item]
    assert (tool.name, tool.definition.title, tool.requires) == ("takes_a", None, frozenset())


@pytest.mark.parametrize("kind", ["tool", "prompt"])
async def test_a_decorator_takes_the_name_first(kind: str) -> None:
    server = new_server()
    decorator = getattr(server, kind)

    def takes_nothing() -> str:
        return ""

    assert decorator("short", title="Short")(takes_nothing) is takes_nothing
    async with Wire(server, MODERN) as wire:
        (item,) = (await wire.ask(f"{kind}s/list"))[f"{kind}s"]
    assert (item["name"], item["title"]) == ("short", "Short")
    with pytest.raises(SetupError, match=rf"@server.{kind}\('a', name='b'\): keep one"):
        decorator("a", name="b")


def test_a_name_is_taken_once() -> None:
    server = new_server()
    server.tool(takes_a)
    with pytest.raises(SetupError, match=r"already a tool 'takes_a'"):
        server.tool(takes_a)
    assert [server.remove_tool("takes_a"), server.remove_tool("takes_a")] == [True, False]
    server.tool(takes_a)


@pytest.mark.parametrize(("function", "words"), [(lambda: "", "lambda"), (int, "class"), (5, "@server.tool")])
def test_what_is_no_function_is_refused(function: Any, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        new_server().tool(function)


def test_options_that_the_function_can_not_have_name_it() -> None:
    def search(limit: Annotated[float, Field(header="Limit")]) -> str:
        return str(limit)

    with pytest.raises(SetupError, match=r"search.*limit"):
        new_server().add_tool(search)
    with pytest.raises(SetupError, match=r"async_takes_a.*thread=True"):
        new_server().add_tool(async_takes_a, thread=True)


@pytest.mark.parametrize("feature", ["sampling", "roots.x"])
def test_requiring_a_deprecated_feature_warns_once(feature: str) -> None:
    warn_deprecated.cache_clear()
    server = new_server()
    with pytest.warns(DeprecationWarning, match=feature.partition(".")[0]):
        server.add_tool(takes_a, requires=[feature])
    server.add_tool(takes_a, name="again", requires=[feature])


# ── raw schemas ──


@pytest.mark.parametrize(
    "handler",
    [lambda args: str(args["a"]), lambda a: str(a), lambda **kwargs: str(kwargs["a"]), lambda a, extra=1: str(a)],
    ids=["mapping", "by name", "keywords", "with a default of its own"],
)
async def test_a_handler_takes_one_mapping_or_each_argument_by_name(handler: Callable[..., Any]) -> None:
    server = new_server()
    server.add_tool(handler, name="raw", input_schema=OBJECT)
    assert (await listed(server))["raw"]["inputSchema"] == OBJECT
    assert await text_of(server, "raw", a=5) == "5"


async def test_handlers_of_raw_schemas_get_what_they_take() -> None:
    server = new_server()
    server.add_tool(takes_a, name="by_name", input_schema=OBJECT)
    schema = {"type": "object", "properties": {"a": {"type": "integer", "default": 7}}}
    server.add_tool(takes_a, name="by_default", input_schema=schema)

    @server.tool(input_schema={"type": "object"})
    async def anything(ctx: Context, **kwargs: Any) -> str:
        return f"{sorted(kwargs)} {ctx.protocol_version}"

    assert await text_of(server, "by_name", a=5, unknown=1) == "5"
    assert await text_of(server, "by_default") == "7"
    assert await text_of(server, "anything", b=1, a=2) == "['a', 'b'] 2025-11-25"


def returning(annotation: Any, value: Any = None) -> Any:
    function = lambda: value  # noqa: E731
    if annotation is not ...:
        function.__annotations__["return"] = annotation
    return function


class Note(TypedDict):
    id: int
    kind: Literal["a", "b"]


async def test_typed_results_have_a_schema_and_others_none() -> None:
    server = new_server()
    functions: dict[str, Any] = {"note": Note, "number": int, "many": list[int], "maybe": int | None}
    without = {"none": None, "any": Any, "text": str, "block": Text, "blocks": list[Text], "result": ToolResult}
    for name, returns in {**functions, **without}.items():
        server.add_tool(returning(returns), name=name)
    server.add_tool(lambda: None, name="bare")
    tools = await listed(server)
    assert {name for name, tool in tools.items() if "outputSchema" in tool} == set(functions)
    assert tools["number"]["outputSchema"] == {"type": "integer"}


@pytest.mark.parametrize(
    ("options", "returns", "has_schema"),
    [
        ({"output": "text"}, int, False),
        ({"structured_output": False}, int, False),
        ({"output": "structured"}, str, True),
        ({"output": "both"}, str, True),
        ({"output": "both"}, None, False),
        ({"output": "text", "output_schema": {"type": "integer"}}, int, False),
    ],
)
async def test_the_output_policy(options: dict[str, Any], returns: Any, has_schema: bool) -> None:
    function = returning(returns)
    tool = compile_tool(function, {"name": "t", **options})
    assert tool.handler is function
    assert (tool.definition.output_schema is not None) is has_schema
    assert tool.output_schema == tool.definition.output_schema
    by_server = compile_tool(returning(returns), {"name": "t"}, output=options.get("output", "auto"))
    assert (by_server.definition.output_schema is not None) is (has_schema or "structured_output" in options)


# ── odd values, end to end; the table of all of them is in test_outputs ──

HUGE = 2**70


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


Count = type("Count", (int,), {})


@pytest.mark.parametrize("version", [MODERN, "2024-11-05"])
@pytest.mark.parametrize(
    ("value", "annotation", "plain"),
    [
        (-HUGE, int, -HUGE),
        ({"a": [HUGE]}, ..., {"a": [HUGE]}),
        (Name("é"), str, "é"),
        (Name("a"), ..., "a"),
        (Count(5), int, 5),
        ({"a": Name("b"), "c": Count(5)}, dict[str, Any], {"a": "b", "c": 5}),
        (ToolResult(structured={"a": Name("b")}), ..., {"a": "b"}),
        (ToolResult(structured={"a": Count(5)}), dict, {"a": 5}),
        (Text(Name("a")), ..., "a"),
        ([Text(Name("a"))], ..., "a"),
        (ToolResult(content=[Name("a")]), ..., "a"),
        (ToolResult(content=[Text(Name("a"))], meta={"org.example/a": Count(5)}), ..., "a"),
    ],
)
async def test_odd_values_are_sent_as_plain_json(value: Any, annotation: Any, plain: Any, version: str) -> None:
    server = new_server()
    server.add_tool(returning(annotation, value), name="t")
    async with Wire(server, version) as wire:
        result = await wire.ask("tools/call", {"name": "t"})
    assert not result.get("isError"), result
    (block,) = result["content"]
    assert block["text"] == plain if isinstance(plain, str) else json.loads(block["text"]) == plain
    assert version != MODERN or annotation in (..., str) or result["structuredContent"] == plain


async def test_huge_integers_are_read_whole_and_those_without_end_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    server = new_server()
    server.add_tool(returning(dict, {"a": 10**5000}), name="endless")

    @server.tool
    def add_up(number: int, anything: Any, many: list[int]) -> int:
        return number + anything["a"] + sum(many)

    assert await text_of(server, "add_up", number=HUGE, anything={"a": -1}, many=[HUGE]) == str(2 * HUGE - 1)
    async with Wire(server, MODERN) as wire:
        result = await wire.ask("tools/call", {"name": "endless"})
    assert result["isError"] is True
    assert "does not fit its own description" in result["content"][0]["text"]
    assert "return it as a string" in caplog.text
