"""Calls user functions: on the loop or in a thread, within their time, and always stoppable."""

import asyncio
import functools
import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from dovetail.engine.context import Context
from dovetail.engine.exchange import Exchange
from dovetail.engine.limits import with_timeout
from dovetail.registry.invocation import Invocation

if TYPE_CHECKING:
    from dovetail.engine.core import Engine


EXITS = (SystemExit, KeyboardInterrupt)  # from a function they would end the whole server


async def invoke(
    engine: "Engine", exchange: Exchange, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Any:
    """The value that the function returns. Raises what it raises, or CallTimeout."""
    timeout = engine.options.timeout if invocation.timeout is UNSET else invocation.timeout
    work = _start(engine, exchange, invocation, arguments, label)
    try:
        if timeout is None:
            return await work
        return await with_timeout(work, timeout)
    except asyncio.CancelledError as stray:
        if is_cancelled():
            raise
        raise RuntimeError(f"{label} let a cancellation of its own escape") from stray
    except EXITS as exit:
        raise RuntimeError(f"{label} raised {exit!r}") from exit


def is_cancelled() -> bool:
    """Whether somebody wants the current task to stop; user code also meets cancellations that mean something else."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _start(
    engine: "Engine", exchange: Exchange, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Coroutine[Any, Any, Any]:
    context: dict[str, Any] = {}
    if invocation.context_names:
        can_wait = invocation.is_async or invocation.in_thread
        context = dict.fromkeys(invocation.context_names, Context(engine, exchange, can_wait=can_wait))
    if invocation.by_name:
        bound = functools.partial(invocation.function, **arguments, **context)
    else:
        bound = functools.partial(invocation.function, arguments, **context)
    if invocation.is_async:
        return bound()  # type: ignore[no-any-return]
    if invocation.in_thread:
        return _in_thread(engine, bound, label)
    return _on_the_loop(bound)


async def _in_thread(engine: "Engine", bound: "functools.partial[Any]", label: str) -> Any:
    value = await engine.threads.run(bound, label=label)
    return await value if inspect.isawaitable(value) else value


async def _on_the_loop(bound: "functools.partial[Any]") -> Any:
    value = bound()
    return await value if inspect.isawaitable(value) else value
