"""`tools/call`, and calls of the author's functions: on the loop or in a thread, with a timeout."""

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from os.path import basename
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail import errors
from dovetail.engine.concurrency import CallTimeout, HeldSlots, Limit, with_function_timeout, with_timeout
from dovetail.engine.context import Context
from dovetail.engine.request_context import Checkpoint, InputNeeded, RequestContext, server_requests_of, threads_of
from dovetail.protocol import headers, jsonrpc
from dovetail.protocol.capabilities import require_capabilities
from dovetail.protocol.elicitation import InputRequired
from dovetail.protocol.methods import CallToolParams
from dovetail.protocol.results import EMPTY_RESULT, Result, ToolResult
from dovetail.protocol.session import Rules
from dovetail.protocol.types import Text
from dovetail.registry.functions import Invocation
from dovetail.registry.registration import Caching, Idempotency
from dovetail.registry.tools import Tool
from dovetail.schema.encode import PLAIN_TYPES, OutputError, encode_json

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.engine.rate_limits import RateLimiter
    from dovetail.engine.request_context import ServerRequests
    from dovetail.engine.threads import ThreadPool

T = TypeVar("T")
EXITS = (SystemExit, KeyboardInterrupt)  # a function that raises one must not end the whole server

log = logging.getLogger("dovetail")
# Runs a function's coroutine as that of a context; set once `get_context` is imported, so that others don't pay for it.
run_in_context: Callable[..., Coroutine[Any, Any, Any]] | None = None


async def call_tool(engine: "Engine", context: RequestContext, admitted: Tool | None = None) -> Result:
    """`admitted`: the tool of a caller who may use it, where no earlier call has a result to give."""
    request = context.request
    params: CallToolParams = request.params
    tool = admitted or engine.tools.get(params.name)
    session = request.session
    if admitted is None and (tool is None or (session is not None and session.rules)):
        tool = await _find_tool(engine, context, params.name)
    if tool is None or (
        tool.access is not None and admitted is None and not await lazy.access.may_use(engine, context, tool.access)
    ):
        if context.is_indirect and context.served is None:  # an error that the model is shown
            text = (
                f"There is no tool {excerpt(params.name)!r}; find tools with search_tools, and call them by its names"
            )
            return error_result(text, has_schema=False)
        raise errors.ProtocolError(f"Unknown tool: {excerpt(params.name)}", code=errors.INVALID_PARAMS)
    if tool.headers and request.headers is not None and not request.revision.handshake and context.served is None:
        # A client that has not seen the tool need not send them, but what it sends may have decided about the route.
        parameters = [each for each in tool.headers if not context.is_indirect or each.key in request.headers]
        headers.check_parameters(request.headers, parameters, jsonrpc.parse(require_object(params.arguments)))
    if tool.route is not None and admitted is None:
        if isinstance(tool.route, Idempotency):
            return await lazy.idempotency.call_once(engine, context, tool)
        is_cached = isinstance(tool.route, Caching)
        return await (lazy.result_cache.call_cached if is_cached else lazy.mounts.call_mounted)(engine, context, tool)
    slots = context.slots = HeldSlots()
    invocation = tool.invocation
    if context.run is not None:
        invocation = replace(invocation, timeout=context.run.timeout)
    try:
        if tool.requires:
            require_capabilities(tool.requires, request.capabilities)
        if params.request_state is not UNSET or params.input_responses is not UNSET:
            lazy.input_required.resume(engine, context)
        arguments = tool.decode(params.arguments)
        if not tool.is_limited and engine.limit.take():
            slots.held = engine.limits
        else:
            waiting, metrics = _wait_for_slots(engine, context, tool, slots), engine.metrics
            await (waiting if metrics is None else lazy.metrics.queued(metrics, engine, tool.name, waiting))
        try:
            value = await start_function(engine, context, invocation, arguments, tool.label)
        except BaseException as raised:
            if isinstance(raised, errors.Busy) and raised.without_thread == tool.label:
                slots.taken = False
            await raise_failure(engine, context, invocation, raised, tool.label)
        if context.server_requests is None and (type(value) in PLAIN_TYPES or not isinstance(value, InputRequired)):
            return tool.to_result(value)
        result = tool.to_result(await final_value(engine, context, invocation, arguments, tool.label, value))
        if context.server_requests is not None and not result.is_error:
            context.server_requests.check_replay()
        return result
    except InputNeeded:
        return lazy.input_required.input_required_result(context)
    except Exception as failure:
        return failure_result(engine, context, tool, failure)
    finally:
        slots.close()


