"""The live figures of a server for the console, sent every second as events."""

import asyncio
import time
from contextlib import suppress
from typing import Any

from dovetail.console.history import History, since
from dovetail.engine.engine import Engine
from dovetail.engine.metrics import BUCKETS
from dovetail.errors import Busy
from dovetail.protocol import jsonrpc
from dovetail.protocol.sse import encode_event
from dovetail.state.base import StoreUnavailable
from dovetail.transports.http.asgi import RawHeaders, Receive, Scope, Send
from dovetail.transports.http.in_flight import ActiveSession, AppStatus
from dovetail.transports.http.request import listen_for_disconnect
from dovetail.transports.http.routes import APP_STATUS

MAX_VIEWERS = 20
MAX_SESSIONS = 100
MAX_MOUNTS = 100
MAX_URIS = 50  # of one session
MAX_TEXT = 300  # characters of a client's name or a URI
TICK_DELAY = 0.02  # seconds after a full second: timers may fire a little early


class LiveMetrics:
    """Server-sent events for the pages that watch a server."""

    def __init__(self, engine: Engine, history: History, headers: dict[str, str]) -> None:
        self._engine = engine
        self._history = history
        self._began = time.monotonic()
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
            last = 0  # that the viewer has
            while not closed.is_set():
                event = encode_event(jsonrpc.encode(await self._event(overview, last)))
                last = self._history.last
                await send({"type": "http.response.body", "body": event, "more_body": True})
                with suppress(TimeoutError):
                    await asyncio.wait_for(closed.wait(), 1.0 + TICK_DELAY - time.monotonic() % 1.0)
            await send({"type": "http.response.body", "body": b""})
        finally:
            disconnect.cancel()

    async def _event(self, overview: AppStatus, last: int) -> dict[str, Any]:
        """The first one has the history, the others what is new."""
        try:
            total, seen = await overview.sessions(MAX_SESSIONS)
        except StoreUnavailable:  # a later event has them again
            total, seen = 0, []
        mounts = [] if self._engine.mounts is None else self._engine.mounts.status()
        return {
            "time": round(time.time(), 3),
            "uptime": round(time.monotonic() - self._began, 3),
            "tail": self._history.tail(),
            "points": since(self._history.points, last),
            "failures": since(self._history.failures, last),
            "methods": self._history.methods,
            "buckets": BUCKETS,
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
