"""Results of requests, and the `Shaper` that encodes them for one revision."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET, Raw

from dovetail.protocol import revisions
from dovetail.protocol.capabilities import Completion, ServerCapabilities, bound_completion
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.revisions import Revision
from dovetail.protocol.types import (
    CacheScope,
    Content,
    Definition,
    Implementation,
    Message,
    Meta,
    ResourceContents,
    Text,
    shape_content,
    shape_definition,
    shape_implementation,
)

SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
COMPLETE = "complete"
INPUT_REQUIRED = "input_required"
# Parts of a tool's result, around encoded JSON:
_TEXT = b'[{"type":"text","text":%b}]'
_STRUCTURED = b',"structuredContent":'
_WRAPPED = b'{"result":%b}'
_QUOTE, _BRACE = b'"{'


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a server's profile that change how results are encoded."""

    always_structured_content: bool = False
    empty_next_cursor: bool = False
    explicit_is_error: bool = True
    server_info: bool = True


class CacheHint(msgspec.Struct, frozen=True):
    ttl_ms: int = 0
    scope: CacheScope = "private"


class _ToolResultType(msgspec.StructMeta):
    """`ToolResult(structured_content=…)` is the same as `structured=`, but None is no content there."""

    def __call__(cls, *, structured_content: Any = None, **named: Any) -> Any:
        if structured_content is not None:
            if "structured" in named:
                raise TypeError(f"{cls.__name__}: structured= and structured_content= say the same; keep one of them")
            named["structured"] = structured_content
        return super().__call__(**named)


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, metaclass=_ToolResultType):
    """The full result of a tool, for functions that need more than a return value can say."""

    content: Sequence[Content] = ()
    structured: Any = UNSET  # a `Raw` is encoded already
    if TYPE_CHECKING:  # a parameter of the metaclass, and a property
        structured_content: Any = None
    is_error: bool = False
    meta: Meta | None = None
    # Set by the tool's registration, not by its author:
    has_schema: bool = False  # the tool has an output schema
    wrap: bool = False  # the schema describes no object, so older revisions get {"result": value}
    text_copy: bool = True  # a structured value is also sent as text

    if not TYPE_CHECKING:

        @property
        def structured_content(self) -> Any:
            return None if self.structured is UNSET else self.structured

    def decoded(self) -> "ToolResult":
        """A copy with the structured value decoded, for code that reads it."""
        if not isinstance(self.structured, Raw):
            return self
        return msgspec.structs.replace(self, structured=msgspec.json.decode(self.structured))

    def encode(self, shaper: "Shaper") -> bytes:
        return shaper.tool_result(self)


EMPTY_RESULT = ToolResult()  # `replace` of it makes another one without a call of the metaclass


class Shaper:
    """Encodes every kind of result for one revision; made once for each revision and style."""

    def __init__(self, revision: Revision, style: Style, info: Implementation) -> None:
        self.revision = revision
        self.style = style
        self.info = shape_implementation(info, revision)
        has_info = revision.result_type and style.server_info
        self._server_meta: dict[str, Any] = {SERVER_INFO_KEY: self.info} if has_info else {}
        self.empty = self.body({})
        # What all results of tools have in common: their head, and their end without a `_meta` of their own.
        self._tool_head = b'{"resultType":"complete","content":' if revision.result_type else b'{"content":'
        self._tool_ends = (self._tool_end(False, None), self._tool_end(True, None))
        self._no_content = (Text(""),) if style.always_structured_content else ()
        self.copies_text = not revision.structured_output or style.always_structured_content
        self._keeps_structured = revision.structured_output or style.always_structured_content
        self._filler = b',"structuredContent":{}' if style.always_structured_content else b""

    def body(self, fields: Mapping[str, Any], meta: Meta | None = None) -> bytes:
        """A result: its own fields, and those of every result of this revision."""
        body: dict[str, Any] = {"resultType": COMPLETE} if self.revision.result_type else {}
        body.update(fields)
        if meta or self._server_meta:
            body["_meta"] = {**self._server_meta, **(meta or {})}
        return encode(body)

    def cacheable(self, fields: dict[str, Any], hint: CacheHint) -> bytes:
        if self.revision.result_type:
            fields |= {"ttlMs": hint.ttl_ms, "cacheScope": hint.scope}
        return self.body(fields)

    def tool_result(self, result: ToolResult) -> bytes:
        end = self._tool_end(result.is_error, result.meta) if result.meta else self._tool_ends[result.is_error]
        if result.structured is UNSET:
            filler = b"" if result.has_schema else self._filler  # a filler would not fit the schema
            blocks = result.content if self.revision.icons else shape_content(result.content, self.revision)
            return b"".join((self._tool_head, encode(blocks or self._no_content), filler, end))
        value = encode(result.structured)
        if result.content or not (result.text_copy or self.copies_text):
            content = encode(shape_content(result.content, self.revision))
        else:
            content = _TEXT % (value if value[0] == _QUOTE else encode(value.decode()))
        if not self._keeps_structured:
            return b"".join((self._tool_head, content, end))
        if (result.wrap or value[0] != _BRACE) and not self.revision.any_structured_output:
            value = _WRAPPED % value
        return b"".join((self._tool_head, content, _STRUCTURED, value, end))

    def passed_result(self, content: Raw, structured: Any, is_error: bool, meta: Meta | None) -> bytes:
        """The result of a tool elsewhere, whose parts are encoded already, for this revision or an older one."""
        value = b"" if structured is UNSET else _STRUCTURED + bytes(structured)
        end = self._tool_end(is_error, meta) if meta else self._tool_ends[is_error]
        return b"".join((self._tool_head, content, value, end))

    def _tool_end(self, is_error: bool, meta: Meta | None) -> bytes:
        flag = b',"isError":true' if is_error else b',"isError":false' if self.style.explicit_is_error else b""
        if not meta and not self._server_meta:
            return flag + b"}"
        return b'%b,"_meta":%b}' % (flag, encode({**self._server_meta, **(meta or {})}))

    def page(self, key: str, items: Sequence[Definition], next_cursor: str | None, hint: CacheHint) -> bytes:
        """A page of a list; `key` is the name of its items in the result."""
        fields: dict[str, Any] = {key: [shape_definition(item, self.revision) for item in items]}
        if next_cursor is not None:
            fields["nextCursor"] = next_cursor
        elif self.style.empty_next_cursor and self.revision.handshake:  # in later revisions an empty cursor is valid
            fields["nextCursor"] = ""
        return self.cacheable(fields, hint)


