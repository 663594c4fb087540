"""Coercion, and the cost of wrong arguments: coercing and explaining them is linear in their size for every schema."""

import functools
import gc
import itertools
import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from argument_types import compiled, nested, problems, raw_arguments
from costs import functions_called
from dovetail.errors import ArgumentError, SetupError
from dovetail.schema.coerce import Coercion
from dovetail.schema.explain import INCOMPLETE, Budget, size
from dovetail.schema.validate import Validator

CALLS = 20  # of functions, for one node that is looked at
WHOLE, WORD, TRUTH = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
DEFINED = {"$defs": {"a/b~c": WHOLE, "again": {"$ref": "#/$defs/a~1b~0c"}}}
NUMBERS = {"type": "array", "items": WHOLE}
EVERY = {"null", "boolean", "integer", "number", "string", "array", "object"}
COERCED: list[tuple[Any, Any, Any]] = [
    (WHOLE, "5", 5), (WHOLE, 5.0, 5), (WHOLE, "5.0", 5), ({"type": "number"}, "5", 5), (TRUTH, "true", True),
    ({"type": ["integer", "null"]}, "null", None), ({"const": 5}, "5", 5), ({"enum": [1, True]}, "true", True),
    (NUMBERS, "[1, 2.0]", [1, 2]), (NUMBERS, ["1", 2, "x"], [1, 2, "x"]), ({"anyOf": [NUMBERS, WORD]}, ["1"], [1]),
    ({"type": "array", "prefixItems": [WORD, WHOLE], "items": TRUTH}, ["1", "2", "true"], ["1", 2, True]),
    ({"properties": {"a": WHOLE}, "additionalProperties": TRUTH}, {"a": "1", "b": "false"}, {"a": 1, "b": False}),
    ({"allOf": [{"properties": {"a": WHOLE}}]}, {"a": "1"}, {"a": 1}), ({**DEFINED, "$ref": "#/$defs/again"}, "5", 5),
]  # fmt: skip
LEFT: list[tuple[Any, Any]] = [
    ({}, "5"), (WORD, "5"), ({"type": ["integer", "string"]}, "5"), (WHOLE, "5.5"), (WHOLE, "five"), (WHOLE, 5.5),
    (WHOLE, "true"), ({"type": "number"}, 5.0), ({"type": "null"}, "0"), (NUMBERS, "{}"), (NUMBERS, [1, 2]),
    ({"enum": [1, "a"]}, "1"), ({"anyOf": [NUMBERS, {"type": "array", "items": WORD}]}, ["1"]), (False, "5"),
    ({"properties": {"a": WHOLE}}, {"a": 1}), ({"$ref": "#/$defs/none"}, "5"), ({"$ref": "https://a.example"}, "5"),
]  # fmt: skip


def test_what_is_coerced_and_what_is_left_as_it_is() -> None:
    for schema, value, coerced in COERCED:
        found = Coercion(schema, Budget()).coerce(value, strings=True)
        assert repr(found) == repr(coerced), "1, 1.0 and True are equal"
        assert Coercion(schema, Budget(0)).coerce(value, strings=True) is value, "the budget is spent"
    for schema, value in LEFT:
        assert Coercion(schema, Budget()).coerce(value, strings=True) is value
    assert repr(Coercion(NUMBERS, Budget()).coerce(["1", 2.0], strings=False)) == "['1', 2]"


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({}, EVERY), (True, EVERY), (False, set()), (WORD, {"string"}), ({"type": "number"}, {"number", "integer"}),
        ({"type": ["array", "null"]}, {"array", "null"}), ({"const": {}}, {"object"}), ({"enum": [1]}, {"integer"}),
        ({"type": "string", "enum": [1, "a"]}, {"string"}), ({"anyOf": [WHOLE, WORD]}, {"integer", "string"}),
        ({"allOf": [{"type": ["integer", "null"]}, WHOLE]}, {"integer"}), ({"oneOf": [TRUTH, False]}, {"boolean"}),
        ({"$ref": "#/$defs/again"}, {"integer"}), ({"$ref": "#/$defs/none"}, EVERY),
    ],
)  # fmt: skip
def test_the_kinds_that_a_property_accepts(schema: Any, kinds: set[str]) -> None:
    assert Coercion({**DEFINED, "properties": {"x": schema}}, Budget()).kinds("x") == kinds


