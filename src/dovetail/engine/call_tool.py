"""`tools/call`, and how functions of users are called: on the loop or in a thread, within their time, stoppable."""

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from os.path import basename
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import UNSET

from dovetail import engine as lazy
from dovetail.engine.concurrency import CallTimeout, HeldSlots, Limit, with_function_timeout, with_timeout
from dovetail.engine.context import Context
from dovetail.engine.request_context import Mark, RequestContext, Unanswered, client_requests_of
from dovetail.errors import (
    INVALID_PARAMS,
    ArgumentError,
    MissingCapability,
    NotFound,
    ProtocolError,
    SetupError,
    ToolError,
    UrlElicitationRequired,
)
from dovetail.protocol import headers, jsonrpc
from dovetail.protocol.capabilities import require_capabilities
from dovetail.protocol.elicitation import InputRequired
from dovetail.protocol.methods import CallToolParams
from dovetail.protocol.results import Result, ToolResult
from dovetail.protocol.types import Text
from dovetail.registry.functions import Invocation
from dovetail.registry.tools import Tool
from dovetail.schema.encode import PLAIN_TYPES, OutputError, encode_json

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.engine.rate_limits import RateLimiter
    from dovetail.engine.request_context import ClientRequests

EXITS = (SystemExit, KeyboardInterrupt)  # from a function they would end the whole server

log = logging.getLogger("dovetail")


async def call_tool(engine: "Engine", context: RequestContext) -> Result:
    request = context.request
    params: CallToolParams = request.params
    tool = engine.tools.get(params.name)
    if tool is None or (tool.access is not None and not await lazy.access.may_use(engine, context, tool.access)):
        raise ProtocolError(f"Unknown tool: {shown(params.name)}", code=INVALID_PARAMS)
    if tool.headers and request.headers is not None and not request.revision.handshake:
        headers.check_parameters(request.headers, tool.headers, jsonrpc.parse(arguments_object(params.arguments)))
    slots = context.slots = HeldSlots()
    try:
        if tool.requires:
            require_capabilities(tool.requires, request.capabilities)
        if params.request_state is not UNSET or params.input_responses is not UNSET:
            lazy.input_required.resume(engine, context)
        arguments = tool.decode(params.arguments)
        if not tool.is_limited and engine.limit.take():
            slots.held = engine.limits
        else:
            await _wait_for_slots(engine, context, tool, slots)
        try:
            value = await start(engine, context, tool.invocation, arguments, tool.label)
        except BaseException as raised:
            await fail(engine, context, tool.invocation, raised, tool.label)
        if context.client_requests is None and (type(value) in PLAIN_TYPES or not isinstance(value, InputRequired)):
            return tool.shape(value)
        result = tool.shape(await final(engine, context, tool.invocation, arguments, tool.label, value))
        if context.client_requests is not None and not result.is_error:
            context.client_requests.finished()
        return result
    except Unanswered:
        return lazy.input_required.interim(context)
    except Exception as failure:
        return _failure(engine, context, tool, failure)
    finally:
        slots.close()


async def _wait_for_slots(engine: "Engine", context: RequestContext, tool: Tool, slots: HeldSlots) -> None:
    """The tool's own before the server's: who waits for a busy tool must not hold one of those."""
    limits: tuple[Limit, ...] = engine.limits
    if tool.is_limited:
        own = engine.call_limits.for_tool(tool)
        if own.rates is not None:
            await _count(own.rates, context, tool)
        if own.slots is not None:
            limits = (own.slots, *limits)
    for limit in limits:
        await limit.acquire()
        slots.held += (limit,)


async def _count(rates: "RateLimiter", context: RequestContext, tool: Tool) -> None:
    """The rounds of one call, which comes again with the answers to what it has asked, are one call."""
    state = context.request.params.request_state
    is_next_round = isinstance(state, str) and context.request.revision.rounds
    if is_next_round and await rates.claim_round(state):
        return
    refusal = await rates.refusal(context)
    if refusal is not None:
        raise ToolError(refusal.words(f"The tool {tool.name}", "call"))


