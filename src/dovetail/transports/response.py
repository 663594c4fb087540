"""The HTTP response to one request: bytes go out in one piece or as a stream of events, until the client is gone."""

import asyncio

from dovetail.engine.limits import CallTimeout, with_timeout
from dovetail.transports.asgi import Message, RawHeaders, Send

SEND_SECONDS = 30.0  # a client that takes nothing for so long is taken for gone
LEFT = 499  # what proxies write into their logs for a client that did not wait
JSON_TYPE = (b"content-type", b"application/json")
STREAM_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Response:
    """One response. What is sent after its end, or after the client has left, goes nowhere and hurts nobody."""

    __slots__ = ("_extra", "_lock", "_send", "ended", "started")

    def __init__(self, send: Send, extra: RawHeaders) -> None:
        self._send = send
        self._extra = extra  # headers that every response to this request carries
        self._lock: asyncio.Lock | None = None  # from the first event on: calls and keep-alives write at the same time
        self.started = False
        self.ended = False

    def add_headers(self, headers: RawHeaders) -> None:
        if headers:
            self._extra = [*self._extra, *headers]

    # ── in one piece ──

    async def json(self, status: int, body: bytes, headers: RawHeaders | None = None) -> None:
        length = (b"content-length", b"%d" % len(body))
        await self._whole(status, [JSON_TYPE, length, *self._extra, *(headers or ())], body)

    async def empty(self, status: int, headers: RawHeaders | None = None) -> None:
        length: RawHeaders = [] if status == 204 else [(b"content-length", b"0")]
        await self._whole(status, [*length, *self._extra, *(headers or ())], b"")

    async def _whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        if self.started or self.ended:
            return
        self.started = self.ended = True
        start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        end: Message = {"type": "http.response.body", "body": body}
        try:
            await with_timeout(_send_both(self._send, start, end), SEND_SECONDS)
        except (OSError, CallTimeout):
            return

    async def settle(self) -> None:
        """The client left before anything was said. Middleware of Starlette fails without an answer, so there is one."""
        self.ended = False
        await self.empty(LEFT)

    # ── as a stream ──

    async def open(self) -> None:
        """Become a stream of events."""
        if self.started or self.ended:
            return
        self.started = True
        self._lock = asyncio.Lock()
        start: Message = {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._extra]}
        await self._put(start)

    async def event(self, frame: bytes) -> None:
        """Send a framed event, or a comment; opens the stream if need be."""
        if not self.started:
            await self.open()
        await self._put({"type": "http.response.body", "body": frame, "more_body": True})

    async def close(self) -> None:
        """End the stream."""
        if self.started and not self.ended:
            await self._put({"type": "http.response.body", "body": b"", "more_body": False}, last=True)

    def abandon(self) -> None:
        """The client is gone: nothing more is sent."""
        self.ended = True

    async def _put(self, message: Message, *, last: bool = False) -> None:
        assert self._lock is not None
        async with self._lock:
            if self.ended:
                return
            self.ended = last
            try:
                await with_timeout(_send_one(self._send, message), SEND_SECONDS)
            except (OSError, CallTimeout):
                self.ended = True


async def _send_one(send: Send, message: Message) -> None:
    await send(message)


async def _send_both(send: Send, start: Message, body: Message) -> None:
    await send(start)
    await send(body)
