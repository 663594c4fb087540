"""Arguments of functions, prompts and raw schemas: read, read again, explained; hostile ones in bounded time."""

import datetime
import decimal
import json
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argument_types import (
    RAW,
    TABLE,
    TABLE_IDS,
    TODAY,
    Bird,
    Bounded,
    Cat,
    Colour,
    Dog,
    Fish,
    Json,
    Level,
    Model,
    Node,
    Odd,
    Pair,
    Picky,
    Point,
    compiled,
    problems,
    raw_arguments,
    read,
)
from dovetail.errors import ArgumentError, SetupError
from dovetail.registry.arguments import Arguments
from dovetail.registry.functions import inspect_function
from dovetail.schema.constraints import Field
from dovetail.schema.encode import encode_json
from dovetail.schema.validate import Validator
from stable_ids import stable


@pytest.mark.parametrize(("annotation", "good", "value", "bad", "line"), TABLE, ids=TABLE_IDS)
def test_types(annotation: Any, good: str, value: Any, bad: str, line: str) -> None:
    arguments = compiled(annotation)
    found = arguments.decode(f'{{"x": {good}}}'.encode())["x"]
    assert found == value
    assert type(found) is type(value)
    if bad:
        first = problems(lambda: arguments.decode(f'{{"x": {bad}}}'.encode()))[0]
        assert first.startswith(line)
    text = json.dumps(arguments.schema)
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & arguments.schema.keys(), text
    assert "oneOf" not in text or "Circle" in str(annotation)


def test_all_problems_are_named() -> None:
    def tool(limit: int, since: datetime.date, tags: list[str], where: Point, ok: int = 1) -> None: ...

    raw = b'{"limit": "ten", "since": "2024-02-30", "tags": ["a", 5], "where": {"y": "b"}, "ok": 2, "more": 1}'
    found = problems(lambda: Arguments(inspect_function(tool)).decode(raw))
    assert "Invalid arguments for tool:" in str(ArgumentError("tool", found))
    places = {"limit", "since", "tags[1]", "where.x", "where.y", "more"}
    assert {line.partition(":")[0] for line in found} == places
    assert 'limit: expected an integer, got the string "ten"' in found


# The second reading


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, '"5"', 5),
        (bool, '"true"', True),
        (None, '"null"', None),
        (int | None, '"null"', None),
        (list[int], '"[1, 2]"', [1, 2]),
        (list[int], '"[\\"1\\"]"', [1]),
        (dict[str, int], '"{\\"a\\": \\"1\\"}"', {"a": 1}),
        (Point, '"{\\"x\\": 1}"', Point(1)),
        (list[Point] | None, '"[{\\"x\\": 1}]"', [Point(1)]),
        (Node, '{"value": 1, "children": "[{\\"value\\": \\"2\\"}]"}', Node(1, [Node(2)])),
        (Model, '"{\\"size\\": 1}"', Model(size=1)),
        (Level, '"2"', Level.HIGH),
        (Annotated[int, Field(ge=1)], '"5"', 5),
    ],
    ids=stable,
)
def test_strings_that_hold_json(annotation: Any, text: str, value: Any) -> None:
    assert read(annotation, text) == value
    problems(lambda: read(annotation, text, lenient=False))


@pytest.mark.parametrize("annotation", [str, str | int, str | None, list[int] | str, Any, Json], ids=stable)
@pytest.mark.parametrize("text", ["5", "[1]", "null", "{}"])
def test_strings_stay_strings_where_they_are_welcome(annotation: Any, text: str) -> None:
    assert read(annotation, json.dumps(text)) == text
    assert read(list[annotation], json.dumps([text])) == [text]
    assert read(Literal["5", 5], '"5"') == "5"


@pytest.mark.parametrize("text", ['"five"', '""', '"[1, 2"', '"5"', '"true"', '"NaN"'])
def test_strings_that_hold_something_else(text: str) -> None:
    assert problems(lambda: read(list[int], text)) == [f"x: expected an array, got the string {text}"]
    assert problems(lambda: read(list[Picky], '[{"x": 1}, {"x": 13}]')) == ["x[1]: thirteen brings bad luck"]


def test_a_time_without_a_zone_is_welcome_everywhere() -> None:
    def tool(when: datetime.datetime, code: Annotated[str, Field(pattern="^a")] = "a") -> None: ...

    arguments = Arguments(inspect_function(tool))
    assert arguments.schema["properties"]["when"] == {"type": "string", "format": "date-time"}
    lines = problems(lambda: arguments.decode(b'{"when": "2024-05-17T10:00:00", "code": "b"}'))
    assert lines == ['code: must match the pattern ^a, got "b"']


