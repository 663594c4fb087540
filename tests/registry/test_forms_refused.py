"""What can't be a form, and answers that don't fit one, whatever they are."""

import dataclasses
import datetime
from typing import Annotated, Any, Generic, Literal, NamedTuple

import msgspec
import pydantic
import pytest
from form_types import PARTY, AsDataclass, AsModel, Level, Range, Size, T, official_in_every_revision
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Field
from dovetail.errors import QuestionFailed, SetupError
from dovetail.protocol.elicitation import render_form, restore_content
from dovetail.protocol.revisions import BY_NAME
from dovetail.registry.elicitation_form import Form, compile_form, compile_raw_form
from form_judge import REVISIONS
from stable_ids import stable

# What can't be a form


@dataclasses.dataclass
class Nested:
    inner: AsDataclass


@dataclasses.dataclass
class Unfit(Generic[T]):
    field: T


class Node(msgspec.Struct):
    next: "Node | None" = None


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.rule("EL-5", "JS-11")
@pytest.mark.parametrize(
    ("type_", "fix"),
    [
        (AsDataclass | None, "flat"),
        (dict, "flat"),
        (dict[str, int], "flat"),
        (Point, "a form is flat"),
        (list[str], r"Literal\["),
        (list[AsDataclass], "a form is flat"),
        (int | str, "a form is flat"),
        (int | Literal["auto"], "a form is flat"),
        (bytes, "strings, numbers, booleans, dates and choices"),
        (Any, "strings, numbers, booleans, dates and choices"),
        (object, "strings, numbers, booleans, dates and choices"),
        (complex, "no JSON form"),
        ([], "something to choose from"),
        ([[]], "something to choose from"),
        ({}, "something to choose from"),
        (["a", "a"], 'two choices are spelled "a"'),
        ([1, "1"], 'two choices are spelled "1"'),
        (Literal[1, "1"], 'two choices are spelled "1"'),
        ([None], "use strings or numbers"),
        ([["a"], ["b"]], "use strings or numbers"),
        ([float("nan")], "can't be sent"),
        (["\ud800"], "can't be sent"),
        ({"a": 5}, "the title 5 must be a string"),
        ({"a": {"name": "A"}}, "the title None must be a string"),
        (5, "it is a type such as str"),
        ("str", "it is a type such as str"),
        (Annotated[Literal["a"], Field(extra={"enumNames": ["A", "B"]})], "one string for each value"),
    ],
    ids=stable,
)
def test_types_that_no_form_has(type_: Any, fix: str) -> None:
    with pytest.raises(SetupError, match=rf"^ctx\.elicit, parameter response_type: .*{fix}"):
        compile_form(type_)


@pytest.mark.rule("EL-5")
@pytest.mark.parametrize(
    "inner", [Range, list[str], int | str, bytes, Any, dict[str, str], tuple[int, int]], ids=stable
)
def test_errors_name_the_field(inner: Any) -> None:
    with pytest.raises(SetupError, match=r"^ctx\.elicit, parameter response_type, field field: a form "):
        compile_form(Unfit[inner])


def test_types_that_contain_themselves() -> None:
    with pytest.raises(SetupError, match=r"response_type: a form is flat"):
        compile_form(Node)


class WithSecretStr(pydantic.BaseModel):
    word: pydantic.SecretStr | None = None


SECRETS = (
    "password", "Passwd", "api_key", "apiKey", "API_KEY", "access_token", "credit_card", "cvv", "token",
    "user_password", "userPassword", "password2", "github_token", "githubToken", "cardNumber", "my_APIKey",
    "openai_api_key",
)  # fmt: skip


@pytest.mark.rule("EL-2", "EL-3")
@pytest.mark.parametrize(
    "type_",
    [
        pydantic.SecretStr,
        WithSecretStr,
        Annotated[str, Field(title="Password")],
        *(dataclasses.make_dataclass("Form", [(name, str)]) for name in SECRETS),
        Annotated[str, Field(title="Your card-number:")],
        dataclasses.make_dataclass("Form", [("card_number", int)]),
    ],
    ids=stable,
)
def test_forms_do_not_ask_for_secrets(type_: Any) -> None:
    with pytest.raises(SetupError, match=r"must not ask for secrets.*ctx\.elicit_url"):
        compile_form(type_)


