"""Tool search: `search_tools` and `call_tool` in place of a list that costs a model too many tokens."""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail.engine.context import Context, request_of
from dovetail.engine.request_context import RequestContext
from dovetail.errors import ToolError
from dovetail.protocol.jsonrpc import UNREADABLE, check_depth, members
from dovetail.protocol.methods import EMPTY_OBJECT
from dovetail.protocol.results import Result
from dovetail.protocol.types import ToolDefinition, estimate_tokens, shape_definition
from dovetail.registry.catalog import Snapshot
from dovetail.registry.search_index import SearchIndex
from dovetail.registry.tools import Tool, ToolOptions, compile_tool
from dovetail.schema.constraints import Field

if TYPE_CHECKING:
    from dovetail.engine.dispatch import Layer
    from dovetail.engine.engine import Engine

Names = Iterable[str | ToolDefinition]
SearchFunction = Callable[[str, Sequence[ToolDefinition], int], Names | Awaitable[Names]]

CALL_TOOL = "call_tool"
FOUND = ("name", "title", "description", "inputSchema", "annotations")  # what a search gives of each tool
MAX_TOKENS = 20_000  # of what one search gives, but for its first tool; some APIs have tools of 8,000
LAST_NUMBERS = 1 << 63  # behind the tools of all mounts, in lists
MAX_CACHED_TOOLS = 20_000  # in all views together; an index takes about six kilobytes for each
VIEW_COST = 20  # tools: what a view takes besides them

log = logging.getLogger("dovetail")


