"""FastMCP's middleware on Dovetail's, and the stock ones."""

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec

from dovetail import ProtocolError, ToolError
from dovetail.compat import no_equal
from dovetail.compat.fastmcp_auth import AuthContext, run_auth_checks
from dovetail.compat.fastmcp_context import PAGE
from dovetail.compat.shared import AccessToken
from dovetail.engine.current_context import get_context
from dovetail.engine.dispatch import compile_chain
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.results import ListResult, ToolResult
from dovetail.protocol.types import Text, tags_of
from dovetail.registry.registration import Caching, parse_rates

HOOKS = {
    "initialize": "on_initialize", "server/discover": "on_discover", "tools/call": "on_call_tool",
    "resources/read": "on_read_resource", "prompts/get": "on_get_prompt", "tools/list": "on_list_tools",
    "resources/list": "on_list_resources", "resources/templates/list": "on_list_resource_templates",
    "prompts/list": "on_list_prompts",
}  # fmt: skip


@dataclasses.dataclass(kw_only=True, frozen=True)
class MiddlewareContext:
    """A request on its way."""

    message: Any
    fastmcp_context: Any = None
    source: str = "client"
    type: str = "request"
    method: str | None = None
    timestamp: datetime = dataclasses.field(default_factory=lambda: datetime.now(UTC))

    def __class_getitem__(cls, _: Any) -> type:
        return cls

    def copy(self, **changes: Any) -> "MiddlewareContext":
        return dataclasses.replace(self, **changes)


CallNext = Callable[[MiddlewareContext], Awaitable[Any]]


