"""HTTP responses: JSON in one piece, or a stream of events; and the answer to one POST, which may become either."""

import asyncio
import logging
import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple

import msgspec

from dovetail.engine.concurrency import DONE, CallTimeout, PausableTimeout, resume_with_timer, with_timeout
from dovetail.errors import ProtocolError, RateLimited, Unauthorized
from dovetail.protocol import sse
from dovetail.protocol.methods import RequestId
from dovetail.transports.http.asgi import FastPath, Message, RawHeaders, Send
from dovetail.transports.http.event_store import EventStore, EventStream

SEND_SECONDS = 30.0  # a client that takes nothing for so long is taken for gone
PIECE = 256 * 1024  # bytes that go out at once, so that a large body may take its time
RETRY_MILLISECONDS = 1000  # after which a client that lost its connection may come back
JSON_TYPE = (b"content-type", b"application/json")
JSON_HEADERS: RawHeaders = [JSON_TYPE]
STREAM_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

log = logging.getLogger("dovetail")


class Accepted(NamedTuple):
    """The media types that a client reads."""

    json: bool
    stream: bool


class Response(msgspec.Struct, eq=False):
    """One response. What is sent after its end, or after the client has left, is dropped."""

    send: Send
    whole: FastPath | None = None  # where the server has a shorter way
    extra: RawHeaders = []  # headers that every response to this request carries
    lock: asyncio.Lock | None = None  # from the first event on: calls and keep-alives write at the same time
    sending: PausableTimeout | None = None  # what is on its way and waits, and how long it may take
    over: asyncio.Future[None] | None = None  # where somebody waits for its end
    started: bool = False
    ended: bool = False
    challenger: Callable[[Unauthorized], RawHeaders] | None = None  # the WWW-Authenticate of a refusal

    __repr__ = object.__repr__  # its parts hold the headers of the request, and the token in them

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

    def settle(self) -> Awaitable[None]:
        """The client left before anything was said. Middleware of Starlette fails without an answer: there is one.

        Its status is the one that proxies write into their logs then.
        """
        return self._whole(499, [*self.extra], b"", unheard=True)

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

        async def end() -> None:
            if last:
                await self.event(last)
            await self.close()

        try:
            await with_timeout(end(), 0.1)
        except CallTimeout:
            self.abandon()

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
                self.sending = PausableTimeout(SEND_SECONDS)
                yield from resume_with_timer(sending, waited_for, self.sending)
        except asyncio.CancelledError:
            if len(messages) > 1:  # half of it may be out, so that nothing more can follow
                self._end()
            raise
        except Exception:  # each ASGI server has its own way to say that there is nobody
            log.debug("the client did not take what was sent", exc_info=True)
            self._end()
        finally:
            self.sending = None


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


class Answer(msgspec.Struct, eq=False):
    """The answer to one POST: JSON, unless the server has something to say before it; then a stream of events.

    If the client has a session, the events of its stream are kept in the event store, so that it can come back.
    """

    response: Response
    accepted: Accepted
    session: str = ""  # the client's, if it has one
    store: EventStore | None = None  # where it can come back
    primes: bool = False  # and is told so at once
    requests: tuple[RequestId, ...] = ()  # what it answers
    events: EventStream | None = None  # from the first event on

    async def emit(self, message: bytes) -> None:
        await self.carry(message)

    async def carry(self, message: bytes, *, last: bool = False) -> bool:
        """Send something before the answer, or that as the `last`, or keep it for a client that comes back.

        False if neither is possible: a client that reads only JSON does not get it.
        """
        if not self.accepted.stream:
            return False
        if not self.response.started:
            await self._open()
        if self.events is not None:
            return await self.events.send(message, last=last)
        if self.store is not None:  # the client left before it knew that there is something to come back to
            return False
        await self.response.event(sse.encode_event(message), last=last)
        return last or not self.response.ended

    async def _open(self) -> None:
        if self.response.started or self.response.ended:
            return
        if self.store is None:
            await self.response.open()
            return
        if self.events is None:
            self.events = EventStream(self.store, self.session, self.response, self.requests)
        await self.events.open(RETRY_MILLISECONDS if self.primes else None)

    async def outlived(self) -> None:
        """The call takes its time: a client that can come back is told how, while there is a connection."""
        if self.primes:
            await self._open()

    async def keep_alive(self) -> None:
        if self.accepted.stream:
            await self._open()
            await self.response.event(sse.KEEP_ALIVE)

    async def close_stream(self, retry: float | None) -> None:
        """Close the connection but not the stream: the client comes back for the rest after `retry` seconds.

        One to which the client has come back at another worker stays open.
        """
        await self._open()
        if self.events is not None and self.events.hang_up_tail is not None:
            await self.events.hang_up_tail(retry)
        else:
            await self.response.hang_up(retry_frame(retry))

    def finish(self, message: bytes, status: int) -> Awaitable[None]:
        """The answer itself. An error with a status is JSON, also for a client that reads only streams."""
        if self.response.started or (status == 200 and not self.accepted.json):
            return self._finish_stream(message)
        return self.response.json(status, message)

    async def _finish_stream(self, message: bytes) -> None:
        try:
            is_over = await self.carry(message, last=True)
        except BaseException:
            if self.events is not None:
                await self.events.end()
            raise
        if not is_over:
            await self.end()

    async def finish_silently(self) -> None:
        """The call was cancelled, so nothing may be answered; but the request has to end."""
        if self.accepted.stream:
            await self.response.open()
            await self.end()
        else:
            await self.response.empty(204)

    async def end(self) -> None:
        if self.events is not None:
            await self.events.end()
        await self.response.close()


def retry_frame(seconds: float | None) -> bytes:
    return b"" if seconds is None else b"retry: %d\n\n" % max(0, round(seconds * 1000))