def test_what_only_sounds_like_a_secret() -> None:
    fields = [("secret", bool), ("password", Literal["keep", "reset"])]
    names = ("secretary", "token_count", "password_hint", "max_tokens", "passwordHint", "card_number_length", "betoken")
    compile_form(dataclasses.make_dataclass("Form", [*fields, *((name, str) for name in names)]))
    compile_form(Annotated[str, Field(title="Secret of the day")])


# Raw schemas


def raw(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def test_raw_schemas_in_both_spellings() -> None:
    titled = {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}
    assert compile_raw_form(raw(x=titled)).schema == raw(x=titled)
    older = {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]}
    assert compile_raw_form(raw(x=older)).schema == raw(x=older)
    several = {"type": "array", "items": {"anyOf": titled["oneOf"]}, "minItems": 1}
    assert compile_raw_form(raw(x=several)).schema == raw(x=several)
    for part in (titled, older, several):
        official_in_every_revision(compile_raw_form(raw(x=part)))


@pytest.mark.rule("EL-9")
def test_answers_to_raw_schemas() -> None:
    schema = raw(
        ["name", "size"],
        name={"type": "string", "pattern": "^[A-Z]", "minLength": 2},
        size={"type": "integer", "minimum": 1, "default": 3},
        tops={"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "default": ["b"]},
        level={"type": "integer", "enum": [1, 2]},
        when={"type": ["string", "null"], "format": "date"},
    )
    form = compile_raw_form(schema | {"title": "T", "additionalProperties": False, "$comment": "c"})
    assert form.schema["required"] == ["name", "size"]
    assert form.schema["properties"]["name"] == {"type": "string", "minLength": 2}
    assert form.schema["properties"]["level"] == {"type": "string", "enum": ["1", "2"]}
    official_in_every_revision(form)
    assert form.decode({"name": "Ada", "other": 1}) == {"name": "Ada", "size": 3, "tops": ["b"]}
    filled = form.decode({"name": "Ada", "size": 2.0, "tops": [], "level": "2", "when": "2026-07-28"})
    assert filled == {"name": "Ada", "size": 2, "tops": [], "level": 2, "when": "2026-07-28"}
    assert type(filled["size"]) is int
    with pytest.raises(QuestionFailed, match=r"name: is required, but missing"):
        form.decode({})
    with pytest.raises(QuestionFailed, match=r"name: must match the pattern .*; when: must be a date such as"):
        form.decode({"name": "ada", "when": "28.7."})


@pytest.mark.rule("EL-5", "EL-6", "JS-11")
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "it must be a dict, not list"),
        ({}, "it must be flat"),
        ({"type": "object"}, "it must be flat"),
        ({"type": "array", "items": {}}, "items has no place"),
        ({"type": "object", "properties": []}, "it must be flat"),
        (raw() | {"anyOf": []}, "anyOf has no place"),
        (raw() | {"$defs": {}}, r"\$defs has no place"),
        (raw(["y"], x={"type": "string"}), "required must list names of its properties"),
        (raw(x={"type": "string"}) | {"required": "x"}, "required must list names of its properties"),
        (raw(x={"type": "string"}) | {"required": [[]]}, "required must list names of its properties"),
        (raw(x=True), "field x: it must be a schema"),
        (raw(x={}), "field x: a form is flat"),
        (raw(x={"type": "null"}), "field x: a form is flat"),
        (raw(x={"type": "object", "properties": {}}), "field x: a form is flat"),
        (raw(x={"type": "array", "items": {"type": "string"}}), "field x: a form is flat"),
        (raw(x={"type": "array"}), "field x: a form is flat"),
        (raw(x={"type": ["string", "integer"]}), "field x: a form is flat"),
        (raw(x={"anyOf": [{"type": "string"}, {"type": "integer"}]}), "field x: a form is flat"),
        (raw(x={"type": "string", "format": "ipv4"}), "field x: format may be email, uri, date, date-time, not"),
        (raw(x={"type": "string", "default": 5}), "field x: the default 5 does not fit"),
        (raw(x={"type": "string", "enum": ["a"], "default": "b"}), 'field x: the default "b" does not fit'),
        (raw(x={"type": "integer", "minimum": 5, "default": 1}), "its defaults do not fit: x: must be at least 5"),
        (raw(x={"type": "string", "enum": []}), "field x: a choice needs something"),
        (raw(x={"type": "string", "enum": [["a"]]}), "field x: .* can't be a choice"),
        (raw(x={"type": "string", "enum": ["a"], "enumNames": ["A", "B"]}), "field x: enumNames must hold one string"),
        (raw(x={"type": "string", "enum": ["a"], "enumNames": "A"}), "field x: enumNames must hold one string"),
        (raw(x={"type": "string", "minLength": "1"}), "not a valid JSON Schema"),
        (raw(x={"type": "string", "title": 5}), "not a valid JSON Schema"),
        (raw(x={"type": "string", "pattern": "("}), ""),
        (raw(x={"type": "string", "default": object()}), "it can't be sent"),
        (raw(x={"type": "string", "title": "\ud800"}), "it can't be sent"),
        (raw(password={"type": "string"}), "field password: a form must not ask for secrets"),
        (raw(x={"type": "string", "format": "password"}), "field x: a form must not ask for secrets"),
    ],
    ids=lambda value: stable(value)[:80],
)
def test_raw_schemas_that_no_form_has(schema: Any, words: str) -> None:
    with pytest.raises(SetupError, match=rf"^ctx\.elicit, parameter schema.*{words}"):
        compile_raw_form(schema)


