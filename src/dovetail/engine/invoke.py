"""Calls user functions: on the loop or in a thread, within their time, and always stoppable."""

import asyncio
import functools
import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from dovetail.engine.asking import interview_of
from dovetail.engine.context import Context
from dovetail.engine.exchange import Exchange
from dovetail.engine.interview import Unanswered
from dovetail.engine.limits import with_function_timeout, with_timeout
from dovetail.errors import SetupError, UrlElicitationRequired
from dovetail.protocol.questions import InputRequired
from dovetail.registry.invocation import Invocation
from dovetail.registry.jsonable import OutputError, encode_json

if TYPE_CHECKING:
    from dovetail.engine.core import Engine


EXITS = (SystemExit, KeyboardInterrupt)  # from a function they would end the whole server


async def invoke(
    engine: "Engine", exchange: Exchange, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Any:
    """The value that the function returns. Raises what it raises, CallTimeout, or Unanswered."""
    timeout = engine.options.timeout if invocation.timeout is UNSET else invocation.timeout
    while True:
        work = _start(engine, exchange, invocation, arguments, label)
        try:
            value = await (work if timeout is None else with_function_timeout(work, timeout))
        except BaseException as raised:
            meant = await _meant(engine, exchange, raised, label, timeout)
            if meant is raised:
                raise
            raise meant from raised
        if exchange.interview is None and not isinstance(value, InputRequired):
            return value
        await _refuse_without_answers(exchange, timeout)
        if not isinstance(value, InputRequired):
            return value
        _refuse_unusable_state(value, label)
        await interview_of(engine, exchange).ask_together(value)  # if this returns, the answers are there


async def _refuse_without_answers(exchange: Exchange, timeout: float | None) -> None:
    """A function that met an open question has come to nothing, whatever it returned or raised.

    The steps that it has begun are waited for: what they have done must be known to its next run.
    """
    if exchange.interview is None:
        return
    settling = exchange.interview.settle()
    await (settling if timeout is None else with_timeout(settling, timeout))
    if exchange.interview.is_waiting:
        raise Unanswered


def _refuse_unusable_state(required: InputRequired, label: str) -> None:
    """Before anybody is asked."""
    if required.state is not UNSET:
        try:
            encode_json(required.state)
        except OutputError as failure:
            raise SetupError(f"{label}: the state of InputRequired must be JSON: {failure}") from None


async def _meant(
    engine: "Engine", exchange: Exchange, raised: BaseException, label: str, timeout: float | None
) -> BaseException:
    """What is to be made of whatever a function has raised."""
    stray = isinstance(raised, asyncio.CancelledError)
    if stray and is_cancelled():
        return raised
    if exchange.interview is not None and exchange.interview.is_waiting:
        await _refuse_without_answers(exchange, timeout)
    if stray:
        return RuntimeError(f"{label} let a cancellation of its own escape")
    if isinstance(raised, EXITS):
        return RuntimeError(f"{label} raised {raised!r}")
    if isinstance(raised, UrlElicitationRequired):
        await interview_of(engine, exchange).require_urls(raised)
    return raised


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
