"""Types of values that a function may return."""

import dataclasses
import datetime
import decimal
import enum
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
from typing_extensions import TypeAliasType

from dovetail.registry.fields import Field
from dovetail.registry.outputs import Output


class Text(msgspec.Struct):
    text: str


class Image(msgspec.Struct):
    data: bytes


class Tagged(msgspec.Struct, tag_field="kind", tag="tagged", omit_defaults=True):
    text: str = ""


@attrs.define
class Carrier:
    items: list[Any]


CONTENT = (Text, Image)


def structure(output: Output, value: Any) -> Any:
    """What a client reads of a value that a function has returned."""
    return msgspec.json.decode(output.encode(value))


class Colour(enum.Enum):
    RED = "red"


class Ratio(enum.Enum):
    HALF = 0.5


@dataclasses.dataclass
class Point:
    x: int
    y: Annotated[int, Field(ge=0)] = 0


@dataclasses.dataclass
class Node:
    value: int
    children: "list[Node]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Explosive:
    x: int
    total: int = dataclasses.field(init=False, default=1)

    def __post_init__(self) -> None:
        if self.x != 1:
            raise AssertionError("constructed a second time")
        self.x = 2
        self.total = 1


@attrs.define
class Box:
    size: int


class Movie(TypedDict):
    title: str


class Place(NamedTuple):
    name: str
    zoom: int = 3


class Model(pydantic.BaseModel):
    size: int = pydantic.Field(serialization_alias="theSize")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.size


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


class Money(decimal.Decimal):
    pass


class Count(int):
    def __repr__(self) -> str:
        return "not this"


class Sealed(bytes):
    pass


class Moment(datetime.datetime):
    pass


class Day(datetime.date):
    pass


class Span(datetime.timedelta):
    pass


class Names(list[str]):
    pass


class Prices(dict[str, int]):
    pass


class Level(enum.IntEnum):
    LOW = 1


class Frozen(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return {"a": 1}[key]

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")


CYCLE: list[Any] = []
DEEP: Any = []


INTEGER = {"type": "integer"}
POINT = {
    "type": "object",
    "properties": {"x": INTEGER, "y": {"type": "integer", "minimum": 0, "default": 0}},
    "required": ["x"],
}


@dataclasses.dataclass
class Report:
    title: str
    body: Any


class Album(TypedDict):
    cover: Image
    more: Any
