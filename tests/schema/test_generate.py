"""The JSON Schema of types and constraints, as hosts see it."""

import dataclasses
import datetime
import enum
import math
import re
import subprocess
import sys
import types
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Generic, Literal, NotRequired, Required, TypedDict, TypeVar

import annotated_types as at
import attrs
import msgspec
import pydantic
import pytest
from msgspec import NODEFAULT
from typing_extensions import Doc, ReadOnly, TypeAliasType

from argument_types import Circle, Column, Json, Node, Place, Square, schema_for
from dovetail.errors import SetupError
from dovetail.schema.constraints import Constraints, Field, default_of, read_metadata
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
class Page(Generic[T]):
    items: list[T]
    next: "Page[T] | None" = None


class Pair(msgspec.Struct, Generic[T], rename="camel"):
    first_one: T
    second_one: T | msgspec.UnsetType = msgspec.UNSET


class Cat(msgspec.Struct, tag="cat", forbid_unknown_fields=True):
    lives: int


class Strict(TypedDict):
    b: int
    a: NotRequired[str]


class Model(pydantic.BaseModel):
    """A model."""

    point: "Point2"
    parent: "Model | None" = None
    label: str = pydantic.Field("x", title="Label given", max_length=5)


class Point2(pydantic.BaseModel):
    x: int


Model.model_rebuild()
Names = TypeAliasType("Names", list[str])
Many = TypeAliasType("Many", list[T], type_params=(T,))


def record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


CLOSED = {"additionalProperties": False}
Y = {"type": "integer", "minimum": 0, "description": "Up.", "default": 0}
POINT = record(["x"], x=INTEGER, y=Y) | {"description": "A point on the map."}
CHILDREN = {"type": "array", "items": {"$ref": "#/$defs/Node"}}
NODE = record(["value"], value={"type": "integer", "minimum": 0}, children=CHILDREN)
ITEMS = [STRING, {"type": "integer", "minimum": 1, "default": 3}]
PLACE = {"type": "array", "prefixItems": ITEMS, "items": {}, "minItems": 1, "maxItems": 2}
FIRST = [{"type": "integer", "enum": [2]}, {"type": "integer", "minimum": 1}]
COLUMN = {"type": "array", "prefixItems": FIRST, "items": {}, "minItems": 2, "maxItems": 2}
NOTES: dict[str, Any] = {"description": "d", "header": "H"}
NOTED = {"description": "d", "x-mcp-header": "H"}
OPTIONAL = {
    "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "title": "t", "examples": [1], "deprecated": True,
}  # fmt: skip
BASE64 = {"type": "string", "contentEncoding": "base64"}
SIZED = {"minProperties": 1, "maxProperties": 2}
RANGE = {"exclusiveMinimum": 1, "minimum": 1, "maximum": 2, "exclusiveMaximum": 3, "multipleOf": 0.5}


class Qualified(TypedDict, total=False):
    a: Required[int]
    b: Annotated[Required[int], Field(ge=1)]
    c: ReadOnly[NotRequired[int]]