@pytest.mark.parametrize(("kind", "text"), [(datetime.datetime, "2024-05-17T10:00:00"), (datetime.time, "10:00:00")])
def test_zones_that_are_wanted_or_not(kind: Any, text: str) -> None:
    naive, aware = Annotated[kind, msgspec.Meta(tz=False)], Annotated[kind, msgspec.Meta(tz=True)]
    assert read(naive, f'"{text}"').tzinfo is None
    assert read(aware, f'"{text}Z"').tzinfo is not None
    assert problems(lambda: read(naive, f'"{text}Z"')) == [f'x: must have no time zone, got "{text}Z"']
    assert problems(lambda: read(aware, f'"{text}"'))[0].startswith("x: must have a time zone")
    assert "format" not in compiled(naive).schema["properties"]["x"]


class Coercing(pydantic.BaseModel):
    tags: Annotated[list[int], pydantic.BeforeValidator(lambda v: v.split(",") if isinstance(v, str) else v)]


def test_pydantic_models_are_read_strictly_unless_they_coerce() -> None:
    assert problems(lambda: read(Model, '{"size": true}')) == ["x.size: expected an integer, got true"]
    assert read(Model, '{"size": 5.0}') == Model(size=5)
    assert read(Coercing, '{"tags": "1,2"}') == Coercing(tags=[1, 2])


# Defaults


def test_defaults_are_applied_and_not_shared() -> None:
    def tool(
        a: int = 1,
        b: list[int] = [1],  # noqa: B006
        c: dict[str, list[int]] = {"a": []},  # noqa: B006
        d: list[int] = pydantic.Field(default_factory=lambda: [1]),  # noqa: B008
        e: Point = Point(1),  # noqa: B008
        f: object = tool_default,
    ) -> None: ...

    arguments = Arguments(inspect_function(tool))
    first = arguments.decode(b"{}")
    for shared in (first["b"], first["c"]["a"], first["d"]):
        shared.append(2)
    assert arguments.decode(b"{}") == {"a": 1, "b": [1], "c": {"a": []}, "d": [1], "e": Point(1), "f": tool_default}
    shown = {name: part["default"] for name, part in arguments.schema["properties"].items() if "default" in part}
    assert shown == {"a": 1, "b": [1], "c": {"a": []}, "e": {"x": 1, "y": 0}}
    assert "required" not in arguments.schema


tool_default = object()


def test_a_default_of_none_welcomes_null() -> None:
    arguments = compiled(Annotated[int, Field(ge=1, description="d")], None)
    assert arguments.decode(b'{"x": null}') == arguments.decode(b"{}") == {"x": None}
    either = [{"type": "integer", "minimum": 1}, {"type": "null"}]
    assert arguments.schema["properties"]["x"] == {"anyOf": either, "description": "d", "default": None}
    assert compiled(int | None, None).schema["properties"]["x"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert compiled(Any, None).schema["properties"]["x"] == {"default": None}


def test_descriptions() -> None:
    def tool(a: int, b: Annotated[int, "beside"], c: Colour, d: Point) -> None:
        """Do it.

        Args:
            a: from the docstring
            b: not this
            c: which colour
        """

    properties = Arguments(inspect_function(tool)).schema["properties"]
    assert [properties[name].get("description") for name in "abcd"] == [
        "from the docstring", "beside", "which colour", None,
    ]  # fmt: skip


def test_a_schema_without_parameters() -> None:
    arguments = Arguments(inspect_function(lambda: None, name="nothing"))
    assert arguments.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert arguments.decode(b"{}") == {}
    assert len(problems(lambda: arguments.decode(b'{"a": 1}'))) == 1


# Raw schemas


def test_raw_arguments() -> None:
    arguments = raw_arguments()
    assert list(arguments.schema.items()) == list(RAW.items())
    first = arguments.decode(b'{"size": 1, "more": true}')
    assert first == {"size": 1, "more": True, "tags": ["a"]}
    first["tags"].append("b")
    assert arguments.decode(b'{"size": 1}')["tags"] == ["a"]
    again = arguments.decode(b'{"size": "2", "tags": "[\\"b\\"]", "word": "5"}')
    assert again == {"size": 2, "tags": ["b"], "word": "5"}
    assert problems(lambda: arguments.decode(b'{"size": "0"}')) == ["size: must be at least 1, got 0"]
    assert len(problems(lambda: arguments.decode(b'{"size": "0", "tags": [1]}'))) == 2
    assert len(problems(lambda: raw_arguments(lenient=False).decode(b'{"size": "2"}'))) == 1
    for raw in (b"[]", b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}"):
        assert len(problems(lambda raw=raw: arguments.decode(raw))) == 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"oneOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}, ["5"], [5]),
        ({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}]}, {"a": "5"}, {"a": 5}),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": 2}, "2", 2),
        ({"prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}}, ["1", "true"], [1, True]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": "1"}, {"a": 1}),
        ({"$ref": "#/$defs/a~1b"}, "1", 1),
        ({"type": "number"}, "1", 1),
    ],
    ids=stable,
)
def test_the_second_reading_of_raw_schemas(part: Any, value: Any, expected: Any) -> None:
    schema = {"type": "object", "properties": {"x": part}, "$defs": {"a/b": {"type": "integer"}}}
    assert raw_arguments(schema).decode(json.dumps({"x": value}).encode()) == {"x": expected}


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"type": ["object", "null"]}, True, None, [], "object"])
def test_raw_schemas_without_an_object_at_the_root(schema: Any) -> None:
    with pytest.raises(SetupError, match=r"tool t.*input_schema"):
        raw_arguments(schema)


