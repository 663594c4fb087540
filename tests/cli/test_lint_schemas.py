"""Schemas as JSON Schema means them: where references lead, who describes a property, which patterns can't be read."""

import warnings
from typing import Any

import pytest

from dovetail.cli.lint import Catalogue, findings_of
from dovetail.cli.lint.schemas import References, fault_of, parts

TEXT = {"type": "string", "description": "A text."}


def found(rule: str, **schema: Any) -> list[str]:
    """The details of what a rule finds in a tool's arguments."""
    tool = {"name": "bake", "description": "Bake it.", "inputSchema": {"type": "object", "properties": {}, **schema}}
    return [finding.detail for finding in findings_of(Catalogue(tools=[tool])) if finding.rule == rule]


# ── references ──

DOCUMENT = {
    "$defs": {
        "Box<int>": {"title": "box"},
        "a/b~c": {"title": "slash"},
        "50%": {"title": "percent"},
        "größe": {"title": "umlaut"},
        "anchored": {"$anchor": "node", "title": "anchor"},
        "dynamic": {"$dynamicAnchor": "dyn", "title": "dynamic"},
        "any": True,
    },
    "prefixItems": [{"title": "first"}],
    "required": ["what"],
}


@pytest.mark.parametrize(
    ("reference", "title"),
    [
        ("#", None),
        ("", None),
        ("#/$defs/Box%3Cint%3E", "box"),
        ("#/$defs/Box<int>", "box"),
        ("#/$defs/a~1b~0c", "slash"),
        ("#/$defs/50%25", "percent"),
        ("#/$defs/gr%C3%B6%C3%9Fe", "umlaut"),
        ("#node", "anchor"),
        ("#dyn", "dynamic"),
        ("#/prefixItems/0", "first"),
    ],
)
def test_a_reference_leads_to_what_it_names(reference: str, title: str | None) -> None:
    meant = References(DOCUMENT).meant(reference)
    assert isinstance(meant, dict)
    assert meant.get("title") == title


@pytest.mark.parametrize(
    "reference",
    [
        *("#/no", "#no", "#/$defs/Box%3Cstr%3E", "#/$defs/a/b~c", "#/prefixItems/1", "#/prefixItems/01"),
        *("#/prefixItems/²", "#/prefixItems/" + "9" * 5_000, "#/required/0", "#/%", "https://x.org#node", 3, None),
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere(reference: Any) -> None:
    assert References(DOCUMENT).meant(reference) is None


def test_a_reference_inside_of_another_document_is_not_judged() -> None:
    inner = {"$id": "https://example.com/inner", "type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}}
    assert found("schema-ref-broken", properties={"a": inner}) == []


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_references_of_both_kinds_are_followed(keyword: str) -> None:
    node = {"n": {"$dynamicAnchor": "node", **TEXT}}
    assert found("schema-ref-broken", properties={"a": {keyword: "#node"}}, **{"$defs": node}) == []
    assert found("schema-ref-broken", properties={"a": {keyword: "#nod"}}, **{"$defs": node}) == ['a: "#nod"']
    assert found("schema-ref", properties={"a": {keyword: "#node"}}, **{"$defs": node}) == ["a"]


def test_a_description_behind_an_escaped_reference_is_seen() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/Box%3Cint%3E"}}, "$defs": {"Box<int>": TEXT}}
    assert found("parameter-description", **schema) == []


@pytest.mark.parametrize(
    "keyword", ["items", "additionalItems", "unevaluatedProperties", "contentSchema", "then", "contains"]
)
def test_every_schema_inside_is_walked(keyword: str) -> None:
    assert [part.path for part in parts({keyword: {"type": "null"}})] == [(), (keyword,)]


def test_lists_of_items_are_walked() -> None:
    assert [part.path for part in parts({"items": [{}, {}]})] == [(), ("items", "0"), ("items", "1")]


# ── properties that are required ──

BOTH = {"a": TEXT, "b": TEXT}
ONLY_A = {"properties": {"a": {"const": "x"}}, "required": ["a", "b"]}


@pytest.mark.parametrize(
    "keywords",
    [
        {"if": ONLY_A},
        {"then": ONLY_A},
        {"else": ONLY_A},
        {"not": ONLY_A},
        {"anyOf": [ONLY_A, {"required": ["b"]}]},
        {"oneOf": [ONLY_A]},
        {"allOf": [{"if": {"required": ["a"]}, "then": ONLY_A}]},
        {"dependentSchemas": {"a": ONLY_A}},
    ],
    ids=lambda keywords: next(iter(keywords)),
)
def test_a_branch_may_require_what_the_whole_describes(keywords: dict[str, Any]) -> None:
    assert found("schema-required", properties=BOTH, **keywords) == []
    inside = {"type": "object", "description": "It.", "properties": BOTH, **keywords}
    assert found("schema-required", properties={"o": inside}) == []


def test_branches_of_all_describe_one_another() -> None:
    assert found("schema-required", allOf=[{"properties": BOTH}, ONLY_A]) == []


BASE = {"$defs": {"B": {"type": "object", "properties": {"b": TEXT}}}}
INHERITED = {"$ref": "#/$defs/B"}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [INHERITED, ONLY_A]},
        {"allOf": [{"allOf": [INHERITED]}, ONLY_A]},
        {"allOf": [{"allOf": [{"allOf": [{"properties": BOTH}]}]}, ONLY_A]},
        {"allOf": [{"oneOf": [INHERITED, {"properties": BOTH}]}, ONLY_A]},
        {**INHERITED, "allOf": [ONLY_A]},
        {**INHERITED, "then": {"anyOf": [ONLY_A]}},
    ],
)
def test_what_is_inherited_may_be_required(schema: dict[str, Any]) -> None:
    assert found("schema-required", **schema, **BASE) == []
    assert found("schema-required", properties={"o": {"type": "object", **schema}}, **BASE) == []