@attrs.define
class Attributes:
    a: int
    b: int = 5
    c: list[Any] = attrs.field(factory=list)
    d: int = attrs.field(init=False, default=3)
    e: int = attrs.field(default=attrs.Factory(lambda self: self.a, takes_self=True))


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Point, POINT),
        (list[Point], {"type": "array", "items": POINT}),
        (Node, {**NODE, "$defs": {"Node": NODE}}),
        (list[Node], CHILDREN | {"$defs": {"Node": NODE}}),
        (Colour, {"type": "string", "enum": ["red", "blue"], "description": "A colour."}),
        (Names, {"type": "array", "items": STRING}),
        (Annotated[Names, Field(min_length=1)], {"type": "array", "items": STRING, "minItems": 1}),
        (Strict, record(["b"], b=INTEGER, a=STRING)),
        (Place, PLACE),
        (Column, COLUMN),
        (types.new_class("IntPair", (Pair[int],)), record(["firstOne"], firstOne=INTEGER, secondOne=INTEGER)),
        (Cat, record(["type", "lives"], type=STRING | {"enum": ["cat"]}, lives=INTEGER) | CLOSED),
        (Annotated[int | None, Field(ge=1, examples=[1], deprecated=True, title="t", **NOTES)], NOTED | OPTIONAL),
        (
            Annotated[str, Field(**NOTES, extra={"const": "a"})] | None,
            {"anyOf": [{"type": "string", "const": "a"}, {"type": "null"}], **NOTED},
        ),
        (dict[int, Any], {"type": "object", "propertyNames": {"pattern": "^-?[0-9]+$"}}),
        (Many[Annotated[int, []]], {"type": "array", "items": INTEGER}),  # it has no hash
        (Annotated[dict[str, Any], Field(min_length=1, max_length=2)], {"type": "object"} | SIZED),
        (tuple[()], {"type": "array", "items": {}, "minItems": 0, "maxItems": 0}),
        (tuple[int, int], {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}),
        (frozenset[int], {"type": "array", "items": INTEGER, "uniqueItems": True}),
        (Literal[1, "a", None], {"anyOf": [INTEGER | {"enum": [1]}, STRING | {"enum": ["a"]}, {"type": "null"}]}),
        (Annotated[float, Field(gt=1, ge=1, le=2, lt=3, multiple_of=0.5)], {"type": "number", **RANGE}),
        (Annotated[bytes, Field(min_length=1, max_length=3)], BASE64 | {"minLength": 4, "maxLength": 4}),
        (Qualified, record(["a", "b"], a=INTEGER, b=INTEGER | {"minimum": 1}, c=INTEGER)),
        (Attributes, record(["a"], a=INTEGER, b=INTEGER | {"default": 5}, c={"type": "array", "items": {}}, e=INTEGER)),
        *((cls, STRING | {"format": "path"}) for cls in (PurePath, PurePosixPath, PureWindowsPath, Path)),
        (Annotated[bytes, Field(max_length=4)], {"type": "string", "contentEncoding": "base64", "maxLength": 8}),
        (Annotated[datetime.datetime, msgspec.Meta(tz=True)], STRING | {"format": "date-time"}),
        (Annotated[datetime.datetime, msgspec.Meta(tz=False)], STRING),
        (list[Annotated[datetime.time, msgspec.Meta(tz=False)]], {"type": "array", "items": STRING}),
        (Annotated[str, Field(format="email", extra={"x-a": 1})], {"type": "string", "format": "email", "x-a": 1}),
    ],
    ids=stable,
)
def test_schema(annotation: Any, expected: dict[str, Any]) -> None:
    found = schema(annotation)
    assert found == expected
    assert str(found) == str(schema(annotation)), "deterministic"


def test_a_use_may_have_its_own_description() -> None:
    properties = schema(Line)["properties"]
    assert (properties["start"], properties["end"]) == (POINT, POINT | {"description": "Where it ends."})


def test_a_recursive_generic() -> None:
    found = schema(Page[Point])
    assert found["properties"]["items"] == {"type": "array", "items": POINT}
    assert found["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/Page_Point"}
    assert set(found["$defs"]) == {"Page_Point"}
    (name,) = schema(Page[int | None])["$defs"]
    assert re.fullmatch(r"Page_\w*[A-Za-z]", name), "it is part of a JSON pointer"


@dataclasses.dataclass
class Hen:
    eggs: "list[Egg]"


@dataclasses.dataclass
class Egg:
    shell: Point
    within: Hen | None = None


def test_classes_that_contain_each_other() -> None:
    found = schema(dict[str, Hen])
    assert found["additionalProperties"] == {"$ref": "#/$defs/Hen"}
    assert set(found["$defs"]) == {"Hen", "Egg"}
    assert found["$defs"]["Egg"]["properties"]["shell"] == POINT


def test_a_recursive_alias() -> None:
    found = schema(Json)
    assert found["anyOf"] == found["$defs"]["Json"]["anyOf"]
    assert found["anyOf"][1] == {"type": "array", "items": {"$ref": "#/$defs/Json"}}


def test_pydantic_models_bring_their_own_schema() -> None:
    found = schema(Model)
    assert found["description"] == "A model."
    assert found["properties"]["point"] == record(["x"], x=INTEGER)
    assert found["properties"]["label"] == {"type": "string", "default": "x", "maxLength": 5, "title": "Label given"}
    assert found["properties"]["parent"]["anyOf"][0] == {"$ref": "#/$defs/Model"}
    assert "title" not in found.keys() | found["$defs"]["Model"].keys()


