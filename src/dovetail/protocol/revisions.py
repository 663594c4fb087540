"""The published revisions as rows: code reads a row's fields and never compares dates."""

import msgspec
from msgspec.structs import replace


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One published revision."""

    name: str
    # how a connection starts and what a message may look like
    handshake: bool = True  # `initialize` opens a session; otherwise every request carries its own `_meta`
    batches: bool = False  # an array of messages is legal
    error_id_optional: bool = False  # an error without a readable request id omits `id`; otherwise it is null
    # what the server may send
    tool_annotations: bool = True
    audio: bool = True
    progress_message: bool = True
    completions_capability: bool = True
    titles: bool = True
    structured_output: bool = True
    any_structured_output: bool = False  # otherwise only objects
    open_schemas: bool = False  # a tool's output schema and its properties' need not be objects
    resource_links: bool = True
    object_meta: bool = True  # `_meta` on tools, resources, prompts and content
    last_modified: bool = True
    icons: bool = True
    server_details: bool = True  # `description`, `websiteUrl` and `icons` of the server itself
    result_type: bool = False  # `resultType`, server info and cache hints on results
    # how the server behaves
    missing_resource_code: int = -32002
    disconnect_cancels: bool = False  # HTTP: a disconnect cancels the call
    resumable: bool = False  # HTTP: priming event, `retry` and `Last-Event-ID`
    log_on_request: bool = False  # log messages only for a request that names a level
    core_tasks: bool = False  # a client asks for a task by `params.task`; later they are an extension
    listens: bool = False  # list changes are sent on `subscriptions/listen`; otherwise to the session
    # how the server sends server requests
    input_required: bool = False  # as an `input_required` result; otherwise as a JSON-RPC request
    elicitation: bool = True
    url_elicitation: bool = True
    elicitation_ids: bool = False  # URL elicitations have ids, and the client is notified when the user is done
    rich_forms: bool = True  # titled choices, multi-selects, all defaults; otherwise `enumNames` and booleans
    rich_sampling: bool = True  # tools, and several blocks in one message
    header: bytes = b""  # the name as the header `MCP-Protocol-Version` has it

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "header", self.name.encode())


R2025_06_18 = Revision(  # without what 2025-11-25 brought
    name="2025-06-18", icons=False, server_details=False, url_elicitation=False, rich_forms=False, rich_sampling=False
)
R2025_03_26 = replace(  # without what 2025-06-18 brought
    R2025_06_18,
    name="2025-03-26",
    batches=True,
    titles=False,
    structured_output=False,
    resource_links=False,
    object_meta=False,
    last_modified=False,
    elicitation=False,
)
R2024_11_05 = replace(  # without what 2025-03-26 brought
    R2025_03_26,
    name="2024-11-05",
    batches=False,
    tool_annotations=False,
    audio=False,
    progress_message=False,
    completions_capability=False,
)
R2025_11_25 = Revision(name="2025-11-25", error_id_optional=True, resumable=True, elicitation_ids=True, core_tasks=True)
R2026_07_28 = Revision(
    name="2026-07-28",
    handshake=False,
    error_id_optional=True,
    any_structured_output=True,
    open_schemas=True,
    result_type=True,
    missing_resource_code=-32602,
    disconnect_cancels=True,
    log_on_request=True,
    listens=True,
    input_required=True,
)

ALL = (R2024_11_05, R2025_03_26, R2025_06_18, R2025_11_25, R2026_07_28)  # oldest first
BY_NAME = {revision.name: revision for revision in ALL}
BY_HEADER = {revision.header: revision for revision in ALL}
HANDSHAKE = {revision.name: revision for revision in ALL if revision.handshake}
MODERN = {revision.name: revision for revision in ALL if not revision.handshake}
SUPPORTED = tuple(revision.name for revision in reversed(ALL))  # newest first, as clients see them
HANDSHAKE_VERSIONS = tuple(name for name in SUPPORTED if name in HANDSHAKE)
LATEST = ALL[-1]
LATEST_HANDSHAKE = R2025_11_25
HTTP_DEFAULT = R2025_03_26  # of an HTTP request without a version header


def versions_between(first: Revision, last: Revision | None = None) -> frozenset[str]:
    """The names of all revisions from `first` to `last`, both included."""
    names = [revision.name for revision in ALL]
    end = len(names) if last is None else names.index(last.name) + 1
    return frozenset(names[names.index(first.name) : end])
