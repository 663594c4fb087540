"""What is listed, cell by cell of appendix B, and held against the official schema of each revision."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import official
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.types import (
    WRAPPED_KEY,
    Annotations,
    Icon,
    Implementation,
    PromptArgument,
    PromptDefinition,
    ResourceDefinition,
    TemplateDefinition,
    ToolAnnotations,
    ToolDefinition,
    describes_object,
    shape_definition,
    shape_implementation,
    wrap_schema,
)

NAMES = [row.name for row in revisions.ALL]
REVISIONS = pytest.mark.parametrize("revision", revisions.ALL, ids=lambda row: row.name)

ICONS = [Icon("https://example.com/i.png", mime_type="image/png", sizes=["48x48"], theme="dark")]
ANNOTATIONS = Annotations(audience=["user"], priority=0.5, last_modified="2026-01-02T03:04:05Z")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "x-mcp-header": "A"}}, "required": ["a"]}
OBJECT = {"type": "object", "properties": {"r": {"type": "string"}}}
ARRAY = {"type": "array", "items": {"type": "string"}}

TOOL = ToolDefinition(
    name="t",
    title="T",
    description="d",
    input_schema=SCHEMA,
    output_schema=OBJECT,
    annotations=ToolAnnotations(title="A", read_only_hint=True, destructive_hint=False),
    icons=ICONS,
    meta={"com.example/k": 1},
)
RESOURCE = ResourceDefinition(
    uri="a://b",
    name="r",
    title="R",
    description="d",
    mime_type="text/plain",
    size=0,
    annotations=ANNOTATIONS,
    icons=ICONS,
    meta={"com.example/k": 1},
)
TEMPLATE = TemplateDefinition(
    uri_template="a://{b}",
    name="r",
    title="R",
    description="d",
    mime_type="text/plain",
    annotations=ANNOTATIONS,
    icons=ICONS,
    meta={"com.example/k": 1},
)
PROMPT = PromptDefinition(
    name="p",
    title="P",
    description="d",
    arguments=[PromptArgument(name="x", title="X", description="d", required=True), PromptArgument(name="y")],
    icons=ICONS,
    meta={"com.example/k": 1},
)
INFO = Implementation(name="s", title="S", version="1", description="d", website_url="https://example.com", icons=ICONS)
TYPES: dict[str, Any] = {"Tool": TOOL, "Resource": RESOURCE, "ResourceTemplate": TEMPLATE, "Prompt": PROMPT}


def wire(definition: Any, revision: revisions.Revision) -> Any:
    return json.loads(jsonrpc.encode(shape_definition(definition, revision)))


def at(value: Any, path: str) -> Any:
    """What a dotted path leads to; ... if there is nothing."""
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)]
        elif part in value:
            value = value[part]
        else:
            return ...
    return value


# Appendix B: type, path, and what stands there in 2024-11-05 … 2026-07-28 (... for nothing).
ICON = {"src": "https://example.com/i.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}
META = {"com.example/k": 1}
CELLS: list[tuple[str, str, tuple[Any, ...]]] = [
    *((kind, "name", (definition.name,) * 5) for kind, definition in TYPES.items()),
    *((kind, "description", ("d",) * 5) for kind in TYPES),
    *((kind, "title", (..., ..., *[definition.title] * 3)) for kind, definition in TYPES.items()),
    *((kind, "icons", (..., ..., ..., [ICON], [ICON])) for kind in TYPES),
    *((kind, "_meta", (..., ..., META, META, META)) for kind in TYPES),
    ("Tool", "annotations.title", (..., "T", "A", "A", "A")),
    ("Tool", "annotations.readOnlyHint", (..., True, True, True, True)),
    ("Tool", "annotations.destructiveHint", (..., False, False, False, False)),
    ("Tool", "annotations.openWorldHint", (...,) * 5),
    ("Tool", "inputSchema", (SCHEMA,) * 5),
    ("Tool", "outputSchema", (..., ..., OBJECT, OBJECT, OBJECT)),
    ("Tool", "execution", (...,) * 5),
    ("Resource", "uri", ("a://b",) * 5),
    ("Resource", "size", (0,) * 5),
    ("Resource", "mimeType", ("text/plain",) * 5),
    ("Resource", "annotations.audience", (["user"],) * 5),
    ("Resource", "annotations.priority", (0.5,) * 5),
    ("Resource", "annotations.lastModified", (..., ..., *["2026-01-02T03:04:05Z"] * 3)),
    ("ResourceTemplate", "uriTemplate", ("a://{b}",) * 5),
    ("ResourceTemplate", "annotations.priority", (0.5,) * 5),
    ("ResourceTemplate", "annotations.lastModified", (..., ..., *["2026-01-02T03:04:05Z"] * 3)),
    ("Prompt", "arguments.0.name", ("x",) * 5),
    ("Prompt", "arguments.0.title", (..., ..., "X", "X", "X")),
    ("Prompt", "arguments.0.required", (True,) * 5),
    ("Prompt", "arguments.1", ({"name": "y"},) * 5),
]  # fmt: skip


@pytest.mark.rule("LIFE-7", "TOOL-6", "RES-19", "META-5")
@pytest.mark.parametrize(("kind", "path", "cells"), CELLS, ids=[f"{kind}-{path}" for kind, path, _ in CELLS])
def test_appendix_b(kind: str, path: str, cells: tuple[Any, ...]) -> None:
    assert {row.name: at(wire(TYPES[kind], row), path) for row in revisions.ALL} == dict(zip(NAMES, cells, strict=True))


@REVISIONS
@pytest.mark.parametrize("kind", TYPES)
def test_what_goes_out_is_official(kind: str, revision: revisions.Revision) -> None:
    official.demand()
    shown = wire(TYPES[kind], revision)
    official.validator_for(revision.name, kind).validate(shown)
    whole = official.schema(revision.name)
    known = whole.get("$defs", whole.get("definitions"))[kind]["properties"]
    assert set(shown) <= set(known), "only what the revision knows"


MINIMAL: dict[str, Any] = {
    "Tool": ToolDefinition(name="t", input_schema={"type": "object"}),
    "Resource": ResourceDefinition(uri="a://b", name="r"),
    "ResourceTemplate": TemplateDefinition(uri_template="a://{b}", name="r"),
    "Prompt": PromptDefinition(name="p"),
}


@REVISIONS
@pytest.mark.parametrize("kind", MINIMAL)
def test_the_least_there_can_be_needs_no_shaping(kind: str, revision: revisions.Revision) -> None:
    official.demand()
    shown = wire(MINIMAL[kind], revision)
    assert None not in shown.values()
    official.validator_for(revision.name, kind).validate(shown)


@pytest.mark.parametrize("kind", TYPES)
def test_the_newest_revision_carries_everything_as_it_is(kind: str) -> None:
    assert shape_definition(TYPES[kind], revisions.R2026_07_28) == TYPES[kind]


def test_annotations_that_become_empty_go() -> None:
    resource = ResourceDefinition(uri="a://b", name="r", annotations=Annotations(last_modified="2026-01-01T00:00:00Z"))
    assert "annotations" not in wire(resource, revisions.R2025_03_26)


def test_a_title_makes_annotations_where_there_is_no_other_place_for_it() -> None:
    tool = ToolDefinition(name="t", title="T", input_schema={"type": "object"})
    assert wire(tool, revisions.R2025_03_26)["annotations"] == {"title": "T"}
    assert "annotations" not in wire(tool, revisions.R2024_11_05)


@pytest.mark.rule("JS-9")
@REVISIONS
def test_boolean_schemas_of_properties(revision: revisions.Revision) -> None:
    """A strict client of an older revision refuses the whole list for one of them."""
    properties = {"any": True, "none": False, "b": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    shown = wire(ToolDefinition(name="t", input_schema=schema, output_schema=schema), revision)
    official.demand()
    official.validator_for(revision.name, "Tool").validate(shown)
    spelled = {**schema, "properties": {"any": {}, "none": {"not": {}}, "b": {"type": "string"}}}
    assert shown["inputSchema"] == (schema if revision.name == "2026-07-28" else spelled)
    assert schema["properties"] is properties
    assert properties == {"any": True, "none": False, "b": {"type": "string"}}


# ── output schemas that describe no object ──

NOT_OBJECTS: list[dict[str, Any]] = [
    ARRAY,
    {"type": "string"},
    {},
    {"type": ["object", "null"]},
    {"anyOf": [{"type": "object"}, {"type": "null"}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object"}}},
]


@pytest.mark.rule("TOOL-8", "JS-10")
@REVISIONS
@pytest.mark.parametrize("schema", NOT_OBJECTS, ids=json.dumps)
def test_other_output_schemas_are_wrapped_where_only_objects_are_legal(
    schema: dict[str, Any], revision: revisions.Revision
) -> None:
    tool = ToolDefinition(name="t", input_schema={"type": "object"}, output_schema=schema, meta={"com.example/k": 1})
    shown = wire(tool, revision)
    official.demand()
    official.validator_for(revision.name, "Tool").validate(shown)
    assert not describes_object(schema)
    if revision.name == "2026-07-28":
        assert shown["outputSchema"] == schema
        assert shown["_meta"] == {"com.example/k": 1}
    elif revision.structured_output:
        assert shown["outputSchema"] == wrap_schema(schema)
        assert shown["_meta"] == {"com.example/k": 1, WRAPPED_KEY: True}
    else:
        assert "outputSchema" not in shown
        assert "_meta" not in shown
    assert tool.meta == {"com.example/k": 1}


def test_a_wrapped_schema() -> None:
    assert wrap_schema(ARRAY) == {"type": "object", "properties": {"result": ARRAY}, "required": ["result"]}
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": {"s": {"type": "string"}}}
    assert wrap_schema({**dialect, "type": "array", "items": {"$ref": "#/$defs/s"}}) == {
        **dialect,
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"$ref": "#/$defs/s"}}},
        "required": ["result"],
    }


TREE = {"type": "array", "items": {"$ref": "#"}}
RECURSIVE: list[dict[str, Any]] = [
    TREE,
    {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}},
    {"$ref": "#/definitions/t", "definitions": {"t": {"type": "array", "items": {"$ref": "#/definitions/t"}}}},
    {"type": "array", "prefixItems": [{"type": "array"}], "items": {"$ref": "#/prefixItems/0"}},
    {"$defs": {"up": {"$ref": "#"}}, "type": "array", "items": {"$ref": "#/$defs/up"}},
    {"$defs": {"a": {"$anchor": "here", "type": "array"}}, "type": "array", "items": {"$ref": "#here"}},
    {"$id": "https://example.com/t", "type": "array", "items": {"$ref": "#"}},
    {"type": "array", "items": {"$id": "https://example.com/i", "anyOf": [{"type": "null"}, {"items": {"$ref": "#"}}]}},
    {"type": "array", "items": {"type": "object", "properties": {"$ref": {"$ref": "#"}, "const": {"$ref": "#"}}}},
    {"type": "array", "items": {"const": {"$ref": "#"}}},
    {"type": "array", "items": {"enum": [{"$ref": "#"}, 1]}, "default": [{"$ref": "#"}]},
    {"type": "array", "items": {"type": "object", "patternProperties": {"^x": {"$ref": "#"}}}},
]
VALUES: list[Any] = [
    [], [[]], [[], [[]]], 1, [1], [[1]], ["x"], None, [None], {}, [{}], [[], 1], [{"$ref": "#"}], [{"$ref": []}],
    [{"$ref": 1}], [{"const": []}], [{"const": 1}], [{"x": []}], [{"x": 1}], [[[[]]], 5], [[None]],
]  # fmt: skip


@pytest.mark.rule("JS-4", "TOOL-8")
@pytest.mark.parametrize("schema", RECURSIVE, ids=json.dumps)
def test_a_wrapped_schema_still_means_the_same(schema: dict[str, Any]) -> None:
    plain, wrapped = jsonschema_rs.validator_for(schema), jsonschema_rs.validator_for(wrap_schema(schema))
    before = json.dumps(schema)
    verdicts = [plain.is_valid(value) for value in VALUES]
    assert [wrapped.is_valid({"result": value}) for value in VALUES] == verdicts
    assert set(verdicts) == {True, False}
    assert not wrapped.is_valid({})
    assert json.dumps(schema) == before


@given(st.recursive(st.none() | st.integers() | st.booleans(), lambda inner: st.lists(inner, max_size=3), max_leaves=8))
def test_any_tree_is_judged_alike(value: Any) -> None:
    assert PLAIN_TREE.is_valid(value) == WRAPPED_TREE.is_valid({"result": value})


PLAIN_TREE, WRAPPED_TREE = jsonschema_rs.validator_for(TREE), jsonschema_rs.validator_for(wrap_schema(TREE))


# ── the server itself ──


@pytest.mark.rule("LIFE-2")
@REVISIONS
def test_who_the_server_is(revision: revisions.Revision) -> None:
    shown = json.loads(jsonrpc.encode(shape_implementation(INFO, revision)))
    wanted: dict[str, Any] = {"name": "s", "version": "1"}
    if revision.name >= "2025-06-18":
        wanted["title"] = "S"
    if revision.name >= "2025-11-25":
        wanted |= {"description": "d", "websiteUrl": "https://example.com", "icons": [ICON]}
    assert shown == wanted
    official.demand()
    official.validator_for(revision.name, "Implementation").validate(shown)
