"""One request being served, between a transport and the engine: what came, how to answer meanwhile, whether to stop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol

from dovetail.protocol.inbound import Request
from dovetail.protocol.session import Session

Emit = Callable[[bytes], Awaitable[None]]


class SessionStore(Protocol):
    """Where the session of a request lives; a transport knows."""

    @property
    def record(self) -> Session: ...

    async def save(self, record: Session) -> None: ...


class Cancellation:
    """Whether a call should stop: check it (`if ctx.cancelled:`), await it, or wait for it in a thread."""

    __slots__ = ("_event", "_waiters")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """In a worker thread: block until the call is cancelled or the time is up; tells which."""
        return self._event.wait(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((loop, future))
        if self._event.is_set() and not future.done():
            future.set_result(None)
        yield from future

    def set(self) -> None:
        self._event.set()
        for loop, future in self._waiters:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # that loop is closed: nobody waits there any more
                continue


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Exchange:
    """What a transport hands to the engine for one request."""

    __slots__ = ("_cancellation", "emit", "finish", "request", "sessions")

    def __init__(self, request: Request, emit: Emit, sessions: SessionStore | None = None) -> None:
        self.request = request
        self.emit = emit
        self.sessions = sessions
        self.finish: list[Callable[[], Awaitable[None]]] = []  # to run before the answer goes out
        self._cancellation: Cancellation | None = None

    @property
    def cancellation(self) -> Cancellation:
        if self._cancellation is None:
            self._cancellation = Cancellation()
        return self._cancellation

    def cancelled(self) -> None:
        """The call was cancelled or has timed out: whoever still runs in a thread can see it."""
        if self._cancellation is not None:
            self._cancellation.set()
