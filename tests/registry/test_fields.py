"""Constraints in four dialects become one record, or are refused; none is dropped."""

import re
import subprocess
import sys
from typing import Annotated, Any

import annotated_types as at
import msgspec
import pydantic
import pytest
from argument_types import schema_for
from msgspec import NODEFAULT
from typing_extensions import Doc

from dovetail.errors import SetupError
from dovetail.registry.fields import Constraints, Field, default_of, is_field, read_metadata
from stable_ids import stable

WHERE = "tool t (m.t), parameter x"


def read(*metadata: Any) -> Constraints:
    return read_metadata(metadata, WHERE)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Field(ge=1, le=5), {"ge": 1, "le": 5}),
        (Field(gt=1.5, lt=5), {"gt": 1.5, "lt": 5}),
        (Field(multiple_of=3), {"multiple_of": 3}),
        (Field(min_length=1, max_length=2, pattern="^a"), {"min_length": 1, "max_length": 2, "pattern": "^a"}),
        (msgspec.Meta(ge=1, description="d"), {"ge": 1}),
        (msgspec.Meta(pattern="a", min_length=1), {"pattern": "a", "min_length": 1}),
        (msgspec.Meta(tz=True), {"tz": True}),
        (at.Ge(1), {"ge": 1}),
        (at.Gt(0), {"gt": 0}),
        (at.Le(1), {"le": 1}),
        (at.Lt(1), {"lt": 1}),
        (at.Interval(ge=1, lt=9), {"ge": 1, "lt": 9}),
        (at.MultipleOf(2), {"multiple_of": 2}),
        (at.MinLen(1), {"min_length": 1}),
        (at.MaxLen(1), {"max_length": 1}),
        (at.Len(2, 3), {"min_length": 2, "max_length": 3}),
        (pydantic.Field(ge=1, max_length=4, pattern="x"), {"ge": 1, "max_length": 4, "pattern": "x"}),
        (pydantic.Field(allow_inf_nan=False), {}),
        (pydantic.StringConstraints(min_length=1, pattern="x"), {"min_length": 1, "pattern": "x"}),
        (pydantic.StringConstraints(pattern=re.compile("x")), {"pattern": "x"}),
        (pydantic.PositiveInt.__metadata__[0], {"gt": 0}),
        (object(), {}),
        (None, {}),
    ],
    ids=stable,
)
def test_limits(item: Any, expected: dict[str, Any]) -> None:
    assert read(item).limits() == expected


@pytest.mark.parametrize(
    "item",
    [
        Field(description="d", title="t", examples=[1]),
        msgspec.Meta(description="d", title="t", examples=[1]),
        pydantic.Field(description="d", title="t", examples=[1]),
    ],
    ids=["ours", "msgspec", "pydantic"],
)
def test_notes(item: Any) -> None:
    found = read(item)
    assert (found.description, found.title, found.examples) == ("d", "t", [1])


def test_more_notes() -> None:
    assert read("words").description == "words"
    assert read(Doc("words")).description == "words"
    assert read(pydantic.Field(deprecated=True, json_schema_extra={"x-a": 1})) == Constraints(
        deprecated=True, extra={"x-a": 1}
    )
    assert read(msgspec.Meta(extra_json_schema={"x-a": 1})).extra == {"x-a": 1}
    assert read(Field(header="Region", format="email", extra={"x-a": 1})) == Constraints(
        header="Region", format="email", extra={"x-a": 1}
    )


def test_several_all_hold() -> None:
    assert read(at.Ge(1), Field(ge=3), at.Le(9), at.Le(5)).limits() == {"ge": 3, "le": 5}
    assert read(at.MinLen(1), msgspec.Meta(min_length=2), at.MaxLen(9)).limits() == {"min_length": 2, "max_length": 9}
    assert read("first", Field(description="last")).description == "last"
    assert read(Field(extra={"a": 1}), Field(extra={"b": 2})).extra == {"a": 1, "b": 2}
    assert read(Field(pattern="a"), msgspec.Meta(pattern="a")).pattern == "a"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], (NODEFAULT, None)),
        ([Field()], (NODEFAULT, None)),
        ([Field(...)], (NODEFAULT, None)),
        ([Field(None)], (None, None)),
        ([Field(5, ge=1), "words"], (5, None)),
        ([pydantic.Field()], (NODEFAULT, None)),
        ([pydantic.Field(None)], (None, None)),
        ([pydantic.Field(5, discriminator="kind")], (5, None)),
        ([pydantic.Field(default_factory=list)], (NODEFAULT, list)),
    ],
    ids=stable,
)
def test_defaults(items: list[Any], expected: Any) -> None:
    assert default_of(items, WHERE) == expected


