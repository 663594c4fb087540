"""Portable schemas: every provider takes them, and what fits them is read by the full schema."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argument_types import RAW, TABLE, TABLE_IDS, Crate, Model, Picky, Tree, compiled, nested
from costs import functions_called
from documented import ROOT
from dovetail import Client, Field, Server
from dovetail.gateway.proxy import Proxy
from dovetail.protocol.headers import header_parameters
from dovetail.schema.portable import RULES, portable

Schema = dict[str, Any]

# ── the published rules of the providers ──


class Refused(Exception):
    """A provider would not take the schema."""


def refuse(condition: Any, why: str) -> None:
    if condition:
        raise Refused(why)


def parts(schema: Any) -> Iterator[Schema]:
    """All schemas in a schema, itself first."""
    if isinstance(schema, dict):
        yield schema
        for keyword, value in schema.items():
            if keyword in ("properties", "patternProperties", "$defs", "definitions"):
                yield from (inner for part in value.values() for inner in parts(part))
            elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
                yield from (inner for part in value for inner in parts(part))
            elif keyword in ("items", "additionalProperties", "propertyNames", "not", "if", "then", "else"):
                yield from parts(value)


def depth(schema: Schema) -> int:
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    return (schema.get("type") in ("object", "array")) + max(map(depth, inner), default=0)


def closed(schema: Schema) -> Schema:
    """The schema as hosts send it in a strict mode, which wants every property required and no others."""
    schema = {key: value for key, value in schema.items() if key != "x-mcp-header"}
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            schema[keyword] = [closed(part) for part in schema[keyword]]
    if isinstance(schema.get("items"), dict):
        schema["items"] = closed(schema["items"])
    if schema.get("type") == "object":
        properties = {name: closed(part) for name, part in schema.get("properties", {}).items()}
        schema |= {"properties": properties, "required": list(properties), "additionalProperties": False}
    return schema


def claude(schema: Schema) -> None:
    """platform.claude.com, self-hosted sandboxes; github.com/anthropics/claude-code/issues/5973."""
    refuse(schema.get("type") != "object" or schema.keys() & {"anyOf", "oneOf", "allOf"}, "a union at the root")
    for part in parts(schema):
        refuse("$ref" in part, "a reference")
        names = part.get("properties", ())
        refuse(not all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in names), "a property name")


def claude_strict(schema: Schema) -> None:
    """platform.claude.com, structured outputs: limitations of JSON Schema."""
    limits = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
    for part in parts(closed(schema)):
        refuse(part.keys() & {*limits, "maxItems", "uniqueItems"} or part.get("minItems", 0) > 1, "a limit")
        refuse("$ref" in part, "a recursive schema")
        refuse(part.get("additionalProperties") not in (None, False), "other properties")


def openai(schema: Schema) -> None:
    """github.com/langchain-ai/langchainjs/issues/9804, langchain-mcp-adapters/issues/137, fastmcp/issues/2464."""
    at_root = {"oneOf", "anyOf", "allOf", "enum", "const", "not"}
    refuse(schema.get("type") != "object" or schema.keys() & at_root, "a union at the root")
    for part in parts(schema):
        refuse(part.get("type") == "array" and not isinstance(part.get("items"), dict), "array schema missing items")
        refuse(part.get("type") == "object" and "properties" not in part, "object schema missing properties")


def openai_strict(schema: Schema) -> None:
    """platform.openai.com, structured outputs: supported schemas."""
    supported = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "pattern"}
    supported |= {"format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems"}
    supported |= {"maxItems", "description", "$ref", "$defs"}
    strict = closed(schema)
    openai(strict)
    for part in parts(strict):
        refuse(part.keys() - supported, f"{part.keys() - supported} is not permitted")
        refuse(not part.keys() & {"type", "anyOf", "$ref"}, "schema must have a 'type' key")
    refuse(sum(len(part.get("properties", ())) for part in parts(strict)) > 5_000, "too many properties")
    refuse(depth(strict) > 10, "too many levels")


def gemini(schema: Schema) -> None:
    """ai.google.dev/api/caching#Schema, and the errors in the issues that portable.json names."""
    known = {"type", "description", "enum", "items", "properties", "required", "anyOf", "nullable", "format"}
    known |= {"minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "minimum"}
    known |= {"maximum"}
    for part in parts(schema):
        kind = part.get("type")
        refuse(part.keys() - known, f"Unknown name {part.keys() - known}")
        refuse(not isinstance(kind, str) and "anyOf" not in part, "type must be specified")
        refuse("enum" in part and kind != "string", "enum: only allowed for STRING type")
        refuse(not all(isinstance(value, str) and value for value in part.get("enum", ())), "enum: cannot be empty")
        refuse(part.get("format", "enum") not in ("enum", "date-time"), "format: only 'enum' and 'date-time'")
        refuse(kind == "array" and "items" not in part, "items: missing field")
        refuse(kind == "object" and part is not schema and not part.get("properties"), "properties: non-empty")
        refuse(kind != "object" and part.keys() & {"properties", "required"}, "only allowed for OBJECT type")
        refuse(set(part.get("required", ())) - part.get("properties", {}).keys(), "required: property is not defined")


def vertex(schema: Schema) -> None:
    """github.com/anomalyco/opencode/issues/14700."""
    gemini(schema)
    for part in parts(schema):
        refuse("anyOf" in part and len(part) > 1, "when using any_of, it must be the only field set")


def nova(schema: Schema) -> None:
    """docs.aws.amazon.com/nova: troubleshooting tool calls."""
    refuse(schema.get("type") != "object", "the type at the root")
    refuse(schema.keys() - {"type", "properties", "required"}, "extraneous key")


def mistral(schema: Schema) -> None:
    """github.com/BerriAI/litellm/pull/13389, SylphxAI/pdf-reader-mcp/issues/63."""
    for part in parts(schema):
        refuse(part.keys() & {"$id", "$schema"}, "failed to compile JSON schema")
        refuse(isinstance(part.get("exclusiveMinimum"), bool), "Invalid tool schema")


def cohere_strict(schema: Schema) -> None:
    """docs.cohere.com/v2/docs/structured-outputs: unsupported schema features, but for anyOf (see docs/schemas.md)."""
    unsupported = {"allOf", "oneOf", "not", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength"}
    refuse(schema.get("type") != "object", "the type at the root")
    for part in parts(schema):
        refuse(part.keys() & {*unsupported, "uniqueItems", "additionalProperties"}, "an unsupported feature")
        refuse(re.search(r"[$^]|\?[=!]", part.get("pattern", "")), "a pattern")
        refuse(part.get("format", "date") not in ("date-time", "uuid", "date", "time"), "a format")


def deepseek_strict(schema: Schema) -> None:
    """api-docs.deepseek.com/guides/tool_calls: strict mode."""
    for part in parts(closed(schema)):
        refuse(part.keys() & {"minLength", "maxLength", "minItems", "maxItems"}, "a length")
        refuse(part.get("format", "email") not in ("email", "hostname", "ipv4", "ipv6", "uuid"), "a format")
        refuse(not part.keys() & {"type", "anyOf", "$ref", "enum"}, "no type")


def groq_strict(schema: Schema) -> None:
    """console.groq.com/docs/structured-outputs: strict mode."""
    for part in parts(closed(schema)):
        refuse(part.get("additionalProperties") not in (None, False) or "patternProperties" in part, "must be closed")


PROVIDERS = [
    claude, claude_strict, openai, openai_strict, gemini, vertex, nova, mistral, cohere_strict, deepseek_strict,
    groq_strict,
]  # fmt: skip


# ── schemas ──


@dataclasses.dataclass
class Branch:
    """Its children are required, also where the recursion is cut."""

    children: "list[Branch]"
    label: str = ""


WITH_UNIONS: Schema = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "title": "run",
    "description": "Runs a flow.",
    "properties": {
        "yaml": {"type": "string"},
        "files": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "mode": {"type": ["string", "null"], "enum": ["fast", "slow", "", None]},
        "size": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        "both": {"allOf": [{"$ref": "#/definitions/a"}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}]},
        "pair": {"type": "array", "items": [{"type": "string"}, {"type": "number"}]},
        "by_name": {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}},
        "$filter": {"type": "string"},
        "free": True,
        "untyped": {"description": "No type.", "minLength": 2},
        "level": {"const": 3},
    },
    "oneOf": [{"required": ["yaml"]}, {"required": ["files"]}],
    "definitions": {"a": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
}
ROOT_UNION: Schema = {
    "type": "object",
    "properties": {"kind": {"enum": ["circle", "square"]}},
    "required": ["kind"],
    "anyOf": [
        {"properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}}, "required": ["radius"]},
        {"properties": {"kind": {"const": "square"}, "side": {"type": "number"}}, "required": ["side"]},
    ],
}
FULL = [compiled(row[0]).schema for row in TABLE] + [compiled(Branch).schema, RAW, WITH_UNIONS, ROOT_UNION]
IDS = [*TABLE_IDS, "branch", "raw", "unions", "root-union"]


@pytest.mark.parametrize("schema", FULL, ids=IDS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_takes_every_awkward_type(provider: Callable[[Schema], None], schema: Schema) -> None:
    shown, _, _ = portable(schema)
    provider(shown)
    jsonschema_rs.validator_for(shown)  # it is a JSON Schema


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_refuses_some_full_schema(provider: Callable[[Schema], None]) -> None:
    def is_refused(schema: Schema) -> bool:
        try:
            provider(schema)
        except Refused:
            return True
        return False

    assert any(map(is_refused, FULL))


# ── values ──


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Values that a model may send for a portable schema: with the named properties only."""
    if "anyOf" in schema:
        return st.one_of([values(branch) for branch in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema["type"] == "array":
        return st.lists(values(schema["items"]), max_size=3)
    if schema["type"] == "object":
        parts = {name: values(part) for name, part in schema["properties"].items()}
        required = {name: parts.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=parts)
    numbers = st.integers(-(2**53), 2**53)
    plain = {"string": st.text(max_size=4), "integer": numbers, "boolean": st.booleans(), "null": st.none()}
    return plain.get(schema["type"], numbers | st.floats(allow_nan=False, allow_infinity=False))


IN_WORDS = {name for name, rule in RULES.items() if rule.words and name not in ("enum", "prefixItems")}


def without_words(schema: Any) -> Any:
    """The full schema without what its portable form has in words only."""
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs", "definitions"):
            kept[keyword] = {name: without_words(part) for name, part in value.items()}
        elif keyword in ("anyOf", "allOf"):
            kept[keyword] = [without_words(part) for part in value]
        elif (
            keyword in ("items", "additionalProperties") and not isinstance(value, list) and "prefixItems" not in schema
        ):
            kept[keyword] = without_words(value)
        elif keyword == "prefixItems":
            kept["items"] = {"anyOf": [without_words(part) for part in value]}
        elif keyword in ("const", "enum"):
            listed = value if keyword == "enum" else [value]
            kept |= {keyword: value} if all(isinstance(each, str) for each in listed) else {}
        elif keyword not in IN_WORDS:
            kept[keyword] = value
    return kept


TYPES = [row[0] for row in TABLE]


@pytest.mark.parametrize("annotation", TYPES, ids=TABLE_IDS)
@settings(max_examples=settings.default.max_examples // 5)  # of each case
@given(data=st.data())
def test_what_fits_the_portable_schema_fits_the_full_one_but_for_words(annotation: Any, data: st.DataObject) -> None:
    full = compiled(annotation).schema
    value = data.draw(values(portable(full).schema))
    jsonschema_rs.validator_for(without_words(full)).validate(value)


OWN_CHECKS = (
    Picky,
    Crate,
    Model,
    Tree,
    list[Model],
    Model | None,
    Model | str,
    dict[str, Model],
)  # of the author's code
SOUND = {"$ref", "null", "oneOf", "const", "list of types", "allOf", "map", "no type", "default", "recursion"}


def is_sound(annotation: Any) -> bool:
    changes = portable(compiled(annotation).schema).changes
    has_own = annotation in OWN_CHECKS or "Validator" in str(annotation)
    return not has_own and {line.partition(" (")[0] for line in changes} <= SOUND


PLAIN = [annotation for annotation in TYPES if is_sound(annotation)]


@pytest.mark.parametrize("annotation", PLAIN, ids=str)
@settings(max_examples=settings.default.max_examples // 5)  # of each case
@given(data=st.data())
def test_every_portable_call_is_read_where_nothing_is_in_words(annotation: Any, data: st.DataObject) -> None:
    arguments = compiled(annotation)
    call = data.draw(values(portable(arguments.schema).schema))
    assert arguments.decode(json.dumps(call).encode()).keys() == {"x"}


def test_most_types_have_nothing_in_words() -> None:
    assert len(PLAIN) >= 30


@pytest.mark.parametrize("row", TABLE, ids=TABLE_IDS)
def test_arguments_without_null_fit_the_portable_schema_too(row: Any) -> None:
    """The dialect hides little; only in the place of any value it names a few forms."""
    full, value = compiled(row[0]).schema, {"x": json.loads(row[1])}
    shown, changes, _ = portable(full)
    if "null" not in row[1] and not any(line.startswith("no type") for line in changes):
        is_valid = jsonschema_rs.validator_for(full).is_valid(value)
        assert jsonschema_rs.validator_for(shown).is_valid(value) or not is_valid


# ── what becomes of what ──

STRING = {"type": "string"}


def one(part: Any, **more: Any) -> Any:
    """The portable form of a part."""
    return portable({"type": "object", "properties": {"x": part}, **more}).schema["properties"].get("x")


CASES: list[tuple[Any, Any]] = [
    ({"type": ["string", "null"], "description": "A.", "default": None}, {"type": "string", "description": "A."}),
    ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 0}]},
     {"type": "integer", "description": "at least 0"}),
    ({"anyOf": [STRING, {"type": "integer"}], "description": "A."},
     {"anyOf": [{"type": "string", "description": "A."}, {"type": "integer"}]}),
    ({"type": "integer", "minimum": 1, "description": "How many."},
     {"type": "integer", "description": "How many. (at least 1)"}),
    ({"type": "integer", "minimum": 0, "exclusiveMinimum": True},
     {"type": "integer", "description": "at least 0; more than that"}),
    ({"type": "string", "format": "date"}, {"type": "string", "description": "a date such as 2026-07-28"}),
    ({"type": "string", "format": "isbn"}, {"type": "string", "description": "in the format isbn"}),
    ({"enum": ["a", ""]}, {"type": "string", "description": 'one of "a", ""', "enum": ["a"]}),
    ({"const": 3}, {"type": "integer", "description": "one of 3"}),
    ({"oneOf": [STRING, STRING]}, STRING),
    ({"allOf": [{"type": "number"}, {"type": "integer"}]}, {"type": "integer"}),
    ({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, {"type": "string", "enum": ["b"]}),
    ({"allOf": [STRING, {"type": "integer"}]}, None),
    ({"allOf": [{"type": "object", "properties": {"a": STRING}, "additionalProperties": False},
                {"properties": {"a": {"enum": ["x"]}, "b": STRING}}]},
     {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}}),
    (False, None),
    ({"properties": {"a": STRING}}, {"type": "object", "properties": {"a": STRING}}),
    ({"type": "object", "required": ["a"], "additionalProperties": STRING},
     {"type": "object", "description": "other names are allowed as well",
      "properties": {"a": STRING}, "required": ["a"]}),
    ({"type": "object", "additionalProperties": False, "properties": {}}, {"type": "object", "properties": {}}),
    ({"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": STRING},
     {"type": "object", "description": 'names fit {"enum":["a"]}', "properties": {"a": STRING}}),
    ({"type": "string", "pattern": "^{x}$"}, {"type": "string", "description": "must match ^{x}$"}),
]  # fmt: skip


@pytest.mark.parametrize(("part", "expected"), CASES, ids=map(str, range(len(CASES))))
def test_a_part_becomes(part: Any, expected: Any) -> None:
    assert one(part) == expected


def test_a_union_at_the_root_becomes_one_object_and_a_note() -> None:
    shown, changes, note = portable(WITH_UNIONS)
    assert shown.keys() == {"type", "properties"}
    assert "$filter" not in shown["properties"]
    assert note == "Runs a flow. Give one of these: yaml; or files."
    assert (
        "root union (the root): one object with all properties; the tool's description says which are needed" in changes
    )
    assert "property name ($filter): left out; unchanged if it is required: rename it" in changes
    shown, _, note = portable(ROOT_UNION)
    kinds = {"anyOf": [{"type": "string", "enum": ["circle"]}, {"type": "string", "enum": ["square"]}]}
    assert shown["properties"]["kind"] == kinds
    assert shown["required"] == ["kind"]
    assert note == "Give one of these: radius; or side."


def test_a_required_name_that_claude_refuses_is_reported_and_stays() -> None:
    shown, changes, _ = portable({"type": "object", "properties": {"a b": STRING}, "required": ["a b"]})
    assert shown["required"] == ["a b"]
    assert [line for line in changes if line.startswith("property name")]


def test_what_is_required_below_the_cut_may_be_anything() -> None:
    inner = portable(compiled(Branch).schema).schema["properties"]["x"]
    for _ in range(2):
        inner = inner["properties"]["children"]["items"]
    assert inner["required"] == ["children"]
    assert inner["properties"]["children"]["anyOf"][0]["description"] == "of the same form as above"


def test_what_may_only_be_null_is_left_out_if_it_is_optional() -> None:
    """As the last link of a chain is, where the recursion is cut."""
    link = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]}}}
    inner = one({"$ref": "#/$defs/link"}, **{"$defs": {"link": link}})
    assert inner["properties"]["next"]["properties"] == {"next": {"type": "object", "properties": {}}}
    assert one({"type": "null", "description": "Nothing."}) is None
    assert one({"type": "null"}, required=["x"]) == {"type": "null"}


def test_a_reference_that_leads_elsewhere_may_be_anything() -> None:
    for reference in ("#anchor", "other.json#/a", "https://example.com/a", "#/$defs/absent"):
        assert one({"$ref": reference})["anyOf"][0]["description"] == "any JSON value"


def test_headers_stay() -> None:
    def tool(region: Annotated[str, Field(header="Region", max_length=9)]) -> None: ...

    server = Server("s", schemas="portable")
    server.tool(tool)
    (compiled_tool,) = server.engine.tools.all()
    assert header_parameters(server.engine.shown(compiled_tool).input_schema) == compiled_tool.headers


def test_every_rule_names_its_source() -> None:
    for name, rule in RULES.items():
        assert rule.becomes, name
        assert rule.refused_by, name
        assert all(each.startswith("https://") for each in rule.source.split(", ")), name


def test_the_page_has_the_table_of_rules() -> None:
    page = (ROOT / "docs" / "schemas.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| \[[^\n]*$", page, re.MULTILINE)
    assert rows == [(name, rule.becomes, rule.refused_by) for name, rule in RULES.items()]
    assert all(url in page for rule in RULES.values() for url in rule.source.split(", "))


# ── hostile schemas ──

KEYWORDS = st.sampled_from(
    ["type", "properties", "items", "anyOf", "allOf", "oneOf", "enum", "const", "$ref", "required", "description", "if",
     "additionalProperties", "patternProperties", "propertyNames", "prefixItems", "minimum", "format", "default", "a"],
)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["string", "object", "#", "#/items", "", "a"])
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4)
)


@given(st.dictionaries(KEYWORDS, ANYTHING, max_size=6))
def test_anything_is_taken_for_a_schema(schema: Schema) -> None:
    shown, _, _ = portable(schema)
    for provider in (claude_strict, openai, nova, mistral, cohere_strict):
        provider(shown)
    jsonschema_rs.validator_for(shown)


def refer(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


LAUGHS = {f"a{n}": {"type": "object", "properties": {x: refer(f"a{n + 1}") for x in "abcdefgh"}} for n in range(40)}
HOSTILE: list[Schema] = [
    {"properties": {"x": refer("a0")}, "$defs": LAUGHS},
    {"allOf": [{"$ref": "#"}] * 50},
    {"properties": {"x": {"allOf": [{"anyOf": [{"const": f"{n}{m}"} for m in range(50)]} for n in range(50)]}}},
    {"properties": {"x": nested(12, lambda inner: {"anyOf": [inner, {"items": inner}]}, STRING)}},
    {"properties": {"x": nested(900, lambda inner: {"type": "array", "items": inner}, STRING)}},
    {"properties": {"x": refer("a")}, "$defs": {"a": refer("b"), "b": refer("a")}},
    {
        "properties": {f"x{n}": refer("a") for n in range(1_000)},
        "$defs": {"a": {**STRING, "description": "a" * 10_000}},
    },
    {"properties": {f"x{n}": refer("a") for n in range(1_000)}, "$defs": {"a": {"enum": [*map(str, range(5_000))]}}},
    {"properties": {"x": {"allOf": [{"enum": [*map(str, range(30_000))]}, {"enum": [*map(str, range(9, 30_000))]}]}}},
    {"required": [f"a{n}" for n in range(6_000)]},
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_schemas_take_bounded_time(number: int) -> None:
    with functions_called() as called:
        shown, _, _ = portable(HOSTILE[number])
    assert len(called) < 500_000
    assert len(json.dumps(shown)) < 300_000
    nova(shown)


# ── a server ──


@dataclasses.dataclass
class Guest:
    name: str
    born: Annotated[int, Field(ge=1900)] | None = None


def hotel(**options: Any) -> Server:
    server = Server("hotel", **options)

    @server.tool
    def book(
        guest: Guest, nights: Annotated[int, Field(description="How long.", ge=1)], board: str | None = None
    ) -> Guest:
        """Book a room."""
        assert isinstance(guest, Guest)
        return guest

    return server


SHOWN = {
    "type": "object",
    "properties": {
        "guest": {
            "type": "object",
            "properties": {"name": STRING, "born": {"type": "integer", "description": "at least 1900"}},
            "required": ["name"],
        },
        "nights": {"type": "integer", "description": "How long. (at least 1)"},
        "board": STRING,
    },
    "required": ["guest", "nights"],
}


def mounted() -> Server:
    server = Server("front", schemas="portable")
    server.mount(hotel(), namespace="h")
    return server


def proxied() -> Server:
    server = Server("front", schemas="portable")
    server.mount(Proxy(hotel()), namespace="h")
    return server


@pytest.mark.parametrize("make", [functools.partial(hotel, schemas="portable"), mounted, proxied])
async def test_clients_are_shown_portable_schemas_and_the_full_one_reads_calls(make: Callable[[], Server]) -> None:
    async with Client(make()) as client:
        (tool,) = await client.list_tools()
        assert tool.input_schema == SHOWN
        assert tool.output_schema is not None
        assert "anyOf" in json.dumps(tool.output_schema)
        good = await client.call_tool(tool.name, {"guest": {"name": "Ada", "born": None}, "nights": 1})
        assert good.structured == {"name": "Ada", "born": None}
        bad = await client.call_tool(tool.name, {"guest": {"name": "Ada"}, "nights": 0}, raise_on_error=False)
        assert bad.is_error
        assert "nights: must be at least 1, got 0" in bad.text


async def test_full_schemas_are_the_default() -> None:
    async with Client(hotel()) as client:
        (tool,) = await client.list_tools()
        assert tool.input_schema["additionalProperties"] is False


async def test_a_changed_tool_is_shown_anew() -> None:
    server = Server("s", schemas="portable")
    async with Client(server) as client:
        for kind in (int, str, int):
            server.remove_tool("t") if server.engine.tools.get("t") else None

            def t(x): ...  # type: ignore[no-untyped-def]

            t.__annotations__["x"] = kind
            server.tool(t)
            (tool,) = await client.list_tools()
            assert tool.input_schema["properties"]["x"]["type"] == {int: "integer", str: "string"}[kind]


def test_the_option_is_checked() -> None:
    with pytest.raises(Exception, match='must be "full" or "portable"'):
        Server("s", schemas="strict")  # type: ignore[arg-type]
