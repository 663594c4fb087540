"""Hostile schemas, values and patterns: refused, or checked in bounded time."""

import functools
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from validator_stage import nested, problems, refused

from costs import functions_called
from dovetail.errors import SetupError
from dovetail.registry.validate import Pattern, SchemaLimits, Validator

pytestmark = pytest.mark.timeout(60)  # only to catch what would never end


# Hostile schemas


def doubling(keyword: str, levels: int, name: Callable[[int], dict[str, Any]], ref: Callable[[int], Any]) -> Any:
    defs = {f"d{n}": {**name(n), keyword: [ref(n + 1), ref(n + 1)]} for n in range(levels)}
    return {
        "$id": "http://x.test/",
        "allOf": [ref(0)],
        "$defs": {**defs, f"d{levels}": {**name(levels), "type": "null"}},
    }


def by_pointer(keyword: str, levels: int) -> Any:
    return doubling(keyword, levels, lambda n: {}, lambda n: {"$ref": f"#/$defs/d{n}"})


def knotted(levels: int) -> Any:
    """Doubles with every level, and each level leads back to the one before it: loops must not hide the doubling."""
    defs: dict[str, Any] = {"d0": {}}
    for n in range(levels):
        again = {"$ref": f"#/$defs/d{n + 1}"}
        defs[f"d{n}"] = {
            "properties": {"c": again},
            "patternProperties": {"c": again, "z": {"$ref": f"#/$defs/d{max(n - 1, 0)}"}},
        }
    defs[f"d{levels}"] = {"type": "object", "properties": {"z": {"$ref": f"#/$defs/d{levels - 1}"}}}
    return {"properties": {"z": {"$ref": f"#/$defs/d{levels}"}}, "$ref": "#/$defs/d0", "$defs": defs}  # fmt: skip


def unevaluated(inner: Any) -> Any:
    return {"allOf": [inner], "unevaluatedProperties": False}


LOOP: dict[str, Any] = {"type": "object"}
LOOP["properties"] = {"again": LOOP}
WIDE_LOOP: dict[str, Any] = {}
WIDE_LOOP["anyOf"] = [WIDE_LOOP] * 10

HOSTILE: list[tuple[str, Any, str]] = [
    ("anyOf 2^30", by_pointer("anyOf", 30), "more than 100,000 steps"),
    ("allOf 2^26", by_pointer("allOf", 26), "more than 100,000 steps"),
    ("oneOf 2^60", by_pointer("oneOf", 60), "more than 100,000 steps"),
    (
        "anchors",
        doubling("anyOf", 30, lambda n: {"$anchor": f"a{n}"}, lambda n: {"$ref": f"#a{n}"}),
        "more than 100,000 steps",
    ),
    (
        "ids",
        doubling("anyOf", 30, lambda n: {"$id": f"a{n}.json"}, lambda n: {"$ref": f"a{n}.json"}),
        "more than 100,000 steps",
    ),
    (
        "dynamic",
        doubling("anyOf", 30, lambda n: {"$dynamicAnchor": f"a{n}"}, lambda n: {"$dynamicRef": f"#a{n}"}),
        "more than 100,000 steps",
    ),
    ("knotted", knotted(60), "more than 100,000 steps"),
    ("unevaluatedProperties nest", nested(18, unevaluated, {"properties": {"a": True}}), "more than 100,000 steps"),
    ("a loop", {"$ref": "#", "type": "string"}, "comes back to itself"),
    (
        "a loop of two",
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}},
        "comes back to itself",
    ),
    ("depth", nested(65, lambda inner: {"items": inner}, {}), "nested deeper than 64"),
    ("depth 500", nested(500, lambda inner: {"properties": {"a": inner}}, {}), "nested deeper than"),
    ("depth 100,000", nested(100_000, lambda inner: {"not": inner}, {}), "nested deeper than"),
    ("deep constant", {"const": nested(5000, lambda inner: [inner], 1)}, "nested deeper than"),
    ("50,000 properties", {"properties": {f"p{n}": {"type": "string"} for n in range(50_000)}}, "too large"),
    ("20,000 properties", {"properties": {f"p{n}": {} for n in range(20_000)}}, "more than 10,000 subschemas"),
    ("megabytes", {"description": "x" * 1_000_001}, "too large"),
    ("a dict in itself", LOOP, "nested deeper than"),
    ("a dict in itself, often", WIDE_LOOP, "nested deeper than"),
    ("dynamic anchors", {"$defs": {str(n): {"$dynamicAnchor": f"a{n}"} for n in range(60)}}, "dynamic anchors"),
    ("many lookaheads", {"allOf": [{"pattern": f"(?=a)b{n}"} for n in range(30)]}, "costly patterns"),
    ("many large patterns", {"allOf": [{"pattern": f"a{{1,{900 + n}}}"} for n in range(30)]}, "costly patterns"),
    ("a vast pattern", {"pattern": r"\p{L}{1,1000}"}, "malformed or far too large"),
]  # fmt: skip


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
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (by_pointer("anyOf", 13), 1),
        (by_pointer("allOf", 13), 1),
        (by_pointer("oneOf", 13), 1),
        (nested(6, unevaluated, {"properties": {"a": True}}), {"b": 1}),
        ({"properties": {f"p{n}": {"type": "null"} for n in range(9000)}}, {f"p{n}": n for n in range(9000)}),
        ({"uniqueItems": True}, [{"a": n} for n in range(20_000)] + [{"a": 1}]),
    ],
    ids=["anyOf", "allOf", "oneOf", "unevaluated", "wide", "uniqueItems"],
)
def test_costly_schemas_within_the_limits_end(schema: Any, value: Any) -> None:
    assert problems(schema, value)