# ── lists ──

LISTS = {"$defs": {"L": {"type": "array", "items": TEXT}}}
BARE = {"type": "array", "minItems": 1}


@pytest.mark.parametrize(
    "schema",
    [
        {"not": BARE},
        {"if": BARE, "then": {"maxItems": 5}},
        {"if": {"properties": {"a": BARE}}},
        {**BARE, "items": TEXT, "anyOf": [BARE, {"type": "array", "maxItems": 3}]},
        {"items": TEXT, "then": BARE},
        {**BARE, "allOf": [{"items": TEXT}]},
        {"allOf": [BARE, {"allOf": [{"items": TEXT}]}]},
        {"allOf": [BARE, {"$ref": "#/$defs/L"}]},
        {**BARE, "$ref": "#/$defs/L"},
    ],
)
def test_a_list_may_be_described_elsewhere(schema: dict[str, Any]) -> None:
    assert found("schema-items", properties={"x": schema}, **LISTS) == []


@pytest.mark.parametrize("schema", [BARE, {"anyOf": [BARE, {"type": "null"}]}, {"properties": {"not": BARE}}])
def test_a_list_that_nobody_describes_is_found(schema: dict[str, Any]) -> None:
    assert len(found("schema-items", properties={"x": schema}, **LISTS)) == 1


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": TEXT}, "required": ["a", "b"]}, '"b"'),
        ({"properties": {"o": {"anyOf": [{"type": "object", **ONLY_A}, {"type": "null"}]}}}, 'o: "b"'),
        ({"properties": {"b": TEXT, "o": {"type": "object", **ONLY_A}}}, 'o: "b"'),
        ({"properties": {"b": TEXT, "o": {"type": "array", "items": {"type": "object", **ONLY_A}}}}, 'o[]: "b"'),
    ],
)
def test_what_nobody_describes_is_found(schema: dict[str, Any], place: str) -> None:
    assert found("schema-required", **schema) == [place]


# ── patterns ──


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"^(?<y>\d{4})-\k<y>$", r"(?<=a+)b", r"(?<!a|bc)d", r"^\p{L}[\p{N}_-]+$", r"[[:a:]]", r"\cA", r"^\/$"),
        *(r"[[a]+", r"^[^[]+$", r"[(]", r"[)]", r"[\]()]", r"\(", r"\[a", "[]", "[^]", "]", "}", "{", "a{,3}"),
        *(r"\u{1F600}", r"\u00e4", r"\x41", r"[\w-.]", r"[\w--\d]", r"[\b]", r"(?i:abc)", r"(?-i:abc)", r"(?im-s:abc)"),
        *(r"(?:a)(?=b)(?!c)", r"\1(a)", "", "^$", "(|)", r"\\", r"[\\]", "a(?<$x_1>b)", r"(?<größe>b)", "a||b", r"\0"),
    ],
)  # fmt: skip
def test_a_pattern_of_ecmascript_is_left_alone(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fault_of(pattern) == ""
        assert found("schema-pattern", properties={"x": {**TEXT, "pattern": pattern}}) == []


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("(", "a ( without its )"),
        ("a(b(c)", "a ( without its )"),
        (")", "a ) without its ("),
        ("(a))", "a ) without its ("),
        (r"(\)", "a ( without its )"),
        (r"([)]", "a ( without its )"),
        ("[a-z", "a [ without its ]"),
        (r"[a\]", "a [ without its ]"),
        ("a\\", "a \\ with nothing behind it"),
        ("[a\\", "a [ without its ]"),
        ("(?P<year>a)", "(?P is not for JSON Schema"),
        ("(?P<year>a)(?P=year)", "(?P is not for JSON Schema"),
        ("(?i)abc", "(?i) is not for JSON Schema"),
        ("(?#why)a", "(?# is not for JSON Schema"),
        ("(?>a)", "(?> is not for JSON Schema"),
        ("(?", "(? is not for JSON Schema"),
    ],
)
def test_a_pattern_that_nobody_can_read_is_told(pattern: str, fault: str) -> None:
    assert fault_of(pattern) == fault
    assert found("schema-pattern", properties={"x": {**TEXT, "pattern": pattern}}) == [f"x: {pattern}: {fault}"]


def test_a_long_pattern_is_left_alone() -> None:
    assert found("schema-pattern", properties={"x": {**TEXT, "pattern": "(" * 100_000}}) == []
