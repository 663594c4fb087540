"""`RequestContext`: one request between a transport and the engine, with its channel to the client."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dovetail import engine as lazy
from dovetail.errors import SetupError
from dovetail.protocol.inbound import Request
from dovetail.protocol.methods import EMPTY_OBJECT
from dovetail.protocol.session import Session

if TYPE_CHECKING:
    from typing import TypeAlias

    from dovetail.auth.principal import Principal
    from dovetail.engine.concurrency import HeldSlots
    from dovetail.engine.engine import Engine
    from dovetail.engine.input_required import ReplayedRequests
    from dovetail.engine.progress import ProgressSender
    from dovetail.engine.server_requests import LiveRequests, PendingRequest
    from dovetail.engine.subscriptions import Subscription
    from dovetail.engine.threads import ThreadPool
    from dovetail.extensions.task_runs import TaskRun

    ServerRequests: TypeAlias = LiveRequests | ReplayedRequests  # and the steps of one call

Emit = Callable[[bytes], Awaitable[None]]
CloseStream = Callable[[float | None], Awaitable[None]]


class SessionAccess(Protocol):
    """Where the session of a request lives; each transport has its own."""

    @property
    def record(self) -> Session:
        """The record as it was when the request arrived, or as this request has changed it."""

    async def change(self, change: Callable[[Session], Session]) -> None:
        """Replace the record by what `change` returns; called again if another request has changed it meanwhile."""


class ClientChannel(Protocol):
    """Requests and notifications from a running call to its client; up to 2025-11-25."""

    def pending(self, method: str, timeout: float) -> AbstractAsyncContextManager["PendingRequest"]:
        """Register a request that is about to be sent, until its response. Raises QuestionFailed after the call."""

    def for_task(self) -> "ClientChannel":
        """A channel that stays open after the call, for its task."""

    async def notify(self, message: bytes) -> None:
        """Send a notification, also after the end of the call, if the client can be reached."""

    def close(self) -> None:
        """Refuse further requests: the call has ended."""


Checkpoint = tuple[Counter[str], Counter[str]]  # occurrences of server requests and of steps, so far in a run
NO_CHANNEL = "there is no way to ask this client anything"


class InputNeeded(BaseException):  # no error, and not to be caught by `except Exception`
    """Ends a run of a function at a server request without a response; the function runs again when there is one."""

    def __init__(self) -> None:
        super().__init__("A question to the client has no answer yet; its function runs again when there is one")


running_step: ContextVar[str | None] = ContextVar("step", default=None)  # its name, inside a step


def refuse_in_step() -> None:
    """Raise if the call is in a step: a step runs once, but a response would make it run again."""
    if (name := running_step.get()) is not None:
        raise SetupError(f"ctx.step({name!r}): a step can't ask the client, because it runs once; ask before it")


class Cancellation(msgspec.Struct, eq=False):
    """Whether a call should stop: check it (`if ctx.cancelled:`), await it, or wait for it in a thread."""

    _is_set: bool = False
    _waiters: list[Callable[[], object]] = []  # each is called once; the list may grow in any thread

    def __bool__(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """In a worker thread: block until the call is cancelled (True) or the time is up (False)."""
        event = threading.Event()
        with self._registered(event.set):
            return event.wait(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._registered(lambda: loop.call_soon_threadsafe(_resolve, future)):
            yield from future

    @contextmanager
    def _registered(self, waiter: Callable[[], object]) -> Iterator[None]:
        self._waiters.append(waiter)
        if self._is_set:  # checked after the append, so that a cancellation in between is not missed
            waiter()
        try:
            yield
        finally:
            self._waiters.remove(waiter)

    def set(self) -> None:
        """Cancel the call; may be called from any thread."""
        self._is_set = True
        for waiter in tuple(self._waiters):
            with suppress(RuntimeError):  # its loop is closed
                waiter()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


_making_cancellation = threading.Lock()  # two threads might make two for one call


class RequestContext(msgspec.Struct, eq=False):
    """What a transport hands to the engine for one request."""

    request: Request
    emit: Emit
    session_access: SessionAccess | None = None
    before_response: list[Callable[[], Awaitable[None]]] = []  # callbacks
    progress: "ProgressSender | None" = None  # from the first report on
    close_stream: CloseStream | None = None  # where the client can resume the stream
    subscription: "Subscription | None" = None  # of a listen, which ends with it
    principal: "Principal | None" = None  # the caller, if authenticated
    locate: Callable[[], str | None] | None = None  # finds the address of the caller, where there is a network
    in_process: bool = False  # the client runs in the server's own process
    channel: ClientChannel | None = None  # for requests to the client, up to 2025-11-25
    no_channel_reason: str = NO_CHANNEL
    server_requests: "ServerRequests | None" = None  # from the first server request, step or input response on
    uses_state: bool = False  # of the caller: what the call gives is for no other
    slots: "HeldSlots | None" = None  # of the function that runs for it
    outlives_connection: bool = False  # its client will make it again, so a disconnect does not cancel it
    original_params: Any = None  # as they came, once a middleware may have changed those of the request
    served: "Engine | None" = None  # the server that the client knows, once a mounted one has the request
    run: "TaskRun | None" = None  # of a tool whose call is a task, or may become one
    is_indirect: bool = False  # the client has called `call_tool`, and the request is now for the tool that it named
    _cancellation: Cancellation | None = None

    __repr__ = object.__repr__  # its parts hold the headers of the request, and the token in them

    @property
    def owner(self) -> str | None:
        """The key of the caller, to which sessions, states and streams are bound."""
        return None if self.principal is None else self.principal.key

    @property
    def task_list(self) -> str | None:
        """Whose tasks a list of 2025-11-25 has: the caller's, or the session's on a pipe; None if unknown."""
        session = self.request.session
        return self.owner or (None if session is None or self.request.headers is not None else session.id)

    @property
    def address(self) -> str | None:
        return None if self.locate is None else self.locate()

    def keep_only_params(self, params: Any) -> None:
        """Keep only `params` of a long request: nothing else that its client has sent stays in memory."""
        self.request.params, self.request.raw_params, self.original_params = params, EMPTY_OBJECT, None

    @property
    def cancellation(self) -> Cancellation:
        if self._cancellation is None:
            with _making_cancellation:
                if self._cancellation is None:
                    self._cancellation = Cancellation()
        return self._cancellation

    def mark_cancelled(self) -> None:
        """Mark a call that was cancelled or has timed out: functions in threads see it in `ctx.cancelled`."""
        self.cancellation.set()


def threads_of(engine: "Engine", context: RequestContext) -> "ThreadPool":
    return engine.threads if context.run is None else context.run.threads


def server_requests_of(engine: "Engine", context: RequestContext) -> "ServerRequests":
    """The server requests and steps of a call, made if it has none yet."""
    if context.server_requests is None:
        request = context.request
        if not request.row.interactive:
            raise RuntimeError(f"{request.method}: only tools, prompts and resources can ask the client or take steps")
        if request.revision.input_required:
            context.server_requests = lazy.input_required.ReplayedRequests(engine, context)
        else:
            context.server_requests = lazy.server_requests.LiveRequests(engine, context)
    return context.server_requests
