"""`Context`: what a function may ask of, and tell to, the client it is serving."""

import asyncio
import functools
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, overload

import msgspec
from msgspec import UNSET

from dovetail import engine as lazy
from dovetail import registry
from dovetail.engine.concurrency import DONE
from dovetail.engine.request_context import Cancellation, RequestContext, client_requests_of
from dovetail.engine.subscriptions import Change
from dovetail.engine.threads import CallEnded, call_has_ended, wait_in_thread
from dovetail.errors import ToolError, Unauthorized
from dovetail.protocol import capabilities, jsonrpc
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.methods import LogLevel, RequestId
from dovetail.protocol.types import ResourceContents
from dovetail.schema.encode import OutputError, to_jsonable

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.engine.engine import Engine
    from dovetail.protocol.elicitation import InputRequest
    from dovetail.registry.elicitation import Elicited, Titles
    from dovetail.registry.roots import Root
    from dovetail.registry.sampling import Sampled, SampleOptions, Turn

T = TypeVar("T")
J = TypeVar("J", bound=bool | int | float | str | list[Any] | Mapping[str, Any] | None)  # JSON gives it back as it is
Answer: TypeAlias = Coroutine[Any, Any, T]


@functools.cache
def warn_deprecated(feature: str) -> None:
    """Say, once in a process, that MCP will drop a feature."""
    warnings.warn(capabilities.DEPRECATED[feature], DeprecationWarning, stacklevel=4)


class ClientInfo(msgspec.Struct, frozen=True):
    """Who the client says it is, and what it can do. Not to be trusted for decisions."""

    info: Mapping[str, Any]
    capabilities: Mapping[str, Any]

    @property
    def name(self) -> str | None:
        return self.info.get("name")

    @property
    def version(self) -> str | None:
        return self.info.get("version")


