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
from dovetail.engine.call_tool import error_result, excerpt
from dovetail.engine.context import Context, request_of
from dovetail.engine.request_context import RequestContext
from dovetail.errors import ToolError
from dovetail.protocol.jsonrpc import UNREADABLE, check_depth, members
from dovetail.protocol.methods import EMPTY_OBJECT
from dovetail.protocol.results import Result, ToolResult
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
LAST_NUMBERS = 1 << 63  # behind the tools of all mounts, in lists
MAX_CACHED_TOOLS = 20_000  # in all views together; an index takes up to six kilobytes for each
NEAR_NAMES = 3  # in the error for an unknown one

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


class FoundTools(msgspec.Struct, frozen=True, omit_defaults=True):
    """The best tools first; `total` is the number of all that can be found."""

    tools: list[dict[str, Any]]
    total: int
    hint: str | None = None


class View:
    """The tools that callers with the same rights see in one version of the catalog, and their index."""

    def __init__(self, engine: "Engine", tools: Sequence[Tool], listed: Snapshot[Tool]) -> None:
        self.tools = tools
        self.listed = listed  # what they are shown in lists
        self._engine = engine
        self._index: SearchIndex | None = None
        self._building: asyncio.Task[SearchIndex] | None = None

    async def search(self, query: str, limit: int) -> list[Tool]:
        return [self.tools[number] for number in (await self.index()).search(query, limit)]

    async def index(self) -> SearchIndex:
        """The index, built in a thread at the first search; others that come meanwhile wait for the same build."""
        if self._index is not None:
            return self._index
        loop = asyncio.get_running_loop()
        if self._building is None or self._building.done() or self._building.get_loop() is not loop:
            self._building = loop.create_task(self._build(), context=contextvars.Context())
        return await asyncio.shield(self._building)

    async def _build(self) -> SearchIndex:
        build = partial(SearchIndex, [tool.definition for tool in self.tools])
        self._index = index = await self._engine.threads.run(build, label="the index of the tools")
        return index


class ToolSearch:
    """The search of one server: what its callers are shown, and the two tools that lead to the others."""

    def __init__(self, engine: "Engine") -> None:
        self._engine, self._option = engine, engine.options.tool_search
        self._views: dict[tuple[Snapshot[Tool], Hashable], View] = {}  # the least recently used first
        reads = {"readOnlyHint": True, "openWorldHint": False}
        may_do_anything = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
        tools = self._compile(self.search_tools, reads), self._compile(call_tool, may_do_anything)
        self.tools = {tool.name: tool for tool in tools}
        engine.tools.reserve(self.tools)

    def _compile(self, function: Callable[..., Any], annotations: dict[str, bool]) -> Tool:
        given, options = ToolOptions(annotations=annotations), self._engine.options
        return compile_tool(
            function, given, injectable=Context, output=options.output, lenient=options.lenient_arguments
        )

    async def search_tools(
        self,
        query: Annotated[str, Field(description="What is to be done, in a few words")],
        ctx: Context,
        limit: Annotated[int, Field(ge=1, le=20, description="How many tools to give")] = 5,
    ) -> FoundTools:
        """Find tools of this server by what they do. Most of them are not in your list; call them with call_tool."""
        _, context = request_of(ctx)
        view = await self._view_of(context)
        tools = await self._by_function(query, view.tools, limit)
        if tools is None:
            tools = await view.search(query, limit)
        hint = None if tools else " ".join(["No tool fits; try other words, such as:", *(await view.index()).topics])
        shaped = (shape_definition(tool.definition, context.request.revision) for tool in tools)
        found = [{key: value for key, value in msgspec.to_builtins(each).items() if key in FOUND} for each in shaped]
        return FoundTools(found, len(view.tools), hint)

    async def unknown_tool(self, context: RequestContext) -> ToolResult:
        """The result of a call of `call_tool` with a name that the caller does not see."""
        name = context.request.params.name
        near = await (await self._view_of(context)).search(name, NEAR_NAMES)
        hint = f" Near it: {', '.join(tool.name for tool in near)}." if near else ""
        text = f"There is no tool {excerpt(name)!r}.{hint} Find tools with search_tools, and call them by its names"
        return error_result(text, has_schema=False)

    async def _by_function(self, query: str, tools: Sequence[Tool], limit: int) -> list[Tool] | None:
        """What the author's function finds; None if there is none, or it fails."""
        if not callable(function := self._option):
            return None
        is_async = inspect.iscoroutinefunction(function if inspect.isroutine(function) else type(function).__call__)
        call: Callable[[], Any] = partial(function, query, [tool.definition for tool in tools], limit)
        try:
            given = await (call() if is_async else self._engine.threads.run(call, label="tool_search"))
            known = {tool.name: tool for tool in tools}
            names = dict.fromkeys(getattr(each, "name", each) for each in given)
            if unknown := [name for name in names if name not in known]:
                log.warning("tool_search: %r gave %r, which is no tool of this caller", function, unknown[0])
            return [known[name] for name in names if name in known][:limit]
        except Exception:
            log.exception("tool_search: %r failed, so the tools are ranked by their words", function)
            return None

    # ── views ──

    async def listed(self, context: RequestContext, snapshot: Snapshot[Tool]) -> Snapshot[Tool]:
        """What a caller is shown of a snapshot: all of it, or a few tools and the search."""
        return (await self._view(context, snapshot)).listed

    async def _view_of(self, context: RequestContext) -> View:
        engine = self._engine
        if engine.before_list:
            await engine.fetch_catalogs(context)
        return await self._view(context, engine.tools.snapshot_for(engine.rules_of(context)))

    async def _view(self, context: RequestContext, snapshot: Snapshot[Tool]) -> View:
        tools, rules = snapshot.items, snapshot.rules
        visibility: Hashable = () if rules is None else lazy.access.visibility(rules, context.principal)
        if rules is not None and (visibility is None or (snapshot, visibility) not in self._views):
            tools = (await lazy.access.visible_page(self._engine, context, snapshot, 0, len(tools))).items
            if visibility is None:  # then the tools themselves tell which callers see the same
                visibility = tuple(tool.name for tool in tools)
        view = self._views.pop((snapshot, visibility), None)
        if view is None:
            view = View(self._engine, tools, self._short_list(snapshot) if self._is_on(tools) else snapshot)
            self._drop_views(snapshot.version, room=len(tools))
        self._views[snapshot, visibility] = view  # now it is the last one
        return view

    def _is_on(self, tools: Sequence[Tool]) -> bool:
        shown = (
            {"name": each.name, "description": each.description, "inputSchema": each.input_schema} for each in tools
        )
        budget = self._engine.options.token_budget
        return self._option is True or any(total > budget for total in accumulate(map(estimate_tokens, shown)))

    def _short_list(self, snapshot: Snapshot[Tool]) -> Snapshot[Tool]:
        """The list of the search. Its rules are those of the whole one, by which a caller sees this one at all."""
        shown = {number: tool for number, tool in snapshot.items_after(0) if tool.always_visible}
        shown |= dict(enumerate(self.tools.values(), LAST_NUMBERS))
        return replace(snapshot, numbers=[*shown], items=[*shown.values()])

    def _drop_views(self, version: int, room: int) -> None:
        """Drop the views of other versions of the catalog, and the oldest ones, to make room for so many tools."""
        self._views = {key: view for key, view in self._views.items() if key[0].version == version}
        while self._views and room + sum(len(view.tools) for view in self._views.values()) > MAX_CACHED_TOOLS:
            del self._views[next(iter(self._views))]
