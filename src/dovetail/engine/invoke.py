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
from dovetail.engine.limits import with_function_timeout
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
    work = _start(engine, exchange, invocation, arguments, label)
    try:
        value = await (work if timeout is None else with_function_timeout(work, timeout))
    except UrlElicitationRequired as required:
        interview = interview_of(engine, exchange)
        if not interview.is_waiting:
            await interview.require_urls(required)
        raise Unanswered from None
    except BaseException as raised:
        meant = _meant(exchange, raised, label)
        if meant is raised:
            raise
        raise meant from raised
    if exchange.interview is None and not isinstance(value, InputRequired):
        return value
    return await _questioned(engine, exchange, invocation, arguments, label, value)


async def _questioned(
    engine: "Engine",
    exchange: Exchange,
    invocation: Invocation,
    arguments: dict[str, Any],
    label: str,
    outcome: Any,
) -> Any:
    """What a function that may ask has come to; if it asks by itself, it is called again with the answers."""
    interview = interview_of(engine, exchange)
    if interview.is_waiting:
        raise Unanswered  # whatever it returned: it did so without an answer
    if isinstance(outcome, InputRequired):
        _refuse_unusable_state(outcome, label)
        await interview.ask_together(outcome)
        return await invoke(engine, exchange, invocation, arguments, label)
    return outcome


def _refuse_unusable_state(required: InputRequired, label: str) -> None:
    """Before anybody is asked."""
    if required.state is not UNSET:
        try:
            encode_json(required.state)
        except OutputError as failure:
            raise SetupError(f"{label}: the state of InputRequired must be JSON: {failure}") from None


def _meant(exchange: Exchange, raised: BaseException, label: str) -> BaseException:
    """What is to be made of whatever a function has raised."""
    stray = isinstance(raised, asyncio.CancelledError)
    if stray and is_cancelled():
        return raised
    if exchange.interview is not None and exchange.interview.is_waiting:
        return Unanswered()
    if stray:
        return RuntimeError(f"{label} let a cancellation of its own escape")
    if isinstance(raised, EXITS):
        return RuntimeError(f"{label} raised {raised!r}")
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
