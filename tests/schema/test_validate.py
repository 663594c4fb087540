"""Validation of values: words for their problems, and hostile schemas, values and patterns in bounded time."""

import functools
import itertools
import json
import math
import socket
import types
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argument_types import nested
from costs import functions_called
from dovetail.errors import SetupError
from dovetail.schema.explain import INCOMPLETE, Budget
from dovetail.schema.validate import DIALECTS, Pattern, SchemaLimits, Validator
from stable_ids import stable


def problems(schema: Any, value: Any, **options: Any) -> list[str]:
    validator = Validator(schema, where="tool")
    found = validator.problems(value, **options)
    assert validator.is_valid(value) == (not found)
    return found


def refused(schema: Any, **options: Any) -> str:
    with pytest.raises(SetupError) as caught:
        Validator(schema, where="tool search, input_schema", **options)
    assert str(caught.value).startswith("tool search, input_schema: ")
    return str(caught.value)


pytestmark = pytest.mark.timeout(60)  # only to catch what would never end
D7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
D4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
TAGS = {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}}
SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50},
        "mode": {"type": "string", "enum": ["fast", "slow"]},
        "filter": {"type": "object", "properties": {"tags": TAGS}, "additionalProperties": False},
        "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["query"],
    "additionalProperties": False,
}


def test_all_problems_are_reported() -> None:
    value = {
        "mode": "medium", "limit": "ten", "filter": {"tags": ["a", 5, "B"], "colour": 1}, "colour": "red",
        "since": "yesterday",
    }  # fmt: skip
    assert problems(SEARCH, value) == [
        'mode: must be one of "fast", "slow"; got "medium"', 'limit: expected an integer, got the string "ten"',
        "filter.tags[1]: expected a string, got the integer 5",
        'filter.tags[2]: must match the pattern ^[a-z]+$, got "B"', "filter.colour: unknown property (known: tags)",
        'since: must be a date such as 2026-07-28, got "yesterday"', "query: required, but missing",
        "colour: unknown argument (known: query, limit, mode, filter, since)",
    ]  # fmt: skip
    assert problems(SEARCH, {"query": "x", "limit": 50, "since": None}) == []


CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "tricks": {"type": "array"}}, "required": ["kind"]}
TREE = {"$defs": {"t": {"properties": {"next": {"$ref": "#/$defs/t"}, "n": {"type": "integer"}}}}, "$ref": "#/$defs/t"}
NULL, ARRAY = {"type": "null"}, {"type": "array"}
CLOSED, LEFT_OVER = {"additionalProperties": False}, {"unevaluatedProperties": False}
ELSEWHERE = {"$id": "http://x.test/a", "$ref": "b#/$defs/%25", "$defs": {"b": {"$id": "b", "$defs": {"%": NULL}}}}
OLDER = {**D7, "$ref": "#/definitions/a", "type": "null", "definitions": {"a": {"minimum": 3}}}
ITEM: dict[str, Any] = {"items": {"$ref": "b"}}
REFERRING: list[dict[str, Any]] = [
    {"items": {"$ref": "#/$defs/a~1b~0c"}, "$defs": {"a/b~c": NULL}},
    {"items": {"$ref": "#/allOf/1/items"}, "allOf": [{}, {"items": NULL}]},
    {"items": {"$ref": "#/own/x"}, "own": {"x": {"$ref": "#/own/y"}, "y": NULL}},  # outside of known keywords
    {"$id": "urn:example:a", "items": {"$ref": "#/$defs/b"}, "$defs": {"b": NULL}},
    {"$id": "http://x.test/a", **ITEM, "$defs": {"b": {"$id": "b", "$ref": "#/$defs/c", "$defs": {"c": NULL}}}},
    {"$id": "http://x.test/a", "items": {"$ref": "b#c"}, "$defs": {"b": {"$id": "b", "not": {"$anchor": "c", **NULL}}}},
    {**D4, "id": "http://x.test/a", **ITEM, "definitions": {"b": {"id": "b", **NULL}}},
    {**D7, "items": {"$ref": "#b"}, "definitions": {"b": {"$id": "#b", **NULL}}},
    {**D7, "items": {"$ref": "c#b"}, "definitions": {"c": {"$id": "c", "definitions": {"b": {"$id": "#b", **NULL}}}}},
]

