"""Dovetail: plain Python functions, served to every MCP client.

The public names and nothing else. Each is loaded at its first use, so that a program pays only for what it uses.
"""

import gc
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.client import CallToolResult as CallToolResult
    from dovetail.client import ChangeStream as ChangeStream
    from dovetail.client import Client as Client
    from dovetail.client import ElicitRequest as ElicitRequest
    from dovetail.client import ElicitResult as ElicitResult
    from dovetail.client import ListPage as ListPage
    from dovetail.client import LogMessage as LogMessage
    from dovetail.client import SamplingRequest as SamplingRequest
    from dovetail.client import Skill as Skill
    from dovetail.client import SkillFile as SkillFile
    from dovetail.client import TaskUpdate as TaskUpdate
    from dovetail.client import ToolTask as ToolTask
    from dovetail.client.group import Clients as Clients
    from dovetail.console import Console as Console
    from dovetail.engine.audit import AuditEvent as AuditEvent
    from dovetail.engine.context import ClientInfo as ClientInfo
    from dovetail.engine.context import Context as Context
    from dovetail.engine.current_context import get_context as get_context
    from dovetail.engine.dispatch import CallNext as CallNext
    from dovetail.engine.handles import Handle as Handle
    from dovetail.engine.hooks import Notification as Notification
    from dovetail.engine.request_context import Cancellation as Cancellation
    from dovetail.engine.subscriptions import Change as Change
    from dovetail.errors import AnswerTimeout as AnswerTimeout
    from dovetail.errors import ArgumentError as ArgumentError
    from dovetail.errors import BadResponse as BadResponse
    from dovetail.errors import Busy as Busy
    from dovetail.errors import ConnectionLost as ConnectionLost
    from dovetail.errors import DovetailError as DovetailError
    from dovetail.errors import MissingCapability as MissingCapability
    from dovetail.errors import NotApproved as NotApproved
    from dovetail.errors import NotFound as NotFound
    from dovetail.errors import NotSignedIn as NotSignedIn
    from dovetail.errors import ProtocolError as ProtocolError
    from dovetail.errors import QuestionFailed as QuestionFailed
    from dovetail.errors import ServerError as ServerError
    from dovetail.errors import SetupError as SetupError
    from dovetail.errors import StateError as StateError
    from dovetail.errors import TaskCancelled as TaskCancelled
    from dovetail.errors import ToolError as ToolError
    from dovetail.errors import TooManyRequests as TooManyRequests
    from dovetail.errors import UrlElicitationRequired as UrlElicitationRequired
    from dovetail.extensions.extension import Extension as Extension
    from dovetail.gateway.proxy import Proxy as Proxy
    from dovetail.openapi.openapi import OpenApi as OpenApi
    from dovetail.protocol.capabilities import Completion as Completion
    from dovetail.protocol.elicitation import InputRequired as InputRequired
    from dovetail.protocol.inbound import Request as Request
    from dovetail.protocol.methods import CompletionArgument as CompletionArgument
    from dovetail.protocol.methods import CompletionContext as CompletionContext
    from dovetail.protocol.methods import CompletionTarget as CompletionTarget
    from dovetail.protocol.results import InputRequiredResult as InputRequiredResult
    from dovetail.protocol.results import ListResult as ListResult
    from dovetail.protocol.results import PromptResult as PromptResult
    from dovetail.protocol.results import Result as Result
    from dovetail.protocol.results import ToolResult as ToolResult
    from dovetail.protocol.sampling import SamplingMessage as SamplingMessage
    from dovetail.protocol.sampling import ToolResultContent as ToolResultContent
    from dovetail.protocol.sampling import ToolUseContent as ToolUseContent
    from dovetail.protocol.types import Annotations as Annotations
    from dovetail.protocol.types import AssistantMessage as AssistantMessage
    from dovetail.protocol.types import Audio as Audio
    from dovetail.protocol.types import EmbeddedResource as EmbeddedResource
    from dovetail.protocol.types import Icon as Icon
    from dovetail.protocol.types import Image as Image
    from dovetail.protocol.types import Message as Message
    from dovetail.protocol.types import PromptDefinition as PromptDefinition
    from dovetail.protocol.types import ResourceContents as ResourceContents
    from dovetail.protocol.types import ResourceDefinition as ResourceDefinition
    from dovetail.protocol.types import ResourceLink as ResourceLink
    from dovetail.protocol.types import TemplateDefinition as TemplateDefinition
    from dovetail.protocol.types import Text as Text
    from dovetail.protocol.types import ToolAnnotations as ToolAnnotations
    from dovetail.protocol.types import ToolDefinition as ToolDefinition
    from dovetail.protocol.types import UserMessage as UserMessage
    from dovetail.registry.dependencies import Depends as Depends
    from dovetail.registry.elicitation import Elicit as Elicit
    from dovetail.registry.elicitation import Elicited as Elicited
    from dovetail.registry.elicitation import ElicitUrl as ElicitUrl
    from dovetail.registry.files import File as File
    from dovetail.registry.registration import Idempotency as Idempotency
    from dovetail.registry.registration import TaskConfig as TaskConfig
    from dovetail.registry.roots import Root as Root
    from dovetail.registry.roots import Roots as Roots
    from dovetail.registry.sampling import Sample as Sample
    from dovetail.registry.sampling import Sampled as Sampled
    from dovetail.registry.transforms import ArgTransform as ArgTransform
    from dovetail.registry.transforms import ToolTransform as ToolTransform
    from dovetail.schema.constraints import Field as Field
    from dovetail.server import Server as Server
    from dovetail.state.base import StoreFull as StoreFull
    from dovetail.state.base import StoreUnavailable as StoreUnavailable
    from dovetail.toolregistry import ToolPage as ToolPage
    from dovetail.toolregistry import ToolRegistry as ToolRegistry
    from dovetail.transports.http.app import HttpApp as HttpApp
    from dovetail.transports.http.routes import RouteRequest as RouteRequest
    from dovetail.transports.http.routes import RouteResponse as RouteResponse

