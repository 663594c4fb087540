"""Server-to-client messages of HTTP sessions, and the GET streams that carry them.

A message goes on the event stream of its call. One that can't is appended to the session's message log, which the GET
stream of the session reads; another kind of GET stream resumes the event stream of a call. Only the newest GET stream
of a session counts. Events that an older one at another worker has sent since its last keep-alive may be sent twice.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress

import msgspec

from dovetail.engine.concurrency import CallTimeout, with_timeout
from dovetail.engine.handlers import change_notification
from dovetail.engine.server_requests import CALL_ENDED, NOT_INITIALIZED, PendingRequest, PendingRequests
from dovetail.engine.sessions import SessionHandle, Sessions, message_log, session_topic
from dovetail.engine.subscriptions import LOG as CHANGE_LOG
from dovetail.engine.subscriptions import ChangeLog
from dovetail.errors import MissingCapability, ProtocolError, QuestionFailed
from dovetail.protocol import inbound, jsonrpc, sse
from dovetail.protocol.jsonrpc import Envelope
from dovetail.protocol.sse import EventId, encode_event, priming_event
from dovetail.state.base import Conflict, Listener, StateBackend, StoreFull, StoreUnavailable, retry_while_unavailable
from dovetail.transports.http.event_store import END, EventStore, log_name
from dovetail.transports.http.in_flight import InFlight
from dovetail.transports.http.request import HttpRequest, keep_alive
from dovetail.transports.http.response import RETRY_MILLISECONDS, HttpResponse, PostResponse, retry_frame

CHANGES = "changes"  # in event ids: the GET stream of a session; streams of calls have longer names
MAX_MESSAGES = 100  # in the log of one session; not more than one read of a log gives
MAX_BYTES = 1024 * 1024  # in the log of one session, about: the larger a message, the fewer are stored with it
WORKER_CHECK_INTERVAL = 1.0  # seconds between two checks of the worker that writes a resumed stream

STATELESS = (
    "this server runs stateless, so a client older than 2026-07-28 can't be asked anything; "
    "serve it with sessions (stateless=False), or use a client that speaks 2026-07-28"
)
JSON_ONLY = "this client asked for a JSON answer only (Accept) and has no GET stream open"
DISCONNECTED = "this client has closed its connection and has no GET stream open"

log = logging.getLogger("dovetail.http")

Event = tuple[bytes, EventId]  # a frame, and the position of a client that has it


class ServerMessages:
    """Requests and notifications to the clients of all sessions."""

    def __init__(self, sessions: Sessions, state: StateBackend, *, session_timeout: float, beat: float) -> None:
        self._sessions = sessions
        self._state = state
        self._ttl = max(7 * 86_400.0, 2 * session_timeout)
        self.presence = Presence(state, 3 * beat)
        self.pending_requests = PendingRequests(state, check_interval=beat)

    async def notify(self, session: SessionHandle, message: bytes) -> None:
        """Send a notification on the GET stream of the session, now or when the client opens one."""
        try:
            await self.append(session, message)
        except StoreFull as failure:
            log.warning("a message can't be stored for its client: %s", failure.message)

    async def append(self, session: SessionHandle, message: bytes) -> None:
        if await session.reload():  # the log of a session that has ended would never be dropped
            keep = max(1, min(MAX_MESSAGES, MAX_BYTES // len(message)))
            await self._state.append(message_log(session.record.id), message, keep=keep, ttl=self._ttl)

    async def messages_after(self, session_id: str, after: int) -> list[tuple[int, bytes]]:
        """The messages after a number; all of them if the log has expired since and begun anew."""
        page = await self._state.read(message_log(session_id), after)
        if page.last < after:
            page = await self._state.read(message_log(session_id), 0)
        return [(id, data) for id, data in page.records if not await self._is_resolved(session_id, data)]

    async def _is_resolved(self, session_id: str, message: bytes) -> bool:
        """Whether it is a server request that is not pending any more."""
        envelope = jsonrpc.decode(message)
        is_request = isinstance(envelope, Envelope) and envelope.is_request
        return is_request and not await self.pending_requests.is_pending(session_id, str(envelope.id))  # type: ignore[union-attr]

    # ── URL elicitations: `complete_elicitation` may run at any worker ──

    async def register_elicitation(self, session_id: str, id: str) -> None:
        """Remember for a day which session to notify."""
        try:
            await self._state.put(_elicitation_key(id), session_id.encode(), ttl=86_400.0)
        except (StoreFull, StoreUnavailable) as failure:
            log.warning("other workers do not know of an elicitation: %s", failure.message)

    async def unregister_elicitation(self, id: str) -> str | None:
        """Unregister; returns the session to notify, or None if there is none or another worker was first."""
        entry = await self._state.get(_elicitation_key(id))
        return entry.value.decode() if entry is not None and await self._state.delete(_elicitation_key(id)) else None

    async def notify_session(self, id: str, message: bytes) -> None:
        if (session := await self._sessions.load(id)) is not None:
            await self.notify(session, message)


def _elicitation_key(id: str) -> str:
    return f"elicitations/{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"


class SessionChannel(msgspec.Struct, eq=False):
    """The `ClientChannel` of a call in a session. Notifications can also be sent after the call."""

    _messages: ServerMessages
    _session: SessionHandle
    _response: PostResponse | None  # while the call runs
    _is_for_task: bool = False  # without a response; only the GET stream carries its messages

    def pending(self, method: str, timeout: float) -> AbstractAsyncContextManager[PendingRequest]:
        """Send a server request, on the event stream of the call or else on the GET stream."""
        if (response := self._response) is None and not self._is_for_task:
            raise QuestionFailed(CALL_ENDED)
        messages, session = self._messages, self._session
        presence = messages.presence

        async def send(message: bytes) -> None:
            if not session.record.initialized and not (await session.reload() and session.record.initialized):
                raise QuestionFailed(NOT_INITIALIZED)
            if response is not None and await response.send_message(message):
                return
            if await presence.current(session.record.id):
                await messages.append(session, message)
            elif response is None or response.accepted.stream:
                raise QuestionFailed(f"The client can't be asked: {DISCONNECTED}")
            else:  # no request can reach it, as if it lacked the capability
                raise MissingCapability({method.partition("/")[0]: {}}, JSON_ONLY)

        async def is_reachable() -> bool:
            is_open = response is not None and not response.http_response.ended
            if is_open or await presence.current(session.record.id):
                return True
            if response is None:
                return False
            return response.events is not None and bool(await presence.current(response.events.name))

        return messages.pending_requests.open(session.record.id, timeout, send, is_reachable)

    def for_task(self) -> "SessionChannel":
        return SessionChannel(self._messages, self._session, None, True)

    async def notify(self, message: bytes) -> None:
        if self._response is None or not await self._response.send_message(message):
            await self._messages.notify(self._session, message)

    def close(self) -> None:
        self._response = None


class Presence(msgspec.Struct, eq=False):
    """The current GET stream for each source of events (a session, or a call), known to all workers."""

    _state: StateBackend
    _ttl: float  # seconds after which a stream that did not register again counts as closed

    async def register(self, name: str, stream: bytes) -> None:
        with suppress(StoreFull):  # then calls can't send requests on it
            await self._state.put(_presence_key(name), stream, ttl=self._ttl)

    async def unregister(self, name: str, stream: bytes) -> None:
        entry = await self._state.get(_presence_key(name))
        if entry is not None and entry.value == stream:
            if not self._state.shared:
                await self._state.delete(_presence_key(name))
            else:
                with suppress(Conflict, StoreFull):  # a newer stream has registered meanwhile
                    await self._state.put(_presence_key(name), b"", ttl=1.0, if_version=entry.version)

    async def is_current(self, name: str, stream: bytes) -> bool:
        return await self.current(name) in (b"", stream)

    async def current(self, name: str) -> bytes:
        """The id of the current stream; empty if there is none."""
        entry = await self._state.get(_presence_key(name))
        return b"" if entry is None else entry.value


def _presence_key(name: str) -> str:
    return f"get-stream/{name}"


class SessionSource:
    """Events of a session outside of its calls: list and resource changes, and messages to this session."""

    finished = False

    def __init__(
        self, changes: ChangeLog, server_messages: ServerMessages, session: SessionHandle, last_event_id: EventId | None
    ) -> None:
        self.name = session.record.id
        self.position = last_event_id or _saved_position(session)  # of the client, once all events read are sent
        self.topics: Sequence[str] = (CHANGE_LOG, message_log(self.name))  # published when there are more events
        self.has_more = False  # after the events that were read last
        self.has_unsaved = last_event_id is not None  # the session does not know the position yet
        self._changes = changes
        self._outages = changes.outages  # of the change log, already handled for this client
        self._messages = server_messages
        self._session = session

    async def start(self) -> None:
        """Start reading; a client without Last-Event-ID goes on at the position that was saved for its older stream."""
        await self._session.wake_workers()  # ends an older stream at another worker
        if not self.has_unsaved and await self._session.reload():
            self.position = _saved_position(self._session)

    async def read(self) -> list[Event]:
        if not self._session.record.initialized:  # before that the server may send nothing
            return []
        position = self.position
        events: list[Event] = []
        batch = await self._changes.changes_for(self._session, position.number, self._outages)
        for change, number in batch.changes:
            position = position if number is None else position._replace(number=number)
            id = None if number is None else str(position)
            events.append((encode_event(change_notification(change), id=id), position))
        position = position._replace(number=batch.position)
        for number, message in await self._messages.messages_after(self.name, position.message):
            position = position._replace(message=number)
            events.append((encode_event(message, id=str(position)), position))
        self.position, self._outages, self.has_more = position, batch.outages, batch.more
        self.has_unsaved = self.has_unsaved or bool(events)
        return events

    async def save(self, sent: EventId) -> None:
        """Save the position in the session, for a client that reconnects without Last-Event-ID."""
        with suppress(ProtocolError):  # the store is full: the client may get some events twice
            await self._session.change(
                lambda record: record.replace(resume_change=sent.number, resume_message=sent.message)
            )
            self.has_unsaved = sent != self.position


def _saved_position(session: SessionHandle) -> EventId:
    return EventId(CHANGES, session.record.resume_change or 0, session.record.resume_message)


class CallSource:
    """The event stream of a call after the Last-Event-ID of a client; the call may still run."""

    def __init__(self, store: EventStore, session_id: str, last_event_id: EventId) -> None:
        self.name = log_name(session_id, last_event_id.stream)
        self.position = last_event_id
        self.topics: Sequence[str] = (self.name,)
        self.has_more = self.finished = False
        self._running = store.running.get(self.name)
        self.is_remote = store.state.shared and self._running is None  # another worker writes it, and may be lost
        self._has_writer = self.is_remote
        self._store = store
        self._last = 0  # the newest number in the log

    async def has_ended(self) -> bool:
        """Whether the stream has ended: its worker has written the end, or is lost; then this one writes it."""
        self._has_writer = await self._store.has_writer(self.name)
        lease, worker = self._store.lease, self.position.worker
        if self._has_writer and (worker == lease.id or await lease.is_lost(worker)):
            await self._store.end_lost(self.name, self._last)
        return not self._has_writer

    async def read(self) -> list[Event]:
        events: list[Event] = []
        goes_on = self._has_writer if self._running is None else self._running.name in self._store.running
        page = await self._store.state.read(self.name, self.position.number)
        for number, data in page.records:
            self.position = self.position._replace(number=number)
            self.finished = data.startswith(END)
            if message := data.removeprefix(END):
                events.append((encode_event(message, id=str(self.position)), self.position))
        self._last = page.last
        self.has_more = bool(page.records) and self.position.number < page.last
        if page.last < self.position.number or not (self.has_more or goes_on):  # it was dropped, or has expired
            self.finished = True
        return events


Source = SessionSource | CallSource


class GetStream:
    def __init__(
        self, source: Source, session: SessionHandle, response: HttpResponse, listener: Listener, presence: Presence
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
        self._sent = source.position  # the last event that was sent for sure

    async def run(self) -> None:
        """Send events until the source is finished, the session ends, or the stream is closed."""
        if not self._closed:
            await self._presence.register(self.source.name, self._id)
            if isinstance(self.source, SessionSource):
                await self.source.start()
            self._sent = self.source.position
        id = f"{self.source.position}.{secrets.token_hex(4)}"  # event ids are unique within a session
        resumable = self._session.record.revision.resumable
        await self._response.open(priming_event(id, retry=RETRY_MILLISECONDS) if resumable else b"")
        with suppress(StoreUnavailable):  # it was closed meanwhile
            while not self._closed and not self._response.ended:
                events = await retry_while_unavailable(self.source.read, lambda: not self._closed)
                if not await self._send(events) or self.source.finished:
                    return
                if not self.source.has_more and not await self._wait_for_more():
                    return

    async def _wait_for_more(self) -> bool:
        """Wait for events. False if the session has ended, or another GET stream has replaced this one."""
        topics = await self._wait_for_topics()

        async def goes_on() -> bool:
            is_current = session_topic(self._session.record.id) not in topics or await self._is_current()
            return is_current and await self._session.reload()

        return bool(topics) and await retry_while_unavailable(goes_on, lambda: not self._closed)

    async def _is_current(self) -> bool:
        """Whether no newer stream has replaced this one. Two that resume the same call both get its events."""
        source = self.source
        return isinstance(source, CallSource) or await self._presence.is_current(source.name, self._id)

    async def _wait_for_topics(self) -> set[str]:
        """Wait for topics and return them; meanwhile the worker that writes a remote stream is checked."""
        source = self.source
        if isinstance(source, SessionSource) or not source.is_remote:
            return await self._listener.wait()
        clock = asyncio.get_running_loop().time
        while True:
            if clock() >= self._next_check:
                self._next_check = clock() + WORKER_CHECK_INTERVAL
                with suppress(StoreUnavailable):
                    if await source.has_ended():
                        return set(source.topics)
            with suppress(CallTimeout):
                return await with_timeout(self._listener.wait(), self._next_check - clock())

    async def _send(self, events: Sequence[Event]) -> bool:
        """Send events; False if not all of them were sent."""
        for frame, position in events:
            if self._closed:
                return False
            await self._response.event(frame)
            if self._response.ended:
                return False
            self._sent = position
        self._sent = self.source.position
        return True

    def close(self, _grace: float = 0.0) -> None:
        self._closed = True
        self._listener.close()

    async def close_now(self, retry: float | None = None) -> None:
        """Close the connection, even if the client reads nothing; the client may resume after `retry` seconds."""
        self.close()
        await self._response.close_now(retry_frame(retry))

    def on_disconnect(self) -> None:
        self._response.abandon()
        self.close()

    async def beat(self) -> None:
        """Keep the session and the connection alive; closes the stream if the session has ended."""
        if not self._response.started:  # it waits for the stream that it replaces
            return
        try:
            if not await self._session.touch():
                self.close()
                return
            if await self._presence.is_current(self.source.name, self._id):
                await self._presence.register(self.source.name, self._id)
            await self._save_position()
        except StoreUnavailable as failure:
            log.debug("the keep-alive of a session did not reach the state store: %s", failure.message)
        await self._response.event(sse.KEEP_ALIVE)
        if self._response.ended:
            self.on_disconnect()

    async def _save_position(self) -> None:
        source = self.source
        if isinstance(source, SessionSource) and source.has_unsaved and await self._is_current():
            await source.save(self._sent)

    async def unregister(self) -> None:
        with suppress(StoreUnavailable):  # then the client may get some events twice
            await self._save_position()
            await self._presence.unregister(self.source.name, self._id)


class GetStreams(msgspec.Struct, eq=False):
    _changes: ChangeLog
    _store: EventStore
    _messages: ServerMessages
    _in_flight: InFlight
    _keep_alive: float
    current: dict[str, GetStream] = {}  # by the names of their sources

    async def serve(self, request: HttpRequest, session: SessionHandle, caller: str) -> None:
        id = request.headers.get("last-event-id", "")
        event_id = EventId.parse(id) if id else None
        if event_id is None or event_id.stream == CHANGES:
            source: Source = SessionSource(self._changes, self._messages, session, event_id)
        else:
            running = await self._store.find(session.record.id, event_id)
            if running is not None:  # the client has lost that connection, even if the server does not know yet
                await running.response.close_now()
            source = CallSource(self._store, session.record.id, event_id)
        listener = self._store.state.listen([*source.topics, session_topic(session.record.id)])
        ends_itself = isinstance(source, CallSource) and not source.is_remote  # with the call that runs here
        stream = GetStream(source, session, request.response, listener, self._messages.presence)
        try:
            if not await session.reload():  # it has ended before there was a listener
                inbound.check_get_or_delete(request.headers, None)
            end = (lambda _grace: None) if ends_itself else stream.close
            self._in_flight.open_stream(stream, end, stream.on_disconnect, caller)
            await request.while_authorized(self._run(request, stream), stream.close)
        finally:
            listener.close()
            self._in_flight.close_stream(stream)

    async def _run(self, request: HttpRequest, stream: GetStream) -> None:
        name, response = stream.source.name, request.response
        replaced, self.current[name] = self.current.get(name), stream
        call = self._store.running.get(name)
        if call is not None:
            call.close_get_stream = stream.close_now
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        beats = keep_alive(request.receive, finished, self._keep_alive, stream.beat, stream.on_disconnect)
        beating = loop.create_task(beats)
        try:
            if replaced is not None:
                await replaced.close_now()
                await replaced.finished.wait()  # until its position is saved
            await stream.run()
        finally:
            finished.set_result(None)
            if call is not None and call.close_get_stream == stream.close_now:
                call.close_get_stream = None
            if self.current.get(name) is stream:
                del self.current[name]
            try:
                await (response.close() if stream.source.finished else response.close_now())
                await beating  # before `unregister`: a beat registers the stream
                await stream.unregister()
            finally:
                stream.finished.set()
