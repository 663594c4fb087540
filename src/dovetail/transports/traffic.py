"""What goes on in an HTTP server: calls being served, streams held open, bodies on their way, and how it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from dovetail.engine.concurrency import beside
from dovetail.engine.rate_limits import ANONYMOUS
from dovetail.errors import INTERNAL_ERROR, Busy, ProtocolError, RateLimited
from dovetail.transports.response import DONE, Response, awaiting

SETTLE_SECONDS = 1.0  # how long stopped calls get to clean up, and streams that were given up
LAST_SECONDS = 0.5  # for a client to take the end of its stream
BODY_BYTES = 256 * 1024 * 1024  # of bodies that are being read at the same time


class Bodies:
    """How many bytes are held of bodies that have not arrived completely, all of them together."""

    __slots__ = ("_most", "held")

    def __init__(self, largest: int) -> None:
        self._most = max(BODY_BYTES, largest)
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


class Traffic:
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
        return answer if answer is DONE else beside(awaiting(answer), lambda: _OnItsWay(self, response))

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

    def end_streams(self, timeout: float) -> None:
        """Nothing more comes in, and the streams are told to end; once."""
        if not self.closing:
            self.closing = True
            for stream in tuple(self._streams.values()):
                stream.end(timeout)

    async def close(self, timeout: float) -> None:
        """End the streams now, wait for the calls, stop those that take longer, give up clients that do not read."""
        self.end_streams(timeout)
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


class _OnItsWay(NamedTuple):
    """Beside an answer that waits: given up when the server can't wait for its client any more."""

    traffic: Traffic
    response: Response

    def begin(self) -> None:
        self.traffic.enter(self, self.response.abandon)

    def meant(self, cancelled: asyncio.CancelledError) -> BaseException:
        return cancelled

    def end(self) -> None:
        self.traffic.leave(self)
