"""Content and definitions, kind by kind and revision by revision, held against the official schemas."""

import base64
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import official
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.types import (
    CONTENT_TYPES,
    WRAPPED_KEY,
    Annotations,
    Audio,
    Content,
    EmbeddedResource,
    Icon,
    Image,
    Implementation,
    Message,
    PromptArgument,
    PromptDefinition,
    ResourceContents,
    ResourceDefinition,
    ResourceLink,
    TemplateDefinition,
    Text,
    ToolAnnotations,
    ToolDefinition,
    describes_object,
    shape_annotations,
    shape_content,
    shape_definition,
    shape_implementation,
    wrap_schema,
)
from stable_ids import stable

REVISIONS = pytest.mark.parametrize("revision", revisions.ALL, ids=lambda row: row.name)
ANNOTATIONS = Annotations(audience=["user", "assistant"], priority=1.0, last_modified="2026-01-02T03:04:05Z")
META = {"com.example/k": [1]}
DATA = b"\x00\xffbytes"
BASE64 = base64.b64encode(DATA).decode()
ICONS = [Icon("https://example.com/i.png")]

BLOCKS: dict[str, Content] = {
    "text": Text("t", annotations=ANNOTATIONS, meta=META),
    "image": Image(DATA, "image/png", annotations=ANNOTATIONS, meta=META),
    "audio": Audio(DATA, "audio/wav", annotations=ANNOTATIONS, meta=META),
    "resource_link": ResourceLink(
        uri="a://b", name="n", title="T", description="d", mime_type="text/plain", size=3, icons=ICONS,
        annotations=ANNOTATIONS, meta=META,
    ),
    "resource-text": EmbeddedResource(
        ResourceContents("a://b", mime_type="text/plain", text="t", meta=META), annotations=ANNOTATIONS, meta=META
    ),
    "resource-blob": EmbeddedResource(ResourceContents("a://b", blob=DATA, meta=META), meta=META),
}  # fmt: skip
# Which `type` goes out, in 2024-11-05 … 2026-07-28.
KINDS = {
    "text": ("text",) * 5,
    "image": ("image",) * 5,
    "audio": ("text", "audio", "audio", "audio", "audio"),
    "resource_link": ("text", "text", "resource_link", "resource_link", "resource_link"),
    "resource-text": ("resource",) * 5,
    "resource-blob": ("resource",) * 5,
}


def wire(block: Content, revision: revisions.Revision) -> Any:
    (shaped,) = shape_content([block], revision)
    return json.loads(jsonrpc.encode(shaped))


def expected_annotations(revision: revisions.Revision) -> dict[str, Any]:
    kept = {"audience": ["user", "assistant"], "priority": 1.0}
    return kept | {"lastModified": "2026-01-02T03:04:05Z"} if revision.name >= "2025-06-18" else kept


@pytest.mark.rule("TOOL-11", "PR-4", "PR-5", "PR-6", "RES-11", "LIFE-7")
@pytest.mark.parametrize("name", BLOCKS)
def test_the_kind_that_goes_out(name: str) -> None:
    assert tuple(wire(BLOCKS[name], row)["type"] for row in revisions.ALL) == KINDS[name]


@REVISIONS
@pytest.mark.parametrize("name", BLOCKS)
def test_what_stays_and_what_goes(name: str, revision: revisions.Revision) -> None:
    shown = wire(BLOCKS[name], revision)
    same_kind = shown["type"] == name.split("-")[0]
    if name != "resource-blob":
        assert shown["annotations"] == expected_annotations(revision)
    assert ("_meta" in shown) == (revision.object_meta and same_kind)
    if name.startswith("resource-"):
        assert ("_meta" in shown["resource"]) == revision.object_meta
    assert ("icons" in shown) == (name == "resource_link" and revision.icons)
    assert ("title" in shown) == (name == "resource_link" and revision.titles)
    assert None not in shown.values()


