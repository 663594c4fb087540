"""Options of a server: one frozen record, made from keyword arguments and a profile."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_args

import msgspec
from msgspec import Meta

from dovetail import auth as lazy_auth
from dovetail import engine as lazy
from dovetail.errors import SetupError
from dovetail.protocol.methods import LogLevel
from dovetail.protocol.results import CacheHint, Style
from dovetail.protocol.types import CacheScope, Icon
from dovetail.registry import registration as kinds
from dovetail.registry.registration import Kind, OutputPolicy, checked_options, parse_rates

if TYPE_CHECKING:
    from dovetail.auth.principal import Verifier, VerifyFunction
    from dovetail.auth.settings import Auth
    from dovetail.engine.audit import AuditFunction
    from dovetail.engine.tool_search import SearchFunction
    from dovetail.registry.registration import Rate

Profile = Literal["spec", "pocket", "reference"]
ArgumentErrors = Literal["result", "error"]
Schemas = Literal["full", "portable"]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]

# The options that each profile changes; an option that is given wins over its profile.
PROFILES: dict[str, dict[str, Any]] = {
    "spec": {},
    "pocket": {"always_structured_content": True, "empty_next_cursor": True, "argument_errors": "error"},
    "reference": {"explicit_is_error": False, "output": "text"},
}

MAX_ANSWER_TIMEOUT = 366 * 86_400.0  # seconds
SECRET_VARIABLE = "DOVETAIL_SECRET"
MIN_SECRET_BYTES = 16
_SECRET_HINT = """python -c "import secrets; print(secrets.token_urlsafe(32))" makes a good one"""
UP_TO_A_YEAR = Kind(Annotated[float, Meta(gt=0, le=MAX_ANSWER_TIMEOUT)], "a number of seconds, up to a year")
Feature = Literal["tools", "resources", "prompts", "completions", "logging"]

KINDS = {
    **dict.fromkeys(("version", "title", "description", "website_url", "instructions"), kinds.TEXT),
    **dict.fromkeys(("always_structured_content", "empty_next_cursor", "explicit_is_error"), kinds.SWITCH),
    **dict.fromkeys(("server_info", "lenient_arguments", "logging", "list_changed"), kinds.SWITCH),
    **dict.fromkeys(("audit_arguments", "mask_error_details", "telemetry_content"), kinds.SWITCH),
    "telemetry": Kind(bool | None, "True, False, or None"),
    **dict.fromkeys(("page_size", "max_concurrency", "max_threads", "max_message_bytes"), kinds.POSITIVE_COUNT),
    "state_quota": kinds.POSITIVE_COUNT,
    **dict.fromkeys(("max_queue", "ttl_ms", "token_budget"), kinds.COUNT),
    **dict.fromkeys(("timeout", "initialize_timeout"), kinds.LIMIT_SECONDS),
    **dict.fromkeys(("answer_timeout", "state_ttl"), UP_TO_A_YEAR),
    "profile": Kind(Profile, " or ".join(PROFILES)),
    "argument_errors": Kind(ArgumentErrors, '"result" or "error"'),
    "output": kinds.OUTPUT,
    "schemas": Kind(Schemas, '"full" or "portable"'),
    "cache_scope": kinds.SCOPE,
    "declare": Kind(list[Feature], f"a list of some of {', '.join(get_args(Feature))}"),
    "log_level": Kind(LogLevel, f"one of {', '.join(get_args(LogLevel))}"),
    "experimental": Kind(dict[str, dict[str, Any]], "a dict of dicts"),
    "redact": kinds.NAMES,
}


class Secrets(tuple[bytes, ...]):
    """The secrets of a server: the first one seals and signs, all of them open. Never printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} hidden>"


def checked_secrets(given: object, where: str) -> Secrets:
    """One secret or a sequence of them. Raises SetupError if one is no secret, or too short."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
    secrets = Secrets(dict.fromkeys(_checked_secret(each, where) for each in several))
    if not secrets:
        raise SetupError(f"{where} must be one secret at least; {_SECRET_HINT}")
    return secrets


def _checked_secret(given: object, where: str) -> bytes:
    # Neither the message nor a chained exception may show the secret: hence `from None`.
    try:
        secret = given.encode() if isinstance(given, str) else given
    except UnicodeEncodeError:
        raise SetupError(f"{where} is not text: it holds half a surrogate pair; {_SECRET_HINT}") from None
    if not isinstance(secret, bytes):
        raise SetupError(f"{where} must be a string or bytes, or a list of them, the first of which seals")
    if len(secret) < MIN_SECRET_BYTES:
        raise SetupError(f"{where} must be at least {MIN_SECRET_BYTES} bytes long (each of them); {_SECRET_HINT}")
    return secret


def secrets_from_env(environ: Mapping[str, str]) -> Secrets:
    """The secrets in DOVETAIL_SECRET, separated by commas or blanks; none if it is not set, or empty."""
    text = environ.get(SECRET_VARIABLE)
    return checked_secrets(text.replace(",", " ").split(), SECRET_VARIABLE) if text else Secrets()


def random_secrets() -> Secrets:
    return Secrets([os.urandom(32)])


def wants_traces(environ: Mapping[str, str], option: bool | None = None) -> bool:
    """Whether there shall be spans: by the option, or else if there is any variable of OpenTelemetry."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    by_variable = any(name.startswith("OTEL_") for name in environ) and environ.get("OTEL_TRACES_EXPORTER") != "none"
    return by_variable if option is None else option