@dataclass
class Comment:
    text: str
    replies: "list[Comment] | None" = None


@dataclass
class Sum:
    left: int
    more: "Sum | Product | None" = None


@dataclass
class Product:
    factor: int
    more: "Sum | Product | None" = None


def assert_not_doubling(decode: Callable[[bytes], Any], make: Callable[[int], Any]) -> None:
    """Wrong arguments of twice the depth cost about twice as much."""
    counts = []
    for levels in (8, 16, 32):
        count, lines = calls(decode, json.dumps(make(levels)).encode())
        assert lines
        counts.append(count)
    assert all(later <= 3 * earlier for earlier, later in itertools.pairwise(counts)), counts


def thread(levels: int, replies: int, text: Any, others: Any = "y") -> dict[str, Any]:
    """A long thread: at every level some replies, and the last one goes on."""
    many = [{"text": others}] * replies
    made: dict[str, Any] = nested(levels, lambda inner: {"text": "x", "replies": [*many, inner]}, {"text": text})
    return made


def encoded(**arguments: Any) -> bytes:
    return json.dumps(arguments).encode()


def calls(decode: Callable[[bytes], Any], raw: bytes) -> tuple[int, list[str]]:
    """How many functions of ours run, and what was wrong."""
    lines: list[str] = []
    with functions_called() as called:
        try:
            decode(raw)
        except ArgumentError as error:
            lines = error.problems
    return len(called), lines


@pytest.mark.long
@pytest.mark.parametrize(
    ("levels", "replies", "text", "others"),
    [(40, 50, 1, "y"), (90, 50, 1, 1), (90, 200, 1, "y")],
    ids=["30 KB", "all wrong", "270 KB"],
)
def test_long_threads(levels: int, replies: int, text: Any, others: Any) -> None:
    arguments, value = compiled(Comment), {"x": thread(levels, replies, text, others)}
    count, lines = calls(arguments.decode, encoded(**value))
    assert lines
    assert lines[0].startswith("x.replies[")
    assert count <= 2 * CALLS * size(value) + 3_000


RECURSIVE: dict[str, Any] = {"$ref": "#"}
INTO: dict[str, Any] = {"properties": {"c": RECURSIVE}}
TEXT, WITH_Z = {"type": "string"}, {**INTO, "required": ["z"]}
LEAF: dict[str, Any] = {"type": "object", "properties": {"op": TEXT}}
RESTATED: dict[str, Any] = {
    "allOf": {**LEAF, "allOf": [INTO, INTO]},
    "allOf beside properties": {**LEAF, "properties": {**LEAF["properties"], "c": RECURSIVE}, "allOf": [INTO]},
    "anyOf": {**LEAF, "anyOf": [INTO, WITH_Z]},
    "oneOf": {**LEAF, "oneOf": [INTO, WITH_Z]},
    "if": {**LEAF, "if": INTO, "then": INTO, "else": INTO},
    "not": {**LEAF, "allOf": [INTO], "not": {"properties": {"c": {"not": RECURSIVE}}, "required": ["c"]}},
    "dependentSchemas": {**LEAF, "dependentSchemas": {"c": INTO}, "allOf": [INTO]},
    "patternProperties": {**LEAF, "patternProperties": {"^c": RECURSIVE, "c$": RECURSIVE}},
    "additionalProperties": {**LEAF, "allOf": [{"additionalProperties": {"anyOf": [TEXT, RECURSIVE]}}, INTO]},
    "unevaluatedProperties": {**LEAF, "allOf": [{"anyOf": [INTO]}], "unevaluatedProperties": False},
    "definitions": {**LEAF, "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": INTO, "b": WITH_Z}},
}


@pytest.mark.parametrize("schema", RESTATED.values(), ids=RESTATED)
def test_a_schema_that_says_the_same_twice_does_not_double(schema: dict[str, Any]) -> None:
    assert_not_doubling(raw_arguments(schema).decode, lambda levels: nested(levels, lambda v: {"c": v}, {"op": 1}))


