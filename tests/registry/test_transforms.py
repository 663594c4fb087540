"""Transforms of tools: what clients see, what the tool gets, what is refused, and what never reaches a client."""

import datetime
import json
import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import (
    ArgTransform,
    AuditEvent,
    Client,
    Context,
    Field,
    Handle,
    Server,
    ServerError,
    SetupError,
    ToolError,
    ToolRegistry,
    ToolTransform,
)
from dovetail.errors import ArgumentError
from dovetail.registry.tools import Tool, compile_tool
from dovetail.registry.transforms import transform_tool
from wire import MODERN, Wire

REVISIONS = ("2024-11-05", "2025-06-18", "2025-11-25", MODERN)
SECRET = "hunter2-hunter2"


class Box(pydantic.BaseModel):
    width: int
    label: str = "plain"

    @pydantic.field_validator("label")
    @classmethod
    def no_shouting(cls, label: str) -> str:
        if label.isupper():
            raise ValueError("must not shout")
        return label


class Node(msgspec.Struct):
    name: str
    children: list["Node"] = []


def search(
    q: Annotated[str, Field(header="Query", min_length=2)],
    key: str,
    limit: int = 5,
    sort: Literal["up", "down"] = "up",
) -> str:
    """Find things."""
    return f"{q} {limit} {sort} {len(key)}"


FIND = ToolTransform(
    name="find",
    description="Find books.",
    arguments={
        "q": ArgTransform(name="query", description="Words to look for"),
        "key": ArgTransform(hide=True, default=SECRET),
        "limit": ArgTransform(default=3),
        "sort": ArgTransform(name="order"),
    },
)


def new_server(**options: Any) -> Server:
    return Server("shelf", version="1.0.0", **options)


def finding(**options: Any) -> Server:
    server = new_server(**options)
    server.add_tool(search, transform=FIND)
    return server


def changed(function: Callable[..., Any] = search, /, **arguments: Any) -> Tool:
    """The tool with changed arguments, as a mount has it."""
    tool = compile_tool(function, {})
    return transform_tool(tool, ToolTransform(name="t", arguments=arguments), "here")


def read(raw: bytes | msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)


def problems(call: Callable[[], object]) -> list[str]:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith("Invalid arguments for t:")
    return caught.value.problems


# ── what clients see ──


@pytest.mark.parametrize("revision", REVISIONS)
async def test_clients_see_and_use_the_new_names(revision: str) -> None:
    async with Client(finding(), protocol_version=revision) as client:
        (tool,) = await client.list_tools()
        assert (tool.name, tool.description) == ("find", "Find books.")
        assert tool.input_schema == {
            "type": "object",
            "properties": {
                "query": {
                    "type": "string", "minLength": 2, "x-mcp-header": "Query", "description": "Words to look for",
                },
                "limit": {"type": "integer", "default": 3},
                "order": {"type": "string", "enum": ["up", "down"], "default": "up"},
            },
            "required": ["query"],
            "additionalProperties": False,
        }  # fmt: skip
        assert (await client.call_tool("find", {"query": "sand", "order": "down"})).data == "sand 3 down 15"
        assert (await client.call_tool("find", {"query": "sand", "order": "up", "limit": "7"})).data == "sand 7 up 15"
        with pytest.raises(ServerError, match="Unknown tool: search"):
            await client.call_tool("search", {"q": "sand"})


async def test_what_is_not_given_stays() -> None:
    server = new_server()
    server.add_tool(search, title="Search", tags=["old"], annotations={"openWorldHint": False}, transform=FIND)
    async with Wire(server, MODERN) as wire:
        (tool,) = (await wire.ask("tools/list"))["tools"]
    assert (tool["title"], tool["annotations"]) == ("Search", {"openWorldHint": False})
    assert tool["_meta"] == {"dovetail/tags": ["old"]}


def test_a_broken_schema_of_another_server_is_refused() -> None:
    for schema in ({"type": "object", "properties": []}, {"properties": {"a": {"$ref": 5}}}, {"required": 1}):
        whole = {"type": "object", "properties": {"a": {}}, **schema}
        tool = compile_tool(search, {})
        broken = msgspec.structs.replace(tool, definition=msgspec.structs.replace(tool.definition, input_schema=whole))
        with pytest.raises(SetupError, match="here: not a valid JSON Schema"):
            transform_tool(broken, ToolTransform(arguments={"a": ArgTransform(name="b")}), "here")


