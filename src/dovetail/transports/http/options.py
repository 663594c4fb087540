"""HTTP options of a server, from keywords and from the environment."""

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from dovetail.errors import SetupError
from dovetail.registry.registration import COUNT, NAMES, POSITIVE_COUNT, SECONDS, SWITCH, TEXT, Kind, checked_options
from dovetail.transports.http.asgi import App, Scope

if TYPE_CHECKING:
    from dovetail.state.base import StateBackend

Identify = Callable[[Scope], str | Awaitable[str | None] | None]

MEBIBYTE = 1024 * 1024
TEN_YEARS = 10 * 366 * 86_400.0  # the limit of state backends; importing theirs would load asyncio for --help
TTL = Kind(Annotated[float, Meta(gt=0, le=TEN_YEARS)], "a number of seconds above 0, ten years at most")
DELAY_SECONDS = Kind(Annotated[float, Meta(ge=0)], "a number of seconds, 0 or more")
STATE = Kind(Any, 'a URL, such as "redis://127.0.0.1/0"')  # or a backend, as a keyword only
PORT = Kind(Annotated[int, Meta(ge=0, le=65535)], "a port from 0 to 65535; with 0 the system chooses one")

SWITCH_VALUES = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
SERVICE_LINK = " (Kubernetes sets it for a Service of that name; enableServiceLinks: false in the Pod stops it)"

_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+")

_TOKEN = re.compile(r"[!-~]{16,}")

KINDS = {
    **dict.fromkeys(("path", "host", "public_url"), TEXT),
    **dict.fromkeys(("sse", "stateless", "cors", "access_log", "metrics"), SWITCH),
    **dict.fromkeys(("allowed_hosts", "allowed_origins", "trusted_proxies"), NAMES),
    **dict.fromkeys(("max_body_bytes", "max_sessions", "max_streams", "max_per_caller", "workers"), POSITIVE_COUNT),
    **dict.fromkeys(("max_connections", "max_header_bytes", "max_headers"), POSITIVE_COUNT),
    **dict.fromkeys(("body_timeout", "keep_alive", "header_timeout"), SECONDS),
    **dict.fromkeys(("session_timeout", "event_timeout"), TTL),
    **dict.fromkeys(("drain_delay", "drain_timeout"), DELAY_SECONDS),
    "port": PORT,
    "backlog": COUNT,
    "state": STATE,
    "metrics_token": TEXT,
}


class AsgiOptions(TypedDict, total=False):
    """Keywords of `server.asgi(...)`."""

    path: str
    sse: bool
    stateless: bool
    routes: Mapping[str, App]
    identify: Identify
    state: "str | StateBackend"
    # access
    allowed_hosts: Sequence[str]
    allowed_origins: Sequence[str]
    cors: bool
    trusted_proxies: Sequence[str]
    public_url: str
    # limits
    max_body_bytes: int
    body_timeout: float
    max_sessions: int
    max_streams: int
    max_per_caller: int
    session_timeout: float
    event_timeout: float
    keep_alive: float
    drain_timeout: float
    metrics: bool
    metrics_token: str