def test_a_factory_that_needs_the_other_values() -> None:
    with pytest.raises(SetupError, match="default_factory"):
        default_of([pydantic.Field(default_factory=lambda data: data)], WHERE)


def test_a_field_can_stand_in_any_annotation() -> None:
    annotation = list[Annotated[int, Field(ge=1, examples=[1], extra={"x-a": {}})] | None]
    assert schema_for(annotation, where=WHERE)["items"]["anyOf"][0]["x-a"] == {}
    assert hash(Field(ge=1, examples=[1])) == hash(Field(ge=1, examples=[1]))


def test_what_a_field_is() -> None:
    assert is_field(Field())
    assert is_field(pydantic.Field())
    assert not is_field(5)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([at.Predicate(str.islower)], "Predicate"),
        ([at.Timezone("UTC")], "Timezone"),
        ([at.Timezone(None)], "Timezone"),
        ([at.Unit("m")], "Unit"),
        ([pydantic.BeforeValidator(int)], "BeforeValidator"),
        ([pydantic.AfterValidator(abs)], "AfterValidator"),
        ([pydantic.PlainValidator(abs)], "PlainValidator"),
        ([pydantic.WithJsonSchema({})], "WithJsonSchema"),
        ([pydantic.StringConstraints(strip_whitespace=True)], "x: StringConstraints(strip_whitespace=…)"),
        ([pydantic.StringConstraints(to_upper=True)], "x: StringConstraints(to_upper=…)"),
        ([pydantic.StringConstraints(strict=True)], "x: StringConstraints(strict=…)"),
        ([*pydantic.constr(to_lower=True).__metadata__], "x: StringConstraints(to_lower=…)"),
        ([*pydantic.condecimal(max_digits=3).__metadata__], "x: max_digits=… can't"),
        ([pydantic.Strict()], "lenient_arguments"),
        ([pydantic.Field(strict=True)], "x: pydantic's Field(strict=…) can't be honoured here; use lenient_arguments"),
        ([pydantic.Field(alias="y")], "rename the parameter"),
        ([pydantic.Field(validation_alias="y")], "rename the parameter"),
        ([pydantic.Field(discriminator="y")], "discriminator"),
        ([pydantic.Field(max_digits=3)], "x: pydantic's Field(max_digits=…)"),
        ([pydantic.Field(json_schema_extra=lambda schema: None)], "json_schema_extra"),
        ([Field(pattern="a"), Field(pattern="b")], "pattern is given twice"),
        ([Field(multiple_of=2), at.MultipleOf(3)], "multiple_of is given twice"),
        ([Field(ge="a")], "ge must be a number"),  # type: ignore[arg-type]
        ([Field(ge=True)], "ge must be a number"),
        ([Field(ge=float("inf"))], "ge must be a number"),
        ([Field(multiple_of=0)], "multiple_of must be a number above 0"),
        ([Field(min_length=-1)], "min_length must be an integer"),
        ([Field(pattern=5)], "pattern must be a string"),  # type: ignore[arg-type]
    ],
    ids=stable,
)
def test_refused(items: list[Any], words: str) -> None:
    with pytest.raises(SetupError) as caught:
        read(*items)
    assert str(caught.value).startswith(WHERE)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[bool, Field(ge=1)],
        Annotated[str, Field(ge=1)],
        Annotated[int, Field(min_length=1)],
        Annotated[int, Field(pattern="a")],
        Annotated[int, msgspec.Meta(pattern="a")],
        Annotated[list[int], at.Ge(1)],
        Annotated[dict[str, int], Field(pattern="a")],
        Annotated[int | None, Field(min_length=1)],
        Annotated[Any, Field(ge=1)],
        list[Annotated[bool, pydantic.Field(ge=1)]],
    ],
    ids=stable,
)
def test_limits_that_make_no_sense_for_the_type(annotation: Any) -> None:
    with pytest.raises(SetupError, match=r"parameter x.*can't constrain this type"):
        schema_for(annotation, where=WHERE)


def test_other_libraries_are_not_imported() -> None:
    program = (
        "import sys; from typing import Annotated; from dovetail.registry.arguments import Arguments;"
        "from dovetail.registry.fields import Field; from dovetail.registry.functions import inspect_function\n"
        "def tool(x: Annotated[int, Field(ge=1), object()], y: list[str] | None = None, z: int = 5): ...\n"
        'Arguments(inspect_function(tool)).decode(b\'{"x": "5"}\');'
        "print([m for m in ('pydantic', 'annotated_types', 'attrs', 'jsonschema_rs') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