def test_header_marks_and_choices_move_with_their_argument() -> None:
    server = finding()
    tool = server.engine.tools.get("find")
    assert [(each.path, each.header) for each in tool.headers] == [(("query",), "Mcp-Param-Query")]
    assert tool.choices == {"order": ["up", "down"]}
    hidden = changed(q=ArgTransform(hide=True, default="abc"), sort=ArgTransform(hide=True, default="up"))
    assert (hidden.headers, hidden.choices) == ((), {})


async def test_a_completion_is_registered_by_the_new_name() -> None:
    server = finding()

    @server.completion(tool="find", argument="query")
    def words(value: str) -> list[str]:
        return [f"{value}!"]

    async with Client(server) as client:
        assert (await client.complete(tool="find", argument="query", value="a")).values == ["a!"]


def test_registries_take_transforms_too() -> None:
    registry = ToolRegistry()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    transform = ToolTransform(name="new", arguments={"a": ArgTransform(name="b")})
    tool = registry.register_tool("old", "d", schema, lambda a: a, transform=transform)
    assert registry.get_tool("new") is tool
    assert tool.decode(b'{"b": 1}') == {"a": 1}


def test_definitions_that_only_a_hidden_argument_needs_are_left_out() -> None:
    def grow(node: Node, size: int = 1) -> str:
        return f"{node} {size}"

    assert "$defs" in changed(grow, size=ArgTransform(name="height")).input_schema
    tool = changed(grow, node=ArgTransform(hide=True, default=Node("a", [Node("b")])))
    assert "Node" not in json.dumps(tool.input_schema)
    assert tool.decode(b"{}") == {"node": Node("a", [Node("b")]), "size": 1}


def test_definitions_of_hidden_arguments_are_left_out_beside_those_that_others_need() -> None:
    schema = {
        "type": "object",
        "$defs": {
            "Env": {"enum": ["prod-eu-7"]},
            "Way/to go": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Way~1to%20go"}}},
            "Point": {"type": "array", "items": {"$ref": "#/$defs/Way~1to%20go/properties/next"}},
        },
        "definitions": {"Key": {"default": "S3CRET"}, "Size": {"type": "integer"}},
        "properties": {
            "env": {"$ref": "#/$defs/Env"},
            "key": {"$ref": "#/definitions/Key"},
            "point": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
            "size": {"$ref": "#/definitions/Size"},
        },
    }
    tool = compile_tool(lambda arguments: arguments, {"name": "t", "input_schema": schema})
    hidden = ToolTransform(arguments={"env": ArgTransform(hide=True), "key": ArgTransform(hide=True)})
    tool = transform_tool(tool, hidden, "here")
    assert tool.input_schema["$defs"].keys() == {"Way/to go", "Point"}
    assert tool.input_schema["definitions"].keys() == {"Size"}
    assert tool.decode(b'{"point": [{"next": {}}]}') == {"point": [{"next": {}}]}


# ── what the tool gets ──


def test_names_may_be_swapped() -> None:
    def swap(a: int, b: str) -> str:
        return b * a

    tool = changed(swap, a=ArgTransform(name="b"), b=ArgTransform(name="a"))
    assert tool.decode(b'{"b": 1, "a": "x"}') == {"a": 1, "b": "x"}
    assert tool.rewriter is not None
    assert read(tool.rewriter.rewrite(b'{"b": 1, "a": "x"}')) == {"a": 1, "b": "x"}
    assert problems(lambda: tool.decode(b'{"a": 1, "b": "x"}')) == [
        "a: expected a string, got the integer 1", 'b: expected an integer, got the string "x"',
    ]  # fmt: skip


def test_models_dates_and_nested_values_are_decoded_by_their_types() -> None:
    def pack(box: Box, day: datetime.date, at: datetime.datetime | None = None, count: int = 1) -> str:
        return f"{box} {day} {at} {count}"

    tool = changed(
        pack, box=ArgTransform(name="crate"), day=ArgTransform(name="when"),
        count=ArgTransform(hide=True), at=ArgTransform(name="time"),
    )  # fmt: skip
    given = b'{"crate": {"width": 2}, "when": "2026-07-28", "time": "2026-07-28T09:30:00"}'
    assert tool.decode(given) == {
        "box": Box(width=2), "day": datetime.date(2026, 7, 28), "at": datetime.datetime(2026, 7, 28, 9, 30), "count": 1,
    }  # fmt: skip
    assert tool.rewriter is not None
    assert read(tool.rewriter.rewrite(given))["at"] == "2026-07-28T09:30:00"
    for bad, line in {
        '{"crate": {"width": 2}, "when": "2026-02-30"}': 'when: must be a date such as 2026-07-28, got "2026-02-30"',
        '{"crate": {"width": 2, "label": "A"}, "when": "2026-02-03"}': 'crate.label: must not shout, got "A"',
    }.items():
        assert problems(lambda bad=bad: tool.decode(bad.encode())) == [line]


