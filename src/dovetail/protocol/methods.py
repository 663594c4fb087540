"""The methods as rows: name, kind, who sends it, in which revisions, shape of its params, capability behind it."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.protocol import revisions as r

RequestId = int | str
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
TargetType = Literal["ref/prompt", "ref/resource", "ref/tool"]
# The closed sets of values, by the last part of their place: what an error lists.
CHOICES: dict[str, tuple[str, ...]] = {
    "level": get_args(LogLevel),
    "logLevel": get_args(LogLevel),
    "ref.type": get_args(TargetType),
}
EMPTY_OBJECT = Raw(b"{}")


class AnyObject(msgspec.Struct, frozen=True):
    """A JSON object, whatever is in it: it is passed over."""


class RequestMeta(msgspec.Struct, frozen=True):
    """The keys of a request's `_meta` that mean something to a server; all others stay in the raw params."""

    progress_token: int | str | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    version: str | UnsetType = msgspec.field(name="io.modelcontextprotocol/protocolVersion", default=UNSET)
    capabilities: AnyObject | UnsetType = msgspec.field(
        name="io.modelcontextprotocol/clientCapabilities", default=UNSET
    )
    client: AnyObject | UnsetType = msgspec.field(name="io.modelcontextprotocol/clientInfo", default=UNSET)
    log_level: LogLevel | UnsetType = msgspec.field(name="io.modelcontextprotocol/logLevel", default=UNSET)


NO_META = RequestMeta()


class Params(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """What every params object may hold, and all that is known of a method we don't know."""

    meta: RequestMeta = msgspec.field(name="_meta", default=NO_META)


class InitializeParams(Params, frozen=True):
    protocol_version: str
    capabilities: dict[str, Raw]
    client_info: dict[str, Raw]


class ListParams(Params, frozen=True):
    cursor: str | None = None


class CallToolParams(Params, frozen=True):
    name: str
    arguments: Raw = EMPTY_OBJECT
    input_responses: Raw | UnsetType = UNSET
    request_state: str | UnsetType = UNSET


class UriParams(Params, frozen=True):
    uri: str


class ReadResourceParams(UriParams, frozen=True):
    input_responses: Raw | UnsetType = UNSET
    request_state: str | UnsetType = UNSET


class GetPromptParams(Params, frozen=True):
    name: str
    arguments: Raw = EMPTY_OBJECT
    input_responses: Raw | UnsetType = UNSET
    request_state: str | UnsetType = UNSET


class CompletionTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is being completed. `ref/tool` is our own addition to the two that the specification has."""

    type: TargetType
    name: str = ""
    uri: str = ""


class CompletionArgument(msgspec.Struct, frozen=True):
    name: str
    value: str


class CompletionContext(msgspec.Struct, frozen=True, omit_defaults=True):
    arguments: dict[str, str] = {}


class CompleteParams(Params, frozen=True):
    ref: CompletionTarget
    argument: CompletionArgument
    context: CompletionContext = CompletionContext()


class SetLevelParams(Params, frozen=True):
    level: LogLevel


class ListenFilter(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Which changes a `subscriptions/listen` asks for; the acknowledgement holds the part that is honoured."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []


class ListenParams(Params, frozen=True):
    notifications: ListenFilter


class CancelledParams(Params, frozen=True):
    request_id: RequestId | UnsetType = UNSET
    reason: Any = None  # only ever shown in a log


# One compiled decoder for each shape of params: the typed reading of a request costs a single pass.
DECODERS: dict[type[Params], "msgspec.json.Decoder[Params]"] = {
    shape: msgspec.json.Decoder(shape)
    for shape in (
        *(Params, InitializeParams, ListParams, CallToolParams, UriParams, ReadResourceParams, GetPromptParams),
        *(CompleteParams, SetLevelParams, ListenParams, CancelledParams),
    )
}
read_params = DECODERS[Params].decode


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `capability` is the server capability without which the method is not there at all."""

    name: str
    request: bool = True
    to_server: bool = True
    since: frozenset[str]
    params: type[Params] = Params
    named_by: str | None = None  # the field of its params that the header `Mcp-Name` mirrors
    capability: str | None = None
    in_session: bool = False  # it has something remembered for later, so it needs a session
    cacheable: bool = False  # the result carries cache hints where the revision has them
    asks: bool = False  # whoever serves it may ask the client something
    # Made of the above, for what happens with every request:
    header: bytes = b""  # the name as the header `Mcp-Method` has it
    modern: dict[str, r.Revision] = {}  # those of `since` that have no handshake
    read: Callable[[Raw], Params] = read_params  # params in, of the shape that the row names

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "header", self.name.encode())
        modern = {name: row for name, row in r.MODERN.items() if name in self.since}
        msgspec.structs.force_setattr(self, "modern", modern)
        msgspec.structs.force_setattr(self, "read", DECODERS[self.params].decode)


