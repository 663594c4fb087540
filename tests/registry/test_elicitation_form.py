"""Types, choices and raw schemas become forms, and answers become values; or both are refused in words."""

import dataclasses
import datetime
import enum
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar, get_args

import annotated_types as at
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from argument_types import nested
from dovetail import Field
from dovetail.errors import QuestionFailed, SetupError
from dovetail.protocol.elicitation import render_form
from dovetail.protocol.revisions import BY_NAME
from dovetail.registry.elicitation_form import Form, compile_form, compile_raw_form
from official import FORM_REVISIONS, assert_official
from stable_ids import stable

T = TypeVar("T")


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


Size = enum.Enum("Size", {"SMALL": "s", "LARGE": "l"})
Mixed = enum.Enum("Mixed", {"AUTO": "auto", "HALF": 0.5})
Sauce = enum.StrEnum("Sauce", {"HOT": "hot", "MILD": "mild"})


def alone(form: Form) -> dict[str, Any]:
    """The schema of the one property of a form."""
    assert list(form.schema["properties"]) == ["value"]
    return form.schema["properties"]["value"]


def official_in_every_revision(form: Form) -> None:
    for name in FORM_REVISIONS:
        assert_official({"message": "?", "requestedSchema": render_form(form.schema, BY_NAME[name])}, name)


def text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def many(*choices: str) -> dict[str, Any]:
    return {"type": "array", "items": text(enum=list(choices))}


def titled(**titles: str) -> list[dict[str, str]]:
    return [{"const": choice.strip("_"), "title": title} for choice, title in titles.items()]