def test_a_problem_that_clients_cannot_know_of_is_told_without_names_and_values() -> None:
    def pack(day: datetime.date, key: str) -> str:
        return f"{day} {key}"

    def refuse(raw: bytes | msgspec.Raw) -> dict[str, Any]:
        raise ArgumentError("pack", [f'key: must not be "{SECRET}"', "arguments: use day or key"])

    picky = msgspec.structs.replace(compile_tool(pack, {}), decode=refuse)
    change = ToolTransform(name="t", arguments={"key": ArgTransform(hide=True, default="abc")})
    with pytest.raises(SetupError, match="'key': its default does not fit"):
        transform_tool(picky, change, "here")
    picky = msgspec.structs.replace(picky, decode=lambda raw: refuse(raw) if b"day" in raw else {})
    tool = transform_tool(picky, change, "here")
    assert problems(lambda: tool.decode(b'{"day": "2026-02-03"}')) == ["arguments: does not fit the schema"]


def test_every_call_gets_its_own_copy_of_a_hidden_value() -> None:
    def note(text: str, log: list[str]) -> list[str]:
        log.append(text)
        return log

    tool = changed(note, log=ArgTransform(hide=True, default=["a"]))
    first, second = tool.decode(b'{"text": "b"}'), tool.decode(b'{"text": "b"}')
    first["log"].append("x")
    assert second["log"] == ["a"]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_handles_and_contexts_work(revision: str) -> None:
    server = new_server()

    @server.tool
    async def open_list(ctx: Context) -> Handle[list[str]]:
        return await ctx.new_handle(["a"], list[str])

    @server.tool(
        transform=ToolTransform(
            arguments={"items": ArgTransform(name="list"), "more": ArgTransform(hide=True, default="b")}
        )
    )
    async def extend(items: Handle[list[str]], more: str, ctx: Context) -> list[str]:
        return [*await items.load(), more]

    async with Client(server, protocol_version=revision) as client:
        handle = (await client.call_tool("open_list")).data
        assert (await client.call_tool("extend", {"list": handle})).text.replace("\n", "") in (
            '["a","b"]',
            '["a", "b"]',
        )


