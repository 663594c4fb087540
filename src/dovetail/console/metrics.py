"""Metrics of a server for the console: requests counted as they pass, told every second as server-sent events.

Their size is fixed, however many requests there are: counters, and for each of two seconds a histogram whose bins grow
by a tenth, so that a percentile is never off by more than that.
"""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dovetail.engine.dispatch import CallNext
from dovetail.errors import Busy
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import Result, ToolResult
from dovetail.protocol.sse import encode_event
from dovetail.state.base import StoreUnavailable
from dovetail.transports.http.asgi import RawHeaders, Receive, Scope, Send
from dovetail.transports.http.in_flight import ActiveSession, AppStatus
from dovetail.transports.http.request import listen_for_disconnect
from dovetail.transports.http.routes import APP_STATUS

FINEST = 0.01  # milliseconds: the upper end of the first bin
GROWTH = math.log(1.1)
BINS = 200  # the last one holds what takes longer than half an hour
MAX_METHODS = 50
OTHER = "other"  # methods, if there are more
UNENDING = frozenset({"subscriptions/listen"})  # counted, but neither running nor slow
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MAX_VIEWERS = 20
MAX_SESSIONS = 100  # that are listed
MAX_URIS = 50  # of one session
MAX_TEXT = 300  # characters of what a client says
LAG = 0.02  # seconds after a full one: timers may come a little early


class Histogram:
    """How long the requests took that ended in one second."""

    def __init__(self) -> None:
        self.count = 0
        self._bins = [0] * BINS

    def add(self, milliseconds: float) -> None:
        place = 0 if milliseconds <= FINEST else math.ceil(math.log(milliseconds / FINEST) / GROWTH)
        self._bins[min(place, BINS - 1)] += 1
        self.count += 1

    def percentiles(self) -> dict[str, float] | None:
        """In milliseconds; None if there was nothing."""
        if not self.count:
            return None
        return {name: self._at(math.ceil(part * self.count)) for name, part in PERCENTILES.items()}

    def _at(self, rank: int) -> float:
        seen = 0
        for place, count in enumerate(self._bins):
            seen += count
            if seen >= rank:
                return round(FINEST * math.exp(place * GROWTH), 3)
        raise AssertionError("a rank is never above the count")


class Metrics:
    """Counts what a server is asked, as a middleware on its event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._began = clock()
        self._requests = self._errors = self._running = 0
        self._methods: dict[str, int] = {}
        self._second = int(self._began)
        self._now, self._before = Histogram(), Histogram()

    async def measure(self, request: Request, call_next: CallNext) -> Result:
        self._count(request.method)
        if request.method in UNENDING:
            return await call_next(request)
        began = self.clock()
        self._running += 1
        try:
            result = await call_next(request)
            self._errors += isinstance(result, ToolResult) and result.is_error
            return result
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._errors += 1
            raise
        finally:
            self._running -= 1
            self._turn()
            self._now.add((self.clock() - began) * 1000)

    def _count(self, method: str) -> None:
        self._requests += 1
        name = method if method in self._methods or len(self._methods) < MAX_METHODS else OTHER
        self._methods[name] = self._methods.get(name, 0) + 1

    def _turn(self) -> None:
        """To the second that it is."""
        second = int(self.clock())
        if second == self._second:
            return
        self._before = self._now if second == self._second + 1 else Histogram()
        self._now, self._second = Histogram(), second

    def figures(self) -> dict[str, Any]:
        """The whole of it; rate and latency of the last second that is over."""
        self._turn()
        return {
            "uptime": round(self.clock() - self._began, 3),
            "requests": self._requests,
            "errors": self._errors,
            "running": self._running,
            "rate": self._before.count,
            "latency": self._before.percentiles(),
            "methods": dict(self._methods),
        }


class LiveMetrics:
    """Server-sent events for all that watch, one every second."""

    def __init__(self, metrics: Metrics, headers: dict[str, str]) -> None:
        self._metrics = metrics
        self._viewers = 0
        told = {**headers, "content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
        self._headers: RawHeaders = [(name.encode(), value.encode()) for name, value in told.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An event at once, and one after every full second, until the viewer leaves or the server stops."""
        if self._viewers >= MAX_VIEWERS:
            raise Busy(f"{MAX_VIEWERS} pages watch this server already; close one of them", http_status=503)
        overview: AppStatus = scope[APP_STATUS]
        over = asyncio.Event()
        self._viewers += 1
        try:
            with overview.stream(over.set):
                await self._tell(overview, receive, send, over)
        finally:
            self._viewers -= 1

    async def _tell(self, overview: AppStatus, receive: Receive, send: Send, over: asyncio.Event) -> None:
        gone = asyncio.ensure_future(listen_for_disconnect(receive))
        gone.add_done_callback(lambda _: over.set())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            while not over.is_set():
                event = encode_event(jsonrpc.encode(await self._event(overview)))
                await send({"type": "http.response.body", "body": event, "more_body": True})
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), 1.0 + LAG - self._metrics.clock() % 1.0)
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()

    async def _event(self, overview: AppStatus) -> dict[str, Any]:
        try:
            total, seen = await overview.sessions(MAX_SESSIONS)
        except StoreUnavailable:  # there is news again when the store is back
            total, seen = 0, []
        return {
            "time": round(time.time(), 3),
            **self._metrics.figures(),
            "streams": overview.streams,
            "sessions": [shown_session(each) for each in seen],
            "sessions_total": total,
            "subscriptions": overview.subscriptions,
            "state": overview.state,
        }


def shown_session(seen: ActiveSession) -> dict[str, Any]:
    """A session without what would let others use it: of its id only the beginning."""
    record = seen.record
    client = jsonrpc.parse(record.client)
    words = (str(client.get(name) or "") for name in ("name", "version"))
    return {
        "id": record.id[:8],
        "client": " ".join(words).strip()[:MAX_TEXT],
        "revision": record.version,
        "since": round(seen.since, 3),
        "idle": round(seen.idle, 3),
        "subscriptions": [uri[:MAX_TEXT] for uri in sorted(record.subscriptions)[:MAX_URIS]],
    }
