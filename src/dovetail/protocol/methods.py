"""The methods as rows: name, revisions, type of the params, the capability behind them."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.protocol import revisions as r

RequestId = int | str
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
TargetType = Literal["ref/prompt", "ref/resource", "ref/tool"]
# The closed sets of values that an error lists, by the last part of their path.
CHOICES: dict[str, tuple[str, ...]] = {
    "level": get_args(LogLevel),
    "logLevel": get_args(LogLevel),
    "ref.type": get_args(TargetType),
}
EMPTY_OBJECT = Raw(b"{}")


class AnyObject(msgspec.Struct, frozen=True):
    """A JSON object whose members are skipped."""


class RequestMeta(msgspec.Struct, frozen=True):
    """The keys of a request's `_meta` that a server reads; others are only in the raw params."""

    progress_token: int | str | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    version: str | UnsetType = msgspec.field(name="io.modelcontextprotocol/protocolVersion", default=UNSET)
    capabilities: AnyObject | UnsetType = msgspec.field(
        name="io.modelcontextprotocol/clientCapabilities", default=UNSET
    )
    client: AnyObject | UnsetType = msgspec.field(name="io.modelcontextprotocol/clientInfo", default=UNSET)
    log_level: LogLevel | UnsetType = msgspec.field(name="io.modelcontextprotocol/logLevel", default=UNSET)


NO_META = RequestMeta()


class Params(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """What every params object may hold; all that is read for an unknown method."""

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
    """The prompt or template whose argument is completed. `ref/tool` is our addition to the specification."""

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
    """The notifications that a `subscriptions/listen` requests; the acknowledgement holds the accepted part."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []
    task_ids: list[str] = []  # of the tasks extension


class ListenParams(Params, frozen=True):
    notifications: ListenFilter


class CancelledParams(Params, frozen=True):
    request_id: RequestId | UnsetType = UNSET
    reason: Any = None  # only shown in a log


class ProgressParams(Params, frozen=True):
    progress_token: RequestId | UnsetType = UNSET


# One compiled decoder for each type of params: a typed reading costs a single pass.
DECODERS: dict[type[Params], "msgspec.json.Decoder[Params]"] = {
    type_: msgspec.json.Decoder(type_)
    for type_ in (
        *(Params, InitializeParams, ListParams, CallToolParams, UriParams, ReadResourceParams, GetPromptParams),
        *(CompleteParams, SetLevelParams, ListenParams, CancelledParams, ProgressParams),
    )
}
read_params = DECODERS[Params].decode


class Method(msgspec.Struct, frozen=True):
    """One row. `capability` is the server capability without which the method does not exist."""

    name: str
    versions: frozenset[str]
    params: type[Params] = Params
    name_field: str | None = None  # the field of its params that the header `Mcp-Name` mirrors
    capability: str | None = None
    stateful: bool = False  # the server remembers something for later, so it needs a session
    cacheable: bool = False  # the result carries cache hints where the revision has them
    interactive: bool = False  # the call may require input from the client
    is_authors: bool = False  # of an author's extension: a function of theirs runs, so it is audited
    name_optional: bool = False  # clients that leave `Mcp-Name` out are served: nothing can have been misled by it
    # Derived, because every request needs them:
    header: bytes = b""  # the name as the header `Mcp-Method` has it
    modern: dict[str, r.Revision] = {}  # those of `versions` that have no handshake
    read: Callable[[Raw], Params] = read_params  # decodes params of the row's type

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "header", self.name.encode())
        modern = {name: row for name, row in r.MODERN.items() if name in self.versions}
        msgspec.structs.force_setattr(self, "modern", modern)
        if self.params not in DECODERS:  # those of an extension
            DECODERS[self.params] = msgspec.json.Decoder(self.params)
        msgspec.structs.force_setattr(self, "read", DECODERS[self.params].decode)


EVERY = r.versions_between(r.R2024_11_05)
HANDSHAKE = r.versions_between(r.R2024_11_05, r.R2025_11_25)
MODERN = r.versions_between(r.R2026_07_28)

REQUESTS = (
    Method("initialize", HANDSHAKE, InitializeParams),
    Method("ping", HANDSHAKE),
    Method("server/discover", MODERN, cacheable=True),
    Method("tools/list", EVERY, ListParams, capability="tools", cacheable=True),
    Method("tools/call", EVERY, CallToolParams, name_field="name", capability="tools", interactive=True),
    Method("resources/list", EVERY, ListParams, capability="resources", cacheable=True),
    Method("resources/templates/list", EVERY, ListParams, capability="resources", cacheable=True),
    Method("resources/read", EVERY, ReadResourceParams, "uri", "resources", cacheable=True, interactive=True),
    Method("resources/subscribe", HANDSHAKE, UriParams, capability="resources", stateful=True),
    Method("resources/unsubscribe", HANDSHAKE, UriParams, capability="resources", stateful=True),
    Method("prompts/list", EVERY, ListParams, capability="prompts", cacheable=True),
    Method("prompts/get", EVERY, GetPromptParams, name_field="name", capability="prompts", interactive=True),
    Method("completion/complete", EVERY, CompleteParams, capability="completions"),
    Method("logging/setLevel", HANDSHAKE, SetLevelParams, capability="logging", stateful=True),
    Method("subscriptions/listen", MODERN, ListenParams),
)
NOTIFICATIONS = (
    Method("notifications/initialized", HANDSHAKE),
    Method("notifications/cancelled", EVERY, CancelledParams),
    Method("notifications/progress", HANDSHAKE, ProgressParams),
    Method("notifications/roots/list_changed", HANDSHAKE),
)
# From the server to its client:
SERVER_REQUESTS = (
    Method("ping", HANDSHAKE),
    Method("sampling/createMessage", HANDSHAKE),
    Method("roots/list", HANDSHAKE),
    Method("elicitation/create", r.versions_between(r.R2025_06_18, r.R2025_11_25)),
)
SERVER_NOTIFICATIONS = (
    Method("notifications/progress", EVERY),
    Method("notifications/message", EVERY, capability="logging"),
    Method("notifications/cancelled", EVERY),
    Method("notifications/tools/list_changed", EVERY),
    Method("notifications/prompts/list_changed", EVERY),
    Method("notifications/resources/list_changed", EVERY),
    Method("notifications/resources/updated", EVERY),
    Method("notifications/elicitation/complete", r.versions_between(r.R2025_11_25, r.R2025_11_25)),
    Method("notifications/subscriptions/acknowledged", MODERN),
)

REQUEST_ROWS = {row.name: row for row in REQUESTS}
