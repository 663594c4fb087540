"""Streamable HTTP: each message is a POST, whose response is JSON or an event stream.

Up to 2025-11-25 there is a session, and a response stream that breaks is resumed. Since 2026-07-28 there is neither:
headers repeat what the body says, and closing the response stream cancels the request.
"""

import asyncio
import contextlib
import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from msgspec import Raw

from dovetail.client.dispatcher import LONGEST_RETRY, failure_of
from dovetail.client.transports.aiohttp import EVENTS, JSON, HttpReply, HttpRequests
from dovetail.client.transports.base import MAX_UNREAD, UNREAD, Backoff, OutgoingMessage, Receiver, Transport
from dovetail.errors import (
    BadResponse,
    ConnectionLost,
    DovetailError,
    NotSignedIn,
    ProtocolError,
    ServerError,
    TooManyRequests,
)
from dovetail.protocol import jsonrpc
from dovetail.protocol.headers import MCP_NAME_FIELDS, HeaderParameter, argument_headers, encode_value
from dovetail.protocol.inbound import VERSION_KEY
from dovetail.protocol.jsonrpc import BadMessage, Envelope, encode
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision
from dovetail.protocol.sse import Event, SseDecoder

POST_HEADERS = {"Accept": f"{JSON}, {EVENTS}", "Content-Type": JSON}
INITIALIZE, INITIALIZED, CANCELLED = "initialize", "notifications/initialized", "notifications/cancelled"
LISTEN = "subscriptions/listen"
UNAUTHORIZED, BUSY = 401, 429
PASSING = frozenset({408, 425, BUSY, 502, 503, 504})
NO_STREAM = frozenset({404, 405})  # the second is right, but servers without a page for GET say the first

log = logging.getLogger("dovetail.client")
_USABLE_ID = re.compile(r"[^\x00-\x1f\x7f]{0,1000}")  # what a header can carry
_SESSION_ID = re.compile(r"[\x21-\x7e]+")


# ── headers ──


def is_attended(out: OutgoingMessage) -> bool:
    """A caller waits for the answer; what is heard by listening may come at night."""
    return out.id is not None and out.method != LISTEN


def version_of(out: OutgoingMessage) -> str | None:
    """The revision that its `_meta` names."""
    meta = out.params.get("_meta")
    version = meta.get(VERSION_KEY) if isinstance(meta, Mapping) else None
    return version if isinstance(version, str) else None


