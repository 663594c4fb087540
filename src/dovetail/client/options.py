"""Options of `Client` and of `Clients`."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from dovetail.auth.principal import Principal
from dovetail.client.auth import ClientAuth
from dovetail.client.dispatcher import ProgressHandler, Transcript
from dovetail.client.handlers import ElicitationCompleteHandler, ElicitationHandler, RootSource, SamplingHandler
from dovetail.client.results import LogHandler
from dovetail.protocol.types import ToolDefinition

Approve = Callable[[ToolDefinition, dict[str, Any]], bool | Awaitable[bool]]
WebTransport = Literal["http", "sse"]


class SharedOptions(TypedDict, total=False):
    """What `Client` takes, and `Clients` passes on to every one of its clients."""

    protocol_version: str | None
    client_info: Mapping[str, Any] | None
    capabilities: Mapping[str, Any] | None
    approve: Approve | None
    timeout: float | None  # 30 seconds, if not given
    max_timeout: float  # 3600 seconds
    transcript: Transcript | None
    log_handler: LogHandler | None
    progress_handler: ProgressHandler | None
    elicitation_handler: ElicitationHandler | None
    elicitation_complete_handler: ElicitationCompleteHandler | None
    sampling_handler: SamplingHandler | None
    roots: RootSource | None
    max_rounds: int  # 32
    cache: bool  # True
    auth: ClientAuth | None  # for URLs without an Authorization header of their own


class ClientOptions(SharedOptions, total=False):
    """What `Client` takes besides: it is about one server."""

    env: Mapping[str, str] | None
    cwd: str | Path | None
    headers: Mapping[str, str] | None
    principal: Principal | None
    transport: WebTransport | None