@REVISIONS
@pytest.mark.parametrize("name", BLOCKS)
def test_what_goes_out_is_official(name: str, revision: revisions.Revision) -> None:
    official.demand()
    result: dict[str, Any] = {"content": [wire(BLOCKS[name], revision)]}
    if revision.result_type:
        result["resultType"] = "complete"
    official.validator_for(revision.name, "CallToolResult").validate(result)
    message = {"role": "user", "content": wire(BLOCKS[name], revision)}
    official.validator_for(revision.name, "PromptMessage").validate(message)


def test_text_that_stands_in_says_what_it_stands_for() -> None:
    audio = wire(BLOCKS["audio"], revisions.R2024_11_05)["text"]
    assert "audio/wav" in audio
    assert str(len(DATA)) in audio
    link = wire(BLOCKS["resource_link"], revisions.R2025_03_26)["text"]
    assert "a://b" in link
    assert "T" in link
    assert wire(ResourceLink("a://b", ""), revisions.R2025_03_26) == {"type": "text", "text": "a://b"}


def test_shaping_changes_nothing_of_the_author() -> None:
    blocks = list(BLOCKS.values())
    assert shape_content(blocks, revisions.R2026_07_28) is blocks
    before = jsonrpc.encode(list(BLOCKS.values()))
    for revision in revisions.ALL:
        shape_content(list(BLOCKS.values()), revision)
    assert jsonrpc.encode(list(BLOCKS.values())) == before


@pytest.mark.rule("RES-19")
def test_annotations_by_revision() -> None:
    only_time = Annotations(last_modified="2026-01-01T00:00:00Z")
    assert shape_annotations(only_time, revisions.R2025_03_26) is None
    assert shape_annotations(only_time, revisions.R2025_06_18) is only_time
    assert wire(Text("t", annotations=only_time), revisions.R2024_11_05) == {"type": "text", "text": "t"}
    resource = ResourceDefinition(uri="a://b", name="r", annotations=only_time)
    assert "annotations" not in listed(resource, revisions.R2025_03_26)
    nothing = Annotations()
    assert shape_annotations(nothing, revisions.R2024_11_05) is nothing


@pytest.mark.rule("RES-11", "TOOL-11")
@given(st.binary())
def test_bytes_travel_as_base64(data: bytes) -> None:
    for block in (Image(data, "image/png"), Audio(data, "audio/wav")):
        assert base64.b64decode(json.loads(jsonrpc.encode(block))["data"], validate=True) == data
    contents = json.loads(jsonrpc.encode(ResourceContents("a://b", blob=data)))
    assert base64.b64decode(contents["blob"], validate=True) == data


@pytest.mark.parametrize("name", BLOCKS)
def test_content_comes_back_as_it_went(name: str) -> None:
    encoded = jsonrpc.encode(BLOCKS[name])
    again = msgspec.json.decode(encoded, type=Content)
    assert type(again) is type(BLOCKS[name])
    assert isinstance(again, CONTENT_TYPES)
    assert jsonrpc.encode(again) == encoded


