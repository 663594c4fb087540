"""Cached results of tools (`@server.tool(cache=60)`), of one process: by arguments and caller.

Equal calls at the same time are one flight: the first one runs, and the others get its result. What depends on more
than arguments and caller is for no other call: a result after questions or steps, and a refusal.
"""

import asyncio
import hashlib
from time import monotonic
from typing import TYPE_CHECKING

from dovetail import engine as lazy
from dovetail.engine.call_tool import call_tool, has_begun
from dovetail.engine.request_context import RequestContext
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.methods import CallToolParams
from dovetail.protocol.request_state import arguments_digest
from dovetail.protocol.results import Result, ToolResult
from dovetail.registry.outputs import restore_result, store_result
from dovetail.registry.registration import Caching
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

Key = tuple[int, bytes]  # the id of the tool, and a digest of the arguments and the caller
Entry = tuple[bytes, float, Tool]  # the result, when it expires, and its tool: held, so that no other gets its id


async def call_cached(engine: "Engine", context: RequestContext, tool: Tool) -> Result:
    """The result of a call of a tool with `cache=`: from the cache, or from a call in flight, or its own."""
    params: CallToolParams = context.request.params
    parts: list[object] = [arguments_digest(params.arguments)]
    assert isinstance(tool.route, Caching)
    if not tool.route.shared:
        owner, principal = lazy.caller_state.state_owner(context), context.principal
        if owner is None:
            return await call_tool(engine, context, tool)
        parts += [owner, *([] if principal is None else [principal.key, principal.client, sorted(principal.scopes)])]
    key = id(tool), hashlib.sha256(encode(parts)).digest()
    engine.result_cache = engine.result_cache or ResultCache(engine)
    return await engine.result_cache.call(context, tool, key)


class ResultCache:
    """Cached results and calls in flight, for the event loop only."""

    def __init__(self, engine: "Engine", max_entries: int = 10_000, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._engine = engine
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: dict[Key, Entry] = {}  # the least recently used first
        self._bytes = 0
        self._flights: dict[Key, asyncio.Future[bytes | None]] = {}  # None: a result that is for no other call

    async def call(self, context: RequestContext, tool: Tool, key: Key) -> Result:
        while (stored := self._find(key)) is None:
            if (flight := self._flights.get(key)) is None:
                if (metrics := self._engine.metrics) is not None:
                    metrics.add(lazy.metrics.CACHE, lazy.metrics.tool_label(self._engine, tool.name), "miss")
                return await self._lead(context, tool, key)
            async with self._engine.waiting:
                await asyncio.wait([flight])
            if not flight.cancelled():  # else another call leads
                stored = flight.result()
                break
        if (metrics := self._engine.metrics) is not None:
            outcome = "miss" if stored is None else "hit"
            metrics.add(lazy.metrics.CACHE, lazy.metrics.tool_label(self._engine, tool.name), outcome)
        return await call_tool(self._engine, context, tool) if stored is None else restore_result(stored)

    async def _lead(self, context: RequestContext, tool: Tool, key: Key) -> Result:
        """Run the call, for itself and for those that wait."""
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        stored: bytes | None = None
        try:
            result = await call_tool(self._engine, context, tool)
            if isinstance(result, ToolResult) and context.server_requests is None and has_begun(context):
                stored = store_result(result)
                if not result.is_error:
                    self._store(key, tool, stored)
            flight.set_result(stored)
            return result
        except Exception:
            flight.set_result(None)
            raise
        finally:
            del self._flights[key]
            flight.cancel()  # if there is nothing in it: this call was cancelled

    def _find(self, key: Key) -> bytes | None:
        result, expires_at, _ = self._entries.get(key, (None, 0.0, None))
        if result is None or monotonic() >= expires_at:
            return None
        self._entries[key] = self._entries.pop(key)  # now it is the last one
        return result

    def _store(self, key: Key, tool: Tool, result: bytes) -> None:
        assert isinstance(tool.route, Caching)
        expired, _, _ = self._entries.pop(key, (b"", 0.0, None))
        self._entries[key] = (result, monotonic() + tool.route.seconds, tool)
        self._bytes += len(result) - len(expired)
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            oldest, _, _ = self._entries.pop(next(iter(self._entries)))
            self._bytes -= len(oldest)