def raw(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


LEVELS = titled(_1="LOW", _2="HIGH")
NOON = datetime.datetime(2026, 7, 28, 12, tzinfo=datetime.UTC)


@dataclasses.dataclass
class AsDataclass:
    name: Annotated[str, Field(title="Name", min_length=1)]
    day: datetime.date
    level: Level
    sizes: list[Size]
    note: str | None = None
    guests: Annotated[int, "How many"] = 2
    sauce: Sauce = Sauce.MILD
    extras: set[Literal["x", "y"]] = dataclasses.field(default_factory=set)


class AsModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(title="Name", min_length=1)
    day: datetime.date
    level: Level
    sizes: list[Size]
    note: str | None = None
    guests: int = pydantic.Field(2, description="How many")
    sauce: Sauce = Sauce.MILD
    extras: set[Literal["x", "y"]] = pydantic.Field(default_factory=set)


PARTY = raw(
    ["name", "day", "level", "sizes"],
    name=text(title="Name", minLength=1),
    day=text(format="date"),
    level=text(oneOf=LEVELS),
    sizes=many("s", "l"),
    note=text(),
    guests={"type": "integer", "description": "How many", "default": 2},
    sauce=text(enum=["hot", "mild"], default="mild"),
    extras=many("x", "y"),
)
FILLED_IN = {"name": "Ada", "day": "2026-07-28", "level": "2", "sizes": ["l"], "guests": 3.0, "own": {"deep": []}}


@dataclasses.dataclass
class Range:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low must not be above high")


# One thing


def test_none_asks_for_consent_only() -> None:
    for nothing in (None, type(None)):
        form = compile_form(nothing)
        assert form.schema == raw()
        assert form.decode({}) is form.decode({"value": 1}) is None
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
        (Annotated[str, Field(min_length=1, max_length=3)], text(minLength=1, maxLength=3), "x", "x"),
        (Annotated[str, msgspec.Meta(min_length=1, title="N")], text(minLength=1, title="N"), "x", "x"),
        (Annotated[int, at.Ge(1), at.Le(5)], {"type": "integer", "minimum": 1, "maximum": 5}, 5, 5),
        (Annotated[str, Field(format="email")], text(format="email"), "a@b.org", "a@b.org"),
        (Annotated[int, Field(5, ge=1)], {"type": "integer", "minimum": 1, "default": 5}, 2, 2),
        (str | None, text(), "x", "x"),
        (Literal["low", "high"], text(enum=["low", "high"]), "low", "low"),
        (Literal[1, 2], text(enum=["1", "2"]), "2", 2),
        (Literal[True, "x", 1], text(enum=["true", "x", "1"]), "true", True),
        (Literal["a", None], text(enum=["a"]), "a", "a"),
        (Named, text(enum=["a", "b"], enumNames=["A", "B"]), "a", "a"),
        (Size, text(enum=["s", "l"]), "l", Size.LARGE),
        (Level, text(oneOf=LEVELS), "2", Level.HIGH),
        (Level | None, text(oneOf=LEVELS), "2", Level.HIGH),
        (Literal[Level.HIGH], text(oneOf=LEVELS[1:]), "2", Level.HIGH),
        (Alias, text(oneOf=LEVELS), "1", Level.LOW),
        (Mixed, text(oneOf=[*titled(auto="auto"), {"const": "0.5", "title": "HALF"}]), "0.5", Mixed.HALF),
        (list[Literal["a", "b"]], many("a", "b"), ["b"], ["b"]),
        (list[Level], {"type": "array", "items": {"anyOf": LEVELS}}, ["2", "1"], [Level.HIGH, Level.LOW]),
        (set[Size], many("s", "l"), ["l", "l"], {Size.LARGE}),
        (Limited, many("a", "b") | {"minItems": 1, "maxItems": 2}, ["a", "b"], ["a", "b"]),
        (["low", "high"], text(enum=["low", "high"]), "high", "high"),
        ([["a", "b"]], many("a", "b"), ["b", "a"], ["b", "a"]),
        ({"a": "A"}, text(oneOf=titled(a="A")), "a", "a"),
        ({1: "One"}, text(oneOf=titled(_1="One")), "1", 1),
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
        (bool, 1, "value: expected true or false, got the integer 1"),
        (str, {"a": 1}, "value: expected a string, got an object"),
        (str, "\ud800", "value: holds half a surrogate pair"),
        (str, "é" * 32 * 1024 + "e", "value: is longer than 64 KiB"),
        (datetime.date, "2026-02-30", "value: must be a date such as 2026-07-28"),
        (uuid.UUID, "no", "value: must be a UUID such as"),
        (Annotated[str, Field(pattern="^[a-z]+$")], "A", "value: must match the pattern"),
        (Annotated[str, Field(format="email")], "A", "value: must be an email address"),
        (Annotated[str, Field(format="ipv4")], "A", "value: must be an IPv4 address"),
        (Annotated[int, Field(gt=0)], 0, "value: must be more than 0"),
        (Literal["a", "b"], "c", 'value: must be one of "a", "b", got "c"'),
        (Literal[1], 1, "value: expected a string"),
        (Size, "SMALL", 'value: must be one of "s", "l"'),
        (list[Size], "s", "value: expected a list of choices"),
        (list[Size], ["s", "x"], 'value: must be one of "s", "l", got "x"'),
        (list[Size], [1], "value: each choice must be a string"),
        (Annotated[list[Size], Field(min_length=2)], ["s", "s"], "value: must have "),
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


def test_a_text_of_64_kib_fits() -> None:
    assert compile_form(str).decode({"value": "é" * 32 * 1024}) == "é" * 32 * 1024


@pytest.mark.parametrize("type_", [int, float, str, bool, Size, list[Size]], ids=stable)
def test_a_number_beyond_measure_is_refused(type_: Any) -> None:
    for number in (10**5000, [10**5000]):  # too long to be printed
        with pytest.raises(QuestionFailed, match=r"form: value: "):
            compile_form(type_).decode({"value": number})


def test_what_has_no_place_in_a_form_is_not_sent() -> None:
    limits = Field(gt=0, multiple_of=2, examples=[2], deprecated=True, extra={"x-own": 1})
    assert alone(compile_form(Annotated[int, limits])) == {"type": "integer"}
    assert alone(compile_form(Annotated[str, Field(pattern="a", format="ipv4")])) == {"type": "string"}


def test_a_form_is_compiled_once() -> None:
    for type_ in (AsDataclass, list[Size], Annotated[int, Field(ge=1)], str | None):
        assert compile_form(type_) is compile_form(type_)
    assert compile_raw_form(dict(PARTY)) is compile_raw_form(dict(PARTY))


def test_types_that_are_equal_or_can_not_be_hashed() -> None:
    assert Literal["x", "y"] == Literal["y", "x"]
    for choices in (Literal["x", "y"], Literal["y", "x"]):
        assert alone(compile_form(choices))["enum"] == list(get_args(choices))
    assert compile_form(Annotated[int, {"not": "hashable"}]).decode({"value": 1}) == 1


def test_forms_do_not_share_what_they_return() -> None:
    form = compile_raw_form(raw(t=many("a") | {"default": ["a"]}))
    form.decode({})["t"].append("spoilt")
    assert form.decode({}) == {"t": ["a"]}


@pytest.mark.rule("EL-5", "EL-9", "JS-11")
@pytest.mark.parametrize("cls", [AsDataclass, AsModel])
def test_classes(cls: Any) -> None:
    form = compile_form(cls)
    assert form.schema == PARTY
    official_in_every_revision(form)
    value = form.decode(FILLED_IN)
    assert value == cls(name="Ada", day=NOON.date(), level=Level.HIGH, sizes=[Size.LARGE], guests=3)
    assert (value.note, value.sauce, value.extras) == (None, Sauce.MILD, set())


@pytest.mark.parametrize("cls", [AsDataclass, AsModel])
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
    assert form.schema == raw(
        ["count"],
        count={"type": "integer", "minimum": 1},
        ratio={"type": "number", "maximum": 1},
        note=text(),
    )
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


def test_a_default_set_is_sent_in_the_order_of_its_choices() -> None:
    form = compile_form(Annotated[frozenset[Literal["a", "b", "c", "d", "e"]], Field(frozenset("ebc"))])
    assert alone(form)["default"] == ["b", "c", "e"]
    assert form.decode({}) == frozenset("bce")


Colours = list[Literal["a", "b", "c"]]
made: list[str] = []


def make_colours() -> list[str]:
    made.append("once more")
    return ["c", "a"]


class ModelOfColours(pydantic.BaseModel):
    my_colours: Colours = pydantic.Field(default_factory=make_colours, alias="myColours")


MADE = [
    dataclasses.make_dataclass("D", [("my_colours", Colours, dataclasses.field(default_factory=make_colours))]),
    ModelOfColours,
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


# What can't be a form


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.rule("EL-5", "JS-11")
@pytest.mark.parametrize(
    ("type_", "fix"),
    [
        (AsDataclass | None, "flat"), (dict[str, int], "flat"), (Point, "a form is flat"), (list[str], r"Literal\["),
        (int | str, "a form is flat"), (bytes, "strings, numbers, booleans, dates and choices"),
        (Any, "strings, numbers, booleans, dates and choices"), (complex, "no JSON form"),
        ([], "something to choose from"), ({}, "something to choose from"), ([1, "1"], 'two choices are spelled "1"'),
        (Literal[1, "1"], 'two choices are spelled "1"'), ([None], "use strings or numbers"),
        ([float("nan")], "can't be sent"), (["\ud800"], "can't be sent"), ({"a": 5}, "the title 5 must be a string"),
        ({"a": {"name": "A"}}, "the title None must be a string"), (5, "it is a type such as str"),
        ("str", "it is a type such as str"),
        (Annotated[Literal["a"], Field(extra={"enumNames": ["A", "B"]})], "one string for each value"),
    ],
    ids=stable,
)  # fmt: skip
def test_types_that_no_form_has(type_: Any, fix: str) -> None:
    with pytest.raises(SetupError, match=rf"^ctx\.elicit, parameter response_type: .*{fix}"):
        compile_form(type_)


@pytest.mark.rule("EL-5")
@pytest.mark.parametrize("inner", [Range, list[str], int | str, bytes, dict[str, str], tuple[int, int]], ids=stable)
def test_errors_name_the_field(inner: Any) -> None:
    with pytest.raises(SetupError, match=r"^ctx\.elicit, parameter response_type, field content: a form "):
        compile_form(Box[inner])


class WithSecretStr(pydantic.BaseModel):
    word: pydantic.SecretStr | None = None


SECRETS = (
    "password", "Passwd", "api_key", "apiKey", "API_KEY", "access_token", "credit_card", "cvv", "token",
    "user_password", "userPassword", "password2", "github_token", "githubToken", "cardNumber", "my_APIKey",
    *("openai_api_key", "secret", "client_secret", "pwd", "passphrase", "privateKey", "refresh_token", "cvc"),
    *("passcode", "secret_key", "api_secret", "api_token", "access_key", "auth_token", "bearer_token"),
    "credit_card_number",
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


def test_raw_schemas_keep_the_spelling_of_their_choices() -> None:
    one, older = text(oneOf=titled(a="A", b="B")), text(enum=["a", "b"], enumNames=["A", "B"])
    several = {"type": "array", "items": {"anyOf": one["oneOf"]}, "minItems": 1}
    form = compile_raw_form(raw(x=one, y=older, z=several))
    assert form.schema == raw(x=one, y=older, z=several)
    official_in_every_revision(form)


@pytest.mark.rule("EL-9")
def test_answers_to_raw_schemas() -> None:
    schema = raw(
        ["name", "size", "when", "mood"],
        name=text(pattern="^[A-Z]", minLength=2),
        size={"type": "integer", "minimum": 1, "default": 3},
        tops=many("a", "b") | {"default": ["b"]},
        level={"type": "integer", "enum": [1, 2]},
        when={"type": ["string", "null"], "format": "date"},
        host=text(format="ipv4"),
        mood=text(enum=["good", None]),
    )
    form = compile_raw_form(schema | {"title": "T", "additionalProperties": False, "$comment": "c"})
    sent = form.schema["properties"]
    assert form.schema["required"] == ["name", "size"]
    assert (sent["name"], sent["host"], sent["level"]) == (text(minLength=2), text(), text(enum=["1", "2"]))
    official_in_every_revision(form)
    empty = {"name": "Ada", "size": 3, "tops": ["b"], "when": None, "mood": None}
    assert form.decode({"name": "Ada", "other": 1}) == empty
    filled = form.decode({"name": "Ada", "size": 2.0, "tops": [], "level": "2", "when": "2026-07-28"})
    assert filled == {"name": "Ada", "size": 2, "tops": [], "level": 2, "when": "2026-07-28", "mood": None}
    assert type(filled["size"]) is int
    with pytest.raises(QuestionFailed, match=r"name: is required, but missing"):
        form.decode({})
    with pytest.raises(QuestionFailed, match=r"name: must match .*; when: must be a date .*; host: must be an"):
        form.decode({"name": "ada", "when": "28.7.", "host": "here"})


@pytest.mark.rule("EL-5", "EL-6", "JS-11")
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "it is a class or a dict, not list; choices are a response_type"),
        ({}, "it must be flat"),
        ({"type": "object"}, "it must be flat"),
        ({"type": "array", "items": {}}, "items has no place"),
        (raw() | {"anyOf": []}, "anyOf has no place"),
        (raw(["y"], x=text()), "required must list names of its properties"),
        (raw(x=text()) | {"required": "x"}, "required must list names of its properties"),
        (raw(x=text()) | {"required": [[]]}, "required must list names of its properties"),
        (raw(x={}), "field x: a form is flat"),
        (raw(x={"type": "object", "properties": {}}), "field x: a form is flat"),
        (raw(x={"type": "array", "items": {"type": "string"}}), "field x: a form is flat"),
        (raw(x={"type": ["string", "integer"]}), "field x: a form is flat"),
        (raw(x={"anyOf": [{"type": "string"}, {"type": "integer"}]}), "field x: a form is flat"),
        (raw(x=True), "it must be flat"),
        (raw(x=text(default=5)), "its defaults do not fit: x: expected a string"),
        (raw(x=text(enum=["a"], default="b")), "its defaults do not fit: x: must be"),
        (raw(x={"type": "integer", "minimum": 5, "default": 1}), "its defaults do not fit: x: must be at least 5"),
        (raw(x=text(enum=[])), "field x: a choice needs something"),
        (raw(x=text(enum=[["a"]])), "field x: .* can't be a choice"),
        (raw(x=text(enum=["a"], enumNames=["A", "B"])), "field x: enumNames must hold one string"),
        (raw(x=text(minLength="1")), "not a valid JSON Schema"),
        (raw(x=text(pattern="(")), ""),
        (raw(x=text(default=object())), "it can't be sent"),
        (raw(x=text(title="\ud800")), "it can't be sent"),
        (raw(password={"type": "string"}), "field password: a form must not ask for secrets"),
        (raw(x=text(format="password")), "field x: a form must not ask for secrets"),
    ],
    ids=lambda value: stable(value)[:80],
)
def test_raw_schemas_that_no_form_has(schema: Any, words: str) -> None:
    with pytest.raises(SetupError, match=rf"^ctx\.elicit, parameter schema.*{words}"):
        compile_raw_form(schema)


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
        try:
            form.decode(content)
        except QuestionFailed as failure:
            words = str(failure)
            assert words.startswith("The answer does not fit the form: ")
            assert len(words.encode("utf-8", "replace")) < 5_000


def test_a_deep_answer_is_refused() -> None:
    deep = nested(100_000, lambda inner: [inner], 1)
    for form in (compile_form(str), compile_form([["a"]]), RAW):
        with pytest.raises(QuestionFailed):
            form.decode({"value": deep, "name": deep})
