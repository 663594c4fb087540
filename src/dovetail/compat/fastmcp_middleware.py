"""FastMCP's middleware on Dovetail's, and the stock ones."""

import copy
import dataclasses
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec

from dovetail import ProtocolError, Request
from dovetail.compat import no_equal
from dovetail.compat.fastmcp_context import PAGE, Shown
from dovetail.engine.current_context import get_context as native_context
from dovetail.engine.hooks import BY_METHOD
from dovetail.errors import INVALID_PARAMS
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.results import ListResult, ToolResult
from dovetail.protocol.types import Text
from dovetail.registry.registration import Caching, parse_rates


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

    def __init__(
        self, logger: logging.Logger | None = None, log_level: int = logging.INFO, include_payloads: bool = False,
        max_payload_length: int = 1000, methods: Sequence[str] | None = None, **_: Any,
    ) -> None:  # fmt: skip
        self.logger, self.log_level, self.methods = logger or logging.getLogger("fastmcp.requests"), log_level, methods
        self.include_payloads, self.max_payload_length = include_payloads, max_payload_length

    def write(self, event: str, context: MiddlewareContext, **more: Any) -> None:
        if self.methods is None or context.method in self.methods:
            shown = {"event": event, "method": context.method, "source": context.source, **more}
            if self.include_payloads and event == "request_start":
                shown["payload"] = json.dumps(vars(context.message), default=str)[: self.max_payload_length]
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

    def __init__(self, logger: logging.Logger | None = None, log_level: int = logging.INFO) -> None:
        super().__init__(logger or logging.getLogger("fastmcp.timing"), log_level)

    def write(self, event: str, context: MiddlewareContext, **more: Any) -> None:
        if event != "request_start":
            super().write(event, context, **more)


class ErrorHandlingMiddleware(Middleware):
    """Logs and counts errors; Dovetail itself makes safe responses of them."""

    def __init__(
        self, logger: logging.Logger | None = None, include_traceback: bool = False,
        error_callback: Callable[..., Any] | None = None, transform_errors: bool = True,
    ) -> None:  # fmt: skip
        self.logger, self._traceback = logger or logging.getLogger("fastmcp.errors"), include_traceback
        self._callback, self._counts = error_callback, dict[str, int]()
        del transform_errors

    async def on_message(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        try:
            return await call_next(context)
        except Exception as failure:
            name = f"{type(failure).__name__}:{context.method}"
            self._counts[name] = self._counts.get(name, 0) + 1
            self.logger.error("%s failed: %s", context.method, failure, exc_info=self._traceback)
            if self._callback is not None:
                self._callback(failure, context)
            raise

    def get_error_stats(self) -> dict[str, int]:
        return dict(self._counts)


class RateLimitingMiddleware(Middleware):
    """Becomes `Server(rate_limit=)`."""

    def __init__(
        self, max_requests_per_second: float = 10.0, burst_capacity: int | None = None, get_client_id: Any = None,
        global_limit: bool = False,
    ) -> None:  # fmt: skip
        del burst_capacity, global_limit
        if get_client_id is not None:
            raise no_equal("RateLimitingMiddleware(get_client_id=)", PAGE, 'rate_limit="10/second per principal"')
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
    def __init__(self, max_requests: int, window_minutes: int = 1, get_client_id: Any = None) -> None:
        super().__init__(max_requests / window_minutes / 60, None, get_client_id)


class ResponseCachingMiddleware(Middleware):
    """Becomes `cache=` of tools, for each caller."""

    def __init__(self, call_tool_settings: Any = None, **others: Any) -> None:
        if others.get("cache_storage") is not None:
            raise no_equal("ResponseCachingMiddleware(cache_storage=)", PAGE, "results are cached in each process")
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
            if self._cuts(each.name):
                each.definition = msgspec.structs.replace(each.definition, output_schema=None)
        return found

    def _cuts(self, name: str) -> bool:
        return self.tools is None or name in self.tools

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        if not isinstance(result, ToolResult) or not self._cuts(context.message.name):
            return result
        text = "\n\n".join(each.text for each in result.content if isinstance(each, Text))
        value = result.structured
        text = text or (value if isinstance(value, str) else "" if value is msgspec.UNSET else encode(value).decode())
        if len(encode([result.content, None if value is msgspec.UNSET else value])) <= self.max_size:
            return result
        cut = text.encode()[: max(self.max_size - len(self.suffix.encode()) - 50, 0)].decode(errors="ignore")
        return ToolResult(content=(Text(cut + self.suffix),), is_error=result.is_error)


class PingMiddleware(Middleware):
    """Not needed: open streams get comments, at `keep_alive=` of `run`."""

    def __init__(self, interval_ms: int = 30_000) -> None:
        if interval_ms <= 0:
            raise ValueError("interval_ms must be positive")

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
        if not await self._may_use(component):
            raise ProtocolError("Authorization failed: insufficient permissions", code=INVALID_PARAMS)

    async def _may_use(self, component: Any) -> bool:
        return bool(await self._server.may_use(self.auth, component, native_context().principal))

    async def _list(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return [each for each in await call_next(context) if await self._may_use(each)]

    on_list_tools = on_list_resources = on_list_resource_templates = on_list_prompts = _list

    async def _use(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        named = context.message.uri if context.method == "resources/read" else context.message.name
        await self.check(await self._server.component_of(context.method, named, native_context()))
        return await call_next(context)

    on_call_tool = on_read_resource = on_get_prompt = _use