async def _find_tool(engine: "Engine", context: RequestContext, name: str) -> Tool | None:
    if engine.search is not None and context.served is None and name in engine.search.tools:
        return engine.search.tools[name]
    return await find_item(engine, context, functools.partial(engine.tools.find, name))


async def find_item(engine: "Engine", context: RequestContext, find: Callable[[Rules], T | None]) -> T | None:
    """An item that the session sees; catalogs that don't have it are brought up to date first."""
    rules = engine.rules_of(context)
    found = find(rules)
    if found is None and engine.before_list:
        await engine.fetch_catalogs(context)
        found = find(rules)
    return found


async def _wait_for_slots(engine: "Engine", context: RequestContext, tool: Tool, slots: HeldSlots) -> None:
    """Take the tool's slot before the server's: a call that waits for a busy tool must not hold one of the server's."""
    run = context.run
    limits: tuple[Limit, ...] = engine.limits if run is None else (run.limit,)
    if tool.is_limited:
        own = engine.call_limits.for_tool(tool)
        if own.rates is not None:
            await _check_rate(engine, own.rates, context, tool)
        if own.slots is not None:
            limits = (own.slots, *limits)
    if run is not None:
        await run.begin()
    for limit in limits:
        if run is not None and run.is_detached:
            slots.held += (limit,)  # also if it is cancelled meanwhile
            await limit.reclaim()  # a task waits however long the queue is
        else:
            await limit.acquire()
            slots.held += (limit,)
    slots.taken = True


def has_begun(context: RequestContext) -> bool:
    """Whether a call of a tool with limits has come to its function; if not, it was refused."""
    return context.slots is not None and context.slots.taken


async def _check_rate(engine: "Engine", rates: "RateLimiter", context: RequestContext, tool: Tool) -> None:
    """Raise if the rate limit refuses the call; all rounds of one call count once."""
    state = context.request.params.request_state
    if isinstance(state, str) and context.request.revision.input_required and await rates.claim_round(state):
        return
    if (refusal := await rates.refusal(context)) is not None:
        if (metrics := engine.metrics) is not None:
            metrics.add(lazy.metrics.REFUSALS, lazy.metrics.tool_label(engine, tool.name), "rate_limit")
        raise errors.ToolError(refusal.words(f"The tool {tool.name}", "call"))


# ── failures ──


def failure_result(engine: "Engine", context: RequestContext, tool: Tool, failure: Exception) -> ToolResult:
    """A result for the model. Raises if the failure has to be a JSON-RPC error."""
    if isinstance(failure, ExceptionGroup):
        failure = _merge_failures(failure) or failure
    if isinstance(failure, errors.ArgumentError):
        require_object(context.request.params.arguments)
    match failure:
        case errors.ArgumentError() if engine.options.argument_errors == "error":
            raise errors.ProtocolError(
                str(failure), code=errors.INVALID_PARAMS, data={"errors": failure.problems}
            ) from None
        case errors.ToolError():
            text = str(failure)
        case CallTimeout():
            context.mark_cancelled()
            log.warning("tool %s timed out after %g s", tool.name, failure.seconds)
            text = f"The tool {tool.name} did not finish within {failure.seconds:g} s and was stopped."
        case errors.MissingCapability() if context.request.revision.handshake:  # older clients do not know the code
            text = failure.message
        case errors.NotFound():  # a resource that the tool wanted to read
            text = failure.message
        case errors.ProtocolError():
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        case OutputError():
            log.error("tool %s returned a value that does not fit: %s", tool.name, failure)
            details = error_details(engine, context, failure.__str__) or "."
            text = f"The tool {tool.name} returned something that does not fit its own description{details}"
        case _:
            details = log_failure(engine, context, failure, tool.label) or ". The details are in the server's log."
            text = f"The tool {tool.name} failed{details}"
    return error_result(text, has_schema=tool.definition.output_schema is not None)


