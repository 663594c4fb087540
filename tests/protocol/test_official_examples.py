"""Every official example of 2026-07-28 is decoded by our types and encoded as it was."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import official
from dovetail.errors import ProtocolError
from dovetail.protocol import inbound, jsonrpc
from dovetail.protocol.capabilities import Completion, ServerCapabilities
from dovetail.protocol.extensions import DeclaredExtension
from dovetail.protocol.inbound import Request
from dovetail.protocol.jsonrpc import Envelope
from dovetail.protocol.methods import CallToolParams, CancelledParams, CompleteParams, GetPromptParams, ListParams
from dovetail.protocol.results import (
    CacheHint,
    CompleteResult,
    DiscoverResult,
    ListenEnded,
    PromptResult,
    ReadResourceResult,
    Shaper,
    Style,
    ToolResult,
)
from dovetail.protocol.revisions import R2026_07_28
from dovetail.protocol.sampling import SamplingMessage, SamplingParams, ToolResultContent, ToolUseContent
from dovetail.protocol.types import (
    Content,
    EmbeddedResource,
    Implementation,
    Message,
    PromptDefinition,
    ResourceContents,
    ResourceDefinition,
    TemplateDefinition,
    ToolDefinition,
)

FOLDER = official.FOLDER / "2026-07-28" / "examples"

# Types of ours that hold the whole of an official one.
TYPES: dict[str, Any] = {
    "AudioContent": Content, "BlobResourceContents": ResourceContents, "CallToolRequestParams": CallToolParams,
    "CancelledNotificationParams": CancelledParams, "CompleteRequestParams": CompleteParams,
    "CreateMessageRequestParams": SamplingParams, "EmbeddedResource": EmbeddedResource,
    "GetPromptRequestParams": GetPromptParams, "ImageContent": Content, "PaginatedRequestParams": ListParams,
    "Resource": ResourceDefinition, "ResourceLink": Content, "SamplingMessage": SamplingMessage,
    "TextContent": Content, "TextResourceContents": ResourceContents, "Tool": ToolDefinition,
    "ToolResultContent": ToolResultContent, "ToolUseContent": ToolUseContent,
}  # fmt: skip
REQUESTS = (
    "CallToolRequest", "CompleteRequest", "DiscoverRequest", "GetPromptRequest", "ListPromptsRequest",
    "ListResourceTemplatesRequest", "ListResourcesRequest", "ListToolsRequest", "ReadResourceRequest",
    "SubscriptionsListenRequest",
)  # fmt: skip
LISTS: dict[str, tuple[str, Any]] = {
    "ListPromptsResult": ("prompts", PromptDefinition),
    "ListResourceTemplatesResult": ("resourceTemplates", TemplateDefinition),
    "ListResourcesResult": ("resources", ResourceDefinition),
    "ListToolsResult": ("tools", ToolDefinition),
}
RESULTS = ("CallToolResult", "CompleteResult", "GetPromptResult", "ReadResourceResult", "SubscriptionsListenResult")
BARE_ERRORS = ("InternalError", "InvalidParamsError", "MethodNotFoundError", "ParseError")
ERROR_MESSAGES = ("HeaderMismatchError", "MissingRequiredClientCapabilityError", "UnsupportedProtocolVersionError")
NOTIFICATIONS = (
    "CancelledNotification", "LoggingMessageNotification", "ProgressNotification", "PromptListChangedNotification",
    "ResourceListChangedNotification", "ResourceUpdatedNotification", "SubscriptionsAcknowledgedNotification",
    "ToolListChangedNotification",
)  # fmt: skip
CAPABILITIES = {
    "completions-minimum-baseline-support": ServerCapabilities(names=frozenset({"completions"})),
    "extensions-tasks": ServerCapabilities(
        names=frozenset(), extensions={"io.modelcontextprotocol/tasks": DeclaredExtension()}
    ),
    "logging-minimum-baseline-support": ServerCapabilities(names=frozenset({"logging"})),
    "prompts-list-changed-notifications": ServerCapabilities(names=frozenset({"prompts"})),
    "prompts-minimum-baseline-support": ServerCapabilities(names=frozenset({"prompts"}), list_changed=False),
    "resources-all-notifications": ServerCapabilities(names=frozenset({"resources"})),
    "resources-subscription-to-individual-resource-updates-only": ServerCapabilities(
        names=frozenset({"resources"}), list_changed=False
    ),
    "tools-list-changed-notifications": ServerCapabilities(names=frozenset({"tools"})),
    "tools-minimum-baseline-support": ServerCapabilities(names=frozenset({"tools"}), list_changed=False),
}
# What only the client's side or the questions to it are made of, and plain values that have no type here.
ELSEWHERE = {
    "BooleanSchema", "ClientCapabilities", "CreateMessageRequest", "CreateMessageResult",
    "ElicitRequest", "ElicitRequestFormParams", "ElicitRequestURLParams", "ElicitResult", "InputRequests",
    "InputRequiredResult", "InputResponses", "ListRootsRequest", "ListRootsResult", "LoggingMessageNotificationParams",
    "ModelPreferences", "NumberSchema", "ProgressNotificationParams", "ResourceUpdatedNotificationParams", "Root",
    "StringSchema", "TitledMultiSelectEnumSchema", "TitledSingleSelectEnumSchema",
    "UntitledMultiSelectEnumSchema", "UntitledSingleSelectEnumSchema",
}  # fmt: skip

SHAPER = Shaper(R2026_07_28, Style(server_info=False), Implementation(name="x", version="1"))
TERSE = Shaper(R2026_07_28, Style(server_info=False, explicit_is_error=False), Implementation(name="x", version="1"))


def examples(*kinds: str) -> Any:
    """One test for each file of these kinds; one that says why where the folder is absent."""
    if not official.available():
        return pytest.mark.parametrize("file", [None], ids=["missing"])
    files = [file for kind in kinds for file in sorted((FOLDER / kind).iterdir())]
    assert files
    return pytest.mark.parametrize("file", files, ids=lambda file: f"{file.parent.name}-{file.stem}")


def load(file: Path | None) -> Any:
    official.demand()
    assert file is not None
    return json.loads(file.read_text())


@pytest.mark.seed("S2-83")
@examples(*TYPES)
def test_values(file: Path) -> None:
    wanted = load(file)
    for key in {inbound.CLIENT_KEY, inbound.CAPABILITIES_KEY} & wanted.get("_meta", {}).keys():
        wanted["_meta"][key] = {}  # passed over, and read where a request is asked for it: `test_requests`
    value = msgspec.json.decode(file.read_bytes(), type=TYPES[file.parent.name])
    assert json.loads(jsonrpc.encode(value)) == wanted


@examples(*REQUESTS)
@pytest.mark.rule("LIFE-7", "LIFE-12", "LIFE-17")
def test_requests(file: Path) -> None:
    wanted = load(file)
    message = jsonrpc.decode(file.read_bytes())
    assert isinstance(message, Envelope)
    request = inbound.modern(inbound.parse_request(message))
    assert isinstance(request, Request)
    assert request.client == {"name": "ExampleClient", "version": "1.0.0"}
    params = json.loads(jsonrpc.encode(request.params))
    params["_meta"] |= {inbound.CLIENT_KEY: request.client, inbound.CAPABILITIES_KEY: request.capabilities}
    assert json.loads(jsonrpc.request(request.id, request.method, jsonrpc.encode(params))) == wanted


@examples(*LISTS)
@pytest.mark.rule("TOOL-21", "RES-16", "CACHE-1")
def test_lists(file: Path) -> None:
    wanted = load(file)
    assert through_list(file.parent.name, wanted) == wanted


def through_list(kind: str, result: dict[str, Any]) -> Any:
    key, item_type = LISTS[kind]
    items = msgspec.convert(result[key], list[item_type])
    hint = CacheHint(result["ttlMs"], result["cacheScope"])
    return json.loads(SHAPER.page(key, items, result.get("nextCursor"), hint))


@examples(*RESULTS)
@pytest.mark.rule("BASE-13", "RES-16")
def test_results(file: Path) -> None:
    wanted = load(file)
    assert through_result(file.parent.name, wanted) == wanted


def through_result(kind: str, result: dict[str, Any]) -> Any:
    return json.loads(globals()[f"_through_{kind}"](result))


def _through_CallToolResult(result: dict[str, Any]) -> bytes:
    value = ToolResult(
        content=msgspec.convert(result["content"], list[Content]),
        structured=result.get("structuredContent", msgspec.UNSET),
        is_error=result.get("isError", False),
    )
    return (SHAPER if "isError" in result else TERSE).tool_result(value)


def _through_CompleteResult(result: dict[str, Any]) -> bytes:
    return CompleteResult(msgspec.convert(result["completion"], Completion)).encode(SHAPER)


def _through_GetPromptResult(result: dict[str, Any]) -> bytes:
    return PromptResult(msgspec.convert(result["messages"], list[Message]), result.get("description")).encode(SHAPER)


def _through_ReadResourceResult(result: dict[str, Any]) -> bytes:
    hint = CacheHint(result["ttlMs"], result["cacheScope"])
    return ReadResourceResult(msgspec.convert(result["contents"], list[ResourceContents]), hint).encode(SHAPER)


def _through_SubscriptionsListenResult(result: dict[str, Any]) -> bytes:
    return ListenEnded(result["_meta"]).encode(SHAPER)


@examples(*(f"{kind}Response" for kind in (*LISTS, *RESULTS)))
@pytest.mark.rule("BASE-6", "BASE-7")
def test_responses(file: Path) -> None:
    wanted = load(file)
    kind = file.parent.name.removesuffix("Response")
    through = through_list if kind in LISTS else through_result
    if kind == "ReadResourceResult":  # one of its examples forgets what the schema demands
        wanted["result"] = {"ttlMs": 0, "cacheScope": "private", **wanted["result"]}
    again = jsonrpc.result(wanted["id"], jsonrpc.encode(through(kind, wanted["result"])))
    assert json.loads(again) == wanted


@examples("DiscoverResult", "DiscoverResultResponse")
@pytest.mark.rule("LIFE-11", "LIFE-15", "CACHE-1")
def test_discovery(file: Path) -> None:
    whole = load(file)
    wanted = whole.get("result", whole)
    info = msgspec.convert(wanted["_meta"]["io.modelcontextprotocol/serverInfo"], Implementation)
    capabilities = ServerCapabilities(names=frozenset(wanted["capabilities"]), list_changed=False)
    hint = CacheHint(wanted["ttlMs"], wanted["cacheScope"])
    shown = json.loads(
        DiscoverResult(capabilities, wanted.get("instructions"), hint).encode(Shaper(R2026_07_28, Style(), info))
    )
    assert set(shown) == set(wanted)
    assert set(shown["capabilities"]) == set(wanted["capabilities"])
    ours = ("supportedVersions", "capabilities")  # ours, and not the example's
    assert {k: v for k, v in shown.items() if k not in ours} == {k: v for k, v in wanted.items() if k not in ours}


@examples("ServerCapabilities")
def test_capabilities(file: Path) -> None:
    wanted = load(file)
    if file.stem in ("resources-minimum-baseline-support", "resources-list-changed-notifications-only"):
        return  # our server with resources always has subscriptions
    assert CAPABILITIES[file.stem].for_revision(R2026_07_28) == wanted


@examples(*BARE_ERRORS)
@pytest.mark.rule("BASE-8")
def test_errors(file: Path) -> None:
    wanted = load(file)
    failure = ProtocolError(wanted["message"], code=wanted["code"], data=wanted.get("data"))
    assert json.loads(jsonrpc.error(1, failure))["error"] == wanted


@examples(*ERROR_MESSAGES)
@pytest.mark.rule("BASE-8", "BASE-15")
def test_error_messages(file: Path) -> None:
    wanted = load(file)
    error = wanted["error"]
    failure = ProtocolError(error["message"], code=error["code"], data=error.get("data"))
    assert json.loads(jsonrpc.error(wanted.get("id"), failure)) == wanted


@examples(*NOTIFICATIONS)
@pytest.mark.rule("BASE-10")
def test_notifications(file: Path) -> None:
    wanted = load(file)
    message = jsonrpc.decode(file.read_bytes())
    assert isinstance(message, Envelope)
    assert message.is_notification
    params = bytes(message.params) if "params" in wanted else None
    assert json.loads(jsonrpc.notification(str(message.method), params)) == wanted


@pytest.mark.seed("S2-83")
def test_no_example_is_forgotten() -> None:
    official.demand()
    known = {*TYPES, *REQUESTS, *LISTS, *RESULTS, *BARE_ERRORS, *ERROR_MESSAGES, *NOTIFICATIONS, *ELSEWHERE}
    known |= {f"{kind}Response" for kind in (*LISTS, *RESULTS)}
    known |= {"DiscoverResult", "DiscoverResultResponse", "ServerCapabilities"}
    assert {folder.name for folder in FOLDER.iterdir()} == known