def mirror(out: OutgoingMessage, parameters: Mapping[str, Sequence[HeaderParameter]]) -> dict[str, str]:
    """The headers that repeat a part of the body, since 2026-07-28."""
    if out.method is None:
        return {}
    headers = {"Mcp-Method": encode_value(out.method)}
    name = out.params.get(MCP_NAME_FIELDS.get(out.method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = encode_value(name)
        if out.method == "tools/call" and parameters.get(name):
            arguments = msgspec.json.decode(encode(out.params.get("arguments")))  # as the server reads them
            headers |= argument_headers(parameters[name], arguments or {})
    return headers


# ── refusals ──


async def refusal(out: OutgoingMessage, reply: HttpReply) -> tuple[DovetailError, bytes | None]:
    """The failure of a request by its status, and what the server said if that is a message.

    The server's own words are used if it sent a JSON-RPC error. 401 becomes NotSignedIn, 429 TooManyRequests, others
    that pass by themselves ConnectionLost, the rest ServerError with the JSON-RPC code, or else the status.
    """
    text = f"{out.subject}: the server answered {reply.words}"
    body, error = await _error_in(reply)
    failure = ServerError(reply.status, text) if error is None else failure_of(out.subject, error)
    words = failure.message if isinstance(failure, ServerError) else str(failure)
    full = text if error is None else f"{text}: {words}"
    if reply.status == UNAUTHORIZED:
        return NotSignedIn(text if reply.detail else full), body
    if reply.status == BUSY and isinstance(failure, ServerError):
        seconds = _retry_after(reply)
        if seconds is None and isinstance(failure, TooManyRequests):
            seconds = failure.retry_after
        return TooManyRequests(failure.code, words, failure.data, retry_after=seconds), body
    return (ConnectionLost(full) if reply.status in PASSING else failure), body


def _retry_after(reply: HttpReply) -> float | None:
    """Seconds, from either form of the header; None if there is none, or none that can be read."""
    text = (reply.header("Retry-After") or "").strip()
    try:
        seconds = float(text) if text.isdecimal() else (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY)


async def _error_in(reply: HttpReply) -> tuple[bytes | None, Raw | None]:
    """The body and the JSON-RPC error in it, if that is what it is."""
    if "json" in reply.kind:
        with contextlib.suppress(BadMessage, BadResponse, ConnectionLost):
            body = await reply.read()
            envelope = jsonrpc.decode(body)
            if isinstance(envelope, Envelope) and isinstance(envelope.error, Raw):
                return body, envelope.error
    return None, None


def passes(failure: DovetailError) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(failure, (ConnectionLost, TooManyRequests)):
        return True
    return isinstance(failure, ServerError) and failure.code >= 500


# ── streams ──


class EventReader:
    """One stream of messages over several connections: passes every message on once, and knows where to resume."""

    def __init__(self, take: Callable[[bytes], None], backoff: Backoff, max_ids: int = 10_000) -> None:
        self._take = take
        self._max_ids = max_ids  # that are remembered, to know a replayed event by
        self._ids: dict[str, None] = {}
        self.backoff = backoff
        self.last_id = ""
        self.broken = "the server ended the stream"  # how the latest connection ended
        self.connections = 0

    async def read(self, reply: HttpReply, enough: Callable[[], bool]) -> None:
        """Read one connection, until it ends, however it does, or until it was enough."""
        self.connections += 1
        clock = asyncio.get_running_loop().time
        begun = clock()
        earlier = frozenset(self._ids)  # on one connection nothing is a replay, even if a server repeats its ids
        decoder = SseDecoder(max_bytes=reply.max_message_bytes)
        decoder.last_event_id = self.last_id  # it holds until there is another one
        try:
            while not enough() and (piece := await reply.next()):
                for event in decoder.feed(piece):
                    self._take_event(event, earlier)
                self._reached(decoder.last_event_id)
                if decoder.retry is not None:
                    self.backoff.retry = decoder.retry / 1000
        except ConnectionLost as lost:
            self.broken = str(lost)
        except ProtocolError as too_long:
            self.last_id = ""  # or it would come again
            raise BadResponse(too_long.message) from None
        finally:
            self.backoff.ended(clock() - begun)

    def _reached(self, id: str) -> None:
        """Remember how far the stream has come; an event of nothing but an id counts, too."""
        usable = id if _USABLE_ID.fullmatch(id) else ""
        if usable != self.last_id:
            self.last_id = usable
            self.backoff.succeeded()

    def _take_event(self, event: Event, earlier: frozenset[str]) -> None:
        self.backoff.succeeded()
        if event.id and _USABLE_ID.fullmatch(event.id):
            if event.id in earlier:
                return
            self._ids[event.id] = None
            if len(self._ids) > self._max_ids:
                del self._ids[next(iter(self._ids))]
        if event.data and event.event == "message":
            self._take(event.data)


class RemoteSession:
    """What a handshake began: perhaps a session with an id, and a GET stream of its own.

    `on_gone` hears that the server does not know the session any more.
    """

    def __init__(
        self, requests: HttpRequests, reply: HttpReply, receiver: Receiver, on_gone: Callable[["RemoteSession"], None]
    ) -> None:
        self.id = reply.header("Mcp-Session-Id")
        if self.id is not None and not _SESSION_ID.fullmatch(self.id):
            raise BadResponse("the server's session id holds characters that are not allowed in it")
        self.revision: Revision | None = None
        self.over = False
        self.attentive = asyncio.Event()  # the GET stream is open, or there is none, or it will take its time
        self._requests = requests
        self._receiver = receiver
        self._on_gone = on_gone

    @property
    def headers(self) -> dict[str, str]:
        version = None if self.revision is None else self.revision.name
        known = {"MCP-Protocol-Version": version, "Mcp-Session-Id": self.id}
        return {name: value for name, value in known.items() if value is not None}

    def check(self, reply: HttpReply) -> bool:
        """Whether the server still knows the session, as far as a reply tells."""
        if reply.status == 404 and self.id is not None:
            self._on_gone(self)
            return False
        return True

    async def resume(self, reader: EventReader, enough: Callable[[], bool]) -> None:
        """Take a broken stream up again, until it was enough."""
        while not enough():
            if not reader.last_id:
                raise ConnectionLost(f"{reader.broken} before the answer came")
            await asyncio.sleep(reader.backoff.seconds())
            try:
                await self._connect(reader, enough)
            except ServerError as refused:
                raise ConnectionLost(
                    f"{reader.broken} before the answer came, and can't be taken up again: {refused.message}"
                ) from None

    async def hear(self, begun: "asyncio.Task[None]") -> None:
        """Read the GET stream, for ever; `begun` is done when the server knows that the session may begin."""
        reader = EventReader(self._receiver.receive, self._requests.backoff())
        try:
            await asyncio.wait([begun])
            while not self.over:
                try:
                    await self._connect(reader, lambda: self.over)
                except (BadResponse, NotSignedIn, ServerError) as bad:
                    if not reader.connections:
                        if not isinstance(bad, ServerError) or bad.code not in NO_STREAM:
                            log.warning("nothing is heard of what the server says unasked: %s", bad)
                        return
                    log.warning("the session's own stream broke: %s", bad)
                    reader.last_id = ""  # perhaps it asked for too much
                self.attentive.set()
                await asyncio.sleep(reader.backoff.seconds())
        finally:
            self.attentive.set()

    async def _connect(self, reader: EventReader, enough: Callable[[], bool]) -> None:
        """Read one connection. What may pass by itself is silently left for the next one."""
        headers = {**self.headers, "Accept": EVENTS}
        if reader.last_id:
            headers["Last-Event-ID"] = reader.last_id
        with contextlib.suppress(ConnectionLost):
            async with self._requests.send("GET", headers, attended=False) as reply:
                if reply.ok and reply.kind == EVENTS:
                    if reader.connections and not reader.last_id:
                        self._receiver.missed()  # nothing is replayed
                    self.attentive.set()
                    await reader.read(reply, enough)
                elif reader.connections and not self.check(reply):
                    return
                elif reply.status not in PASSING and reply.status < 500:
                    raise ServerError(reply.status, f"the server answered {reply.words} with {reply.kind}")

    async def end(self) -> None:
        """Tell the server; whether it likes that or not."""
        if self.id is not None and not self.over:
            with contextlib.suppress(DovetailError):
                async with self._requests.send("DELETE", self.headers, attended=False):
                    pass


# ── transports ──


class PostTransport(Transport):
    """What both transports over HTTP do: every message is a POST of its own, in a task of its own.

    Requests go out side by side; notifications arrive in order, and before whatever is written after them.
    """

    reconnects = True

    def __init__(self, requests: HttpRequests) -> None:
        self._requests = requests
        self._posts: dict[RequestId, asyncio.Task[None]] = {}  # of requests
        self._errands: set[asyncio.Task[None]] = set()  # all others
        self._answers: set[asyncio.Task[None]] = set()  # those of them that answer the server
        self._told: asyncio.Task[None] | None = None  # the latest notification
        self._streams: set[asyncio.Task[None]] = set()  # of what is said unasked: the latest, and those that end

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._turns = asyncio.Semaphore(100)  # a server may ask much in one breath
        self._requests.time_limits = receiver.time_limits

    @property
    def identity(self) -> str | None:
        return self._requests.identity

    def backoff(self) -> Backoff:
        return self._requests.backoff()

    async def open(self, receiver: Receiver) -> None:
        self.attach(receiver)
        await self._requests.open()

    async def drain(self) -> None:
        if self._told is not None and not self._told.done():
            await asyncio.wait([self._told])

    def abandon(self, id: RequestId) -> bool:
        if id in self._posts:
            self._posts[id].cancel()
        return False

    async def close(self) -> None:
        self._drop_requests()
        self._stop_stream()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._requests.limits.close):
                    await asyncio.gather(*self._errands, return_exceptions=True)
                    await self._leave()
        finally:
            tasks = [*self._posts.values(), *self._errands, *self._streams]
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                await self._requests.close()

    @abstractmethod
    async def _post(self, out: OutgoingMessage) -> None:
        """Send one message and see to its answer."""

    async def _leave(self) -> None:
        """The last words."""

    def _send(self, out: OutgoingMessage) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._deliver(out, self._told))
        if (id := out.id) is not None:
            self._posts[id] = task
            task.add_done_callback(lambda _: self._posts.pop(id, None))
            return task
        _keep(task, self._errands)
        if out.is_answer:
            _keep(task, self._answers)
            if len(self._answers) > MAX_UNREAD:
                self._receiver.lost(UNREAD)
        elif out.method is not None and out.method != CANCELLED:
            self._told = task
        return task

    def _drop_requests(self) -> None:
        _cancel(self._posts.values())

    def _start_stream(self, reading: Coroutine[Any, Any, None]) -> None:
        self._stop_stream()
        _keep(asyncio.create_task(reading), self._streams)

    def _stop_stream(self) -> None:
        _cancel(self._streams)

    async def _deliver(self, out: OutgoingMessage, after: "asyncio.Task[None] | None") -> None:
        seconds = self._requests.limits.send
        try:
            async with asyncio.timeout(seconds if out.id is None else None):
                if after is not None:
                    await asyncio.wait([after])
                async with self._turns if out.is_answer else contextlib.nullcontext():
                    await self._post(out)
        except TimeoutError:
            self._receiver.failed(None, ConnectionLost(f"{out.subject}: not delivered within {seconds:g} s"))
        except DovetailError as failure:
            self._failed(out, failure)
        except Exception:  # or the caller would wait for ever
            log.exception("%s could not be sent", out.subject)
            self._failed(out, ConnectionLost("it could not be sent; the log says why"))

    def _failed(self, out: OutgoingMessage, failure: DovetailError) -> None:
        if isinstance(failure, (ConnectionLost, BadResponse)):
            failure = type(failure)(f"{out.subject}: {failure}")
        self._receiver.failed(out.id, failure)


