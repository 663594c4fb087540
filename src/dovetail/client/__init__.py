"""MCP client for a server in this process, behind a command or a URL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail.client.client import Client
from dovetail.client.handlers import ElicitRequest, ElicitResult, SamplingRequest
from dovetail.client.results import CallToolResult, ListPage, LogMessage
from dovetail.client.skills import Skill, SkillFile
from dovetail.client.subscriptions import ChangeStream
from dovetail.client.tasks import TaskUpdate, ToolTask

if TYPE_CHECKING:
    from dovetail.client.group import Clients
    from dovetail.client.oauth import ClientCredentials, MemoryTokens, OAuth, TokenFile

_HOME_OF = {"Clients": "group"} | dict.fromkeys(("ClientCredentials", "MemoryTokens", "OAuth", "TokenFile"), "oauth")
__all__ = [
    "CallToolResult",
    "ChangeStream",
    "Client",
    "ClientCredentials",
    "Clients",
    "ElicitRequest",
    "ElicitResult",
    "ListPage",
    "LogMessage",
    "MemoryTokens",
    "OAuth",
    "SamplingRequest",
    "Skill",
    "SkillFile",
    "TaskUpdate",
    "TokenFile",
    "ToolTask",
]


def __getattr__(name: str) -> Any:
    """Loads a module when one of its names is first used."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
