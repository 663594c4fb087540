"""Objects of the official package mcp_types, as our own types."""

import functools
from typing import Any

import msgspec

from dovetail.protocol.capabilities import Completion
from dovetail.protocol.results import PromptResult, ReadResourceResult, ToolResult
from dovetail.protocol.sampling import SamplingMessage
from dovetail.protocol.types import (
    CONTENT_TYPES,
    Annotations,
    Audio,
    Content,
    EmbeddedResource,
    Icon,
    Image,
    Message,
    ResourceContents,
    ResourceLink,
    Text,
    ToolAnnotations,
)
from dovetail.schema.encode import OutputError

OWN = {
    **{f"{kind.__name__}Content": kind for kind in (Text, Image, Audio)},
    **{f"{kind}ResourceContents": ResourceContents for kind in ("Text", "Blob")},
    **{kind.__name__: kind for kind in (Annotations, Completion, EmbeddedResource, Icon, ReadResourceResult)},
    **{kind.__name__: kind for kind in (ResourceLink, SamplingMessage, ToolAnnotations)},
    "CallToolResult": ToolResult,
    "GetPromptResult": PromptResult,
    "PromptMessage": Message,
}
REFUSED = {"InputRequiredResult": "return an InputRequired", "CreateTaskResult": "register the tool with task=True"}
NESTING: tuple[Any, ...] = (*CONTENT_TYPES, Message, PromptResult, ReadResourceResult, SamplingMessage, ToolResult)


def read(value: Any) -> Any:
    """The value as our own, if it is a class or an object of mcp_types, or holds some; else the value itself."""
    if isinstance(value, type):
        return _own_type(value) or value
    if isinstance(value, (list, tuple)):
        has_some = any(_own_type(kind) or issubclass(kind, NESTING) for kind in set(map(type, value)))
        return [read(item) for item in value] if has_some else value
    if isinstance(value, NESTING):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **{name: read(field) for name, field in fields.items()})
    kind: Any = type(value)
    own = _own_type(kind)
    return value if own is None else _convert(value.model_dump(mode="json", by_alias=True, exclude_none=True), own)


@functools.lru_cache(1_000)
def _own_type(kind: Any) -> Any:
    """Our type for one of mcp_types, or of `mcp.types` as it was called before, or a subclass; None if we have none."""
    for base in kind.__mro__:
        if base.__module__.startswith(("mcp_types", "mcp.types")):
            if base.__name__ in REFUSED:
                raise OutputError(f"{base.__name__} of mcp_types is not taken; {REFUSED[base.__name__]}")
            if base.__name__ in OWN:
                return OWN[base.__name__]
    return None


def _convert(plain: dict[str, Any], own: Any) -> Any:
    if own is ReadResourceResult:
        return ReadResourceResult(msgspec.convert(plain["contents"], list[ResourceContents]))
    if own is not ToolResult:
        return msgspec.convert(plain, own)
    content = msgspec.convert(plain["content"], list[Content])
    structured, is_error, meta = plain.get("structuredContent"), plain.get("isError", False), plain.get("_meta")
    return ToolResult(content=content, structured_content=structured, is_error=is_error, meta=meta)
