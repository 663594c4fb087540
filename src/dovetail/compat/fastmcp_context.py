"""FastMCP's Context, what its dependencies inject, its client, and its middleware."""

import copy
import dataclasses
import inspect
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import msgspec

import dovetail
from dovetail import ProtocolError, Request, compat
from dovetail.compat import no_equal
from dovetail.compat.shared import AccessToken, get_access_token, outcome
from dovetail.engine.context import request_of
from dovetail.engine.current_context import get_context as native_context
from dovetail.engine.hooks import BY_METHOD
from dovetail.errors import INVALID_PARAMS
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.results import ListResult, ToolResult
from dovetail.protocol.types import ResourceContents, Text, tags_of
from dovetail.registry.dependencies import Marker
from dovetail.registry.registration import Caching, parse_rates
from dovetail.schema.encode import to_jsonable

PAGE = "From FastMCP"
CREDENTIALS = {"authorization", "cookie", "proxy-authorization"}
NOT_PASSED_ON = CREDENTIALS | {
    "accept", "connection", "content-length", "content-type", "expect", "host", "keep-alive", "mcp-session-id",
    "proxy-authenticate", "proxy-connection", "te", "transfer-encoding", "upgrade",
}  # fmt: skip
_session_id: ContextVar[str | None] = ContextVar("fastmcp_session_id", default=None)


def lacking(self: Any, name: str) -> Any:
    """The `__getattr__` of adapters, for what their peers have besides."""
    raise AttributeError(f'{type(self).__name__}.{name} has no equal in Dovetail; see the page "{PAGE}" of its docs')


class ResourceContent:
    """The contents of a resource, without their URI."""

    def __init__(self, content: Any, mime_type: str | None = None, meta: Mapping[str, Any] | None = None) -> None:
        known: Any = {str: "text/plain", bytes: "application/octet-stream"}
        guessed = known.get(type(content), "application/json")
        self.content: Any = content if isinstance(content, str | bytes) else msgspec.json.encode(content).decode()
        self.mime_type, self.meta = mime_type or guessed, None if meta is None else dict(meta)

    def at(self, uri: str) -> ResourceContents:
        part = {"blob" if isinstance(self.content, bytes) else "text": self.content}
        return ResourceContents(uri, self.mime_type, meta=self.meta, **part)


class ResourceResult:
    """What a resource function may return, and what reading one gives."""

    def __init__(self, contents: Any, meta: Mapping[str, Any] | None = None) -> None:
        listed = contents if isinstance(contents, list) else [contents]
        self.contents = [each if isinstance(each, ResourceContent) else ResourceContent(each) for each in listed]
        self.meta = meta


def _log_method(level: Any) -> Any:
    async def log(self: "Context", message: str, logger_name: str | None = None, extra: Any = None) -> None:
        await self.log(message, level, logger_name, extra)

    return log


class Context(dovetail.Context[Any]):
    """FastMCP's methods on Dovetail's context."""

    fastmcp: Any  # the server; each has a subclass of its own
    __getattr__ = lacking

    @property
    def request_id(self) -> str:
        return str(super().request_id)

    @property
    def session_id(self) -> str:
        """In revisions without sessions made up for the request."""
        if (found := super().session_id or _session_id.get()) is None:
            _session_id.set(found := str(uuid.uuid4()))
        return found

    @property
    def transport(self) -> str | None:
        _, context = request_of(self)
        if context.request.headers is not None or context.locate is not None:
            return "streamable-http"
        return None if context.in_process else "stdio"

    @property
    def client_id(self) -> str | None:
        return self.meta.get("client_id")

    @property
    def lifespan_context(self) -> Any:
        return {} if self.lifespan is None else self.lifespan

    @property
    def session(self) -> Any:
        """The official SDK's view of the same call."""
        return compat.mcp_context.Context(self._engine, self._context, self._can_wait, self._loop)

    @property
    def input_responses(self) -> Any:
        """The client's answers as results of mcp_types; None before the first round."""
        return None if super().input_responses is None else self.session.input_responses

    async def log(  # type: ignore[override]
        self, message: str, level: Any = None, logger_name: str | None = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        await super().log(level or "info", {"msg": message, "extra": extra}, logger_name)

    debug, info, warning, error = map(_log_method, ("debug", "info", "warning", "error"))

    async def close_sse_stream(self) -> None:
        await self.close_stream()

    async def elicit(self, message: str, response_type: Any = None, **options: Any) -> Any:
        """An AcceptedElicitation, a DeclinedElicitation or a CancelledElicitation."""
        if isinstance(response_type, list) and response_type and not isinstance(response_type[0], str):
            response_type = list[Literal[tuple(response_type[0])]]  # type: ignore[misc]  # several of the choices
        return outcome(await super().elicit(message, response_type, **options))

    async def set_state(self, key: str, value: Any) -> None:
        """Store a value for the caller."""
        await self.state.set(key, value)

    async def get_state(self, key: str) -> Any:
        return await self.state.get(key)

    async def delete_state(self, key: str) -> None:
        await self.state.delete(key)

    async def enable_components(self, **chosen: Any) -> None:
        await self.enable(**fitting(chosen))

    async def disable_components(self, **chosen: Any) -> None:
        await self.disable(**fitting(chosen))

    async def reset_visibility(self) -> None:
        _, context = request_of(self)
        if (session := context.session_access) is not None:
            await session.change(lambda record: record.replace(rules=()))
            context.request.session = session.record
            for notify in (self.notify_tools_changed, self.notify_resources_changed, self.notify_prompts_changed):
                await notify()

    async def read_resource(self, uri: Any) -> Any:
        for check in self.fastmcp.guards:
            await check(await self.fastmcp.component_of("resources/read", str(uri), self))
        found = await super().read_resource(str(uri))
        contents = ((each.blob if each.text is None else each.text, each.mime_type, each.meta) for each in found)
        return ResourceResult([ResourceContent(*each) for each in contents])


class Shown:
    """The definition of a tool, resource or prompt, with its tags; None of what does not exist."""

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.tags = set() if definition is None else set(tags_of(definition))
        self.kind = "tool" if hasattr(definition, "input_schema") else ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.definition, name)


