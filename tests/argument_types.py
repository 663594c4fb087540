"""Types of every kind that a parameter may have, and arguments that are read for them."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import ipaddress
import pathlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import annotated_types as at
import attrs
import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from dovetail.errors import ArgumentError
from dovetail.registry.arguments import Arguments, RawArguments
from dovetail.registry.functions import inspect_function
from dovetail.schema.constraints import Field
from dovetail.schema.generate import SchemaWriter
from dovetail.schema.types import ShapeBuilder
from stable_ids import stable

T = TypeVar("T")


def schema_for(annotation: Any, where: str) -> dict[str, Any]:
    writer = SchemaWriter(where)
    return writer.finish(writer.write(ShapeBuilder().read(annotation, where)))


Colour = enum.Enum("Colour", {"RED": "red", "BLUE": "blue"})
Level = enum.IntEnum("Level", {"LOW": 1, "HIGH": 2})
Odd = enum.Enum("Odd", {"HALF": 0.5, "YES": True, "WORD": "word"})


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Bounded:
    x: Annotated[int, Field(ge=1)]
    code: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")] = "a"


@dataclasses.dataclass
class Dog:
    name: str
    barks: bool = True


@dataclasses.dataclass
class Bird:
    name: str
    wings: int = 2


@dataclasses.dataclass
class Node:
    value: Annotated[int, at.Ge(0)]
    children: "list[Node]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Picky:
    x: int
    doubled: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.x == 13:
            raise ValueError("thirteen brings bad luck")
        self.doubled = 2 * self.x


@attrs.define
class Box:
    size: int = attrs.field(converter=lambda size: size * 10)
    _secret: str = "s"


@attrs.define
class Crate:
    size: int = attrs.field(validator=attrs.validators.gt(3))


@dataclasses.dataclass
class Tree:
    value: int
    branches: "dict[str, Tree]" = dataclasses.field(default_factory=dict)
    model: "Model | None" = None


class Movie(TypedDict):
    title: str
    year: NotRequired[Annotated[int, at.Gt(1800)]]


class Place(NamedTuple):
    name: str
    zoom: Annotated[int, Field(ge=1)] = 3


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Row(msgspec.Struct, tag="row", array_like=True):
    size: int
    code: str = "a"


class Column(msgspec.Struct, tag=2, array_like=True):
    size: Annotated[int, Field(ge=1)]


class Fish(msgspec.Struct, tag="fish"):
    depth: Annotated[float, at.Le(0)]


class Pair(msgspec.Struct, Generic[T], rename="camel", forbid_unknown_fields=True):
    first_one: T
    second_one: Annotated[int, Field(ge=0)] = 0


class Model(pydantic.BaseModel):
    size: int
    tags: list[str] = []

    @pydantic.field_validator("size")
    @classmethod
    def small(cls, value: int) -> int:
        if value > 100:
            raise ValueError("too big to carry")
        return value


@pydantic.dataclasses.dataclass
class Record:
    size: Annotated[int, pydantic.Field(ge=1)]


class Circle(pydantic.BaseModel):
    kind: Literal["circle"]
    radius: float


class Square(pydantic.BaseModel):
    kind: Literal["square"]
    side: float


UserId = NewType("UserId", int)
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")
Limit = TypeAliasType("Limit", Annotated[int, Field(le=10)])
TODAY, TEN = datetime.date(2024, 5, 17), datetime.datetime(2024, 5, 17, 10)
ID = uuid.UUID(int=7)


def compiled(annotation: Any, default: Any = ..., **options: Any) -> Arguments:
    def tool(x): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["x"] = annotation
    tool.__defaults__ = None if default is ... else (default,)
    return Arguments(inspect_function(tool), **options)


def read(annotation: Any, text: str, **options: Any) -> Any:
    return compiled(annotation, **options).decode(f'{{"x": {text}}}'.encode())["x"]


def problems(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(ArgumentError) as caught:
        call()
    for line in caught.value.problems:
        assert "msgspec" not in line
        assert "`" not in line
    return caught.value.problems


# type, JSON, value, wrong JSON, the line that explains it
TABLE: list[tuple[Any, str, Any, str, str]] = [
    (int, "5", 5, '"ten"', 'x: expected an integer, got the string "ten"'),
    (int, "5.0", 5, "true", "x: expected an integer, got true"),
    (float, "5", 5.0, "null", "x: expected a number, got null"),
    (str, '"5"', "5", "5", "x: expected a string, got the integer 5"),
    (bool, "true", True, "1", "x: expected true or false, got the integer 1"),
    (None, "null", None, "0", "x: expected null, got the integer 0"),
    (bytes, '"aGk="', b"hi", '"*"', "x: must be in"),
    (datetime.date, '"2024-05-17"', TODAY, '"2024-13-01"', "x: must be a date"),
    (datetime.datetime, '"2024-05-17T10:00:00Z"', TEN.replace(tzinfo=datetime.UTC), '"soon"', "x: must be a date-time"),
    (datetime.datetime, '"2024-05-17T10:00:00"', TEN, "5", "x: expected a string"),
    (datetime.time, '"10:30:00"', datetime.time(10, 30), '"25:00"', "x: must be a time"),
    (datetime.timedelta, '"PT90S"', datetime.timedelta(seconds=90), '"90 s"', "x: must be a duration"),
    (uuid.UUID, f'"{ID}"', ID, '"7"', "x: must be a UUID"),
    (decimal.Decimal, '"12.50"', decimal.Decimal("12.50"), '"much"', "x: must be a decimal"),
    (decimal.Decimal, "12.5", decimal.Decimal("12.5"), "null", "x: expected"),
    (pathlib.Path, '"/tmp"', pathlib.Path("/tmp"), "5", "x: expected a string, got the integer 5"),
    (ipaddress.IPv4Address, '"10.0.0.1"', ipaddress.IPv4Address("10.0.0.1"), '"10.0.0"', "x: "),
    (Any, '{"a": [1]}', {"a": [1]}, "", ""),
    (object, "[1]", [1], "", ""),
    (UserId, "5", 5, "null", "x: expected an integer, got null"),
    (Limit, "10", 10, "11", "x: must be at most 10, got 11"),
    (Literal["a", "b"], '"b"', "b", '"c"', 'x: must be one of "a", "b"; got "c"'),
    (Literal["a", 1, None], "null", None, "2", 'x: must be one of "a", 1 or null; got 2'),
    (Literal[True], "true", True, "1", "x: "),
    (Literal[Colour.RED], '"red"', Colour.RED, '"blue"', "x: "),
    (Colour, '"blue"', Colour.BLUE, '"green"', 'x: must be one of "red", "blue"; got "green"'),
    (Level, "2", Level.HIGH, "3", "x: must be one of 1, 2; got 3"),
    (Odd, "0.5", Odd.HALF, "1", "x: "),
    (int | None, "null", None, "[]", "x: expected"),
    (int | str, '"5"', "5", "[]", "x: expected"),
    (list[int], "[1, 2.0]", [1, 2], '[1, "x"]', 'x[1]: expected an integer, got the string "x"'),
    (list, '[1, "a"]', [1, "a"], "{}", "x: expected an array, got an object"),
    (set[int], "[1, 2]", {1, 2}, "5", "x: expected an array, got the integer 5"),
    (frozenset[str], '["a"]', frozenset("a"), "[1]", "x[0]: expected a string, got the integer 1"),
    (tuple[int, ...], "[1, 2]", (1, 2), "null", "x: expected an array, got null"),
    (tuple[int, str], '[1, "a"]', (1, "a"), '["a", "a"]', 'x[0]: expected an integer, got the string "a"'),
    (Sequence[int], "[1]", [1], "1", "x: expected an array, got the integer 1"),
    (Iterable[int], "[1]", [1], "1", "x: expected an array, got the integer 1"),
    (collections.deque[int], "[1]", collections.deque([1]), "[null]", "x[0]: expected an integer, got null"),
    (collections.deque[dict[int, str]], '[{"1": "a"}]', collections.deque([{1: "a"}]), '[{"b": "a"}]', "x[0].b: is"),
    (dict[str, int], '{"a": 1}', {"a": 1}, '{"a": null}', "x.a: expected an integer, got null"),
    (dict[int, str], '{"1": "a"}', {1: "a"}, '{"b": "a"}', "x"),
    (dict[Literal["a"], int], '{"a": 1}', {"a": 1}, '{"b": 1}', "x"),
    (dict, '{"a": 1}', {"a": 1}, "[]", "x: expected an object, got an array"),
    (Mapping[str, Any], '{"a": 1}', {"a": 1}, "[]", "x: expected an object, got an array"),
    (Annotated[int, Field(gt=1, multiple_of=2)], "4", 4, "5", "x: must be a multiple of 2, got 5"),
    (Annotated[int, Field(ge=1.5)], "2", 2, "1", "x: must be at least 1.5, got 1"),
    (Annotated[float, Field(multiple_of=0.1)], "0.3", 0.3, "0.35", "x: must be a multiple of 0.1, got 0.35"),
    (Annotated[int, Field(ge=1, gt=1)], "2", 2, "1", "x: must be more than 1, got 1"),
    (Annotated[str, Field(max_length=3)], '"abc"', "abc", '"abcd"', "x: must have at most 3 characters, has 4"),
    (Annotated[str, Field(pattern="^a+$")], '"aa"', "aa", '"b"', "x: "),
    (Annotated[list[int], Field(min_length=1)], "[1]", [1], "[]", "x: must have at least 1 item"),
    (Annotated[str, Field(extra={"const": "a"})], '"a"', "a", '"b"', "x: "),
    (Annotated[int | None, at.Ge(1)], "null", None, "0", "x"),
    (Annotated[list[str] | str, Field(min_length=2)], '"ab"', "ab", '"a"', "x"),
    (pydantic.PositiveInt, "1", 1, "0", "x: must be more than 0, got 0"),
    (Point, '{"x": 1}', Point(1), '{"y": 1}', "x.x: "),
    (Bounded, '{"x": 1, "code": "b"}', Bounded(1, "b"), '{"x": 0}', "x.x: must be at least 1, got 0"),
    (Bounded, '{"x": 1}', Bounded(1), '{"x": 1, "code": "B"}', "x.code: "),
    (Picky, '{"x": 2}', Picky(2), '{"x": 13}', "x: thirteen brings bad luck"),
    (Box, '{"size": 2, "_secret": "t"}', Box(2, "t"), '{"size": "big"}', "x.size: expected an integer"),
    (Crate, '{"size": 4}', Crate(4), '{"size": 2}', "x: 'size' must be > 3: 2"),
    (Movie, '{"title": "M", "year": 1931}', {"title": "M", "year": 1931}, '{"title": "M", "year": 1}', "x.year: "),
    (Place, '["Rome"]', Place("Rome"), '["Rome", 0]', "x[1]: must be at least 1, got 0"),
    (Cat | Fish, '{"type": "fish", "depth": -1}', Fish(-1), '{"type": "cow"}', "x"),
    (Pair[str], '{"firstOne": "a"}', Pair("a"), '{"firstOne": "a", "secondOne": -1}', "x.secondOne: must be at least"),
    (Pair[str], '{"firstOne": "a"}', Pair("a"), '{"firstOne": "a", "third": 1}', "x"),
    (Row, '["row", 5]', Row(5), "[5]", 'x[0]: must be "row", got 5'),
    (Row, '["row", 5, "b"]', Row(5, "b"), '["row"]', "x: must have at least 2 items, has 1"),
    (Column, "[2, 5]", Column(5), "[2, 0]", "x[1]: must be at least 1, got 0"),
    (Row | Column, "[2, 5]", Column(5), "[3, 5]", 'x[0]: must be one of "row", 2; got 3'),
    (Node, '{"value": 1, "children": [{"value": 2}]}', Node(1, [Node(2)]), '{"value": -1}', "x.value: must be at"),
    (Tree, '{"value": 1, "branches": {"a": {"value": 2}}}', Tree(1, {"a": Tree(2)}), '{"value": null}', "x.value: "),
    (
        Tree, '{"value": 1, "model": {"size": 1}}', Tree(1, model=Model(size=1)),
        '{"value": 1, "branches": {"a": {}}}', "x.branches.a.value: required, but missing",
    ),
    (Dog | Bird, '{"name": "a", "wings": 3}', Bird("a", 3), '{"name": 1}', "x"),
    (Dog | Movie | None, '{"title": "M"}', {"title": "M"}, "5", "x"),
    (list[Dog | Bird], '[{"name": "a", "barks": false}]', [Dog("a", False)], "[5]", "x"),
    (datetime.date | str, '"2024-05-17"', TODAY, "5", "x: expected"),
    (datetime.date | str, '"some day"', "some day", "[]", "x: expected"),
    (pathlib.Path | int, "5", 5, "null", "x: expected"),
    (Json, '{"a": [1, null, {"b": "c"}]}', {"a": [1, None, {"b": "c"}]}, "[1.5]", "x"),
    (Model, '{"size": 5}', Model(size=5), '{"size": "big"}', 'x.size: expected an integer, got the string "big"'),
    (Model, '{"size": 5}', Model(size=5), '{"size": 500}', "x.size: too big to carry"),
    (Record, '{"size": 1}', Record(1), '{"size": 0}', "x.size: must be at least 1, got 0"),
    (list[Record] | None, '[{"size": 1}]', [Record(1)], '[{"size": 0}]', "x[0].size: must be at least 1, got 0"),
    (set, "[1]", {1}, "[[1]]", "x: does not fit its type"),
    (list[Model], '[{"size": 5}]', [Model(size=5)], '[{"size": 500}]', "x[0].size: too big to carry"),
    (Model | None, "null", None, '{"size": 500}', "x.size: too big to carry"),
    (Model | str, '{"size": 5}', Model(size=5), "5", "x"),
    (dict[str, Model], '{"a": {"size": 5}}', {"a": Model(size=5)}, '{"a": {"size": 500}}', "x"),
    (Circle | Square, '{"kind": "square", "side": 2}', Square(kind="square", side=2), '{"kind": "cube"}', "x"),
    (
        Annotated[Circle | Square, pydantic.Field(discriminator="kind")], '{"kind": "circle", "radius": 1}',
        Circle(kind="circle", radius=1), '{"kind": "cube"}', "x",
    ),
    (pydantic.HttpUrl, '"http://a.example/"', pydantic.HttpUrl("http://a.example/"), '"nowhere"', "x: "),
    (Annotated[Model, pydantic.AfterValidator(lambda m: m)], '{"size": 1}', Model(size=1), "5", "x: expected an"),
]  # fmt: skip
TABLE_IDS = [f"{stable(row[0])}-{number}" for number, row in enumerate(TABLE)]
RAW = {
    "type": "object",
    "properties": {
        "size": {"$ref": "#/$defs/size"},
        "tags": {"type": "array", "items": {"type": "string"}, "default": ["a"]},
        "word": {"type": ["string", "null"]},
    },
    "required": ["size"],
    "$defs": {"size": {"type": "integer", "minimum": 1}},
}


def raw_arguments(schema: Any = RAW, **options: Any) -> Any:
    info = inspect_function(lambda **arguments: None, name="t", open_ended=True)
    return RawArguments(schema, where="tool t", info=info, **options)


def nested(levels: int, wrap: Callable[[Any], Any], inner: Any) -> Any:
    return functools.reduce(lambda value, _: wrap(value), range(levels), inner)