LEFT_OVER = {"unevaluatedProperties": False}


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


# Hostile values


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
        assert found[-1] == "and: required, but missing"
        assert 'c.c.c: expected an object or an integer, got the string "x"' in found


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


@pytest.mark.slow
def test_large_values() -> None:
    numbers = list(range(300_000))
    assert len(problems({"items": {"type": "string"}}, numbers)) == 21
    assert len(problems({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, numbers)) == 21
    assert len(problems({"additionalProperties": False}, {str(n): n for n in numbers})) == 21
    assert problems({"items": {"type": "integer"}}, [*numbers, "x"])


def test_it_does_not_see_later_changes() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"type": "null"}}}
    validator = Validator(types.MappingProxyType(schema), where="tool", lazy=True)
    schema["properties"]["a"]["type"] = "string"
    assert validator.problems({"a": 1}) == ["a: expected null, got the integer 1"]


def test_lazy_leaves_the_engine_alone() -> None:
    program = (
        "import sys; from dovetail.registry.validate import Validator; "
        "v = Validator({'type': 'null'}, where='x', lazy=True); assert 'jsonschema_rs' not in sys.modules; "
        "assert not v.is_valid(1); assert 'jsonschema_rs' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_engine_may_give_up() -> None:
    """Leftover properties inside leftover properties, in a loop: 0.60.3 stops with an error of its own on these."""

    def ref(name: str) -> dict[str, str]:
        return {"$ref": f"#/$defs/{name}"}

    defs = {
        "l0": {"anyOf": [{"properties": {"c": ref("l2")}}]},
        "l2": {"oneOf": [ref("l3")]},
        "l3": {"additionalProperties": ref("l4")},
        "l4": {"patternProperties": {"d": ref("l5")}},
        "l5": {"properties": {"c": ref("l6")}},
        "l6": {"anyOf": [ref("l8")], "unevaluatedProperties": {}},
        "l8": {"patternProperties": {"d": ref("l9")}, "if": {}, "then": ref("l9")},
        "l9": {"anyOf": [ref("l11")], "not": ref("l10")},
        "l10": {"patternProperties": {".": ref("l11")}},
        "l11": {"patternProperties": {"c": ref("l12")}},
        "l12": {"unevaluatedProperties": ref("l18")},
        "l18": {"patternProperties": {"c": ref("l11")}},
    }
    schema = {"$ref": "#/$defs/l0", "$defs": defs}
    for names in ("c", "ccdc", "ccdcdd", "ccdcddc", "ccdcddcccc"):
        value = functools.reduce(lambda inner, name: {name: inner}, reversed(names), {})
        problems(schema, value)  # an answer either way, never an exception


# Patterns


REDOS = [
    r"^(a+)+$",
    r"^(a|aa)+$",
    r"(.*a){30}b",
    r"^(?=(a+)+$)",
    r"^(a+)\1+$",
    r"^(?:(a+)\1)+(a+)+b$",
    r"(?=(a+))\1*b",
    r"(?=.*b)(?=.*c)",
    r"(?<!x)(a*)*\1b",
    pytest.param(r"(?:a{1,50}){1,50}b", marks=pytest.mark.slow),
    r"(?=(?:a{1,50}){1,50}b)c",
    r"(?:(?=(?:a{1,50}){1,50}b)|a)*c",
    r"a{1,1000}{1,1000}b",
]


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
        ("^[a-z]+$", "abc", "aBc"),
        ("b", "abc", "aac"),
        (r"^(?=.*\d)(?=.*[A-Z]).{8,}$", "Secret123", "secret123"),
        (r"^(a|b)\1$", "aa", "ab"),
        (r"^\d+$", "123", "१२३"),
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
    found = problems(
        {"properties": {"a": {"pattern": "(?=a)"}, "b": {"type": "string"}}}, {"a": "a" * 5001, "b": "b" * 10**6}
    )
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
