"""Defaults of parameters fit their annotations, and decoded dataclasses have all their fields."""

import dataclasses
import datetime
import decimal
import enum
import pathlib
from collections import deque
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from dovetail.errors import SetupError
from dovetail.registry.arguments import Arguments
from dovetail.registry.fields import Field
from dovetail.registry.functions import inspect_function
from dovetail.registry.outputs import to_jsonable
from stable_ids import stable


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
    tags: list[str] = dataclasses.field(default_factory=list)


class Model(pydantic.BaseModel):
    x: int = 1


UserId = NewType("UserId", int)
Limit = TypeAliasType("Limit", Annotated[int, Field(le=10)])


def compiled(annotation: Any, *default: Any) -> Arguments:
    def tool(x): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["x"] = annotation
    tool.__defaults__ = default
    return Arguments(inspect_function(tool))


@pytest.mark.parametrize(
    ("annotation", "default", "words"),
    [
        (int, "x", ["the default 'x'", "expected an integer"]),
        (int, 1.5, ["the default 1.5", "expected an integer"]),
        (int, True, ["the default True", "expected an integer"]),
        (bool, 1, ["the default 1", "expected true or false"]),
        (str, 5, ["the default 5", "expected a string"]),
        (float, "1", ["the default '1'", "expected a number"]),
        (int | None, "", ["the default ''"]),
        (Annotated[int, Field(ge=1)], "x", ["expected an integer"]),
        (Annotated[int, Field("x")], ..., ["the default 'x'", "expected an integer"]),
        (list[str], "", ["expected an array"]),
        (int, 1e6, ["expected an integer"]),
        (dict[str, int], 0, ["expected an object"]),
        (Literal["a", "b"], "c", ["the default 'c'"]),
        (Colour, "RED", ["the default 'RED'", "one of the allowed values"]),
        (Level, 5, ["one of the allowed values"]),
        (datetime.date, "today", ["must be a date"]),
        (pathlib.Path, 5, ["expected a string"]),
        (Point, 5, ["expected an object"]),
        (Model, 5, ["the default 5"]),
        (UserId, "x", ["expected an integer"]),
        (Limit, "x", ["expected an integer"]),
        (None, 5, ["expected null"]),
        (str, "x" * 500, []),
    ],
    ids=stable,
)
def test_defaults_that_do_not_fit(annotation: Any, default: Any, words: list[str]) -> None:
    if not words:
        assert compiled(annotation, default).decode(b"{}") == {"x": default}
        return
    with pytest.raises(SetupError) as caught:
        compiled(annotation, *([] if default is ... else [default]))
    message = str(caught.value)
    assert message.startswith("tool tool (")
    assert ", parameter x: the default " in message
    assert message.endswith("; change the default or the annotation")
    assert [word for word in words if word not in message] == []
    assert "msgspec" not in message
    assert "`" not in message


def test_a_long_default_is_not_repeated() -> None:
    with pytest.raises(SetupError) as caught:
        compiled(int, "x" * 5000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (int, None),
        (int, 5),
        (int, 2**70),
        (float, 5),
        (float, float("inf")),
        (float | None, 1),
        (bool, False),
        (str, ""),
        (bytes, "aGk="),
        (pathlib.Path, "x"),
        (datetime.date, "2024-05-17"),
        (decimal.Decimal, "1.5"),
        (decimal.Decimal, 1.5),
        (Colour, "red"),
        (Colour, Colour.RED),
        (Level, 1),
        (Literal["a", 1], 1),
        (int | str, "x"),
        (Any, "x"),
        (object, 5),
        (UserId, 5),
        (Limit, 5),
        (pydantic.SecretStr, "x"),
        (pydantic.HttpUrl, "http://a.example/"),
        (Annotated[int, Field(ge=1)], 0),  # outside its own limits, but of the right type: "none given"
        (Annotated[str, Field(min_length=1, pattern="^a")], ""),
        (Annotated[int | None, Field(ge=1)], -1),
        (int, object()),  # only plain values are looked at
        (list[int], ()),
    ],
    ids=stable,
)
def test_defaults_that_are_welcome(annotation: Any, default: Any) -> None:
    assert compiled(annotation, default).decode(b"{}")["x"] == default


