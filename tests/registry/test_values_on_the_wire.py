"""Odd values, end to end: what a client sends reaches the function whole, what it returns goes out as plain JSON."""

import dataclasses
import enum
import json
from typing import Any

import pytest

from dovetail import Server, SetupError, Text, ToolResult
from wire import MODERN, Wire

HUGE = 2**70
REVISIONS = pytest.mark.parametrize("version", [MODERN, "2025-11-25", "2024-11-05"])


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


class Count(int):
    pass


class Share(float):
    pass


class Names(list[Any]):
    pass


class Prices(dict[str, Any]):
    pass


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


def new_server() -> Server:
    return Server("values", version="1.0.0")


async def call(server: Server, arguments: str = "{}", version: str = MODERN) -> dict[str, Any]:
    """The result of the tool `t`; the arguments are JSON text, so that any number may be in them."""
    async with Wire(server, version) as wire:
        request = wire.request("tools/call", {"name": "t", "arguments": "HERE"})
        wire.send(json.dumps(request).replace('"HERE"', arguments).encode())
        while "id" not in (answer := await wire.receive()):
            pass
        result: dict[str, Any] = answer["result"]
        return result


def returning(value: Any, annotation: Any = ...) -> Server:
    def give():  # type: ignore[no-untyped-def]
        return value

    if annotation is not ...:
        give.__annotations__["return"] = annotation
    server = new_server()
    server.add_tool(give, name="t")
    return server


def texts(result: dict[str, Any]) -> list[str]:
    return [block["text"] for block in result["content"]]


# Large numbers


@REVISIONS
@pytest.mark.parametrize(
    ("value", "annotation"),
    [(HUGE, int), (-HUGE, int), ({"a": HUGE}, dict), ([HUGE], list[int]), (HUGE, ...), ({"a": [HUGE]}, ...)],
    ids=["int", "negative", "dict", "list", "nothing", "dict in nothing"],
)
async def test_huge_integers_go_out_whole(value: Any, annotation: Any, version: str) -> None:
    result = await call(returning(value, annotation), version=version)
    assert not result.get("isError"), result
    assert json.loads(texts(result)[0]) == value
    if annotation is not ... and version == MODERN:
        assert result["structuredContent"] == value


@pytest.mark.parametrize(
    ("value", "annotation"), [(10**5000, int), ({"a": 10**5000}, dict), (10**5000, ...)], ids=["int", "dict", "nothing"]
)
async def test_integers_without_end_are_refused(value: Any, annotation: Any, caplog: pytest.LogCaptureFixture) -> None:
    result = await call(returning(value, annotation))
    assert result["isError"] is True
    assert "does not fit its own description" in texts(result)[0]
    assert "return it as a string" in caplog.text


async def test_huge_integers_come_in_whole() -> None:
    server = new_server()
    seen: list[Any] = []

    @server.tool
    def t(number: int, anything: Any, many: list[int]) -> int:
        seen.append((number, anything, many))
        return number + 1

    result = await call(server, f'{{"number": {HUGE}, "anything": {{"a": -{HUGE}}}, "many": [{HUGE}]}}')
    assert result["structuredContent"] == HUGE + 1
    assert seen == [(HUGE, {"a": -HUGE}, [HUGE])]


@REVISIONS
@pytest.mark.parametrize("number", ["1e999", "9" * 5000], ids=["large", "long"])
async def test_a_number_that_is_too_large_is_named(number: str, version: str) -> None:
    server = new_server()

    @server.tool
    def t(number: float, anything: Any = None) -> None: ...

    for arguments, name in (
        (f'{{"number": {number}}}', "number"),
        (f'{{"number": 1, "anything": {number}}}', "anything"),
    ):
        result = await call(server, arguments, version)
        assert result["isError"] is True
        assert texts(result) == [f"Invalid arguments for t:\n- {name}: is too large a number"]


# Subclasses of the builtin types


