"""Messages of a server to the client of an HTTP session, and the GET streams that carry them.

A message goes on the stream of its call. What can't go there is kept in the session's own log, which its GET stream is
read from; another GET stream carries the rest of a call's events. Both are read from where the client left off. Every
worker knows which GET stream a session has: the newest one counts, and what an older one at another worker has sent
since its last beat may be sent once more.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress

import msgspec

from dovetail.engine.client_requests import CALL_IS_OVER, NOT_READY, PendingRequest, PendingRequests
from dovetail.engine.concurrency import CallTimeout, with_timeout
from dovetail.engine.handlers import change_notification
from dovetail.engine.sessions import SessionHandle, Sessions, messages, topic
from dovetail.engine.subscriptions import LOG as CHANGE_LOG
from dovetail.engine.subscriptions import ChangeLog
from dovetail.errors import MissingCapability, ProtocolError, QuestionFailed
from dovetail.protocol import inbound, jsonrpc, sse
from dovetail.protocol.jsonrpc import Envelope
from dovetail.protocol.sse import EventId, encode_event, priming_event
from dovetail.state.base import Conflict, Listener, StateBackend, StoreFull, StoreUnavailable, until_answered
from dovetail.transports.http.event_store import END, EventStore, log_name
from dovetail.transports.http.in_flight import InFlight
from dovetail.transports.http.request import HttpRequest, keep_alive
from dovetail.transports.http.response import RETRY_MILLISECONDS, HttpResponse, PostResponse, retry_frame

CHANGES = "changes"  # the GET stream of a session, in event ids; calls have random names of another length
MAX_MESSAGES = 100  # of one session; not more than one read of a log gives
MAX_BYTES = 1024 * 1024  # of one session, about: the larger a message, the fewer are kept with it

STATELESS = (
    "this server runs stateless, so a client older than 2026-07-28 can't be asked anything; "
    "serve it with sessions (stateless=False), or use a client that speaks 2026-07-28"
)
JSON_ONLY = "this client asked for a JSON answer only (Accept) and has no GET stream open"
DISCONNECTED = "this client has closed its connection and has no GET stream open"

log = logging.getLogger("dovetail.http")

Event = tuple[bytes, EventId]  # framed, and where the client is when it has it


class ServerMessages:
    """Requests and notifications to the clients of all sessions."""

    def __init__(self, sessions: Sessions, state: StateBackend, *, session_timeout: float, beat: float) -> None:
        self._sessions = sessions
        self._state = state
        self._ttl = max(7 * 86_400.0, 2 * session_timeout)
        self.presence = Presence(state, 3 * beat)
        self.replies = PendingRequests(state, beat=beat)

    async def tell(self, session: SessionHandle, message: bytes) -> None:
        """On the GET stream of the client, now or later."""
        try:
            await self.append(session, message)
        except StoreFull as failure:
            log.warning("a message can't be kept for its client: %s", failure.message)

    async def append(self, session: SessionHandle, message: bytes) -> None:
        if await session.reload():  # else there would be a log that is never dropped
            keep = max(1, min(MAX_MESSAGES, MAX_BYTES // len(message)))
            await self._state.append(messages(session.record.id), message, keep=keep, ttl=self._ttl)

    async def messages_after(self, session_id: str, after: int) -> list[tuple[int, bytes]]:
        """The messages after a number. All of them, if the number is beyond the log: it began anew."""
        page = await self._state.read(messages(session_id), after)
        if page.last < after:
            page = await self._state.read(messages(session_id), 0)
        return [(id, data) for id, data in page.records if not await self._is_answered(session_id, data)]

    async def _is_answered(self, session_id: str, message: bytes) -> bool:
        """Whether it is a question that has its answer, or was called off."""
        envelope = jsonrpc.decode(message)
        is_request = isinstance(envelope, Envelope) and envelope.is_request
        return is_request and not await self.replies.is_open(session_id, str(envelope.id))  # type: ignore[union-attr]

    # ── URLs that a user was sent to: any worker may hear that the user is done there ──

    async def visit_began(self, session_id: str, id: str) -> None:
        """The session that was asked with this id last is told, within a day."""
        try:
            await self._state.put(_visit(id), session_id.encode(), ttl=86_400.0)
        except (StoreFull, StoreUnavailable) as failure:
            log.warning("other workers do not know of an elicitation: %s", failure.message)

    async def visit_ended(self, id: str) -> str | None:
        """The session that was asked, if it waits to be told: from now on it does not."""
        entry = await self._state.get(_visit(id))
        return entry.value.decode() if entry is not None and await self._state.delete(_visit(id)) else None

    async def tell_session(self, id: str, message: bytes) -> None:
        session = await self._sessions.hold(id)
        if session is not None:
            await self.tell(session, message)


def _visit(id: str) -> str:
    return f"visits/{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"


class SessionChannel(msgspec.Struct, eq=False):
    """The way from a call to its client (`ClientChannel`); notifications go that way also when the call is over."""

    _messages: ServerMessages
    _session: SessionHandle
    _response: PostResponse | None  # as long as the call is open

    def pending(self, method: str, timeout: float) -> AbstractAsyncContextManager[PendingRequest]:
        """A request on the stream of the call, else on the GET stream. It fails if the client is gone for a while."""
        if (response := self._response) is None:
            raise QuestionFailed(CALL_IS_OVER)
        messages, session = self._messages, self._session
        presence = messages.presence

        async def send(message: bytes) -> None:
            if not session.record.initialized and not (await session.reload() and session.record.initialized):
                raise QuestionFailed(NOT_READY)
            if await response.send_message(message):
                return
            if await presence.has_stream(session.record.id):
                await messages.append(session, message)
            elif response.accepted.stream:
                raise QuestionFailed(f"The client can't be asked: {DISCONNECTED}")
            else:  # it never could, so a function that can do without may do so
                raise MissingCapability({method.partition("/")[0]: {}}, JSON_ONLY)

        async def can_receive() -> bool:
            if not response.http_response.ended or await presence.has_stream(session.record.id):
                return True
            return response.events is not None and await presence.has_stream(response.events.name)

        return messages.replies.open(session.record.id, timeout, send, can_receive)

    async def tell(self, message: bytes) -> None:
        if self._response is None or not await self._response.send_message(message):
            await self._messages.tell(self._session, message)

    def close(self) -> None:
        self._response = None


class Presence:
    """Which GET stream carries what: that of a session, or the rest of a call. The newest counts."""

    def __init__(self, state: StateBackend, seconds: float) -> None:
        """A stream that says nothing for so long is taken for gone."""
        self._state = state
        self._seconds = seconds

    async def register(self, name: str, stream: bytes) -> None:
        with suppress(StoreFull):  # then the client can't be asked
            await self._state.put(_presence(name), stream, ttl=self._seconds)

    async def renew(self, name: str, stream: bytes) -> None:
        """To be called every beat."""
        if await self._current(name) in (b"", stream):
            await self.register(name, stream)

    async def unregister(self, name: str, stream: bytes) -> None:
        entry = await self._state.get(_presence(name))
        if entry is None or entry.value != stream:
            return
        if not self._state.shared:
            await self._state.delete(_presence(name))
            return
        with suppress(Conflict, StoreFull):  # a newer stream has come meanwhile
            await self._state.put(_presence(name), b"", ttl=1.0, if_version=entry.version)

    async def has_stream(self, name: str) -> bool:
        return bool(await self._current(name))

    async def is_current(self, name: str, stream: bytes) -> bool:
        return await self._current(name) in (b"", stream)

    async def _current(self, name: str) -> bytes:
        entry = await self._state.get(_presence(name))
        return b"" if entry is None else entry.value


def _presence(name: str) -> str:
    return f"hears/{name}"


# ── GET streams ──


class SessionSource:
    """Events of a session outside of its calls: what changes for many, and messages to this session."""

    finished = is_remote = False

    def __init__(
        self, changes: ChangeLog, server_messages: ServerMessages, session: SessionHandle, last_event_id: EventId | None
    ) -> None:
        self.name = session.record.id
        self.event_id = last_event_id or _saved_position(
            session
        )  # what the client has when all that was read has been sent
        self.topics: Sequence[str] = (CHANGE_LOG, messages(self.name))  # which are told when there is more
        self.has_more = False  # what was read last is not all there is
        self.has_unsaved = last_event_id is not None  # since it was noted in the session how far its client has come
        self._changes = changes
        self._outages = changes.outages  # that this client has heard of, or need not hear of
        self._messages = server_messages
        self._session = session

    async def register(self) -> None:
        """A client that does not say what it has goes on where its older stream was, as far as that is noted."""
        await self._session.tell()  # an older one at another worker
        if not self.has_unsaved and await self._session.reload():
            self.event_id = _saved_position(self._session)

    async def read(self) -> list[Event]:
        """The next events, if there are any at the moment."""
        if not self._session.record.initialized:  # before that the server may not speak unasked
            return []
        event_id = self.event_id
        events: list[Event] = []
        heard = await self._changes.heard(self._session, event_id.number, self._outages)
        for change, number in heard.changes:
            event_id = event_id if number is None else event_id._replace(number=number)
            id = None if number is None else str(event_id)
            events.append((encode_event(change_notification(change), id=id), event_id))
        event_id = event_id._replace(number=heard.position)
        for number, message in await self._messages.messages_after(self.name, event_id.message):
            event_id = event_id._replace(message=number)
            events.append((encode_event(message, id=str(event_id)), event_id))
        self.event_id, self._outages, self.has_more = event_id, heard.outages, heard.more
        self.has_unsaved = self.has_unsaved or bool(events)
        return events

    async def save(self, sent: EventId) -> None:
        """A client that comes again without saying what it has is told the rest."""
        with suppress(ProtocolError):  # no room for it: then it is told some things twice
            await self._session.change(
                lambda record: record.replace(unheard_since=sent.number, unheard_message=sent.message)
            )
            self.has_unsaved = sent != self.event_id


def _saved_position(session: SessionHandle) -> EventId:
    return EventId(CHANGES, session.record.unheard_since or 0, session.record.unheard_message)


class CallSource:
    """The rest of a call's events, whether it still runs or not."""

    has_unsaved = False

    def __init__(self, store: EventStore, session_id: str, event_id: EventId) -> None:
        self.name = log_name(session_id, event_id.stream)
        self.event_id = event_id
        self.topics: Sequence[str] = (self.name,)
        self.has_more = self.finished = False
        self._running = store.running.get(self.name)
        self.is_remote = store.state.shared and self._running is None  # another worker writes it, and may be lost
        self._has_writer = self.is_remote
        self._store = store
        self._last = 0  # the newest number in the log

    async def register(self) -> None: ...

    async def save(self, sent: EventId) -> None: ...

    async def has_ended(self) -> bool:
        """Whether its worker has written the end, or is lost and was answered for."""
        self._has_writer = await self._store.has_writer(self.name)
        lease, worker = self._store.lease, self.event_id.worker
        if self._has_writer and (worker == lease.id or await lease.is_lost(worker)):
            await self._store.end_lost(self.name, self._last)
        return not self._has_writer

    async def read(self) -> list[Event]:
        events: list[Event] = []
        goes_on = self._has_writer if self._running is None else self._running.name in self._store.running
        page = await self._store.state.read(self.name, self.event_id.number)
        for number, data in page.records:
            self.event_id = self.event_id._replace(number=number)
            self.finished = data.startswith(END)
            if message := data.removeprefix(END):
                events.append((encode_event(message, id=str(self.event_id)), self.event_id))
        self._last = page.last
        self.has_more = bool(page.records) and self.event_id.number < page.last
        if page.last < self.event_id.number or not (self.has_more or goes_on):  # it was dropped, or has expired
            self.finished = True
        return events


