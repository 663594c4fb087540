"""Wire types: content blocks, and the tools, resources, templates and prompts that a server lists.

One type for each thing, a superset of the revisions, shaped for one when it is sent.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from dovetail.protocol.revisions import Revision

Role = Literal["user", "assistant"]
Meta = dict[str, Any]


class Annotations(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Hints for the host: who a piece of content is for, how important it is, when it changed."""

    audience: Sequence[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None

    def __post_init__(self) -> None:
        if self.priority is not None and not 0 <= self.priority <= 1:
            raise ValueError(f"priority={self.priority!r} must be from 0 to 1")
        if self.last_modified is not None and not _is_time(self.last_modified):
            raise ValueError(f"lastModified={self.last_modified!r} must be a time such as 2026-07-28T09:30:00Z")


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


class Icon(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    src: str
    mime_type: str | None = None
    sizes: Sequence[str] | None = None
    theme: Literal["light", "dark"] | None = None

    def __post_init__(self) -> None:
        if not self.src.lower().startswith(("https:", "data:")):
            raise ValueError(f"src={self.src[:80]!r} must be an https: or data: URL; clients load no other")


def _wrong(block: msgspec.Struct, name: str, kind: str) -> TypeError:
    """A wrong value is found where it was written, not by a client."""
    return TypeError(f"{type(block).__name__}: {name} must be {kind}, not {type(getattr(block, name)).__name__}")


class Text(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="type", tag="text"):
    text: str
    annotations: Annotations | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise _wrong(self, "text", "a string")


class _MediaType(msgspec.StructMeta):
    """`Image(path="a.png")` reads the file, `Image(data)` guesses its type. What comes over the wire does neither."""

    def __call__(cls, data: Any = None, mime_type: str = "", *more: Any, path: Any = None, **named: Any) -> Any:
        if (data is None) == (path is None):
            raise TypeError(f"{cls.__name__} needs either data or path=")
        if path is not None:
            with open(path, "rb") as file:
                data = file.read()
        return super().__call__(data, mime_type or _guessed_type(cls.__name__, data, path), *more, **named)


class _Media(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", metaclass=_MediaType):
    if TYPE_CHECKING:  # what it is called with
        data: bytes = b""
        mime_type: str = ""
    else:  # what it has
        data: bytes
        mime_type: str = msgspec.field(name="mimeType")
    annotations: Annotations | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)
    if TYPE_CHECKING:
        path: Any = ""  # as `open` takes it

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            raise _wrong(self, "data", "bytes")


class Image(_Media, frozen=True, tag_field="type", tag="image"):
    """`Image(data, "image/png")`, `Image(data)` or `Image(path="a.png")`."""


class Audio(_Media, frozen=True, tag_field="type", tag="audio"):
    """`Audio(data, "audio/wav")`, `Audio(data)` or `Audio(path="a.wav")`."""


_BEGINNINGS = {
    "image/png": rb"\x89PNG\r\n\x1a\n",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8[79]a",
    "image/webp": rb"RIFF....WEBP",
    "image/svg+xml": rb"(?:\xef\xbb\xbf)?\s*(?:<[?!][^>]*>\s*)*<svg\b",
    "audio/wav": rb"RIFF....WAVE",
    "audio/mpeg": rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]",
    "audio/ogg": rb"OggS",
    "audio/flac": rb"fLaC",
    "audio/mp4": rb"....ftypM4A",
}
_ENDINGS = {"bmp": "image/bmp", "avif": "image/avif", "ico": "image/x-icon", "tif": "image/tiff", "tiff": "image/tiff"}
_ENDINGS |= {"aac": "audio/aac", "webm": "audio/webm", "mp3": "audio/mpeg", "m4a": "audio/mp4", "mp4": "audio/mp4"}


def _guessed_type(name: str, data: object, path: object) -> str:
    """By how the data begin, then by the path's ending. Raises ValueError if neither tells."""
    if not isinstance(data, bytes):
        return ""  # which is refused for what it is
    family = f"{name.lower()}/"
    for kind, beginning in _BEGINNINGS.items():
        if kind.startswith(family) and re.match(beginning, data[:4096], re.DOTALL):
            return kind
    if (kind := _ENDINGS.get(str(path).rpartition(".")[2].lower(), "")).startswith(family):
        return kind
    raise ValueError(f'{name}: the data do not tell their type; say it, as in {name}(data, mime_type="{family}…")')


class ResourceLink(
    msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="type", tag="resource_link"
):
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: Sequence[Icon] | None = None
    annotations: Annotations | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise _wrong(self, "name", "a string")


class ResourceContents(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The contents of one resource: `text` or `blob`, never both."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: bytes | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)

    def __post_init__(self) -> None:
        if (self.text is None) == (self.blob is None):
            raise ValueError("ResourceContents needs exactly one of text and blob")


class EmbeddedResource(
    msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="type", tag="resource"
):
    resource: ResourceContents
    annotations: Annotations | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)


Content = Text | Image | Audio | ResourceLink | EmbeddedResource
CONTENT_TYPES: tuple[type, ...] = (Text, Image, Audio, ResourceLink, EmbeddedResource)


class Message(msgspec.Struct, frozen=True):
    """One message of a prompt."""

    role: Role
    content: Content | str


def shape_content(content: Sequence[Content], revision: Revision) -> Sequence[Content]:
    """Content as a revision may carry it: an unknown kind would break its clients."""
    if revision.icons:  # the newest revisions carry everything
        return content
    return [_shape_block(block, revision) for block in content]


def _shape_block(block: Content, revision: Revision) -> Content:
    if isinstance(block, Audio) and not revision.audio:
        block = _audio_as_text(block)
    if isinstance(block, ResourceLink):
        block = msgspec.structs.replace(block, icons=None) if revision.resource_links else _link_as_text(block)
    if not revision.object_meta:
        block = msgspec.structs.replace(block, meta=None)
        if isinstance(block, EmbeddedResource) and block.resource.meta is not None:
            block = msgspec.structs.replace(block, resource=msgspec.structs.replace(block.resource, meta=None))
    if not revision.last_modified and block.annotations is not None:
        block = msgspec.structs.replace(block, annotations=shape_annotations(block.annotations, revision))
    return block


def _audio_as_text(audio: Audio) -> Text:
    note = f"[audio, {audio.mime_type}, {len(audio.data)} bytes: not part of this protocol revision]"
    return Text(note, annotations=audio.annotations)


def _link_as_text(link: ResourceLink) -> Text:
    label = link.title or link.name
    return Text(f"{label}: {link.uri}" if label else link.uri, annotations=link.annotations)


def shape_annotations(annotations: Annotations, revision: Revision) -> Annotations | None:
    if revision.last_modified or annotations.last_modified is None:
        return annotations
    older = msgspec.structs.replace(annotations, last_modified=None)
    return older if older != Annotations() else None


WRAPPED_KEY = "dovetail/wrapped"  # in a tool's `_meta`: its structured values come as {"result": value}
UNSAFE_KEY = "dovetail/unsafe"  # in a template's: the variables whose values may lead anywhere
TAGS_KEY = "dovetail/tags"  # in the `_meta` of anything: the words its author sorted it under
MAX_URI_LENGTH = 8_192  # characters; what is longer is not looked at
CacheScope = Literal["public", "private"]


class Implementation(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """Who a server is."""

    name: str
    title: str | None = None
    version: str
    description: str | None = None
    website_url: str | None = None
    icons: Sequence[Icon] | None = None


class ToolAnnotations(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Hints on what a tool does. Absent ones are not sent: clients then assume the worse."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolHints(NamedTuple):
    """The four hints as a reader has to take them: those that a tool does not give stand for the worse."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool

    @classmethod
    def from_values(cls, read_only: object, destructive: object, idempotent: object, open_world: object) -> "ToolHints":
        """From what a tool says; anything but true and false says nothing."""
        is_destructive = destructive is not False and read_only is not True
        return cls(read_only is True, is_destructive, idempotent is True, open_world is not False)


class ToolDefinition(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    name: str
    title: str | None = None
    description: str | None = None
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    icons: Sequence[Icon] | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)

    @property
    def hints(self) -> ToolHints:
        """With the defaults of the specification; nothing of them is sent."""
        said = self.annotations or ToolAnnotations()
        return ToolHints.from_values(
            said.read_only_hint, said.destructive_hint, said.idempotent_hint, said.open_world_hint
        )


class ResourceDefinition(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None
    icons: Sequence[Icon] | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)


class TemplateDefinition(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    icons: Sequence[Icon] | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)


class PromptArgument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    title: str | None = None
    description: str | None = None
    required: bool = False


class PromptDefinition(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    name: str
    title: str | None = None
    description: str | None = None
    arguments: Sequence[PromptArgument] | None = None
    icons: Sequence[Icon] | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)


Definition = ToolDefinition | ResourceDefinition | TemplateDefinition | PromptDefinition
D = TypeVar("D", bound=Definition)


def shape_definition(definition: D, revision: Revision) -> D:
    """A definition as a revision may carry it."""
    changes: dict[str, Any] = {}
    if not revision.icons and definition.icons is not None:
        changes["icons"] = None
    if not revision.titles and definition.title is not None:
        changes["title"] = None
    if not revision.object_meta and definition.meta is not None:
        changes["meta"] = None
    if isinstance(definition, ToolDefinition):
        changes.update(_shape_tool(definition, revision))
    elif isinstance(definition, PromptDefinition):
        if not revision.titles and definition.arguments:
            changes["arguments"] = [msgspec.structs.replace(item, title=None) for item in definition.arguments]
    elif definition.annotations is not None:
        changes["annotations"] = shape_annotations(definition.annotations, revision)
    return msgspec.structs.replace(definition, **changes) if changes else definition


def _shape_tool(tool: ToolDefinition, revision: Revision) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if not revision.tool_annotations:
        changes["annotations"] = None
    elif not revision.titles and tool.title is not None:  # the only place such a revision has for it
        changes["annotations"] = msgspec.structs.replace(tool.annotations or ToolAnnotations(), title=tool.title)
    if not revision.open_schemas:
        changes["input_schema"] = _spell_out_booleans(tool.input_schema)
        if tool.output_schema is not None:
            changes.update(_shape_output_schema(tool, tool.output_schema, revision))
    return changes


def _shape_output_schema(tool: ToolDefinition, schema: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    if not revision.structured_output:
        return {"output_schema": None}
    if describes_object(schema):
        return {"output_schema": _spell_out_booleans(schema)}
    return {"output_schema": wrap_schema(schema), "meta": {**(tool.meta or {}), WRAPPED_KEY: True}}


def _spell_out_booleans(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Up to 2025-11-25 the schema of a property is an object: clients that check refuse the whole list for a `true`."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not any(isinstance(value, bool) for value in properties.values()):
        return schema
    spelled = {
        name: {} if value is True else {"not": {}} if value is False else value for name, value in properties.items()
    }
    return {**schema, "properties": spelled}


def describes_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"


def wrap_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of {"result": value}; `$schema` and `$defs` stay at the root, and references still find their aim."""
    moved = schema if "$id" in schema else _moved(schema)
    stay = ("$schema",) if "$id" in schema else ("$schema", "$defs")  # with an `$id` it is a world of its own
    root = {key: moved[key] for key in stay if key in moved}
    inner = {key: value for key, value in moved.items() if key not in stay}
    return {**root, "type": "object", "properties": {"result": inner}, "required": ["result"]}


_REFERENCES = ("$ref", "$dynamicRef")
_DATA = ("const", "enum", "default", "examples")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")  # their keys are names


def _moved(node: Any, *, names: bool = False) -> Any:
    """A part of a schema, with references from its old root made to look below `result`."""
    if isinstance(node, (list, tuple)):
        return [_moved(item) for item in node]
    if not isinstance(node, Mapping) or ("$id" in node and not names):
        return node
    if names:
        return {name: _moved(value) for name, value in node.items()}
    return {key: _moved_member(key, value) for key, value in node.items()}


def _moved_member(key: str, value: Any) -> Any:
    if key in _DATA or (key in _REFERENCES and not isinstance(value, str)):
        return value
    if key not in _REFERENCES:
        return _moved(value, names=key in _NAMED)
    from_root = value == "#" or (value.startswith("#/") and not value.startswith("#/$defs/"))
    return f"#/properties/result{value[1:]}" if from_root else value


def shape_implementation(info: Implementation, revision: Revision) -> Implementation:
    changes: dict[str, Any] = {}
    if not revision.titles:
        changes["title"] = None
    if not revision.server_details:
        changes.update(description=None, website_url=None, icons=None)
    return msgspec.structs.replace(info, **changes) if changes else info
