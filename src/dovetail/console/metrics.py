"""Metrics of a server for the console: request counts and latencies, sent every second as events.

Their size is fixed: counters, and for each of two seconds a histogram whose bins grow by a tenth, so that a percentile
is off by a tenth at most.
"""

import asyncio
import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import Any

from dovetail.engine.dispatch import CallNext
from dovetail.engine.engine import Engine
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

FIRST_BIN = 0.01  # milliseconds, its upper end
LOG_GROWTH = math.log(1.1)
BINS = 200  # the last one is for half an hour and longer
MAX_METHODS = 50
OTHER = "other"  # counts the methods beyond MAX_METHODS
LONG_LIVED = frozenset({"subscriptions/listen"})  # counted, but neither running nor slow
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MAX_VIEWERS = 20
MAX_SESSIONS = 100
MAX_MOUNTS = 100
MAX_URIS = 50  # of one session
MAX_TEXT = 300  # characters of a client's name or a URI
TICK_DELAY = 0.02  # seconds after a full second: timers may fire a little early


class Histogram:
    """Latencies of the requests that ended in one second."""

    def __init__(self) -> None:
        self.count = 0
        self._bins = [0] * BINS

    def add(self, milliseconds: float) -> None:
        index = 0 if milliseconds <= FIRST_BIN else math.ceil(math.log(milliseconds / FIRST_BIN) / LOG_GROWTH)
        self._bins[min(index, BINS - 1)] += 1
        self.count += 1

    def percentiles(self) -> dict[str, float] | None:
        """Percentiles in milliseconds; None if no request ended."""
        if not self.count:
            return None
        totals = list(accumulate(self._bins))
        bins = {name: bisect_left(totals, math.ceil(part * self.count)) for name, part in PERCENTILES.items()}
        return {name: round(FIRST_BIN * math.exp(index * LOG_GROWTH), 3) for name, index in bins.items()}


class Metrics:
    """Counts requests and measures latencies, as a middleware."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._began = clock()
        self._requests = self._errors = self._running = 0
        self._methods: Counter[str] = Counter()
        self._second = int(self._began)
        self._current, self._previous = Histogram(), Histogram()

    async def measure(self, request: Request, call_next: CallNext) -> Result:
        self._requests += 1
        method = request.method
        self._methods[method if method in self._methods or len(self._methods) < MAX_METHODS else OTHER] += 1
        if method in LONG_LIVED:
            return await call_next(request)
        began = self.clock()
        self._running += 1
        try:
            result = await call_next(request)
            self._errors += isinstance(result, ToolResult) and result.is_error
            return result
        except BaseException as failure:
            self._errors += not isinstance(failure, asyncio.CancelledError)
            raise
        finally:
            self._running -= 1
            self._advance()
            self._current.add((self.clock() - began) * 1000)

    def _advance(self) -> None:
        """Start a histogram for the current second."""
        second = int(self.clock())
        if second != self._second:
            self._previous = self._current if second == self._second + 1 else Histogram()
            self._current, self._second = Histogram(), second

    def snapshot(self) -> dict[str, Any]:
        """The current numbers; rate and latency are those of the last full second."""
        self._advance()
        return {
            "uptime": round(self.clock() - self._began, 3),
            "requests": self._requests,
            "errors": self._errors,
            "running": self._running,
            "rate": self._previous.count,
            "latency": self._previous.percentiles(),
            "methods": dict(self._methods),
        }


class LiveMetrics:
    """Server-sent events for the pages that watch a server."""

    def __init__(self, engine: Engine, metrics: Metrics, headers: dict[str, str]) -> None:
        self._engine = engine
        self._metrics = metrics
        self._viewers = 0
        headers = {**headers, "content-type": "text/event-stream", "x-accel-buffering": "no"}
        self._headers: RawHeaders = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an event at once and after every full second, until the viewer disconnects or the server stops."""
        if self._viewers >= MAX_VIEWERS:
            raise Busy(f"{MAX_VIEWERS} pages watch this server already; close one of them", http_status=503)
        overview: AppStatus = scope[APP_STATUS]
        closed = asyncio.Event()
        self._viewers += 1
        try:
            with overview.stream(closed.set):
                await self._send_events(overview, receive, send, closed)
        finally:
            self._viewers -= 1

    async def _send_events(self, overview: AppStatus, receive: Receive, send: Send, closed: asyncio.Event) -> None:
        disconnect = asyncio.ensure_future(listen_for_disconnect(receive))
        disconnect.add_done_callback(lambda _: closed.set())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            while not closed.is_set():
                event = encode_event(jsonrpc.encode(await self._event(overview)))
                await send({"type": "http.response.body", "body": event, "more_body": True})
                with suppress(TimeoutError):
                    await asyncio.wait_for(closed.wait(), 1.0 + TICK_DELAY - self._metrics.clock() % 1.0)
            await send({"type": "http.response.body", "body": b""})
        finally:
            disconnect.cancel()

    async def _event(self, overview: AppStatus) -> dict[str, Any]:
        try:
            total, seen = await overview.sessions(MAX_SESSIONS)
        except StoreUnavailable:  # a later event has them again
            total, seen = 0, []
        mounts = [] if self._engine.mounts is None else self._engine.mounts.status()
        return {
            "time": round(time.time(), 3),
            **self._metrics.snapshot(),
            "streams": overview.streams,
            "sessions": [session_summary(each) for each in seen],
            "sessions_total": total,
            "subscriptions": overview.subscriptions,
            "state": overview.state,
            "mounts": mounts[:MAX_MOUNTS],
            "mounts_total": len(mounts),
        }


def session_summary(seen: ActiveSession) -> dict[str, Any]:
    """A session for viewers, with a prefix of its id only: they can't use the session."""
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