async def test_raw_schemas_get_their_defaults_and_hidden_values() -> None:
    server = new_server()
    schema = {
        "type": "object",
        "properties": {"a": True, "b": {"type": "string", "default": "x"}, "c": {"type": "integer"}},
        "required": ["a", "c"],
    }
    arguments = {"a": ArgTransform(name="z", description="Any"), "c": ArgTransform(hide=True, default=9)}

    @server.tool(input_schema=schema, transform=ToolTransform(arguments=arguments))
    def echo(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    async with Client(server) as client:
        (tool,) = await client.list_tools()
        assert tool.input_schema == {
            "type": "object",
            "properties": {"z": {"description": "Any"}, "b": {"type": "string", "default": "x"}},
            "required": ["z"],
            "additionalProperties": False,
        }
        assert (await client.call_tool("echo", {"z": None})).data == {"a": None, "b": "x", "c": 9}
        for name in ("a", "c", "more"):
            with pytest.raises(ToolError, match=rf"- {name}: unknown argument \(known: z, b\)"):
                await client.call_tool("echo", {"z": 1, name: 1})


async def test_a_long_result_and_a_failure_name_the_new_tool() -> None:
    server = new_server(mask_error_details=True)
    new = ToolTransform(name="new")
    server.add_tool(
        lambda: list(range(1000)), name="old", max_result_bytes=200, output_schema={"type": "array"}, transform=new
    )
    async with Client(server) as client:
        with pytest.raises(ToolError, match="The result of new is too long"):
            await client.call_tool("new")


# ── what is told to clients ──

BAD = [
    ({}, ["query: required, but missing"]),
    ({"query": "a", "order": "up"}, ["query: must have at least 2 characters, has 1"]),
    ({"query": 1, "order": "left"}, ["query: expected a string, got the integer 1", "order: "]),
    ({"query": "ab", "order": "up", "q": "cd"}, ["q: unknown argument (known: query, limit, order)"]),
    ({"query": "ab", "order": "up", "key": "mine"}, ["key: unknown argument (known: query, limit, order)"]),
    ({"query": "ab", "order": "up", "other": 1}, ["other: unknown argument (known: query, limit, order)"]),
    ({"query": "ab", "order": "up", "limit": "many"}, ["limit: expected an integer"]),
]


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("lenient", [True, False])
async def test_problems_are_in_the_words_of_the_client(
    revision: str, lenient: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    events: list[AuditEvent] = []
    async with Client(finding(audit=events.append, lenient_arguments=lenient), protocol_version=revision) as client:
        for arguments, lines in BAD:
            with pytest.raises(ToolError) as caught:
                await client.call_tool("find", arguments)
            first, *shown = str(caught.value).splitlines()
            assert first == "Invalid arguments for find:"
            assert len(shown) == len(lines), shown
            assert all(line.startswith(f"- {start}") for line, start in zip(shown, lines, strict=True)), shown
            assert SECRET not in str(caught.value)
        await client.call_tool("find", {"query": "ab", "order": "up"})
        for text in (str(await client.list_tools()), str(events), caplog.text):
            assert SECRET not in text
    assert [event.arguments for event in events[:2]] == [{}, {"query": "a", "order": "up"}]
    assert events[-1].arguments == {"query": "ab", "order": "up"}


def test_large_arguments_are_refused_without_hidden_names() -> None:
    tool = changed(key=ArgTransform(hide=True, default=SECRET), limit=ArgTransform(name="most"))
    raw = json.dumps({"q": "x" * 100_000, "most": "many", "z": 1}).encode()
    (first, *_) = problems(lambda: tool.decode(raw))
    assert first.startswith(("most: expected an integer", "arguments: does not fit"))
    for line in problems(lambda: tool.decode(json.dumps({"q": "x" * 100_000, "key": "a"}).encode())):
        assert line.startswith(("arguments: does not fit the schema", "arguments: there may be more"))


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"[]", "arguments: expected an object, got an array"),
        (b'"a"', 'arguments: expected an object, got the string "a"'),
        (b"{", "arguments: not valid JSON in UTF-8"),
        (b'{"q": \xff}', "arguments: not valid JSON in UTF-8"),
        (b"[" * 2_000, "arguments: nested too deeply"),
    ],
)
def test_what_is_no_object_is_refused(raw: bytes, line: str) -> None:
    tool = changed(limit=ArgTransform(name="most"))
    assert tool.rewriter is not None
    assert problems(lambda: tool.decode(raw)) == [line]
    assert problems(lambda: tool.rewriter.rewrite(raw)) == [line]


def test_a_strict_tool_stays_strict() -> None:
    strict = compile_tool(search, {}, lenient=False)
    tool = transform_tool(strict, ToolTransform(name="t", arguments={"limit": ArgTransform(name="most")}), "here")
    given = b'{"q": "ab", "key": "k", "most": "7"}'
    assert problems(lambda: tool.decode(given)) == ['most: expected an integer, got the string "7"']


def test_null_means_no_arguments() -> None:
    def hello(name: str = "you") -> str:
        return name

    assert changed(hello, name=ArgTransform(name="who")).decode(b"null") == {"name": "you"}


async def test_repeats_and_cached_results_are_by_what_the_client_sent() -> None:
    server, calls = new_server(), list[str]()
    secret = ToolTransform(name="pay", arguments={"key": ArgTransform(hide=True, default=SECRET)})

    @server.tool(idempotency=True, transform=secret)
    def transfer(amount: int, key: str) -> int:
        calls.append(key)
        return amount

    async with Client(server) as client:
        (tool,) = await client.list_tools()
        assert "key" not in tool.input_schema["properties"]
        for _ in range(2):
            assert (await client.call_tool("pay", {"amount": 5}, idempotency_key="1")).data == 5
    assert calls == [SECRET]


# ── for mounts ──