class GetStream:
    """One GET while its connection holds."""

    def __init__(
        self,
        source: SessionSource | CallSource,
        session: SessionHandle,
        response: HttpResponse,
        listener: Listener,
        presence: Presence,
    ) -> None:
        self.source = source
        self.finished = asyncio.Event()
        self._session = session
        self._response = response
        self._listener = listener
        self._presence = presence
        self._id = secrets.token_bytes(8)
        self._closed = False
        self._next_check = 0.0  # by the clock of the loop: at once
        self._sent = source.event_id  # how far the client has come for sure

    async def run(self) -> None:
        """Until nothing more can come, the session ends, or it is closed."""
        if not self._closed:
            await self._presence.register(self.source.name, self._id)
            await self.source.register()
            self._sent = self.source.event_id
        await self._response.open(self._priming_event())
        with suppress(StoreUnavailable):  # it was closed meanwhile
            while not self._closed and not self._response.ended:
                events = await until_answered(self.source.read, lambda: not self._closed)
                if not await self._send(events) or self.source.finished:
                    return
                if not self.source.has_more and not await self._wait_for_more():
                    return

    async def _wait_for_more(self) -> bool:
        """Waits until it does; False if the session has ended, or a newer stream has come."""
        topics = await self._wait_for_topics()

        async def goes_on() -> bool:
            is_current = topic(self._session.record.id) not in topics or await self._is_current()
            return is_current and await self._session.reload()

        return bool(topics) and await until_answered(goes_on, lambda: not self._closed)

    async def _is_current(self) -> bool:
        """Of the session, at any worker. A client that comes twice for the rest of a call gets it twice."""
        source = self.source
        return isinstance(source, CallSource) or await self._presence.is_current(source.name, self._id)

    async def _wait_for_topics(self) -> set[str]:
        """The topics that were told; a worker that writes the events elsewhere is checked every second meanwhile."""
        source = self.source
        if isinstance(source, SessionSource) or not source.is_remote:
            return await self._listener.wait()
        clock = asyncio.get_running_loop().time
        while True:
            if clock() >= self._next_check:
                self._next_check = clock() + 1.0
                with suppress(StoreUnavailable):
                    if await source.has_ended():
                        return set(source.topics)
            with suppress(CallTimeout):
                return await with_timeout(self._listener.wait(), self._next_check - clock())

    async def _send(self, events: Sequence[Event]) -> bool:
        """False if not all of them were sent."""
        for frame, event_id in events:
            if self._closed:
                return False
            await self._response.event(frame)
            if self._response.ended:
                return False
            self._sent = event_id
        self._sent = self.source.event_id
        return True

    def _priming_event(self) -> bytes:
        if not self._session.record.revision.resumable:
            return b""
        id = f"{self.source.event_id}.{secrets.token_hex(4)}"  # no two events of a session have the same
        return priming_event(id, retry=RETRY_MILLISECONDS)

    def close(self, _grace: float = 0.0) -> None:
        self._closed = True
        self._listener.close()

    async def close_now(self, retry: float | None = None) -> None:
        """Close the connection, also if the client takes nothing; it may come back for the rest."""
        self.close()
        await self._response.close_now(retry_frame(retry))

    def on_disconnect(self) -> None:
        self._response.abandon()
        self.close()

    async def beat(self) -> None:
        """The session stays alive, or is found to have ended; and so is the connection."""
        if not self._response.started:  # it waits for the one before it
            return
        try:
            if not await self._session.use():
                self.close()
                return
            await self._presence.renew(self.source.name, self._id)
            await self._save()
        except StoreUnavailable as failure:
            log.debug("whether a session is still there is not known: %s", failure.message)
        await self._response.event(sse.KEEP_ALIVE)
        if self._response.ended:  # it takes nothing any more
            self.on_disconnect()

    async def _save(self) -> None:
        if self.source.has_unsaved and await self._is_current():
            await self.source.save(self._sent)

    async def unregister(self) -> None:
        with suppress(StoreUnavailable):  # then its client is told some things twice
            await self._save()
            await self._presence.unregister(self.source.name, self._id)


