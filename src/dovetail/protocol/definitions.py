"""What a server lists: tools, resources, templates and prompts as they go over the wire, shaped for each revision."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from dovetail.protocol.content import Annotations, Icon, Meta, shape_annotations
from dovetail.protocol.revisions import Revision

WRAPPED_KEY = "dovetail/wrapped"  # in a tool's `_meta`: its structured values come as {"result": value}
UNSAFE_KEY = "dovetail/unsafe"  # in a template's: the variables whose values may lead anywhere
TAGS_KEY = "dovetail/tags"  # in the `_meta` of anything: the words its author sorted it under
LONGEST_URI = 8_192  # characters; what is longer is not looked at
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
    def of(cls, read_only: object, destructive: object, idempotent: object, open_world: object) -> "ToolHints":
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
        return ToolHints.of(said.read_only_hint, said.destructive_hint, said.idempotent_hint, said.open_world_hint)


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
