"""Calls, streams and request bodies in flight: limits, drain, and `AppStatus`, which custom routes may show."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from dovetail.engine.concurrency import DONE
from dovetail.engine.engine import Engine
from dovetail.engine.rate_limits import ANONYMOUS
from dovetail.engine.sessions import Sessions
from dovetail.errors import INTERNAL_ERROR, Busy, ProtocolError, RateLimited
from dovetail.protocol.session import Session
from dovetail.state.base import StateBackend
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.response import HttpResponse

CLEANUP_TIMEOUT = 1.0  # seconds for stopped calls and abandoned streams to clean up
FLUSH_TIMEOUT = 0.5  # seconds for a client to take the end of its stream


class BodyQuota:
    """Bytes of all request bodies that have arrived in part."""

    def __init__(self, largest: int, limit: int = 256 * 1024 * 1024) -> None:
        self._limit = max(limit, largest)
        self.held = 0

    def acquire(self, size: int) -> int:
        """Count `size` bytes until they are released. Raises Busy."""
        if self.held + size > self._limit:
            text = f"The server holds {self._limit} bytes of bodies that are not complete; try again later"
            raise Busy(text, http_status=503)
        self.held += size
        return size

    def release(self, size: int) -> None:
        self.held -= size


class OpenStream(NamedTuple):
    end: Callable[[float], object]  # with the seconds that its calls get
    abandon: Callable[[], object]  # if `end` did not help, or if another caller gets its slot
    caller: str


class InFlight:
    """Registry of calls, which a drain waits for, and of streams, which a drain ends."""

    def __init__(self, max_streams: int, max_body_bytes: int, max_per_caller: int | None) -> None:
        """`max_per_caller`: streams of one caller; None: half of `max_streams`."""
        self._max_streams = max_streams
        self._max_per_caller = max_per_caller or -(-max_streams // 2)
        self.bodies = BodyQuota(max_body_bytes)
        self.calls: dict[Any, Callable[[], object]] = {}  # each with the function that stops it
        self.streams: dict[Any, OpenStream] = {}  # the oldest first
        self._by_caller: dict[str, dict[Any, None]] = {}  # streams, without those that were evicted
        self._removed = asyncio.Event()
        self.closing = False

    def refuse_if_closing(self) -> None:
        if self.closing:
            raise ProtocolError("The server is shutting down", code=INTERNAL_ERROR, http_status=503)

    def add(self, call: object, stop: Callable[[], object]) -> None:
        """Add a call; one that has begun is never refused: `refuse_if_closing` is called before it begins."""
        self.calls[call] = stop

    def remove(self, call: object) -> None:
        self.calls.pop(call, None)
        if self.closing:
            self._removed.set()

    def track_sending(self, sending: Awaitable[None], response: HttpResponse) -> Awaitable[None]:
        """Count a response that waits for a slow client as a call; most are sent at once."""
        return sending if sending is DONE else self._track_sending(sending, response)

    async def _track_sending(self, sending: Awaitable[None], response: HttpResponse) -> None:
        self.add(response, response.abandon)
        try:
            await sending
        finally:
            self.remove(response)

    def open_stream(
        self, stream: object, end: Callable[[float], object], abandon: Callable[[], object], caller: str
    ) -> None:
        """Register a stream. Raises ProtocolError if the caller or the server has too many."""
        self.refuse_if_closing()
        own = self._by_caller.get(caller, {})
        if len(own) >= self._max_per_caller and caller != ANONYMOUS:
            text = f"This caller holds {self._max_per_caller} streams open; max_per_caller sets the limit"
            raise RateLimited(text, retry_after=1)
        if len(self.streams) >= self._max_streams and sum(map(len, self._by_caller.values())) >= self._max_streams:
            self._evict_stream(len(own))
        self._by_caller.setdefault(caller, own)[stream] = None
        self.streams[stream] = OpenStream(end, abandon, caller)

    def _evict_stream(self, own: int) -> None:
        """Abandon the oldest stream of the caller with the most, if it keeps at least as many as the new one gets."""
        largest = max(self._by_caller.values(), key=len)
        if len(largest) <= own + 1:
            text = f"The server holds {self._max_streams} streams open; try again later, or raise max_streams"
            raise Busy(text, http_status=503)
        stream = next(iter(largest))
        oldest = self.streams[stream]
        self._uncount(stream, oldest.caller)
        oldest.abandon()

    def _uncount(self, stream: object, caller: str) -> None:
        streams = self._by_caller.get(caller, {})
        streams.pop(stream, None)
        if not streams:
            self._by_caller.pop(caller, None)

    def close_stream(self, stream: object) -> None:
        if (closed := self.streams.pop(stream, None)) is not None:
            self._uncount(stream, closed.caller)
        if self.closing:
            self._removed.set()

    async def close(self, timeout: float) -> None:
        """Refuse new calls, end the streams, wait for calls, stop those that take longer, abandon slow clients."""
        if not self.closing:
            self.closing = True
            for stream in tuple(self.streams.values()):
                stream.end(timeout)
        for seconds in (timeout, CLEANUP_TIMEOUT):
            if await self._is_emptied(self.calls, seconds):
                break
            for stop in tuple(self.calls.values()):
                stop()  # the second time, the client of the call is abandoned
        if not await self._is_emptied(self.streams, FLUSH_TIMEOUT):
            for stream in tuple(self.streams.values()):
                stream.abandon()
            await self._is_emptied(self.streams, CLEANUP_TIMEOUT)

    async def _is_emptied(self, registry: Mapping[Any, object], timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while registry:
                    self._removed.clear()
                    await self._removed.wait()
        except TimeoutError:
            return False
        return True


class ActiveSession(NamedTuple):
    record: Session
    since: float  # its first use in this process, in seconds since 1970
    idle: float  # seconds since its last use


class AppStatus:
    """What custom routes may show of their app; `APP_STATUS` in their scope. A worker knows what it serves itself."""

    def __init__(
        self, engine: Engine, options: HttpOptions, state: StateBackend, in_flight: InFlight, sessions: Sessions
    ) -> None:
        self.endpoint = options.path  # relative to the mount path
        hosts = options.allowed_hosts
        # otherwise the app accepts any Host
        self.knows_its_hosts = hosts is not None and not any(host.partition(":")[0] == "*" for host in hosts)
        self.state = type(state).__name__.removesuffix("State").lower()
        self._engine = engine
        self._in_flight = in_flight
        self._sessions = sessions

    @property
    def streams(self) -> int:
        return len(self._in_flight.streams)

    @property
    def subscriptions(self) -> int:
        """Resource subscriptions of sessions and of `subscriptions/listen`."""
        return self._engine.hub.uri_subscriptions

    async def sessions(self, limit: int) -> tuple[int, list[ActiveSession]]:
        """The number of sessions, and the `limit` ones that were used last."""
        total, last = self._sessions.last_used(limit)
        held = await asyncio.gather(*(self._sessions.load(id) for id, _, _ in last))
        now = time.time()
        seen = zip(held, last, strict=True)
        return total, [ActiveSession(each.record, now - age, idle) for each, (_, age, idle) in seen if each is not None]

    @contextmanager
    def stream(self, end: Callable[[], object]) -> Iterator[None]:
        """Count an endless response of a custom route as a stream; a drain calls `end`."""
        key = object()
        self._in_flight.open_stream(key, lambda _: end(), end, "routes")
        try:
            yield
        finally:
            self._in_flight.close_stream(key)
