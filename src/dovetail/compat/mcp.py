"""The official SDK's names, of `mcp` 2.3: `MCPServer`, `Context`, and what programs import besides.

Words of module paths (`MODULES`) can't be names of this module: the import system sets them to the views of it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

try:
    import mcp_types
except ImportError as failure:
    raise ImportError("dovetail.compat.mcp needs the types of the SDK: pip install mcp-types") from failure

import msgspec
from pydantic import BaseModel

from dovetail.client import Client as NativeClient
from dovetail.client import ElicitRequest, ElicitResult
from dovetail.client.handlers import call_maybe_async
from dovetail.compat import no_equal
from dovetail.compat.mcp_context import *  # noqa: F403
from dovetail.compat.mcp_context import PAGE, ResourceError
from dovetail.compat.mcp_server import *  # noqa: F403
from dovetail.compat.shared import AcceptedElicitation as AcceptedElicitation
from dovetail.compat.shared import AccessToken as AccessToken
from dovetail.compat.shared import AudioMedia, ImageMedia, given, not_possible, to_content
from dovetail.compat.shared import CancelledElicitation as CancelledElicitation
from dovetail.compat.shared import DeclinedElicitation as DeclinedElicitation
from dovetail.compat.shared import ElicitationResult as ElicitationResult
from dovetail.compat.shared import get_access_token as get_access_token
from dovetail.errors import DovetailError, SetupError
from dovetail.errors import ToolError as ToolError
from dovetail.protocol.extensions import UI, UI_MIME_TYPE

M = TypeVar("M", bound=BaseModel)
__path__: list[str] = []
MODULES = frozenset({
    "apps", "auth", "auth_context", "base", "bearer_auth", "caching", "client", "context", "elicitation", "exceptions",
    "extension", "extensions", "fastmcp", "func_metadata", "inbound", "logging", "lowlevel", "mcpserver", "memory",
    "message", "middleware", "path_security", "prompts", "provider", "request_state", "resolve", "resource_manager",
    "resources", "routes", "server", "session", "settings", "shared", "sse", "stdio", "streamable_http",
    "streamable_http_manager", "subscriptions", "templates", "tool_manager", "tools", "transport_security", "types",
    "uri_template", "utilities", "version",
})  # fmt: skip
EXTENSION_ID, APP_MIME_TYPE = UI, UI_MIME_TYPE
InvalidSignature, MCPServerError, MCPDeprecationWarning = SetupError, DovetailError, DeprecationWarning
CallNext = HandlerResult = ServerMiddleware = EventCallback = EventId = StreamId = Any  # types of annotations


class UnexpectedToolError(ToolError):
    """Never raised: the text of an unexpected exception goes to the log, and to no program."""


class UnexpectedResourceError(ResourceError):
    """Never raised."""


class InvalidRequestState(ValueError):
    """Raised by codecs, which are not used."""


class Image(ImageMedia):
    """A picture that a tool returns."""

    def to_image_content(self) -> mcp_types.ImageContent:
        return read(mcp_types.ImageContent, to_content(self))


class Audio(AudioMedia):
    """A sound that a tool returns."""

    def to_audio_content(self) -> mcp_types.AudioContent:
        return read(mcp_types.AudioContent, to_content(self))


class TokenVerifier:
    """The base of verifiers, whose `verify_token` gives an AccessToken or None."""


class EventStore:
    """The base of event stores, which are passed over: the server's own state has the events."""


# ── the client ──


def read(model: type[M], value: Any) -> M:
    """A value of ours as a model of mcp_types."""
    return model.model_validate(msgspec.to_builtins(value))