EVERY = r.at_least(r.R2024_11_05)
HANDSHAKE = r.at_least(r.R2024_11_05, r.R2025_11_25)
MODERN = r.at_least(r.R2026_07_28)

REQUESTS = (
    Method(name="initialize", since=HANDSHAKE, params=InitializeParams),
    Method(name="ping", since=HANDSHAKE),
    Method(name="server/discover", since=MODERN, cacheable=True),
    Method(name="tools/list", since=EVERY, params=ListParams, capability="tools", cacheable=True),
    Method(name="tools/call", since=EVERY, params=CallToolParams, named_by="name", capability="tools", asks=True),
    Method(name="resources/list", since=EVERY, params=ListParams, capability="resources", cacheable=True),
    Method(name="resources/templates/list", since=EVERY, params=ListParams, capability="resources", cacheable=True),
    Method(
        name="resources/read",
        since=EVERY,
        params=ReadResourceParams,
        named_by="uri",
        capability="resources",
        cacheable=True,
        asks=True,
    ),
    Method(name="resources/subscribe", since=HANDSHAKE, params=UriParams, capability="resources", in_session=True),
    Method(name="resources/unsubscribe", since=HANDSHAKE, params=UriParams, capability="resources", in_session=True),
    Method(name="prompts/list", since=EVERY, params=ListParams, capability="prompts", cacheable=True),
    Method(name="prompts/get", since=EVERY, params=GetPromptParams, named_by="name", capability="prompts", asks=True),
    Method(name="completion/complete", since=EVERY, params=CompleteParams, capability="completions"),
    Method(name="logging/setLevel", since=HANDSHAKE, params=SetLevelParams, capability="logging", in_session=True),
    Method(name="subscriptions/listen", since=MODERN, params=ListenParams),
)
NOTIFICATIONS = (
    Method(name="notifications/initialized", request=False, since=HANDSHAKE),
    Method(name="notifications/cancelled", request=False, since=EVERY, params=CancelledParams),
    Method(name="notifications/progress", request=False, since=HANDSHAKE),
    Method(name="notifications/roots/list_changed", request=False, since=HANDSHAKE),
)
TO_CLIENT = (
    Method(name="ping", to_server=False, since=HANDSHAKE),
    Method(name="sampling/createMessage", to_server=False, since=HANDSHAKE),
    Method(name="roots/list", to_server=False, since=HANDSHAKE),
    Method(name="elicitation/create", to_server=False, since=r.at_least(r.R2025_06_18, r.R2025_11_25)),
    Method(name="notifications/progress", to_server=False, request=False, since=EVERY),
    Method(name="notifications/message", to_server=False, request=False, since=EVERY, capability="logging"),
    Method(name="notifications/cancelled", to_server=False, request=False, since=EVERY),
    Method(name="notifications/tools/list_changed", to_server=False, request=False, since=EVERY),
    Method(name="notifications/prompts/list_changed", to_server=False, request=False, since=EVERY),
    Method(name="notifications/resources/list_changed", to_server=False, request=False, since=EVERY),
    Method(name="notifications/resources/updated", to_server=False, request=False, since=EVERY),
    Method(
        name="notifications/elicitation/complete",
        to_server=False,
        request=False,
        since=r.at_least(r.R2025_11_25, r.R2025_11_25),
    ),
    Method(name="notifications/subscriptions/acknowledged", to_server=False, request=False, since=MODERN),
)

REQUEST_ROWS = {row.name: row for row in REQUESTS}
NOTIFICATION_ROWS = {row.name: row for row in NOTIFICATIONS}
