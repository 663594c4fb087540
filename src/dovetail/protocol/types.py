"""Wire types: content blocks, and the definitions of tools, resources, templates and prompts.

Each type is a superset of the revisions; the `shape_…` functions adapt it to one when it is sent.
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
    """Hints for the host: audience, importance and last change of a piece of content."""

    audience: Sequence[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None

    def __post_init__(self) -> None:
        if self.priority is not None and not 0 <= self.priority <= 1:
            raise ValueError(f"priority={self.priority!r} must be from 0 to 1")
        if self.last_modified is not None:
            try:
                datetime.fromisoformat(self.last_modified)
            except ValueError:
                text = f"lastModified={self.last_modified!r} must be a time such as 2026-07-28T09:30:00Z"
                raise ValueError(text) from None


class Icon(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    src: str
    mime_type: str | None = None
    sizes: Sequence[str] | None = None
    theme: Literal["light", "dark"] | None = None

    def __post_init__(self) -> None:
        if not self.src.lower().startswith(("https:", "data:")):
            raise ValueError(f"src={self.src[:80]!r} must be an https: or data: URL; clients load no other")


def _wrong_type(block: msgspec.Struct, name: str, kind: str) -> TypeError:
    return TypeError(f"{type(block).__name__}: {name} must be {kind}, not {type(getattr(block, name)).__name__}")


class Text(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="type", tag="text"):
    text: str
    annotations: Annotations | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise _wrong_type(self, "text", "a string")


class _MediaType(msgspec.StructMeta):
    """`Image(path="a.png")` reads the file, `Image(data)` guesses its type. Decoded messages do neither."""

    def __call__(
        cls, data: Any = None, mime_type: str = "", *more: Any, path: Any = None, format: str = "", **named: Any
    ) -> Any:
        data = read_media(cls.__name__, data, path)
        if format and mime_type:
            raise TypeError(f"{cls.__name__}: mime_type= and format= say the same thing; keep one of them")
        mime_type = mime_type or _type_of_format(cls.__name__, format) or _guessed_type(cls.__name__, data, path)
        return super().__call__(data, mime_type, *more, **named)


def read_media(name: str, data: Any, path: Any) -> Any:
    """The data that are given, or those of the file. Raises TypeError unless it is one of the two."""
    if (data is None) == (path is None):
        raise TypeError(f"{name} needs either data or path=")
    if path is not None:
        with open(path, "rb") as file:
            return file.read()
    if not isinstance(data, bytes):
        raise TypeError(f"{name}: data must be bytes, not {type(data).__name__}; for a file write path=")
    return data


class _Media(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", metaclass=_MediaType):
    if TYPE_CHECKING:  # the parameters of the metaclass
        data: bytes = b""
        mime_type: str = ""
    else:  # the fields
        data: bytes
        mime_type: str = msgspec.field(name="mimeType")
    annotations: Annotations | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)
    if TYPE_CHECKING:
        path: Any = ""  # as `open` takes it
        format: str = ""  # "png" is image/png


class Image(_Media, frozen=True, tag_field="type", tag="image"):
    """`Image(data, "image/png")`, `Image(data)` or `Image(path="a.png")`."""


class Audio(_Media, frozen=True, tag_field="type", tag="audio"):
    """`Audio(data, "audio/wav")`, `Audio(data)` or `Audio(path="a.wav")`."""


_SIGNATURES = {
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
_SUFFIXES = {"bmp": "image/bmp", "avif": "image/avif", "ico": "image/x-icon", "tif": "image/tiff", "tiff": "image/tiff"}
_SUFFIXES |= {"aac": "audio/aac", "webm": "audio/webm", "mp3": "audio/mpeg", "m4a": "audio/mp4", "mp4": "audio/mp4"}


def ending_of(name: str, format: str | None) -> str:
    """A format in small letters. Raises TypeError for a whole type."""
    if "/" in (format or ""):
        raise TypeError(f'{name}: format={format!r} is a whole type; write it as mime_type=, or an ending like "png"')
    return (format or "").lower().removeprefix(".")


def _type_of_format(name: str, format: str) -> str:
    """The MIME type for `format="jpg"`, which may be an ending; "" for none."""
    family, format = f"{name.lower()}/", ending_of(name, format)
    known = {"jpg": "image/jpeg", "svg": "image/svg+xml", **_SUFFIXES}.get(format, "")
    return known if known.startswith(family) else format and family + format


def _guessed_type(name: str, data: bytes, path: object) -> str:
    """The MIME type by the first bytes, else by the suffix of the path. Raises ValueError if neither is known."""
    family = f"{name.lower()}/"
    for kind, signature in _SIGNATURES.items():
        if kind.startswith(family) and re.match(signature, data[:4096], re.DOTALL):
            return kind
    if (kind := _SUFFIXES.get(str(path).rpartition(".")[2].lower(), "")).startswith(family):
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
            raise _wrong_type(self, "name", "a string")


class ResourceContents(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The contents of one resource: either `text` or `blob`."""

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

    @property
    def text(self) -> str:
        """The text of its content; empty if that is no text."""
        if isinstance(self.content, str):
            return self.content
        return self.content.text if isinstance(self.content, Text) else ""