# Any answer


contents = st.fixed_dictionaries(
    {
        "name": st.text(min_size=1, max_size=9),
        "day": st.dates().map(str),
        "level": st.sampled_from(["1", "2"]),
        "sizes": st.lists(st.sampled_from(["s", "l"]), unique=True).map(lambda chosen: sorted(chosen, reverse=True)),
    },
    optional={
        "note": st.text(max_size=9),
        "guests": st.integers(-(2**40), 2**40),
        "sauce": st.sampled_from(["hot", "mild"]),
        "extras": st.lists(st.sampled_from(["x", "y"]), unique=True, min_size=1).map(sorted),
    },
)


def in_old_spelling(content: dict[str, Any], rendered: dict[str, Any]) -> dict[str, Any]:
    """The same answer of a client that knows switches instead of lists."""
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    switches = {
        line: line.partition(": ")[2] in lists[line.partition(": ")[0]]
        for line in rendered["properties"]
        if line.partition(": ")[0] in lists
    }
    return {name: value for name, value in content.items() if name not in lists} | switches


@pytest.mark.rule("EL-9")
@given(contents)
def test_answers_come_back_whatever_the_revision(content: dict[str, Any]) -> None:
    for cls in (AsDataclass, AsModel):
        form = compile_form(cls)
        values = []
        for name in REVISIONS:
            revision = BY_NAME[name]
            wire = content if revision.rich_forms else in_old_spelling(content, render_form(form.schema, revision))
            values.append(form.decode(restore_content(form.schema, wire, revision)))
        assert values[0] == values[1] == values[2]
        assert values[0].name == content["name"]
        assert values[0].day == datetime.date.fromisoformat(content["day"])
        assert values[0].level == Level(int(content["level"]))
        assert values[0].sizes == list(map(Size, content["sizes"]))
        assert values[0].guests == content.get("guests", 2)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
hostile = st.dictionaries(st.sampled_from([*PARTY["properties"], "own"]), anything | st.sampled_from(["s", "1", "x"]))
RAW = compile_raw_form(PARTY)


@pytest.mark.rule("EL-9")
@given(hostile)
def test_hostile_answers_are_refused_in_words(content: dict[str, Any]) -> None:
    for form in (compile_form(AsDataclass), compile_form(AsModel), RAW, compile_form(None)):
        words = refusal(form, content)
        assert words is None or words.startswith("The answer does not fit the form: ")
        assert words is None or len(words.encode("utf-8", "replace")) < 5_000


def refusal(form: Form, content: dict[str, Any]) -> str | None:
    try:
        form.decode(content)
    except QuestionFailed as failure:
        return str(failure)
    return None


def test_a_deep_answer_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for form in (compile_form(str), compile_form([["a"]]), RAW):
        with pytest.raises(QuestionFailed):
            form.decode({"value": deep, "name": deep})