@pytest.mark.parametrize(
    "block",
    [
        {"type": "video", "data": ""}, {"text": "t"}, {"type": "text"},
        {"type": "image", "data": "!", "mimeType": "image/png"}, {"type": "image", "data": ""},
        {"type": "resource", "resource": {"uri": "a://b"}}, {"type": "resource_link", "uri": "a://b"},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_what_is_no_content(block: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(block, Content)


@pytest.mark.rule("RES-11")
@pytest.mark.parametrize("values", [{}, {"text": "t", "blob": b"b"}])
def test_contents_are_text_or_bytes(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        ResourceContents("a://b", **values)


def test_messages() -> None:
    assert msgspec.convert({"role": "user", "content": "t"}, Message).content == "t"
    block = msgspec.convert({"role": "assistant", "content": {"type": "text", "text": "t"}}, Message)
    assert block.content == Text("t")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"role": "system", "content": "t"}, Message)


# ── types and files ──

BEGINNINGS: list[tuple[type[Image | Audio], bytes, str]] = [
    (Image, b"\x89PNG\r\n\x1a\nrest", "image/png"),
    (Image, b"GIF89arest", "image/gif"),
    (Image, b"RIFF\n\x00\x00\x00WEBPVP8 ", "image/webp"),
    (Image, b'<?xml version="1.0"?>\n<!-- a dot -->\n<svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml"),
    (Audio, b"RIFF\x24\x00\x00\x00WAVEfmt ", "audio/wav"),
    (Audio, b"ID3\x04rest", "audio/mpeg"),
    (Audio, b"\xff\xfb\x90\x00rest", "audio/mpeg"),
    (Audio, b"OggS\x00rest", "audio/ogg"),
    (Audio, b"\x00\x00\x00\x20ftypM4A rest", "audio/mp4"),
]


@pytest.mark.parametrize(("kind", "data", "mime_type"), BEGINNINGS, ids=stable)
def test_the_type_is_guessed_by_how_the_data_begin(
    kind: type[Image | Audio], data: bytes, mime_type: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(data)
    (tmp_path / "a.bmp").write_bytes(data)
    expected = kind(path=tmp_path / "a.bmp")
    assert kind(data) == kind(path=tmp_path / "file") == kind(path=str(tmp_path / "file")) == expected
    assert kind(data, annotations=ANNOTATIONS, meta=META) == kind(data, mime_type, ANNOTATIONS, META)
    assert kind(path=tmp_path / "file", mime_type=f"{mime_type}-x").mime_type == f"{mime_type}-x"


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (Image, b"", r'Image: the data do not tell their type; say it, as in Image\(data, mime_type="image/…"\)'),
        (Image, b"hello", "Image: the data do not tell their type"),
        (Audio, b"GIF89a", 'Audio: the data do not tell their type; .*"audio/…"'),
    ],
)
def test_a_type_that_the_data_do_not_tell_has_to_be_said(kind: type[Image | Audio], data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(data)


@pytest.mark.parametrize(
    ("kind", "name", "mime_type"),
    [
        (Image, "a.bmp", "image/bmp"), (Image, "a.AVIF", "image/avif"), (Image, "a.ico", "image/x-icon"),
        (Audio, "a.aac", "audio/aac"), (Audio, "a.webm", "audio/webm"), (Audio, "a.mp4", "audio/mp4"),
    ],
)  # fmt: skip
def test_where_the_data_do_not_tell_the_ending_does(
    kind: type[Image | Audio], name: str, mime_type: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(DATA)
    assert kind(path=tmp_path / name) == kind(path=str(tmp_path / name)) == kind(DATA, mime_type)


@pytest.mark.parametrize(
    ("kind", "format", "mime_type"),
    [
        (Image, "png", "image/png"), (Image, "JPG", "image/jpeg"), (Image, "svg", "image/svg+xml"),
        (Image, "tif", "image/tiff"), (Image, "webm", "image/webm"), (Audio, "mp3", "audio/mpeg"),
        (Audio, "m4a", "audio/mp4"), (Audio, "wav", "audio/wav"), (Audio, "jpg", "audio/jpg"),
    ],
)  # fmt: skip
def test_a_format_is_a_type_or_an_ending(
    kind: type[Image | Audio], format: str, mime_type: str, tmp_path: Path
) -> None:
    (tmp_path / "a.bin").write_bytes(DATA)
    assert kind(data=DATA, format=format) == kind(path=tmp_path / "a.bin", format=format) == kind(DATA, mime_type)
    with pytest.raises(TypeError, match=f"{kind.__name__}: mime_type= and format= say the same thing"):
        kind(DATA, mime_type, format=format)


def test_a_format_is_an_ending_or_nothing() -> None:
    assert Image(b"GIF89a", format=None) == Image(b"GIF89a")  # type: ignore[arg-type]  # as the peers' default is
    assert Image(DATA, format=".PNG").mime_type == "image/png"
    with pytest.raises(TypeError, match="Image: format='image/png' is a whole type; write it as mime_type="):
        Image(DATA, format="image/png")


@pytest.mark.parametrize(("kind", "name"), [(Image, "a.webm"), (Image, "a.aac"), (Audio, "a.bmp"), (Audio, "aac.")])
def test_an_ending_of_another_family_tells_nothing(kind: type[Image | Audio], name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(DATA)
    with pytest.raises(ValueError, match="do not tell their type"):
        kind(path=tmp_path / name)


def test_an_image_is_of_data_or_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Image needs either data or path="):
        Image()
    with pytest.raises(TypeError, match="Image needs either data or path="):
        Image(b"GIF89a", path=tmp_path)
    with pytest.raises(TypeError, match="Image: data must be bytes, not str; for a file write path="):
        Image("R0lGODlh")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        Image(path=tmp_path / "none.png")


def test_no_message_makes_an_image_read_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"GIF89a")
    without_data = {"type": "image", "path": str(tmp_path / "secret"), "mimeType": "image/gif"}
    with pytest.raises(msgspec.ValidationError, match="data"):
        msgspec.json.decode(json.dumps(without_data), type=Content)
    without_type = {"type": "image", "data": base64.b64encode(b"GIF89a").decode()}
    with pytest.raises(msgspec.ValidationError, match="mimeType"):
        msgspec.json.decode(json.dumps(without_type), type=Content)


NAMES = [row.name for row in revisions.ALL]

SIZED_ICONS = [Icon("https://example.com/i.png", mime_type="image/png", sizes=["48x48"], theme="dark")]
NOTES = Annotations(audience=["user"], priority=0.5, last_modified="2026-01-02T03:04:05Z")
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
    icons=SIZED_ICONS,
    meta={"com.example/k": 1},
)
RESOURCE = ResourceDefinition(
    uri="a://b", name="r", title="R", description="d", mime_type="text/plain", size=0, annotations=NOTES,
    icons=SIZED_ICONS, meta={"com.example/k": 1},
)  # fmt: skip
TEMPLATE = TemplateDefinition(
    uri_template="a://{b}", name="r", title="R", description="d", mime_type="text/plain", annotations=NOTES,
    icons=SIZED_ICONS, meta={"com.example/k": 1},
)  # fmt: skip
PROMPT = PromptDefinition(
    name="p",
    title="P",
    description="d",
    arguments=[PromptArgument(name="x", title="X", description="d", required=True), PromptArgument(name="y")],
    icons=SIZED_ICONS,
    meta={"com.example/k": 1},
)
INFO = Implementation(
    name="s", title="S", version="1", description="d", website_url="https://example.com", icons=SIZED_ICONS
)
TYPES: dict[str, Any] = {"Tool": TOOL, "Resource": RESOURCE, "ResourceTemplate": TEMPLATE, "Prompt": PROMPT}


def listed(definition: Any, revision: revisions.Revision) -> Any:
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
OWN_META = {"com.example/k": 1}
CELLS: list[tuple[str, str, tuple[Any, ...]]] = [
    *((kind, "name", (definition.name,) * 5) for kind, definition in TYPES.items()),
    *((kind, "description", ("d",) * 5) for kind in TYPES),
    *((kind, "title", (..., ..., *[definition.title] * 3)) for kind, definition in TYPES.items()),
    *((kind, "icons", (..., ..., ..., [ICON], [ICON])) for kind in TYPES),
    *((kind, "_meta", (..., ..., OWN_META, OWN_META, OWN_META)) for kind in TYPES),
    ("Tool", "annotations.title", (..., "T", "A", "A", "A")),
    ("Tool", "annotations.readOnlyHint", (..., True, True, True, True)),
    ("Tool", "annotations.openWorldHint", (...,) * 5),
    ("Tool", "inputSchema", (SCHEMA,) * 5),
    ("Tool", "outputSchema", (..., ..., OBJECT, OBJECT, OBJECT)),
    ("Resource", "uri", ("a://b",) * 5),
    ("Resource", "size", (0,) * 5),
    ("Resource", "mimeType", ("text/plain",) * 5),
    ("Resource", "annotations.audience", (["user"],) * 5),
    ("Resource", "annotations.priority", (0.5,) * 5),
    ("Resource", "annotations.lastModified", (..., ..., *["2026-01-02T03:04:05Z"] * 3)),
    ("ResourceTemplate", "uriTemplate", ("a://{b}",) * 5),
    ("Prompt", "arguments.0.name", ("x",) * 5),
    ("Prompt", "arguments.0.title", (..., ..., "X", "X", "X")),
    ("Prompt", "arguments.0.required", (True,) * 5),
    ("Prompt", "arguments.1", ({"name": "y"},) * 5),
]  # fmt: skip


@pytest.mark.rule("LIFE-7", "TOOL-6", "RES-19", "META-5")
@pytest.mark.parametrize(("kind", "path", "cells"), CELLS, ids=[f"{kind}-{path}" for kind, path, _ in CELLS])
def test_appendix_b(kind: str, path: str, cells: tuple[Any, ...]) -> None:
    assert {row.name: at(listed(TYPES[kind], row), path) for row in revisions.ALL} == dict(
        zip(NAMES, cells, strict=True)
    )


@REVISIONS
@pytest.mark.parametrize("kind", TYPES)
def test_what_is_listed_is_official(kind: str, revision: revisions.Revision) -> None:
    official.demand()
    shown = listed(TYPES[kind], revision)
    official.validator_for(revision.name, kind).validate(shown)
    least = listed(MINIMAL[kind], revision)
    assert None not in least.values()
    official.validator_for(revision.name, kind).validate(least)
    whole = official.schema(revision.name)
    known = whole.get("$defs", whole.get("definitions"))[kind]["properties"]
    assert set(shown) <= set(known), "only what the revision knows"


MINIMAL: dict[str, Any] = {
    "Tool": ToolDefinition(name="t", input_schema={"type": "object"}),
    "Resource": ResourceDefinition(uri="a://b", name="r"),
    "ResourceTemplate": TemplateDefinition(uri_template="a://{b}", name="r"),
    "Prompt": PromptDefinition(name="p"),
}


def test_a_title_makes_annotations_where_there_is_no_other_place_for_it() -> None:
    tool = ToolDefinition(name="t", title="T", input_schema={"type": "object"})
    assert listed(tool, revisions.R2025_03_26)["annotations"] == {"title": "T"}
    assert "annotations" not in listed(tool, revisions.R2024_11_05)


@pytest.mark.rule("JS-9")
@REVISIONS
def test_boolean_schemas_of_properties(revision: revisions.Revision) -> None:
    """A strict client of an older revision refuses the whole list for one of them."""
    properties = {"any": True, "none": False, "b": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    shown = listed(ToolDefinition(name="t", input_schema=schema, output_schema=schema), revision)
    official.demand()
    official.validator_for(revision.name, "Tool").validate(shown)
    spelled = {**schema, "properties": {"any": {}, "none": {"not": {}}, "b": {"type": "string"}}}
    assert shown["inputSchema"] == (schema if revision.name == "2026-07-28" else spelled)
    assert schema["properties"] is properties
    assert properties == {"any": True, "none": False, "b": {"type": "string"}}


# ── output schemas that describe no object ──

NOT_OBJECTS: list[dict[str, Any]] = [
    ARRAY,
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
    shown = listed(tool, revision)
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
    {"type": "array", "items": {"$id": "https://example.com/i", "anyOf": [{"type": "null"}, {"items": {"$ref": "#"}}]}},
    {"type": "array", "items": {"type": "object", "properties": {"$ref": {"$ref": "#"}, "const": {"$ref": "#"}}}},
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