def test_rewritten_arguments_are_checked_even_if_the_tool_checks_nothing() -> None:
    properties = {"a": {"type": "integer"}, "k": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["a", "k"]}
    forwarded = msgspec.structs.replace(
        compile_tool(lambda a, k: a, {"name": "f", "input_schema": schema}), decode=lambda raw: {}
    )
    arguments = {"a": ArgTransform(name="b"), "k": ArgTransform(hide=True, default=SECRET)}
    rewriter = transform_tool(forwarded, ToolTransform(name="t", arguments=arguments), "here").rewriter
    assert rewriter is not None
    assert read(rewriter.rewrite(b'{"b": 1}')) == {"a": 1, "k": SECRET}
    assert read(rewriter.rewrite(b'{"b": "2"}')) == {"a": 2, "k": SECRET}
    assert problems(lambda: rewriter.rewrite(b'{"b": "x"}')) == ['b: expected an integer, got the string "x"']
    assert problems(lambda: rewriter.rewrite(b'{"b": 1e999}')) == ["arguments: hold too large a number"]
    assert problems(lambda: rewriter.rewrite(b'{"b": 1, "k": "mine"}')) == ["k: unknown argument (known: b)"]


def test_transforms_follow_each_other() -> None:
    inner = changed(q=ArgTransform(name="query"), key=ArgTransform(hide=True, default=SECRET))
    change = ToolTransform(name="t", arguments={"query": ArgTransform(name="words"), "limit": ArgTransform(default=2)})
    outer = transform_tool(inner, change, "here")
    assert outer.decode(b'{"words": "ab"}') == {"q": "ab", "key": SECRET, "limit": 2, "sort": "up"}
    assert outer.rewriter is not None
    assert read(outer.rewriter.rewrite(b'{"words": "ab"}')) == {"query": "ab", "limit": 2}
    assert problems(lambda: outer.decode(b'{"words": 1, "query": "a"}')) == [
        "words: expected a string, got the integer 1", "query: unknown argument (known: words, limit, sort)",
    ]  # fmt: skip