# ── calls ──


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `call_tool`."""

    name: str
    arguments: Raw = EMPTY_OBJECT


_decode_call = msgspec.json.Decoder(ToolCall).decode


def _read_call(given: Raw, *, lenient: bool) -> ToolCall | None:
    """The call that `call_tool` is to make; None if it is none, and the function of `call_tool` refuses it."""
    try:
        call = _decode_call(given)
        arguments = bytes(call.arguments)
        if lenient and arguments.startswith(b'"'):  # models like to send an object as a string
            arguments = msgspec.json.decode(arguments).encode()
            check_depth(arguments)
        if arguments == b"null":
            arguments = b"{}"
        members(arguments)
    except UNREADABLE:
        return None
    return None if call.name == CALL_TOOL else ToolCall(call.name, Raw(arguments))


def unwrap_calls(engine: "Engine", inner: "Layer") -> "Layer":
    """The outermost layer: a call of `call_tool` becomes a call of the tool that it names, for all who see it."""
    lenient = engine.options.lenient_arguments

    def layer(context: RequestContext) -> Awaitable[Result]:
        request = context.request
        if request.method == "tools/call" and request.params.name == CALL_TOOL and context.served is None:
            call = _read_call(request.params.arguments, lenient=lenient)
            if call is not None:
                params = replace(request.params, name=call.name, arguments=call.arguments)
                context.request, context.is_indirect = replace(request, params=params), True
        return inner(context)

    return layer


async def call_tool(
    name: Annotated[str, Field(description="The name of the tool, as search_tools gives it")],
    arguments: Annotated[dict[str, Any], Field(description="As its inputSchema says")] = {},  # noqa: ARG001, B006
) -> str:
    """Call a tool of this server that is not in your list. Find it, and its inputSchema, with search_tools first."""
    problem = "can't call itself" if name == CALL_TOOL else "can't read arguments that are nested too deeply"
    raise ToolError(f"call_tool {problem}; give it the name of a tool that search_tools has found, and its arguments")


# ── searches ──


class View:
    """The tools that callers with the same rights see in one version of the catalog, and their index."""

    def __init__(self, tools: Sequence[Tool], listed: Snapshot[Tool]) -> None:
        self.tools = tools
        self.listed = listed  # what they are shown in lists
        self._index: SearchIndex | None = None
        self._building: asyncio.Task[SearchIndex] | None = None

    async def search(self, engine: "Engine", query: str, limit: int) -> list[Tool]:
        """The best tools. The index is built at the first search, once, even if the callers that wait for it go."""
        if (index := self._index) is None:
            loop = asyncio.get_running_loop()
            if self._building is None or self._building.done() or self._building.get_loop() is not loop:
                self._building = loop.create_task(self._build(engine), context=contextvars.Context())
            index = await asyncio.shield(self._building)
        return [self.tools[number] for number in index.search(query, limit)]

    async def _build(self, engine: "Engine") -> SearchIndex:
        build = partial(SearchIndex, [tool.definition for tool in self.tools])
        self._index = index = await engine.threads.run(build, label="the index of the tools")
        return index


class ToolSearch:
    """The search of one server: what its callers are shown, and the two tools that lead to the others."""

    def __init__(self, engine: "Engine") -> None:
        self._engine, self._option = engine, engine.options.tool_search
        self._views: dict[tuple[Snapshot[Tool], Hashable], View] = {}  # the oldest first
        output, lenient = engine.options.output, engine.options.lenient_arguments
        compiled = partial(compile_tool, injectable=Context, output=output, lenient=lenient)
        reads = ToolOptions(annotations={"readOnlyHint": True, "openWorldHint": False})
        acts = ToolOptions(annotations={"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True})
        self.tools = {tool.name: tool for tool in (compiled(self.search_tools, reads), compiled(call_tool, acts))}
        engine.tools.reserve(self.tools)

    async def search_tools(
        self,
        query: Annotated[str, Field(description="What is to be done, in a few words")],
        ctx: Context,
        limit: Annotated[int, Field(ge=1, le=20, description="How many tools to give")] = 5,
    ) -> dict[str, Any]:
        """Find tools of this server by what they do. Most of them are not in your list; call them with call_tool."""
        engine, context = request_of(ctx)
        if engine.before_list:
            await engine.fetch_catalogs(context)
        view = await self.view(context, engine.tools.snapshot_for(engine.rules_of(context)))
        rank = self._option
        tools = await self._ranked(partial(rank, query), view.tools, limit) if callable(rank) else None
        if tools is None:
            tools = await view.search(engine, query, limit)
        shown = [engine.shown(tool) for tool in tools]
        fitting = sum(cost <= MAX_TOKENS for cost in accumulate(map(estimate_tokens, shown)))
        shaped = (shape_definition(each, context.request.revision) for each in shown[: max(1, fitting)])
        found = [{key: value for key, value in msgspec.to_builtins(each).items() if key in FOUND} for each in shaped]
        return {"tools": found, "total": len(view.tools)}

    async def _ranked(self, rank: Callable[..., Any], tools: Sequence[Tool], limit: int) -> list[Tool] | None:
        """What the author's function finds, of what the caller may see; None if it fails."""
        known = {tool.name: tool for tool in tools}
        call = partial(rank, [tool.definition for tool in tools], limit)
        try:
            given = await self._engine.threads.run(call, label="tool_search")
            if inspect.isawaitable(given):  # of an `async def`, which runs here
                given = await given
            names = dict.fromkeys(getattr(each, "name", each) for each in given)
            return [known[name] for name in names if name in known][:limit]
        except Exception:
            log.exception("tool_search: the function failed, so the tools are ranked by their words")
            return None

    # ── views ──

    async def view(self, context: RequestContext, snapshot: Snapshot[Tool]) -> View:
        """The view of a caller: made once for all who see the same of a snapshot."""
        rules, tools = snapshot.rules, snapshot.items
        visibility: Hashable = () if rules is None else lazy.access.visibility(rules, context.principal)
        if (known := self._views.get((snapshot, visibility))) is not None:
            return known
        if rules is not None:
            tools = (await lazy.access.visible_page(self._engine, context, snapshot, 0, len(tools))).items
        if visibility is None:  # then the tools themselves tell which callers see the same
            visibility = tuple(tool.name for tool in tools)
        return self._views.get((snapshot, visibility)) or self._add_view((snapshot, visibility), tools)

    def _add_view(self, key: tuple[Snapshot[Tool], Hashable], tools: Sequence[Tool]) -> View:
        """A new view, for which the oldest ones make room; those of older snapshots are never asked for again."""
        added = self._views[key] = View(tools, self._short_list(key[0]) if self._is_on(tools) else key[0])
        cached = sum(VIEW_COST + len(view.tools) for view in self._views.values())
        while cached > MAX_CACHED_TOOLS and len(self._views) > 1:
            oldest = self._views.pop(next(iter(self._views)))
            cached -= VIEW_COST + len(oldest.tools)
        return added

    def _is_on(self, tools: Sequence[Tool]) -> bool:
        costs = map(estimate_tokens, map(self._engine.shown, tools))
        return self._option is True or any(total > self._engine.options.token_budget for total in accumulate(costs))

    def _short_list(self, snapshot: Snapshot[Tool]) -> Snapshot[Tool]:
        """The list of the search. Its rules are those of the whole one, by which a caller sees this one at all."""
        shown = {number: tool for number, tool in snapshot.items_after(0) if tool.always_visible}
        shown |= dict(enumerate(self.tools.values(), LAST_NUMBERS))
        return replace(snapshot, numbers=[*shown], items=[*shown.values()])