WORDS: list[tuple[Any, Any, list[str]]] = [
    ({"type": "object"}, [], ["arguments: expected an object, got an array"]),
    ({"type": "boolean"}, 1, ["arguments: expected true or false, got the integer 1"]),
    ({"type": ["integer", "null"]}, 1.5, ["arguments: expected an integer or null, got the number 1.5"]),
    ({"type": "string"}, True, ["arguments: expected a string, got true"]),
    ({"items": {"type": "string"}}, ["a", 1], ["arguments[1]: expected a string, got the integer 1"]),
    ({"const": 5}, 6, ["arguments: must be 5, got 6"]),
    ({"enum": [1, None, "a"]}, True, ['arguments: must be one of 1, null, "a"; got true']),
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
    ({"minProperties": 2}, {}, ["arguments: must have at least 2 properties, has 0"]),
    ({"type": ["number", "array", "string"]}, None, ["arguments: expected a number or an array or a string, got null"]),
    ({"enum": [*range(20)]}, "a", [f"arguments: must be one of {', '.join(map(str, range(20)))}; got \"a\""]),
    ({"enum": [*range(21)]}, "a", [f"arguments: must be one of {', '.join(map(str, range(20)))}, …; got \"a\""]),
    ({"properties": {"a" * 80: {}}, **CLOSED}, {"b": 1}, [f"b: unknown argument (known: {'a' * 80})"]),
    ({"properties": {"a" * 81: {}}, **CLOSED}, {"b": 1}, [f"b: unknown argument (known: {'a' * 79}…)"]),
    ({"const": 1}, "x" * 78, [f'arguments: must be 1, got "{"x" * 78}"']),
    ({"const": 1}, "x" * 79, [f'arguments: must be 1, got "{"x" * 78}…']),
    ({"const": 1}, [{"a": [[1], {}, 2]}], ['arguments: must be 1, got [{"a":["…","…",2]}]']),
    ({"format": "date-time"}, "x", ['arguments: must be a date-time such as 2026-07-28T09:30:00Z, got "x"']),
    ({"format": "iri"}, "a b", ['arguments: must be in the format iri, got "a b"']),
    ({"format": "no-such-format"}, "x", []),
    ({**D7, "contentEncoding": "base64"}, "*", ["arguments: must be in the encoding base64"]),
    ({"prefixItems": [{}], "items": {"type": "null"}}, [1, 2], ["arguments[1]: expected null, got the integer 2"]),
    ({**D7, "items": [{}], "additionalItems": False}, [1, 2], ["arguments[1]: is not allowed"]),
    ({"contains": {"const": 1}}, [2], ['arguments: must hold at least 1 item like {"const":1}, holds 0']),
    ({"contains": {}, "maxContains": 2}, [1, 2, 3], ["arguments: must hold at most 2 items like {}, holds 3"]),
    ({"not": {"const": 1}}, 1, ['arguments: must not fit {"const":1}, got 1']),
    ({"properties": {"a b": {"type": "null"}}}, {"a b": 1}, ['arguments["a b"]: expected null, got the integer 1']),
    ({"additionalProperties": {"type": "null"}}, {"x-y": 1}, ["x-y: expected null, got the integer 1"]),
    ({"patternProperties": {"^x": {"type": "null"}}}, {"xy": 1, "y": 1}, ["xy: expected null, got the integer 1"]),
    ({"patternProperties": {"x": {}}, **CLOSED}, {"x": 1, "y": 1}, ["y: unknown argument (known: names that match x)"]),
    (CLOSED, {"y": 1}, ["y: unknown argument (known: none)"]),
    ({"allOf": [{"properties": {"a": {}}}], **LEFT_OVER}, {"a": 1, "b": 2}, ["arguments: does not fit the schema"]),
    ({"unevaluatedItems": False}, [1], ["arguments: does not fit the schema"]),
    ({"propertyNames": {"const": "a"}}, {"A": 1}, ['A: is not an allowed name: it must be "a", got "A"']),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, ["b: required beside a, but missing"]),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, ["b: required, but missing"]),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, "a", ["arguments: must have at least 2 characters, has 1"]),
    ({"if": {"type": "string"}, "else": {"minimum": 2}}, 1, ["arguments: must be at least 2, got 1"]),
    ({**D7, "dependencies": {"a": ["b"], "c": False}}, {"a": 1}, ["b: required beside a, but missing"]),
    ({**D7, "dependencies": {"a": ["b"], "c": NULL}}, {"c": 1}, ["arguments: expected null, got an object"]),
    # Alternatives
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [], ["arguments: expected an integer or null, got an array"]),
    ({"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]}, 1, ["arguments: must be at least 3, got 1"]),
    ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, "c", ['arguments: must be one of "a", "b" or null; got "c"']),
    ({"oneOf": [{"const": "a"}, {"const": "b"}]}, "c", ['arguments: must be one of "a", "b"; got "c"']),
    ({"oneOf": [{}, {"minLength": 1}]}, "c", ['arguments: fits 2 of the allowed forms, must fit exactly one; got "c"']),
    ({"anyOf": [CAT, DOG]}, {"kind": "cat", "lives": "nine"}, ['lives: expected an integer, got the string "nine"']),
    ({"anyOf": [CAT, DOG]}, {"kind": "bird"}, ['kind: must be one of "cat", "dog"; got "bird"']),
    ({"anyOf": [CAT, DOG, {"type": "null"}]}, 5, ["arguments: expected an object or null, got the integer 5"]),
    ({"allOf": [{"minimum": 3}, {"minimum": 3}]}, 1, ["arguments: must be at least 3, got 1"]),
    # References
    (TREE, {"next": {"next": {"n": "x"}}}, ['next.next.n: expected an integer, got the string "x"']),
    ({"$anchor": "a", "items": {"$ref": "#a"}, **ARRAY}, [1], ["arguments[0]: expected an array, got the integer 1"]),
    (ELSEWHERE, 1, ["arguments: expected null, got the integer 1"]),
    (OLDER, 1, ["arguments: must be at least 3, got 1"]),
    *((schema, [1], ["arguments[0]: expected null, got the integer 1"]) for schema in REFERRING),
    ({"properties": {"$ref": {"type": "null"}}}, {"$ref": 1}, ['arguments["$ref"]: expected null, got the integer 1']),
    (False, 1, ["arguments: is not allowed"]),
    (True, 1, []),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "lines"), WORDS, ids=[json.dumps(row[0])[:60] for row in WORDS])
