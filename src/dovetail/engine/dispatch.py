"""The one path of every request: offer check, middleware, handler, encoding. Errors come out as ProtocolError."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from dovetail.engine.exchange import Exchange
from dovetail.engine.handlers import HANDLERS, failed
from dovetail.errors import INTERNAL_ERROR, NotFound, ProtocolError, ToolError
from dovetail.protocol import inbound
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import Result
from dovetail.protocol.revisions import Revision

if TYPE_CHECKING:
    from dovetail.engine.core import Engine

Step = Callable[[Exchange], Awaitable[Result]]
CallNext = Callable[[Request], Awaitable[Result]]
Middleware = Callable[[Request, CallNext], Awaitable[Result]]

log = logging.getLogger("dovetail")


async def handle(engine: "Engine", exchange: Exchange) -> bytes:
    """The encoded result of a request. Raises ProtocolError."""
    request = exchange.request
    try:
        engine.offer.check(request.row, request.revision)
        result = await _run(engine, exchange)
        body = result.encode(engine.shapers[request.revision.name])
    except NotFound as failure:
        raise _missing(failure, request.revision) from None
    except ProtocolError:
        raise
    except Exception:
        log.exception("%s failed", request.method)
        raise ProtocolError("Internal error", code=INTERNAL_ERROR) from None
    finally:
        for finish in exchange.finish:
            await finish()
    return body


async def _run(engine: "Engine", exchange: Exchange) -> Result:
    try:
        return await engine.chain(exchange)
    except ToolError as failure:  # a middleware's: it means the same as in the tool itself
        if exchange.request.method == "tools/call":
            return failed(str(failure))
        raise ProtocolError(str(failure), code=INTERNAL_ERROR) from None


def _missing(failure: NotFound, revision: Revision) -> ProtocolError:
    return ProtocolError(failure.message, code=revision.missing_resource_code, data=failure.data)


def compile_chain(engine: "Engine", middleware: Sequence[Middleware]) -> Step:
    """One closure for each middleware, the first one outermost; without any, the handlers themselves."""

    async def innermost(exchange: Exchange) -> Result:
        handler = HANDLERS.get(exchange.request.method)
        if handler is None:
            raise inbound.method_not_found(exchange.request.method)
        return await handler(engine, exchange)

    step: Step = innermost
    for each in reversed(middleware):
        step = _wrap(each, step)
    return step


def _wrap(middleware: Middleware, inner: Step) -> Step:
    async def step(exchange: Exchange) -> Result:
        async def call_next(request: Request) -> Result:
            exchange.request = request
            return await inner(exchange)

        return await middleware(exchange.request, call_next)

    return step