class Middleware:
    """Subclasses have hooks: `on_message`, `on_request`, `on_call_tool` …"""

    def attach(self, server: Any) -> None:
        """Become middleware of a server."""

        async def middleware(request: Any, call_next: Any) -> Any:
            params = msgspec.to_builtins(request.params)
            if isinstance(arguments := getattr(request.params, "arguments", None), bytes | msgspec.Raw):
                params["arguments"] = msgspec.json.decode(arguments)
            message = SimpleNamespace(**params)

            async def go_on(context: MiddlewareContext) -> Any:
                if vars(context.message) != params or context.message is not message:
                    changed = {**vars(context.message)}
                    if "arguments" in changed and request.method == "tools/call":
                        changed["arguments"] = msgspec.Raw(encode(changed["arguments"]))
                    known = {each: value for each, value in changed.items() if hasattr(request.params, each)}
                    request.params = msgspec.structs.replace(request.params, **known)
                result = await call_next(request)
                return _Listed(result) if isinstance(result, ListResult) else result

            ctx = get_context()
            found = await self(MiddlewareContext(message=message, fastmcp_context=ctx, method=request.method), go_on)
            return found.result() if isinstance(found, _Listed) else _as_result(found, request, self)

        server.engine.use(middleware)

    async def __call__(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        names = [HOOKS.get(context.method or ""), "on_request" if context.type == "request" else "on_notification"]
        handler = call_next
        for name in [each for each in (*names, "on_message") if each]:
            handler = _bound(getattr(self, name), handler)
        return await handler(context)

    async def _pass(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await call_next(context)

    on_message = on_request = on_notification = on_initialize = on_discover = on_call_tool = _pass
    on_read_resource = on_get_prompt = on_list_tools = on_list_resources = _pass
    on_list_resource_templates = on_list_prompts = _pass


def _bound(hook: Any, call_next: CallNext) -> CallNext:
    return lambda context: hook(context, call_next)


class _Listed(list[Any]):
    """The items of a list result."""

    def __init__(self, result: ListResult) -> None:
        super().__init__(result.items)
        self._result = result

    def result(self) -> ListResult:
        if tuple(self) != self._result.items:
            self._result.items = self
        return self._result


def _as_result(found: Any, request: Any, middleware: Any) -> Any:
    if isinstance(found, Sequence) and not isinstance(found, str):
        raise TypeError(f"{type(middleware).__name__}: return the list that call_next gave, with other items in it")
    del request
    return found


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


class RetryMiddleware(Middleware):
    """Makes requests again that failed."""

    def __init__(
        self, max_retries: int = 3, base_delay: float = 1.0, max_delay: float = 60.0, backoff_multiplier: float = 2.0,
        retry_exceptions: tuple[type[Exception], ...] = (ConnectionError, TimeoutError), logger: Any = None,
    ) -> None:  # fmt: skip
        self._delays = [min(base_delay * backoff_multiplier**each, max_delay) for each in range(max_retries)]
        self._exceptions = retry_exceptions
        del logger

    async def on_request(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        for delay in self._delays:
            try:
                return await call_next(context)
            except self._exceptions:
                await asyncio.sleep(delay)
        return await call_next(context)


class RateLimitingMiddleware(Middleware):
    """Becomes `Server(rate_limit=)`."""

    def __init__(
        self, max_requests_per_second: float = 10.0, burst_capacity: int | None = None, get_client_id: Any = None,
        global_limit: bool = False,
    ) -> None:  # fmt: skip
        del burst_capacity
        if get_client_id is not None:
            raise no_equal("RateLimitingMiddleware(get_client_id=)", PAGE, 'rate_limit="10/second per principal"')
        a_minute = max(1, round(max_requests_per_second * 60))
        rate = f"{round(max_requests_per_second)}/second" if max_requests_per_second >= 1 else f"{a_minute}/minute"
        self.rate = rate if global_limit else f"{rate} per principal"

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
            is_tool = hasattr(item, "to_result") and item.route is None and item.task is None
            if not is_tool or not self._seconds or item.name in self._not or item.name not in (self._only or [item.name]):
                return item
            return msgspec.structs.replace(item, route=Caching(self._seconds, False), is_limited=True)

        server.change_items(cached)


class ResponseLimitingMiddleware(Middleware):
    """Cuts results of tools that are too long."""

    def __init__(
        self, max_size: int = 1_000_000, truncation_suffix: str = "\n\n[Response truncated due to size limit]",
        tools: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.max_size, self.suffix, self.tools = max_size, truncation_suffix, tools

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        if not isinstance(result, ToolResult) or (self.tools is not None and context.message.name not in self.tools):
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


class AuthorizationError(ToolError):
    """Access is denied."""


class AuthMiddleware(Middleware):
    """Hides what the checks don't allow, and refuses it."""

    def __init__(self, auth: Any) -> None:
        self.auth = auth

    def attach(self, server: Any) -> None:
        self._server = server
        super().attach(server)

    async def _may_use(self, definition: Any) -> bool:
        principal = get_context().principal
        if principal is None and self._server.trusts_caller:
            return True
        names = {"tags": set(tags_of(definition)), "name": definition.name, "description": definition.description}
        component = SimpleNamespace(**names, **({"input_schema": {}} if hasattr(definition, "input_schema") else {}))
        return await run_auth_checks(self.auth, AuthContext(AccessToken.of(principal), component))

    async def _list(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        found = await call_next(context)
        found[:] = [each for each in found if await self._may_use(each)]
        return found

    on_list_tools = on_list_resources = on_list_resource_templates = on_list_prompts = _list

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await self._check(self._server.engine.tools.find(context.message.name), context, call_next)

    async def on_get_prompt(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await self._check(self._server.engine.prompts.find(context.message.name), context, call_next)

    async def on_read_resource(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        resources = self._server.engine.resources
        found = resources.direct.find(context.message.uri) or next(
            (each for each in resources.templates.snapshot.items if each.match(context.message.uri) is not None), None
        )
        return await self._check(found, context, call_next)

    async def _check(self, item: Any, context: MiddlewareContext, call_next: CallNext) -> Any:
        if item is not None and not await self._may_use(item.definition):
            raise ProtocolError("Authorization failed: insufficient permissions", code=-32602)
        return await call_next(context)


__all__ = ["compile_chain"]