def test_words(schema: Any, value: Any, lines: list[str]) -> None:
    assert problems(schema, value) == lines


def test_the_root_has_a_name() -> None:
    assert problems(NULL, [1], root="value") == ["value: expected null, got an array"]
    assert problems({"items": NULL}, [1], root="value") == ["value[0]: expected null, got the integer 1"]
    assert problems(CLOSED, {"a": 1}, root="value") == ["a: unknown property (known: none)"]


def test_lines_are_bounded() -> None:
    found = problems({"items": {"type": "string"}}, list(range(30)))
    assert len(found) == 21
    assert found[-1] == "… and 10 more"
    assert problems({"items": {"type": "string"}}, [1] * 1000)[-1] == "… and at least 80 more"
    huge = "x" * 1_000_000
    schema = {"properties": {huge[:900]: {"enum": [huge[:5000], *(str(n) * 100 for n in range(100))]}}}
    for value in (huge, [huge] * 10, {huge[:900]: huge}, nested(100, lambda inner: [inner, huge], 1)):
        assert sum(map(len, problems(schema, {huge[:900]: value}))) < 3000


FORMATS = {
    "date-time": "a date-time such as 2026-07-28T09:30:00Z", "date": "a date such as 2026-07-28",
    "time": "a time such as 09:30:00Z", "duration": "a duration such as PT1H30M", "email": "an email address",
    "idn-email": "an email address", "hostname": "a host name", "idn-hostname": "a host name",
    "ipv4": "an IPv4 address", "ipv6": "an IPv6 address", "uri": "a URI such as https://example.com/a",
    "uuid": "a UUID such as 123e4567-e89b-12d3-a456-426614174000", "regex": "a regular expression",
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_checked(name: str) -> None:
    assert problems({"format": name}, " ( ") == [f'arguments: must be {FORMATS[name]}, got " ( "']
    assert Validator({"format": name}, where="tool").is_valid(5)


LINES = {"patternProperties": {"a": {}, "b": {}}}


@pytest.mark.parametrize(
    ("schema", "value", "cost"),
    [
        ({"minimum": 3}, 1, 2),  # a visit, and a problem that is passed on
        ({"const": 1}, [5, "x" * 130], 1 + 5 + 1),  # a comparison costs the nodes of the value
        ({"const": 1}, {"k" * 64: 1, "l": 2}, 1 + 4 + 1),
        ({"enum": [[n] for n in range(16)]}, [1, 2], 1 + 3 + 2 + 1),
        ({"uniqueItems": True}, [5, 5], 1 + 3 + 1),
        ({**LINES, "minProperties": 4}, {"a": 1, "b": 1, "c": 1}, 1 + 2 * 3 + 2 + 1),
        ({**LINES, **CLOSED}, {"a": 1, "b": 1, "c": 1}, 1 + 2 * 3 + 2 + 2 * 3 + 1),
    ],
    ids=stable,
)
def test_what_an_explanation_costs(schema: Any, value: Any, cost: int) -> None:
    budget = Budget(cost)
    assert len(problems(schema, value, budget=budget)) >= 1
    assert (budget.remaining, budget.is_spent) == (0, False)
    assert problems(schema, value, budget=Budget(cost - 1))[-1] == f"arguments: {INCOMPLETE}"


# Schemas that are refused


@pytest.mark.rule("JS-4")
@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "objekt"}, 'type is "objekt"'),
        ({"properties": {"a": {"minimum": "x"}}}, 'properties.a.minimum is "x"'),
        ({"required": "a"}, 'required is "a"'),
        ({**D4, "exclusiveMinimum": True}, '"minimum"'),
        ({"pattern": "("}, 'pattern "("'),
        ([], "not list"),
        ({"const": object()}, "no JSON"),
        ({"maximum": math.nan}, "no JSON: maximum is nan"),
        ({"properties": {"a": {"enum": [1, (-math.inf,)]}}}, "no JSON: properties.a.enum[1][0] is -inf"),
        ({"properties": {"a": {"default": {1: 2}}}}, "no JSON: properties.a.default has the key 1"),
        ({1: {}}, "no JSON: its root has the key 1"),
        ({"maximum": 1 << 20_000}, "no JSON"),
        ({"title": "\ud800"}, "surrogate"),
        ({"$ref": "#/$defs/a"}, "leads nowhere"),
        ({"allOf": [{"$ref": "#/allOf/9"}]}, "leads nowhere"),
        ({"$ref": "http://[/"}, "not a URI"),
    ],
    ids=itertools.count(),
)
def test_not_a_schema(schema: Any, part: str) -> None:
    assert part in refused(schema)
    assert "\n" not in refused(schema)