def fitting(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """`tags` and `names` of a choice of components."""
    given = {name: value for name, value in chosen.items() if value}
    if given.pop("match_all", False):
        given = {"names": "*", **given}
    if others := sorted(given.keys() - {"names", "tags"}):
        raise no_equal(f"{', '.join(others)}= of enable and disable", PAGE, "choose by names= and tags=")
    return given


# ── anywhere below a call ──


def get_context() -> Any:
    try:
        return native_context()
    except LookupError as failure:
        raise RuntimeError(f"No active context found: {failure}") from None


def get_server() -> Any:
    return get_context().fastmcp


def get_http_headers(include_all: bool = False, include: set[str] | None = None) -> dict[str, str]:
    """The headers of the request, without the token for this server."""
    wanted = {each.lower() for each in include or ()}
    if "authorization" in wanted:
        raise no_equal('get_http_headers(include={"authorization"})', PAGE, "tokens never reach functions")
    try:
        found = native_context().headers or {}
    except LookupError:
        return {}
    dropped = CREDENTIALS if include_all else NOT_PASSED_ON - wanted
    return {name: value for name, value in found.items() if name not in dropped}


def get_http_request() -> Any:
    """A Starlette request with the headers of this one."""
    from starlette.requests import Request as StarletteRequest

    _, context = request_of(get_context())
    if context.request.headers is None:
        raise RuntimeError("No active HTTP request found.")
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in context.request.headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers}
    return StarletteRequest(scope)


# ── dependencies ──


def Depends(dependency: Callable[..., Any], *, use_cache: bool = True, **bindings: Any) -> Any:
    """Let a function fill a parameter; it may be a context manager."""
    if bindings:
        raise no_equal("Depends(function, argument=…)", PAGE, "a dependency takes other dependencies, and the Context")
    inner = inspect.unwrap(dependency)
    is_generator = inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner)
    return Marker(inner if is_generator else dependency, use_cache)  # without @contextmanager


