"""`get_context`: the `Context` of the call that runs, for code that does not get it as a parameter."""

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.engine import call_tool
from dovetail.engine.context import Context
from dovetail.engine.request_context import RequestContext
from dovetail.registry.functions import Invocation

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

T = TypeVar("T")

# A list has the arguments of a Context, and itself once a function has asked for it.
_current: ContextVar[Context | list[Any] | None] = ContextVar("dovetail_context", default=None)


def get_context() -> Context:
    """The `Context` of the tool, prompt, resource, completion or middleware that runs; raises LookupError elsewhere."""
    ctx = _current.get()
    if ctx is None:
        raise LookupError(
            "get_context: no call runs here. It works below a tool, prompt, resource, completion or middleware, in "
            "their tasks and in asyncio.to_thread, unless results are for all callers (a tool with cache_shared=True, "
            "a resource with cache=); pass values to other threads and times, and import it at the top of a module"
        )
    if isinstance(ctx, list):  # that the tasks and threads of the call share, and so the Context
        if len(ctx) == 4:
            ctx.append(ctx[0].context_class(*ctx[:4]))
        made: Context = ctx[4]  # the first, if threads have asked at once
        return made
    return ctx


async def run_in_context(
    engine: "Engine", context: RequestContext, invocation: Invocation, ctx: Context | None, work: Awaitable[T]
) -> T:
    outer = _current.get()  # of a call that reads a resource
    if ctx is not None or invocation.is_shared:
        _current.set(ctx)
    else:
        _current.set([engine, context, invocation.is_async or invocation.in_thread, asyncio.get_running_loop()])
    try:
        return await work
    finally:
        _current.set(outer)  # no reset of a token: a loop that died in mid-call is torn down from elsewhere


call_tool.run_in_context = run_in_context