class Context:
    """Injected into every parameter annotated `Context`.

    `principal` is whoever calls; `client` is only what the caller says of itself.

    Methods that tell something are awaited in `async def` functions; in `def` functions they simply return. Those that
    ask, and `step`, are awaited too; in a `def` function `ctx.wait(…)` does that.
    """

    _breath: float | None = None  # when others last had the loop

    def __init__(self, engine: "Engine", context: RequestContext, *, can_wait: bool = True) -> None:
        self._engine = engine
        self._context = context
        self._can_wait = can_wait
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._cancellation = context.cancellation  # made here, on the loop: two threads might make two

    # ── who is asking ──

    @property
    def request_id(self) -> RequestId:
        return self._context.request.id

    @property
    def session_id(self) -> str | None:
        """None where the revision has no sessions: keep state behind an id that the client passes instead."""
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
        """Who is asking, with its scopes and claims, as the server's `auth=` has verified; None if nobody knows.

        What a resource with `cache=` gives must not depend on it: it goes to everybody who may read that resource.
        """
        return self._context.principal

    @property
    def meta(self) -> dict[str, Any]:
        """The request's `_meta`, as it came."""
        return self._context.request.meta

    @property
    def headers(self) -> Mapping[str, str] | None:
        """The HTTP headers, with lower-case names; None on other transports. A token for this server is not in them."""
        return self._context.request.headers

    @property
    def lifespan(self) -> Any:
        """What the server's lifespan yielded."""
        return self._engine.lifespan_value

    @property
    def cancelled(self) -> Cancellation:
        """Check it, await it, or `.wait()` for it in a thread."""
        return self._cancellation

    # ── telling the client ──

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """Tell how far the call is. Needs no client that asked: then it does nothing."""
        token = self._context.request.params.meta.progress_token
        if token is UNSET:
            return self._nothing()
        return self._do(self._report_progress(token, progress, total, message))

    async def _report_progress(
        self, token: RequestId, progress: float, total: float | None, message: str | None
    ) -> None:
        if self._context.progress is None:
            self._context.progress = lazy.progress.ProgressSender(self._context, token, self._loop)
        await self._context.progress.report(progress, total, message)
        await self._breathe()

    def log(self, level: LogLevel, data: Any, logger: str | None = None) -> Awaitable[None]:
        """Send a log message, if the client wants that level. Secrets are blacked out."""
        if self._context.request.revision.log_on_request:
            warn_deprecated("logging")
        if level not in capabilities.SEVERITY:
            raise ValueError(f"ctx.log: unknown level {level!r}; use one of {', '.join(capabilities.LEVELS)}")
        threshold = self._threshold()
        if threshold is None or not capabilities.passes_level(level, threshold):
            return self._nothing()
        return self._do(self._log(level, data, logger))

    async def _log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        params: dict[str, Any] = {"level": level}
        if logger is not None:
            params["logger"] = logger
        redact = self._engine.redactor.value
        params["data"] = redact(_loggable(redact(data)))  # twice: pairs become lists, and models dicts, in between
        await self._context.emit(jsonrpc.notification("notifications/message", encode(params)))
        await self._breathe()

    def _threshold(self) -> LogLevel | None:
        """The least level that the client wants to hear; None for silence."""
        if "logging" not in self._engine.capabilities_for(self._context).names:
            return None
        if self._context.request.revision.log_on_request:
            return self._context.request.log_level
        sessions = self._context.sessions
        level = None if sessions is None else sessions.record.log_level
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

    # ── telling everyone who asked ──

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

    # ── the connection ──

    def close_stream(self, retry: float | None = None) -> Awaitable[None]:
        """Let go of the connection in the middle of a long call; the client comes back for the answer by itself.

        `retry` is how many seconds it should wait before that. Only clients of 2025-11-25 over HTTP that read streams
        can come back; for all others this does nothing.
        """
        if retry is not None and not 0 <= retry <= 86_400:
            raise ValueError(f"ctx.close_stream: retry={retry!r} is not possible; it is 0 to 86400 seconds")
        close = self._context.close_stream
        return self._nothing() if close is None else self._do(_await(close(retry)))

    # ── the server itself ──

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """Read one of this server's own resources, as the caller: what it may not read raises ToolError."""
        try:
            return list((await self._engine.read(uri, self._context)).items)
        except Unauthorized as refusal:  # the call itself is allowed, so this is no answer to it
            raise ToolError(refusal.message) from None

    def wait(self, awaitable: Awaitable[T]) -> T:
        """In a `def` function: hand something awaitable to the loop and block this thread until it is done.

        When the call is cancelled or times out, so is the awaitable, and this raises `CallEnded`, a `RuntimeError`.
        """
        if awaitable is DONE:
            return None  # type: ignore[return-value]
        if threading.get_ident() == self._thread:
            _discard(awaitable)
            raise RuntimeError("ctx.wait would block the event loop; in an async def use await instead")
        if call_has_ended():
            _discard(awaitable)
            raise CallEnded
        return wait_in_thread(lambda: asyncio.run_coroutine_threadsafe(_await(awaitable), self._loop))

    def _do(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        if threading.get_ident() != self._thread:
            with suppress(CallEnded):  # nobody listens any more; to stop is up to the function
                self.wait(work)
        elif self._can_wait:
            return work
        else:  # nobody will await it: it is done before the answer goes out
            self._context.finish.append(lambda: work)
        return DONE

    def _nothing(self) -> Awaitable[None]:
        """Nothing is to be sent, so a thread need not wait for the loop. An `async def` gets a coroutine as ever."""
        on_the_loop = threading.get_ident() == self._thread
        return self._breathe() if on_the_loop and self._can_wait else DONE

    async def _breathe(self, seconds: float = 0.005) -> None:
        """Let others have the loop, if a function has had it for itself for so long.

        What is told seldom has to wait, and a function that works through a long list and tells of every row would
        keep the loop from the first to the last: nobody else would be served, and no cancel be heard.
        """
        now = time.monotonic()
        if self._breath is None:
            self._breath = now
        elif now - self._breath > seconds:
            self._breath = now
            await asyncio.sleep(0)

    # ── asking the client, and steps that run once ──

    @overload
    def elicit(
        self, message: str, response_type: None = None, *, timeout: float | None = None
    ) -> "Answer[Elicited[None]]": ...
    @overload
    def elicit(
        self, message: str, response_type: type[T], *, timeout: float | None = None
    ) -> "Answer[Elicited[T]]": ...
    @overload
    def elicit(
        self, message: str, response_type: "list[str] | Titles", *, timeout: float | None = None
    ) -> "Answer[Elicited[str]]": ...
    @overload
    def elicit(
        self, message: str, response_type: Any = None, *, schema: Any = None, timeout: float | None = None
    ) -> "Answer[Elicited[Any]]": ...
    def elicit(
        self, message: str, response_type: Any = None, *, schema: Any = None, timeout: float | None = None
    ) -> "Answer[Elicited[Any]]":
        """Ask the user to fill in a form, on every revision: `.action` tells whether they did, `.data` what they said.

        `response_type` is a scalar, a Literal, an Enum, a list of choices, or a class of flat fields; `schema` is a raw
        one instead. In a `def` function: `answer = ctx.wait(ctx.elicit(...))`.
        """
        return self._ask("elicit", registry.elicitation.Elicit(message, response_type, schema=schema), timeout)

    def elicit_url(
        self, message: str, url: str, *, elicitation_id: str | None = None, timeout: float | None = None
    ) -> "Answer[Elicited[None]]":
        """Ask the user to open a URL, for what must not pass through the client, such as a password.

        That it was accepted says only that the user was willing. Where clients want to hear when the user is done,
        `server.complete_elicitation(elicitation_id)` tells them.
        """
        inquiry = registry.elicitation.ElicitUrl(message, url, elicitation_id=elicitation_id)
        return self._ask("elicit_url", inquiry, timeout)

    def sample(
        self, messages: "Turn | Sequence[Turn]", *, timeout: float | None = None, **options: "Unpack[SampleOptions]"
    ) -> "Answer[Sampled]":
        """Ask the client's model: `.text` is what it said. MCP 2026-07-28 deprecates this.

        The options are those of `Sample`: `max_tokens`, `system_prompt`, `temperature` and others. `tools` are offered
        to the model where the client allows that; it is you who runs those that it chooses.
        """
        if self._context.request.revision.rounds:
            warn_deprecated("sampling")
        return self._ask("sample", registry.sampling.Sample(messages, **options), timeout)

    def list_roots(self, *, timeout: float | None = None) -> "Answer[list[Root]]":
        """The folders that the client works in. MCP 2026-07-28 deprecates this."""
        if self._context.request.revision.rounds:
            warn_deprecated("roots")
        return self._ask("list_roots", registry.roots.Roots(), timeout)

    def _ask(self, name: str, inquiry: "InputRequest[T]", timeout: float | None) -> Answer[T]:
        return self._named(name, lazy.client_requests.ask(self._engine, self._context, inquiry, timeout))

    @overload
    def step(self, name: str, function: Callable[[], Awaitable[J]]) -> Answer[J]: ...
    @overload
    def step(self, name: str, function: Callable[[], J]) -> Answer[J]: ...
    def step(self, name: str, function: Callable[[], Any]) -> Answer[Any]:
        """Run a side effect once, however often this call is run again for the sake of an answer.

        Its result is remembered, so it must be JSON. A step that raises is not remembered.
        """
        in_thread = threading.get_ident() != self._thread
        return self._named("step", self._step(name, function, in_thread))

    async def _step(self, name: str, function: Callable[[], Any], in_thread: bool) -> Any:
        return await client_requests_of(self._engine, self._context).step(name, function, in_thread=in_thread)

    @property
    def input_responses(self) -> Mapping[str, Any]:
        """For functions that return `InputRequired`: whatever the client sent as answers, asked for or not.

        Nothing in it is checked: it is what a stranger wrote.
        """
        client_requests = self._context.client_requests
        return {} if client_requests is None else client_requests.input_responses

    @property
    def request_state(self) -> Any:
        """For functions that return `InputRequired`: the state that they gave, which nobody could read or change."""
        client_requests = self._context.client_requests
        return None if client_requests is None else client_requests.request_state

    def _named(self, name: str, answer: Answer[T]) -> Answer[T]:
        """A function that forgets to await it is told of it by this name."""
        if not self._can_wait:
            answer.close()
            raise RuntimeError(f"ctx.{name}: a def function with thread=False can't wait; leave out thread=False")
        setattr(answer, "__qualname__", f"ctx.{name}")  # noqa: B010  # of every coroutine, but not in its type
        return answer


def _loggable(data: Any) -> Any:
    """Logging never fails: what can't be JSON, such as an exception, is told as text."""
    try:
        return to_jsonable(data)
    except OutputError:
        return jsonrpc.sendable(str(data))


def _discard(awaitable: Awaitable[Any]) -> None:
    """Nobody will await it; a coroutine would complain."""
    if isinstance(awaitable, Coroutine):
        awaitable.close()


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