def telemetry_module(option: bool | None) -> ModuleType | None:
    """The module that makes spans, loaded; None if there shall be none. Raises SetupError if its package is missing."""
    try:
        return lazy.telemetry if wants_traces(os.environ, option) else None
    except SetupError:
        if option:
            raise
        return None


class ServerOptions(TypedDict, total=False):
    """The keyword arguments of `Server(name, ...)`."""

    version: str
    title: str
    description: str
    website_url: str
    icons: Sequence[Icon | Mapping[str, Any]]
    instructions: str
    lifespan: Lifespan
    # shapes
    profile: Profile
    always_structured_content: bool
    empty_next_cursor: bool
    explicit_is_error: bool
    argument_errors: ArgumentErrors
    lenient_arguments: bool
    output: OutputPolicy
    schemas: Schemas
    server_info: bool
    page_size: int
    ttl_ms: int
    cache_scope: CacheScope
    # features
    declare: Collection[str]
    logging: bool
    log_level: LogLevel
    list_changed: bool
    experimental: Mapping[str, Any]
    redact: Sequence[str]
    audit: "bool | AuditFunction"
    audit_arguments: bool
    mask_error_details: bool
    telemetry: bool | None
    telemetry_content: bool
    tool_search: "bool | Literal['auto'] | SearchFunction"
    token_budget: int
    # limits
    timeout: float | None
    answer_timeout: float
    max_concurrency: int
    max_queue: int
    rate_limit: str | Sequence[str]
    max_threads: int
    initialize_timeout: float | None
    max_message_bytes: int
    state_quota: int
    state_ttl: float
    auth: "Auth | Verifier | VerifyFunction | Sequence[Verifier | VerifyFunction]"
    secret: str | bytes | Sequence[str | bytes]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """All options of a server, with their defaults."""

    version: str = "0.0.0"
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: Any = None
    instructions: str | None = None
    lifespan: Lifespan | None = None
    profile: Profile = "spec"
    always_structured_content: bool = False
    empty_next_cursor: bool = False
    explicit_is_error: bool = True
    argument_errors: ArgumentErrors = "result"
    lenient_arguments: bool = True
    output: OutputPolicy = "auto"
    schemas: Schemas = "full"  # as clients are shown them; arguments are always read by the full ones
    server_info: bool = True
    page_size: int = 1000
    ttl_ms: int = 0
    cache_scope: CacheScope = "private"
    declare: Collection[str] = ()  # capabilities to declare even while their catalogs are empty
    logging: bool = True
    log_level: LogLevel = "info"  # for sessions that never set one
    list_changed: bool = True
    experimental: Mapping[str, Any] = {}
    redact: Sequence[str] = ()  # more secret keys
    audit: "bool | AuditFunction" = False  # an event for each request that does something: to the log, or to a function
    audit_arguments: bool = True  # whether such an event shows the arguments
    mask_error_details: bool | None = None  # None: yes, but not in process, nor for `dovetail dev`
    telemetry: bool | None = None  # spans; None: if the variables of OpenTelemetry ask for them
    telemetry_content: bool = False  # whether spans show arguments and results
    tool_search: "bool | Literal['auto'] | SearchFunction" = False  # "auto" and a function: by the budget
    token_budget: int = 20_000  # for all tools that a caller sees; if they cost more, it has to search for them
    timeout: float | None = None  # seconds for a call, unless the tool has its own
    answer_timeout: float = 3600.0  # seconds that a question to a client is good for, unless it has its own
    max_concurrency: int = 1000  # calls of all tools together
    max_queue: int = 1000  # calls that may wait, for the server and for each limited tool
    rate_limit: "tuple[Rate, ...]" = ()  # of all requests that ask the server to do something
    max_threads: int = 40
    initialize_timeout: float | None = 60.0  # seconds a pipe may stay silent before its first request
    max_message_bytes: int = 64 * 1024 * 1024
    state_quota: int = 64 * 1024  # bytes of `ctx.state` of a caller, and of a handle's value
    state_ttl: float = 30 * 86_400.0  # seconds that these are stored after their last write
    auth: "Auth | None" = None  # None: every caller may use it
    secret: Secrets = Secrets()  # signs and seals what clients carry; all workers of a fleet need the same

    @classmethod
    def from_keywords(cls, given: ServerOptions) -> "Options":
        given = checked_options(given, cls.__struct_fields__, "Server", KINDS)
        if not callable(given.get("lifespan", cls)):
            raise SetupError(f"Server: lifespan={given['lifespan']!r} is not callable; give it a function")
        if not isinstance(given.get("audit", False), bool) and not callable(given["audit"]):
            raise SetupError(f"Server: audit={given['audit']!r} is not possible; it must be True, False or a function")
        search: Any = given.get("tool_search", False)
        if not (isinstance(search, bool) or search == "auto" or callable(search)):
            problem = f"Server: tool_search={search!r} is not possible"
            raise SetupError(f'{problem}; it must be True, False, "auto" or a function of query, tools and limit')
        is_given = "secret" in given
        secrets = checked_secrets(given["secret"], "Server: secret") if is_given else secrets_from_env(os.environ)
        rates = parse_rates(given["rate_limit"], "Server") if "rate_limit" in given else ()
        auth = None if given.get("auth") is None else lazy_auth.Auth.from_option(given["auth"])
        parsed = {"secret": secrets, "rate_limit": rates, "auth": auth}
        return cls(**{**PROFILES[given.get("profile", "spec")], **given, **parsed})

    @property
    def style(self) -> Style:
        return msgspec.convert(self, Style, from_attributes=True)

    @property
    def hint(self) -> CacheHint:
        return CacheHint(self.ttl_ms, self.cache_scope)
