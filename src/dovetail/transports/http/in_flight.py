"""Calls, streams and bodies in flight: how many there may be, how they end, and what a page may know of them."""

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
from dovetail.transports.http.response import Response

SETTLE_SECONDS = 1.0  # how long stopped calls get to clean up, and streams that were given up
LAST_SECONDS = 0.5  # for a client to take the end of its stream


class Bodies:
    """How many bytes are held of bodies that have not arrived completely, all of them together."""

    __slots__ = ("_most", "held")

    def __init__(self, largest: int, most: int = 256 * 1024 * 1024) -> None:
        self._most = max(most, largest)
        self.held = 0

    def take(self, size: int) -> int:
        """Gives the size, which is to be given back."""
        if self.held + size > self._most:
            text = f"The server holds {self._most} bytes of bodies that are not complete; try again later"
            raise Busy(text, http_status=503)
        self.held += size
        return size

    def give_back(self, size: int) -> None:
        self.held -= size


class Stream(NamedTuple):
    """How one is ended, in so many seconds for its calls, and how it is given up; and who has opened it."""

    end: Callable[[float], object]
    abandon: Callable[[], object]
    caller: str


class InFlight:
    """Whatever enters also leaves; `close` waits for that."""

    def __init__(self, max_streams: int, max_body_bytes: int, most_of_one: int | None) -> None:
        """`most_of_one`: streams of one caller; None: half of them."""
        self._max_streams = max_streams
        self._most_of_one = most_of_one or -(-max_streams // 2)
        self.bodies = Bodies(max_body_bytes)
        self._calls: dict[Any, Callable[[], object]] = {}  # a call, and how to stop it
        self._streams: dict[Any, Stream] = {}  # the oldest first
        self._shares: dict[str, dict[Any, None]] = {}  # the streams of each caller, but for those that give way
        self._left = asyncio.Event()
        self.closing = False

    def refuse_if_closing(self) -> None:
        if self.closing:
            raise ProtocolError("The server is shutting down", code=INTERNAL_ERROR, http_status=503)

    # ── calls: they are waited for ──

    def enter(self, call: object, stop: Callable[[], object]) -> None:
        """What has begun is never refused: whoever begins it asks `refuse_if_closing` before."""
        self._calls[call] = stop

    def leave(self, call: object) -> None:
        self._calls.pop(call, None)
        if self.closing:
            self._left.set()

    def sending(self, answer: Awaitable[None], response: Response) -> Awaitable[None]:
        """An answer that waits for its client to take it is on record meanwhile; most go out at once."""
        return answer if answer is DONE else self._sending(answer, response)

    async def _sending(self, answer: Awaitable[None], response: Response) -> None:
        self.enter(response, response.abandon)
        try:
            await answer
        finally:
            self.leave(response)

    # ── streams: they are told to end ──

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def open_stream(
        self, stream: object, end: Callable[[float], object], abandon: Callable[[], object], caller: str
    ) -> None:
        """`end` is told how many seconds the calls get; `abandon` comes if that did not help, or if it gives way."""
        self.refuse_if_closing()
        share = self._shares.get(caller, {})
        if len(share) >= self._most_of_one and caller != ANONYMOUS:
            text = f"This caller holds {self._most_of_one} streams open; max_per_caller sets the limit"
            raise RateLimited(text, retry_after=1)
        if len(self._streams) >= self._max_streams and sum(map(len, self._shares.values())) >= self._max_streams:
            self._make_room(share)
        self._shares.setdefault(caller, share)[stream] = None
        self._streams[stream] = Stream(end, abandon, caller)

    def _make_room(self, share: dict[Any, None]) -> None:
        """The caller that holds most gives up its oldest, if it will still hold as many as the newcomer then."""
        largest = max(self._shares.values(), key=len)
        if len(largest) <= len(share) + 1:
            text = f"The server holds {self._max_streams} streams open; try again later, or raise max_streams"
            raise Busy(text, http_status=503)
        oldest = self._streams[next(iter(largest))]
        self._leave_share(next(iter(largest)), oldest.caller)
        oldest.abandon()

    def _leave_share(self, stream: object, caller: str) -> None:
        share = self._shares.get(caller, {})
        share.pop(stream, None)
        if not share:
            self._shares.pop(caller, None)

    def close_stream(self, stream: object) -> None:
        if (left := self._streams.pop(stream, None)) is not None:
            self._leave_share(stream, left.caller)
        if self.closing:
            self._left.set()

    async def close(self, timeout: float) -> None:
        """Refuse new ones, end the streams, wait for the calls, stop those that take longer, give up slow clients."""
        if not self.closing:
            self.closing = True
            for stream in tuple(self._streams.values()):
                stream.end(timeout)
        if not await self._emptied(self._calls, timeout):
            for stop in tuple(self._calls.values()):
                stop()
            if not await self._emptied(self._calls, SETTLE_SECONDS):
                for stop in tuple(self._calls.values()):
                    stop()  # the second time, its client is given up
        if not await self._emptied(self._streams, LAST_SECONDS):
            for stream in tuple(self._streams.values()):
                stream.abandon()
            await self._emptied(self._streams, SETTLE_SECONDS)

    async def _emptied(self, which: Mapping[Any, object], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while which:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return False
        return True


class SeenSession(NamedTuple):
    """A session, and how long it has been known to this process."""

    record: Session
    since: float  # when it was first met here, in seconds since 1970
    idle: float  # seconds since it was used


class Overview:
    """What a page may know of the app that it is shown in: it comes with the scope of the page (`OVERVIEW`).

    Of several workers each knows its own traffic, and the sessions that were used there.
    """

    def __init__(
        self, engine: Engine, options: HttpOptions, state: StateBackend, traffic: InFlight, sessions: Sessions
    ) -> None:
        self.endpoint = options.path  # below where the app is mounted
        hosts = options.allowed_hosts
        # else any name that points here is believed
        self.knows_its_hosts = hosts is not None and not any(host.partition(":")[0] == "*" for host in hosts)
        self.state = type(state).__name__.removesuffix("State").lower()
        self._engine = engine
        self._traffic = traffic
        self._sessions = sessions

    @property
    def streams(self) -> int:
        """Those that are held open, a page's own too."""
        return self._traffic.open_streams

    @property
    def subscriptions(self) -> int:
        """To resources, by sessions and by listens."""
        return self._engine.hub.uri_subscriptions

    async def sessions(self, most: int) -> tuple[int, list[SeenSession]]:
        """How many there are, and those that were used last."""
        total, last = self._sessions.last_used(most)
        held = await asyncio.gather(*(self._sessions.load(id) for id, _, _ in last))
        now = time.time()
        seen = zip(held, last, strict=True)
        return total, [SeenSession(each.record, now - met, idle) for each, (_, met, idle) in seen if each is not None]

    @contextmanager
    def stream(self, end: Callable[[], object]) -> Iterator[None]:
        """A page that goes on and on: it counts as a stream, and is told to end when the server stops."""
        key = object()
        self._traffic.open_stream(key, lambda _: end(), end, "pages")
        try:
            yield
        finally:
            self._traffic.close_stream(key)
