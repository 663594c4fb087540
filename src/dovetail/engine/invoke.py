"""Calls user functions: on the loop or in a thread, within their time, and always stoppable."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import UNSET

from dovetail.engine.concurrency import with_function_timeout, with_timeout
from dovetail.engine.context import Context
from dovetail.engine.exchange import Exchange, Interview, Mark, Unanswered, interview_of
from dovetail.errors import SetupError, UrlElicitationRequired
from dovetail.protocol.elicitation import InputRequired
from dovetail.registry.functions import Invocation
from dovetail.registry.jsonable import PLAIN_TYPES, OutputError, encode_json

if TYPE_CHECKING:
    from dovetail.engine.core import Engine


EXITS = (SystemExit, KeyboardInterrupt)  # from a function they would end the whole server


async def invoke(
    engine: "Engine", exchange: Exchange, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Any:
    """The value that the function returns. Raises what it raises, CallTimeout, or Unanswered.

    `call_tool` does the same without a frame of its own; what is rare is shared.
    """
    mark = None if exchange.interview is None else exchange.interview.mark()
    try:
        value = await start(engine, exchange, invocation, arguments, label)
    except BaseException as raised:
        await fail(engine, exchange, invocation, raised, label)
    if exchange.interview is None and (type(value) in PLAIN_TYPES or not isinstance(value, InputRequired)):
        return value
    return await final(engine, exchange, invocation, arguments, label, value, mark)


def start(
    engine: "Engine", exchange: Exchange, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Awaitable[Any]:
    """The function at work, with nothing around it that it does not need. To be awaited at once."""
    if invocation.is_direct:
        work = invocation.function(**arguments)
    else:
        work = _prepared(engine, exchange, invocation, arguments, label)
    timeout = engine.options.timeout if invocation.timeout is UNSET else invocation.timeout
    return work if timeout is None else with_function_timeout(work, timeout)


async def final(
    engine: "Engine",
    exchange: Exchange,
    invocation: Invocation,
    arguments: dict[str, Any],
    label: str,
    value: Any,
    mark: Mark | None = None,
) -> Any:
    """The value of a function that has asked something, or asks by what it returns; it may have to run again."""
    while True:
        interview = interview_of(engine, exchange)
        if not interview.is_waiting and not isinstance(value, InputRequired):
            return value
        await _settle(engine, interview, invocation)
        if interview.is_waiting or not isinstance(value, InputRequired):
            raise Unanswered  # whatever it returned: it did so without an answer
        _refuse_unusable_state(value, label)
        await interview.ask_together(value)
        interview.begin_again(mark)  # the answers are there
        try:
            value = await start(engine, exchange, invocation, arguments, label)
        except BaseException as raised:
            await fail(engine, exchange, invocation, raised, label)


async def fail(
    engine: "Engine", exchange: Exchange, invocation: Invocation, raised: BaseException, label: str
) -> NoReturn:
    """Raise what is to be made of whatever a function has raised."""
    meant = await _meant(engine, exchange, invocation, raised, label)
    try:
        if meant is raised:
            raise raised
        raise meant from raised
    finally:
        del meant, raised  # whose tracebacks hold this frame


async def _settle(engine: "Engine", interview: Interview, invocation: Invocation) -> None:
    """The function will run again: what its steps have done by then must be known, so they are waited for."""
    settling = interview.settle()
    timeout = engine.options.timeout if invocation.timeout is UNSET else invocation.timeout
    await (settling if timeout is None else with_timeout(settling, timeout))


def _refuse_unusable_state(required: InputRequired, label: str) -> None:
    """Before anybody is asked."""
    if required.state is not UNSET:
        try:
            encode_json(required.state)
        except OutputError as failure:
            raise SetupError(f"{label}: the state of InputRequired must be JSON: {failure}") from None


async def _meant(
    engine: "Engine", exchange: Exchange, invocation: Invocation, raised: BaseException, label: str
) -> BaseException:
    stray = isinstance(raised, asyncio.CancelledError)
    if stray and is_cancelled():
        return raised
    if exchange.interview is not None and exchange.interview.is_waiting:
        await _settle(engine, exchange.interview, invocation)
        return Unanswered()
    if stray:
        return RuntimeError(f"{label} let a cancellation of its own escape")
    if isinstance(raised, EXITS):
        return RuntimeError(f"{label} raised {raised!r}")
    if isinstance(raised, UrlElicitationRequired):
        interview = interview_of(engine, exchange)
        await _settle(engine, interview, invocation)
        await interview.require_urls(raised)
    return raised


def is_cancelled() -> bool:
    """Whether somebody wants the current task to stop; user code also meets cancellations that mean something else."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _prepared(
    engine: "Engine", exchange: Exchange, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Coroutine[Any, Any, Any]:
    context: dict[str, Any] = {}
    if invocation.context_names:
        can_wait = invocation.is_async or invocation.in_thread
        context = dict.fromkeys(invocation.context_names, Context(engine, exchange, can_wait=can_wait))
    if not invocation.by_name:
        bound = functools.partial(invocation.function, arguments, **context)
    elif invocation.is_async:
        return invocation.function(**arguments, **context)  # type: ignore[no-any-return]
    else:
        bound = functools.partial(invocation.function, **arguments, **context)
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