def UserMessage(content: Content | str) -> Message:
    return Message("user", content)


def AssistantMessage(content: Content | str) -> Message:
    return Message("assistant", content)


def shape_content(content: Sequence[Content], revision: Revision) -> Sequence[Content]:
    """Content as a revision knows it: a block of an unknown kind would break its clients."""
    if revision.icons:  # the newest revisions carry everything
        return content
    return [_shape_block(block, revision) for block in content]


def _shape_block(block: Content, revision: Revision) -> Content:
    if isinstance(block, Audio) and not revision.audio:
        note = f"[audio, {block.mime_type}, {len(block.data)} bytes: not part of this protocol revision]"
        block = Text(note, annotations=block.annotations)
    elif isinstance(block, ResourceLink) and not revision.resource_links:
        label = block.title or block.name
        block = Text(f"{label}: {block.uri}" if label else block.uri, annotations=block.annotations)
    elif isinstance(block, ResourceLink):
        block = msgspec.structs.replace(block, icons=None)
    if not revision.object_meta:
        block = msgspec.structs.replace(block, meta=None)
        if isinstance(block, EmbeddedResource) and block.resource.meta is not None:
            block = msgspec.structs.replace(block, resource=msgspec.structs.replace(block.resource, meta=None))
    if not revision.last_modified and block.annotations is not None:
        block = msgspec.structs.replace(block, annotations=shape_annotations(block.annotations, revision))
    return block


def shape_annotations(annotations: Annotations, revision: Revision) -> Annotations | None:
    if revision.last_modified or annotations.last_modified is None:
        return annotations
    older = msgspec.structs.replace(annotations, last_modified=None)
    return older if older != Annotations() else None


# Keys of `_meta`:
WRAPPED_KEY = "dovetail/wrapped"  # of a tool: its structured values are sent as {"result": value}
UNSAFE_KEY = "dovetail/unsafe"  # of a template: the variables whose values are not confined
TAGS_KEY = "dovetail/tags"  # of any definition: its author's tags
IDEMPOTENCY_KEY = "dovetail/idempotency"  # of a tool: its calls may be repeated; and a capability of its server
CALL_KEY = "dovetail/idempotencyKey"  # of a call: the key that its repeats have too
PROCESS_KEY = "dovetail/idempotencyProcess"  # of a repeat: the process that alone knows whether the call has run
REPLAY_KEY = "dovetail/idempotentReplay"  # of a result: it is that of an earlier call with the same key
MAX_URI_LENGTH = 8_192  # characters; a longer one is never parsed
CacheScope = Literal["public", "private"]
UNNAMED = "dovetail-server"  # the name of a server whose author gave none


