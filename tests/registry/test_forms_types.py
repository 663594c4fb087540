"""Single types and choices become forms, and answers become values of those types."""

import datetime
import subprocess
import sys
import uuid
from typing import Annotated, Any, Literal

import annotated_types as at
import msgspec
import pydantic
import pytest
from form_types import (
    LEVELS,
    NOON,
    PARTY,
    AsDataclass,
    Level,
    Mixed,
    Sauce,
    Size,
    alone,
    many,
    official_in_every_revision,
    text,
    titled,
)
from typing_extensions import TypeAliasType

from dovetail import Field
from dovetail.errors import QuestionFailed
from dovetail.registry.elicitation_form import compile_form, compile_raw_form
from stable_ids import stable

# One thing


def test_none_asks_for_consent_only() -> None:
    for nothing in (None, type(None)):
        form = compile_form(nothing)
        assert form.schema == {"type": "object", "properties": {}}
        assert form.decode({}) is None
        assert form.decode({"value": 1}) is None
        official_in_every_revision(form)


Limited = Annotated[list[Literal["a", "b"]], Field(min_length=1, max_length=2)]
Alias = TypeAliasType("Alias", Annotated[Level, Field(title=None)])
Named = Annotated[Literal["a", "b"], Field(extra={"enumNames": ["A", "B"]})]
UUID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")


@pytest.mark.rule("EL-4", "EL-5", "EL-6", "EL-9", "JS-11")
@pytest.mark.parametrize(
    ("type_", "schema", "answer", "value"),
    [
        (str, text(), "x", "x"),
        (int, {"type": "integer"}, 3, 3),
        (int, {"type": "integer"}, 3.0, 3),
        (float, {"type": "number"}, 1.5, 1.5),
        (float, {"type": "number"}, 2, 2.0),
        (bool, {"type": "boolean"}, False, False),
        (datetime.date, text(format="date"), "2026-07-28", NOON.date()),
        (datetime.datetime, text(format="date-time"), "2026-07-28T12:00:00Z", NOON),
        (uuid.UUID, text(), str(UUID), UUID),
        (Annotated[str, Field(title="T", description="D")], text(title="T", description="D"), "x", "x"),
        (Annotated[str, "Your name"], text(description="Your name"), "x", "x"),
        (Annotated[str, Field(min_length=1, max_length=3)], text(minLength=1, maxLength=3), "x", "x"),
        (Annotated[str, msgspec.Meta(min_length=1, title="N")], text(minLength=1, title="N"), "x", "x"),
        (Annotated[str, pydantic.Field(max_length=3)], text(maxLength=3), "x", "x"),
        (Annotated[int, at.Ge(1), at.Le(5)], {"type": "integer", "minimum": 1, "maximum": 5}, 5, 5),
        (Annotated[float, Field(ge=0.5)], {"type": "number", "minimum": 0.5}, 0.5, 0.5),
        (Annotated[str, Field(format="email")], text(format="email"), "a@b.org", "a@b.org"),
        (Annotated[str, Field(format="uri")], text(format="uri"), "https://a.b", "https://a.b"),
        (Annotated[int, Field(5, ge=1)], {"type": "integer", "minimum": 1, "default": 5}, 2, 2),
        (str | None, text(), "x", "x"),
        (Literal["low", "high"], text(enum=["low", "high"]), "low", "low"),
        (Literal["only"], text(enum=["only"]), "only", "only"),
        (Literal[1, 2], text(enum=["1", "2"]), "2", 2),
        (Literal[True, "x", 1], text(enum=["true", "x", "1"]), "true", True),
        (Literal["a", None], text(enum=["a"]), "a", "a"),
        (Named, text(oneOf=titled(a="A", b="B")), "a", "a"),
        (Size, text(enum=["s", "l"]), "l", Size.LARGE),
        (Level, text(oneOf=LEVELS), "2", Level.HIGH),
        (Level | None, text(oneOf=LEVELS), "2", Level.HIGH),
        (Literal[Level.HIGH], text(oneOf=LEVELS[1:]), "2", Level.HIGH),
        (Alias, text(oneOf=LEVELS), "1", Level.LOW),
        (Mixed, text(oneOf=[{"const": "auto", "title": "auto"}, {"const": "0.5", "title": "HALF"}]), "0.5", Mixed.HALF),
        (Sauce, text(enum=["hot", "mild"]), "hot", Sauce.HOT),
        (list[Literal["a", "b"]], many("a", "b"), ["b"], ["b"]),
        (list[Level], {"type": "array", "items": {"anyOf": LEVELS}}, ["2", "1"], [Level.HIGH, Level.LOW]),
        (set[Size], many("s", "l"), ["l", "l"], {Size.LARGE}),
        (Limited, many("a", "b") | {"minItems": 1, "maxItems": 2}, ["a", "b"], ["a", "b"]),
        (["low", "high"], text(enum=["low", "high"]), "high", "high"),
        ([1, 2.5], text(enum=["1", "2.5"]), "2.5", 2.5),
        ([["a", "b"]], many("a", "b"), ["b", "a"], ["b", "a"]),
        ({"a": "A"}, text(oneOf=titled(a="A")), "a", "a"),
        ({"a": {"title": "A"}}, text(oneOf=titled(a="A")), "a", "a"),
        ({1: "One"}, text(oneOf=[{"const": "1", "title": "One"}]), "1", 1),
        ([{"a": "A", "b": {"title": "B"}}], {"type": "array", "items": {"anyOf": titled(a="A", b="B")}}, [], []),
    ],
    ids=stable,
)
def test_one_thing(type_: Any, schema: dict[str, Any], answer: Any, value: Any) -> None:
    form = compile_form(type_)
    assert alone(form) == schema
    official_in_every_revision(form)
    decoded = form.decode({"value": answer, "unknown": "let be"})
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("type_", "value"),
    [(str | None, None), (Literal["a", None], None), (Annotated[int, Field(5)], 5), (list[Size] | None, None)],
    ids=stable,
)
def test_what_may_be_left_empty(type_: Any, value: Any) -> None:
    form = compile_form(type_)
    assert "required" not in form.schema
    assert form.decode({}) == form.decode({"value": None}) == value


