"""`Client`: one server in process, behind a command or a URL; its methods mean the same in all revisions."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec
from msgspec import Raw

from dovetail.client.cache import DISCOVER, READ, KnownTools
from dovetail.client.config import Approve, ClientOptions, ClientTarget, transport_to
from dovetail.client.dispatcher import ProgressHandler
from dovetail.client.handlers import RootSource, Send, outcome_of
from dovetail.client.results import CallToolResult, ListPage, WireCallResult, read, read_object
from dovetail.client.session import ClientSession, Seconds
from dovetail.client.subscriptions import Listening
from dovetail.engine.subscriptions import Change
from dovetail.errors import HEADER_MISMATCH, NotApproved, ServerError, SetupError, ToolError
from dovetail.protocol.capabilities import Completion
from dovetail.protocol.methods import ListenFilter, LogLevel
from dovetail.protocol.results import PromptResult
from dovetail.protocol.types import (
    Implementation,
    PromptDefinition,
    ResourceContents,
    ResourceDefinition,
    TemplateDefinition,
    ToolDefinition,
)
from dovetail.registry.registration import checked_options

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

    `approve` is asked before a tool runs. `timeout` bounds every request; with a progress handler it begins again at
    each progress, until `max_timeout`. `transcript` sees every message as it was sent or received. Handlers may be
    `def` or `async def`. What the server asks is answered by `elicitation_handler`, `sampling_handler` and `roots`, in
    at most `max_rounds` rounds of a request. `env` is added to the environment of a command, `headers` go out with
    every request to a URL, `auth` is a token for it or a way to sign in (`OAuth()`, `ClientCredentials(...)` of
    `dovetail.client.oauth`), and `transport` says "http" or "sse" where that should not be found out. For a server in
    this process `auth` is a token, and `principal` a caller that needs none. With `cache`, lists and resources are used
    again for as long as the server allows; `fresh=True` asks it.
    """

    def __init__(self, target: ClientTarget, **options: Unpack[ClientOptions]) -> None:
        checked_options(options, ClientOptions.__optional_keys__, "Client", {})
        self._session = ClientSession(transport_to(target, options), options, self._changed)
        self._approve = options.get("approve")
        self._progress_handler = options.get("progress_handler")
        self._known = KnownTools(self._session)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self, connect_timeout: float | None = None) -> None:
        """Reach the server; `async with` does it for you. TimeoutError after so many seconds without it."""
        self._known.forget()
        await self._session.open(connect_timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the server; `async with` does it for you. Whoever still waits for an answer gets ConnectionLost."""
        await self._session.close()

    # ── who the server is ──

    @property
    def protocol_version(self) -> str:
        return self._session.revision.name

    @property
    def server_info(self) -> Implementation | None:
        """None if the server does not say who it is."""
        return self._session.agreement.server_info

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._session.agreement.capabilities

    @property
    def instructions(self) -> str | None:
        return self._session.agreement.instructions

    async def ping(self, *, timeout: Seconds = "default") -> None:
        """Up to 2025-11-25."""
        await self.request("ping", timeout=timeout)

    async def discover(self, *, fresh: bool = False, timeout: Seconds = "default") -> dict[str, Any]:
        """What the server says about itself; since 2026-07-28."""
        return read_object(DISCOVER, await self._session.fetch(DISCOVER, {}, fresh=fresh, timeout=timeout))

    # ── tools ──

    async def list_tools(self, *, fresh: bool = False, timeout: Seconds = "default") -> list[ToolDefinition]:
        return await self._known.listed(fresh=fresh, timeout=timeout)

    async def list_tools_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> ListPage[ToolDefinition]:
        return await self._known.page(cursor, fresh=fresh, timeout=timeout)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Seconds = "default",
        progress_handler: ProgressHandler | None = None,
        log_level: LogLevel | None = None,
        raise_on_error: bool = True,
    ) -> CallToolResult:
        """Call a tool. One that fails raises ToolError with its text; with `raise_on_error=False` it is returned.

        `log_level` asks for the logs of this one call; since 2026-07-28.
        """
        given = dict(arguments or {})
        if self._approve is not None:
            await self._ask_approval(self._approve, name, given, timeout)
        send = partial(
            self._session.send,
            "tools/call",
            timeout=timeout,
            progress_handler=progress_handler or self._progress_handler,
            log_level=log_level,
        )
        if self._session.mirrored is not None:
            send = partial(self._send_with_headers, name, send, timeout)
        raw = await self._session.finish("tools/call", {"name": name, "arguments": given}, send)
        answer = read("tools/call", raw, WireCallResult)
        wrapped = answer.looks_wrapped and await self._known.wraps(name, timeout)
        result = answer.unfold(wrapped=wrapped)
        if result.is_error and raise_on_error:
            raise ToolError(result.text or f"The tool {name} failed and did not say why")
        return result

    async def _send_with_headers(self, name: str, send: Send, timeout: Seconds, params: Mapping[str, Any]) -> Raw:
        """A call whose arguments travel as headers too, where the tool's listed schema says so."""
        await self._known.learn_headers(name, timeout)
        try:
            return await send(params)
        except ServerError as refused:
            if refused.code != HEADER_MISMATCH:
                raise
        self._known.forget()  # the schema has changed since it was listed; nothing has run yet
        await self._known.learn_headers(name, timeout)
        return await send(params)

    async def _ask_approval(self, approve: Approve, name: str, arguments: dict[str, Any], timeout: Seconds) -> None:
        tool = await self._offered(name, timeout)
        if tool is None:
            raise NotApproved(f"The tool {name} was not called: the server does not list it")
        if not await outcome_of(approve, tool, arguments):
            raise NotApproved(f"The tool {name} was not called: it was not approved")
        if await self._offered(name, timeout) != tool:
            raise NotApproved(f"The tool {name} was not called: it changed while it was being approved")

    async def _offered(self, name: str, timeout: Seconds) -> ToolDefinition | None:
        """A tool as the server offers it now: its list is read again, unless the server tells of changes."""
        offered = self.capabilities.get("tools")
        announced = isinstance(offered, dict) and bool(offered.get("listChanged"))
        if not (announced and self._session.hears_of_all):
            self._known.forget()
        return await self._known.find(name, timeout=timeout)

    def _changed(self, change: Change) -> None:
        if change.kind == "tools":
            self._known.forget()

    # ── resources ──

    async def list_resources(self, *, fresh: bool = False, timeout: Seconds = "default") -> list[ResourceDefinition]:
        return await self._session.pages(*RESOURCES, fresh=fresh, timeout=timeout)

    async def list_resources_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> ListPage[ResourceDefinition]:
        return await self._session.page(*RESOURCES, cursor, fresh=fresh, timeout=timeout)

    async def list_resource_templates(
        self, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> list[TemplateDefinition]:
        return await self._session.pages(*TEMPLATES, fresh=fresh, timeout=timeout)

    async def list_resource_templates_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> ListPage[TemplateDefinition]:
        return await self._session.page(*TEMPLATES, cursor, fresh=fresh, timeout=timeout)

    async def read_resource(
        self, uri: str, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> list[ResourceContents]:
        return (await self._session.ask(READ, {"uri": uri}, _Read, fresh=fresh, timeout=timeout)).contents

    # ── prompts and completion ──

    async def list_prompts(self, *, fresh: bool = False, timeout: Seconds = "default") -> list[PromptDefinition]:
        return await self._session.pages(*PROMPTS, fresh=fresh, timeout=timeout)

    async def list_prompts_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> ListPage[PromptDefinition]:
        return await self._session.page(*PROMPTS, cursor, fresh=fresh, timeout=timeout)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: Seconds = "default"
    ) -> PromptResult:
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = arguments
        return await self._session.ask("prompts/get", params, PromptResult, timeout=timeout)

    async def complete(
        self,
        *,
        argument: str,
        value: str = "",
        prompt: str | None = None,
        resource: str | None = None,
        tool: str | None = None,
        context: Mapping[str, str] | None = None,
        timeout: Seconds = "default",
    ) -> Completion:
        """Suggestions for an argument that begins with `value`: of a prompt, of a template (`resource`), or of a tool.

        `context` holds the arguments that are filled in already.
        """
        named = {("prompt", "name"): prompt, ("resource", "uri"): resource, ("tool", "name"): tool}
        refs = [{"type": f"ref/{kind}", key: name} for (kind, key), name in named.items() if name is not None]
        if len(refs) != 1:
            raise SetupError("Client.complete needs exactly one of prompt=, resource= and tool=")
        params: dict[str, Any] = {"ref": refs[0], "argument": {"name": argument, "value": value}}
        if context is not None:
            params["context"] = {"arguments": context}
        return (await self._session.ask("completion/complete", params, _Completed, timeout=timeout)).completion

    # ── what the server tells meanwhile ──

    async def set_log_level(self, level: LogLevel) -> None:
        """From here on: what the session hears or, since 2026-07-28, what each request asks for."""
        await self._session.set_log_level(level)

    @asynccontextmanager
    async def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()
    ) -> AsyncIterator[Listening]:
        """Hear of changed lists and resources, in every revision.

        async with client.listen(tools=True, uris=["notes://all"]) as changes:
            async for change in changes: ...
        """
        async with self._session.listening(ListenFilter(tools, prompts, resources, list(uris))) as listening:
            yield listening

    async def set_roots(self, roots: RootSource) -> None:
        """Change what `roots=` said; up to 2025-11-25 the server is told that they changed."""
        await self._session.set_roots(roots)

    # ── anything else ──

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: Seconds = "default"
    ) -> dict[str, Any]:
        """Any request; the result as it came. A refusal raises ServerError."""
        return read_object(method, await self._session.send(method, params or {}, timeout=timeout))

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Any notification."""
        self._session.dispatcher.tell(method, params)
        await self._session.dispatcher.transport.drain()
