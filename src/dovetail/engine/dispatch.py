"""The path of every request: capability check, middleware, handler, encoding, errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail.engine import call_tool
from dovetail.engine.call_tool import EXITS, error_result, is_cancelled, log_failure
from dovetail.engine.request_context import RequestContext
from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, MissingCapability, NotFound, ProtocolError, ToolError
from dovetail.protocol import inbound
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import Result, ToolResult
from dovetail.registry.functions import Invocation
from dovetail.registry.registration import from_official
from dovetail.registry.tools import content_blocks
from dovetail.schema.encode import OutputError, to_jsonable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

Layer = Callable[[RequestContext], Awaitable[Result]]
CallNext = Callable[[Request], Awaitable[Result]]
Middleware = Callable[[Request, CallNext], Awaitable[Result]]

OBSERVERS = ("metrics", "log", "trace")  # from the inside out
log = logging.getLogger("dovetail")


async def handle(engine: "Engine", context: RequestContext) -> bytes:
    """The encoded result of a request. Raises ProtocolError, or CancelledError if the request was cancelled."""
    request = context.request
    shaper = engine.shapers[request.revision.name]
    try:
        if request.method not in engine.unconditional_methods:
            engine.capabilities_for(context).check(request.row, request.revision)
        chain = engine.chain
        result = await (engine.handlers[request.method](engine, context) if chain is None else chain(context))
        return result.encode(shaper)
    except BaseException as failure:
        context.mark_cancelled()  # for functions that still run in threads
        if request.method not in engine.unconditional_methods:  # or its layer says so
            log.debug("%s failed: %s", request.method, failure)
        return encode_failure(engine, context, failure)
    finally:
        if context.before_response:
            await run_before_response(context)


def encode_failure(engine: "Engine", context: RequestContext, failure: BaseException) -> bytes:
    """The encoded result of a call for whose failure there is one. Raises the error of any other."""
    request = context.request
    if isinstance(failure, ToolError) and request.method == "tools/call":  # raised by a middleware
        tool = engine.tools.find(request.params.name, engine.rules_of(context))
        has_schema = tool is not None and tool.definition.output_schema is not None
        return error_result(str(failure), has_schema=has_schema).encode(engine.shapers[request.revision.name])
    raise _as_protocol_error(engine, context, failure) from None


async def run_before_response(context: RequestContext) -> None:
    for callback in context.before_response:  # to which a callback may add others
        try:
            await callback()
        except Exception:
            log.exception("%s: a callback before the response failed", context.request.method)


def _as_protocol_error(engine: "Engine", context: RequestContext, failure: BaseException) -> BaseException:
    """The error for the client. An unexpected failure is logged, and is an internal error without its details."""
    request = context.request
    if isinstance(failure, NotFound):
        return ProtocolError(failure.message, code=request.revision.missing_resource_code, data=failure.data)
    if isinstance(failure, MissingCapability) and request.revision.handshake:  # older clients do not know the code
        return ProtocolError(failure.message, code=INVALID_REQUEST, data=failure.data)
    if isinstance(failure, ProtocolError):
        try:
            failure.data = to_jsonable(failure.data)
        except OutputError as reason:
            log.error("%s failed with data that can't be sent: %s", request.method, reason)
            failure.data = None
        return failure
    if isinstance(failure, ToolError):
        return ProtocolError(str(failure), code=INTERNAL_ERROR)
    is_stray = isinstance(failure, asyncio.CancelledError) and not is_cancelled()  # of another task
    if is_stray or isinstance(failure, (Exception, *EXITS)):
        details = log_failure(engine, context, failure, request.method)
        return ProtocolError(f"Internal error{details}", code=INTERNAL_ERROR)
    return failure


def compile_chain(engine: "Engine", middleware: Sequence[Middleware]) -> Layer:
    """One closure for each middleware around the handlers, the first one outermost; around them rates and audit.

    Outside of these are tasks, what observes (metrics, log, traces), and the tool search.
    """

    def innermost(context: RequestContext) -> Awaitable[Result]:
        handler = engine.handlers.get(context.request.method)
        if handler is None:
            raise inbound.method_not_found(context.request.method)
        return handler(engine, context)

    chain: Layer = innermost
    for each in reversed(middleware):
        chain = _wrap(engine, each, chain)
    if engine.options.rate_limit:
        chain = lazy.rate_limits.rate_limited(engine, chain)
    if engine.audit is not None:
        chain = lazy.audit.audited(engine.audit, chain)
    if engine.tasks is not None:
        chain = engine.tasks.layer(chain)
    for kind in OBSERVERS:
        if kind in engine.observers:
            chain = engine.observers[kind](engine, chain)
    return chain if engine.search is None else lazy.tool_search.unwrap_calls(engine, chain)


def _wrap(engine: "Engine", middleware: Middleware, inner: Layer) -> Layer:
    invocation = Invocation(function=middleware, is_async=True, in_thread=False)

    async def layer(context: RequestContext) -> Result:
        given: Result | None = None

        async def call_next(request: Request) -> Result:
            nonlocal given
            context.request = request
            if context.server_requests is not None:  # the middleware makes the request twice
                context.server_requests.restart()
            result = await inner(context)
            given = result.decoded() if isinstance(result, ToolResult) else result
            return given

        context.original_params = context.original_params or context.request.params
        work = middleware(context.request, call_next)
        if call_tool.run_in_context is not None:  # for `get_context`
            work = call_tool.run_in_context(engine, context, invocation, None, work)
        made = await work
        if made is given and given is not None:
            return given
        made = from_official(made)
        if not hasattr(made, "encode") or isinstance(made, str):
            raise TypeError(f"a middleware returned {type(made).__name__}; return what call_next gives, or a result")
        return replace(made, content=content_blocks(made.content)) if isinstance(made, ToolResult) else made

    return layer
