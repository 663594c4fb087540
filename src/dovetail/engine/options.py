"""A server's settings as one frozen record, made from keyword options and a profile."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_args

import msgspec
from msgspec import Meta

from dovetail import auth as lazy_auth
from dovetail.engine.workers import Secrets, checked_secrets, secrets_in
from dovetail.errors import SetupError
from dovetail.protocol.methods import LogLevel
from dovetail.protocol.results import CacheHint, Style
from dovetail.protocol.types import CacheScope, Icon
from dovetail.registry.registration import (
    COUNT,
    LIMIT_SECONDS,
    NAMES,
    OUTPUT,
    POSITIVE_COUNT,
    SCOPE,
    SWITCH,
    TEXT,
    Kind,
    OutputPolicy,
    checked_options,
    parse_rates,
)

if TYPE_CHECKING:
    from dovetail.auth.principal import Verifier, VerifyFunction
    from dovetail.auth.settings import Auth
    from dovetail.engine.audit import AuditFunction
    from dovetail.registry.registration import Rate

Profile = Literal["spec", "pocket", "reference"]
ArgumentErrors = Literal["result", "error"]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]

# What each profile changes; a switch that is given on its own wins over its profile.
PROFILES: dict[str, dict[str, Any]] = {
    "spec": {},
    "pocket": {"always_structured_content": True, "empty_next_cursor": True, "argument_errors": "error"},
    "reference": {"explicit_is_error": False, "output": "text"},
}


LONGEST_ANSWER = 366 * 86_400.0  # seconds

Feature = Literal["tools", "resources", "prompts", "completions", "logging"]

KINDS = {
    **dict.fromkeys(("version", "title", "description", "website_url", "instructions"), TEXT),
    **dict.fromkeys(("always_structured_content", "empty_next_cursor", "explicit_is_error", "server_info"), SWITCH),
    **dict.fromkeys(("lenient_arguments", "logging", "list_changed", "audit_arguments", "mask_error_details"), SWITCH),
    **dict.fromkeys(("page_size", "max_concurrency", "max_threads", "max_message_bytes"), POSITIVE_COUNT),
    **dict.fromkeys(("max_queue", "ttl_ms"), COUNT),
    **dict.fromkeys(("timeout", "initialize_timeout"), LIMIT_SECONDS),
    "answer_timeout": Kind(Annotated[float, Meta(gt=0, le=LONGEST_ANSWER)], "a number of seconds, up to a year"),
    "profile": Kind(Profile, " or ".join(PROFILES)),
    "argument_errors": Kind(ArgumentErrors, '"result" or "error"'),
    "output": OUTPUT,
    "cache_scope": SCOPE,
    "declare": Kind(list[Feature], f"a list of some of {', '.join(get_args(Feature))}"),
    "log_level": Kind(LogLevel, f"one of {', '.join(get_args(LogLevel))}"),
    "experimental": Kind(dict[str, dict[str, Any]], "a dict of dicts"),
    "redact": NAMES,
}


class ServerOptions(TypedDict, total=False):
    """What `Server(name, ...)` takes besides the name."""

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
    # limits
    timeout: float | None
    answer_timeout: float
    max_concurrency: int
    max_queue: int
    rate_limit: str | Sequence[str]
    max_threads: int
    initialize_timeout: float | None
    max_message_bytes: int
    auth: "Auth | Verifier | VerifyFunction | Sequence[Verifier | VerifyFunction]"
    secret: str | bytes | Sequence[str | bytes]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The same, complete: what is not given has its default here."""

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
    server_info: bool = True
    page_size: int = 1000
    ttl_ms: int = 0
    cache_scope: CacheScope = "private"
    declare: Collection[str] = ()  # features to offer even while there is nothing in them
    logging: bool = True
    log_level: LogLevel = "info"  # for sessions that never set one
    list_changed: bool = True
    experimental: Mapping[str, Any] = {}
    redact: Sequence[str] = ()  # more keys whose values are secrets
    audit: "bool | AuditFunction" = False  # an event for each request that does something: to the log, or a function
    audit_arguments: bool = True  # whether such an event shows the arguments
    mask_error_details: bool | None = None  # None: yes, but not in process, nor for `dovetail dev`
    timeout: float | None = None  # seconds for a call, unless the tool has its own
    answer_timeout: float = 3600.0  # seconds that a question to a client is good for, unless it has its own
    max_concurrency: int = 1000  # calls of all tools together
    max_queue: int = 1000  # calls that may wait, for the server and for each limited tool
    rate_limit: "tuple[Rate, ...]" = ()  # of all requests that ask the server to do something
    max_threads: int = 40
    initialize_timeout: float | None = 60.0  # seconds a pipe may stay silent before its first request
    max_message_bytes: int = 64 * 1024 * 1024
    auth: "Auth | None" = None  # None: whoever reaches it may use it
    secret: Secrets = Secrets()  # signs and seals what clients carry; all workers of a fleet need the same

    @classmethod
    def of(cls, given: ServerOptions) -> "Options":
        given = checked_options(given, cls.__struct_fields__, "Server", KINDS)
        if not callable(given.get("lifespan", cls)):
            raise SetupError(f"Server: lifespan={given['lifespan']!r} is not callable; give it a function")
        if not isinstance(given.get("audit", False), bool) and not callable(given["audit"]):
            raise SetupError(f"Server: audit={given['audit']!r} is not possible; it must be True, False or a function")
        secret = checked_secrets(given["secret"], "Server: secret") if "secret" in given else secrets_in(os.environ)
        rates = parse_rates(given["rate_limit"], "Server") if "rate_limit" in given else ()
        auth = None if given.get("auth") is None else lazy_auth.Auth.of(given["auth"])
        ours = {"secret": secret, "rate_limit": rates, "auth": auth}
        return cls(**{**PROFILES[given.get("profile", "spec")], **given, **ours})

    @property
    def style(self) -> Style:
        return Style(
            always_structured_content=self.always_structured_content,
            empty_next_cursor=self.empty_next_cursor,
            explicit_is_error=self.explicit_is_error,
            server_info=self.server_info,
        )

    @property
    def hint(self) -> CacheHint:
        return CacheHint(self.ttl_ms, self.cache_scope)