class RunOptions(AsgiOptions, total=False):
    """More keywords of `server.run(transport="http", ...)`."""

    host: str
    port: int
    workers: int
    drain_delay: float
    max_connections: int
    max_header_bytes: int
    max_headers: int
    header_timeout: float
    backlog: int
    access_log: bool


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    path: str = "/mcp"  # "" for "/"
    sse: bool = True  # HTTP+SSE of 2024-11-05, at /sse and /messages
    stateless: bool = False  # handshake clients without sessions
    routes: Mapping[str, App] = {}  # custom routes
    identify: Identify | None = None  # gives the caller that the host has authenticated; sessions belong to callers
    state: "str | StateBackend | None" = None  # where sessions are stored; None: in memory, or shared by its workers
    allowed_hosts: Sequence[str] | None = None
    allowed_origins: Sequence[str] = ()
    cors: bool = True
    trusted_proxies: Sequence[str] = ()  # addresses and networks whose X-Forwarded-For is believed; "unix"
    public_url: str | None = None  # of the MCP endpoint, as clients see it; for a server with auth=
    max_body_bytes: int = 4 * MEBIBYTE
    body_timeout: float = 30.0  # seconds for a body to arrive
    max_sessions: int = 10_000
    max_streams: int = 10_000  # streams that stay open: GET, HTTP+SSE, subscriptions/listen
    max_per_caller: int | None = None  # sessions of one principal or network, and as many streams; None: half of all
    session_timeout: float = 1800.0  # seconds without a request
    event_timeout: float = 300.0  # seconds for which a client can resume a stream after its end
    keep_alive: float = 15.0  # seconds between comments on a silent stream
    drain_timeout: float = 30.0  # seconds for calls in flight when the server stops
    metrics: bool = False  # /metrics, for Prometheus
    metrics_token: str | None = None  # with which other machines may read it
    # only for run()
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    drain_delay: float = 0.0  # seconds between the failure of /ready and the drain
    max_connections: int = 10_000
    max_header_bytes: int = 64 * 1024
    max_headers: int = 100
    header_timeout: float = 10.0
    backlog: int = 2048
    access_log: bool = False

    @classmethod
    def from_keywords(cls, given: AsgiOptions, *, running: bool = False) -> "HttpOptions":
        """Options from keywords, else from the environment: `allowed_hosts` as DOVETAIL_ALLOWED_HOSTS."""
        known, where = (RunOptions, "Server.run") if running else (AsgiOptions, "Server.asgi")
        names = known.__annotations__.keys()
        backend = {name: value for name, value in given.items() if name == "state" and not isinstance(value, str)}
        unchecked = {*backend, "metrics_token"}
        others: Any = {name: value for name, value in given.items() if name not in unchecked}
        checked = checked_options(others, names, where, KINDS)
        variables = {name: f"DOVETAIL_{name.upper()}" for name in names if name in KINDS}
        present = {name: each for name, each in variables.items() if os.environ.get(each)}
        environment = {name: read_option(os.environ[each], KINDS[name], each) for name, each in present.items()}
        token = given.get("metrics_token", environment.get("metrics_token"))
        tokens = {} if token is None else {"metrics_token": checked_token(token, where)}
        options = cls(**{**environment, **checked, **backend, **tokens})
        if given.get("metrics_token") is not None and not options.metrics:
            raise SetupError(f"{where}: metrics_token= is the token of /metrics, which is served with metrics=True")
        if options.path == "/":
            options = msgspec.structs.replace(options, path="")
        elif not _PATH.fullmatch(options.path):
            raise SetupError(f'{where}: path={options.path!r} is not possible; it must be like "/mcp", or "/"')
        if not (options.state is None or isinstance(options.state, str) or hasattr(options.state, "claim")):
            raise SetupError(f"{where}: state={options.state!r} is not possible; it must be {STATE.words}")
        if not (options.identify is None or callable(options.identify)):
            raise SetupError(f"{where}: identify={options.identify!r} is not possible; it must be a function")
        return options


class Token(str):
    """A token that no message shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<hidden>"


def checked_token(given: object, where: str) -> Token:
    """The token of a header. Raises SetupError, which does not show it."""
    if isinstance(given, str) and _TOKEN.fullmatch(given):
        return Token(given)
    hint = """python -c "import secrets; print(secrets.token_urlsafe(32))" makes a good one"""
    name = "metrics_token (DOVETAIL_METRICS_TOKEN)"
    raise SetupError(f"{where}: {name} must have at least 16 characters of ASCII and no blanks; {hint}")


def read_option(text: str, kind: Kind, where: str) -> Any:
    """The value of an option from text; lists are separated by commas or blanks. Raises SetupError."""
    value: Any = text.replace(",", " ").split() if kind is NAMES else text
    if kind is SWITCH:
        value = SWITCH_VALUES.get(text.lower(), text)
    try:
        return msgspec.convert(value, kind.type, strict=False)
    except msgspec.ValidationError:
        hint = SERVICE_LINK if text.startswith("tcp://") else ""
        words = "on or off" if kind is SWITCH else kind.words
        raise SetupError(f"{where}={text!r} is not possible; it must be {words}{hint}") from None