@pytest.mark.parametrize("end", [{"left": "x"}, {"factor": "x"}, {"left": []}, {"neither": 1}])
def test_alternatives_of_classes_are_tried_once_at_each_level(end: dict[str, Any]) -> None:
    assert_not_doubling(compiled(Sum).decode, lambda n: {"x": nested(n, lambda v: {"left": 1, "more": v}, end)})


def test_no_alternatives_that_were_tried_are_cached() -> None:
    read = weakref.ref(compiled(Sum | Product).decode(encoded(x={"left": 1, "more": {"factor": 2}}))["x"])
    gc.collect()
    assert read() is None


class Branch(pydantic.BaseModel):
    kind: Literal["branch"] = "branch"
    inner: "Branch | Leaf | Twig | None" = None


class Twig(pydantic.BaseModel):
    kind: Literal["twig"] = "twig"
    inner: "Branch | Twig | None" = None


class Leaf(pydantic.BaseModel):
    kind: Literal["leaf"] = "leaf"


class Folder(pydantic.BaseModel):
    kind: Literal["folder"]
    inner: "Annotated[Folder | Mount, pydantic.Field(discriminator='kind')] | None" = None


class Mount(pydantic.BaseModel):
    kind: Literal["mount"]
    inner: "Annotated[Folder | Mount, pydantic.Field(discriminator='kind')] | None" = None


class Thread(pydantic.BaseModel):
    text: str
    replies: "list[Thread] | Leaf | None" = None


class Pair(pydantic.BaseModel):
    kids: "list[Pair] | tuple[Pair, ...] | None" = None


class Mother(pydantic.BaseModel):
    kids: "list[Mother] | list[Father]" = []


class Father(pydantic.BaseModel):
    name: str
    kids: "list[Mother] | list[Father]" = []


class Knot(pydantic.BaseModel):
    kids: "Bundle | Knot | None" = None


Bundle = TypeAliasType("Bundle", "list[Bundle] | Knot")
Knot.model_rebuild()


@pytest.mark.parametrize("model", [Branch, Pair, Mother, Father, Knot])
def test_models_that_pydantic_would_try_again_and_again_are_refused(model: Any) -> None:
    with pytest.raises(SetupError, match=r'parameter x: a union of pydantic models .* Field\(discriminator="…"\)'):
        compiled(model)


def test_models_that_a_discriminator_or_their_kind_distinguishes() -> None:
    tree = {"kind": "folder", "inner": {"kind": "mount", "inner": {"kind": "folder"}}}
    assert compiled(Folder).decode(encoded(x=tree))["x"].inner.inner.kind == "folder"
    assert compiled(Thread).decode(encoded(x={"text": "a", "replies": [{"text": "b"}]}))["x"].replies[0].text == "b"


asked: list[str] = []


class Post(pydantic.BaseModel):
    text: str
    replies: "list[Post]" = []

    @pydantic.field_validator("text")
    @classmethod
    def ask(cls, text: str) -> str:
        asked.append(text)
        if text == "bad":
            raise ValueError("never said so")
        return text


def posts(levels: int, *last: Any) -> Any:
    return nested(levels, lambda inner: {"text": "x", "replies": [inner]}, {"text": "x", "replies": list(last)})


@pytest.mark.long
@pytest.mark.parametrize("wrong", [100, 7_000])
def test_many_errors_deep_in_a_model_cost_no_more_than_other_wrong_arguments(wrong: int) -> None:
    value = {"x": posts(90, *({} for _ in range(wrong)))}
    count, lines = calls(compiled(Post).decode, encoded(**value))
    assert lines
    assert count <= 2 * CALLS * size(value) + 10_000


def test_pydantic_reads_a_large_value_only_if_it_fits_the_schema() -> None:
    arguments, fine = compiled(Post), [{"text": "y"}] * 2_000
    asked.clear()
    lines = problems(lambda: arguments.decode(encoded(x=posts(0, *fine, {"text": 1}))))
    assert lines == ["x.replies[2000].text: expected a string, got the integer 1"]
    assert asked == []
    assert len(arguments.decode(encoded(x=posts(0, *fine)))["x"].replies) == len(asked) - 1 == 2_000


