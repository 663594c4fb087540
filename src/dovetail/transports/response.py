"""The HTTP response to one request: bytes go out in one piece or as a stream of events, until the client is gone."""

import asyncio
import logging
import types
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any

import msgspec

from dovetail.engine.concurrency import CallTimeout, Expiry, go_on_beside, with_timeout
from dovetail.errors import ProtocolError, RateLimited, Unauthorized
from dovetail.transports.asgi import Message, RawHeaders, Send, Whole

SEND_SECONDS = 30.0  # a client that takes nothing for so long is taken for gone
HURRY_SECONDS = 0.1  # the same, where somebody waits for the end of this response
PIECE = 256 * 1024  # bytes that go out at once, so that a large body may take its time
LEFT = 499  # what proxies write into their logs for a client that did not wait
JSON_TYPE = (b"content-type", b"application/json")
JSON_HEADERS: RawHeaders = [JSON_TYPE]
STREAM_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

log = logging.getLogger("dovetail")


class _Done:
    """Awaitable, and over."""

    def __await__(self) -> Iterator[Any]:
        return iter(())


DONE: Awaitable[None] = _Done()  # type: ignore[assignment]  # any iterator will do


class Response(msgspec.Struct, eq=False):
    """One response. What is sent after its end, or after the client has left, goes nowhere and hurts nobody."""

    send: Send
    whole: Whole | None = None  # where the server has a shorter way
    extra: RawHeaders = []  # headers that every response to this request carries
    lock: asyncio.Lock | None = None  # from the first event on: calls and keep-alives write at the same time
    sending: Expiry | None = None  # what is on its way and waits, and how long it may take
    over: asyncio.Future[None] | None = None  # where somebody waits for its end
    started: bool = False
    ended: bool = False
    challenger: Callable[[Unauthorized], RawHeaders] | None = None  # says what would help who is refused

    def headers_of(self, failure: ProtocolError) -> RawHeaders:
        """What a client should know of a failure besides its status: when to try again, or with what."""
        if isinstance(failure, Unauthorized):
            return [] if self.challenger is None else self.challenger(failure)
        if isinstance(failure, RateLimited):
            return [(b"retry-after", b"%d" % failure.retry_after)]
        return [(b"retry-after", b"1")] if failure.http_status == 503 else []

    def add_headers(self, headers: RawHeaders) -> None:
        if headers:
            self.extra = [*self.extra, *headers]

    # ── in one piece ──

    def json(self, status: int, body: bytes, headers: RawHeaders | None = None) -> Awaitable[None]:
        plain = headers is None and not self.extra
        return self._whole(status, JSON_HEADERS if plain else [JSON_TYPE, *self.extra, *(headers or ())], body)

    def empty(self, status: int, headers: RawHeaders | None = None) -> Awaitable[None]:
        return self._whole(status, [*self.extra, *(headers or ())], b"")

    def _whole(self, status: int, headers: RawHeaders, body: bytes, *, unheard: bool = False) -> Awaitable[None]:
        if self.started or (self.ended and not unheard):
            return DONE
        self.started = self.ended = True
        if self.whole is not None and len(body) <= PIECE and self.whole.answer(status, headers, body):
            return DONE
        if status != 204:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        return self._deliver([{"type": "http.response.start", "status": status, "headers": headers}, *_pieces(body)])

    def was_given_by_others(self) -> None:
        """Somebody else has answered, by the same `send`."""
        self.started = self.ended = True

    def settle(self) -> Awaitable[None]:
        """The client left before anything was said. Middleware of Starlette fails without an answer: there is one."""
        return self._whole(LEFT, [*self.extra], b"", unheard=True)

    # ── as a stream ──

    async def open(self, first: bytes = b"") -> None:
        """Become a stream of events; nothing gets between its start and the `first` frame."""
        if self.started or self.ended:
            return
        self.started = True
        self.lock = asyncio.Lock()
        start: Message = {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self.extra]}
        try:
            await self._put([start, *(_pieces(first, more=True) if first else ())])
        except asyncio.CancelledError:
            self._end()  # nobody knows whether it has gone out
            raise

    async def event(self, frame: bytes, *, last: bool = False) -> None:
        """Send a framed event, or a comment; opens the stream if need be, and ends it with the `last` one."""
        if not self.started:
            await self.open()
        await self._put(_pieces(frame, more=not last), last=last)

    async def close(self) -> None:
        """End the stream."""
        if self.started:
            await self._put(_pieces(b""), last=True)

    async def hang_up(self, last: bytes = b"") -> None:
        """End the stream after a last frame, and do not wait for a client that takes nothing."""
        try:
            await with_timeout(self._end_with(last), HURRY_SECONDS)
        except CallTimeout:
            self.abandon()

    async def _end_with(self, last: bytes) -> None:
        if last:
            await self.event(last)
        await self.close()

    def abandon(self) -> None:
        """The client is gone: nothing more is sent, and what hangs on its way is given up."""
        self._end()
        if self.sending is not None:
            self.sending.expire()

    def _end(self) -> None:
        self.ended = True
        if self.over is not None and not self.over.done():
            self.over.set_result(None)

    async def _put(self, messages: Sequence[Message], *, last: bool = False) -> None:
        if self.ended:
            return
        assert self.lock is not None
        async with self.lock:
            if not self.ended:
                self.ended = last
                await self._deliver(messages)
                if last:
                    self._end()

    @types.coroutine
    def _deliver(self, messages: Sequence[Message]) -> Generator[Any, Any, None]:
        """Each has its own time, if it does not go out at once."""
        try:
            for message in messages:
                sending = self.send(message)
                if not isinstance(sending, types.CoroutineType):  # hosts may have other awaitables
                    sending = awaiting(sending)
                try:
                    waited_for = sending.send(None)
                except StopIteration:
                    continue
                yield from go_on_beside(sending, waited_for, self._hurry())
        except asyncio.CancelledError:
            if len(messages) > 1:  # half of it may be out, so that nothing more can follow
                self._end()
            raise
        except Exception:  # each ASGI server has its own way to say that there is nobody
            log.debug("the client did not take what was sent", exc_info=True)
            self._end()
        finally:
            self.sending = None

    def _hurry(self) -> Expiry:
        self.sending = Expiry(SEND_SECONDS)
        return self.sending


def _pieces(body: bytes, *, more: bool = False) -> list[Message]:
    """`more`: the body that it is part of goes on."""
    if len(body) <= PIECE:
        return [{"type": "http.response.body", "body": body, "more_body": more}]
    pieces = [body[begin : begin + PIECE] for begin in range(0, len(body), PIECE)]
    messages: list[Message] = [{"type": "http.response.body", "body": piece, "more_body": True} for piece in pieces]
    messages[-1]["more_body"] = more
    return messages


async def awaiting(sending: Awaitable[None]) -> None:
    await sending