DISCRIMINATOR = pydantic.Field(discriminator="kind")
CHECKED = pydantic.AfterValidator(lambda value: value)
CIRCLE = record(["kind", "radius"], kind=STRING | {"const": "circle"}, radius={"type": "number"})
SQUARE = record(["kind", "side"], kind=STRING | {"const": "square"}, side={"type": "number"})
SHAPES, NULL = [CIRCLE, SQUARE], {"type": "null"}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Circle | Square | None, {"anyOf": [*SHAPES, NULL]}),
        (Annotated[Circle | Square, DISCRIMINATOR], {"oneOf": SHAPES}),
        (Annotated[Circle | Square | None, DISCRIMINATOR], {"anyOf": [{"oneOf": SHAPES}, NULL]}),
        (Annotated[Circle | None, CHECKED], {"anyOf": [CIRCLE, NULL]}),
        (Annotated[Annotated[Circle, CHECKED] | Square, CHECKED], {"anyOf": SHAPES}),
        (Circle | Square | Annotated[int, Field(ge=1)], {"anyOf": [*SHAPES, {"type": "integer", "minimum": 1}]}),
    ],
    ids=stable,
)
def test_unions_with_pydantic_models(annotation: Any, expected: dict[str, Any]) -> None:
    assert schema(annotation) == expected


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


class Plain:
    pass


Tuples = enum.Enum("Tuples", {"RED": (255, 0, 0)})
Empty = enum.Enum("Empty", {})


class Growing(msgspec.Struct, Generic[T]):
    more: "Growing[list[T]] | None" = None


class Unread(pydantic.BaseModel):
    x: Annotated[int, Field(ge=1)]


def of(annotation: Any, **options: Any) -> Any:
    """A class of one field."""
    return dataclasses.make_dataclass("Own", [("x", annotation, dataclasses.field(**options))])


def _wide(depth: int) -> Any:
    fields: Any = int
    for level in range(depth):
        fields = dataclasses.make_dataclass(f"Level{level}", [("a", fields), ("b", fields)])
    return fields


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Plain, "Plain has no JSON form"),
        *((types.new_class("Own", bases), "Own has no JSON form") for bases in ((tuple,), (dict,), (list,), (str,))),
        (type("Own", (), {"_field_defaults": {}, "__required_keys__": ()}), "Own has no JSON form"),
        (Annotated[Circle | int, CHECKED], "AfterValidator"),
        (Annotated[Circle | Square | int, DISCRIMINATOR], "discriminator"),
        (Annotated[datetime.date, msgspec.Meta(tz=False)], "tz can't constrain this type"),
        (Tuples, "use strings or numbers"), (Empty, "has no members"),
        (dict[float, int], "can't be the key"), (set[list[int]], "use a list"), (frozenset[Point], "use a list"),
        (set[Point2], "use a list"), (Annotated[str, Field(pattern="(")], "pattern"),
        (Annotated[str, Field(examples=[object()])], "examples"),
        (Annotated[str, Field(extra={"x-a": object()})], "examples or extra"),
        (Growing[int], "more than 50 classes deep"), (of(dataclasses.InitVar[int]), "InitVar"),
        (of(int, default=Field(5)), "write Annotated"), (Unread, "use pydantic's Field"),
        (of("Nowhere"), "module level"), ("Nowhere", "can't be resolved"), (_wide(15), "too large"),
    ],
    ids=stable,
)  # fmt: skip
def test_refused(annotation: Any, words: str) -> None:
    with pytest.raises(SetupError) as caught:
        schema(annotation)
    assert str(caught.value).startswith("tool t")
    assert words in str(caught.value)


# Constraints

WHERE = "tool t (m.t), parameter x"
ALIASES = ("alias", "validation_alias", "serialization_alias")
WORDS: dict[str, Any] = {"description": "d", "title": "t", "examples": [1]}


