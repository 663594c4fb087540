"""`Client`: one server in process, behind a command or a URL; the same methods in all revisions."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, Unpack

import msgspec
from msgspec import Raw

from dovetail.client.cache import DISCOVER, READ, ToolCache
from dovetail.client.config import Approve, ClientOptions, ClientTarget, make_transport
from dovetail.client.dispatcher import Params, ProgressHandler
from dovetail.client.handlers import RootSource, Send, call_maybe_async
from dovetail.client.results import CallToolResult, ListPage, WireCallResult, has_flag, read_object, read_result
from dovetail.client.session import ClientSession, Timeout
from dovetail.client.skills import SKILLS, Skill, WireSkillResult
from dovetail.client.subscriptions import ChangeStream
from dovetail.client.tasks import ToolTask, read_created
from dovetail.engine.subscriptions import Change
from dovetail.errors import HEADER_MISMATCH, BadResponse, NotApproved, ServerError, SetupError, ToolError
from dovetail.protocol import types
from dovetail.protocol.capabilities import Completion
from dovetail.protocol.extensions import TASKS
from dovetail.protocol.methods import ListenFilter, LogLevel
from dovetail.protocol.results import CompleteResult, PromptResult
from dovetail.registry.registration import checked_options

RESOURCES = ("resources/list", "resources", types.ResourceDefinition)
TEMPLATES = ("resources/templates/list", "resourceTemplates", types.TemplateDefinition)
PROMPTS = ("prompts/list", "prompts", types.PromptDefinition)


class _ReadResourceResult(msgspec.Struct, frozen=True):
    contents: list[types.ResourceContents]


class Client:
    """A connection to one server, open inside `async with`.

    async with Client(server) as client:      # or Client(["python", "server.py"]), Client("http://127.0.0.1:8000/mcp")
        result = await client.call_tool("add", {"a": 1, "b": 2})
        assert result.data == 3

    `approve` is asked before a tool runs. `timeout` bounds every request; with a progress handler it restarts at each
    progress, until `max_timeout`. `transcript` gets every message as it was sent or received. Handlers may be `def` or
    `async def`. `elicitation_handler`, `sampling_handler` and `roots` answer requests of the server, in at most
    `max_rounds` rounds of a call. `env` is added to the environment of a command, `headers` to every request to a URL.
    `auth` is a token for the URL or a way to sign in (`OAuth()`, `ClientCredentials(...)` of `dovetail.client.oauth`);
    `transport`, "http" or "sse", skips the detection. For a server in this process `auth` is a token, and `principal` a
    caller that needs none. With `tasks`, a server may make a task of a call; `call_tool` waits for it. With `cache`,
    lists and resources are cached for as long as the server allows; `fresh=True` asks it again.
    """

    def __init__(self, target: ClientTarget, **options: Unpack[ClientOptions]) -> None:
        checked_options(options, ClientOptions.__optional_keys__, "Client", {})
        self._session = ClientSession(make_transport(target, options), options, self._changed)
        self._approve = options.get("approve")
        self._progress_handler = options.get("progress_handler")
        self._tools = ToolCache(self._session)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self, connect_timeout: float | None = None) -> None:
        """Connect; `async with` does it for you. Raises TimeoutError after so many seconds."""
        self._tools.invalidate()
        await self._session.open(connect_timeout)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect; `async with` does it for you. Pending requests raise ConnectionLost."""
        await self._session.close()

    @property
    def protocol_version(self) -> str:
        return self._session.revision.name

    @property
    def server_info(self) -> types.Implementation | None:
        return self._session.negotiated.server_info

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._session.negotiated.capabilities

    @property
    def instructions(self) -> str | None:
        return self._session.negotiated.instructions

    async def ping(self, *, timeout: Timeout = "default") -> None:
        """Ping the server; up to 2025-11-25."""
        await self.request("ping", timeout=timeout)

    async def discover(self, *, fresh: bool = False, timeout: Timeout = "default") -> dict[str, Any]:
        """The result of `server/discover`; since 2026-07-28."""
        return read_object(DISCOVER, await self._session.fetch(DISCOVER, {}, fresh=fresh, timeout=timeout))

    async def list_tools(self, *, fresh: bool = False, timeout: Timeout = "default") -> list[types.ToolDefinition]:
        return await self._tools.list_all(fresh=fresh, timeout=timeout)

    async def list_tools_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Timeout = "default"
    ) -> ListPage[types.ToolDefinition]:
        return await self._tools.page(cursor, fresh=fresh, timeout=timeout)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Timeout = "default",
        progress_handler: ProgressHandler | None = None,
        log_level: LogLevel | None = None,
        raise_on_error: bool = True,
        idempotency_key: str | None = None,
    ) -> CallToolResult:
        """Call a tool. One that fails raises ToolError with its text; with `raise_on_error=False` it is returned.

        `log_level` asks for the logs of this one call, since 2026-07-28. A tool whose calls may be repeated gets an
        `idempotency_key`, a random one if none is given, and is called again with it after a lost connection.
        """
        raw = await self._call(name, arguments, timeout, progress_handler, log_level, idempotency_key)
        if not self._session.asks_for_tasks:
            return await self._read_call(name, timeout, raw, raise_on_error)
        task = self._task_of(name, raw, timeout)
        async with task.or_cancel():
            return await task.wait(raise_on_error=raise_on_error)

    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Timeout = "default",
        progress_handler: ProgressHandler | None = None,
        log_level: LogLevel | None = None,
        idempotency_key: str | None = None,
    ) -> ToolTask:
        """Call a tool, and return as soon as the server makes a task of the call, with a handle of it.

        Needs `Client(tasks=True)`. If the server makes none, the handle has ended with the result of the call.
        """
        self._require_tasks("start_tool")
        raw = await self._call(name, arguments, timeout, progress_handler, log_level, idempotency_key)
        return self._task_of(name, raw, timeout)

    def task(self, id: str, *, timeout: Timeout = "default") -> ToolTask:
        """A handle of a task that was started before, perhaps by another process. Needs `Client(tasks=True)`."""
        self._require_tasks("task")
        return ToolTask(self._session, id, partial(self._read_call, None, timeout), timeout)

    def _require_tasks(self, method: str) -> None:
        if not self._session.asks_for_tasks:
            raise SetupError(f"Client.{method} needs a client that declares tasks: Client(…, tasks=True)")

    async def _call(
        self, name: str, arguments: Mapping[str, Any] | None, timeout: Timeout,
        progress_handler: ProgressHandler | None, log_level: LogLevel | None, idempotency_key: str | None,
    ) -> Raw:  # fmt: skip
        given = dict(arguments or {})
        if self._approve is not None:
            await self._ask_approval(self._approve, name, given, timeout)
        handler = progress_handler or self._progress_handler
        send = partial(self._session.send, "tools/call", timeout=timeout, progress_handler=handler, log_level=log_level)
        params: dict[str, Any] = {"name": name, "arguments": given}
        if may_repeat := await self._tools.may_repeat(name, timeout):
            send = partial(self._session.repeat, send)
        if may_repeat or idempotency_key is not None:
            key = os.urandom(24).hex() if idempotency_key is None else idempotency_key
            params["_meta"] = {types.CALL_KEY: key}
        if self._session.tool_headers is not None:
            send = partial(self._send_with_headers, name, send, timeout)
        if self._session.asks_for_tasks and await self._tools.may_ask_for_task(name, timeout):
            params["task"] = {}
        try:
            return await self._session.finish("tools/call", params, send)
        except ServerError as refused:
            if TASKS in str(refused.data) and not self._session.asks_for_tasks:
                refused.add_note("Client(…, tasks=True) declares tasks, and waits for them.")
            raise

    def _task_of(self, name: str, raw: Raw, timeout: Timeout) -> ToolTask:
        """A handle of a call, which has ended if the call did not become a task."""
        created = read_created("tools/call", raw, self._session.revision)
        read = partial(self._read_call, name, timeout)
        return ToolTask(self._session, created.task_id or None, read, timeout, created)

    async def _read_call(self, name: str | None, timeout: Timeout, raw: Raw, raise_on_error: bool) -> CallToolResult:
        answer = read_result("tools/call", raw, WireCallResult)
        wrapped = answer.looks_wrapped and name is not None and await self._tools.is_wrapped(name, timeout)
        result = answer.to_result(wrapped=wrapped)
        if result.is_error and raise_on_error:
            raise ToolError(result.text or f"The tool {name or 'of the task'} failed and did not say why")
        return result

    async def _send_with_headers(self, name: str, send: Send, timeout: Timeout, params: Params) -> Raw:
        """Send a call with those arguments as headers that the tool's input schema marks."""
        await self._tools.load(name, timeout)
        try:
            return await send(params)
        except ServerError as refused:
            if refused.code != HEADER_MISMATCH:
                raise
        self._tools.invalidate()  # the schema has changed since it was listed; the call has not run
        await self._tools.load(name, timeout)
        return await send(params)

    async def _ask_approval(self, approve: Approve, name: str, arguments: dict[str, Any], timeout: Timeout) -> None:
        tool = await self._current_tool(name, timeout)
        if tool is None:
            raise NotApproved(f"The tool {name} was not called: the server does not list it")
        if not await call_maybe_async(approve, tool, arguments):
            raise NotApproved(f"The tool {name} was not called: it was not approved")
        if await self._current_tool(name, timeout) != tool:
            raise NotApproved(f"The tool {name} was not called: it changed while it was being approved")

    async def _current_tool(self, name: str, timeout: Timeout) -> types.ToolDefinition | None:
        """The tool as the server lists it now: the cache is used only if all changes are announced."""
        if not (has_flag(self.capabilities, "tools", "listChanged") and self._session.hears_all_changes):
            self._tools.invalidate()
        return await self._tools.find(name, timeout=timeout)

    def _changed(self, change: Change) -> None:
        if change.kind == "tools":
            self._tools.invalidate()

    async def list_resources(
        self, *, fresh: bool = False, timeout: Timeout = "default"
    ) -> list[types.ResourceDefinition]:
        return await self._session.pages(*RESOURCES, fresh=fresh, timeout=timeout)

    async def list_resources_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Timeout = "default"
    ) -> ListPage[types.ResourceDefinition]:
        return await self._session.page(*RESOURCES, cursor, fresh=fresh, timeout=timeout)

    async def list_resource_templates(
        self, *, fresh: bool = False, timeout: Timeout = "default"
    ) -> list[types.TemplateDefinition]:
        return await self._session.pages(*TEMPLATES, fresh=fresh, timeout=timeout)

    async def list_resource_templates_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Timeout = "default"
    ) -> ListPage[types.TemplateDefinition]:
        return await self._session.page(*TEMPLATES, cursor, fresh=fresh, timeout=timeout)

    async def read_resource(
        self, uri: str, *, fresh: bool = False, timeout: Timeout = "default"
    ) -> list[types.ResourceContents]:
        result = await self._session.request(READ, {"uri": uri}, _ReadResourceResult, fresh=fresh, timeout=timeout)
        return result.contents

    async def list_skills(self, *, fresh: bool = False, timeout: Timeout = "default") -> list[Skill]:
        """The skills of the server; none of their files is read."""
        found = await self._session.pages(*SKILLS, fresh=fresh, timeout=timeout)
        return [Skill(each, self.read_resource) for each in found]

    async def get_skill(self, uri: str, *, fresh: bool = False, timeout: Timeout = "default") -> Skill:
        """The skill whose SKILL.md has this URI; the server may have skills that it does not list."""
        params = {"uri": uri}
        found = await self._session.request("skills/get", params, WireSkillResult, fresh=fresh, timeout=timeout)
        if found.skill.uri != uri:
            raise BadResponse(f"skills/get: the server answered with the skill {found.skill.uri:.200}, not {uri:.200}")
        return Skill(found.skill, self.read_resource)

    async def list_prompts(self, *, fresh: bool = False, timeout: Timeout = "default") -> list[types.PromptDefinition]:
        return await self._session.pages(*PROMPTS, fresh=fresh, timeout=timeout)

    async def list_prompts_page(
        self, cursor: str | None = None, *, fresh: bool = False, timeout: Timeout = "default"
    ) -> ListPage[types.PromptDefinition]:
        return await self._session.page(*PROMPTS, cursor, fresh=fresh, timeout=timeout)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: Timeout = "default"
    ) -> PromptResult:
        params = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
        return await self._session.request("prompts/get", params, PromptResult, timeout=timeout)

    async def complete(
        self,
        *,
        argument: str,
        value: str = "",
        prompt: str | None = None,
        resource: str | None = None,
        tool: str | None = None,
        context: Mapping[str, str] | None = None,
        timeout: Timeout = "default",
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
        result = await self._session.request("completion/complete", params, CompleteResult, timeout=timeout)
        return result.completion

    async def set_log_level(self, level: LogLevel) -> None:
        """Set the lowest level of log messages from here on."""
        await self._session.set_log_level(level)

    @asynccontextmanager
    async def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()
    ) -> AsyncIterator[ChangeStream]:
        """Changes of lists and resources, in every revision.

        async with client.listen(tools=True, uris=["notes://all"]) as changes:
            async for change in changes: ...
        """
        async with self._session.listen(ListenFilter(tools, prompts, resources, list(uris))) as changes:
            yield changes

    async def set_roots(self, roots: RootSource) -> None:
        """Replace the `roots=` of the client; up to 2025-11-25 the server is notified."""
        await self._session.set_roots(roots)

    async def request(
        self, method: str, params: Params | None = None, *, timeout: Timeout = "default"
    ) -> dict[str, Any]:
        """Send any request; returns the result as the server sent it. An error raises ServerError."""
        result = read_object(method, await self._session.send(method, params or {}, timeout=timeout))
        if result.get("resultType") == "task" and method != "tools/call":
            raise BadResponse(f"{method}: the server answered with a task, which only tools/call can become")
        return result

    async def notify(self, method: str, params: Params | None = None) -> None:
        """Send any notification."""
        await self._session.notify(method, params or {})