@REVISIONS
@pytest.mark.parametrize(
    ("value", "annotation", "plain"),
    [
        (Name("a"), str, "a"),
        (Name("é"), str, "é"),
        (Name("a"), ..., "a"),
        (Word.YES, str, "yes"),
        (Word.YES, ..., "yes"),
        (Count(5), int, 5),
        (Count(5), ..., 5),
        (Count(HUGE), int, HUGE),
        (Level.LOW, int, 1),
        (Level.LOW, ..., 1),
        (Share(0.5), float, 0.5),
        (Share(0.5), ..., 0.5),
        (Prices(a=Name("b")), dict, {"a": "b"}),
        (Prices({Name("a"): Count(5)}), dict, {"a": 5}),
        (Prices(a=Names([Level.LOW])), ..., {"a": [1]}),
        (Names([Name("a"), Prices(a=1)]), list, ["a", {"a": 1}]),
        (Names([Name("a")]), list[str], ["a"]),
        (Names([Name("a")]), ..., ["a"]),
        ({"a": Name("b"), "c": Count(5)}, dict[str, Any], {"a": "b", "c": 5}),
        (ToolResult(structured={"a": Name("b")}), ..., {"a": "b"}),
        (ToolResult(structured=Prices(a=Count(5))), dict, {"a": 5}),
    ],
)
async def test_subclasses_of_builtins_go_out_as_plain_json(
    value: Any, annotation: Any, plain: Any, version: str
) -> None:
    result = await call(returning(value, annotation), version=version)
    assert not result.get("isError"), result
    (text,) = texts(result)
    assert text == plain if isinstance(plain, str) else json.loads(text) == plain
    if "structuredContent" in result and version == MODERN:
        assert result["structuredContent"] == plain


@pytest.mark.parametrize(
    "value",
    [
        Text(Name("a")),
        [Text(Name("a"))],
        ToolResult(content=[Name("a")]),  # type: ignore[list-item]
        ToolResult(content=[Text(Name("a"))], meta={"org.example/a": Count(5)}),
    ],
)
async def test_content_made_of_subclasses(value: Any) -> None:
    assert texts(await call(returning(value))) == ["a"]


# Dataclasses


@dataclasses.dataclass
class Order:
    item: str
    count: int = 1
    notes: list[str] = dataclasses.field(default_factory=list)


async def test_a_dataclass_comes_back_with_all_its_fields() -> None:
    server = new_server()

    @server.tool
    def t(order: Order, more: list[Order]) -> list[Order]:
        return [order, *more]

    result = await call(server, '{"order": {"item": "a"}, "more": [{"item": "b", "count": 2}]}')
    assert result["structuredContent"] == [
        {"item": "a", "count": 1, "notes": []},
        {"item": "b", "count": 2, "notes": []},
    ]


# Lists in URIs


@pytest.mark.parametrize(
    ("uri", "annotation"),
    [("a://{/x*}", str), ("a://{x*}", int), ("a://b{?x*}", str), ("a://b{?x*}", int | None), ("a://{/x*}", dict)],
)
def test_a_variable_that_gives_a_list_needs_a_parameter_that_takes_one(uri: str, annotation: Any) -> None:
    def read(x=None): ...  # type: ignore[no-untyped-def]

    read.__annotations__["x"] = annotation
    with pytest.raises(SetupError, match=r"resource read .*\['x'\].*drop the \*"):
        new_server().add_resource(uri, read)


@pytest.mark.parametrize(
    ("uri", "annotation", "given", "expected"),
    [
        ("a://{/x*}", list[str], "a:///b/c", ["b", "c"]),
        ("a://{/x*}", Any, "a:///b/c", ["b", "c"]),
        ("a://{x*}", list[int], "a://1,2", [1, 2]),
        ("a://b{?x*}", list[str] | None, "a://b?x=1&x=2", ["1", "2"]),
    ],
)
async def test_a_variable_that_gives_a_list(uri: str, annotation: Any, given: str, expected: Any) -> None:
    def read(x=None):  # type: ignore[no-untyped-def]
        return {"x": x}

    read.__annotations__["x"] = annotation
    server = new_server()
    server.add_resource(uri, read)
    async with Wire(server, MODERN) as wire:
        result = await wire.ask("resources/read", {"uri": given})
    assert json.loads(result["contents"][0]["text"]) == {"x": expected}