OF_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
OF_NAMES = {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
OF_ONE = {"not", "if", "then", "else", "contains", "items", "additionalItems", "unevaluatedItems", "contentSchema"}
OF_ONE |= {"propertyNames", "additionalProperties", "unevaluatedProperties"}


@pytest.mark.parametrize("keyword", sorted(OF_LISTS | OF_NAMES | OF_ONE))
def test_references_are_checked_under_every_keyword(keyword: str) -> None:
    lost: Any = {"$ref": "#/$defs/nowhere"}
    inner = [lost] if keyword in OF_LISTS else {"a": lost} if keyword in OF_NAMES else lost
    assert "leads nowhere" in refused({keyword: inner})
    assert Validator({"const": {keyword: inner}}, where="tool").is_valid({keyword: inner})


@pytest.mark.rule("JS-1", "JS-2", "JS-3")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects(dialect: str) -> None:
    for uri in (dialect, dialect + "#"):
        validator = Validator({"$schema": uri, "type": "object", "properties": {"a": {"type": "null"}}}, where="tool")
        assert validator.problems({"a": 1}) == ["a: expected null, got the integer 1"]
    tuples = {"prefixItems": [{"type": "string"}]}
    assert Validator({"$schema": dialect, **tuples}, where="tool").is_valid([1]) == (dialect != DIALECTS[0])
    assert not Validator(tuples, where="tool").is_valid([1])  # 2020-12 unless it says otherwise


@pytest.mark.rule("JS-2")
@pytest.mark.parametrize("uri", ["http://json-schema.org/draft-03/schema#", "http://json-schema.org/schema", "x", ""])
def test_unsupported_dialects(uri: str) -> None:
    for schema in ({"$schema": uri}, {"properties": {"a": {"$id": "http://x.test/", "$schema": uri}}}):
        message = refused(schema)
        assert "not a supported dialect" in message
        assert all(dialect in message for dialect in DIALECTS)


@pytest.mark.rule("JS-5", "JS-6", "JS-7")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:{port}/a.json"},
        {"$ref": "other.json"},
        {"$ref": "//127.0.0.1:{port}/a"},
        {"$defs": {"unused": {"$ref": "http://127.0.0.1:{port}/a.json"}}},
        {"properties": {"a": {"$id": "http://127.0.0.1:{port}/b/", "items": {"$ref": "a.json"}}}},
        {"$ref": "#/hidden", "hidden": {"$ref": "http://127.0.0.1:{port}/a.json"}},
        {"$schema": "http://127.0.0.1:{port}/a.json"},
        {"$ref": "https://json-schema.org/draft/2019-09/schema"},
    ],
    ids=stable,
)
def test_nothing_is_fetched(schema: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        port = server.getsockname()[1]
        message = refused(json.loads(json.dumps(schema).replace("{port}", str(port))))
        assert "never fetched" in message or "not a supported dialect" in message
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_own_metaschema_is_built_in() -> None:
    for dialect in DIALECTS:
        validator = Validator({"$schema": dialect, "$ref": dialect}, where="tool")
        assert validator.is_valid({"type": "string"})
        assert validator.problems({"type": 5})


leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "", "a", "ab", "2026-07-28"])
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def wrapped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES, "properties": named, "patternProperties": named, "additionalProperties": inner,
            "required": st.lists(st.sampled_from("abcd"), unique=True, max_size=2), "propertyNames": inner,
            "items": inner, "prefixItems": some, "contains": inner, "uniqueItems": st.booleans(),
            "anyOf": some, "oneOf": some, "allOf": some, "not": inner, "if": inner, "then": inner, "else": inner,
            "dependentSchemas": named, "unevaluatedProperties": inner, "unevaluatedItems": inner,
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/b"]),
        },
    )  # fmt: skip


