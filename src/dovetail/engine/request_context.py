"""One request being served, between a transport and the engine: what came, how to answer meanwhile, whether to stop."""

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
    from dovetail.engine.client_requests import LiveRequests, PendingRequest
    from dovetail.engine.concurrency import HeldSlots
    from dovetail.engine.engine import Engine
    from dovetail.engine.input_required import ReplayedRequests
    from dovetail.engine.progress import ProgressSender
    from dovetail.engine.subscriptions import Subscription

    ClientRequests: TypeAlias = LiveRequests | ReplayedRequests  # the questions and steps of one call

Emit = Callable[[bytes], Awaitable[None]]
CloseStream = Callable[[float | None], Awaitable[None]]


class SessionStore(Protocol):
    """Where the session of a request lives; a transport knows."""

    @property
    def record(self) -> Session:
        """As it was when the request came, or as this request has changed it."""

    async def change(self, change: Callable[[Session], Session]) -> None:
        """Replace the record by what `change` makes of it; asked again if another request was quicker."""


class ClientChannel(Protocol):
    """The way from a running call to its client, for requests of ours; up to 2025-11-25."""

    def pending(self, method: str, timeout: float) -> AbstractAsyncContextManager["PendingRequest"]:
        """A request that is about to be sent, until it is answered. Raises QuestionFailed if the call is over."""

    async def tell(self, message: bytes) -> None:
        """Send something to this client, also when the call is long over, if there is a way."""

    def close(self) -> None:
        """The call is over: it can ask nothing more."""


Mark = tuple[Counter[str], Counter[str]]  # how often each question and each step has come up


class Unanswered(BaseException):  # no error, and not to be caught by `except Exception`
    """Ends a run of a function at a question that has no answer yet; the function runs again when there is one."""

    def __init__(self) -> None:
        super().__init__("A question to the client has no answer yet; its function runs again when there is one")


running_step: ContextVar[str | None] = ContextVar("step", default=None)  # its name, where a step of a call runs


def refuse_in_step() -> None:
    """Raises in a step: for an answer it would have to run again."""
    if (name := running_step.get()) is not None:
        raise SetupError(f"ctx.step({name!r}): a step can't ask the client, because it runs once; ask before it")


NO_WAY_BACK = "there is no way to ask this client anything"


class Cancellation(msgspec.Struct, eq=False):
    """Whether a call should stop: check it (`if ctx.cancelled:`), await it, or wait for it in a thread."""

    _is_set: bool = False
    _waiters: list[Callable[[], object]] = []  # each is told once; the list may grow in any thread

    def __bool__(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """In a worker thread: block until the call is cancelled or the time is up; tells which."""
        event = threading.Event()
        with self._told(event.set):
            return event.wait(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._told(lambda: loop.call_soon_threadsafe(_resolve, future)):
            yield from future

    @contextmanager
    def _told(self, waiter: Callable[[], object]) -> Iterator[None]:
        self._waiters.append(waiter)
        if self._is_set:  # asked only now, so that a cancellation meanwhile is not missed
            waiter()
        try:
            yield
        finally:
            self._waiters.remove(waiter)

    def set(self) -> None:
        """From any thread."""
        self._is_set = True
        for waiter in tuple(self._waiters):
            with suppress(RuntimeError):  # its loop is closed: nobody waits there any more
                waiter()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class RequestContext(msgspec.Struct, eq=False):
    """What a transport hands to the engine for one request."""

    request: Request
    emit: Emit
    sessions: SessionStore | None = None
    finish: list[Callable[[], Awaitable[None]]] = []  # to run before the answer goes out
    progress: "ProgressSender | None" = None  # from the first report on
    close_stream: CloseStream | None = None  # where the client can come back for the rest
    subscription: "Subscription | None" = None  # of a listen: whoever ends it ends the listen
    principal: "Principal | None" = None  # who is asking, where that is known
    locate: Callable[[], str | None] | None = None  # finds the address of the caller, where there is a network
    in_process: bool = False  # the client runs in the server's own process
    back: ClientChannel | None = None  # how to ask the client, where that is a request
    no_way_back: str = NO_WAY_BACK  # why there is none
    client_requests: "ClientRequests | None" = None  # from the first question, step or answer on
    slots: "HeldSlots | None" = None  # of the function that runs for it
    _arrived: Any = None
    _cancellation: Cancellation | None = None

    __repr__ = object.__repr__  # its parts hold the headers of the request, and the token in them

    @property
    def owner(self) -> str | None:
        """What belongs to whoever is asking is marked with this."""
        return None if self.principal is None else self.principal.key

    @property
    def address(self) -> str | None:
        return None if self.locate is None else self.locate()

    @property
    def arrived(self) -> Any:
        """The params as they came, whatever a middleware has made of the request."""
        return self.request.params if self._arrived is None else self._arrived

    def keep_arrived(self) -> None:
        """A middleware is about to get the request, and may change it."""
        self._arrived = self.arrived

    def keep_only(self, params: Any) -> None:
        """Of a request that stays for long: nothing else of what its client has sent is held meanwhile."""
        self.request.params, self.request.raw_params, self._arrived = params, EMPTY_OBJECT, None

    @property
    def cancellation(self) -> Cancellation:
        if self._cancellation is None:
            self._cancellation = Cancellation()
        return self._cancellation

    def cancelled(self) -> None:
        """The call was cancelled or has timed out: whoever still runs in a thread can see it."""
        self.cancellation.set()


def client_requests_of(engine: "Engine", context: RequestContext) -> "ClientRequests":
    """The interview of a call, begun if there is none."""
    if context.client_requests is None:
        request = context.request
        if not request.row.interactive:
            raise RuntimeError(f"{request.method}: only tools, prompts and resources can ask the client or take steps")
        if request.revision.input_required:
            context.client_requests = lazy.input_required.ReplayedRequests(engine, context)
        else:
            context.client_requests = lazy.client_requests.LiveRequests(engine, context)
    return context.client_requests