__version__ = "0.1.0"

_NAMES = {
    "client": [
        "CallToolResult", "Client", "ElicitRequest", "ElicitResult", "ListPage", "ChangeStream", "LogMessage",
        "SamplingRequest", "Skill", "SkillFile", "TaskUpdate", "ToolTask",
    ],
    "client.group": ["Clients"],
    "console": ["Console"],
    "engine.audit": ["AuditEvent"],
    "engine.context": ["ClientInfo", "Context"],
    "engine.current_context": ["get_context"],
    "engine.dispatch": ["CallNext"],
    "engine.handles": ["Handle"],
    "engine.hooks": ["Notification"],
    "engine.request_context": ["Cancellation"],
    "engine.subscriptions": ["Change"],
    "errors": [
        "AnswerTimeout", "ArgumentError", "BadResponse", "Busy", "ConnectionLost", "DovetailError",
        "MissingCapability", "NotApproved", "NotFound", "NotSignedIn", "ProtocolError", "QuestionFailed",
        "ServerError", "SetupError", "StateError", "TaskCancelled", "TooManyRequests", "ToolError",
        "UrlElicitationRequired",
    ],
    "extensions.extension": ["Extension"],
    "gateway.proxy": ["Proxy"],
    "openapi.openapi": ["OpenApi"],
    "protocol.capabilities": ["Completion"],
    "protocol.elicitation": ["InputRequired"],
    "protocol.inbound": ["Request"],
    "protocol.methods": ["CompletionArgument", "CompletionContext", "CompletionTarget"],
    "protocol.results": ["InputRequiredResult", "ListResult", "PromptResult", "Result", "ToolResult"],
    "protocol.sampling": ["SamplingMessage", "ToolResultContent", "ToolUseContent"],
    "protocol.types": [
        "Annotations", "AssistantMessage", "Audio", "EmbeddedResource", "Icon", "Image", "Message", "PromptDefinition",
        "ResourceContents", "ResourceDefinition", "ResourceLink", "TemplateDefinition", "Text", "ToolAnnotations",
        "ToolDefinition", "UserMessage",
    ],
    "registry.dependencies": ["Depends"],
    "registry.elicitation": ["Elicit", "ElicitUrl", "Elicited"],
    "registry.files": ["File"],
    "registry.registration": ["Idempotency", "TaskConfig"],
    "registry.roots": ["Root", "Roots"],
    "registry.sampling": ["Sample", "Sampled"],
    "registry.transforms": ["ArgTransform", "ToolTransform"],
    "schema.constraints": ["Field"],
    "server": ["Server"],
    "state.base": ["StoreFull", "StoreUnavailable"],
    "toolregistry": ["ToolPage", "ToolRegistry"],
    "transports.http.app": ["HttpApp"],
    "transports.http.routes": ["RouteRequest", "RouteResponse"],
}  # fmt: skip
_MODULES = {name: f"dovetail.{module}" for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    value = globals()[name] = getattr(_load(module), name)
    return value


def _load(module: str) -> ModuleType:
    """Load a name without the garbage collector: an import makes many objects and hardly any garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if was_enabled:
            gc.enable()


def __dir__() -> list[str]:
    return [*globals(), *__all__]
