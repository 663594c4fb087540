"""The words for what is wrong with a value."""

import json
from typing import Any

import pytest
from validator_stage import D4, D7, nested, problems

from dovetail.registry.validate import Validator

pytestmark = pytest.mark.timeout(60)  # only to catch what would never end


SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50},
        "mode": {"type": "string", "enum": ["fast", "slow"]},
        "filter": {
            "type": "object",
            "properties": {"tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}}},
            "additionalProperties": False,
        },
        "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["query"],
    "additionalProperties": False,
}


def test_all_problems_are_told() -> None:
    value = {
        "mode": "medium",
        "limit": "ten",
        "filter": {"tags": ["a", 5, "B"], "colour": 1},
        "colour": "red",
        "since": "yesterday",
    }
    assert problems(SEARCH, value) == [
        'mode: must be one of "fast", "slow"; got "medium"',
        'limit: expected an integer, got the string "ten"',
        "filter.tags[1]: expected a string, got the integer 5",
        'filter.tags[2]: must match the pattern ^[a-z]+$, got "B"',
        "filter.colour: unknown property (known: tags)",
        'since: must be a date such as 2026-07-28, got "yesterday"',
        "query: required, but missing",
        "colour: unknown argument (known: query, limit, mode, filter, since)",
    ]
    assert problems(SEARCH, {"query": "x", "limit": 50, "since": None}) == []


CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "tricks": {"type": "array"}}, "required": ["kind"]}
TREE = {"$defs": {"t": {"properties": {"next": {"$ref": "#/$defs/t"}, "n": {"type": "integer"}}}}, "$ref": "#/$defs/t"}
NULL = {"type": "null"}