class Result(Protocol):
    def encode(self, shaper: Shaper) -> bytes: ...


class EmptyResult(msgspec.Struct, frozen=True):
    def encode(self, shaper: Shaper) -> bytes:
        return shaper.empty


LazyItems = Sequence[Definition] | Callable[[], Sequence[Definition]]  # called when `items` is read


class ListResult:
    """A page of a list. It is sent as its cached bytes unless a middleware has changed it."""

    __slots__ = ("_encoded", "_items", "hint", "key", "next_cursor")

    def __init__(
        self, key: str, items: LazyItems, next_cursor: str | None, hint: CacheHint, encoded: bytes | None = None
    ) -> None:
        self.key = key
        self.next_cursor = next_cursor
        self.hint = hint
        self._items = items
        self._encoded = encoded

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if not name.startswith("_"):
            object.__setattr__(self, "_encoded", None)

    @property
    def items(self) -> tuple[Definition, ...]:
        if callable(self._items):
            self._items = self._items()
        return tuple(self._items)

    @items.setter
    def items(self, items: Sequence[Definition]) -> None:
        self._items = tuple(items)

    def encode(self, shaper: Shaper) -> bytes:
        if self._encoded is None:
            self._encoded = shaper.page(self.key, self.items, self.next_cursor, self.hint)
        return self._encoded


class ReadResourceResult(msgspec.Struct, frozen=True):
    items: Sequence[ResourceContents]
    hint: CacheHint = CacheHint()

    def encode(self, shaper: Shaper) -> bytes:
        items = self.items
        if not shaper.revision.object_meta:
            items = [msgspec.structs.replace(item, meta=None) for item in items]
        return shaper.cacheable({"contents": items}, self.hint)


class PromptResult(msgspec.Struct, frozen=True):
    """The messages of a prompt."""

    messages: Sequence[Message]
    description: str | None = None
    meta: Meta | None = None

    def encode(self, shaper: Shaper) -> bytes:
        fields: dict[str, Any] = {} if self.description is None else {"description": self.description}
        fields["messages"] = [_shape_message(message, shaper.revision) for message in self.messages]
        return shaper.body(fields, self.meta)


def _shape_message(message: Message, revision: Revision) -> dict[str, Any]:
    content = Text(message.content) if isinstance(message.content, str) else message.content
    return {"role": message.role, "content": shape_content((content,), revision)[0]}


class CompleteResult(msgspec.Struct, frozen=True):
    completion: Completion

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.body({"completion": bound_completion(self.completion)})


class InitializeResult(msgspec.Struct, frozen=True):
    capabilities: ServerCapabilities
    instructions: str | None

    def encode(self, shaper: Shaper) -> bytes:
        fields: dict[str, Any] = {
            "protocolVersion": shaper.revision.name,
            "capabilities": self.capabilities.for_revision(shaper.revision),
            "serverInfo": shaper.info,
        }
        return encode(fields if self.instructions is None else {**fields, "instructions": self.instructions})


class DiscoverResult(msgspec.Struct, frozen=True):
    capabilities: ServerCapabilities
    instructions: str | None
    hint: CacheHint

    def encode(self, shaper: Shaper) -> bytes:
        fields: dict[str, Any] = {
            "supportedVersions": list(revisions.SUPPORTED),
            "capabilities": self.capabilities.for_revision(shaper.revision),
        }
        if self.instructions is not None:
            fields["instructions"] = self.instructions
        return shaper.cacheable(fields, self.hint)


class InputRequiredResult(msgspec.Struct, frozen=True):
    """A result that is not final: the client makes the request again, with responses to these server requests."""

    requests: Mapping[str, Any]  # by key: method and params
    state: str  # sealed

    def encode(self, shaper: Shaper) -> bytes:
        requests = {"inputRequests": self.requests} if self.requests else {}
        return shaper.body({"resultType": INPUT_REQUIRED, **requests, "requestState": self.state})


class ListenEnded(msgspec.Struct, frozen=True):
    """The graceful end of a `subscriptions/listen`."""

    meta: Meta  # names the subscription

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.body({}, self.meta)
