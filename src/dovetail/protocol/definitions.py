"""What a server lists: tools, resources, templates and prompts as they go over the wire, shaped for each revision."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from dovetail.protocol.content import Annotations, Icon, Meta, shape_annotations
from dovetail.protocol.revisions import Revision

WRAPPED_KEY = "dovetail/wrapped"  # in a tool's `_meta`: its structured values come as {"result": value}
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


class ToolDefinition(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    name: str
    title: str | None = None
    description: str | None = None
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    icons: Sequence[Icon] | None = None
    meta: Meta | None = msgspec.field(name="_meta", default=None)


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
D = TypeVar("D", ToolDefinition, ResourceDefinition, TemplateDefinition, PromptDefinition)


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
    if tool.output_schema is not None and not revision.any_structured_output:
        changes.update(_shape_output_schema(tool, revision))
    return changes


def _shape_output_schema(tool: ToolDefinition, revision: Revision) -> dict[str, Any]:
    assert tool.output_schema is not None
    if not revision.structured_output:
        return {"output_schema": None}
    if describes_object(tool.output_schema):
        return {}
    return {
        "output_schema": wrap_schema(tool.output_schema),
        "meta": {**(tool.meta or {}), WRAPPED_KEY: True},
    }


def describes_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"


def wrap_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of {"result": value}; `$defs` and `$schema` stay at the root, where references look for them."""
    inner = {key: value for key, value in schema.items() if key not in ("$defs", "$schema")}
    root = {key: schema[key] for key in ("$schema", "$defs") if key in schema}
    return {**root, "type": "object", "properties": {"result": inner}, "required": ["result"]}


def shape_implementation(info: Implementation, revision: Revision) -> Implementation:
    changes: dict[str, Any] = {}
    if not revision.titles:
        changes["title"] = None
    if not revision.server_details:
        changes.update(description=None, website_url=None, icons=None)
    return msgspec.structs.replace(info, **changes) if changes else info
