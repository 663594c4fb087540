"""The official SDK's names, of `mcp` 2.3: `MCPServer`, `Context`, and what programs import besides.

Names of module paths (`MODULES`) can't be names of this module: the import system sets them to the views of it.
"""

import inspect
from pathlib import Path
from typing import Any

try:
    import mcp_types
except ImportError as failure:
    raise ImportError("dovetail.compat.mcp needs the SDK's types: pip install mcp-types") from failure

from pydantic import BaseModel, ConfigDict

from dovetail.compat import no_equal
from dovetail.compat.mcp_client import *  # noqa: F403
from dovetail.compat.mcp_context import *  # noqa: F403
from dovetail.compat.mcp_context import PAGE, ResourceError
from dovetail.compat.mcp_server import *  # noqa: F403
from dovetail.compat.shared import AcceptedElicitation as AcceptedElicitation
from dovetail.compat.shared import AccessToken as AccessToken
from dovetail.compat.shared import AudioMedia, ImageMedia, not_possible, to_content, wire
from dovetail.compat.shared import CancelledElicitation as CancelledElicitation
from dovetail.compat.shared import DeclinedElicitation as DeclinedElicitation
from dovetail.compat.shared import ElicitationResult as ElicitationResult
from dovetail.compat.shared import get_access_token as get_access_token
from dovetail.errors import DovetailError, SetupError
from dovetail.errors import ToolError as ToolError
from dovetail.protocol.extensions import UI, UI_MIME_TYPE

__path__: list[str] = []
MODULES = frozenset(
    "apps auth auth_context base bearer_auth caching client context elicitation exceptions extension extensions "
    "func_metadata inbound logging lowlevel mcpserver message middleware path_security prompts provider request_state "
    "resolve resource_manager resources routes server session settings shared sse stdio streamable_http "
    "streamable_http_manager subscriptions templates tool_manager tools transport_security types uri_template utilities "
    "version".split()
)
EXTENSION_ID, APP_MIME_TYPE = UI, UI_MIME_TYPE
InvalidSignature = SetupError
MCPServerError = DovetailError
MCPDeprecationWarning = DeprecationWarning


class UnexpectedToolError(ToolError):
    """Never raised: the text of an unexpected exception goes to the log, and to no program."""


class UnexpectedResourceError(ResourceError):
    """Never raised."""


class Image(ImageMedia):
    """A picture that a tool returns."""

    def to_image_content(self) -> mcp_types.ImageContent:
        return mcp_types.ImageContent(**_fields(self))


class Audio(AudioMedia):
    """A sound that a tool returns."""

    def to_audio_content(self) -> mcp_types.AudioContent:
        return mcp_types.AudioContent(**_fields(self))


# ── what is imported and not used, or used as a type alone ──

CallNext = HandlerResult = ServerMiddleware = EventCallback = EventId = StreamId = Any


class TokenVerifier:
    """The base of verifiers, whose `verify_token` gives an AccessToken or None."""


class EventStore:
    """The base of event stores, which a program may pass: the events are in the server's own state."""


class InvalidRequestState(ValueError):
    """What a codec raises; codecs are not used."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="allow")


class OAuthToken(_Record):
    token_type: str = "Bearer"


RECORDS = """
    AuthorizationCode AuthorizationCodeResult AuthorizationParams ClientRegistrationOptions EventMessage
    OAuthClientInformationFull OAuthClientMetadata OAuthMetadata ProtectedResourceMetadata RefreshToken RevocationOptions
""".split()
_LOW_LEVEL = "write tools, resources and prompts with MCPServer"
_CLIENT = "connect with Client"
_AUTH_SERVER = "dovetail.AuthServer is an authorization server"
UNSUPPORTED = {
    "Server": _LOW_LEVEL,
    "NotificationOptions": _LOW_LEVEL,
    "InitializationOptions": _LOW_LEVEL,
    "stdio_server": "write mcp.run()",
    "StreamableHTTPSessionManager": "mcp.streamable_http_app() has one",
    "SseServerTransport": "mcp.run() serves it",
    "ListenHandler": "changes are sent by the server itself",
    "HttpResource": "write a function that fetches it",
    "OAuthAuthorizationServerProvider": _AUTH_SERVER,
    "ProviderTokenVerifier": _AUTH_SERVER,
    "create_auth_routes": _AUTH_SERVER,
    "construct_redirect_uri": _AUTH_SERVER,
    "ClientSession": _CLIENT,
    "ClientSessionGroup": "dovetail.Clients connects with several servers",
    "stdio_client": _CLIENT,
    "sse_client": _CLIENT,
    "streamable_http_client": _CLIENT,
    "OAuthClientProvider": "dovetail.client.oauth signs in",
    "classify_inbound_request": "one endpoint serves all revisions",
    "InboundModernRoute": "one endpoint serves all revisions",
    "InboundLadderRejection": "one endpoint serves all revisions",
}


def _unsupported(name: str, instead: str) -> type:
    """A class that can be imported, named in annotations and derived from; to make or call it raises SetupError."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise not_possible(name, PAGE, instead)

    return type(name, (), {"__new__": refuse, "__class_getitem__": classmethod(lambda cls, _: cls)})


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
    root = Path(base).resolve()
    if any("\0" in part or is_absolute_path(part) for part in parts):
        raise PathEscapeError(f"{parts!r} is no path below {root}")
    joined = root.joinpath(*parts).resolve()
    if not joined.is_relative_to(root):
        raise PathEscapeError(f"{parts!r} leads out of {root}")
    return joined


def _fields(media: Any) -> dict[str, Any]:
    return wire_fields


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name in MODULES:
        raise AttributeError(name)
    if name in UNSUPPORTED:
        made: Any = _unsupported(name, UNSUPPORTED[name])
    elif name in RECORDS:
        made = type(name, (_Record,), {"__module__": __name__})
    elif hasattr(mcp_types, name):
        made = getattr(mcp_types, name)
    else:
        raise no_equal(f"mcp: {name}", PAGE)
    globals()[name] = made
    return made