WORDS: list[tuple[Any, Any, list[str]]] = [
    ({"type": "object"}, [], ["arguments: expected an object, got an array"]),
    ({"type": "array"}, {}, ["arguments: expected an array, got an object"]),
    ({"type": "boolean"}, 1, ["arguments: expected true or false, got the integer 1"]),
    ({"type": ["integer", "null"]}, 1.5, ["arguments: expected an integer or null, got the number 1.5"]),
    ({"type": "string"}, True, ["arguments: expected a string, got true"]),
    ({"type": "string"}, None, ["arguments: expected a string, got null"]),
    ({"items": {"type": "string"}}, ["a", 1], ["arguments[1]: expected a string, got the integer 1"]),
    ({"const": 5}, 6, ["arguments: must be 5, got 6"]),
    ({"enum": [1, None, "a"]}, True, ['arguments: must be one of 1, null, "a"; got true']),
    ({"type": "string", "enum": ["a", "b"]}, 5, ['arguments: must be one of "a", "b"; got 5']),
    ({"minimum": 3}, 2, ["arguments: must be at least 3, got 2"]),
    ({"maximum": 3}, 10**30, [f"arguments: must be at most 3, got {10**30}"]),
    ({"exclusiveMinimum": 3}, 3, ["arguments: must be more than 3, got 3"]),
    ({"exclusiveMaximum": 3}, 3.0, ["arguments: must be less than 3, got 3.0"]),
    ({**D4, "maximum": 3, "exclusiveMaximum": True}, 3, ["arguments: must be less than 3, got 3"]),
    ({"multipleOf": 0.5}, 0.7, ["arguments: must be a multiple of 0.5, got 0.7"]),
    ({"maxLength": 2}, "äöü", ["arguments: must have at most 2 characters, has 3"]),
    ({"minLength": 1}, "", ["arguments: must have at least 1 character, has 0"]),
    ({"minItems": 1}, [], ["arguments: must have at least 1 item, has 0"]),
    ({"maxItems": 0}, [1], ["arguments: must have at most 0 items, has 1"]),
    ({"uniqueItems": True}, [1, 1.0], ["arguments: must not hold the same item twice"]),
    ({"minProperties": 1}, {}, ["arguments: must have at least 1 property, has 0"]),
    ({"maxProperties": 1}, {"a": 1, "b": 2}, ["arguments: must have at most 1 property, has 2"]),
    ({"format": "date-time"}, "x", ['arguments: must be a date-time such as 2026-07-28T09:30:00Z, got "x"']),
    ({"format": "iri"}, "a b", ['arguments: must be in the format iri, got "a b"']),
    ({"format": "no-such-format"}, "x", []),
    ({**D7, "contentEncoding": "base64"}, "*", ["arguments: must be in the encoding base64"]),
    ({"items": False}, [1], ["arguments[0]: is not allowed"]),
    ({"prefixItems": [{}], "items": {"type": "null"}}, [1, 2], ["arguments[1]: expected null, got the integer 2"]),
    ({**D7, "items": [{}], "additionalItems": False}, [1, 2], ["arguments[1]: is not allowed"]),
    ({"contains": {"const": 1}}, [2], ['arguments: must hold at least 1 item like {"const":1}, holds 0']),
    ({"contains": {}, "maxContains": 2}, [1, 2, 3], ["arguments: must hold at most 2 items like {}, holds 3"]),
    ({"not": {"const": 1}}, 1, ['arguments: must not fit {"const":1}, got 1']),
    ({"properties": {"a": False}}, {"a": 1}, ["a: is not allowed"]),
    ({"properties": {"a b": {"type": "null"}}}, {"a b": 1}, ['arguments["a b"]: expected null, got the integer 1']),
    ({"additionalProperties": {"type": "null"}}, {"x-y": 1}, ["x-y: expected null, got the integer 1"]),
    ({"patternProperties": {"^x": {"type": "null"}}}, {"xy": 1, "y": 1}, ["xy: expected null, got the integer 1"]),
    (
        {"patternProperties": {"^x": {}}, "additionalProperties": False},
        {"x": 1, "y": 1},
        ["y: unknown argument (known: names that match ^x)"],
    ),
    ({"additionalProperties": False}, {"y": 1}, ["y: unknown argument (known: none)"]),
    (
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        {"a": 1, "b": 2},
        ["arguments: does not fit the schema"],
    ),
    ({"unevaluatedItems": False}, [1], ["arguments: does not fit the schema"]),
    (
        {"propertyNames": {"pattern": "^[a-z]+$"}},
        {"A": 1},
        ['A: is not an allowed name: it must match the pattern ^[a-z]+$, got "A"'],
    ),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, ["b: required beside a, but missing"]),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, ["b: required, but missing"]),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, "a", ["arguments: must have at least 2 characters, has 1"]),
    # Alternatives
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [], ["arguments: expected an integer or null, got an array"]),
    ({"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]}, 1, ["arguments: must be at least 3, got 1"]),
    ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, "c", ['arguments: must be one of "a", "b" or null; got "c"']),
    ({"oneOf": [{"const": "a"}, {"const": "b"}]}, "c", ['arguments: must be one of "a", "b"; got "c"']),
    (
        {"oneOf": [{"type": "string"}, {"minLength": 1}]},
        "c",
        ['arguments: fits 2 of the allowed forms, must fit exactly one; got "c"'],
    ),
    ({"anyOf": [CAT, DOG]}, {"kind": "cat", "lives": "nine"}, ['lives: expected an integer, got the string "nine"']),
    ({"anyOf": [CAT, DOG]}, {"kind": "bird"}, ['kind: must be one of "cat", "dog"; got "bird"']),
    ({"anyOf": [CAT, DOG, {"type": "null"}]}, 5, ["arguments: expected an object or null, got the integer 5"]),
    ({"allOf": [{"minimum": 3}, {"minimum": 3}]}, 1, ["arguments: must be at least 3, got 1"]),
    # References
    (TREE, {"next": {"next": {"n": "x"}}}, ['next.next.n: expected an integer, got the string "x"']),
    (
        {"$anchor": "a", "items": {"$ref": "#a"}, "type": "array"},
        [[1]],
        ["arguments[0][0]: expected an array, got the integer 1"],
    ),
    (
        {"$id": "http://x.test/a", "$ref": "b#/$defs/%25", "$defs": {"b": {"$id": "b", "$defs": {"%": NULL}}}},
        1,
        ["arguments: expected null, got the integer 1"],
    ),
    (
        {**D7, "$ref": "#/definitions/a", "type": "null", "definitions": {"a": {"minimum": 3}}},
        1,
        ["arguments: must be at least 3, got 1"],
    ),
    ({"properties": {"$ref": {"type": "null"}}}, {"$ref": 1}, ['arguments["$ref"]: expected null, got the integer 1']),
    (False, 1, ["arguments: is not allowed"]),
    (True, 1, []),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "lines"), WORDS, ids=[json.dumps(row[0])[:60] for row in WORDS])
def test_words(schema: Any, value: Any, lines: list[str]) -> None:
    assert problems(schema, value) == lines


def test_the_root_has_a_name() -> None:
    assert problems({"type": "null"}, [1], root="value") == ["value: expected null, got an array"]
    assert problems({"items": {"type": "null"}}, [1], root="value") == ["value[0]: expected null, got the integer 1"]
    assert problems({"additionalProperties": False}, {"a": 1}, root="value") == ["a: unknown property (known: none)"]


def test_lines_are_bounded() -> None:
    found = problems({"items": {"type": "string"}}, list(range(30)))
    assert len(found) == 21
    assert found[-1] == "… and 10 more"
    assert problems({"items": {"type": "string"}}, [1] * 1000)[-1] == "… and at least 80 more"
    huge = "x" * 1_000_000
    schema = {"properties": {huge[:900]: {"enum": [huge[:5000]] * 1 + [str(n) * 100 for n in range(100)]}}}
    for value in (huge, [huge] * 10, {huge[:900]: huge}, nested(100, lambda inner: [inner, huge], 1)):
        lines = problems(schema, {huge[:900]: value})
        assert sum(map(len, lines)) < 3000


@pytest.mark.parametrize(
    "name",
    ["date-time", "date", "time", "duration", "email", "uri", "uuid", "ipv4", "ipv6", "hostname", "regex"],
)
def test_formats_are_checked(name: str) -> None:
    assert not Validator({"format": name}, where="tool").is_valid("\x00 not ( a {")
    assert Validator({"format": name}, where="tool").is_valid(5)
