"""`Client`: a server, a command or a URL comes in, and what that server offers goes out as Python values.

It finds out by itself which revision the server speaks, and its methods mean the same in all of them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Raw

from dovetail import __version__
from dovetail.auth.principal import Principal
from dovetail.client.answering import Answering
from dovetail.client.caching import DISCOVER, READ, ResponseCache
from dovetail.client.calling import outcome_of
from dovetail.client.channel import Channel, Seconds
from dovetail.client.conversation import ProgressHandler, Transcript
from dovetail.client.credentials import ClientAuth
from dovetail.client.elicitation import ElicitationCompleteHandler, ElicitationHandler
from dovetail.client.era import Identity, pinned_revision
from dovetail.client.known_tools import KnownTools
from dovetail.client.listening import Listening
from dovetail.client.results import CallResult, ListPage, LogHandler, WireCallResult, read, read_object
from dovetail.client.roots import RootSource
from dovetail.client.rounds import Send
from dovetail.client.sampling import SamplingHandler
from dovetail.client.targets import ClientTarget, WebTransport, link_to
from dovetail.engine.streams import Change
from dovetail.errors import HEADER_MISMATCH, NotApproved, ServerError, SetupError, ToolError
from dovetail.protocol.features import Completion
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

Approve = Callable[[ToolDefinition, dict[str, Any]], bool | Awaitable[bool]]

LAST_SECONDS = 1.0  # for a question about a result, when a call has taken all its time
CLIENT_INFO = {"name": "dovetail", "version": __version__}
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

    def __init__(
        self,
        target: ClientTarget,
        *,
        protocol_version: str | None = None,
        client_info: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        approve: Approve | None = None,
        timeout: float | None = 30,
        max_timeout: float = 3600,
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
        principal: Principal | None = None,
        transport: WebTransport | None = None,
    ) -> None:
        pinned = pinned_revision(protocol_version)
        if not max_timeout > 0:
            raise SetupError(f"Client: max_timeout={max_timeout} must be a number of seconds above 0")
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
            link_to(
                target, pinned, env=env, cwd=cwd, headers=headers, auth=auth, principal=principal, transport=transport
            ),
            Identity(client_info or CLIENT_INFO, self._answering.declared),
            self._answering,
            pinned=pinned,
            timeout=timeout,
            max_timeout=max_timeout,
            transcript=transcript,
            log_handler=log_handler,
            on_change=self._changed,
            max_rounds=max_rounds,
            cache=ResponseCache() if cache else ResponseCache(max_entries=0),
        )
        self._approve = approve
        self._progress_handler = progress_handler
        self._known = KnownTools(self._channel)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self, connect_timeout: float | None = None) -> None:
        """Reach the server; `async with` does it for you. TimeoutError after so many seconds without it."""
        self._known.forget()
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

    async def ping(self, *, timeout: Seconds = "default") -> None:
        """Up to 2025-11-25."""
        await self.request("ping", timeout=timeout)

    async def discover(self, *, fresh: bool = False, timeout: Seconds = "default") -> dict[str, Any]:
        """What the server says about itself; since 2026-07-28."""
        return read_object(DISCOVER, await self._channel.fetch(DISCOVER, {}, fresh=fresh, timeout=timeout))

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
    ) -> CallResult:
        """Call a tool. One that fails raises ToolError with its text; with `raise_on_error=False` it is returned.

        `log_level` asks for the logs of this one call; since 2026-07-28.
        """
        given = dict(arguments or {})
        if self._approve is not None:
            await self._ask_approval(self._approve, name, given, timeout)
        begun = monotonic()
        send = partial(
            self._channel.send,
            "tools/call",
            timeout=timeout,
            progress_handler=progress_handler or self._progress_handler,
            log_level=log_level,
        )
        if self._channel.mirrored is not None:
            send = partial(self._send_with_headers, name, send, timeout)
        raw = await self._channel.finish("tools/call", {"name": name, "arguments": given}, send)
        answer = read("tools/call", raw, WireCallResult)
        wrapped = answer.looks_wrapped and await self._known.wraps(name, self._left(timeout, begun))
        result = answer.unfold(wrapped=wrapped)
        if result.is_error and raise_on_error:
            raise ToolError(result.text or f"The tool {name} failed and did not say why")
        return result

    def _left(self, timeout: Seconds, begun: float) -> float | None:
        """Of the time of a call, for what has to be asked about its result; a moment even if there is nothing left."""
        seconds = self._channel.seconds(timeout)
        return None if seconds is None else max(begun + seconds - monotonic(), min(seconds, LAST_SECONDS))

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
        tool = await self._offered(name, timeout, fresh=True)
        if tool is None:
            raise NotApproved(
                f"The tool {name} was not called: the server does not list it, or keeps changing its list"
            )
        if not await outcome_of(approve, tool, arguments):
            raise NotApproved(f"The tool {name} was not called: it was not approved")
        if await self._offered(name, timeout, fresh=False) != tool:
            raise NotApproved(f"The tool {name} was not called: it changed while it was being approved")

    async def _offered(self, name: str, timeout: Seconds, *, fresh: bool) -> ToolDefinition | None:
        """What is approved has to be what the server offers now."""
        if not self._hears_of_changed_tools():
            self._known.forget()
        return await self._known.find(name, fresh=fresh, timeout=timeout)

    def _hears_of_changed_tools(self) -> bool:
        offered = self.capabilities.get("tools")
        announced = isinstance(offered, dict) and bool(offered.get("listChanged"))
        return announced and self._channel.revision.handshake and self._channel.hears

    def _changed(self, change: Change) -> None:
        if change.kind == "tools":
            self._known.changed()

    # ── resources ──

    async def list_resources(self, *, fresh: bool = False, timeout: Seconds = "default") -> list[ResourceDefinition]:
        return await self._channel.pages(*RESOURCES, fresh=fresh, timeout=timeout)

    async def list_resources_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> ListPage[ResourceDefinition]:
        return await self._channel.page(*RESOURCES, cursor, fresh=fresh, timeout=timeout)

    async def list_resource_templates(
        self, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> list[TemplateDefinition]:
        return await self._channel.pages(*TEMPLATES, fresh=fresh, timeout=timeout)

    async def list_resource_templates_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> ListPage[TemplateDefinition]:
        return await self._channel.page(*TEMPLATES, cursor, fresh=fresh, timeout=timeout)

    async def read_resource(
        self, uri: str, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> list[ResourceContents]:
        return (await self._channel.ask(READ, {"uri": uri}, _Read, fresh=fresh, timeout=timeout)).contents

    # ── prompts and completion ──

    async def list_prompts(self, *, fresh: bool = False, timeout: Seconds = "default") -> list[PromptDefinition]:
        return await self._channel.pages(*PROMPTS, fresh=fresh, timeout=timeout)

    async def list_prompts_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Seconds = "default"
    ) -> ListPage[PromptDefinition]:
        return await self._channel.page(*PROMPTS, cursor, fresh=fresh, timeout=timeout)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: Seconds = "default"
    ) -> PromptResult:
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = arguments
        return await self._channel.ask("prompts/get", params, PromptResult, timeout=timeout)

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
        return (await self._channel.ask("completion/complete", params, _Completed, timeout=timeout)).completion

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
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: Seconds = "default"
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
