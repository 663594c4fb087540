"""HTTP responses: whole bodies and event streams; the response to one POST may become either."""

import asyncio
import logging
import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple

import msgspec

from dovetail.engine.concurrency import DONE, CallTimeout, PausableTimeout, resume_with_timer, with_timeout
from dovetail.engine.sessions import SessionHandle
from dovetail.errors import ProtocolError, RateLimited, Unauthorized
from dovetail.protocol import sse
from dovetail.protocol.methods import RequestId
from dovetail.transports.http.asgi import FastPath, Message, RawHeaders, Send
from dovetail.transports.http.event_store import EventStore, EventStream

SEND_TIMEOUT = 30.0  # seconds; a client that takes nothing for so long counts as disconnected
CHUNK_BYTES = 256 * 1024  # the timeout is for each chunk, so that a large body may take longer
RETRY_MILLISECONDS = 1000  # before a client that lost its connection resumes
JSON_TYPE = (b"content-type", b"application/json")
JSON_HEADERS: RawHeaders = [JSON_TYPE]
STREAM_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

log = logging.getLogger("dovetail")


class AcceptedTypes(NamedTuple):
    """The media types that a client reads."""

    json: bool
    stream: bool


class HttpResponse(msgspec.Struct, eq=False):
    """The response to one HTTP request. What is sent after its end or after a disconnect is dropped."""

    send: Send
    fast_path: FastPath | None = None
    extra_headers: RawHeaders = []  # of every response to this request
    lock: asyncio.Lock | None = None  # from the first event on: calls and keep-alives write at the same time
    pending_send: PausableTimeout | None = None  # the timeout of a message that waits to be sent
    finished: asyncio.Future[None] | None = None  # set where the task of the HTTP request waits for the end
    started: bool = False
    ended: bool = False
    challenger: Callable[[Unauthorized], RawHeaders] | None = None  # the WWW-Authenticate of a refusal

    __repr__ = object.__repr__  # its fields hold the headers of the request, and the token in them

    def error_headers(self, failure: ProtocolError) -> RawHeaders:
        """Headers of an error: when to try again, or with which token."""
        if isinstance(failure, Unauthorized):
            return [] if self.challenger is None else self.challenger(failure)
        if isinstance(failure, RateLimited):
            return [(b"retry-after", b"%d" % failure.retry_after)]
        return [(b"retry-after", b"1")] if failure.http_status == 503 else []

    def add_headers(self, headers: RawHeaders) -> None:
        if headers:
            self.extra_headers = [*self.extra_headers, *headers]

    def json(self, status: int, body: bytes, headers: RawHeaders | None = None) -> Awaitable[None]:
        plain = headers is None and not self.extra_headers
        all_headers = JSON_HEADERS if plain else [JSON_TYPE, *self.extra_headers, *(headers or ())]
        return self._send_whole(status, all_headers, body)

    def empty(self, status: int, headers: RawHeaders | None = None) -> Awaitable[None]:
        return self._send_whole(status, [*self.extra_headers, *(headers or ())], b"")

    def send_client_closed(self) -> Awaitable[None]:
        """Status 499 after a disconnect: proxies log it, and middleware of Starlette fails without a response."""
        return self._send_whole(499, [*self.extra_headers], b"", disconnected=True)

    def _send_whole(
        self, status: int, headers: RawHeaders, body: bytes, *, disconnected: bool = False
    ) -> Awaitable[None]:
        if self.started or (self.ended and not disconnected):
            return DONE
        self.started = self.ended = True
        if self.fast_path is not None and len(body) <= CHUNK_BYTES and self.fast_path.respond(status, headers, body):
            return DONE
        if status != 204:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        return self._deliver([{"type": "http.response.start", "status": status, "headers": headers}, *_chunks(body)])

    async def open(self, first: bytes = b"") -> None:
        """Start an event stream, with `first` as its first frame."""
        if self.started or self.ended:
            return
        self.started = True
        self.lock = asyncio.Lock()
        headers = [*STREAM_HEADERS, *self.extra_headers]
        start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        try:
            await self._send_locked([start, *(_chunks(first, more=True) if first else ())])
        except asyncio.CancelledError:
            self._end()  # the start may have been sent or not
            raise

    async def event(self, frame: bytes, *, last: bool = False) -> None:
        """Send a framed event or a comment; starts the stream if need be, and ends it after the `last` one."""
        if not self.started:
            await self.open()
        await self._send_locked(_chunks(frame, more=not last), last=last)

    async def close(self) -> None:
        if self.started:
            await self._send_locked(_chunks(b""), last=True)

    async def close_now(self, last: bytes = b"") -> None:
        """End the stream after a last frame, without waiting for a client that takes nothing."""

        async def end() -> None:
            if last:
                await self.event(last)
            await self.close()

        try:
            await with_timeout(end(), 0.1)
        except CallTimeout:
            self.abandon()

    def abandon(self) -> None:
        """Send nothing more: the client has disconnected, or counts as disconnected."""
        self._end()
        if self.pending_send is not None:
            self.pending_send.expire()

    def _end(self) -> None:
        self.ended = True
        if self.finished is not None and not self.finished.done():
            self.finished.set_result(None)

    async def _send_locked(self, messages: Sequence[Message], *, last: bool = False) -> None:
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
        """Send messages; each one that is not sent at once has a timeout of its own."""
        try:
            for message in messages:
                sending = self.send(message)
                if not isinstance(sending, types.CoroutineType):  # hosts may have other awaitables
                    sending = as_coroutine(sending)
                try:
                    waited_for = sending.send(None)
                except StopIteration:
                    continue
                self.pending_send = PausableTimeout(SEND_TIMEOUT)
                yield from resume_with_timer(sending, waited_for, self.pending_send)
        except asyncio.CancelledError:
            if len(messages) > 1:  # some of them may be sent, so nothing can follow
                self._end()
            raise
        except Exception:  # each ASGI server has its own exception for a disconnect
            log.debug("sending to the client failed", exc_info=True)
            self._end()
        finally:
            self.pending_send = None