def log_failure(engine: "Engine", context: RequestContext, failure: BaseException, label: str) -> str:
    """Log an unexpected failure without the frames of this library above the author's; returns `error_details`."""
    frames = failure.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("dovetail."):
        frames = frames.tb_next
    log.error("%s failed", label, exc_info=(type(failure), failure, frames or failure.__traceback__))
    where = "" if frames is None else f" ({basename(frames.tb_frame.f_code.co_filename)}, line {frames.tb_lineno})"
    return error_details(engine, context, lambda: f"{type(failure).__name__}: {failure}{where}")


def error_details(engine: "Engine", context: RequestContext, text: Callable[[], str]) -> str:
    """What a message to the client may add: one line without secrets while the server is developed, else nothing."""
    masks = engine.root.masks_errors if engine.masks_errors is None else engine.masks_errors
    is_masked = not context.in_process if masks is None else masks
    try:
        return "" if is_masked else f": {engine.redactor.text(' '.join(text().split()))}"
    except Exception:  # the author's own `__str__` fails
        return ""


def _merge_failures(group: "ExceptionGroup[Exception]") -> errors.ToolError | errors.MissingCapability | None:
    """One failure for a TaskGroup whose tasks all raised ToolError, or all MissingCapability; else None."""
    failures = list(_leaves(group))
    missing = [each for each in failures if isinstance(each, errors.MissingCapability)]
    if len(missing) == len(failures):
        return missing[0]
    if all(isinstance(each, errors.ToolError) for each in failures):
        return errors.ToolError("\n".join(map(str, failures)))
    return None


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for each in group.exceptions:
        yield from _leaves(each) if isinstance(each, BaseExceptionGroup) else (each,)


def error_result(text: str, *, has_schema: bool) -> ToolResult:
    return replace(EMPTY_RESULT, content=(Text(jsonrpc.sendable(text)),), is_error=True, has_schema=has_schema)


def require_object(arguments: Any) -> Any:
    """The raw arguments, with null as an empty object; raises ProtocolError if they are anything else."""
    first = memoryview(arguments)[0]
    if first == ord("{"):
        return arguments
    if first == ord("n"):
        return b"{}"
    raise errors.ProtocolError("Invalid params: arguments must be an object", code=errors.INVALID_PARAMS)


def excerpt(name: str) -> str:
    return name if len(name) <= 128 else name[:128] + "…"


# ── the author's functions ──


