"""`Context`: the author's view of a request, with requests and notifications to its client."""

import asyncio
import functools
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, Unpack, overload

import msgspec
from msgspec import UNSET, UnsetType

from dovetail import engine as lazy
from dovetail import registry
from dovetail.engine.concurrency import DONE
from dovetail.engine.request_context import Cancellation, RequestContext, SessionAccess, server_requests_of
from dovetail.engine.subscriptions import Change
from dovetail.engine.threads import CallEnded, as_coroutine, wait_in_thread
from dovetail.errors import SetupError, ToolError, Unauthorized
from dovetail.protocol import capabilities, jsonrpc
from dovetail.protocol.extensions import UI, UI_MIME_TYPE, declared_extensions
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.methods import LogLevel, RequestId
from dovetail.protocol.session import Rules
from dovetail.protocol.types import ResourceContents
from dovetail.schema.encode import OutputError, to_jsonable

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.engine.caller_state import CallerState
    from dovetail.engine.engine import Engine
    from dovetail.engine.handles import Handle
    from dovetail.protocol.elicitation import InputRequest
    from dovetail.registry.elicitation import Elicited, Titles
    from dovetail.registry.roots import Root
    from dovetail.registry.sampling import Sampled, SampleOptions, Turn
    from dovetail.registry.visibility import Names

T = TypeVar("T")
if TYPE_CHECKING:  # the parameters of `Context`, which may be left out; only checkers know defaults before Python 3.13
    from typing_extensions import TypeVar as WithDefault

    Value = WithDefault("Value", default=Any)  # what the lifespan yields
    RequestValue = WithDefault("RequestValue", default=Any)  # as the official SDK has it; it says nothing here
else:
    Value, RequestValue = TypeVar("Value"), TypeVar("RequestValue")
J = TypeVar("J", bound=bool | int | float | str | list[Any] | Mapping[str, Any] | None)  # unchanged by JSON
Coro: TypeAlias = Coroutine[Any, Any, T]
NO_SESSION = (
    "{}: a request of {} has no session here, so its lists can't depend on earlier requests; "
    "decide for each caller with authorize= instead"
)
CAN_NOT_WAIT = "ctx.{}: a def function with thread=False can't wait; leave out thread=False"


@functools.cache
def warn_deprecated(feature: str) -> None:
    """Warn once in a process."""
    warnings.warn(capabilities.DEPRECATED[feature], DeprecationWarning, stacklevel=4)


class ClientInfo(msgspec.Struct, frozen=True):
    """Name and capabilities that the client claims to have. Do not base decisions about access on them."""

    info: Mapping[str, Any]
    capabilities: Mapping[str, Any]

    @property
    def extensions(self) -> Mapping[str, Mapping[str, Any]]:
        """The extensions that the client declares, by id, with their settings."""
        return declared_extensions(self.capabilities)

    @property
    def can_show_apps(self) -> bool:
        """Whether the client says that it shows the views of tools."""
        kinds = self.extensions.get(UI, {}).get("mimeTypes")
        return isinstance(kinds, list | tuple) and UI_MIME_TYPE in kinds

    @property
    def name(self) -> str | None:
        return self.info.get("name")

    @property
    def version(self) -> str | None:
        return self.info.get("version")


