"""Odd values, end to end: what a client sends reaches the function whole, what it returns goes out as plain JSON."""

import json
from typing import Any

import pytest

from dovetail import Server, SetupError, Text, ToolResult
from wire import MODERN, Wire

HUGE = 2**70


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


class Count(int):
    pass


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


# Values that JSON libraries trip over; the table of all of them is in test_outputs


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
    ],
)
async def test_odd_values_go_out_as_plain_json(value: Any, annotation: Any, plain: Any, version: str) -> None:
    result = await call(returning(value, annotation), version=version)
    assert not result.get("isError"), result
    (text,) = texts(result)
    assert text == plain if isinstance(plain, str) else json.loads(text) == plain
    assert version != MODERN or annotation in (..., str) or result["structuredContent"] == plain


@pytest.mark.parametrize(("value", "annotation"), [({"a": 10**5000}, dict), (10**5000, ...)], ids=["dict", "nothing"])
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
    result = await call(server, '{"number": 1, "anything": 1e999, "many": []}')
    assert texts(result) == ["Invalid arguments for t:\n- anything: is too large a number"]


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