def read(*metadata: Any) -> Constraints:
    return read_metadata(metadata, WHERE)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Field(ge=1, le=5), {"ge": 1, "le": 5}), (Field(gt=1.5, lt=5), {"gt": 1.5, "lt": 5}),
        (Field(min_length=0, max_length=0, multiple_of=0.1), {"multiple_of": 0.1, "min_length": 0, "max_length": 0}),
        (Field(multiple_of=3), {"multiple_of": 3}), (msgspec.Meta(ge=1, description="d"), {"ge": 1}),
        (Field(min_length=1, max_length=2, pattern="^a"), {"min_length": 1, "max_length": 2, "pattern": "^a"}),
        (msgspec.Meta(tz=True), {"tz": True}), (at.Ge(1), {"ge": 1}), (at.Interval(gt=1, le=9), {"gt": 1, "le": 9}),
        (at.Lt(1), {"lt": 1}), (at.MultipleOf(2), {"multiple_of": 2}),
        (at.Len(2, 3), {"min_length": 2, "max_length": 3}), (pydantic.PositiveInt.__metadata__[0], {"gt": 0}),
        (pydantic.Field(ge=1, max_length=4, pattern="x"), {"ge": 1, "max_length": 4, "pattern": "x"}),
        (pydantic.StringConstraints(min_length=1, pattern="x"), {"min_length": 1, "pattern": "x"}),
        (pydantic.StringConstraints(pattern=re.compile("x")), {"pattern": "x"}), (object(), {}),
    ],
    ids=stable,
)  # fmt: skip
def test_limits(item: Any, expected: dict[str, Any]) -> None:
    assert read(item).limits() == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Field(**WORDS), WORDS),
        (msgspec.Meta(**WORDS), WORDS),
        (pydantic.Field(**WORDS), WORDS),
        ("words", {"description": "words"}),
        (Doc("words"), {"description": "words"}),
        (pydantic.Field(deprecated=True, json_schema_extra={"x-a": 1}), {"deprecated": True, "extra": {"x-a": 1}}),
        (msgspec.Meta(extra_json_schema={"x-a": 1}), {"extra": {"x-a": 1}}),
        (Field(header="R", format="email", extra={"a": 1}), {"header": "R", "format": "email", "extra": {"a": 1}}),
    ],
    ids=stable,
)
def test_notes(item: Any, expected: dict[str, Any]) -> None:
    assert read(item) == Constraints(**expected)


@pytest.mark.parametrize(
    ("name", "values", "together"),
    [
        ("ge", (1, 3), 3), ("gt", (1, 3), 3), ("min_length", (1, 3), 3), ("le", (1, 3), 1), ("lt", (1, 3), 1),
        ("max_length", (1, 3), 1), ("multiple_of", (2, 3), None), ("pattern", ("a", "b"), None),
        ("format", ("date", "time"), None), ("header", ("A", "B"), None),
    ],
)  # fmt: skip
def test_two_of_a_kind(name: str, values: tuple[Any, Any], together: Any) -> None:
    for first, second in (values, values[::-1]):
        items = Field(**{name: first}), Field(**{name: second})
        if together is not None:
            assert read(*items) == Constraints(**{name: together})
        else:
            with pytest.raises(SetupError, match=f"{name} is given twice, as {first!r} and {second!r}"):
                read(*items)
    assert read(Field(**{name: values[0]}), Field(**{name: values[0]})) == Constraints(**{name: values[0]})


def test_several_all_hold() -> None:
    assert read(at.Ge(1), Field(ge=3), at.Le(9), at.Le(5)).limits() == {"ge": 3, "le": 5}
    assert read(at.MinLen(1), msgspec.Meta(min_length=2), at.MaxLen(9)).limits() == {"min_length": 2, "max_length": 9}
    assert read("first", Field(description="last")).description == "last"
    last: dict[str, Any] = {"title": "b", "examples": [2], "deprecated": False}
    assert read(Field(title="a", examples=[1], deprecated=True), Field(**last), Field()) == Constraints(**last)
    assert read(Field(extra={"a": 1}), Field(extra={"b": 2})).extra == {"a": 1, "b": 2}
    assert read(Field(pattern="a"), msgspec.Meta(pattern="a")).pattern == "a"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], (NODEFAULT, None)),
        ([Field(...)], (NODEFAULT, None)),
        ([Field(None)], (None, None)),
        ([Field(5, ge=1), "words"], (5, None)),
        ([pydantic.Field()], (NODEFAULT, None)),
        ([pydantic.Field(5, discriminator="kind")], (5, None)),
        ([pydantic.Field(default_factory=list)], (NODEFAULT, list)),
    ],
    ids=stable,
)
def test_defaults(items: list[Any], expected: Any) -> None:
    assert default_of(items, WHERE) == expected
    with pytest.raises(SetupError, match="default_factory"):
        default_of([pydantic.Field(default_factory=lambda data: data)], WHERE)  # which needs the other values