def _failure(engine: "Engine", context: RequestContext, tool: Tool, failure: Exception) -> ToolResult:
    """What the model is told; raises what is for the client instead. Only what is meant to be told is told."""
    if isinstance(failure, ExceptionGroup):
        failure = _together(failure) or failure
    if isinstance(failure, ArgumentError):
        arguments_object(context.request.params.arguments)  # raises if that is what is wrong
    match failure:
        case ArgumentError() if engine.options.argument_errors == "error":
            raise ProtocolError(str(failure), code=INVALID_PARAMS, data={"errors": failure.problems}) from None
        case ToolError():
            text = str(failure)
        case CallTimeout():
            context.cancelled()
            log.warning("tool %s timed out after %g s", tool.name, failure.seconds)
            text = f"The tool {tool.name} did not finish within {failure.seconds:g} s and was stopped."
        case MissingCapability() if context.request.revision.handshake:  # older clients do not know the code
            text = failure.message
        case NotFound():  # a resource that the tool wanted to read
            text = failure.message
        case ProtocolError():
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        case OutputError():
            log.error("tool %s returned a value that does not fit: %s", tool.name, failure)
            details = details_of(engine, context, failure.__str__) or "."
            text = f"The tool {tool.name} returned something that does not fit its own description{details}"
        case _:
            details = log_failure(engine, context, failure, tool.label) or ". The details are in the server's log."
            text = f"The tool {tool.name} failed{details}"
    return failed(text, has_schema=tool.definition.output_schema is not None)


def log_failure(engine: "Engine", context: RequestContext, failure: BaseException, label: str) -> str:
    """Log what was not meant for the client, from the first frame on that is not ours; gives the details of it."""
    frames = failure.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("dovetail."):
        frames = frames.tb_next
    log.error("%s failed", label, exc_info=(type(failure), failure, frames or failure.__traceback__))
    where = "" if frames is None else f" ({basename(frames.tb_frame.f_code.co_filename)}, line {frames.tb_lineno})"
    return details_of(engine, context, lambda: f"{type(failure).__name__}: {failure}{where}")


def details_of(engine: "Engine", context: RequestContext, text: Callable[[], str]) -> str:
    """What a message to the client may add: one line without secrets while the server is developed, else nothing."""
    is_masked = not context.in_process if engine.masks_errors is None else engine.masks_errors
    try:
        return "" if is_masked else f": {engine.redactor.text(' '.join(text().split()))}"
    except Exception:  # the author's own `__str__` fails
        return ""


def _together(group: "ExceptionGroup[Exception]") -> ToolError | MissingCapability | None:
    """Tasks of a TaskGroup that all failed on purpose, as one failure; or the first, if all lack a capability."""
    failures = list(_leaves(group))
    missing = [each for each in failures if isinstance(each, MissingCapability)]
    if len(missing) == len(failures):
        return missing[0]
    is_meant = all(isinstance(each, ToolError) for each in failures)
    return ToolError("\n".join(map(str, failures))) if is_meant else None


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for each in group.exceptions:
        yield from _leaves(each) if isinstance(each, BaseExceptionGroup) else (each,)


def failed(text: str, *, has_schema: bool = False) -> ToolResult:
    return ToolResult(content=(Text(jsonrpc.sendable(text)),), is_error=True, has_schema=has_schema)


def arguments_object(raw: Any) -> Any:
    """The arguments as they came, if they are an object; null counts as none."""
    first = memoryview(raw)[0]
    if first == ord("{"):
        return raw
    if first == ord("n"):
        return b"{}"
    raise ProtocolError("Invalid params: arguments must be an object", code=INVALID_PARAMS)


def shown(name: str) -> str:
    return name if len(name) <= 128 else name[:128] + "…"


# ── functions of users ──