simple = st.booleans() | st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES, "const": leaves, "enum": st.lists(leaves, min_size=1, max_size=3), "minimum": st.integers(-2, 2),
        "maxLength": st.integers(0, 2), "pattern": st.sampled_from(["^a", "(?=b)"]), "format": st.just("date"),
    },
)  # fmt: skip
schemas = st.recursive(simple, wrapped, max_leaves=12)


@pytest.mark.slow
@given(schemas, st.lists(values, min_size=1, max_size=4))
def test_problems_agree_with_the_engine(schema: Any, instances: list[Any]) -> None:
    whole = {"allOf": [schema], "$defs": {"a": schema, "b": {"type": "object", "items": {"$ref": "#"}}}}
    try:
        validator = Validator(whole, where="tool")
    except SetupError as error:
        assert "steps" in str(error) or "leads back" in str(error)  # noqa: PT017
        return
    official = jsonschema_rs.validator_for(whole, offline=True, validate_formats=True)
    for value in instances:
        found = validator.problems(value)
        assert (not found) == validator.is_valid(value) == official.is_valid(value)
        assert found == Validator(whole, where="tool").problems(value)
        assert len(found) <= 21


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_may_be_a_pattern(pattern: str, text: str) -> None:
    try:
        Pattern(pattern, where="tool").matches(text)
    except SetupError as error:
        assert "pattern" in str(error)  # noqa: PT017


KEYWORDS = st.sampled_from(["$ref", "$id", "$anchor", "$schema", "$defs", "type", "items", "properties", "pattern"])
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | st.text(max_size=3), inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.slow
@given(st.dictionaries(KEYWORDS, anything))
def test_any_json_is_a_schema_or_refused(schema: Any) -> None:
    try:
        Validator(schema, where="tool").problems({"a": 1})
    except SetupError as error:
        assert str(error).startswith("tool: ")  # noqa: PT017


# Hostile schemas


def doubling(keyword: str, levels: int, anchor: str = "", reference: str = "$ref") -> Any:
    """By pointers, or by anchors of some kind."""
    ref = [{reference: f"#a{n}" if anchor else f"#/$defs/a{n}"} for n in range(levels + 1)]
    name = [{anchor: f"a{n}"} if anchor else {} for n in range(levels + 1)]
    defs = {f"a{n}": {**name[n], keyword: [ref[n + 1], ref[n + 1]]} for n in range(levels)}
    return {"$id": "http://x.test/", "allOf": [ref[0]], "$defs": {**defs, f"a{levels}": {**name[levels], **NULL}}}


def knotted(levels: int) -> Any:
    """Doubles with every level, and each level leads back to the one before it: loops must not hide the doubling."""
    defs: dict[str, Any] = {"d0": {}}
    for n in range(levels):
        again, back = {"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{max(n - 1, 0)}"}
        defs[f"d{n}"] = {"properties": {"c": again}, "patternProperties": {"c": again, "z": back}}
    defs[f"d{levels}"] = {"type": "object", "properties": {"z": {"$ref": f"#/$defs/d{levels - 1}"}}}
    return {"properties": {"z": {"$ref": f"#/$defs/d{levels}"}}, "$ref": "#/$defs/d0", "$defs": defs}


def unevaluated(inner: Any) -> Any:
    return {"allOf": [inner], **LEFT_OVER}