class Implementation(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """Name and version of a server."""

    name: str
    title: str | None = None
    version: str
    description: str | None = None
    website_url: str | None = None
    icons: Sequence[Icon] | None = None


class ToolAnnotations(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Hints on what a tool does. For one that is not sent clients assume the worse."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolHints(NamedTuple):
    """The four hints with the defaults of the specification: an absent one means the worse."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool

    @classmethod
    def from_values(cls, read_only: object, destructive: object, idempotent: object, open_world: object) -> "ToolHints":
        """Hints from decoded values; any value but true and false counts as absent."""
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
    execution: Mapping[str, Any] | None = None  # whether its calls can be tasks, in 2025-11-25
    meta: Meta | None = msgspec.field(name="_meta", default=None)

    @property
    def hints(self) -> ToolHints:
        own = self.annotations or ToolAnnotations()
        return ToolHints.from_values(own.read_only_hint, own.destructive_hint, own.idempotent_hint, own.open_world_hint)


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


def estimate_tokens(tool: ToolDefinition | Mapping[str, Any]) -> int:
    """Estimate by the bytes of the JSON that models are shown: English prose and JSON have three to five per token."""
    if isinstance(tool, ToolDefinition):
        tool = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    shown = {key: tool[key] for key in ("name", "description", "inputSchema") if tool.get(key) is not None}
    return -(-len(msgspec.json.encode(shown)) // 4)


def tags_of(definition: Definition) -> frozenset[str]:
    """The tags in `_meta`, which may come from another server."""
    tags = (definition.meta or {}).get(TAGS_KEY)
    return frozenset(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, (list, tuple)) else frozenset()


D = TypeVar("D", bound=Definition)


def shape_definition(definition: D, revision: Revision) -> D:
    """A definition with the fields that a revision knows."""
    known = {"icons": revision.icons, "title": revision.titles, "meta": revision.object_meta}
    dropped = [field for field in known if not known[field] and getattr(definition, field) is not None]
    changes: dict[str, Any] = dict.fromkeys(dropped)
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
    if tool.execution is not None and not revision.core_tasks:
        changes["execution"] = None
    if not revision.tool_annotations:
        changes["annotations"] = None
    elif not revision.titles and tool.title is not None:  # the only place such a revision has for it
        changes["annotations"] = msgspec.structs.replace(tool.annotations or ToolAnnotations(), title=tool.title)
    if not revision.open_schemas:
        changes["input_schema"] = _without_boolean_schemas(tool.input_schema)
        if tool.output_schema is None or not revision.structured_output:
            changes["output_schema"] = None
        elif describes_object(tool.output_schema):
            changes["output_schema"] = _without_boolean_schemas(tool.output_schema)
        else:
            changes["output_schema"] = wrap_schema(tool.output_schema)
            changes["meta"] = {**(tool.meta or {}), WRAPPED_KEY: True}
    return changes


def _without_boolean_schemas(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with objects for booleans: up to 2025-11-25 strict clients refuse the whole list for a `true`."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not any(isinstance(value, bool) for value in properties.values()):
        return schema
    as_object: dict[bool, Any] = {True: {}, False: {"not": {}}}
    objects = {name: as_object[value] if isinstance(value, bool) else value for name, value in properties.items()}
    return {**schema, "properties": objects}


def describes_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"


def wrap_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of {"result": value}; `$schema` and `$defs` stay at the root, and references still resolve."""
    moved = schema if "$id" in schema else _moved(schema)
    at_root = ("$schema",) if "$id" in schema else ("$schema", "$defs")  # references count from an `$id`
    root = {key: moved[key] for key in at_root if key in moved}
    inner = {key: value for key, value in moved.items() if key not in at_root}
    return {**root, "type": "object", "properties": {"result": inner}, "required": ["result"]}


_REFERENCES = ("$ref", "$dynamicRef")
_DATA = ("const", "enum", "default", "examples")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")  # their keys are names


def _moved(node: Any, *, names: bool = False) -> Any:
    """A part of a schema whose references to the old root now lead below `result`."""
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
