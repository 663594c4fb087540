"""Typed results of requests: decoding, pages, and the result of a tool call."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw

from dovetail.errors import BadResponse
from dovetail.protocol.jsonrpc import UNREADABLE, describe_decode_error
from dovetail.protocol.methods import LogLevel
from dovetail.protocol.types import Content, Text

T = TypeVar("T")

NULL = Raw(b"null")


class CallToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool call.

    `data` is the structured content, unwrapped where the server had to wrap it; else the text; else None.
    """

    content: Sequence[Content]
    structured: Any = None  # as the server sent it
    data: Any = None
    is_error: bool = False
    meta: Mapping[str, Any] = {}

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list; `next_cursor` is None at the end."""

    items: list[T]
    next_cursor: str | None


class LogMessage(msgspec.Struct, frozen=True):
    """A log message of the server for its client."""

    level: LogLevel
    data: Any = None
    logger: str | None = None


LogHandler = Callable[[LogMessage], Awaitable[None] | None]


class WireCallResult(msgspec.Struct, frozen=True, rename="camel"):
    """The result of `tools/call` as the server sends it."""

    content: list[Content] = []
    structured_content: Any = UNSET
    is_error: bool = False
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)

    @property
    def looks_wrapped(self) -> bool:
        return isinstance(self.structured_content, dict) and self.structured_content.keys() == {"result"}

    def to_result(self, *, wrapped: bool) -> CallToolResult:
        """The result of the call. `wrapped`: the structured content is {"result": value}, and the value is the data."""
        structured: Any = None if self.structured_content is UNSET else self.structured_content
        result = CallToolResult(content=self.content, structured=structured, is_error=self.is_error, meta=self.meta)
        data = structured["result"] if wrapped else structured
        if self.structured_content is UNSET and any(isinstance(block, Text) for block in self.content):
            data = result.text
        return msgspec.structs.replace(result, data=data)


class _ResultType(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = "complete"


def read_object(method: str, raw: Raw) -> dict[str, Any]:
    return decode(method, raw, dict[str, Any])


def result_type_of(method: str, raw: Raw) -> str:
    """The type of a result. Older servers do not name it: then the result is complete."""
    return decode(method, raw, _ResultType).result_type


def read_result(method: str, raw: Raw, shape: type[T]) -> T:
    """A complete result as a typed value, or BadResponse."""
    kind = result_type_of(method, raw)
    if kind != "complete":
        raise BadResponse(f"{method}: the server answered with resultType {kind!r}, which this client does not handle")
    return decode(method, raw, shape)


def read_page(method: str, raw: Raw, key: str, item: type[T]) -> ListPage[T]:
    fields = read_result(method, raw, dict[str, Raw])
    if key not in fields:
        raise BadResponse(f"{method}: the server's answer does not fit: {key} is missing")
    items: list[T] = decode(method, fields[key], list[item])  # type: ignore[valid-type]
    return ListPage(items, decode(method, fields.get("nextCursor", NULL), str | None))  # type: ignore[arg-type]


def decode(method: str, raw: Raw, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=shape)
    except UNREADABLE as failure:
        raise BadResponse(f"{method}: the server's answer does not fit: {describe_error(failure)}") from None


def has_flag(capabilities: Mapping[str, Any], feature: str, flag: str) -> bool:
    """Whether capabilities have a true flag, such as `listChanged` of `tools`."""
    offered = capabilities.get(feature)
    return isinstance(offered, Mapping) and bool(offered.get(flag))


def describe_error(failure: Exception) -> str:
    """The reason why a result or an error could not be decoded; `describe_decode_error` speaks of params."""
    words = describe_decode_error(failure)
    return "it has an unexpected shape" if words.startswith("the params") else words.replace("params must", "it must")
