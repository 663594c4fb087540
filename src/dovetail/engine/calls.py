"""`tools/call`: arguments in, a result out, and whatever goes wrong in words that fit whoever hears it."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from dovetail.engine.exchange import Exchange
from dovetail.engine.invoke import invoke
from dovetail.engine.limits import CallTimeout, Slots
from dovetail.engine.replay import resume
from dovetail.errors import INVALID_PARAMS, ArgumentError, MissingCapability, NotFound, ProtocolError, ToolError
from dovetail.protocol import headers, jsonrpc
from dovetail.protocol.content import Text
from dovetail.protocol.features import require_capabilities
from dovetail.protocol.methods import CallToolParams
from dovetail.protocol.outbound import ToolResult
from dovetail.protocol.results import Result
from dovetail.registry.outputs import OutputError
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.core import Engine

log = logging.getLogger("dovetail")


async def call_tool(engine: "Engine", exchange: Exchange) -> Result:
    params = exchange.request.params
    assert isinstance(params, CallToolParams)
    tool = engine.tools.get(params.name)
    if tool is None:
        raise ProtocolError(f"Unknown tool: {shown(params.name)}", code=INVALID_PARAMS)
    raw = arguments_object(params.arguments)
    if tool.headers and exchange.request.headers is not None and not exchange.request.revision.handshake:
        headers.check_parameters(exchange.request.headers, tool.headers, jsonrpc.parse(raw))
    try:
        if tool.requires:
            require_capabilities(tool.requires, exchange.request.capabilities)
        if params.request_state is not UNSET or params.input_responses is not UNSET:
            resume(engine, exchange)
        return await _run_tool(engine, exchange, tool, raw)
    except Exception as failure:
        return _failure(engine, exchange, tool, failure)


async def _run_tool(engine: "Engine", exchange: Exchange, tool: Tool, raw: Any) -> ToolResult:
    arguments = tool.decode(raw)
    label = f"tool {tool.name}"
    limit = engine.tool_limit(tool)
    slots = exchange.slots = Slots()
    try:
        if limit is not None:  # before the server's: who waits for a busy tool must not hold one of those
            await limit.acquire()
            slots.held = (limit,)
        await engine.limit.acquire()
        slots.held += (engine.limit,)
        return tool.shape(await invoke(engine, exchange, tool.invocation, arguments, label))
    finally:
        slots.leave()


def _failure(engine: "Engine", exchange: Exchange, tool: Tool, failure: Exception) -> ToolResult:
    """What the model is told; raises what is for the client instead. Only what is meant to be told is told."""
    if isinstance(failure, ExceptionGroup):
        failure = _told_together(failure) or _missing_together(failure) or failure
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
            raise failure
        case OutputError():
            log.error("tool %s returned a value that does not fit: %s", tool.name, failure)
            text = f"The tool {tool.name} returned something that does not fit its own description."
        case _:
            log.error("tool %s failed", tool.name, exc_info=failure)
            text = f"The tool {tool.name} failed. The details are in the server's log."
    return failed(text, has_schema=tool.definition.output_schema is not None)


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