def _filled_by(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: Marker(function)


def _context(ctx: Context) -> Context:
    return ctx


def _token() -> AccessToken:
    if (token := get_access_token()) is None:
        raise RuntimeError("No access token found: the caller is not authenticated")
    return token


CurrentContext = _filled_by(_context)
CurrentFastMCP = _filled_by(lambda: get_server())
CurrentRequest = _filled_by(lambda: get_http_request())
CurrentHeaders = _filled_by(lambda: get_http_headers())
CurrentAccessToken = _filled_by(_token)


def TokenClaim(name: str) -> Any:
    return Marker(lambda: _token().claims[name])


class Client(dovetail.Client):
    """FastMCP's keywords and handlers of what Dovetail's client has."""

    def __init__(
        self, transport: Any, *, mode: str | None = None, elicitation_handler: Any = None, **options: Any
    ) -> None:
        async def elicit(request: dovetail.ElicitRequest) -> Any:
            found = elicitation_handler(request.message, dict, request, None)
            found = await found if inspect.isawaitable(found) else found
            return found if isinstance(found, dovetail.ElicitResult | None) else to_jsonable(found)

        options |= {} if elicitation_handler is None else {"elicitation_handler": elicit}
        if "sampling_handler" in options:
            raise no_equal("Client(sampling_handler=)", PAGE, "dovetail.Client takes a function of one request")
        options |= {"protocol_version": mode} if mode is not None and mode[:2] == "20" else {}
        super().__init__(transport, **{name: each for name, each in options.items() if each is not None})


# ── middleware ──


@dataclasses.dataclass(kw_only=True, frozen=True)
class MiddlewareContext:
    """A message of the client on its way."""

    message: Any
    fastmcp_context: Any = None
    source: str = "client"
    type: str = "request"
    method: str | None = None
    timestamp: datetime = dataclasses.field(default_factory=lambda: datetime.now(UTC))

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def copy(self, **changes: Any) -> "MiddlewareContext":
        return dataclasses.replace(self, **changes)


CallNext = Callable[[MiddlewareContext], Awaitable[Any]]


class Middleware:
    """FastMCP's form of Dovetail's: subclasses have hooks such as `on_call_tool`."""

    def attach(self, server: Any) -> None:
        server.engine.use(self._around)
        server.engine.notification_hooks.append(self._beside)

    async def _around(self, request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
        """Dovetail's middleware: a changed message changes the request, and a list is a list of definitions."""
        given: dict[str, Any] = {name: getattr(request.params, name) for name in request.params.__struct_fields__}
        if isinstance(given.get("arguments"), msgspec.Raw | bytes):
            given["arguments"] = msgspec.json.decode(given["arguments"] or b"{}")
        listed: list[ListResult] = []

        async def go_on(context: MiddlewareContext) -> Any:
            changed = {name: value for name, value in vars(context.message).items() if given.get(name) != value}
            if request.method == "tools/call" and "arguments" in changed:
                changed["arguments"] = msgspec.Raw(encode(changed["arguments"]))
            request.params = msgspec.structs.replace(request.params, **changed)
            result = await call_next(request)
            if not isinstance(result, ListResult):
                return result
            listed[:] = [result]
            return [Shown(each) for each in result.items]

        context = MiddlewareContext(
            message=SimpleNamespace(**copy.deepcopy(given)), fastmcp_context=native_context(), method=request.method
        )
        found = await self(context, go_on)
        if listed and (items := tuple(each.definition for each in found)) != listed[0].items:
            listed[0].items = items
        return listed[0] if listed else found

    async def _beside(self, notification: Any, call_next: Any) -> Any:
        message = SimpleNamespace(**(notification.params or {}))
        await self(MiddlewareContext(message=message, type="notification", method=notification.method), call_next)
        return await call_next(notification)

    async def __call__(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        typed = BY_METHOD.get(context.method or "", "")
        around = "on_request" if context.type == "request" else "on_notification"
        for hook in filter(None, (getattr(self, name, None) for name in (typed, around, "on_message"))):
            call_next = partial(_call, hook, call_next)
        return await call_next(context)


async def _call(hook: Any, call_next: CallNext, context: MiddlewareContext) -> Any:
    return await hook(context, call_next)


# ── stock middleware ──


class LoggingMiddleware(Middleware):
    """Logs each message before and after."""

    name = "fastmcp.requests"
    events: Sequence[str] = ("request_start", "request_success", "request_error")

    def __init__(
        self, logger: logging.Logger | None = None, log_level: int = logging.INFO, include_payloads: bool = False,
        max_payload_length: int = 1000, methods: Sequence[str] | None = None, **_: Any,
    ) -> None:  # fmt: skip
        self.logger, self.log_level, self.methods = logger or logging.getLogger(self.name), log_level, methods
        self._payload_length = max_payload_length if include_payloads else 0

    def write(self, event: str, context: MiddlewareContext, **more: Any) -> None:
        if event in self.events and (self.methods is None or context.method in self.methods):
            shown = {"event": event, "method": context.method, "source": context.source, **more}
            if event == "request_start" and self._payload_length:
                shown["payload"] = json.dumps(vars(context.message), default=str)[: self._payload_length]
            self.logger.log(self.log_level, self.line(shown))

    def line(self, shown: dict[str, Any]) -> str:
        return " ".join(f"{name}={value}" for name, value in shown.items())

    async def on_message(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        self.write("request_start", context)
        start = time.perf_counter()
        try:
            result = await call_next(context)
        except Exception as failure:
            self.write("request_error", context, error=type(failure).__name__)
            raise
        self.write("request_success", context, duration_ms=round((time.perf_counter() - start) * 1000, 2))
        return result


class StructuredLoggingMiddleware(LoggingMiddleware):
    """Logs lines of JSON."""

    def line(self, shown: dict[str, Any]) -> str:
        return json.dumps(shown)


class TimingMiddleware(LoggingMiddleware):
    """Logs how long requests take."""

    name = "fastmcp.timing"
    events = ("request_success", "request_error")


class ErrorHandlingMiddleware(Middleware):
    """Logs errors; Dovetail itself makes safe responses of them."""

    def __init__(
        self, logger: logging.Logger | None = None, include_traceback: bool = False,
        error_callback: Callable[..., Any] | None = None, transform_errors: bool = True,
    ) -> None:  # fmt: skip
        del transform_errors
        self.logger, self._traceback = logger or logging.getLogger("dovetail.compat"), include_traceback
        self._callback = error_callback

    async def on_message(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        try:
            return await call_next(context)
        except Exception as failure:
            self.logger.error("%s failed: %s", context.method, failure, exc_info=self._traceback)
            if self._callback is not None:
                self._callback(failure, context)
            raise


class RateLimitingMiddleware(Middleware):
    """Becomes `Server(rate_limit=)`."""

    def __init__(self, max_requests_per_second: float = 10.0, burst_capacity: int | None = None) -> None:
        del burst_capacity
        by_minute = f"{max(1, round(max_requests_per_second * 60))}/minute"
        self.rate = f"{round(max_requests_per_second)}/second" if max_requests_per_second >= 1 else by_minute

    def attach(self, server: Any) -> None:
        engine = server.engine
        rates = (*engine.options.rate_limit, *parse_rates(self.rate, type(self).__name__))
        engine.options = msgspec.structs.replace(engine.options, rate_limit=rates)
        engine.use(_as_it_is)  # so that the chain is compiled


async def _as_it_is(request: Any, call_next: Any) -> Any:
    return await call_next(request)


class SlidingWindowRateLimitingMiddleware(RateLimitingMiddleware):
    def __init__(self, max_requests: int, window_minutes: int = 1) -> None:
        super().__init__(max_requests / window_minutes / 60)


class ResponseCachingMiddleware(Middleware):
    """Becomes `cache=` of tools, for each caller."""

    def __init__(self, call_tool_settings: Any = None, **_: Any) -> None:
        settings = dict(call_tool_settings or {})
        self._seconds = float(settings.get("ttl", 3600)) if settings.get("enabled", True) else 0
        self._only, self._not = settings.get("included_tools"), settings.get("excluded_tools") or ()

    def attach(self, server: Any) -> None:
        def cached(item: Any) -> Any:
            if getattr(item, "to_result", None) is None or item.route is not None or item.task is not None:
                return item  # no tool, or one that is cached or a task already
            if item.name in self._not or (self._only and item.name not in self._only):
                return item
            return msgspec.structs.replace(item, route=Caching(self._seconds, False), is_limited=True)

        if self._seconds:
            server.change_items(cached)


class ResponseLimitingMiddleware(Middleware):
    """Cuts results of tools that are too long."""

    def __init__(
        self, max_size: int = 1_000_000, truncation_suffix: str = "\n\n[Response truncated due to size limit]",
        tools: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.max_size, self.suffix, self.tools = max_size, truncation_suffix, tools

    async def on_list_tools(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        """A result that was cut fits no schema."""
        found = await call_next(context)
        for each in found:
            if self.tools is None or each.name in self.tools:
                each.definition = msgspec.structs.replace(each.definition, output_schema=None)
        return found

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        is_meant = self.tools is None or context.message.name in self.tools
        if not (is_meant and isinstance(result, ToolResult)):
            return result
        value = None if result.structured is msgspec.UNSET else result.structured
        if len(encode([result.content, value])) <= self.max_size:
            return result
        texts = [each.text for each in result.content if isinstance(each, Text)]
        text = ("\n\n".join(texts) or encode(value).decode()).encode()
        cut = text[: max(self.max_size - len(self.suffix.encode()) - 50, 0)].decode(errors="ignore")
        return ToolResult(content=(Text(cut + self.suffix),), is_error=result.is_error)


class PingMiddleware(Middleware):
    """Not needed: open streams get comments, at `keep_alive=` of `run`."""

    def __init__(self, interval_ms: int = 30_000) -> None:
        pass

    def attach(self, server: Any) -> None:
        pass


class AuthMiddleware(Middleware):
    """Hides what the checks don't allow, and refuses it."""

    def __init__(self, auth: Any) -> None:
        self.auth = auth

    def attach(self, server: Any) -> None:
        self._server = server
        server.guards.append(self.check)  # of what its own functions read
        super().attach(server)

    async def check(self, component: Any) -> None:
        """Raises ProtocolError unless the caller may use it."""
        if not await self._server.may_use(self.auth, component, native_context().principal):
            raise ProtocolError("Authorization failed: insufficient permissions", code=INVALID_PARAMS)

    async def _list(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        caller = native_context().principal
        return [each for each in await call_next(context) if await self._server.may_use(self.auth, each, caller)]

    on_list_tools = on_list_resources = on_list_resource_templates = on_list_prompts = _list

    async def _use(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        named = context.message.uri if context.method == "resources/read" else context.message.name
        await self.check(await self._server.component_of(context.method, named, native_context()))
        return await call_next(context)

    on_call_tool = on_read_resource = on_get_prompt = _use
