"""Types and the JSON Schema that hosts see."""

import dataclasses
import enum
from typing import Annotated, Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from argument_types import schema_for
from typing_extensions import TypeAliasType

from dovetail.errors import SetupError
from dovetail.registry.fields import Field
from stable_ids import stable

T = TypeVar("T")
INTEGER = {"type": "integer"}
STRING = {"type": "string"}


def schema(annotation: Any) -> dict[str, Any]:
    return schema_for(annotation, where="tool t")


class Colour(enum.Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    """A point on   the map."""

    x: int
    y: Annotated[int, Field(ge=0, description="Up.")] = 0


@dataclasses.dataclass
class Line:
    start: Point
    end: Annotated[Point, "Where it ends."]


@dataclasses.dataclass
class Node:
    value: int
    children: "list[Node]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]
    next: "Page[T] | None" = None


class Pair(msgspec.Struct, Generic[T], rename="camel"):
    first_one: T
    second_one: T | msgspec.UnsetType = msgspec.UNSET


class IntPair(Pair[int]):
    pass


class Cat(msgspec.Struct, tag="cat", forbid_unknown_fields=True):
    lives: int


class Options(TypedDict, total=False):
    b: int
    a: str


class Strict(TypedDict):
    b: int
    a: NotRequired[str]


class Place(NamedTuple):
    name: str
    zoom: int = 3


class Model(pydantic.BaseModel):
    """A model."""

    point: "Point2"
    parent: "Model | None" = None
    label: str = pydantic.Field("x", title="Label given", max_length=5)


class Point2(pydantic.BaseModel):
    x: int


Model.model_rebuild()
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")
Names = TypeAliasType("Names", list[str])
Many = TypeAliasType("Many", list[T], type_params=(T,))
POINT = {
    "type": "object",
    "description": "A point on the map.",
    "properties": {
        "x": INTEGER,
        "y": {"type": "integer", "minimum": 0, "description": "Up.", "default": 0},
    },
    "required": ["x"],
}
NODE = {
    "type": "object",
    "properties": {"value": INTEGER, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
    "required": ["value"],
}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Point, POINT),
        (list[Point], {"type": "array", "items": POINT}),
        (Node, {**NODE, "$defs": {"Node": NODE}}),
        (list[Node], {"type": "array", "items": {"$ref": "#/$defs/Node"}, "$defs": {"Node": NODE}}),
        (Colour, {"type": "string", "enum": ["red", "blue"], "description": "A colour."}),
        (Names, {"type": "array", "items": STRING}),
        (Many[int], {"type": "array", "items": INTEGER}),
        (Annotated[Names, Field(min_length=1)], {"type": "array", "items": STRING, "minItems": 1}),
        (Options, {"type": "object", "properties": {"b": INTEGER, "a": STRING}}),
        (Strict, {"type": "object", "properties": {"b": INTEGER, "a": STRING}, "required": ["b"]}),
        (
            Place,
            {
                "type": "array",
                "prefixItems": [STRING, {"type": "integer", "default": 3}],
                "items": {},
                "minItems": 1,
                "maxItems": 2,
            },
        ),
        (
            Pair[int],
            {"type": "object", "properties": {"firstOne": INTEGER, "secondOne": INTEGER}, "required": ["firstOne"]},
        ),
        (
            IntPair,
            {"type": "object", "properties": {"firstOne": INTEGER, "secondOne": INTEGER}, "required": ["firstOne"]},
        ),
        (
            Cat,
            {
                "type": "object",
                "properties": {"type": {"type": "string", "enum": ["cat"]}, "lives": INTEGER},
                "required": ["type", "lives"],
                "additionalProperties": False,
            },
        ),
        (
            Annotated[int | None, Field(ge=1, description="d", examples=[1], header="H", deprecated=True, title="t")],
            {
                "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
                "title": "t",
                "description": "d",
                "examples": [1],
                "deprecated": True,
                "x-mcp-header": "H",
            },
        ),
        (
            Annotated[str, Field(description="d", header="H", extra={"const": "a"})] | None,
            {
                "anyOf": [{"type": "string", "const": "a"}, {"type": "null"}],
                "description": "d",
                "x-mcp-header": "H",
            },
        ),
        (Annotated[bytes, Field(max_length=4)], {"type": "string", "contentEncoding": "base64", "maxLength": 8}),
        (Annotated[str, Field(format="email", extra={"x-a": 1})], {"type": "string", "format": "email", "x-a": 1}),
    ],
    ids=stable,
)
def test_schema(annotation: Any, expected: dict[str, Any]) -> None:
    found = schema(annotation)
    assert found == expected
    assert str(found) == str(schema(annotation)), "deterministic"


