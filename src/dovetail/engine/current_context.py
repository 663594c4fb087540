"""`get_context`: the `Context` of the call that runs, for code that does not get it as a parameter."""

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from dovetail.engine import call_tool
from dovetail.engine.context import Context

T = TypeVar("T")

_current: ContextVar[Context] = ContextVar("dovetail_context")


def get_context() -> Context:
    """The `Context` of the tool, prompt, resource or completion that runs; raises LookupError outside of a call."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError(
            "get_context: no call runs here. It works below a tool, prompt, resource or completion, also in the tasks "
            "and threads that they start, unless the results of a tool are for all callers (cache_shared=True); pass "
            "values to code that runs at other times"
        ) from None


async def _run_in_context(ctx: Context, work: Coroutine[Any, Any, T]) -> T:
    token = _current.set(ctx)
    try:
        return await work
    finally:
        _current.reset(token)


call_tool.run_in_context = _run_in_context
