"""Classes become forms of several fields, with their defaults and formats."""

import dataclasses
import datetime
from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from form_types import (
    FILLED_IN,
    NOON,
    PARTY,
    AsAttrs,
    AsDataclass,
    AsModel,
    AsStruct,
    Level,
    Range,
    Sauce,
    Size,
    T,
    alone,
    official_in_every_revision,
)

from dovetail import Field
from dovetail.errors import QuestionFailed
from dovetail.registry.elicitation_form import compile_form
from stable_ids import stable

# Several things


@pytest.mark.rule("EL-5", "EL-9", "JS-11")
@pytest.mark.parametrize("cls", [AsDataclass, AsStruct, AsAttrs, AsModel])
def test_classes(cls: Any) -> None:
    form = compile_form(cls)
    assert form.schema == PARTY
    official_in_every_revision(form)
    value = form.decode(FILLED_IN)
    expected = {
        "name": "Ada",
        "day": datetime.date(2026, 7, 28),
        "level": Level.HIGH,
        "sizes": [Size.LARGE],
        "guests": 3,
    }
    assert value == cls(**expected)
    assert (value.note, value.sauce, value.extras) == (None, Sauce.MILD, set())


@pytest.mark.parametrize("cls", [AsDataclass, AsStruct, AsAttrs, AsModel])
def test_all_that_is_wrong_with_a_class_names_its_field(cls: Any) -> None:
    with pytest.raises(QuestionFailed, match=r"form: name: .*; day: must be a date such as 2026-07-28"):
        compile_form(cls).decode(FILLED_IN | {"name": "", "day": "2026-02-30"})
    with pytest.raises(QuestionFailed, match=r"form: name: is required, but missing; level: is required, but missing$"):
        compile_form(cls).decode({"day": "2026-07-28", "sizes": [], "name": None})


class AsTypedDict(TypedDict):
    count: Annotated[int, msgspec.Meta(ge=1)]
    ratio: NotRequired[Annotated[float, Field(le=1)]]
    note: str | None


def test_typed_dicts() -> None:
    form = compile_form(AsTypedDict)
    assert form.schema == {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 1},
            "ratio": {"type": "number", "maximum": 1},
            "note": {"type": "string"},
        },
        "required": ["count"],
    }
    official_in_every_revision(form)
    assert form.decode({"count": 1.0}) == {"count": 1, "note": None}
    with pytest.raises(QuestionFailed, match=r"ratio: must be at most 1"):
        form.decode({"count": 1, "ratio": 2})


class Tagged(msgspec.Struct, tag_field="kind", tag="t", rename="camel"):
    first_name: Annotated[str, Field(pattern="^A")]


class Aliased(pydantic.BaseModel):
    first: str = pydantic.Field(alias="firstName")
    page: pydantic.HttpUrl | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Aliased":
        if self.first == "Bob":
            raise ValueError("Bob is not invited")
        return self


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


def test_names_tags_and_checks_of_classes() -> None:
    tagged = compile_form(Tagged)
    assert list(tagged.schema["properties"]) == ["firstName"]
    assert tagged.decode({"firstName": "Ada", "kind": "other"}) == Tagged("Ada")
    aliased = compile_form(Aliased)
    assert list(aliased.schema["properties"]) == ["firstName", "page"]
    assert aliased.decode({"firstName": "Ada"}).first == "Ada"
    with pytest.raises(QuestionFailed, match=r"form: answer: Bob is not invited$"):
        aliased.decode({"firstName": "Bob"})
    with pytest.raises(QuestionFailed, match=r"form: answer: low must not be above high$"):
        compile_form(Range).decode({"low": 2, "high": 1})
    assert compile_form(Box[int]).decode({"content": 1}) == Box(1)
    assert compile_form(Box[bool]).decode({"content": True}) == Box(True)


def test_dataclasses_have_all_their_fields() -> None:
    value = compile_form(AsDataclass).decode(FILLED_IN)
    assert vars(value).keys() == {field.name for field in dataclasses.fields(AsDataclass)}


@dataclasses.dataclass
class WithSet:
    letters: frozenset[Literal["a", "b", "c", "d", "e"]] = frozenset({"e", "b", "c"})


def test_a_default_set_is_sent_in_the_order_of_its_choices() -> None:
    assert compile_form(WithSet).schema["properties"]["letters"]["default"] == ["b", "c", "e"]
    assert compile_form(WithSet).decode({}) == WithSet()


# Defaults that are made anew


Colours = list[Literal["a", "b", "c"]]
made: list[str] = []


def make_colours() -> list[str]:
    made.append("once more")
    return ["c", "a"]


class StructOfColours(msgspec.Struct, rename="camel"):
    my_colours: Colours = msgspec.field(default_factory=make_colours)


class ModelOfColours(pydantic.BaseModel):
    my_colours: Colours = pydantic.Field(default_factory=make_colours, alias="myColours")


@pydantic.dataclasses.dataclass
class ModelledColours:
    my_colours: Colours = pydantic.Field(default_factory=make_colours)


MADE = [
    dataclasses.make_dataclass("D", [("my_colours", Colours, dataclasses.field(default_factory=make_colours))]),
    attrs.make_class("A", {"my_colours": attrs.field(factory=make_colours, type=Colours)}),
    StructOfColours,
    ModelOfColours,
    ModelledColours,
    Annotated[Colours, pydantic.Field(default_factory=make_colours)],
]


@pytest.mark.parametrize("type_", MADE, ids=stable)
def test_what_a_factory_makes_is_not_shown_and_made_for_each_answer(type_: Any) -> None:
    made.clear()
    form = compile_form(type_)
    assert "default" not in str(form.schema)
    official_in_every_revision(form)
    before = len(made)
    assert [getattr(form.decode({}), "my_colours", ["c", "a"]) for _ in range(2)] == [["c", "a"], ["c", "a"]]
    assert len(made) == before + 2


# Formats


class Formats(pydantic.BaseModel):
    email: str | None = pydantic.Field(None, json_schema_extra={"format": "email"})
    uri: Annotated[str, pydantic.WithJsonSchema({"type": "string", "format": "uri"})] = ""
    date: str = pydantic.Field("", json_schema_extra={"format": "date"})
    time: str = pydantic.Field("", json_schema_extra={"format": "date-time"})


ANSWERS = {"email": "a@b.org", "uri": "https://a.b", "date": "2026-07-28", "time": "2026-07-28T12:00:00Z"}


@pytest.mark.rule("EL-6", "EL-9")
def test_formats_are_checked_wherever_they_are_sent() -> None:
    form = compile_form(Formats)
    assert [part["format"] for part in form.schema["properties"].values()] == ["email", "uri", "date", "date-time"]
    assert form.decode(ANSWERS).model_dump() == ANSWERS
    assert form.decode({}) == Formats()
    with pytest.raises(QuestionFailed, match=r"form: email: must be an email .*; uri: .*; date: .*; time: must be a d"):
        form.decode(dict.fromkeys(ANSWERS, "nomail"))


def test_a_default_of_the_wrong_format_is_not_shown() -> None:
    zoneless = compile_form(Annotated[datetime.datetime, Field(datetime.datetime(2026, 7, 28))])
    assert alone(zoneless) == {"type": "string", "format": "date-time"}
    assert zoneless.decode({}) == datetime.datetime(2026, 7, 28)
    assert alone(compile_form(Annotated[datetime.datetime, Field(NOON)]))["default"] == "2026-07-28T12:00:00Z"
    with pytest.raises(QuestionFailed, match=r"value: must be a date-time such as"):
        zoneless.decode({"value": "2026-07-28T00:00:00"})
