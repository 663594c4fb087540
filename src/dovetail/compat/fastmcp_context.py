"""FastMCP's Context, what its dependencies inject, its client, and its middleware."""

import copy
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
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

import dovetail
from dovetail import ProtocolError, Request, compat
from dovetail.compat import no_equal
from dovetail.compat.shared import AccessToken, check_keywords, get_access_token, given, outcome
from dovetail.engine.context import request_of
from dovetail.engine.current_context import get_context as native_context
from dovetail.engine.hooks import BY_METHOD, chain
from dovetail.errors import INVALID_PARAMS
from dovetail.protocol import results, types
from dovetail.protocol.jsonrpc import encode
from dovetail.registry.dependencies import Marker
from dovetail.registry.registration import AccessRule, Caching, parse_rates
from dovetail.registry.tools import Tool, shape_unstructured
from dovetail.schema.encode import encode_json, to_jsonable

T = TypeVar("T")
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


# ── what functions return ──


class Message:
    """A message of a prompt: `Message(content, role="user")`."""

    def __new__(cls, content: Any, role: types.Role = "user") -> Any:
        return types.Message(role, content if isinstance(content, str) else blocks(content)[0])


class PromptResult:
    def __new__(cls, messages: Any, description: str | None = None, meta: Any = None) -> Any:
        listed = messages if isinstance(messages, list | tuple) else [messages]
        made = [each if isinstance(each, types.Message) else Message(each) for each in listed]
        return results.PromptResult(messages=made, description=description, meta=meta)


class _ResultType(type(results.ToolResult)):  # type: ignore[misc]  # its metaclass
    """Makes the peer's arguments those of our own ToolResult; content may be a value of any kind."""

    def __call__(
        cls, content: Any = None, structured_content: Any = None, meta: Any = None, is_error: bool = False
    ) -> Any:
        if content is None and structured_content is None:
            raise ValueError("Either content or structured_content must be provided")
        plain = UNSET if structured_content is None else to_jsonable(structured_content)
        shown = blocks(plain if content is None else content)
        return super().__call__(content=shown, structured=plain, meta=meta, is_error=is_error)


class ToolResult(results.ToolResult, metaclass=_ResultType, frozen=True):
    """The whole result of a tool."""


class ResourceContent:
    """Contents of a resource, whose URI is the one that is read; JSON for what is neither text nor bytes."""

    def __new__(cls, content: Any, mime_type: str | None = None, meta: Any = None) -> Any:
        known: Any = {str: "text/plain", bytes: "application/octet-stream"}
        mime_type = mime_type or known.get(type(content), "application/json")
        if isinstance(content, bytes):
            return types.ResourceContents("", mime_type, blob=content, meta=meta)
        return types.ResourceContents("", mime_type, content if isinstance(content, str) else text(content), meta=meta)


class ResourceResult:
    """What a resource function may return."""

    def __new__(cls, contents: Any, meta: Any = None) -> Any:  # noqa: ARG004
        listed = contents if isinstance(contents, list) else [contents]
        return [each if isinstance(each, types.ResourceContents) else ResourceContent(each) for each in listed]


def contents(uri: str, value: Any) -> Any:
    """What the function of a resource has returned as ours: other values are JSON text, of the resource's own type."""
    listed = value if isinstance(value, list) else [value]
    if any(isinstance(each, types.ResourceContents) for each in listed):
        _, context = request_of(native_context())
        uri = getattr(context.request.params, "uri", uri)
        return [replace(each, uri=each.uri or uri) for each in listed]
    return value if isinstance(value, str | bytes) or is_content(value) else text(value)


def text(value: Any) -> str:
    return encode_json(value).decode()


def is_content(value: Any) -> bool:
    """Whether a value is content, a list with content, or a result of mcp_types."""
    if isinstance(value, list | tuple):
        return any(map(is_content, value))
    return isinstance(value, types.CONTENT_TYPES) or type(value).__module__.startswith("mcp_types")