class Context(Generic[Value, RequestValue]):
    """Injected into every parameter annotated `Context`.

    Methods that send notifications are awaited in `async def` functions; in `def` functions they simply return. Those
    that make requests to the client, and `step`, are awaited too; in a `def` function `ctx.wait(…)` does that.
    """

    if not TYPE_CHECKING:  # faster than that of Generic, and without a word about the number of types

        def __class_getitem__(cls, types: Any) -> "type[Context]":
            return cls

    _last_yield: float | None = None  # when other tasks last had the loop

    def __init__(
        self, engine: "Engine", context: RequestContext, can_wait: bool = True,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._context = context
        self._can_wait = can_wait
        self._loop = asyncio.get_running_loop() if loop is None else loop

    # ── the request ──

    @property
    def request_id(self) -> RequestId:
        return self._context.request.id

    @property
    def session_id(self) -> str | None:
        """The id of the session; None where the revision has none: there, let the client pass an id of your own."""
        session = self._context.request.session
        return None if session is None else session.id

    @property
    def protocol_version(self) -> str:
        return self._context.request.revision.name

    @property
    def client(self) -> ClientInfo:
        request = self._context.request
        return ClientInfo(request.client or {}, request.capabilities)

    @property
    def principal(self) -> "Principal | None":
        """The caller, with scopes and claims that the server's `auth=` has verified; None if unknown."""
        return self._context.principal

    async def upstream_token(self) -> str:
        """The access token of the identity provider where the caller has signed in, for calls of its API.

        It is refreshed if needed. Where the provider refuses that, the call ends with 401, and the user signs in again.
        """
        auth, principal = self._served.options.auth, self.principal
        token = await auth.upstream_token(principal, self._served.state) if auth and principal else None
        if token is None:
            raise RuntimeError("ctx.upstream_token() is for users who have signed in by AuthServer(sign_in=SignIn...)")
        return token

    @property
    def meta(self) -> dict[str, Any]:
        """The request's `_meta`, as the client sent it."""
        return self._context.request.meta

    @property
    def headers(self) -> Mapping[str, str] | None:
        """The HTTP headers, with lower-case names; None on other transports. A token for this server is not in them."""
        return self._context.request.headers

    @property
    def lifespan(self) -> Value:
        """What the server's lifespan yielded."""
        return self._engine.lifespan_value  # type: ignore[no-any-return]

    lifespan_context = lifespan  # the peers' name

    @property
    def request_context(self) -> "Context[Value, RequestValue]":
        """This context: where the official SDK has `lifespan_context`, `request_id` and `meta`."""
        return self

    @property
    def _served(self) -> "Engine":
        """The server that the client knows: this one, or where it is mounted."""
        return self._context.served or self._engine

    @property
    def cancelled(self) -> Cancellation:
        """Check it, await it, or `.wait()` for it in a thread."""
        return self._context.cancellation

    # ── state ──

    @property
    def state(self) -> "CallerState":
        """Values of the caller that outlive the call: of its user, else its session, on stdio of the local user."""
        if not self._can_wait:
            raise RuntimeError(CAN_NOT_WAIT.format("state"))
        self._context.uses_state = True
        return lazy.caller_state.CallerState(lazy.caller_state.Records(self._engine, self._context))

    def new_handle(self, value: T, type: "type[T] | None" = None, *, ttl: float | None = None) -> "Coro[Handle[T]]":
        """Store a value and give out its id, for `Handle[T]` parameters; `type` if it is not the value's own class.

        It expires `ttl` seconds after its last update, `Server(state_ttl=)` if None.
        """
        return lazy.handles.new_handle(self.state._records, value, type, ttl)

    # ── notifications to the client ──

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """Notify the client how far the call is, if it has asked for progress."""
        token = self._context.request.params.meta.progress_token
        if token is UNSET and self._context.run is None:
            return self._no_op()
        return self._run(self._report_progress(token, progress, total, message))

    async def _report_progress(
        self, token: RequestId | UnsetType, progress: float, total: float | None, message: str | None
    ) -> None:
        if self._context.run is not None:
            self._context.run.report(progress, total, message)
        if token is not UNSET:
            if self._context.progress is None:
                self._context.progress = lazy.progress.ProgressSender(self._context, token, self._loop)
            await self._context.progress.report(progress, total, message)
        await self._yield_to_loop()

    def log(self, level: LogLevel, data: Any, logger: str | None = None) -> Awaitable[None]:
        """Send a log message, if the client wants that level. Secrets are redacted."""
        if self._context.request.revision.log_on_request:
            warn_deprecated("logging")
        if level not in capabilities.SEVERITY:
            raise ValueError(f"ctx.log: unknown level {level!r}; use one of {', '.join(capabilities.LEVELS)}")
        threshold = self._threshold()
        if threshold is None or not capabilities.passes_level(level, threshold):
            return self._no_op()
        return self._run(self._log(level, data, logger))

    async def _log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        params: dict[str, Any] = {"level": level}
        if logger is not None:
            params["logger"] = logger
        redact = self._engine.redactor.value
        params["data"] = redact(_loggable(redact(data)))  # twice: in between pairs become lists, and models dicts
        await self._context.emit(jsonrpc.notification("notifications/message", encode(params)))
        await self._yield_to_loop()

    def _threshold(self) -> LogLevel | None:
        """The lowest level that the client wants; None for no messages."""
        if "logging" not in self._served.capabilities_for(self._context).names:
            return None
        if self._context.request.revision.log_on_request:
            return self._context.request.log_level
        session_access = self._context.session_access
        level = None if session_access is None else session_access.record.log_level
        return level or self._engine.options.log_level

    def debug(self, data: Any, logger: str | None = None) -> Awaitable[None]:
        return self.log("debug", data, logger)

    def info(self, data: Any, logger: str | None = None) -> Awaitable[None]:
        return self.log("info", data, logger)

    def notice(self, data: Any, logger: str | None = None) -> Awaitable[None]:
        return self.log("notice", data, logger)

    def warning(self, data: Any, logger: str | None = None) -> Awaitable[None]:
        return self.log("warning", data, logger)

    def error(self, data: Any, logger: str | None = None) -> Awaitable[None]:
        return self.log("error", data, logger)

    def critical(self, data: Any, logger: str | None = None) -> Awaitable[None]:
        return self.log("critical", data, logger)

    def alert(self, data: Any, logger: str | None = None) -> Awaitable[None]:
        return self.log("alert", data, logger)

    def emergency(self, data: Any, logger: str | None = None) -> Awaitable[None]:
        return self.log("emergency", data, logger)

    # ── notifications to all subscribed clients ──

    def notify_resource_updated(self, uri: str) -> Awaitable[None]:
        return self._publish(Change("updated", uri))

    def notify_resources_changed(self) -> Awaitable[None]:
        return self._publish(Change("resources"))

    def notify_tools_changed(self) -> Awaitable[None]:
        return self._publish(Change("tools"))

    def notify_prompts_changed(self) -> Awaitable[None]:
        return self._publish(Change("prompts"))

    def _publish(self, change: Change) -> Awaitable[None]:
        self._engine.publish(change)
        return DONE

    # ── what this session sees ──

    def enable(self, *, tags: "Names" = (), names: "Names" = (), only: bool = False) -> Awaitable[None]:
        """Show to this session what has one of the tags and one of the names, also if the server has disabled it.

        `only` hides all else from it. Only in sessions, so up to 2025-11-25; elsewhere `authorize=` decides.
        """
        return self._set_visibility("ctx.enable", enabled=True, tags=tags, names=names, only=only)

    def disable(self, *, tags: "Names" = (), names: "Names" = ()) -> Awaitable[None]:
        """Hide from this session what has one of the tags and one of the names."""
        return self._set_visibility("ctx.disable", enabled=False, tags=tags, names=names)

    def _set_visibility(self, where: str, **options: Any) -> Awaitable[None]:
        session = self._context.session_access
        if session is None or self._context.request.session is None:
            raise SetupError(NO_SESSION.format(where, self.protocol_version))
        return self._run(self._change_rules(session, self._served.visibility_rules(where, options)))

    async def _change_rules(self, session: SessionAccess, new: Rules) -> None:
        extended = registry.visibility.extended
        await session.change(lambda record: record.replace(rules=extended(record.rules, new, of_session=True)))
        self._context.request.session = record = session.record
        if (channel := self._context.channel) is not None:
            for kind in sorted(record.announced):
                await channel.notify(jsonrpc.notification(f"notifications/{kind}/list_changed"))

    # ── tasks ──

    def detach(self, message: str | None = None) -> Awaitable[None]:
        """From here on the call is a task, of which clients are shown the message; for a tool with `task=`.

        It stays an ordinary call for clients that can't have a task, and one that is a task already gets the message.
        """
        run = self._context.run
        return self._no_op() if run is None else self._run(as_coroutine(run.detach(message)))

    # ── the connection ──

    def close_stream(self, retry: float | None = None) -> Awaitable[None]:
        """Close the connection in the middle of a long call; the client resumes its stream after `retry` seconds.

        Only clients of 2025-11-25 over HTTP that read streams can do that; for all others this does nothing.
        """
        if retry is not None and not 0 <= retry <= 86_400:
            raise ValueError(f"ctx.close_stream: retry={retry!r} is not possible; it is 0 to 86400 seconds")
        close = self._context.close_stream
        return self._no_op() if close is None else self._run(as_coroutine(close(retry)))

    # ── the server itself ──

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """Read one of this server's own resources. Raises ToolError if the caller may not read it."""
        await self._engine.look_for(uri, self._context)
        try:
            return list((await self._engine.read(uri, self._context)).items)
        except Unauthorized as refusal:  # as a response to the call it would be wrong: the call is allowed
            raise ToolError(refusal.message) from None

    def wait(self, awaitable: Awaitable[T]) -> T:
        """In a `def` function: hand something awaitable to the loop and block this thread until it is done.

        When the call is cancelled or times out, so is the awaitable, and this raises `CallEnded`, a `RuntimeError`.
        """
        if awaitable is DONE:
            return None  # type: ignore[return-value]
        if self._is_on_loop():
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # else it would warn that it was never awaited
            raise RuntimeError("ctx.wait would block the event loop; in an async def use await instead")
        return wait_in_thread(awaitable, self._loop)

    def _run(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        if not self._is_on_loop():
            with suppress(CallEnded):  # whether to stop is up to the function
                self.wait(work)
        elif self._can_wait:
            return work
        else:  # a `def` on the loop can't await it
            self._context.before_response.append(lambda: work)
        return DONE

    def _no_op(self) -> Awaitable[None]:
        """Send nothing: a thread need not wait for the loop. An `async def` still gets a coroutine."""
        return self._yield_to_loop() if self._is_on_loop() and self._can_wait else DONE

    def _is_on_loop(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    async def _yield_to_loop(self, seconds: float = 0.005) -> None:
        """Give other tasks a turn if the function has had the loop for so long.

        Notifications seldom wait: a function that sends one for each row of a long list would block other calls, and
        its own cancellation, until the end of the list.
        """
        now = time.monotonic()
        if self._last_yield is None:
            self._last_yield = now
        elif now - self._last_yield > seconds:
            self._last_yield = now
            await asyncio.sleep(0)

    # ── server requests, and steps ──

    @overload
    def elicit(
        self, message: str, response_type: None = None, *, timeout: float | None = None
    ) -> "Coro[Elicited[None]]": ...
    @overload
    def elicit(self, message: str, response_type: type[T], *, timeout: float | None = None) -> "Coro[Elicited[T]]": ...
    @overload
    def elicit(self, message: str, *, schema: type[T], timeout: float | None = None) -> "Coro[Elicited[T]]": ...
    @overload
    def elicit(
        self, message: str, response_type: "list[str] | Titles", *, timeout: float | None = None
    ) -> "Coro[Elicited[str]]": ...
    @overload
    def elicit(
        self, message: str, response_type: Any = None, *, schema: Any = None, timeout: float | None = None
    ) -> "Coro[Elicited[Any]]": ...
    def elicit(
        self, message: str, response_type: Any = None, *, schema: Any = None, timeout: float | None = None
    ) -> "Coro[Elicited[Any]]":
        """Ask the user to fill in a form, on every revision: `.action` tells whether they did, `.data` what they said.

        `response_type` is a scalar, a Literal, an Enum, a list of choices, or a class of flat fields; `schema` is such
        a class too, or a raw one. In a `def` function: `answer = ctx.wait(ctx.elicit(...))`.
        """
        return self._request("elicit", registry.elicitation.Elicit(message, response_type, schema=schema), timeout)

    def elicit_url(
        self, message: str, url: str, *, elicitation_id: str | None = None, timeout: float | None = None
    ) -> "Coro[Elicited[None]]":
        """Ask the user to open a URL, for what must not pass through the client, such as a password.

        That it was accepted says only that the user was willing. When the user is done,
        `server.complete_elicitation(elicitation_id)` notifies the clients that support it.
        """
        input_request = registry.elicitation.ElicitUrl(message, url, elicitation_id=elicitation_id)
        return self._request("elicit_url", input_request, timeout)

    def sample(
        self, messages: "Turn | Sequence[Turn]", *, timeout: float | None = None, **options: "Unpack[SampleOptions]"
    ) -> "Coro[Sampled]":
        """Ask the client's model: `.text` is what it said. MCP 2026-07-28 deprecates this.

        The options are those of `Sample`: `max_tokens`, `system_prompt`, `temperature` and others. `tools` are offered
        to the model where the client allows that; it is you who runs those that it chooses.
        """
        if self._context.request.revision.input_required:
            warn_deprecated("sampling")
        return self._request("sample", registry.sampling.Sample(messages, **options), timeout)

    def list_roots(self, *, timeout: float | None = None) -> "Coro[list[Root]]":
        """The folders that the client works in. MCP 2026-07-28 deprecates this."""
        if self._context.request.revision.input_required:
            warn_deprecated("roots")
        return self._request("list_roots", registry.roots.Roots(), timeout)

    def _request(self, name: str, input_request: "InputRequest[T]", timeout: float | None) -> Coro[T]:
        answer = lazy.server_requests.request_input(self._engine, self._context, input_request, timeout)
        if asyncio._get_running_loop() not in (None, self._loop):
            answer = self._from_another_loop(answer)
        return self._named(name, answer)

    async def _from_another_loop(self, answer: Coro[T]) -> T:
        """For `asyncio.run` in a `def` function: an answer does not wake its loop, so it is blocked until then."""
        return await answer if self._is_on_loop() else self.wait(answer)

    @overload
    def step(self, name: str, function: Callable[[], Awaitable[J]]) -> Coro[J]: ...
    @overload
    def step(self, name: str, function: Callable[[], J]) -> Coro[J]: ...
    def step(self, name: str, function: Callable[[], Any]) -> Coro[Any]:
        """Run a side effect once, however often this function runs again for the sake of an answer.

        Its result is remembered, so it must be JSON. A step that raises is not remembered.
        """
        return self._named("step", self._step(name, function, not self._is_on_loop()))

    async def _step(self, name: str, function: Callable[[], Any], in_thread: bool) -> Any:
        return await server_requests_of(self._engine, self._context).step(name, function, in_thread=in_thread)

    @property
    def input_responses(self) -> Mapping[str, Any] | None:
        """The client's unchecked answers, even to what it was not asked; None before the first round."""
        server_requests = self._context.server_requests
        return None if server_requests is None else server_requests.input_responses or None

    @property
    def request_state(self) -> Any:
        """The state of a function that returns `InputRequired`; the client can neither read nor change it."""
        server_requests = self._context.server_requests
        return None if server_requests is None else server_requests.request_state

    def _named(self, name: str, coroutine: Coro[T]) -> Coro[T]:
        """Name the coroutine: Python shows the name in its warning if the author forgets to await it."""
        if not self._can_wait:
            coroutine.close()
            raise RuntimeError(CAN_NOT_WAIT.format(name))
        setattr(coroutine, "__qualname__", f"ctx.{name}")  # noqa: B010  # of every coroutine, but not in its type
        return coroutine


def request_of(ctx: Context) -> "tuple[Engine, RequestContext]":
    """What an author does not see of a context."""
    return ctx._engine, ctx._context


def wanted_level(ctx: Context) -> LogLevel | None:
    """The lowest level of log messages that the client wants; None for no messages."""
    return ctx._threshold()


async def send_log(ctx: Context, level: LogLevel, data: Any, logger: str) -> None:
    """Send a message of a server elsewhere, whose author was warned there that it is deprecated."""
    await ctx._log(level, data, logger)


def _loggable(data: Any) -> Any:
    """Data for the log; what can't be JSON, such as an exception, becomes text: logging never fails."""
    try:
        return to_jsonable(data)
    except OutputError:
        return jsonrpc.sendable(str(data))