LOOP: dict[str, Any] = {"type": "object"}
LOOP["properties"] = {"again": LOOP}
WIDE_LOOP: dict[str, Any] = {}
WIDE_LOOP["anyOf"] = [WIDE_LOOP] * 10

HOSTILE: list[tuple[str, Any, str]] = [
    ("anyOf 2^30", doubling("anyOf", 30), "more than 100,000 steps"),
    ("oneOf 2^60", doubling("oneOf", 60), "more than 100,000 steps"),
    ("anchors", doubling("anyOf", 30, "$anchor"), "more than 100,000 steps"),
    ("dynamic", doubling("anyOf", 30, "$dynamicAnchor", "$dynamicRef"), "more than 100,000 steps"),
    ("knotted", knotted(60), "more than 100,000 steps"),
    ("unevaluatedProperties nest", nested(18, unevaluated, {"properties": {"a": True}}), "more than 100,000 steps"),
    ("a loop", {"$ref": "#", "type": "string"}, "leads back to itself"),
    ("a loop of two", {"$defs": {n: {"not": {"$ref": f"#/$defs/{m}"}} for n, m in ("ab", "ba")}}, "leads back"),
    ("depth", nested(65, lambda inner: {"items": inner}, {}), "nested deeper than 64"),
    ("depth 100,000", nested(100_000, lambda inner: {"not": inner}, {}), "nested deeper than"),
    ("deep constant", {"const": nested(5000, lambda inner: [inner], 1)}, "nested deeper than"),
    ("50,000 properties", {"properties": {f"p{n}": {"type": "string"} for n in range(50_000)}}, "too large"),
    ("20,000 properties", {"properties": {f"p{n}": {} for n in range(20_000)}}, "more than 10,000 subschemas"),
    ("megabytes", {"description": "x" * 1_000_001}, "too large"),
    ("a dict in itself", LOOP, "contains itself"),
    ("a dict in itself, often", WIDE_LOOP, "contains itself"),
    ("a dict twice in a dict, 2^40", nested(40, lambda inner: {"items": inner, "not": inner}, {}), "too large"),
    ("a list twice in a list, 2^40", {"const": nested(40, lambda inner: [inner, inner], 1)}, "too large"),
    ("dynamic anchors", {"$defs": {str(n): {"$dynamicAnchor": f"a{n}"} for n in range(60)}}, "dynamic anchors"),
    ("many lookaheads", {"allOf": [{"pattern": f"(?=a)b{n}"} for n in range(30)]}, "costly patterns"),
    ("a vast pattern", {"pattern": r"\p{L}{1,1000}"}, "malformed or far too large"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.rule("JS-8")
@pytest.mark.parametrize(("schema", "part"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_hostile_schemas_are_refused(schema: Any, part: str) -> None:
    assert part in refused(schema)


@pytest.mark.rule("JS-8")
def test_the_limits_can_be_set() -> None:
    schema = {"properties": {"a": {"properties": {"b": {"title": "x" * 100}}}}}
    assert "nested deeper than 2" in refused(schema, limits=SchemaLimits(depth=2))
    assert "more than 2 subschemas" in refused(schema, limits=SchemaLimits(subschemas=2))
    assert "more than 2 steps" in refused(schema, limits=SchemaLimits(paths=2))
    assert "too large" in refused(schema, limits=SchemaLimits(bytes=99))
    validator = Validator(schema, where="tool", limits=SchemaLimits(depth=3, subschemas=3, paths=3, instance_depth=1))
    assert validator.is_valid({"a": 1})
    assert validator.problems({"a": {}})[0].startswith("arguments: is nested deeper than 1 levels")


@pytest.mark.rule("JS-8")
def test_exactly_as_many_as_allowed() -> None:
    anchors = [{"$dynamicAnchor": f"a{number}"} for number in range(51)]
    patterns = [{"pattern": f"(?=a)b{number}"} for number in range(21)]
    assert Validator({"allOf": [*anchors[1:], *patterns[1:]]}, where="tool").is_valid(1)
    assert "more than 50 dynamic anchors" in refused({"allOf": anchors})
    assert "21 costly patterns" in refused({"allOf": patterns})


@pytest.mark.rule("JS-8")
@pytest.mark.parametrize(
    ("schema", "depth"),
    [
        ({"properties": {"c": {"properties": {"c": True}}}, **LEFT_OVER}, 200),  # it does not contain itself
        ({"properties": {"c": {"$ref": "#"}}, **LEFT_OVER}, 16),  # twice at each level
        ({"properties": {name: {"$ref": "#"} for name in "abc"}, **LEFT_OVER}, 10),
        ({"items": {"$ref": "#"}, "unevaluatedItems": False}, 16),
    ],
    ids=stable,
)
def test_recursion_beside_what_is_left_over_makes_values_shallow(schema: Any, depth: int) -> None:
    found = Validator(schema, where="tool").problems(nested(300, lambda inner: [inner], 1))
    assert found[0].startswith(f"arguments: is nested deeper than {depth} levels")


@pytest.mark.rule("JS-8")
def test_a_schema_may_have_a_million_bytes() -> None:
    spare = 1_000_000 - len('{"title":""}')
    assert Validator({"title": "x" * spare}, where="tool").is_valid(1)
    assert "at most 1,000,000 bytes" in refused({"title": "x" * (spare + 1)})


@pytest.mark.long
@pytest.mark.rule("JS-8")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubling("anyOf", 13), 1),
        (nested(6, unevaluated, {"properties": {"a": True}}), {"b": 1}),
        ({"properties": {f"p{n}": {"type": "null"} for n in range(9000)}}, {f"p{n}": n for n in range(9000)}),
        ({"uniqueItems": True}, [{"a": n} for n in range(20_000)] + [{"a": 1}]),
    ],
    ids=["anyOf", "unevaluated", "wide", "uniqueItems"],
)
def test_costly_schemas_within_the_limits_end(schema: Any, value: Any) -> None:
    assert problems(schema, value)


def many_that_lead_back(count: int) -> Any:
    return {"properties": {f"p{n}": {**LEFT_OVER, "properties": {"x": {"$ref": "#"}}} for n in range(count)}}


def long_way_back(count: int) -> Any:
    defs = {f"d{n}": {**LEFT_OVER, "allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(count)}
    return {"$ref": f"#/$defs/d{count - 6}", "$defs": {**defs, f"d{count}": {"items": {"$ref": "#"}}}}


@pytest.mark.rule("JS-8")
@pytest.mark.parametrize("schema", [many_that_lead_back, long_way_back])
def test_loops_are_looked_for_in_one_walk(schema: Callable[[int], Any]) -> None:
    counts = []
    for count in (400, 800):
        with functions_called() as called:
            Validator(schema(count), where="tool", lazy=True)
        counts.append(len(called))
    assert counts[1] <= 2.1 * counts[0]


PAIR = {"properties": {"op": {"type": "string"}, "c": {"$ref": "#/$defs/e"}}, "type": "object"}
EXPRESSION = {
    "$defs": {"e": {"anyOf": [{**PAIR, "required": [name]} for name in ("and", "or", "not")] + [{"type": "integer"}]}},
    "$ref": "#/$defs/e",
}


@pytest.mark.parametrize("levels", [3, 30, 190])
def test_nested_alternatives_do_not_multiply(levels: int) -> None:
    """The engine's own list of errors doubles with each level and ends the process near twenty of them."""
    found = problems(EXPRESSION, nested(levels, lambda inner: {"c": inner}, "x"))
    assert found
    if levels == 3:
        assert 'c.c.c: expected an object or an integer, got the string "x"' in found
        assert found[-1] == "and: required, but missing"


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, EXPRESSION])
def test_depth_of_values(schema: Any) -> None:
    validator = Validator(schema, where="tool")
    itself: list[Any] = []
    itself += [itself, itself]
    for value in (nested(100_000, lambda inner: [inner], 1), nested(201, lambda inner: {"c": inner}, 1), itself):
        assert not validator.is_valid(value)
        assert "is nested deeper than 200 levels" in validator.problems(value)[0]
    assert Validator({}, where="tool").is_valid(nested(200, lambda inner: {"c": inner}, 1))


def test_numbers_keep_their_size() -> None:
    assert problems({}, [{"a": -(10**5000)}])[0].endswith("or holds too large a number or too long a name")
    assert problems({"type": "integer"}, 10**4000) == []
    assert problems({"maximum": 3}, 10**4000)[0].startswith("arguments: must be at most 3, got 1000")
    assert problems({"const": 2**64}, 2**64 + 1) == [f"arguments: must be {2**64}, got {2**64 + 1}"]


def test_it_does_not_see_later_changes() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"type": "null"}}}
    validator = Validator(types.MappingProxyType(schema), where="tool", lazy=True)
    schema["properties"]["a"]["type"] = "string"
    assert validator.problems({"a": 1}) == ["a: expected null, got the integer 1"]