def test_a_field_can_stand_in_any_annotation() -> None:
    annotation = list[Annotated[int, Field(ge=1, examples=[1], extra={"x-a": {}})] | None]
    assert schema_for(annotation, where=WHERE)["items"]["anyOf"][0]["x-a"] == {}
    assert hash(Field(ge=1, examples=[1])) == hash(Field(ge=1, examples=[1]))


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([at.Predicate(str.islower)], "Predicate"),
        ([at.Timezone("UTC")], "Timezone"),
        ([pydantic.BeforeValidator(int)], "BeforeValidator"),
        ([pydantic.AfterValidator(abs)], "AfterValidator"),
        ([pydantic.StringConstraints(strip_whitespace=True)], "x: StringConstraints(strip_whitespace=…)"),
        ([pydantic.StringConstraints(strict=True)], "x: StringConstraints(strict=…)"),
        ([*pydantic.constr(to_lower=True).__metadata__], "x: StringConstraints(to_lower=…)"),
        ([*pydantic.condecimal(max_digits=3).__metadata__], "x: max_digits=… can't"),
        ([pydantic.Strict()], "lenient_arguments"),
        ([pydantic.Field(strict=True)], "x: pydantic's Field(strict=…) can't be honoured here; use lenient_arguments"),
        *(([pydantic.Field(**{name: "y"})], f"Field({name}=…) can't be honoured here; an arg") for name in ALIASES),
        ([pydantic.Field(discriminator="y")], "discriminator"),
        ([pydantic.Field(max_digits=3)], "x: pydantic's Field(max_digits=…)"),
        ([pydantic.Field(json_schema_extra=lambda schema: None)], "json_schema_extra"),
        ([Field(pattern="a"), Field(pattern="b")], "pattern is given twice"),
        ([Field(ge="a")], "ge must be a number"),  # type: ignore[arg-type]
        ([Field(ge=float("inf"))], "ge must be a number"),
        ([Field(multiple_of=0)], "multiple_of must be a number above 0"),
        ([Field(min_length=-1)], "min_length must be an integer"),
        ([Field(pattern=5)], "pattern must be a string"),  # type: ignore[arg-type]
        *(([Field(**{name: True})], f"{name} must be a number, not True") for name in ("ge", "gt", "le", "lt")),
        *(([Field(**{name: math.nan})], f"{name} must be a number, not nan") for name in ("gt", "le", "lt")),
        *(([Field(max_length=wrong)], "max_length must be an integer of at least 0") for wrong in (-1, 1.5, True)),
    ],
    ids=stable,
)
def test_refused_constraints(items: list[Any], words: str) -> None:
    with pytest.raises(SetupError) as caught:
        read(*items)
    assert str(caught.value).startswith(WHERE)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[bool, Field(ge=1)], Annotated[str, Field(ge=1)], Annotated[int, Field(min_length=1)],
        Annotated[int, Field(pattern="a")], Annotated[int, msgspec.Meta(pattern="a")], Annotated[list[int], at.Ge(1)],
        Annotated[dict[str, int], Field(pattern="a")], Annotated[int | None, Field(min_length=1)],
        Annotated[Any, Field(ge=1)], list[Annotated[bool, pydantic.Field(ge=1)]],
    ],
    ids=stable,
)  # fmt: skip
def test_limits_that_make_no_sense_for_the_type(annotation: Any) -> None:
    with pytest.raises(SetupError, match=r"parameter x.*can't constrain this type"):
        schema_for(annotation, where=WHERE)


def test_other_libraries_are_not_imported() -> None:
    program = (
        "import sys; from typing import Annotated, Literal; from dovetail.registry.arguments import Arguments;"
        "from dovetail.registry.elicitation_form import compile_form;"
        "from dovetail.schema.constraints import Field; from dovetail.registry.functions import inspect_function\n"
        "def tool(x: Annotated[int, Field(ge=1), object()], y: list[str] | None = None, z: int = 5): ...\n"
        'Arguments(inspect_function(tool)).decode(b\'{"x": "5"}\');'
        'compile_form(["a"]); [compile_form(a).decode({"value": 1}) for a in (int, float)];'
        'compile_form(Literal["a"]).decode({"value": "a"});'
        "print([m for m in ('pydantic', 'annotated_types', 'attrs', 'jsonschema_rs') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