@pytest.mark.rule("EL-9")
@pytest.mark.parametrize(
    ("type_", "answer", "words"),
    [
        (str, 5, "value: expected a string, got the integer 5"),
        (int, True, "value: expected an integer, got true"),
        (int, 1.5, "value: expected an integer, got the number 1.5"),
        (int, "3", 'value: expected an integer, got the string "3"'),
        (float, float("nan"), "value: is not a number of sensible size"),
        (float, float("inf"), "value: is not a number of sensible size"),
        (bool, 1, "value: expected true or false, got the integer 1"),
        (bool, "true", "value: expected true or false"),
        (str, {"a": 1}, "value: expected a string, got an object"),
        (str, ["a"], "value: expected a string, got an array"),
        (str, "\ud800", "value: holds half a surrogate pair"),
        (str, "é" * 40_000, "value: is longer than 64 KiB"),
        (datetime.date, "2026-02-30", "value: must be a date such as 2026-07-28"),
        (datetime.datetime, "tomorrow", "value: must be a date-time such as"),
        (uuid.UUID, "no", "value: must be a UUID such as"),
        (Annotated[str, Field(pattern="^[a-z]+$")], "A", "value: must match the pattern"),
        (Annotated[str, Field(format="email")], "A", "value: must be an email address"),
        (Annotated[str, Field(format="ipv4")], "A", "value: must be an IPv4 address"),
        (Annotated[int, Field(gt=0)], 0, "value: must be more than 0"),
        (Annotated[int, Field(multiple_of=5)], 3, "value: must be a multiple of 5"),
        (Literal["a", "b"], "c", 'value: must be one of "a", "b", got "c"'),
        (Literal[1], 1, "value: expected a string"),
        (Size, "SMALL", 'value: must be one of "s", "l"'),
        (list[Size], "s", "value: expected a list of choices"),
        (list[Size], ["s", "x"], 'value: must be one of "s", "l", got "x"'),
        (list[Size], [1], "value: each choice must be a string"),
        (list[Size], [["s"]], "value: each choice must be a string"),
        (Annotated[list[Size], Field(min_length=2)], ["s", "s"], "value: must have "),
        ([["a"]], ["b"], 'value: must be one of "a", got "b"'),
        (["a"], "\ud800", 'value: must be one of "a"'),
        (int, None, "value: is required, but missing"),
    ],
    ids=lambda value: stable(value)[:60],
)
def test_answers_that_do_not_fit(type_: Any, answer: Any, words: str) -> None:
    with pytest.raises(QuestionFailed) as failure:
        compile_form(type_).decode({"value": answer})
    assert str(failure.value).startswith(f"The answer does not fit the form: {words}")
    assert len(str(failure.value)) < 300


@pytest.mark.parametrize("type_", [int, float, str, bool, Size, list[Size]], ids=stable)
def test_a_number_beyond_measure_is_refused(type_: Any) -> None:
    for number in (10**5000, [10**5000]):  # which nobody can print
        with pytest.raises(QuestionFailed, match=r"form: value: "):
            compile_form(type_).decode({"value": number})


def test_what_has_no_place_in_a_form_is_not_sent() -> None:
    limits = Field(gt=0, multiple_of=2, examples=[2], deprecated=True, extra={"x-own": 1})
    assert alone(compile_form(Annotated[int, limits])) == {"type": "integer"}
    assert alone(compile_form(Annotated[str, Field(pattern="a", format="ipv4")])) == {"type": "string"}


# Remembering


def test_a_form_is_compiled_once() -> None:
    for type_ in (AsDataclass, list[Size], Annotated[int, Field(ge=1)], str | None):
        assert compile_form(type_) is compile_form(type_)
    assert compile_raw_form(dict(PARTY)) is compile_raw_form(dict(PARTY))


def test_equal_types_that_are_spelled_differently() -> None:
    assert Literal["x", "y"] == Literal["y", "x"]
    assert alone(compile_form(Literal["x", "y"]))["enum"] == ["x", "y"]
    assert alone(compile_form(Literal["y", "x"]))["enum"] == ["y", "x"]


def test_types_that_can_not_be_remembered() -> None:
    unhashable = Annotated[int, {"not": "hashable"}]
    assert compile_form(unhashable).decode({"value": 1}) == 1


def test_forms_do_not_share_what_they_return() -> None:
    form = compile_raw_form(
        {"type": "object", "properties": {"t": {"type": "array", "items": {"enum": ["a"]}, "default": ["a"]}}}
    )
    form.decode({})["t"].append("spoilt")
    assert form.decode({}) == {"t": ["a"]}


def test_neither_pydantic_nor_the_validator_are_loaded_for_plain_types() -> None:
    program = (
        "import sys, typing; from dovetail.registry.elicitation_form import compile_form as c;"
        "c(int).decode({'value': 1});"
        "c(['a']); c(typing.Literal['a']).decode({'value': 'a'});"
        "assert not {'pydantic', 'jsonschema_rs', 'attr'} & sys.modules.keys(), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
