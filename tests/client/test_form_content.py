"""Which values fit a form, and what is said about those that do not."""

from typing import Any

import pytest

from dovetail.client.elicitation import ElicitQuestion, ElicitReply, elicit
from dovetail.client.form_content import misfit
from dovetail.errors import SetupError

COLOURS = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ({"type": "string"}, "x", None),
        ({"type": "string"}, 1, "a string"),
        ({"type": "string", "minLength": 2}, "x", "at least 2 characters"),
        ({"type": "string", "minLength": 2}, "xy", None),
        ({"type": "string", "maxLength": 2}, "xyz", "at most 2 characters"),
        ({"type": "integer"}, 1, None),
        ({"type": "integer"}, 1.0, None),
        ({"type": "integer"}, 1.5, "a whole number"),
        ({"type": "integer"}, float("inf"), "a whole number"),
        ({"type": "integer"}, True, "a whole number"),
        ({"type": "integer"}, "1", "a whole number"),
        ({"type": "number"}, 1.5, None),
        ({"type": "number"}, False, "a number"),
        ({"type": "number", "minimum": 2}, 1, "at least 2"),
        ({"type": "number", "maximum": 2}, 2, None),
        ({"type": "number", "maximum": 2}, 3, "at most 2"),
        ({"type": "boolean"}, False, None),
        ({"type": "boolean"}, 0, "true or false"),
        ({"type": "string", "enum": ["S", "M"]}, "M", None),
        ({"type": "string", "enum": ["S", "M"]}, "L", "one of S, M"),
        ({"type": "string", "oneOf": COLOURS}, "g", None),
        ({"type": "string", "oneOf": COLOURS}, "Green", "one of r, g"),
        ({"enum": [1]}, True, "one of 1"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, ["a"], None),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, ["a", "c"], "only of a, b"),
        ({"type": "array", "items": {"anyOf": COLOURS}}, ["b"], "only of r, g"),
        ({"type": "array", "minItems": 1}, [], "at least 1 values"),
        ({"type": "array", "maxItems": 1}, ["a", "b"], "at most 1 values"),
        ({"type": "array"}, "a", "a list"),
        ({}, object, None),
        ({"type": ["string", "null"]}, None, None),
        ({"type": "thing", "enum": "no list", "minLength": "many", "items": 1, "oneOf": [1]}, ["x"], None),
        ({"type": "thing", "oneOf": [1]}, "x", None),
    ],
)
def test_one_value(field: dict[str, Any], value: Any, wanted: str | None) -> None:
    said = misfit({"properties": {"it": field}}, {"it": value})
    assert said == (None if wanted is None else f"it must be {wanted}")


@pytest.mark.parametrize("required", [["a", 1, {}], "a", None])
def test_what_is_required(required: Any) -> None:
    schema = {"properties": {"a": {}}, "required": required}
    assert misfit(schema, {}) == ("a is missing" if isinstance(required, list) else None)
    assert misfit(schema, {"a": 1, "b": 2}) is None


async def test_whoever_wrote_the_handler_is_told() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    question = ElicitQuestion(message="How old?", schema=schema)
    with pytest.raises(SetupError, match="elicitation_handler: what it returned does not fit: age must be a whole"):
        await elicit(lambda question: "old", question)
    with pytest.raises(SetupError, match="age is missing"):
        await elicit(lambda question: {}, question)
    assert await elicit(lambda question: ElicitReply("decline", {"age": "old"}), question) == {"action": "decline"}


async def test_defaults_of_the_server_are_its_own_affair() -> None:
    schema = {"properties": {"age": {"type": "integer", "default": "old"}}, "required": ["age"]}
    question = ElicitQuestion(message="How old?", schema=schema)
    assert await elicit(lambda question: {}, question) == {"action": "accept", "content": {"age": "old"}}