def test_prompts_take_strings() -> None:
    def prompt(
        code: str, count: int, when: datetime.date = TODAY, ratio: float = 0.5, colour: Colour = Colour.RED,
        tags: list[str] | None = None, loud: bool = False, mode: Literal["a", "1"] = "a",
    ) -> None: ...  # fmt: skip

    strings = Arguments(inspect_function(prompt, kind="prompt"))
    given_strings = {
        "code": "[1]", "count": "3", "when": "2024-01-02", "ratio": "1.5", "colour": "blue", "tags": '["x"]',
        "loud": "true", "mode": "1",
    }  # fmt: skip
    expected = {
        "code": "[1]", "count": 3, "when": datetime.date(2024, 1, 2), "ratio": 1.5, "colour": Colour.BLUE,
        "tags": ["x"], "loud": True, "mode": "1",
    }  # fmt: skip
    assert strings.decode(json.dumps(given_strings).encode()) == strings.decode_values(given_strings) == expected
    lines = problems(lambda: strings.decode_values({"code": "a", "count": "three"}))
    assert lines == ['count: expected an integer, got the string "three"']


def test_the_kinds_of_value_that_an_argument_takes() -> None:
    def prompt(a: str, b: int | None, c: list[str], d: dict[str, str] | str, e: Any) -> None: ...

    kinds = Arguments(inspect_function(prompt, kind="prompt")).kinds
    assert [kinds(name) for name in "abcd"] == [{"string"}, {"integer", "null"}, {"array"}, {"object", "string"}]
    assert {"array", "object", "string"} < kinds("e")


# The schema that is shown and the types that are read agree


SAMPLES: list[Any] = [
    None, True, 0, 1, -1, 5.0, 1.5, "", "a", "5", "red", [], [1], ["a"], [1, "a"], [None], ["a", 0], {},
    {"x": 1}, {"x": 0}, {"x": 1, "y": 2}, {"x": "a"}, {"x": 1, "code": "B"}, {"1": "a"}, {"a": 1}, {"title": "a"},
    {"type": "cat", "lives": 1}, {"type": "fish", "depth": 1}, {"value": -1}, {"value": 1, "children": [{}]},
    {"name": "a"}, {"name": "a", "wings": 1}, {"size": 1, "tags": ["a"]}, {"size": 1, "tags": [1]},
]  # fmt: skip
LOOSER_THAN_THEIR_SCHEMA = ("datetime", "uuid", "decimal", "bytes", "set", "Picky", "Crate")


@pytest.mark.parametrize("row", TABLE, ids=TABLE_IDS)
def test_the_schema_means_what_the_decoder_does(row: tuple[Any, ...]) -> None:
    if any(word in str(row[0]) for word in LOOSER_THAN_THEIR_SCHEMA):
        return
    arguments = compiled(row[0], lenient=False)
    validator = Validator(arguments.schema, where="test")
    for sample in SAMPLES:
        try:
            arguments.decode(encode_json({"x": sample}))
            is_read = True
        except ArgumentError:
            is_read = False
        assert is_read is validator.is_valid({"x": sample}), sample


# Hostile input


@pytest.mark.seed("S2-75")
@pytest.mark.timeout(60)
def test_patterns_never_backtrack() -> None:
    arguments = compiled(Annotated[str, Field(pattern="^(a+)+$")])
    nested = compiled(Bounded)
    hostile = "a" * 50_000 + "!"
    assert len(problems(lambda: arguments.decode(json.dumps({"x": hostile}).encode()))) == 1
    assert len(problems(lambda: nested.decode(json.dumps({"x": {"x": 1, "code": hostile}}).encode()))) == 1
    assert arguments.decode(b'{"x": "aaa"}') == {"x": "aaa"}