def _chunks(body: bytes, *, more: bool = False) -> list[Message]:
    """`more`: the response has a part after this one."""
    if len(body) <= CHUNK_BYTES:
        return [{"type": "http.response.body", "body": body, "more_body": more}]
    chunks = [body[begin : begin + CHUNK_BYTES] for begin in range(0, len(body), CHUNK_BYTES)]
    messages: list[Message] = [{"type": "http.response.body", "body": chunk, "more_body": True} for chunk in chunks]
    messages[-1]["more_body"] = more
    return messages


async def as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


class PostResponse(msgspec.Struct, eq=False):
    """The response to one POST: JSON, or an event stream if other messages come before; resumable in a session."""

    http_response: HttpResponse
    accepted: AcceptedTypes
    session: SessionHandle | None = None
    store: EventStore | None = None  # if the client can resume
    primes: bool = False  # whether the stream begins with a priming event
    requests: tuple[RequestId, ...] = ()  # that it responds to
    events: EventStream | None = None  # from the first event on

    async def emit(self, message: bytes) -> None:
        await self.send_message(message)

    async def send_message(self, message: bytes, *, last: bool = False) -> bool:
        """Send a message on the event stream, or store it for a client that resumes; False if neither is possible."""
        if not self.accepted.stream:
            return False
        if not self.http_response.started:
            await self._open()
        if self.events is not None:
            return await self.events.send(message, last=last)
        if self.store is not None:  # the client disconnected before it could know of a stream to resume
            return False
        await self.http_response.event(sse.encode_event(message), last=last)
        return last or not self.http_response.ended

    async def _open(self) -> None:
        if self.http_response.started or self.http_response.ended:
            return
        if self.store is None or self.session is None:
            await self.http_response.open()
            return
        if self.events is None:
            self.events = EventStream(self.store, self.session.record.id, self.http_response, self.requests)
        await self.events.open(RETRY_MILLISECONDS if self.primes else None)

    async def prime(self) -> None:
        """Send how to resume while the client is connected; for calls that take long."""
        if self.primes:
            await self._open()

    async def keep_alive(self) -> None:
        if self.accepted.stream:
            await self._open()
            await self.http_response.event(sse.KEEP_ALIVE)

    async def close_stream(self, retry: float | None) -> None:
        """Close the connection but not the stream, which the client resumes after `retry` seconds."""
        await self._open()
        if self.events is not None and self.events.close_get_stream is not None:
            await self.events.close_get_stream(retry)
        else:
            await self.http_response.close_now(retry_frame(retry))

    def finish(self, message: bytes, status: int) -> Awaitable[None]:
        """Send the JSON-RPC response. An error with a status is JSON, also for a client that reads only streams."""
        if self.http_response.started or (status == 200 and not self.accepted.json):
            return self._finish_stream(message)
        return self.http_response.json(status, message)

    async def _finish_stream(self, message: bytes) -> None:
        try:
            is_sent = await self.send_message(message, last=True)
        except BaseException:
            if self.events is not None:
                await self.events.end()
            raise
        if not is_sent:
            await self.end()

    async def finish_cancelled(self) -> None:
        """End the HTTP response without a JSON-RPC response, which a cancelled call must not have."""
        if self.accepted.stream:
            await self.http_response.open()
            await self.end()
        else:
            await self.http_response.empty(204)

    async def end(self) -> None:
        if self.events is not None:
            await self.events.end()
        await self.http_response.close()


def retry_frame(seconds: float | None) -> bytes:
    return b"" if seconds is None else b"retry: %d\n\n" % max(0, round(seconds * 1000))
