"""Schemas that are refused, and what holds for any schema."""

import itertools
import json
import math
import socket
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validator_stage import D7, refused

from dovetail.errors import SetupError
from dovetail.registry.validate import DIALECTS, Pattern, Validator
from stable_ids import stable

pytestmark = pytest.mark.timeout(60)  # only to catch what would never end


# Schemas that are refused


@pytest.mark.rule("JS-4")
@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "objekt"}, 'type is "objekt"'),
        ({"properties": {"a": {"minimum": "x"}}}, 'properties.a.minimum is "x"'),
        ({"required": "a"}, 'required is "a"'),
        ({**D7, "properties": []}, "properties is []"),
        ({"pattern": "("}, 'pattern "("'),
        ({"patternProperties": {"[": {}}}, 'pattern "["'),
        ([], "not list"),
        ({"const": object()}, "no JSON"),
        ({"maximum": math.nan}, "maximum is null"),
        ({"maximum": 1 << 20_000}, "no JSON"),
        ({"title": "\ud800"}, "surrogate"),
        ({"$ref": "#/$defs/a"}, "leads nowhere"),
        ({"$ref": "#a"}, "leads nowhere"),
        ({"allOf": [{"$ref": "#/allOf/9"}]}, "leads nowhere"),
        ({"$ref": "http://[/"}, "not a URI"),
    ],
    ids=itertools.count(),
)
def test_not_a_schema(schema: Any, part: str) -> None:
    assert part in refused(schema)


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
        {"$ref": "file:///etc/hostname"},
        {"$ref": "other.json"},
        {"$ref": "other.json#/$defs/a"},
        {"$ref": "//127.0.0.1:{port}/a"},
        {"$defs": {"unused": {"$ref": "http://127.0.0.1:{port}/a.json"}}},
        {"$id": "http://127.0.0.1:{port}/", "$ref": "a.json"},
        {"properties": {"a": {"$id": "http://127.0.0.1:{port}/b/", "items": {"$ref": "a.json"}}}},
        {"$ref": "#/hidden", "hidden": {"$ref": "http://127.0.0.1:{port}/a.json"}},
        {"$schema": "http://127.0.0.1:{port}/a.json"},
        {**D7, "$ref": "http://127.0.0.1:{port}/a.json"},
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


# Properties


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
@settings(max_examples=150, deadline=None)
@given(schemas, st.lists(values, min_size=1, max_size=4))
def test_problems_agree_with_the_engine(schema: Any, instances: list[Any]) -> None:
    whole = {"allOf": [schema], "$defs": {"a": schema, "b": {"type": "object", "items": {"$ref": "#"}}}}
    try:
        validator = Validator(whole, where="tool")
    except SetupError as error:
        assert "steps" in str(error) or "comes back" in str(error)  # noqa: PT017
        return
    official = jsonschema_rs.validator_for(whole, offline=True, validate_formats=True)
    for value in instances:
        found = validator.problems(value)
        assert (not found) == validator.is_valid(value) == official.is_valid(value)
        assert found == Validator(whole, where="tool").problems(value)
        assert len(found) <= 21


@settings(max_examples=200, deadline=None)
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
@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYWORDS, anything))
def test_any_json_is_a_schema_or_refused(schema: Any) -> None:
    try:
        validator = Validator(schema, where="tool")
    except SetupError as error:
        assert str(error).startswith("tool: ")  # noqa: PT017
    else:
        validator.problems({"a": 1})
