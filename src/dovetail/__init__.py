"""Dovetail: plain Python functions, served to every MCP client."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail.engine.context import Context
from dovetail.errors import (
    ArgumentError,
    Busy,
    ConnectionLost,
    DovetailError,
    MissingCapability,
    NotFound,
    ProtocolError,
    ServerError,
    SetupError,
    ToolError,
)
from dovetail.protocol.content import (
    Annotations,
    Audio,
    EmbeddedResource,
    Icon,
    Image,
    Message,
    ResourceContents,
    ResourceLink,
    Text,
)
from dovetail.protocol.definitions import ToolAnnotations
from dovetail.protocol.features import Completion
from dovetail.protocol.outbound import ToolResult
from dovetail.protocol.results import PromptResult
from dovetail.registry.fields import Field
from dovetail.server import Server
from dovetail.toolregistry import ToolRegistry

if TYPE_CHECKING:
    from dovetail.client import Client

__version__ = "0.1.0"
__all__ = [
    "Annotations",
    "ArgumentError",
    "Audio",
    "Busy",
    "Client",
    "Completion",
    "ConnectionLost",
    "Context",
    "DovetailError",
    "EmbeddedResource",
    "Field",
    "Icon",
    "Image",
    "Message",
    "MissingCapability",
    "NotFound",
    "PromptResult",
    "ProtocolError",
    "ResourceContents",
    "ResourceLink",
    "Server",
    "ServerError",
    "SetupError",
    "Text",
    "ToolAnnotations",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
]


def __getattr__(name: str) -> Any:
    # The client is for those who want it; a server starts without.
    if name == "Client":
        return import_module("dovetail.client").Client
    raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
