"""Objects of the official package mcp_types, as our own types."""

import functools
from typing import Any

import msgspec

from dovetail.protocol import results, sampling, types
from dovetail.protocol.capabilities import Completion
from dovetail.schema.encode import OutputError

OWN = {
    **{name: getattr(types, name) for name in ("Annotations", "EmbeddedResource", "Icon", "ResourceLink")},
    "TextContent": types.Text, "ImageContent": types.Image, "AudioContent": types.Audio,
    **dict.fromkeys(("TextResourceContents", "BlobResourceContents"), types.ResourceContents),
    "ToolAnnotations": types.ToolAnnotations, "Completion": Completion, "CallToolResult": results.ToolResult,
    "PromptMessage": types.Message, "GetPromptResult": results.PromptResult,
    "ReadResourceResult": results.ReadResourceResult, "SamplingMessage": sampling.SamplingMessage,
}  # fmt: skip
REFUSED = {"InputRequiredResult": "return an InputRequired", "CreateTaskResult": "register the tool with task=True"}
NESTING: tuple[Any, ...] = (*types.CONTENT_TYPES, *(OWN[name] for name in OWN if name.endswith(("Message", "Result"))))


def read(value: Any) -> Any:
    """The value as our own, if it is a class or an object of mcp_types, or holds some; else the value itself."""
    if isinstance(value, type):
        return _own_type(value) or value
    if isinstance(value, (list, tuple)):
        has_some = any(_own_type(kind) or issubclass(kind, NESTING) for kind in set(map(type, value)))
        return [read(item) for item in value] if has_some else value
    if isinstance(value, NESTING):
        fields = {name: read(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    own = _own_type(value.__class__)
    return value if own is None else _convert(value.model_dump(mode="json", by_alias=True, exclude_none=True), own)


@functools.lru_cache(1_000)
def _own_type(kind: Any) -> Any:
    """Our type for one of mcp_types, or of `mcp.types` as it was called before, or a subclass; None if we have none."""
    names = [base.__name__ for base in kind.__mro__ if base.__module__.startswith(("mcp_types", "mcp.types"))]
    for refused in REFUSED.keys() & names:
        raise OutputError(f"{refused} of mcp_types is not taken; {REFUSED[refused]}")
    return next((OWN[name] for name in names if name in OWN), None)


def _convert(plain: dict[str, Any], own: Any) -> Any:
    if own is results.ReadResourceResult:
        return own(msgspec.convert(plain["contents"], list[types.ResourceContents]))
    if own is not results.ToolResult:
        return msgspec.convert(plain, own)
    content = msgspec.convert(plain["content"], list[types.Content])
    structured, is_error, meta = plain.get("structuredContent"), plain.get("isError", False), plain.get("_meta")
    return own(content=content, structured_content=structured, is_error=is_error, meta=meta)