async def invoke(
    engine: "Engine", context: RequestContext, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Any:
    """The value that the function returns. Raises what it raises, CallTimeout, or Unanswered.

    `call_tool` does the same without a frame of its own; what is rare is shared.
    """
    mark = None if context.client_requests is None else context.client_requests.mark()
    try:
        value = await start(engine, context, invocation, arguments, label)
    except BaseException as raised:
        await fail(engine, context, invocation, raised, label)
    if context.client_requests is None and (type(value) in PLAIN_TYPES or not isinstance(value, InputRequired)):
        return value
    return await final(engine, context, invocation, arguments, label, value, mark)


def start(
    engine: "Engine", context: RequestContext, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Awaitable[Any]:
    """The function at work, with nothing around it that it does not need. To be awaited at once."""
    if invocation.is_direct:
        work = invocation.function(**arguments)
    else:
        work = _prepared(engine, context, invocation, arguments, label)
    timeout = engine.options.timeout if invocation.timeout is UNSET else invocation.timeout
    return work if timeout is None else with_function_timeout(work, timeout)


async def final(
    engine: "Engine",
    context: RequestContext,
    invocation: Invocation,
    arguments: dict[str, Any],
    label: str,
    value: Any,
    mark: Mark | None = None,
) -> Any:
    """The value of a function that has asked something, or asks by what it returns; it may have to run again."""
    while True:
        client_requests = client_requests_of(engine, context)
        if not client_requests.is_waiting and not isinstance(value, InputRequired):
            return value
        await _settle(engine, client_requests, invocation)
        if client_requests.is_waiting or not isinstance(value, InputRequired):
            raise Unanswered  # whatever it returned: it did so without an answer
        _refuse_unusable_state(value, label)
        await client_requests.ask_together(value)
        client_requests.begin_again(mark)  # the answers are there
        try:
            value = await start(engine, context, invocation, arguments, label)
        except BaseException as raised:
            await fail(engine, context, invocation, raised, label)


async def fail(
    engine: "Engine", context: RequestContext, invocation: Invocation, raised: BaseException, label: str
) -> NoReturn:
    """Raise what is to be made of whatever a function has raised."""
    meant = await _meant(engine, context, invocation, raised, label)
    try:
        if meant is raised:
            raise raised
        raise meant from raised
    finally:
        del meant, raised  # whose tracebacks hold this frame


async def _settle(engine: "Engine", client_requests: "ClientRequests", invocation: Invocation) -> None:
    """The function will run again: what its steps have done by then must be known, so they are waited for."""
    settling = client_requests.settle()
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
    engine: "Engine", context: RequestContext, invocation: Invocation, raised: BaseException, label: str
) -> BaseException:
    stray = isinstance(raised, asyncio.CancelledError)
    if stray and is_cancelled():
        return raised
    if context.client_requests is not None and context.client_requests.is_waiting:
        await _settle(engine, context.client_requests, invocation)
        return Unanswered()
    if stray:
        return RuntimeError(f"{label} let a cancellation of its own escape")
    if isinstance(raised, EXITS):
        return RuntimeError(f"{label} raised {raised!r}")
    if isinstance(raised, UrlElicitationRequired):
        client_requests = client_requests_of(engine, context)
        await _settle(engine, client_requests, invocation)
        await client_requests.require_urls(raised)
    return raised


def is_cancelled() -> bool:
    """Whether somebody wants the current task to stop; user code also meets cancellations that mean something else."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _prepared(
    engine: "Engine", context: RequestContext, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Coroutine[Any, Any, Any]:
    injected: dict[str, Any] = {}
    if invocation.context_names:
        can_wait = invocation.is_async or invocation.in_thread
        injected = dict.fromkeys(invocation.context_names, Context(engine, context, can_wait=can_wait))
    if not invocation.by_name:
        bound = functools.partial(invocation.function, arguments, **injected)
    elif invocation.is_async:
        return invocation.function(**arguments, **injected)  # type: ignore[no-any-return]
    else:
        bound = functools.partial(invocation.function, **arguments, **injected)
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