def test_the_engine_may_give_up() -> None:
    """Leftover properties inside leftover properties, in a loop: 0.60.3 stops with an error of its own on these."""
    ref = [{"$ref": f"#/$defs/l{n}"} for n in range(12)]
    parts: list[dict[str, Any]] = [
        {"anyOf": [{"properties": {"c": ref[1]}}]},
        {"oneOf": [ref[2]]},
        {"additionalProperties": ref[3]},
        {"patternProperties": {"d": ref[4]}},
        {"properties": {"c": ref[5]}},
        {"anyOf": [ref[6]], "unevaluatedProperties": {}},
        {"patternProperties": {"d": ref[7]}, "if": {}, "then": ref[7]},
        {"anyOf": [ref[9]], "not": ref[8]},
        {"patternProperties": {".": ref[9]}},
        {"patternProperties": {"c": ref[10]}},
        {"unevaluatedProperties": ref[11]},
        {"patternProperties": {"c": ref[9]}},
    ]
    schema = {**ref[0], "$defs": {f"l{n}": part for n, part in enumerate(parts)}}
    for names in ("c", "ccdc", "ccdcdd", "ccdcddc", "ccdcddcccc"):
        value = functools.reduce(lambda inner, name: {name: inner}, reversed(names), {})
        problems(schema, value)  # an answer either way, never an exception


