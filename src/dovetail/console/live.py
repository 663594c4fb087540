"""What goes on in the server, told every second: figures and an overview come in, server-sent events go out."""

import asyncio
import time
from contextlib import suppress
from typing import Any

from dovetail.console.gauge import Gauge
from dovetail.errors import Busy
from dovetail.protocol import jsonrpc
from dovetail.protocol.sse import encode_event
from dovetail.state.base import StoreTrouble
from dovetail.transports.asgi import RawHeaders, Receive, Scope, Send
from dovetail.transports.request import until_gone
from dovetail.transports.routes import OVERVIEW
from dovetail.transports.traffic import Overview, SeenSession

MAX_VIEWERS = 20
MAX_SESSIONS = 100  # that are listed
MAX_URIS = 50  # of one session
MAX_TEXT = 300  # characters of what a client says
LAG = 0.02  # seconds after a full one: timers may come a little early


class LiveFigures:
    """The way from one gauge to all that watch it."""

    def __init__(self, gauge: Gauge, headers: dict[str, str]) -> None:
        self._gauge = gauge
        self._viewers = 0
        told = {**headers, "content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
        self._headers: RawHeaders = [(name.encode(), value.encode()) for name, value in told.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An event at once, and one after every full second, until the viewer leaves or the server stops."""
        if self._viewers >= MAX_VIEWERS:
            raise Busy(f"{MAX_VIEWERS} pages watch this server already; close one of them", http_status=503)
        overview: Overview = scope[OVERVIEW]
        over = asyncio.Event()
        self._viewers += 1
        try:
            with overview.stream(over.set):
                await self._tell(overview, receive, send, over)
        finally:
            self._viewers -= 1

    async def _tell(self, overview: Overview, receive: Receive, send: Send, over: asyncio.Event) -> None:
        gone = asyncio.ensure_future(until_gone(receive))
        gone.add_done_callback(lambda _: over.set())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            while not over.is_set():
                event = encode_event(jsonrpc.encode(await self._event(overview)))
                await send({"type": "http.response.body", "body": event, "more_body": True})
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), 1.0 + LAG - self._gauge.clock() % 1.0)
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()

    async def _event(self, overview: Overview) -> dict[str, Any]:
        try:
            total, seen = await overview.sessions(MAX_SESSIONS)
        except StoreTrouble:  # there is news again when the store is back
            total, seen = 0, []
        return {
            "time": round(time.time(), 3),
            **self._gauge.figures(),
            "streams": overview.streams,
            "sessions": [shown_session(each) for each in seen],
            "sessions_total": total,
            "subscriptions": overview.subscriptions,
            "state": overview.state,
        }


def shown_session(seen: SeenSession) -> dict[str, Any]:
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