class HttpTransport(PostTransport):
    """Streamable HTTP alone."""

    def __init__(self, requests: HttpRequests) -> None:
        super().__init__(requests)
        self.mirrored: dict[str, tuple[HeaderParameter, ...]] = {}
        self._revision: Revision | None = None
        self._session: RemoteSession | None = None

    async def open(self, receiver: Receiver) -> None:
        self._revision = self._session = None
        await super().open(receiver)

    def agreed(self, revision: Revision) -> None:
        self._revision = revision
        if not revision.handshake:
            self._leave_session()  # one that was begun beside is not needed
        elif self._session is not None:
            self._session.revision = revision

    async def attend(self) -> None:
        if self._session is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._session.attentive.wait(), self._requests.limits.endpoint)

    def abandon(self, id: RequestId) -> bool:
        super().abandon(id)
        return self._is_modern

    def write(self, out: OutgoingMessage) -> None:
        if out.method == INITIALIZE:
            self._leave_session()
        if out.is_answer and self._is_modern:
            log.warning("the server asked a question, which its revision does not have; it is not answered")
            return
        task = self._send(out)
        if out.method == INITIALIZED and self._session is not None:
            self._start_stream(self._session.hear(task))

    @property
    def _is_modern(self) -> bool:
        return self._revision is not None and not self._revision.handshake

    def _headers(self, out: OutgoingMessage) -> dict[str, str]:
        version = version_of(out)
        if version is None and self._is_modern and self._revision is not None:
            version = self._revision.name
        if version is not None:
            return {**POST_HEADERS, "MCP-Protocol-Version": encode_value(version), **mirror(out, self.mirrored)}
        session = {} if self._session is None else self._session.headers
        return {**POST_HEADERS, **session}

    async def _post(self, out: OutgoingMessage) -> None:
        session = self._session
        async with self._requests.send("POST", self._headers(out), out.body, attended=is_attended(out)) as reply:
            if session is not None and not session.check(reply):
                return
            if not reply.ok:
                await self._refused(out, reply)
            elif out.id is not None and self._receiver.awaits(out.id):
                await self._answered(out, out.id, reply)
            else:
                await reply.hold()  # the server has nothing to say to a notification, an answer or a forgotten call

    async def _refused(self, out: OutgoingMessage, reply: HttpReply) -> None:
        failure, said = await refusal(out, reply)
        self._receiver.failed(out.id, failure, said)

    async def _answered(self, out: OutgoingMessage, id: RequestId, reply: HttpReply) -> None:
        if out.method == INITIALIZE:
            self._session = RemoteSession(self._requests, reply, self._receiver, self._session_gone)
        if reply.kind == EVENTS:
            await self._follow(id, reply)
        elif reply.kind == JSON:
            self._receiver.receive(await reply.read(), id)
        if self._receiver.awaits(id):
            raise BadResponse(f"the server answered {reply.words} with {reply.kind}, which is no answer to the request")

    async def _follow(self, id: RequestId, reply: HttpReply) -> None:
        """Read the stream of an answer, over other connections if need be."""

        def answered() -> bool:
            return not self._receiver.awaits(id)

        session = self._session
        reader = EventReader(lambda message: self._receiver.receive(message, id), self._requests.backoff())
        await reader.read(reply, answered)
        if answered():
            await reply.hold()
        elif session is None:
            raise ConnectionLost(f"{reader.broken} before the answer came")
        else:
            await session.resume(reader, answered)

    def _session_gone(self, session: RemoteSession) -> None:
        if session is self._session:
            self._leave_session()
            self._receiver.session_ended("the session ended: the server does not know it any more")

    def _leave_session(self) -> None:
        """Nothing of what was asked in it will be answered."""
        session, self._session = self._session, None
        if session is not None:
            session.over = True
            self._drop_requests()
            self._stop_stream()

    async def _leave(self) -> None:
        if self._session is not None:
            await self._session.end()


def _keep(task: "asyncio.Task[None]", tasks: "set[asyncio.Task[None]]") -> None:
    """Until it is done."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _cancel(tasks: "Iterable[asyncio.Task[None]]") -> None:
    for task in tasks:
        if task is not asyncio.current_task():
            task.cancel()
