"""Arguments and the schemas that are shown for them: raw ones, those of prompts, and that both agree."""

import datetime
import json
from typing import Any, Literal

import pytest
from argument_types import RAW, TABLE, TODAY, Colour, compiled, problems, raw_arguments

from dovetail.errors import ArgumentError, SetupError
from dovetail.registry.arguments import Arguments
from dovetail.registry.functions import inspect_function
from dovetail.registry.outputs import encode_json
from dovetail.registry.validate import Validator
from stable_ids import stable

# Raw schemas


def test_raw_schemas_pass_through_untouched() -> None:
    arguments = raw_arguments()
    assert arguments.schema == RAW
    assert list(arguments.schema) == list(RAW)


def test_raw_arguments() -> None:
    arguments = raw_arguments()
    first = arguments.decode(b'{"size": 1, "more": true}')
    assert first == {"size": 1, "more": True, "tags": ["a"]}
    first["tags"].append("b")
    assert arguments.decode(b'{"size": 1}')["tags"] == ["a"]
    assert arguments.decode(b'{"size": "2", "tags": "[\\"b\\"]", "word": "5"}') == {
        "size": 2,
        "tags": ["b"],
        "word": "5",
    }
    assert problems(lambda: arguments.decode(b'{"size": "0"}')) == ["size: must be at least 1, got 0"]
    assert len(problems(lambda: arguments.decode(b'{"size": "0", "tags": [1]}'))) == 2
    assert len(problems(lambda: raw_arguments(lenient=False).decode(b'{"size": "2"}'))) == 1
    assert len(problems(lambda: arguments.decode(b"[]"))) == 1
    assert len(problems(lambda: arguments.decode(b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}"))) == 1


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"oneOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}, ["5"], [5]),
        ({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}]}, {"a": "5"}, {"a": 5}),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": 2}, "2", 2),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}},
            ["1", "true"],
            [1, True],
        ),
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


# Strings


def test_prompts_take_strings() -> None:
    def prompt(
        code: str,
        count: int,
        when: datetime.date = TODAY,
        ratio: float = 0.5,
        colour: Colour = Colour.RED,
        tags: list[str] | None = None,
        loud: bool = False,
        mode: Literal["a", "1"] = "a",
    ) -> None:
        """Ask.

        Args:
            code: The code.
        """

    strings = Arguments(inspect_function(prompt, kind="prompt"))
    given_strings = {
        "code": "[1]",
        "count": "3",
        "when": "2024-01-02",
        "ratio": "1.5",
        "colour": "blue",
        "tags": '["x"]',
        "loud": "true",
        "mode": "1",
    }
    expected = {
        "code": "[1]",
        "count": 3,
        "when": datetime.date(2024, 1, 2),
        "ratio": 1.5,
        "colour": Colour.BLUE,
        "tags": ["x"],
        "loud": True,
        "mode": "1",
    }
    assert strings.decode(json.dumps(given_strings).encode()) == expected
    assert strings.decode_values(given_strings) == expected
    assert problems(lambda: strings.decode_values({"code": "a", "count": "three"})) == [
        'count: expected an integer, got the string "three"'
    ]


def test_the_kinds_of_value_that_an_argument_takes() -> None:
    def prompt(a: str, b: int | None, c: list[str], d: dict[str, str] | str, e: Any) -> None: ...

    kinds = Arguments(inspect_function(prompt, kind="prompt")).kinds
    assert [sorted(kinds(name)) for name in "abcd"] == [
        ["string"],
        ["integer", "null"],
        ["array"],
        ["object", "string"],
    ]
    assert {"array", "object", "string"} < kinds("e")


# The schema that is shown and the types that are read agree


SAMPLES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    5.0,
    1.5,
    "",
    "a",
    "5",
    "red",
    [],
    [1],
    ["a"],
    [1, "a"],
    [None],
    ["a", 0],
    {},
]
SAMPLES += [
    {"x": 1},
    {"x": 0},
    {"x": 1, "y": 2},
    {"x": "a"},
    {"x": 1, "code": "B"},
    {"1": "a"},
    {"a": 1},
    {"title": "a"},
]
SAMPLES += [{"type": "cat", "lives": 1}, {"type": "fish", "depth": 1}, {"value": -1}, {"value": 1, "children": [{}]}]
SAMPLES += [{"name": "a"}, {"name": "a", "wings": 1}, {"size": 1, "tags": ["a"]}, {"size": 1, "tags": [1]}]
LOOSER_THAN_THEIR_SCHEMA = ("datetime", "uuid", "decimal", "bytes", "set", "Picky", "Crate")


@pytest.mark.parametrize("row", TABLE, ids=[f"{stable(row[0])}-{number}" for number, row in enumerate(TABLE)])
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