async def invoke(
    engine: "Engine", context: RequestContext, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Any:
    """The value that the function returns. `call_tool` does the same by itself, to save a frame."""
    checkpoint = None if context.server_requests is None else context.server_requests.checkpoint()
    try:
        value = await start_function(engine, context, invocation, arguments, label)
    except BaseException as raised:
        await raise_failure(engine, context, invocation, raised, label)
    if context.server_requests is None and (type(value) in PLAIN_TYPES or not isinstance(value, InputRequired)):
        return value
    return await final_value(engine, context, invocation, arguments, label, value, checkpoint)


def start_function(
    engine: "Engine", context: RequestContext, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Awaitable[Any]:
    """The running function, to be awaited at once; without a wrapper where it needs none."""
    if invocation.is_direct:
        work = invocation.function(**arguments)
        if run_in_context is not None:
            work = run_in_context(engine, context, invocation, None, work)
    else:
        work = _bind(engine, context, invocation, arguments, label)
    timeout = engine.options.timeout if invocation.timeout is UNSET else invocation.timeout
    return work if timeout is None else with_function_timeout(work, timeout)


async def final_value(
    engine: "Engine", context: RequestContext, invocation: Invocation, arguments: dict[str, Any], label: str,
    value: Any, checkpoint: Checkpoint | None = None,
) -> Any:  # fmt: skip
    """The value of a function that has made server requests or returned InputRequired; the function may run again."""
    while True:
        server_requests = server_requests_of(engine, context)
        if not server_requests.needs_input and not isinstance(value, InputRequired):
            return value
        await _wait_for_steps(engine, server_requests, invocation)
        if server_requests.needs_input or not isinstance(value, InputRequired):
            raise InputNeeded  # the function has returned a value although a response is missing
        try:
            encode_json(None if value.state is UNSET else value.state)
        except OutputError as failure:
            raise errors.SetupError(f"{label}: the state of InputRequired must be JSON: {failure}") from None
        await server_requests.request_all(value)
        server_requests.restart(checkpoint)
        try:
            value = await start_function(engine, context, invocation, arguments, label)
        except BaseException as raised:
            await raise_failure(engine, context, invocation, raised, label)


async def raise_failure(
    engine: "Engine", context: RequestContext, invocation: Invocation, raised: BaseException, label: str
) -> NoReturn:
    """Raise what a function has raised, or what the engine makes of it."""
    failure: BaseException | None = None
    try:
        if isinstance(raised, asyncio.CancelledError) and is_cancelled():
            raise raised
        if context.server_requests is not None and context.server_requests.needs_input:
            await _wait_for_steps(engine, context.server_requests, invocation)
            failure = InputNeeded()
        elif isinstance(raised, asyncio.CancelledError):
            failure = RuntimeError(f"{label} let a cancellation of its own escape")
        elif isinstance(raised, EXITS):
            failure = RuntimeError(f"{label} raised {raised!r}")
        elif isinstance(raised, errors.UrlElicitationRequired):
            server_requests = server_requests_of(engine, context)
            await _wait_for_steps(engine, server_requests, invocation)
            await server_requests.require_urls(raised)
        if failure is None:
            raise raised
        raise failure from raised
    finally:
        del failure, raised  # whose tracebacks hold this frame


def is_cancelled() -> bool:
    """Whether the current task is being cancelled. The author's code also raises CancelledError of other tasks."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _wait_for_steps(engine: "Engine", server_requests: "ServerRequests", invocation: Invocation) -> None:
    """Wait for running steps: the function will run again, and the next run must know their results."""
    steps = server_requests.wait_for_steps()
    timeout = engine.options.timeout if invocation.timeout is UNSET else invocation.timeout
    await (steps if timeout is None else with_timeout(steps, timeout))


def _bind(
    engine: "Engine", context: RequestContext, invocation: Invocation, arguments: dict[str, Any], label: str
) -> Coroutine[Any, Any, Any]:
    ctx: Context | None = None
    plan = invocation.dependencies
    function = invocation.function
    if invocation.context_names or (plan is not None and plan.takes_context):
        ctx = engine.context_class(engine, context, can_wait=invocation.is_async or invocation.in_thread)
    given = arguments if invocation.by_name else {}
    if invocation.context_names:
        given = given | dict.fromkeys(invocation.context_names, ctx)
    if invocation.is_async and invocation.by_name and plan is None:
        work: Coroutine[Any, Any, Any] = function(**given)
    else:
        bound = (
            functools.partial(function, **given)
            if invocation.by_name
            else functools.partial(function, arguments, **given)
        )
        if plan is not None:
            work = lazy.dependencies.start_with_dependencies(engine, context, invocation, plan, bound, label, ctx)
        else:
            pool = threads_of(engine, context) if invocation.in_thread else None
            work = bound() if invocation.is_async else _run(pool, bound, label)
    return work if run_in_context is None else run_in_context(engine, context, invocation, ctx, work)


async def _run(pool: "ThreadPool | None", bound: "functools.partial[Any]", label: str) -> Any:
    value = bound() if pool is None else await pool.run(bound, label=label)
    return value if type(value) in PLAIN_TYPES or not inspect.isawaitable(value) else await value