class GetStreams:
    """All of them in this process."""

    def __init__(
        self,
        changes: ChangeLog,
        store: EventStore,
        server_messages: ServerMessages,
        in_flight: InFlight,
        *,
        keep_alive: float,
    ) -> None:
        self._changes = changes
        self._store = store
        self._messages = server_messages
        self._in_flight = in_flight
        self._keep_alive = keep_alive
        self._newest: dict[str, GetStream] = {}  # by what they carry

    async def serve(self, request: HttpRequest, session: SessionHandle, caller: str) -> None:
        """`caller`: whose share of the streams it counts towards."""
        id = request.headers.get("last-event-id", "")
        event_id = EventId.read(id) if id else None
        if event_id is None or event_id.stream == CHANGES:
            source: SessionSource | CallSource = SessionSource(self._changes, self._messages, session, event_id)
        else:
            running = await self._store.find(session.record.id, event_id)
            if running is not None:  # the client has given up that connection, whether we know it or not
                await running.response.close_now()
            source = CallSource(self._store, session.record.id, event_id)
        listener = self._store.state.listen([*source.topics, topic(session.record.id)])
        ends_itself = isinstance(source, CallSource) and not source.is_remote  # with the call that runs here
        stream = GetStream(source, session, request.response, listener, self._messages.presence)
        try:
            if not await session.reload():  # it has ended before there was a listener to hear of it
                inbound.session_of_verb(request.headers, None)
            end = (lambda _grace: None) if ends_itself else stream.close
            self._in_flight.open_stream(stream, end, stream.on_disconnect, caller)
            await request.while_authorized(self._run(request, stream), stream.close)
        finally:
            listener.close()
            self._in_flight.close_stream(stream)

    async def _run(self, request: HttpRequest, stream: GetStream) -> None:
        name = stream.source.name
        replaced, self._newest[name] = self._newest.get(name), stream
        call = self._store.running.get(name)
        if call is not None:
            call.close_get_stream = stream.close_now
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        keeping_alive = loop.create_task(
            keep_alive(request.receive, finished, self._keep_alive, stream.beat, stream.on_disconnect)
        )
        try:
            if replaced is not None:
                await replaced.close_now()
                await replaced.finished.wait()  # until it is noted how far that one has come
            await stream.run()
        finally:
            finished.set_result(None)
            if call is not None and call.close_get_stream == stream.close_now:
                call.close_get_stream = None
            if self._newest.get(name) is stream:
                del self._newest[name]
            try:
                await (request.response.close() if stream.source.finished else request.response.close_now())
                await keeping_alive  # before `unregister`, whose word is the last
                await stream.unregister()
            finally:
                stream.finished.set()