@pytest.mark.parametrize("before", [0, 2_000])
def test_errors_of_a_model_s_author_are_reported_unless_there_are_too_many(before: int) -> None:
    arguments, fine, bad = compiled(Post), [{"text": "y"}] * before, {"text": "bad"}
    lines = problems(lambda: arguments.decode(encoded(x=posts(0, *fine, bad))))
    assert lines == [f"x.replies[{before}].text: never said so"]
    assert problems(lambda: arguments.decode(encoded(x=posts(0, *fine, *[bad] * 200)))) == ["x: does not fit its type"]


@pytest.mark.parametrize("lenient", [True, False])
def test_above_64_kilobytes_the_first_problem_is_reported(lenient: bool) -> None:
    arguments = compiled(Comment, lenient=lenient)
    first, second = problems(lambda: arguments.decode(encoded(x=thread(2, 4000, 1))))
    assert first == "x.replies[4000].replies[4000].text: expected a string, got the integer 1"
    assert second == f"arguments: {INCOMPLETE}"
    deep = problems(lambda: arguments.decode(encoded(x=thread(90, 200, 1))))
    assert deep[0].startswith("x.replies[200]")
    assert deep[0].endswith("…: expected a string")  # the path is cut, so what came there is not shown
    raw = raw_arguments({"type": "object", "maxProperties": 0})
    assert problems(lambda: raw.decode(encoded(x="y" * 65_536))) == ["arguments: does not fit the schema", second]


def test_json_in_a_string_is_read_to_its_end() -> None:
    numbers = [{"text": str(n), "replies": [{"text": "y"}] * 3} for n in range(500)]
    assert len(compiled(list[Comment]).decode(encoded(x=json.dumps(numbers)))["x"]) == 500
    assert compiled(list[int]).decode(encoded(x=["1"] * 12_000)) == {"x": [1] * 12_000}


def test_problems_found_before_the_budget_ends_are_reported() -> None:
    """Fifty alternatives for each of many items: more looks than the budget allows."""
    size = {"type": "integer"}
    kinds = [{"properties": {"kind": {"const": n}, "size": size}, "required": ["kind"]} for n in range(50)]
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"items": {"anyOf": kinds}}}}
    value = {"a": 1, "b": [{"kind": 49, "size": 1} for _ in range(1_000)] + [{"kind": 49, "size": "x"}]}
    lines = Validator(schema, where="tool").problems(value)
    assert lines == ["a: expected null, got the integer 1", f"arguments: {INCOMPLETE}"]


@pytest.mark.parametrize("keyword", ["items", "contains"])
def test_a_long_enum_is_paid_for_at_every_look(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": {keyword: {"enum": [[n] for n in range(2_000)]}}}}
    value = {"a": [[-1] for _ in range(90)]}
    with functions_called() as called:
        assert Validator(schema, where="tool").problems(value, budget=Budget(5_000))[-1] == f"arguments: {INCOMPLETE}"
    assert called.count("violates") <= 60
    assert Validator(schema, where="tool").problems({"a": [[-1]]})[0].startswith(("a[0]: must", "a: must"))


@pytest.mark.parametrize("unsaid", ["unevaluatedProperties", "unevaluatedItems"])
def test_values_are_less_deep_where_the_engine_may_take_several_ways(unsaid: str) -> None:
    again = {"$ref": "#/$defs/d"}
    inner = {unsaid: {}, "dependentSchemas": {"a": again, "b": again}}
    schema = {**again, "$defs": {"d": {"anyOf": [{"properties": {"a": inner}}]}}}
    validator = Validator(schema, where="tool")
    assert validator.is_valid(nested(15, lambda value: {"a": value, "b": 1}, {}))
    assert "nested deeper than 16 levels" in validator.problems(nested(16, lambda value: {"a": value, "b": 1}, {}))[0]
    many = {unsaid: {}, "dependentSchemas": {str(n): again for n in range(20)}}
    validator = Validator({**again, "$defs": {"d": {"properties": {"a": many}}}}, where="tool")
    assert "nested deeper than 3 levels" in validator.problems(nested(4, lambda value: {"a": value}, {}))[0]
    plain = Validator({"properties": {"a": {unsaid: False}}}, where="tool")
    assert plain.is_valid(nested(190, lambda value: {"b": value}, {}))


# Any schema, any arguments


NAMES = st.sampled_from("abc")
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 2.0, 2.5, "a", "5", '{"a": "5"}', "[1, [2.0]]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
PLAIN: list[Any] = [
    True, {}, {"type": "string"}, {"type": "integer"}, {"type": ["number", "null"]}, {"const": {"a": 1}},
    {"enum": ["a", 1]}, {"minimum": 1}, {"uniqueItems": True}, {"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/list"},
    {"type": "object"},
]  # fmt: skip


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("properties", "dependentSchemas"), named),
            **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
            **dict.fromkeys(("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"), inner),
            **dict.fromkeys(("not", "if", "then", "else", "contains"), inner),
            "patternProperties": st.fixed_dictionaries({"^[ab]": inner}),
            "required": st.lists(NAMES, max_size=2, unique=True),
        },
    )