def test_declared_order() -> None:
    assert list(schema(Options)["properties"]) == ["b", "a"]
    assert next(iter(schema(Point))) == "type"


def test_a_use_may_have_its_own_description() -> None:
    assert schema(Line)["properties"]["end"]["description"] == "Where it ends."
    assert schema(Line)["properties"]["start"]["description"] == "A point on the map."


def test_a_recursive_generic() -> None:
    found = schema(Page[Point])
    assert found["properties"]["items"] == {"type": "array", "items": POINT}
    assert found["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/Page_Point"}
    assert set(found["$defs"]) == {"Page_Point"}


def test_a_recursive_alias() -> None:
    found = schema(Json)
    assert found["anyOf"] == found["$defs"]["Json"]["anyOf"]
    assert found["anyOf"][1] == {"type": "array", "items": {"$ref": "#/$defs/Json"}}


def test_pydantic_models_bring_their_own_schema() -> None:
    found = schema(Model)
    assert found["description"] == "A model."
    assert found["properties"]["point"] == {
        "type": "object",
        "properties": {"x": INTEGER},
        "required": ["x"],
    }
    assert found["properties"]["label"] == {"type": "string", "default": "x", "maxLength": 5, "title": "Label given"}
    assert found["properties"]["parent"]["anyOf"][0] == {"$ref": "#/$defs/Model"}
    assert "title" not in found
    assert "title" not in found["$defs"]["Model"]


def test_two_classes_of_one_name() -> None:
    def first() -> Any:
        @dataclasses.dataclass
        class Node:
            children: list[Any]

        Node.__annotations__["children"] = list[Node]
        return Node

    found = schema(tuple[Node, first()])
    assert found["prefixItems"] == [{"$ref": "#/$defs/Node"}, {"$ref": "#/$defs/Node_2"}]
    assert found["$defs"]["Node"] == NODE

    class Model(pydantic.BaseModel):
        node: "list[Model]"

    Model.model_rebuild()
    again = schema(tuple[Model, globals()["Model"]])
    assert set(again["$defs"]) == {"Model", "Model_2"}
    assert again["prefixItems"][1]["properties"]["parent"]["anyOf"][0] == {"$ref": "#/$defs/Model_2"}


def test_no_discriminators_and_no_dangling_references() -> None:
    class A(pydantic.BaseModel):
        kind: str = "a"

    found = schema(A | Point2)
    assert "$defs" not in found
    assert "$ref" not in str(found)


class Plain:
    pass


class Tuples(enum.Enum):
    RED = (255, 0, 0)


class Empty(enum.Enum):
    pass


class Growing(msgspec.Struct, Generic[T]):
    more: "Growing[list[T]] | None" = None


@dataclasses.dataclass
class WithInitVar:
    x: dataclasses.InitVar[int]


@dataclasses.dataclass
class WithField:
    x: int = Field(5)


class Unread(pydantic.BaseModel):
    x: Annotated[int, Field(ge=1)]


@dataclasses.dataclass
class Unresolved:
    x: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


def _wide(depth: int) -> Any:
    fields: Any = int
    for level in range(depth):
        fields = dataclasses.make_dataclass(f"Level{level}", [("a", fields), ("b", fields)])
    return fields


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Plain, "Plain has no JSON form"),
        (list[Plain], "Plain has no JSON form"),
        (complex, "complex has no JSON form"),
        (type[int], "no JSON form"),
        (Tuples, "use strings or numbers"),
        (Empty, "has no members"),
        (dict[float, int], "can't be the key"),
        (dict[Point, int], "can't be the key"),
        (set[list[int]], "use a list"),
        (frozenset[Point], "use a list"),
        (set[Strict], "use a list"),
        (set[Point2], "use a list"),
        (Annotated[str, Field(pattern="(")], "pattern"),
        (Annotated[str, Field(examples=[object()])], "examples"),
        (Annotated[str, Field(extra={"x-a": object()})], "examples or extra"),
        (dict[tuple[int, int], int], "can't be the key"),
        (Growing[int], "more than 50 classes deep"),
        (WithInitVar, "InitVar"),
        (WithField, "write Annotated"),
        (Unread, "use pydantic's Field"),
        (Unresolved, "module level"),
        ("Nowhere", "can't be resolved"),
        (_wide(15), "too large"),
        (Annotated[int, pydantic.BeforeValidator(int)], "BeforeValidator"),
    ],
    ids=stable,
)
def test_refused(annotation: Any, words: str) -> None:
    with pytest.raises(SetupError) as caught:
        schema(annotation)
    assert str(caught.value).startswith("tool t")
    assert words in str(caught.value)
