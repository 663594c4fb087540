"""Streamable HTTP: each message is a POST, whose response is JSON or an event stream.

Up to 2025-11-25 there is a session, and a response stream that breaks is resumed. Since 2026-07-28 there is neither:
headers mirror parts of the body, and closing the response stream cancels the request.
"""

import asyncio
import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from msgspec import Raw

from dovetail import errors
from dovetail.client.dispatcher import MAX_RETRY_AFTER, read_server_error
from dovetail.client.transports import base
from dovetail.client.transports.aiohttp import EVENT_STREAM, JSON, HttpClient, HttpResponse
from dovetail.client.transports.base import Backoff, OutgoingMessage, Receiver, ToolHeaders, Transport
from dovetail.protocol import jsonrpc
from dovetail.protocol.headers import MCP_NAME_FIELDS, argument_headers, encode_value
from dovetail.protocol.inbound import VERSION_KEY
from dovetail.protocol.jsonrpc import BadMessage, Envelope, encode
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision
from dovetail.protocol.sse import Event, SseDecoder

POST_HEADERS = {"Accept": f"{JSON}, {EVENT_STREAM}", "Content-Type": JSON}
INITIALIZE, INITIALIZED, CANCELLED = "initialize", "notifications/initialized", "notifications/cancelled"
LISTEN = "subscriptions/listen"
TRANSIENT_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
NO_GET_STREAM = frozenset({404, 405})  # MCP says 405, but servers without a route for GET say 404
MAX_EVENT_IDS = 10_000  # of one stream

log = logging.getLogger("dovetail.client")
_EVENT_ID = re.compile(r"[^\x00-\x1f\x7f]{0,1000}")  # what a header can carry
_SESSION_ID = re.compile(r"[\x21-\x7e]+")