# Patterns


REDOS = [
    r"^(a+)+$", r"(.*a){30}b", r"^(?=(a+)+$)", r"^(a+)\1+$", r"^(?:(a+)\1)+(a+)+b$", r"(?=(a+))\1*b",
    r"(?<!x)(a*)*\1b", pytest.param(r"(?:a{1,50}){1,50}b", marks=pytest.mark.slow), r"(?=(?:a{1,50}){1,50}b)c",
    r"(?:(?=(?:a{1,50}){1,50}b)|a)*c",
]  # fmt: skip


@pytest.mark.parametrize("pattern", REDOS)
def test_patterns_end(pattern: str) -> None:
    safe = Pattern(pattern, where="tool")
    validator = Validator({"type": "object", "properties": {"a": {"pattern": pattern}}}, where="tool")
    for length in (30, 299, 2499, 4999, 1_000_000):
        text = "a" * length + "!"
        assert not safe.matches(text)
        assert not validator.is_valid({"a": text})
        assert len(validator.problems({"a": text})) == 1


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("b", "abc", "aac"),
        (r"^(?=.*\d)(?=.*[A-Z]).{8,}$", "Secret123", "secret123"),
        (r"^(a|b)\1$", "aa", "ab"),
        (r"^[\p{L}\p{N} ._-]{1,64}$", "Łódź 1", "a/b"),
        (r"^.{1,1000}$", "x" * 1000, "x" * 1001),
        (r"^(?!x-)", "name", "x-name"),
    ],
)
def test_patterns(pattern: str, good: str, bad: str) -> None:
    assert Pattern(pattern, where="tool").matches(good)
    assert not Pattern(pattern, where="tool").matches(bad)
    schema = {"properties": {"a": {"anyOf": [{"pattern": pattern}, {"type": "null"}]}, "b": {"pattern": "^b"}}}
    validator = Validator(schema, where="tool")
    assert validator.is_valid({"a": good, "b": "b"})
    assert validator.problems({"a": bad, "b": "c"})[1:] == ['b: must match the pattern ^b, got "c"']
    assert validator.problems({"a": bad})[0].startswith(f"a: must match the pattern {pattern}, got ")


def test_what_is_too_long_to_be_checked() -> None:
    schema = {"properties": {"a": {"pattern": "(?=a)"}, "b": {"type": "string"}}}
    found = problems(schema, {"a": "a" * 5001, "b": "b" * 10**6})
    assert found == ["a: is too long to be checked against the pattern (?=a), has 5001 characters"]


@pytest.mark.parametrize("pattern", ["(?=a)b", "a{1,900}"])
def test_names_are_bounded_where_their_patterns_are_costly(pattern: str) -> None:
    names = Validator({"patternProperties": {pattern: {"type": "null"}, "^(a+)+$": {"type": "null"}}}, where="tool")
    assert names.problems({"aaa": 1})[0] == "aaa: expected null, got the integer 1"
    assert names.problems({"b": {"a" * 301: 1}})[0].endswith("too long a name")
    assert names.is_valid({"b" * 300: 1})


def test_malformed_patterns() -> None:
    with pytest.raises(SetupError, match=r"tool x: the pattern \"\(\" is malformed"):
        Pattern("(", where="tool x")
    assert not Pattern("a", where="tool").matches("\ud800")