def blocks(value: Any) -> tuple[types.Content, ...]:
    """Content for a value: none for None, JSON for what is neither text nor content."""
    if value is None or value == []:
        return ()
    if isinstance(value, bytes):
        return (types.Text(value.decode(errors="replace")),)
    if isinstance(value, Mapping):  # also one that looks like a result
        return (types.Text(text(value)),)
    return tuple(shape_unstructured(value).content)


def peer_tool(tool: Tool) -> Tool:
    """The tool with FastMCP's results: {"result": value} in every revision, and values that do not fit as they are."""
    schema = tool.output_schema or {"type": "object"}
    if wraps := schema.get("type") != "object" and "properties" not in schema:
        inner = {key: each for key, each in schema.items() if key != "$defs"}
        whole: dict[str, Any] = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
        whole |= {"x-fastmcp-wrap-result": True, **given(**{"$defs": schema.get("$defs")})}
        tool = changed(tool, output_schema=whole, meta={**(tool.definition.meta or {}), types.WRAPPED_KEY: True})

    def to_result(value: Any) -> results.ToolResult:
        if isinstance(value, results.ToolResult) or is_content(value):
            return shape_unstructured(value)
        plain = UNSET if isinstance(value, bytes) else to_jsonable(value)
        structured = {"result": plain} if wraps else plain if isinstance(plain, dict) else UNSET
        return results.ToolResult(content=blocks(value), structured=structured, text_copy=False)

    return replace(tool, to_result=to_result)


def changed(item: Any, **fields: Any) -> Any:
    """An item with another definition."""
    label = {"label": f"tool {fields['name']}"} if isinstance(item, Tool) and "name" in fields else {}
    return replace(item, definition=replace(item.definition, **fields), **label)


# ── the context ──


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
        async def read(context: MiddlewareContext[Any]) -> Any:
            return results.ReadResourceResult(await super(Context, self).read_resource(str(context.message.uri)))

        message = SimpleNamespace(uri=str(uri))
        context = MiddlewareContext(message=message, fastmcp_context=self, method="resources/read")
        found = (await chain(self.fastmcp.hooks, read)(context)).items
        parts = ((each.blob if each.text is None else each.text, each.mime_type, each.meta) for each in found)
        shown = [SimpleNamespace(content=content, mime_type=kind, meta=meta) for content, kind, meta in parts]
        return SimpleNamespace(contents=shown)


class Shown:
    """The definition of a tool, resource or prompt, with its tags; None of what does not exist."""

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.tags = set() if definition is None else set(types.tags_of(definition))

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


def _token() -> AccessToken:
    if (token := get_access_token()) is None:
        raise RuntimeError("No access token found: the caller is not authenticated")
    return token


CurrentContext, CurrentFastMCP, CurrentRequest, CurrentHeaders, CurrentAccessToken = (
    partial(Marker, each) for each in (get_context, get_server, get_http_request, get_http_headers, _token)
)


def TokenClaim(name: str) -> Any:
    return Marker(lambda: _token().claims[name])


class Progress:
    """Counts up, and reports it: `progress: Progress = Progress()`; each call gets one of its own."""

    dependency, use_cache = staticmethod(lambda: Progress()), True  # as Depends has them
    current, total = 0, 1
    message: str | None = None

    async def set_total(self, total: int) -> None:
        await self._report(total=total)

    async def increment(self, amount: int = 1) -> None:
        await self._report(current=self.current + amount)

    async def set_message(self, message: str | None) -> None:
        await self._report(message=message)

    async def _report(self, **changes: Any) -> None:
        vars(self).update(changes)
        await get_context().report_progress(self.current, self.total, self.message)


# ── middleware ──


class MiddlewareContext(msgspec.Struct, Generic[T], kw_only=True, frozen=True):
    """A message of the client on its way."""

    message: T
    fastmcp_context: Any = None
    source: str = "client"
    type: str = "request"
    method: str | None = None
    timestamp: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))

    def copy(self, **changes: Any) -> "MiddlewareContext[T]":
        return replace(self, **changes)


