"""`tools/call`: arguments in, a result out, and whatever goes wrong in words that fit whoever hears it."""

import logging
from collections.abc import Callable, Iterator
from os.path import basename
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from dovetail import engine as late
from dovetail.engine.concurrency import CallTimeout, Limit, Slots
from dovetail.engine.exchange import Exchange, Unanswered
from dovetail.engine.invoke import fail, final, start
from dovetail.errors import INVALID_PARAMS, ArgumentError, MissingCapability, NotFound, ProtocolError, ToolError
from dovetail.protocol import headers, jsonrpc
from dovetail.protocol.elicitation import InputRequired
from dovetail.protocol.features import require_capabilities
from dovetail.protocol.methods import CallToolParams
from dovetail.protocol.results import Result, ToolResult
from dovetail.protocol.types import Text
from dovetail.registry.jsonable import PLAIN_TYPES
from dovetail.registry.outputs import OutputError
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.core import Engine
    from dovetail.engine.rate_limits import Limiter

log = logging.getLogger("dovetail")


async def call_tool(engine: "Engine", exchange: Exchange) -> Result:
    request = exchange.request
    params: CallToolParams = request.params
    tool = engine.tools.get(params.name)
    if tool is None or (tool.access is not None and not await late.access.may_use(engine, exchange, tool.access)):
        raise ProtocolError(f"Unknown tool: {shown(params.name)}", code=INVALID_PARAMS)
    if tool.headers and request.headers is not None and not request.revision.handshake:
        headers.check_parameters(request.headers, tool.headers, jsonrpc.parse(arguments_object(params.arguments)))
    slots = exchange.slots = Slots()
    try:
        if tool.requires:
            require_capabilities(tool.requires, request.capabilities)
        if params.request_state is not UNSET or params.input_responses is not UNSET:
            late.input_required.resume(engine, exchange)
        arguments = tool.decode(params.arguments)
        if not tool.is_limited and engine.limit.take():
            slots.held = engine.limits
        else:
            await _wait_for_slots(engine, exchange, tool, slots)
        try:
            value = await start(engine, exchange, tool.invocation, arguments, tool.label)
        except BaseException as raised:
            await fail(engine, exchange, tool.invocation, raised, tool.label)
        if exchange.interview is None and (type(value) in PLAIN_TYPES or not isinstance(value, InputRequired)):
            return tool.shape(value)
        value = await final(engine, exchange, tool.invocation, arguments, tool.label, value)
        result = tool.shape(value)
    except Unanswered:
        return late.input_required.interim(exchange)
    except Exception as failure:
        result = _failure(engine, exchange, tool, failure)
    finally:
        slots.leave()
    if exchange.interview is not None and not result.is_error:
        exchange.interview.finished()
    return result


async def _wait_for_slots(engine: "Engine", exchange: Exchange, tool: Tool, slots: Slots) -> None:
    """The tool's own before the server's: who waits for a busy tool must not hold one of those."""
    limits: tuple[Limit, ...] = engine.limits
    if tool.is_limited:
        own = engine.book.of(tool)
        if own.rates is not None:
            await _count(own.rates, exchange, tool)
        if own.slots is not None:
            limits = (own.slots, *limits)
    for limit in limits:
        await limit.acquire()
        slots.held += (limit,)


async def _count(rates: "Limiter", exchange: Exchange, tool: Tool) -> None:
    """The rounds of one call, which comes again with the answers to what it has asked, are one call."""
    state = exchange.request.params.request_state
    is_next_round = isinstance(state, str) and exchange.request.revision.rounds
    if is_next_round and await rates.goes_on(state):
        return
    refusal = await rates.refusal(exchange)
    if refusal is not None:
        raise ToolError(refusal.words(f"The tool {tool.name}", "call"))


def _failure(engine: "Engine", exchange: Exchange, tool: Tool, failure: Exception) -> ToolResult:
    """What the model is told; raises what is for the client instead. Only what is meant to be told is told."""
    if isinstance(failure, ExceptionGroup):
        failure = _told_together(failure) or _missing_together(failure) or failure
    if isinstance(failure, ArgumentError):
        arguments_object(exchange.request.params.arguments)  # raises if that is what is wrong
    match failure:
        case ArgumentError() if engine.options.argument_errors == "error":
            raise ProtocolError(str(failure), code=INVALID_PARAMS, data={"errors": failure.problems}) from None
        case ToolError():
            text = str(failure)
        case CallTimeout():
            exchange.cancelled()
            log.warning("tool %s timed out after %g s", tool.name, failure.seconds)
            text = f"The tool {tool.name} did not finish within {failure.seconds:g} s and was stopped."
        case MissingCapability() if exchange.request.revision.handshake:  # older clients do not know the code
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
            details = details_of(engine, exchange, failure.__str__) or "."
            text = f"The tool {tool.name} returned something that does not fit its own description{details}"
        case _:
            details = log_failure(engine, exchange, failure, tool.label) or ". The details are in the server's log."
            text = f"The tool {tool.name} failed{details}"
    return failed(text, has_schema=tool.definition.output_schema is not None)


def log_failure(engine: "Engine", exchange: Exchange, failure: BaseException, label: str) -> str:
    """Log what was not meant for the client, from the first frame on that is not ours; gives the details of it."""
    frames = failure.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("dovetail."):
        frames = frames.tb_next
    log.error("%s failed", label, exc_info=(type(failure), failure, frames or failure.__traceback__))
    where = "" if frames is None else f" ({basename(frames.tb_frame.f_code.co_filename)}, line {frames.tb_lineno})"
    return details_of(engine, exchange, lambda: f"{type(failure).__name__}: {failure}{where}")


def details_of(engine: "Engine", exchange: Exchange, text: Callable[[], str]) -> str:
    """What a message to the client may add: one line without secrets while the server is developed, else nothing."""
    is_masked = not exchange.in_process if engine.masks_errors is None else engine.masks_errors
    try:
        return "" if is_masked else f": {engine.redactor.text(' '.join(text().split()))}"
    except Exception:  # the author's own `__str__` fails
        return ""


def _told_together(group: "ExceptionGroup[Exception]") -> ToolError | None:
    """Tasks of a TaskGroup that failed on purpose, as one failure; None if anything else is among them."""
    meant, others = group.split(ToolError)
    if meant is None or others is not None:
        return None
    return ToolError("\n".join(str(each) for each in _leaves(meant)))


def _missing_together(group: "ExceptionGroup[Exception]") -> MissingCapability | None:
    """Tasks that all failed for what the client can't do."""
    missing, others = group.split(MissingCapability)
    if missing is None or others is not None:
        return None
    required: dict[str, Any] = {}
    for each in _leaves(missing):
        assert isinstance(each, MissingCapability)
        for name, parts in each.required.items():
            required.setdefault(name, {}).update(parts)
    return MissingCapability(required)


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