def test_defaults_of_prompts_too() -> None:
    def prompt(count: int = "three") -> None: ...  # type: ignore[assignment]

    with pytest.raises(SetupError, match=r"prompt prompt .*, parameter count: the default 'three' does not fit"):
        Arguments(inspect_function(prompt, kind="prompt"))


# Dataclasses: msgspec leaves a plain default to the class, where `vars` and encoders do not look


@dataclasses.dataclass(frozen=True)
class Line:
    start: Point
    end: Point = dataclasses.field(default_factory=lambda: Point(0))
    colour: str = "red"


@dataclasses.dataclass
class Special(Point):
    z: int = 3


@dataclasses.dataclass
class Tree:
    name: str = "leaf"
    branches: "list[Tree]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Slotted:
    point: Point
    size: int = 1


@dataclasses.dataclass
class Computed:
    point: Point
    total: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class Limited:
    x: Annotated[int, Field(ge=0)] = 1
    point: Point | None = None


@dataclasses.dataclass
class Other:
    name: str
    size: int = 4


class Holder(msgspec.Struct, rename="camel"):
    the_point: Point


@attrs.define
class Box:
    point: Point = attrs.field(alias="where")


@attrs.define(slots=False)
class Bag:
    x: int
    y: int = 2


class Pair(NamedTuple):
    first: Point
    second: int = 1


class Row(TypedDict):
    point: Point


FULL = {"x": 1, "y": 2, "tags": []}
POINT = '{"x": 1}'


@pytest.mark.parametrize(
    ("annotation", "text", "expected"),
    [
        (Point, POINT, FULL),
        (Point | None, POINT, FULL),
        (Point, '"{\\"x\\": 1}"', FULL),
        (Annotated[Point, "words"], POINT, FULL),
        (TypeAliasType("Alias", Point), POINT, FULL),  # type: ignore[misc]
        (list[Point], f"[{POINT}, {POINT}]", [FULL, FULL]),
        (tuple[Point, int], f"[{POINT}, 1]", [FULL, 1]),
        (deque[Point], f"[{POINT}]", [FULL]),
        (dict[str, list[Point]], f'{{"a": [{POINT}]}}', {"a": [FULL]}),
        (Point | Other, '{"name": "a"}', {"name": "a", "size": 4}),
        (list[Point | Other], f"[{POINT}]", [FULL]),
        (Special, POINT, FULL | {"z": 3}),
        (Line, f'{{"start": {POINT}}}', {"start": FULL, "end": FULL | {"x": 0}, "colour": "red"}),
        (
            Tree,
            '{"branches": [{"branches": [{}]}]}',
            {"name": "leaf", "branches": [{"name": "leaf", "branches": [{"name": "leaf", "branches": []}]}]},
        ),
        (Slotted, f'{{"point": {POINT}}}', {"point": FULL, "size": 1}),
        (Computed, f'{{"point": {POINT}}}', {"point": FULL, "total": 0}),
        (Limited, f'{{"point": {POINT}}}', {"x": 1, "point": FULL}),
        (Holder, f'{{"thePoint": {POINT}}}', {"thePoint": FULL}),
        (Box, f'{{"point": {POINT}}}', {"point": FULL}),
        (Bag, POINT, {"x": 1, "y": 2}),
        (Pair, f"[{POINT}]", [FULL, 1]),
        (Row, f'{{"point": {POINT}}}', {"point": FULL}),
    ],
    ids=stable,
)
def test_decoded_dataclasses_are_complete(annotation: Any, text: str, expected: Any) -> None:
    found = compiled(annotation).decode(f'{{"x": {text}}}'.encode())["x"]
    assert to_jsonable(found) == expected


def test_a_deep_tree_is_complete() -> None:
    text = '{"branches": [' * 150 + "{}" + "]}" * 150
    tree = compiled(Tree).decode(f'{{"x": {text}}}'.encode())["x"]
    for _ in range(150):
        assert vars(tree)["name"] == "leaf"
        tree = tree.branches[0]
    assert vars(tree) == {"name": "leaf", "branches": []}


def test_what_was_given_stays() -> None:
    assert compiled(Point).decode(b'{"x": {"x": 1, "y": 5, "tags": ["a"]}}')["x"] == Point(1, 5, ["a"])
