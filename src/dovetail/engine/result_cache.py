"""Cached results of tools (`@server.tool(cache=60)`), of one process: by arguments and caller.

Equal calls at the same time are one flight: the first one runs, and the others get its result. What depends on more
than arguments and caller is for no other call: a result after questions or steps, and a refusal.
"""

import asyncio
import copy
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw

from dovetail import engine as lazy
from dovetail.engine.call_tool import has_begun, run_tool
from dovetail.engine.concurrency import Limit
from dovetail.engine.request_context import RequestContext
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.methods import CallToolParams
from dovetail.protocol.request_state import arguments_digest
from dovetail.protocol.results import Result, ToolResult
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

Key = tuple[int, str, str]  # the id of the tool, digests of the arguments and of the caller
Outcome = ToolResult | Literal["run", "try again"]  # of a flight, for those that wait for it


class Entry(NamedTuple):
    tool: Tool  # held, so that no other tool gets its id
    result: ToolResult
    expires_at: float
    size: int


async def call_cached(engine: "Engine", context: RequestContext, tool: Tool) -> Result:
    """The result of a call of a tool with `cache=`: from the cache, or from a call in flight, or its own."""
    key = cache_key(context, tool)
    if key is None:
        return await run_tool(engine, context)
    if engine.result_cache is None:
        engine.result_cache = ResultCache(engine)
    return await engine.result_cache.call(context, tool, key)


def cache_key(context: RequestContext, tool: Tool) -> Key | None:
    """None if the caller is unknown, or the call is a later round of one that asks."""
    params: CallToolParams = context.request.params
    if params.request_state is not UNSET or params.input_responses is not UNSET:
        return None
    caller = ""
    if not tool.cache_shared:
        owner, principal = lazy.caller_state.state_owner(context), context.principal
        if owner is None:
            return None
        rights = [] if principal is None else [principal.key, principal.client, sorted(principal.scopes)]
        caller = encode([owner, *rights]).decode()
    return id(tool), arguments_digest(params.arguments), caller


class ResultCache:
    """Cached results and calls in flight, for the event loop only."""

    def __init__(self, engine: "Engine", max_entries: int = 10_000, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._engine = engine
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: dict[Key, Entry] = {}  # the least recently used first
        self._bytes = 0
        self._flights: dict[Key, asyncio.Future[Outcome]] = {}
        most = engine.options.max_concurrency + engine.options.max_queue
        self._waiting = Limit(most, 0, subject="The server")

    async def call(self, context: RequestContext, tool: Tool, key: Key) -> Result:
        while (cached := self._find(key)) is None:
            if (flight := self._flights.get(key)) is None:
                return await self._lead(context, tool, key)
            async with self._waiting:
                outcome = await asyncio.shield(flight)
            if outcome == "run":
                return await run_tool(self._engine, context)
            if isinstance(outcome, ToolResult):
                return _copied(outcome)
        return _copied(cached)

    async def _lead(self, context: RequestContext, tool: Tool, key: Key) -> Result:
        """Run the call. If its client cancels it, another one leads."""
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        outcome: Outcome = "try again"
        try:
            result = await run_tool(self._engine, context)
            outcome = "run"
            if isinstance(result, ToolResult) and context.server_requests is None and has_begun(context):
                outcome = _encoded(result)
                if not result.is_error:
                    self._store(key, tool, outcome)
            return result
        except Exception:
            outcome = "run"
            raise
        finally:
            del self._flights[key]
            flight.set_result(outcome)

    def _find(self, key: Key) -> ToolResult | None:
        entry = self._drop(key)
        if entry is None or monotonic() >= entry.expires_at:
            return None
        self._put(key, entry)
        return entry.result

    def _store(self, key: Key, tool: Tool, result: ToolResult) -> None:
        assert tool.cache is not None
        size = len(encode(result)) + len(key[2])
        if size > self._max_bytes:
            return  # it would evict all others
        self._drop(key)
        self._put(key, Entry(tool, result, monotonic() + tool.cache, size))
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _put(self, key: Key, entry: Entry) -> None:
        self._entries[key] = entry
        self._bytes += entry.size

    def _drop(self, key: Key) -> Entry | None:
        entry = self._entries.pop(key, None)
        self._bytes -= 0 if entry is None else entry.size
        return entry


def _encoded(result: ToolResult) -> ToolResult:
    """A result that no middleware can change: its structured value is encoded."""
    if result.structured is UNSET or isinstance(result.structured, Raw):
        return _copied(result)
    return _copied(msgspec.structs.replace(result, structured=Raw(encode(result.structured))))


def _copied(result: ToolResult) -> ToolResult:
    return result if result.meta is None else msgspec.structs.replace(result, meta=copy.deepcopy(result.meta))