@pytest.mark.parametrize("annotation", [Colour, Odd, uuid.UUID, dict[uuid.UUID, int], Pair[str]], ids=stable)
def test_words_that_look_like_ours_cost_nothing(annotation: Any) -> None:
    hostile = " - at `$" * 100_000
    arguments = compiled(annotation)
    for value in (hostile, {hostile: 1}, [hostile]):
        with pytest.raises(ArgumentError) as caught:
            arguments.decode(json.dumps({"x": value}).encode())
        assert all(len(line) < 1000 for line in caught.value.problems)


@pytest.mark.parametrize("annotation", [int, Any, list[int], Json, Node, Model])
def test_deep_nesting(annotation: Any) -> None:
    arrays, objects = b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    for raw in (b'{"x": ' + arrays + b"}", b'{"x": ' + objects + b"}", b'{"y": ' + arrays + b"}"):
        lines = problems(lambda raw=raw: compiled(annotation).decode(raw))  # type: ignore[misc]
        assert lines == ["arguments: nested too deeply"]


NO_ARGUMENTS = [
    b'{"x": "\xff"}', b'{"\xff": 1}', b'{"x": "\\ud800"}', b'{"x": 1', b"", b"{'x': 1}", b'{"x": NaN}', b"[]", b"5",
    b"null", b'"x"',
]  # fmt: skip


@pytest.mark.parametrize("raw", NO_ARGUMENTS, ids=stable)
def test_text_that_is_no_json_or_no_object(raw: bytes) -> None:
    for annotation in (str, int, Any):
        assert len(problems(lambda a=annotation: compiled(a).decode(raw))) == 1  # type: ignore[misc]


def test_huge_integers() -> None:
    assert read(int, str(2**70)) == 2**70
    assert read(Annotated[int, Field(le=2**70)], str(2**70)) == 2**70
    assert len(problems(lambda: read(Annotated[int, Field(le=2**70)], str(2**70 + 1)))) == 1
    assert read(Any, f"[{2**70}]") == [2**70]
    assert read(Annotated[int, Field(ge=0)], str(2**70)) == 2**70


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 5000], ids=["large", "small", "long"])
def test_numbers_that_are_too_large(number: str) -> None:
    for annotation in (int, float, Any, str, int | None, list[int], Point):
        assert problems(lambda a=annotation: read(a, number)) == ["x: is too large a number"]  # type: ignore[misc]
    assert problems(lambda: read(list[int], f"[1, {number}]")) == ["x[1]: is too large a number"]
    assert problems(lambda: read(dict[str, int], f'{{"a": {number}}}')) == ["x[…]: is too large a number"]
    lines = problems(lambda: raw_arguments().decode(b'{"size": %b}' % number.encode()))
    assert lines == ["arguments: hold too large a number"]


NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NODES: Any = st.recursive(
    st.builds(Node, st.integers(0, 9)),
    lambda inner: st.builds(Node, st.integers(0, 9), st.lists(inner, max_size=2)),
    max_leaves=4,
)
STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    bytes: st.binary(),
    Any: JSON_VALUES,
    datetime.datetime: st.datetimes(timezones=st.just(datetime.UTC)),
    datetime.date: st.dates(),
    datetime.time: st.times(),
    uuid.UUID: st.uuids(),
    decimal.Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    list[int] | None: st.none() | st.lists(st.integers()),
    dict[int, str]: st.dictionaries(st.integers(), st.text()),
    set[int]: st.sets(st.integers()),
    Node: NODES,
    Dog | Bird: st.builds(Dog, st.text()) | st.builds(Bird, st.text()),
    Cat | Fish: st.builds(Cat, st.integers()) | st.builds(Fish, st.floats(-9, 0)),
    Model: st.builds(Model, size=st.integers(0, 100), tags=st.lists(st.text())),
}
COMPILED = {annotation: compiled(annotation) for annotation in STRATEGIES}


@pytest.mark.parametrize("annotation", STRATEGIES, ids=stable)
@settings(max_examples=settings.default.max_examples // 5)  # of each case
@given(data=st.data())
def test_round_trips(annotation: Any, data: st.DataObject) -> None:
    value = data.draw(STRATEGIES[annotation])
    assert COMPILED[annotation].decode(encode_json({"x": value})) == {"x": value}


@pytest.mark.parametrize("annotation", STRATEGIES, ids=stable)
@settings(max_examples=settings.default.max_examples // 5)  # of each case
@given(value=JSON_VALUES)
def test_any_json_is_read_or_explained(annotation: Any, value: Any) -> None:
    try:
        COMPILED[annotation].decode(encode_json({"x": value}))
    except ArgumentError as error:
        assert error.problems  # noqa: PT017
        assert all(line.startswith("x") for line in error.problems)  # noqa: PT017
