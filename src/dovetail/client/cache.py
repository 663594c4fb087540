"""Caches of a client: responses with a `ttlMs`, as immutable bytes, and the tools of its server."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

from dovetail.client.dispatcher import Params
from dovetail.client.results import ListPage
from dovetail.client.transports.base import ToolHeaders
from dovetail.engine.subscriptions import Change
from dovetail.errors import DovetailError, ServerError, SetupError
from dovetail.protocol.headers import header_parameters
from dovetail.protocol.jsonrpc import UNREADABLE, encode
from dovetail.protocol.types import IDEMPOTENCY_KEY, WRAPPED_KEY, ToolDefinition

if TYPE_CHECKING:
    from dovetail.client.session import ClientSession, Timeout

log = logging.getLogger("dovetail.client")

READ, DISCOVER = "resources/read", "server/discover"
INVALIDATED_BY = {  # the kind of a change: methods whose responses it invalidates
    "tools": ("tools/list",),
    "prompts": ("prompts/list",),
    "resources": ("resources/list", "resources/templates/list", "skills/list", "skills/get"),
    "updated": (READ,),
}
CACHEABLE = frozenset({DISCOVER, *(method for methods in INVALIDATED_BY.values() for method in methods)})
ROUND_PARAMS = frozenset({"inputResponses", "requestState"})  # of a second round, whose result is not cached

_Key = tuple[str, bytes]


class _Hints(msgspec.Struct, frozen=True, rename="camel"):  # of any type: a malformed hint must not fail the request
    ttl_ms: Any = None
    result_type: Any = "complete"


class _Entry(NamedTuple):
    raw: Raw
    expires_at: float
    size: int


class ResponseCache:
    """Cached responses; with `max_entries=0` nothing is cached."""

    def __init__(self, max_entries: int = 1_000, max_bytes: int = 16 * 1024 * 1024) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: dict[_Key, _Entry] = {}  # the least recently used first
        self._bytes = 0
        self._owner = ""
        self.generation = 0  # counts invalidations: a response to an earlier request may be out of date

    def __len__(self) -> int:
        return len(self._entries)

    def set_owner(self, identity: str) -> None:
        """Set the caller by identity or token. A new one clears the cache: its responses were for another caller."""
        if identity != self._owner:
            self._owner = identity
            self.clear()

    def find(self, method: str, params: Params) -> Raw | None:
        key = (method, encode(params))
        entry = self._drop(key)
        if entry is None or monotonic() >= entry.expires_at:
            return None
        self._put(key, entry)
        return entry.raw

    def store(self, method: str, params: Params, raw: Raw, generation: int) -> None:
        """Cache a response if it is cacheable. `generation` is that of the time of the request."""
        seconds = ttl_seconds(raw)
        if seconds <= 0 or generation != self.generation or method not in CACHEABLE or ROUND_PARAMS & params.keys():
            return
        key = (method, encode(params))
        self._drop(key)
        size = len(raw) + len(key[1])
        if size > self._max_bytes:
            return  # it would evict all others
        self._put(key, _Entry(raw.copy(), monotonic() + seconds, size))
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def invalidate(self, change: Change) -> None:
        """Drop all responses that a change concerns; one updated resource drops those of all resources."""
        self.generation += 1
        self.invalidate_methods(*INVALIDATED_BY[change.kind])

    def invalidate_methods(self, *methods: str) -> bool:
        """Drop the responses of these methods; returns whether there were any."""
        old = [key for key in self._entries if key[0] in methods]
        for key in old:
            self._drop(key)
        return bool(old)

    def clear(self) -> None:
        self.generation += 1
        self._entries.clear()
        self._bytes = 0

    def _put(self, key: _Key, entry: _Entry) -> None:
        self._entries[key] = entry
        self._bytes += entry.size

    def _drop(self, key: _Key) -> _Entry | None:
        entry = self._entries.pop(key, None)
        self._bytes -= entry.size if entry is not None else 0
        return entry


def ttl_seconds(raw: Raw) -> float:
    """The ttl of a response in seconds; 0 if the server gives no valid one."""
    try:
        hints = msgspec.json.decode(raw, type=_Hints)
    except UNREADABLE:
        return 0.0
    if type(hints.ttl_ms) is not int or hints.ttl_ms <= 0 or hints.result_type != "complete":
        return 0.0
    return min(hints.ttl_ms, 24 * 3600 * 1000) / 1000


TOOLS = ("tools/list", "tools", ToolDefinition)
FASTMCP_WRAPS = "x-fastmcp-wrap-result"  # in an output schema; FastMCP wraps in every revision


def offers_tasks(capabilities: Any) -> bool:
    """Whether a server of 2025-11-25 makes tasks of calls."""
    for name in ("tasks", "requests", "tools", "call"):
        capabilities = capabilities.get(name) if isinstance(capabilities, Mapping) else None
    return capabilities is not None


class ToolCache:
    """The listed tools of one server; a change invalidates them."""

    def __init__(self, session: "ClientSession") -> None:
        self._session = session
        self._tools: dict[str, ToolDefinition] = {}
        self._missing: set[str] = set()  # names that the server does not list
        self._lock = asyncio.Lock()  # concurrent calls share one listing
        self._generation = 0  # counts invalidations: a listing that began before one is not cached

    def invalidate(self) -> None:
        self._generation += 1
        self._tools = {}
        self._missing = set()

    async def list_all(self, *, fresh: bool, timeout: "Timeout") -> list[ToolDefinition]:
        generation = self._generation
        tools, tool_headers = self._usable(await self._session.pages(*TOOLS, fresh=fresh, timeout=timeout))
        if self._session.tool_headers is not None:
            self._session.tool_headers.clear()
            self._session.tool_headers.update(tool_headers)
        if generation == self._generation:
            self._tools = {tool.name: tool for tool in tools}
        return tools

    async def page(self, cursor: str | None, *, fresh: bool, timeout: "Timeout") -> ListPage[ToolDefinition]:
        page = await self._session.page(*TOOLS, cursor, fresh=fresh, timeout=timeout)
        return ListPage(self._usable(page.items)[0], page.next_cursor)

    def _usable(self, tools: Sequence[ToolDefinition]) -> tuple[list[ToolDefinition], ToolHeaders]:
        """The tools, without those whose headers are invalid and that HTTP can't call; and the headers by tool."""
        if self._session.tool_headers is None:
            return [*tools], {}
        usable, tool_headers = [], {}
        for tool in tools:
            try:
                tool_headers[tool.name] = header_parameters(tool.input_schema, secrets=True)
            except SetupError as wrong:
                log.warning("the tool %s is left out: %s", tool.name, wrong)
            else:
                usable.append(tool)
        return usable, tool_headers

    async def find(self, name: str, *, timeout: "Timeout") -> ToolDefinition | None:
        """The tool as the server lists it now; None if it is not listed, or the list changes during five readings."""
        for _ in range(5):
            async with self._session.time_limit(self._session.seconds(timeout), "tools/list: no answer"), self._lock:
                generation = self._generation
                if name not in self._tools and name not in self._missing:
                    await self.list_all(fresh=True, timeout=timeout)
            if generation == self._generation:
                if name not in self._tools:
                    self._missing.add(name)
                return self._tools.get(name)
        return None

    async def load(self, name: str, timeout: "Timeout") -> ToolDefinition | None:
        """Find a tool, with its headers, before it is called; a server that refuses to list tools may still have it."""
        try:
            return await self.find(name, timeout=timeout)
        except ServerError:
            self._missing.add(name)
            return None

    async def may_repeat(self, name: str, timeout: "Timeout") -> bool:
        """Whether calls of the tool may be repeated. Only a server that declares to have such tools has to list any."""
        if self._session.keyed_calls is None or not self._session.revision.object_meta:  # else tools can't say so
            return False
        tool = await self.load(name, timeout)
        return tool is not None and IDEMPOTENCY_KEY in (tool.meta or {})

    async def may_ask_for_task(self, name: str, timeout: "Timeout") -> bool:
        """Whether a call of the tool may ask for a task, in 2025-11-25. Later revisions leave that to the server."""
        session = self._session
        if not (session.revision.core_tasks and offers_tasks(session.negotiated.capabilities)):
            return False
        tool = await self.load(name, timeout)
        return tool is not None and (tool.execution or {}).get("taskSupport") in ("optional", "required")

    async def is_wrapped(self, name: str, timeout: "Timeout") -> bool:
        """Whether the tool wraps a value as {"result": value}. If listing it fails, False: the call itself has run."""
        try:
            tool = await self.load(name, timeout)
        except (DovetailError, TimeoutError) as failure:
            log.info("the result of %s is returned as the server sent it: %s", name, failure)
            return False
        if tool is None:
            return False
        ours = not self._session.revision.any_structured_output and bool((tool.meta or {}).get(WRAPPED_KEY))
        return ours or (tool.output_schema or {}).get(FASTMCP_WRAPS) is True
