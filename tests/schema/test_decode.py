"""Defaults that fit their annotations, and decoded dataclasses with all their fields."""

import dataclasses
import datetime
import decimal
import pathlib
import re
from collections import deque
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from argument_types import Bounded, Colour, Dog, Level, Limit, Model, Point, compiled
from dovetail.errors import SetupError
from dovetail.schema.constraints import Field
from dovetail.schema.encode import to_jsonable
from stable_ids import stable


@pytest.mark.parametrize(
    ("annotation", "default", "words"),
    [
        (int, "x" * 5000, ["expected an integer"]),
        (int, 1.5, ["the default 1.5", "expected an integer"]),
        (int, True, ["the default True", "expected an integer"]),
        (bool, 1, ["the default 1", "expected true or false"]),
        (str, 5, ["the default 5", "expected a string"]),
        (float, "1", ["the default '1'", "expected a number"]),
        (int | None, "", ["the default ''"]),
        (Annotated[int, Field(ge=1)], "x", ["expected an integer"]),
        (Annotated[int, Field("x")], ..., ["the default 'x'", "expected an integer"]),
        (list[str], "", ["expected an array"]),
        (dict[str, int], 0, ["expected an object"]),
        (Literal["a", "b"], "c", ["the default 'c'"]),
        (Colour, "RED", ["the default 'RED'", "one of the allowed values"]),
        (Level, 5, ["one of the allowed values"]),
        (datetime.date, "today", ["must be a date"]),
        (pathlib.Path, 5, ["expected a string"]),
        (Point, 5, ["expected an object"]),
        (Model, 5, ["the default 5"]),
        (Limit, "x", ["expected an integer"]),
        (None, 5, ["expected null"]),
    ],
    ids=stable,
)
def test_defaults_that_do_not_fit(annotation: Any, default: Any, words: list[str]) -> None:
    with pytest.raises(SetupError) as caught:
        compiled(annotation, default)
    message = str(caught.value)
    assert re.fullmatch(r"tool tool \(.*, parameter x: the default .*; change the default or the annotation", message)
    assert [word for word in words if word not in message] == []
    assert "msgspec" not in message
    assert "`" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (int, None), (int, 5), (int, 2**70), (float, 5), (float, float("inf")), (bool, False), (str, ""),
        (bytes, "aGk="), (pathlib.Path, "x"), (decimal.Decimal, 1.5), (Colour, "red"), (Level, 1),
        (Literal["a", 1], 1), (int | str, "x"), (Any, "x"), (Limit, 5), (pydantic.HttpUrl, "http://a.example/"),
        (int, object()),  # only plain values are looked at
        (list[int], ()),
        # outside its own limits, but of the right type: "none given"
        (Annotated[int, Field(ge=1)], 0), (Annotated[int | None, Field(ge=1)], -1),
        (Annotated[str, Field(min_length=1, pattern="^a")], ""),
    ],
    ids=stable,
)  # fmt: skip
def test_defaults_that_are_welcome(annotation: Any, default: Any) -> None:
    assert compiled(annotation, default).decode(b"{}")["x"] == default


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
    point: Point | None
    total: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class Started:
    name: str
    at: float = dataclasses.field(init=False)  # not set yet
    tries: int = 3


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


FULL = {"x": 1, "y": 0}
POINT = '{"x": 1}'
LEAF: dict[str, Any] = {"name": "leaf", "branches": []}


@pytest.mark.parametrize(
    ("annotation", "text", "expected"),
    [
        (Started, '{"name": "a"}', {"name": "a", "tries": 3}),
        (Point, POINT, FULL),
        (Point, '{"x": 1, "y": 5}', {"x": 1, "y": 5}),
        (Point | None, POINT, FULL),
        (Point, '"{\\"x\\": 1}"', FULL),
        (TypeAliasType("Alias", Point), POINT, FULL),  # type: ignore[misc]
        (list[Point], f"[{POINT}, {POINT}]", [FULL, FULL]),
        (tuple[Point, int], f"[{POINT}, 1]", [FULL, 1]),
        (deque[Point], f"[{POINT}]", [FULL]),
        (dict[str, list[Point]], f'{{"a": [{POINT}]}}', {"a": [FULL]}),
        (Point | Dog, '{"name": "a"}', {"name": "a", "barks": True}),
        (list[Point | Dog], f"[{POINT}]", [FULL]),
        (Special, POINT, FULL | {"z": 3}),
        (Line, f'{{"start": {POINT}}}', {"start": FULL, "end": FULL | {"x": 0}, "colour": "red"}),
        (Tree, '{"branches": [{}]}', LEAF | {"branches": [LEAF]}),
        (Slotted, f'{{"point": {POINT}}}', {"point": FULL, "size": 1}),
        (Computed, f'{{"point": {POINT}}}', {"point": FULL, "total": 0}),
        (Bounded, POINT, {"x": 1, "code": "a"}),
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
    assert vars(tree) == LEAF