CallNext = Callable[[MiddlewareContext[Any]], Awaitable[Any]]


class Middleware:
    """FastMCP's form of Dovetail's: subclasses have hooks such as `on_call_tool`."""

    def attach(self, server: Any) -> None:
        server.hooks.append(self)
        server.engine.use(self._around)
        server.engine.notification_hooks.append(self._beside)

    async def _around(self, request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
        """Dovetail's middleware: a changed message changes the request, and a list is a list of definitions."""
        given: dict[str, Any] = {name: getattr(request.params, name) for name in request.params.__struct_fields__}
        if isinstance(given.get("arguments"), msgspec.Raw | bytes):
            given["arguments"] = msgspec.json.decode(given["arguments"] or b"{}")
        listed: list[results.ListResult] = []

        async def go_on(context: MiddlewareContext[Any]) -> Any:
            changed = {name: value for name, value in vars(context.message).items() if given.get(name) != value}
            if request.method == "tools/call" and "arguments" in changed:
                changed["arguments"] = msgspec.Raw(encode(changed["arguments"]))
            request.params = replace(request.params, **changed)
            result = await call_next(request)
            if not isinstance(result, results.ListResult):
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

    async def __call__(self, context: MiddlewareContext[Any], call_next: CallNext) -> Any:
        around = "on_request" if context.type == "request" else "on_notification"
        names = ("on_message", around, BY_METHOD.get(context.method or "", ""))
        return await chain([getattr(self, name) for name in names if hasattr(self, name)], call_next)(context)


# ── stock middleware ──


class LoggingMiddleware(Middleware):
    """Logs a line for each message that was handled, and calls the `error_callback` of those that failed."""

    name, only_errors = "fastmcp.requests", False

    def __init__(
        self, logger: logging.Logger | None = None, log_level: int = logging.INFO, include_payloads: bool = False,
        max_payload_length: int = 1000, methods: Sequence[str] | None = None, include_traceback: bool = False,
        error_callback: Callable[..., Any] | None = None, **_: Any,
    ) -> None:  # fmt: skip
        self.logger, self.log_level, self.methods = logger or logging.getLogger(self.name), log_level, methods
        self._payload_length = max_payload_length if include_payloads else 0
        self._traceback, self._callback = include_traceback, error_callback or (lambda *_: None)

    async def on_message(self, context: MiddlewareContext[Any], call_next: CallNext) -> Any:
        shown = {"event": "request_success", "method": context.method, "source": context.source}
        if self._payload_length:
            shown["payload"] = json.dumps(vars(context.message), default=str)[: self._payload_length]
        start, level = time.perf_counter(), logging.NOTSET if self.only_errors else self.log_level
        try:
            return await call_next(context)
        except Exception as failure:
            shown |= {"event": "request_error", "error": f"{type(failure).__name__}: {failure}"}
            level = max(level, logging.ERROR)
            self._callback(failure, context)
            raise
        finally:
            shown["duration_ms"] = str(round((time.perf_counter() - start) * 1000, 2))
            if level and (self.methods is None or context.method in self.methods):
                self.logger.log(level, self.line(shown), exc_info=self._traceback and "error" in shown)

    def line(self, shown: Mapping[str, Any]) -> str:
        return " ".join(f"{name}={value}" for name, value in shown.items())


class StructuredLoggingMiddleware(LoggingMiddleware):
    """Logs lines of JSON."""

    def line(self, shown: Mapping[str, Any]) -> str:
        return json.dumps(shown)


class TimingMiddleware(LoggingMiddleware):
    name = "fastmcp.timing"


class ErrorHandlingMiddleware(LoggingMiddleware):
    """Logs errors alone; Dovetail itself makes safe responses of them."""

    name, only_errors = "fastmcp.errors", True


DetailedTimingMiddleware = TimingMiddleware


class RateLimitingMiddleware(Middleware):
    """Becomes `Server(rate_limit=)`, for all callers together."""

    def __init__(self, max_requests_per_second: float = 10.0, burst_capacity: int | None = None, **others: Any) -> None:
        del burst_capacity
        check_keywords(others, (), type(self).__name__, PAGE)
        by_minute = f"{max(1, round(max_requests_per_second * 60))}/minute"
        self.rate = f"{round(max_requests_per_second)}/second" if max_requests_per_second >= 1 else by_minute

    def attach(self, server: Any) -> None:
        engine = server.engine
        rates = (*engine.options.rate_limit, *parse_rates(self.rate, type(self).__name__))
        engine.options = replace(engine.options, rate_limit=rates)
        super().attach(server)  # so that the chain is compiled


class SlidingWindowRateLimitingMiddleware(RateLimitingMiddleware):
    def __init__(self, max_requests: int, window_minutes: int = 1, **others: Any) -> None:
        super().__init__(max_requests / window_minutes / 60, **others)


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
            return replace(item, route=Caching(self._seconds, False), is_limited=True)

        if self._seconds:
            server.change_items(cached)


class ResponseLimitingMiddleware(Middleware):
    """Cuts results of tools that are too long; they then fit no schema."""

    def __init__(
        self, max_size: int = 1_000_000, truncation_suffix: str = "\n\n[Response truncated due to size limit]",
        tools: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.max_size, self.suffix, self.tools = max_size, truncation_suffix, tools

    async def on_list_tools(self, context: MiddlewareContext[Any], call_next: CallNext) -> Any:
        found = await call_next(context)
        for each in found:
            if self.tools is None or each.name in self.tools:
                each.definition = replace(each.definition, output_schema=None)
        return found

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext) -> Any:
        result = await call_next(context)
        is_meant = self.tools is None or context.message.name in self.tools
        if not (is_meant and isinstance(result, results.ToolResult)):
            return result
        value = encode(result.structured_content)
        if len(encode(result.content)) + len(value) <= self.max_size:
            return result
        text = "\n\n".join(each.text for each in result.content if isinstance(each, types.Text)) or value.decode()
        cut = text.encode()[: max(self.max_size - len(self.suffix.encode()) - 50, 0)].decode(errors="ignore")
        return results.ToolResult(content=(types.Text(cut + self.suffix),), is_error=result.is_error)


def PingMiddleware(interval_ms: int = 30_000) -> Middleware:  # noqa: ARG001
    """Nothing: open streams get comments, at `keep_alive=` of `run`."""
    return Middleware()


def DereferenceRefsMiddleware() -> Middleware:
    """Nothing: schemas are sent without references."""
    return Middleware()


class AuthMiddleware(Middleware):
    """Hides what the checks don't allow, and refuses it."""

    def __init__(self, auth: Any) -> None:
        self.auth = auth

    def attach(self, server: Any) -> None:
        self._server = server
        server.change_items(self._guarded)  # also where the server is mounted
        super().attach(server)

    def _guarded(self, item: Any) -> Any:
        rule: Any = item.access or AccessRule()

        async def authorize(caller: Any) -> Any:
            is_allowed = rule.authorize is None or await rule.authorize(caller)
            return is_allowed and await compat.fastmcp_auth.may_use(self.auth, Shown(item.definition), caller)

        return replace(item, access=AccessRule(rule.scopes, authorize))

    async def _list(self, context: MiddlewareContext[Any], call_next: CallNext) -> Any:
        caller = native_context().principal
        return [each for each in await call_next(context) if await compat.fastmcp_auth.may_use(self.auth, each, caller)]

    on_list_tools = on_list_resources = on_list_resource_templates = on_list_prompts = _list

    async def _use(self, context: MiddlewareContext[Any], call_next: CallNext) -> Any:
        named = context.message.uri if context.method == "resources/read" else context.message.name
        ctx = native_context()
        component = await self._server.component_of(context.method, named, ctx)
        if not await compat.fastmcp_auth.may_use(self.auth, component, ctx.principal):
            raise ProtocolError("Authorization failed: insufficient permissions", code=INVALID_PARAMS)
        return await call_next(context)

    on_call_tool = on_read_resource = on_get_prompt = _use
