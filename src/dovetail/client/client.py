"""`Client`: a server, a command or a URL comes in, and what that server offers goes out as Python values.

It finds out by itself which revision the server speaks, and its methods mean the same in all of them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import UNSET, Raw

from dovetail import __version__
from dovetail.client.answering import Answering
from dovetail.client.caching import DISCOVER, READ, ResponseCache
from dovetail.client.calling import outcome_of
from dovetail.client.channel import Channel, Seconds
from dovetail.client.conversation import ProgressHandler, Transcript
from dovetail.client.credentials import ClientAuth
from dovetail.client.elicitation import ElicitationCompleteHandler, ElicitationHandler
from dovetail.client.era import Identity, pinned_revision
from dovetail.client.listening import Listening
from dovetail.client.results import CallResult, ListPage, LogHandler, WireCallResult, read, read_object
from dovetail.client.roots import RootSource
from dovetail.client.rounds import Send
from dovetail.client.sampling import SamplingHandler
from dovetail.client.targets import WebTransport, link_to
from dovetail.engine.streams import Change
from dovetail.errors import HEADER_MISMATCH, NotApproved, ServerError, SetupError, ToolError
from dovetail.protocol.content import ResourceContents
from dovetail.protocol.definitions import (
    WRAPPED_KEY,
    Implementation,
    PromptDefinition,
    ResourceDefinition,
    TemplateDefinition,
    ToolDefinition,
)
from dovetail.protocol.features import Completion
from dovetail.protocol.methods import ListenFilter, LogLevel
from dovetail.protocol.results import PromptResult

Approve = Callable[[ToolDefinition, dict[str, Any]], bool | Awaitable[bool]]

MAX_LISTINGS = 5  # of tools that change while they are listed
FASTMCP_WRAPS = "x-fastmcp-wrap-result"  # in an output schema; FastMCP wraps in every revision
CLIENT_INFO = {"name": "dovetail", "version": __version__}
TOOLS = ("tools/list", "tools", ToolDefinition)
RESOURCES = ("resources/list", "resources", ResourceDefinition)
TEMPLATES = ("resources/templates/list", "resourceTemplates", TemplateDefinition)
PROMPTS = ("prompts/list", "prompts", PromptDefinition)


class _Read(msgspec.Struct, frozen=True):
    contents: list[ResourceContents]


class _Completed(msgspec.Struct, frozen=True):
    completion: Completion


class Client:
    """A connection to one server, open inside `async with`.

    async with Client(server) as client:      # or Client(["python", "server.py"]), Client("http://127.0.0.1:8000/mcp")
        result = await client.call_tool("add", {"a": 1, "b": 2})
        assert result.data == 3

    `approve` is asked before a tool runs, `timeout` bounds every request, `transcript` sees every message as it was
    sent or received. Handlers may be `def` or `async def`. What the server asks is answered by `elicitation_handler`,
    `sampling_handler` and `roots`, in at most `max_rounds` rounds of a request. `env` is added to the environment of a
    command, `headers` go out with every request to a URL, `auth` is a token for it or a way to sign in (`OAuth()`,
    `ClientCredentials(...)` of `dovetail.client.oauth`), and `transport` says "http" or "sse" where that should not be
    found out. With `cache`, lists and resources are used again for as long as the server allows; `fresh=True` asks it.
    """

    def __init__(
        self,
        target: Any,
        *,
        protocol_version: str | None = None,
        client_info: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        approve: Approve | None = None,
        timeout: float | None = 30,
        transcript: Transcript | None = None,
        log_handler: LogHandler | None = None,
        progress_handler: ProgressHandler | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        elicitation_complete_handler: ElicitationCompleteHandler | None = None,
        sampling_handler: SamplingHandler | None = None,
        roots: RootSource | None = None,
        max_rounds: int = 32,
        cache: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        auth: ClientAuth | None = None,
        transport: WebTransport | None = None,
    ) -> None:
        pinned = pinned_revision(protocol_version)
        if max_rounds < 0:
            raise SetupError(f"Client: max_rounds={max_rounds} must be 0 or more")
        self._answering = Answering(
            elicitation_handler=elicitation_handler,
            elicitation_complete_handler=elicitation_complete_handler,
            sampling_handler=sampling_handler,
            roots=roots,
            capabilities=capabilities,
        )
        self._channel = Channel(
            link_to(target, env=env, cwd=cwd, headers=headers, auth=auth, transport=transport, pinned=pinned),
            Identity(client_info or CLIENT_INFO, self._answering.declared),
            self._answering,
            pinned=pinned,
            timeout=timeout,
            transcript=transcript,
            log_handler=log_handler,
            on_change=self._changed,
            max_rounds=max_rounds,
            cache=ResponseCache() if cache else ResponseCache(max_entries=0),
        )
        self._approve = approve
        self._progress_handler = progress_handler
        self._tools: dict[str, ToolDefinition] = {}  # as they were listed last, if nothing has changed since
        self._unlisted: set[str] = set()  # names that were looked for in vain since
        self._changes = 0  # how often the server has said that its tools changed

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self, connect_timeout: float | None = None) -> None:
        """Reach the server; `async with` does it for you. TimeoutError after so many seconds without it."""
        self._forget_tools()
        await self._channel.open(connect_timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the server; `async with` does it for you. Whoever still waits for an answer gets ConnectionLost."""
        await self._channel.close()

    # ── who the server is ──

    @property
    def protocol_version(self) -> str:
        return self._channel.revision.name

    @property
    def server_info(self) -> Implementation | None:
        """None if the server does not say who it is."""
        return self._channel.agreement.server_info

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._channel.agreement.capabilities

    @property
    def instructions(self) -> str | None:
        return self._channel.agreement.instructions

    async def ping(self) -> None:
        """Up to 2025-11-25."""
        await self.request("ping")

    async def discover(self, *, fresh: bool = False) -> dict[str, Any]:
        """What the server says about itself; since 2026-07-28."""
        return read_object(DISCOVER, await self._channel.fetch(DISCOVER, {}, fresh=fresh))

    # ── tools ──

    async def list_tools(self, *, fresh: bool = False) -> list[ToolDefinition]:
        changes = self._changes
        tools = self._channel.usable(await self._channel.pages(*TOOLS, fresh=fresh))
        if changes == self._changes:  # else the list may be older than the change
            self._tools = {tool.name: tool for tool in tools}
        return tools

    async def list_tools_page(self, cursor: str | None = None, *, fresh: bool = False) -> ListPage[ToolDefinition]:
        page = await self._channel.page(*TOOLS, cursor, fresh=fresh)
        return ListPage(self._channel.usable(page.items), page.next_cursor)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Seconds = UNSET,
        progress_handler: ProgressHandler | None = None,
        log_level: LogLevel | None = None,
        raise_on_error: bool = True,
    ) -> CallResult:
        """Call a tool. One that fails raises ToolError with its text; with `raise_on_error=False` it is returned.

        `log_level` asks for the logs of this one call; since 2026-07-28.
        """
        given = dict(arguments or {})
        if self._approve is not None:
            await self._ask_approval(self._approve, name, given)
        send = partial(
            self._channel.send,
            "tools/call",
            timeout=timeout,
            progress_handler=progress_handler or self._progress_handler,
            log_level=log_level,
        )
        if self._channel.mirrors:
            send = partial(self._send_with_headers, name, send)
        raw = await self._channel.finish("tools/call", {"name": name, "arguments": given}, send)
        answer = read("tools/call", raw, WireCallResult)
        result = answer.unfold(wrapped=answer.looks_wrapped and await self._wraps(name))
        if result.is_error and raise_on_error:
            raise ToolError(result.text or f"The tool {name} failed and did not say why")
        return result

    async def _send_with_headers(self, name: str, send: Send, params: Mapping[str, Any]) -> Raw:
        """A call whose arguments travel as headers too, where the tool's listed schema says so."""
        await self._learn_headers(name)
        try:
            return await send(params)
        except ServerError as refused:
            if refused.code != HEADER_MISMATCH:
                raise
        self._forget_tools()  # the schema has changed since it was listed; nothing has run yet
        await self._learn_headers(name)
        return await send(params)

    async def _learn_headers(self, name: str) -> None:
        if name in self._tools or name in self._unlisted:
            return
        with suppress(ServerError):  # a server that lists nothing may still have it
            await self._tool(name)
        if name not in self._tools:
            self._unlisted.add(name)

    async def _ask_approval(self, approve: Approve, name: str, arguments: dict[str, Any]) -> None:
        if not self._hears_of_changed_tools():
            self._tools = {}  # what is approved has to be what the server offers now
        tool = await self._tool(name)
        if tool is None:
            raise NotApproved(
                f"The tool {name} was not called: the server does not list it, or keeps changing its list"
            )
        if not await outcome_of(approve, tool, arguments):
            raise NotApproved(f"The tool {name} was not called: it was not approved")
        if await self._tool(name) != tool:
            raise NotApproved(f"The tool {name} was not called: it changed while it was being approved")

    def _hears_of_changed_tools(self) -> bool:
        offered = self.capabilities.get("tools")
        announced = isinstance(offered, dict) and bool(offered.get("listChanged"))
        return announced and self._channel.revision.handshake and self._channel.hears

    def _changed(self, change: Change) -> None:
        if change.kind == "tools":
            self._changes += 1
            self._forget_tools()

    def _forget_tools(self) -> None:
        self._tools = {}
        self._unlisted = set()

    async def _tool(self, name: str) -> ToolDefinition | None:
        """As the server offers it now; None if it does not, or if its list changes as often as it is read."""
        for _ in range(MAX_LISTINGS):
            if name in self._tools:
                return self._tools[name]
            changes = self._changes
            await self.list_tools(fresh=True)
            if changes == self._changes:
                return self._tools.get(name)
        return None

    async def _wraps(self, name: str) -> bool:
        """Whether the tool's structured content is only the wrapping of a value that is no object."""
        tool = await self._tool(name)
        if tool is None:
            return False
        ours = not self._channel.revision.any_structured_output and bool((tool.meta or {}).get(WRAPPED_KEY))
        return ours or (tool.output_schema or {}).get(FASTMCP_WRAPS) is True

    # ── resources ──

    async def list_resources(self, *, fresh: bool = False) -> list[ResourceDefinition]:
        return await self._channel.pages(*RESOURCES, fresh=fresh)

    async def list_resources_page(
        self, cursor: str | None = None, *, fresh: bool = False
    ) -> ListPage[ResourceDefinition]:
        return await self._channel.page(*RESOURCES, cursor, fresh=fresh)

    async def list_resource_templates(self, *, fresh: bool = False) -> list[TemplateDefinition]:
        return await self._channel.pages(*TEMPLATES, fresh=fresh)

    async def list_resource_templates_page(
        self, cursor: str | None = None, *, fresh: bool = False
    ) -> ListPage[TemplateDefinition]:
        return await self._channel.page(*TEMPLATES, cursor, fresh=fresh)

    async def read_resource(self, uri: str, *, fresh: bool = False) -> list[ResourceContents]:
        return (await self._channel.ask(READ, {"uri": uri}, _Read, fresh=fresh)).contents

    async def subscribe(self, uri: str) -> None:
        """Up to 2025-11-25. `listen(uris=[...])` does it for you, in every revision."""
        await self.request("resources/subscribe", {"uri": uri})

    async def unsubscribe(self, uri: str) -> None:
        """Up to 2025-11-25."""
        await self.request("resources/unsubscribe", {"uri": uri})

    # ── prompts and completion ──

    async def list_prompts(self, *, fresh: bool = False) -> list[PromptDefinition]:
        return await self._channel.pages(*PROMPTS, fresh=fresh)

    async def list_prompts_page(self, cursor: str | None = None, *, fresh: bool = False) -> ListPage[PromptDefinition]:
        return await self._channel.page(*PROMPTS, cursor, fresh=fresh)

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> PromptResult:
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = arguments
        return await self._channel.ask("prompts/get", params, PromptResult)

    async def complete(
        self, ref: Mapping[str, str], argument: str, value: str = "", context: Mapping[str, str] | None = None
    ) -> Completion:
        """Suggestions for an argument of `ref`, such as {"type": "ref/prompt", "name": "review"}.

        `context` holds the arguments that are filled in already.
        """
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context is not None:
            params["context"] = {"arguments": context}
        return (await self._channel.ask("completion/complete", params, _Completed)).completion

    # ── what the server tells meanwhile ──

    async def set_log_level(self, level: LogLevel) -> None:
        """From here on: what the session hears or, since 2026-07-28, what each request asks for."""
        await self._channel.set_log_level(level)

    @asynccontextmanager
    async def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()
    ) -> AsyncIterator[Listening]:
        """Hear of changed lists and resources, in every revision.

        async with client.listen(tools=True, uris=["notes://all"]) as changes:
            async for change in changes: ...
        """
        async with self._channel.listening(ListenFilter(tools, prompts, resources, list(uris))) as listening:
            yield listening

    async def set_roots(self, roots: RootSource) -> None:
        """Change what `roots=` said; up to 2025-11-25 the server is told that they changed."""
        self._answering.set_roots(roots)
        await self._channel.tell_of_roots()

    # ── anything else ──

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: Seconds = UNSET
    ) -> dict[str, Any]:
        """Any request; the result as it came. A refusal raises ServerError."""
        return read_object(method, await self._channel.send(method, params or {}, timeout=timeout))

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Any notification."""
        self._channel.conversation.tell(method, params)
        await self._channel.conversation.drain()

    async def send_raw(self, message: bytes) -> None:
        """Any bytes at all; what the server says to them is in the transcript."""
        self._channel.conversation.write(message)
        await self._channel.conversation.drain()
