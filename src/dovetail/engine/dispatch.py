"""The one path of every request: offer check, middleware, handler, encoding. Errors come out as ProtocolError."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from dovetail import engine as lazy
from dovetail.engine.call_tool import EXITS, failed, is_cancelled, log_failure
from dovetail.engine.handlers import HANDLERS
from dovetail.engine.request_context import RequestContext
from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, MissingCapability, NotFound, ProtocolError, ToolError
from dovetail.protocol import inbound
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import Result, ToolResult
from dovetail.schema.encode import OutputError, to_jsonable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

Step = Callable[[RequestContext], Awaitable[Result]]
CallNext = Callable[[Request], Awaitable[Result]]
Middleware = Callable[[Request, CallNext], Awaitable[Result]]

log = logging.getLogger("dovetail")


async def handle(engine: "Engine", context: RequestContext) -> bytes:
    """The encoded result of a request. Raises ProtocolError, or CancelledError if the request was cancelled."""
    request = context.request
    shaper = engine.shapers[request.revision.name]
    try:
        if request.method not in engine.open_methods:
            engine.capabilities_for(context).check(request.row, request.revision)
        chain = engine.chain
        result = await (HANDLERS[request.method](engine, context) if chain is None else chain(context))
        return result.encode(shaper)
    except BaseException as failure:
        context.cancelled()  # for threads that still run
        if isinstance(failure, ToolError) and request.method == "tools/call":  # a middleware's, meant like the tool's
            return failed(str(failure)).encode(shaper)
        raise _as_told(engine, context, failure) from None
    finally:
        if context.finish:
            await _finish(context)


async def _finish(context: RequestContext) -> None:
    """What has to happen before the answer goes out; what happens may add to it."""
    for finish in context.finish:
        try:
            await finish()
        except Exception:
            log.exception("%s: something that belongs before the answer failed", context.request.method)


def _as_told(engine: "Engine", context: RequestContext, failure: BaseException) -> BaseException:
    """What the client hears of a failure: what was said on purpose. The rest is logged."""
    request = context.request
    if isinstance(failure, NotFound):
        return ProtocolError(failure.message, code=request.revision.missing_resource_code, data=failure.data)
    if isinstance(failure, MissingCapability) and request.revision.handshake:  # whose clients do not know its code
        return ProtocolError(failure.message, code=INVALID_REQUEST, data=failure.data)
    if isinstance(failure, ProtocolError):
        return _with_plain_data(failure, request)
    if isinstance(failure, ToolError):
        return ProtocolError(str(failure), code=INTERNAL_ERROR)
    stray = isinstance(failure, asyncio.CancelledError) and not is_cancelled()  # from inside: nobody cancelled us
    if stray or isinstance(failure, (Exception, *EXITS)):
        details = log_failure(engine, context, failure, request.method)
        return ProtocolError(f"Internal error{details}", code=INTERNAL_ERROR)
    return failure


def _with_plain_data(failure: ProtocolError, request: Request) -> ProtocolError:
    """Its data as JSON; what can't be JSON stays here, and the log says so."""
    if failure.data is not None:
        try:
            failure.data = to_jsonable(failure.data)
        except OutputError as reason:
            log.error("%s failed with data that can't be sent: %s", request.method, reason)
            failure.data = None
    return failure


def compile_chain(engine: "Engine", middleware: Sequence[Middleware]) -> Step:
    """One closure for each middleware, the first one outermost, around the handlers; then rates and audit."""

    def innermost(context: RequestContext) -> Awaitable[Result]:
        handler = HANDLERS.get(context.request.method)
        if handler is None:
            raise inbound.method_not_found(context.request.method)
        return handler(engine, context)

    step: Step = innermost
    for each in reversed(middleware):
        step = _wrap(each, step)
    if engine.options.rate_limit:
        step = lazy.rate_limits.rate_limited(engine, step)
    return step if engine.audit is None else lazy.audit.audited(engine.audit, step)


def _wrap(middleware: Middleware, inner: Step) -> Step:
    async def step(context: RequestContext) -> Result:
        async def call_next(request: Request) -> Result:
            context.request = request
            if context.client_requests is not None:  # it makes the request twice
                context.client_requests.begin_again()
            result = await inner(context)
            return result.opened() if isinstance(result, ToolResult) else result

        context.keep_arrived()
        return await middleware(context.request, call_next)

    return step