def mirror_headers(message: OutgoingMessage, parameters: ToolHeaders) -> dict[str, str]:
    """The headers that mirror parts of the body, since 2026-07-28."""
    if message.method is None:
        return {}
    headers = {"Mcp-Method": encode_value(message.method)}
    name = message.params.get(MCP_NAME_FIELDS.get(message.method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = encode_value(name)
        if message.method == "tools/call" and parameters.get(name):
            arguments = msgspec.json.decode(encode(message.params.get("arguments")))  # as the server decodes them
            headers |= argument_headers(parameters[name], arguments or {})
    return headers


async def read_refusal(message: OutgoingMessage, response: HttpResponse) -> tuple[errors.DovetailError, bytes | None]:
    """The failure of a request, and the body of the response if that is a JSON-RPC error, whose message is used then.

    401 becomes NotSignedIn, 429 TooManyRequests, other transient statuses ConnectionLost, the rest ServerError with the
    JSON-RPC code, or else the status.
    """
    text = f"{message.subject}: the server answered {response.status_text}"
    body, error = await _read_error(response)
    failure: errors.DovetailError = errors.ServerError(response.status, text)
    if error is not None:
        failure = read_server_error(message.subject, error)
    reason = failure.message if isinstance(failure, errors.ServerError) else str(failure)
    full = text if error is None else f"{text}: {reason}"
    if response.status == 401:
        return errors.NotSignedIn(text if response.detail else full), body
    if response.status == 429 and isinstance(failure, errors.ServerError):
        seconds = _retry_after(response)
        if seconds is None and isinstance(failure, errors.TooManyRequests):
            seconds = failure.retry_after
        failure = errors.TooManyRequests(failure.code, reason, failure.data, retry_after=seconds)
    elif response.status in TRANSIENT_STATUSES:
        failure = errors.ConnectionLost(full)
    if isinstance(failure, errors.ServerError):
        failure.status = response.status
    return failure, body


def _retry_after(response: HttpResponse) -> float | None:
    """The seconds in Retry-After, in either form of the header; None if it is missing or malformed."""
    text = (response.header("Retry-After") or "").strip()
    try:
        seconds = float(text) if text.isdecimal() else (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


async def _read_error(response: HttpResponse) -> tuple[bytes | None, Raw | None]:
    """The body and the JSON-RPC error in it, if there is one."""
    if "json" in response.content_type:
        with suppress(BadMessage, errors.BadResponse, errors.ConnectionLost):
            body = await response.read()
            envelope = jsonrpc.decode(body)
            if isinstance(envelope, Envelope) and isinstance(envelope.error, Raw):
                return body, envelope.error
    return None, None


def is_transient(failure: errors.DovetailError) -> bool:
    """Whether the same request may succeed a little later."""
    is_outage = isinstance(failure, errors.ServerError) and failure.code >= 500
    return is_outage or isinstance(failure, (errors.ConnectionLost, errors.TooManyRequests))


# ── streams ──


class EventReader:
    """A stream of messages over several connections: passes each message on once, and knows where to resume."""

    def __init__(self, receive: Callable[[bytes], None], backoff: Backoff) -> None:
        self._receive = receive
        self._ids: dict[str, None] = {}  # of the latest events, to recognise replayed ones
        self.backoff = backoff
        self.last_id = ""
        self.end_reason = "the server ended the stream"  # of the latest connection
        self.connections = 0

    async def read(self, response: HttpResponse, is_done: Callable[[], bool]) -> None:
        """Read one connection until it ends or breaks, or until `is_done`."""
        self.connections += 1
        clock = asyncio.get_running_loop().time
        opened_at = clock()
        replayable = frozenset(self._ids)  # an id that a server repeats on one connection is no replay
        decoder = SseDecoder(max_bytes=response.max_message_bytes)
        decoder.last_event_id = self.last_id  # valid until the stream sends another one
        try:
            while not is_done() and (chunk := await response.read_chunk()):
                for event in decoder.feed(chunk):
                    self._handle_event(event, replayable)
                last_id = decoder.last_event_id if _EVENT_ID.fullmatch(decoder.last_event_id) else ""
                if last_id != self.last_id:
                    self.last_id = last_id
                    self.backoff.succeeded()
                if decoder.retry is not None:
                    self.backoff.retry = decoder.retry / 1000
        except errors.ConnectionLost as lost:
            self.end_reason = str(lost)
        except errors.ProtocolError as too_long:
            self.last_id = ""  # or the server would replay the message
            raise errors.BadResponse(too_long.message) from None
        finally:
            self.backoff.ended(clock() - opened_at)

    def _handle_event(self, event: Event, replayable: frozenset[str]) -> None:
        self.backoff.succeeded()
        if event.id and _EVENT_ID.fullmatch(event.id):
            if event.id in replayable:
                return
            self._ids[event.id] = None
            if len(self._ids) > MAX_EVENT_IDS:
                del self._ids[next(iter(self._ids))]
        if event.data and event.event == "message":
            self._receive(event.data)


class HttpSession:
    """The session id of a handshake, if there is one, and the GET stream. `on_expired`: the server has forgotten it."""

    def __init__(
        self, http: HttpClient, response: HttpResponse, receiver: Receiver, on_expired: Callable[["HttpSession"], None]
    ) -> None:
        self.id = response.header("Mcp-Session-Id")
        if self.id is not None and not _SESSION_ID.fullmatch(self.id):
            raise errors.BadResponse("the server's session id holds characters that are not allowed in it")
        self.revision: Revision | None = None
        self.is_closed = False
        self.stream_ready = asyncio.Event()  # the GET stream is open, or not offered, or has failed once
        self._http = http
        self._receiver = receiver
        self._on_expired = on_expired

    @property
    def headers(self) -> dict[str, str]:
        version = {} if self.revision is None else {"MCP-Protocol-Version": self.revision.name}
        return version if self.id is None else {**version, "Mcp-Session-Id": self.id}

    def check(self, response: HttpResponse) -> bool:
        """Whether the server still knows the session, by the status of a response."""
        if response.status == 404 and self.id is not None:
            self._on_expired(self)
            return False
        return True

    async def resume(self, reader: EventReader, is_done: Callable[[], bool]) -> None:
        """Reconnect a broken response stream until `is_done`."""
        while not is_done():
            if not reader.last_id:
                raise errors.ConnectionLost(f"{reader.end_reason} before the answer came")
            await asyncio.sleep(reader.backoff.next_delay())
            try:
                await self._connect(reader, is_done)
            except errors.ServerError as refused:
                reason = f"{reader.end_reason} before the answer came"
                raise errors.ConnectionLost(f"{reason}, and can't be taken up again: {refused.message}") from None

    async def read_get_stream(self, initialized: "asyncio.Task[None]") -> None:
        """Read the GET stream until the session is closed; `initialized` sends `notifications/initialized`."""
        reader = EventReader(self._receiver.receive, self._http.backoff())
        try:
            await asyncio.wait([initialized])
            while not self.is_closed:
                try:
                    await self._connect(reader, lambda: self.is_closed)
                except (errors.BadResponse, errors.NotSignedIn, errors.ServerError) as bad:
                    if not reader.connections:
                        if not isinstance(bad, errors.ServerError) or bad.code not in NO_GET_STREAM:
                            log.warning("the GET stream failed, server notifications are lost: %s", bad)
                        return
                    log.warning("the GET stream broke: %s", bad)
                    reader.last_id = ""  # the server may have refused to replay from there
                self.stream_ready.set()
                await asyncio.sleep(reader.backoff.next_delay())
        finally:
            self.stream_ready.set()

    async def _connect(self, reader: EventReader, is_done: Callable[[], bool]) -> None:
        """Read one connection; a transient failure is left to the next one."""
        headers = {**self.headers, "Accept": EVENT_STREAM}
        if reader.last_id:
            headers["Last-Event-ID"] = reader.last_id
        with suppress(errors.ConnectionLost):
            async with self._http.send("GET", headers, may_sign_in=False) as response:
                if response.ok and response.content_type == EVENT_STREAM:
                    if reader.connections and not reader.last_id:
                        self._receiver.messages_missed()  # nothing is replayed
                    self.stream_ready.set()
                    await reader.read(response, is_done)
                elif reader.connections and not self.check(response):
                    return
                elif response.status not in TRANSIENT_STATUSES and response.status < 500:
                    answered = f"the server answered {response.status_text} with {response.content_type}"
                    raise errors.ServerError(response.status, answered)

    async def delete(self) -> None:
        """Ask the server to delete the session; it may refuse."""
        if self.id is not None and not self.is_closed:
            with suppress(errors.DovetailError):
                async with self._http.send("DELETE", self.headers, may_sign_in=False):
                    pass


# ── transports ──


class PostTransport(Transport):
    """Base of both HTTP transports: each message is a POST in a task, which waits for the notification before it."""

    reconnects = True

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self._posts: dict[RequestId, asyncio.Task[None]] = {}  # of requests
        self._background: set[asyncio.Task[None]] = set()  # of notifications and responses
        self._responses: set[asyncio.Task[None]] = set()
        self._last_notification: asyncio.Task[None] | None = None
        self._streams: set[asyncio.Task[None]] = set()  # the latest GET stream, and cancelled ones that still end

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._response_slots = asyncio.Semaphore(100)  # a server may send many requests at once
        self._http.timeouts = receiver.timeouts

    @property
    def identity(self) -> str | None:
        return self._http.identity

    def backoff(self) -> Backoff:
        return self._http.backoff()

    async def open(self, receiver: Receiver) -> None:
        self.attach(receiver)
        await self._http.open()

    async def drain(self) -> None:
        if self._last_notification is not None and not self._last_notification.done():
            await asyncio.wait([self._last_notification])

    def cancel_request(self, id: RequestId) -> bool:
        if id in self._posts:
            self._posts[id].cancel()
        return False

    async def close(self) -> None:
        _cancel_tasks([*self._posts.values(), *self._streams])
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._http.limits.close_timeout):
                    await asyncio.gather(*self._background, return_exceptions=True)
                    await self._end_session()
        finally:
            try:
                await base.cancel_and_wait(*self._posts.values(), *self._background, *self._streams)
            finally:
                await self._http.close()

    @abstractmethod
    async def _post(self, message: OutgoingMessage) -> None:
        """Send one message and read the response."""

    async def _end_session(self) -> None: ...

    def _send_post(
        self, message: OutgoingMessage, headers: Mapping[str, str], url: str | None = None
    ) -> AbstractAsyncContextManager[HttpResponse]:
        may_sign_in = message.id is not None and message.method != LISTEN  # not for a stream in the background
        return self._http.send("POST", {**POST_HEADERS, **headers}, message.body, url=url, may_sign_in=may_sign_in)

    async def _refused(self, message: OutgoingMessage, response: HttpResponse) -> None:
        failure, body = await read_refusal(message, response)
        if _may_repeat(message, failure):
            raise failure
        self._receiver.request_failed(message.id, failure, body)

    def _send(self, message: OutgoingMessage) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._deliver(message, self._last_notification))
        if (id := message.id) is not None:
            self._posts[id] = task
            task.add_done_callback(lambda _: self._posts.pop(id, None))
            return task
        _add_task(task, self._background)
        if message.is_response:
            _add_task(task, self._responses)
            base.check_unread(self._receiver, len(self._responses))
        elif message.method is not None and message.method != CANCELLED:
            self._last_notification = task
        return task

    def _cancel_all(self) -> None:
        """Cancel all tasks of a session that has ended: the next one may give its questions the same ids."""
        _cancel_tasks([*self._posts.values(), *self._background, *self._streams])

    def _start_stream(self, reading: Coroutine[Any, Any, None]) -> None:
        _cancel_tasks(self._streams)
        _add_task(asyncio.create_task(reading), self._streams)

    async def _deliver(self, message: OutgoingMessage, after: "asyncio.Task[None] | None") -> None:
        seconds = self._http.limits.send_timeout
        try:
            async with asyncio.timeout(seconds if message.id is None else None):
                if after is not None:
                    await asyncio.wait([after])
                async with self._response_slots if message.is_response else nullcontext():
                    await self._post_until_taken(message)
        except TimeoutError:
            late = errors.ConnectionLost(f"{message.subject}: not delivered within {seconds:g} s")
            self._receiver.request_failed(None, late)
        except errors.DovetailError as failure:
            self._failed(message, failure)
        except Exception:  # or the caller would wait for ever
            log.exception("%s could not be sent", message.subject)
            self._failed(message, errors.ConnectionLost("it could not be sent; the log says why"))

    async def _post_until_taken(self, message: OutgoingMessage) -> None:
        backoff = self._http.backoff()
        while True:
            try:
                return await self._post(message)
            except errors.DovetailError as failure:
                if not _may_repeat(message, failure):
                    raise
                backoff.retry = failure.retry_after if isinstance(failure, errors.TooManyRequests) else None
            await asyncio.sleep(backoff.next_delay())

    def _failed(self, message: OutgoingMessage, failure: errors.DovetailError) -> None:
        if isinstance(failure, (errors.ConnectionLost, errors.BadResponse)):
            failure = type(failure)(f"{message.subject}: {failure}")
        self._receiver.request_failed(message.id, failure)


class HttpTransport(PostTransport):
    """Streamable HTTP, without the fallback to HTTP+SSE."""

    def __init__(self, http: HttpClient) -> None:
        super().__init__(http)
        self.tool_headers: ToolHeaders = {}
        self._revision: Revision | None = None
        self._session: HttpSession | None = None

    async def open(self, receiver: Receiver) -> None:
        self._revision = self._session = None
        await super().open(receiver)

    def set_revision(self, revision: Revision) -> None:
        self._revision = revision
        if not revision.handshake:
            self._drop_session()  # an earlier `initialize` may have opened one
        elif self._session is not None:
            self._session.revision = revision

    async def wait_for_stream(self) -> None:
        if self._session is not None:
            with suppress(TimeoutError):
                # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(self._http.limits.endpoint_timeout):
                    await self._session.stream_ready.wait()

    def cancel_request(self, id: RequestId) -> bool:
        super().cancel_request(id)
        return self._is_modern

    def write(self, message: OutgoingMessage) -> None:
        if message.method == INITIALIZE:
            self._drop_session()
        if message.is_response and self._is_modern:
            log.warning("the server asked a question, which its revision does not have; it is not answered")
            return
        task = self._send(message)
        if message.method == INITIALIZED and self._session is not None:
            self._start_stream(self._session.read_get_stream(task))

    @property
    def _is_modern(self) -> bool:
        return self._revision is not None and not self._revision.handshake

    def _headers(self, message: OutgoingMessage) -> dict[str, str]:
        meta = message.params.get("_meta")
        version = meta.get(VERSION_KEY) if isinstance(meta, Mapping) else None
        if not isinstance(version, str) and self._revision is not None and not self._revision.handshake:
            version = self._revision.name
        if isinstance(version, str):
            return {"MCP-Protocol-Version": encode_value(version), **mirror_headers(message, self.tool_headers)}
        return {} if self._session is None else self._session.headers

    async def _post(self, message: OutgoingMessage) -> None:
        session = self._session
        async with self._send_post(message, self._headers(message)) as response:
            if session is not None and not session.check(response):
                return
            if not response.ok:
                await self._refused(message, response)
            elif message.id is not None and self._receiver.is_pending(message.id):
                await self._read_response(message, message.id, response)
            else:
                await response.prefetch()  # empty for a notification or a response; unwanted for a cancelled request

    async def _read_response(self, message: OutgoingMessage, id: RequestId, response: HttpResponse) -> None:
        if message.method == INITIALIZE:
            self._session = HttpSession(self._http, response, self._receiver, self._session_expired)
        if response.content_type == EVENT_STREAM:
            await self._read_stream(id, response)
        elif response.content_type == JSON:
            self._receiver.receive(await response.read(), id)
        if self._receiver.is_pending(id):
            answered = f"the server answered {response.status_text} with {response.content_type}"
            raise errors.BadResponse(f"{answered}, which is no answer to the request")

    async def _read_stream(self, id: RequestId, response: HttpResponse) -> None:
        """Read a response stream, resumed over other connections if it breaks."""

        def answered() -> bool:
            return not self._receiver.is_pending(id)

        session = self._session
        reader = EventReader(lambda message: self._receiver.receive(message, id), self._http.backoff())
        await reader.read(response, answered)
        if answered():
            await response.prefetch()
        elif session is None:
            raise errors.ConnectionLost(f"{reader.end_reason} before the answer came")
        else:
            await session.resume(reader, answered)

    def _session_expired(self, session: HttpSession) -> None:
        if session is self._session:
            self._drop_session()
            self._receiver.session_ended("the session ended: the server does not know it any more")

    def _drop_session(self) -> None:
        """Forget the session; its pending requests get no response."""
        session, self._session = self._session, None
        if session is not None:
            session.is_closed = True
            self._cancel_all()

    async def _end_session(self) -> None:
        if self._session is not None:
            await self._session.delete()


def _may_repeat(message: OutgoingMessage, failure: errors.DovetailError) -> bool:
    """Whether it is lost, a call or the session waits for it, and a second copy has no effect."""
    is_awaited = message.is_response or message.method == INITIALIZED
    return is_awaited and isinstance(failure, (errors.ConnectionLost, errors.TooManyRequests))


def _add_task(task: "asyncio.Task[None]", tasks: "set[asyncio.Task[None]]") -> None:
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _cancel_tasks(tasks: "Iterable[asyncio.Task[None]]") -> None:
    for task in tasks:
        if task is not asyncio.current_task():
            task.cancel()