NAMES = st.sampled_from("abcdef")
PARTS = st.sampled_from([
    {"type": "integer"}, {"type": "string", "maxLength": 2}, {"enum": [1, "x", None]}, {}, {"type": ["null", "array"]},
    {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/List"}]},
])  # fmt: skip
VALUES = st.one_of(
    st.integers(0, 3), st.text("xy", max_size=3), st.booleans(), st.none(), st.lists(st.integers(), max_size=2)
)
DEFS = {"List": {"type": "array", "items": {"type": "integer"}}}


@given(
    st.dictionaries(NAMES, PARTS, min_size=1), st.sets(NAMES), st.permutations("abcdef"),
    st.dictionaries(NAMES, VALUES),
)  # fmt: skip
def test_renaming_arguments_and_back_accepts_the_same(
    parts: dict[str, Any], needed: set[str], order: list[str], value: dict[str, Any]
) -> None:
    required = sorted(needed & parts.keys())
    schema = {
        "type": "object",
        "properties": parts,
        "required": required,
        "additionalProperties": False,
        "$defs": DEFS,
    }
    plain = compile_tool(lambda arguments: arguments, {"name": "t", "input_schema": schema})
    there = dict(zip("abcdef", order, strict=True))
    new = {own: f"new-{there[own]}" for own in parts}
    forward = ToolTransform(name="t", arguments={own: ArgTransform(name=name) for own, name in new.items()})
    back = ToolTransform(name="t", arguments={name: ArgTransform(name=own) for own, name in new.items()})
    once = transform_tool(plain, forward, "here")
    twice = transform_tool(once, back, "here")
    assert {"required": [], "$defs": DEFS, **twice.input_schema} == schema

    def outcome(tool: Tool, arguments: dict[str, Any]) -> Any:
        try:
            return tool.decode(msgspec.json.encode(arguments))
        except ArgumentError:
            return None

    expected = outcome(plain, value)
    assert outcome(twice, value) == expected
    assert outcome(once, {new.get(name, name): part for name, part in value.items()}) == expected


# ── what is refused ──

REFUSED: list[tuple[Callable[[], ToolTransform], str]] = [
    (lambda: ToolTransform(arguments={"q": "query"}), "argument 'q': its change is no ArgTransform"),  # type: ignore[dict-item]
    (lambda: ToolTransform(arguments={"zzz": ArgTransform(hide=True)}), "'zzz': .*; it has q, key, limit, sort"),
    (
        lambda: ToolTransform(arguments={"q": ArgTransform(name="x"), "key": ArgTransform(name="x")}),
        "'key': the name 'x' is taken by the argument 'q'",
    ),
    (
        lambda: ToolTransform(arguments={"q": ArgTransform(name="limit")}),
        "'limit': the name 'limit' is taken by the argument 'q'",
    ),
    (lambda: ToolTransform(arguments={"q": ArgTransform(hide=True)}), "'q': it is required; hide it with default="),
    (
        lambda: ToolTransform(arguments={"limit": ArgTransform(hide=True, name="x")}),
        "'limit': clients see no name= or description= of a hidden",
    ),
    (
        lambda: ToolTransform(arguments={"limit": ArgTransform(hide=True, description="x")}),
        "clients see no name= or description=",
    ),
    (
        lambda: ToolTransform(arguments={"limit": ArgTransform(hide=True, default=SECRET)}),
        "'limit': its default does not fit; it takes .*integer",
    ),
    (lambda: ToolTransform(arguments={"limit": ArgTransform(default=None)}), "'limit': its default does not fit"),
    (
        lambda: ToolTransform(arguments={"q": ArgTransform(default="x")}),
        "'q': its default does not fit; it takes .*minLength",
    ),
    (lambda: ToolTransform(arguments={"q": ArgTransform(default=object())}), "'q': its default does not fit"),
    (lambda: ToolTransform(name="a tool"), "tool search .*the name 'a tool' is not allowed"),
    (lambda: {"name": "x"}, r"transform=.* is not possible; write ToolTransform\("),  # type: ignore[return-value, arg-type]
]


@pytest.mark.parametrize(("transform", "says"), REFUSED, ids=[says[:40] for _, says in REFUSED])
def test_a_transform_that_cannot_work_is_refused(transform: Callable[[], ToolTransform], says: str) -> None:
    server = new_server()
    with pytest.raises(SetupError, match=says) as caught:
        server.add_tool(search, transform=transform())
    assert SECRET not in str(caught.value)
    assert len(server.engine.tools) == 0


def test_a_default_that_only_the_type_refuses_is_refused() -> None:
    def pack(box: Box, day: datetime.date) -> str:
        return f"{box} {day}"

    for wrong in ({"box": {"width": 1, "label": "A"}}, {"day": "2026-02-30"}):
        ((name, value),) = wrong.items()
        with pytest.raises(SetupError, match=f"argument '{name}': its default does not fit"):
            changed(pack, **{name: ArgTransform(hide=True, default=value)})
    tool = changed(
        pack, box=ArgTransform(hide=True, default=Box(width=1)), day=ArgTransform(default=datetime.date(2026, 1, 2))
    )
    assert tool.input_schema["properties"] == {"day": {"type": "string", "format": "date", "default": "2026-01-02"}}
    assert tool.decode(b"{}") == {"box": Box(width=1), "day": datetime.date(2026, 1, 2)}


@pytest.mark.parametrize("beside", [
    {"examples": [{"a": "x"}]}, {"x-order": ["a", "b"]},
    {"allOf": [{"required": ["b"]}]}, {"dependentRequired": {"a": ["b"]}}, {"minProperties": 1},
    {"patternProperties": {"^a": True}}, {"properties": {"a": {}, "b": {"$ref": "#"}}},
    {"properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}},
])  # fmt: skip
def test_names_that_other_keywords_may_depend_on_are_not_changed(beside: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, **beside}
    tool = compile_tool(lambda arguments: arguments, {"name": "t", "input_schema": schema})
    for change in (ArgTransform(name="c"), ArgTransform(hide=True)):
        with pytest.raises(SetupError, match=r"argument 'a': the input schema has .*, which may depend on it"):
            transform_tool(tool, ToolTransform(arguments={"a": change}), "here")
    described = transform_tool(tool, ToolTransform(arguments={"a": ArgTransform(description="A")}), "here")
    assert described.input_schema["properties"]["a"]["description"] == "A"


@pytest.mark.parametrize("beside", [
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": {"d": {}}},
    {"$schema": "http://json-schema.org/draft-04/schema#", "definitions": {"d": {}}},
    {"title": "T", "description": "D", "$comment": "C", "required": ["b"], "additionalProperties": False},
], ids=["2020-12", "draft-04", "words"])  # fmt: skip
def test_names_that_no_other_keyword_depends_on_may_be_changed(beside: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, **beside}
    tool = compile_tool(lambda arguments: arguments, {"name": "t", "input_schema": schema})
    for change in (ArgTransform(name="c"), ArgTransform(hide=True, default="x")):
        sent = b'{"b": 1}' if change.hide else b'{"b": 1, "c": "x"}'
        assert transform_tool(tool, ToolTransform(arguments={"a": change}), "here").decode(sent) == {"a": "x", "b": 1}


def test_a_name_that_is_taken_is_refused_as_for_every_tool() -> None:
    server = finding()
    with pytest.raises(SetupError, match="there is already a tool 'find'"):
        server.add_tool(search, transform=FIND)