class StdioServerParameters(msgspec.Struct, frozen=True):
    """A command that runs a server."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None


LISTS: dict[str, tuple[type[BaseModel], str]] = {
    "list_tools": (mcp_types.ListToolsResult, "tools"),
    "list_resources": (mcp_types.ListResourcesResult, "resources"),
    "list_resource_templates": (mcp_types.ListResourceTemplatesResult, "resourceTemplates"),
    "list_prompts": (mcp_types.ListPromptsResult, "prompts"),
}


class Client:
    """A connection to a server in this process, behind a command or a URL, open inside `async with`."""

    def __init__(
        self, server: Any, *, mode: str = "auto", read_timeout_seconds: float | None = None,
        elicitation_callback: Any = None, **others: Any,
    ) -> None:  # fmt: skip
        if unknown := sorted(given(**others)):
            raise not_possible(f"Client({unknown[0]}=)", PAGE, "dovetail.Client has more")
        options: dict[str, Any] = given(timeout=read_timeout_seconds)
        if mode != "auto":
            options["protocol_version"] = "2025-11-25" if mode == "legacy" else mode
        if isinstance(server, StdioServerParameters):
            options |= given(env=server.env, cwd=server.cwd)
            server = [server.command, *server.args]
        if elicitation_callback is not None:
            options["elicitation_handler"] = partial(_answer, elicitation_callback)
        self._client = NativeClient(server, **options)

    async def __aenter__(self) -> Self:
        await self._client.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def __getattr__(self, name: str) -> Any:
        return partial(self._list, name) if name in LISTS else getattr(self._client, name)

    async def _list(self, name: str) -> Any:
        model, key = LISTS[name]
        return read(model, {key: await getattr(self._client, name)()})

    @property
    def server_capabilities(self) -> mcp_types.ServerCapabilities:
        return read(mcp_types.ServerCapabilities, self._client.capabilities)

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> mcp_types.CallToolResult:
        found = await self._client.call_tool(name, arguments or {}, raise_on_error=False)
        result = {"content": found.content, "structuredContent": found.structured, "isError": found.is_error}
        return read(mcp_types.CallToolResult, result)

    async def read_resource(self, uri: Any) -> mcp_types.ReadResourceResult:
        return read(mcp_types.ReadResourceResult, {"contents": await self._client.read_resource(str(uri))})

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> mcp_types.GetPromptResult:
        return read(mcp_types.GetPromptResult, await self._client.get_prompt(name, arguments or {}))


async def _answer(callback: Any, request: ElicitRequest) -> ElicitResult:
    kind = mcp_types.ElicitRequestURLParams if request.mode == "url" else mcp_types.ElicitRequestFormParams
    found = await call_maybe_async(callback, None, read(kind, given(**msgspec.to_builtins(request))))
    return ElicitResult(found.action, found.content)


# ── paths ──


class PathEscapeError(ValueError):
    """A path leads out of its folder."""


def is_absolute_path(value: str) -> bool:
    """Whether it is absolute, or has a drive, on any system."""
    return value[:1] in ("/", "\\") or (value[1:2] == ":" and value[0].isascii() and value[0].isalpha())


def contains_path_traversal(value: str) -> bool:
    """Whether its `..` lead above where it begins."""
    depth = 0
    for part in value.replace("\\", "/").split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


def safe_join(base: str | Path, *parts: str) -> Path:
    """The path below a folder. Raises PathEscapeError if it leads out of it, by symlinks too."""
    root, is_relative = Path(base).resolve(), not any("\0" in part or is_absolute_path(part) for part in parts)
    joined = root.joinpath(*parts).resolve() if is_relative else None
    if joined is None or not joined.is_relative_to(root):
        raise PathEscapeError(f"{parts!r} is no path below {root}")
    return joined


# ── what has no equal ──

RECORDS = {  # of authorization servers and event stores
    "AuthorizationCode", "AuthorizationCodeResult", "AuthorizationParams", "ClientRegistrationOptions", "EventMessage",
    "OAuthClientInformationFull", "OAuthClientMetadata", "OAuthMetadata", "OAuthToken", "ProtectedResourceMetadata",
    "RefreshToken", "RevocationOptions",
}  # fmt: skip
UNSUPPORTED = {  # names by what there is instead
    "write tools with MCPServer": ("Server", "InitializationOptions", "NotificationOptions"),
    "it is MCPServer since mcp 2": ("FastMCP",),
    "write mcp.run()": ("stdio_server", "SseServerTransport", "StreamableHTTPSessionManager"),
    "dovetail.AuthServer is an authorization server": (
        "OAuthAuthorizationServerProvider", "ProviderTokenVerifier", "create_auth_routes", "construct_redirect_uri",
    ),
    "connect with Client": (
        "ClientSession", "ClientSessionGroup", "stdio_client", "sse_client", "streamable_http_client",
    ),
    "one endpoint serves all revisions": ("classify_inbound_request", "InboundModernRoute", "InboundLadderRejection"),
    "the server tells its clients of changes": ("ListenHandler",),
    "write a function that fetches it": ("HttpResource",),
    "mcp.add_directory() offers a folder": ("DirectoryResource",),
}  # fmt: skip


def _unsupported(name: str, instead: str) -> type:
    """A class that can be imported, named in annotations and derived from; to make or call it raises SetupError."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise not_possible(name, PAGE, instead)

    return type(name, (), {"__new__": refuse, "__class_getitem__": classmethod(lambda cls, _: cls)})


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name in MODULES:
        raise AttributeError(name)
    if name in RECORDS:
        made: Any = type(name, (BaseModel,), {"__module__": __name__, "model_config": {"extra": "allow"}})
    elif instead := [words for words, names in UNSUPPORTED.items() if name in names]:
        made = _unsupported(name, instead[0])
    elif hasattr(mcp_types, name):
        made = getattr(mcp_types, name)
    else:
        raise no_equal(f"mcp: {name}", PAGE)
    globals()[name] = made
    return made