SCHEMAS = st.recursive(st.sampled_from(PLAIN), _keywords, max_leaves=8)
AGAIN = {"$ref": "#/$defs/tree"}
TREE = {"properties": {"a": AGAIN, "b": {"type": "string"}}, "allOf": [{"properties": {"a": AGAIN}}]}
LIST = {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "integer"}]}}


def validator_of(schema: dict[str, Any]) -> Validator:
    try:
        return Validator(schema, where="tool")
    except SetupError:
        assume(False)
        raise


def cost(schema: dict[str, Any], validator: Validator, value: Any) -> int:
    """In functions that are called; as a call does it, one budget for both."""
    for _ in range(2):  # keywords are compiled once
        budget = Budget()
        with functions_called() as called:
            validator.problems(Coercion(schema, budget).coerce(value, strings=True), budget=budget)
    assert len(called) <= CALLS * (Budget().remaining - budget.remaining) + 4 * size(value) + 200
    return len(called)


def linear_in_the_arguments(schema: Any, value: Any) -> None:
    whole = {"type": "object", "properties": {"x": {"items": schema}}, "$defs": {"tree": TREE, "list": LIST}}
    validator = validator_of(whole)
    copies = [{"x": [json.loads(json.dumps(value)) for _ in range(count)]} for count in (8, 16)]
    once, twice = (cost(whole, validator, value) for value in copies)
    assert twice <= 2 * once + 100


def linear_in_the_depth(schema: Any, value: Any, name: str) -> None:
    """The values of a tree lie in each other, and those of a schema that restates itself too."""
    whole = {
        "allOf": [{"properties": {name: {"$ref": "#"}}}, {"items": {"$ref": "#"}}],
        "properties": {name: {"$ref": "#"}},
    }
    whole |= {"anyOf": [schema, {"required": ["z"]}], "$defs": {"tree": TREE, "list": LIST}}
    validator = validator_of(whole)
    for wrap in (lambda inner: {name: inner}, lambda inner: [inner]):
        costs = [cost(whole, validator, functools.reduce(lambda v, _: wrap(v), range(n), value)) for n in (6, 12, 24)]
        assert costs[2] <= 4 * max(costs[:2]) + 200, costs


@pytest.mark.long
@pytest.mark.parametrize(
    ("check", "given_values"),
    [
        (linear_in_the_arguments, {"schema": SCHEMAS, "value": VALUES}),
        (linear_in_the_depth, {"schema": SCHEMAS, "value": VALUES, "name": NAMES}),
    ],
    ids=["arguments", "depth"],
)
@pytest.mark.parametrize("examples", [10, pytest.param(1_000, marks=pytest.mark.soak)])
def test_the_cost_is_linear(check: Callable[..., None], given_values: dict[str, Any], examples: int) -> None:
    settings(max_examples=examples, deadline=None)(given(**given_values)(check))()
