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
from dovetail.transports.http.request import HttpRequest, look_after
from dovetail.transports.http.response import RETRY_MILLISECONDS, Answer, Response, retry_frame

CHANGES = "changes"  # the GET stream of a session, in event ids; calls have random names of another length
KEEP_MESSAGES = 100  # of one session; not more than one read of a log gives
KEEP_BYTES = 1024 * 1024  # of one session, about: the larger a message, the fewer are kept with it

STATELESS = (
    "this server runs stateless, so a client older than 2026-07-28 can't be asked anything; "
    "serve it with sessions (stateless=False), or use a client that speaks 2026-07-28"
)
JSON_ONLY = "this client asked for a JSON answer only (Accept) and has no GET stream open"
CLIENT_LEFT = "this client has closed its connection and has no GET stream open"

log = logging.getLogger("dovetail.http")

Event = tuple[bytes, EventId]  # framed, and where the client is when it has it


class ServerMessages:
    """Requests and notifications to the clients of all sessions."""

    def __init__(self, sessions: Sessions, state: StateBackend, *, session_timeout: float, beat: float) -> None:
        self._sessions = sessions
        self._state = state
        self._keep_seconds = max(7 * 86_400.0, 2 * session_timeout)
        self.presence = Presence(state, 3 * beat)
        self.replies = PendingRequests(state, beat=beat)

    async def tell(self, held: SessionHandle, message: bytes) -> None:
        """On the GET stream of the client, now or later."""
        try:
            await self.keep(held, message)
        except StoreFull as failure:
            log.warning("a message can't be kept for its client: %s", failure.message)

    async def keep(self, held: SessionHandle, message: bytes) -> None:
        if await held.reload():  # else there would be a log that is never dropped
            keep = max(1, min(KEEP_MESSAGES, KEEP_BYTES // len(message)))
            await self._state.append(messages(held.record.id), message, keep=keep, ttl=self._keep_seconds)

    async def said(self, session: str, after: int) -> list[tuple[int, bytes]]:
        """The messages after a number. All of them, if the number is beyond the log: it began anew."""
        page = await self._state.read(messages(session), after)
        if page.last < after:
            page = await self._state.read(messages(session), 0)
        return [(id, data) for id, data in page.records if not await self._is_answered(session, data)]

    async def _is_answered(self, session: str, message: bytes) -> bool:
        """Whether it is a question that has its answer, or was called off."""
        envelope = jsonrpc.decode(message)
        is_question = isinstance(envelope, Envelope) and envelope.is_request
        return is_question and not await self.replies.is_open(session, str(envelope.id))  # type: ignore[union-attr]

    # ── URLs that a user was sent to: any worker may hear that the user is done there ──

    async def visit_began(self, session: str, id: str) -> None:
        """The session that was asked with this id last is told, within a day."""
        try:
            await self._state.put(_visit(id), session.encode(), ttl=86_400.0)
        except (StoreFull, StoreUnavailable) as failure:
            log.warning("other workers do not know of an elicitation: %s", failure.message)

    async def visit_ended(self, id: str) -> str | None:
        """The session that was asked, if it waits to be told: from now on it does not."""
        entry = await self._state.get(_visit(id))
        return entry.value.decode() if entry is not None and await self._state.delete(_visit(id)) else None

    async def tell_session(self, id: str, message: bytes) -> None:
        held = await self._sessions.load(id)
        if held is not None:
            await self.tell(held, message)


def _visit(id: str) -> str:
    return f"visits/{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"


class SessionChannel(msgspec.Struct, eq=False):
    """The way from a call to its client (`ClientChannel`); notifications go that way also when the call is over."""

    _messages: ServerMessages
    _session: SessionHandle
    _answer: Answer | None  # as long as the call is open

    def pending(self, method: str, timeout: float) -> AbstractAsyncContextManager[PendingRequest]:
        """A request on the stream of the call, else on the GET stream. It fails if the client is gone for a while."""
        if (answer := self._answer) is None:
            raise QuestionFailed(CALL_IS_OVER)
        messages, held = self._messages, self._session
        presence = messages.presence

        async def send(message: bytes) -> None:
            if not held.record.initialized and not (await held.reload() and held.record.initialized):
                raise QuestionFailed(NOT_READY)
            if await answer.carry(message):
                return
            if await presence.is_heard(held.record.id):
                await messages.keep(held, message)
            elif answer.accepted.stream:
                raise QuestionFailed(f"The client can't be asked: {CLIENT_LEFT}")
            else:  # it never could, so a function that can do without may do so
                raise MissingCapability({method.partition("/")[0]: {}}, JSON_ONLY)

        async def is_there() -> bool:
            if not answer.response.ended or await presence.is_heard(held.record.id):
                return True
            return answer.events is not None and await presence.is_heard(answer.events.name)

        return messages.replies.open(held.record.id, timeout, send, is_there)

    async def tell(self, message: bytes) -> None:
        if self._answer is None or not await self._answer.carry(message):
            await self._messages.tell(self._session, message)

    def close(self) -> None:
        self._answer = None


class Presence:
    """Which GET stream carries what: that of a session, or the rest of a call. The newest counts."""

    def __init__(self, state: StateBackend, seconds: float) -> None:
        """A stream that says nothing for so long is taken for gone."""
        self._state = state
        self._seconds = seconds

    async def enter(self, name: str, stream: bytes) -> None:
        with suppress(StoreFull):  # then the client can't be asked
            await self._state.put(_presence(name), stream, ttl=self._seconds)

    async def stay(self, name: str, stream: bytes) -> None:
        """To be called every beat."""
        if await self._there(name) in (b"", stream):
            await self.enter(name, stream)

    async def leave(self, name: str, stream: bytes) -> None:
        entry = await self._state.get(_presence(name))
        if entry is None or entry.value != stream:
            return
        if not self._state.shared:
            await self._state.delete(_presence(name))
            return
        with suppress(Conflict, StoreFull):  # a newer stream has come meanwhile
            await self._state.put(_presence(name), b"", ttl=1.0, if_version=entry.version)

    async def is_heard(self, name: str) -> bool:
        return bool(await self._there(name))

    async def is_newest(self, name: str, stream: bytes) -> bool:
        return await self._there(name) in (b"", stream)

    async def _there(self, name: str) -> bytes:
        entry = await self._state.get(_presence(name))
        return b"" if entry is None else entry.value


def _presence(name: str) -> str:
    return f"hears/{name}"


# ── GET streams ──


class SessionSource:
    """Events of a session outside of its calls: what changes for many, and messages to this session."""

    finished = is_far = False

    def __init__(
        self, changes: ChangeLog, messages_to: ServerMessages, held: SessionHandle, given: EventId | None
    ) -> None:
        self.name = held.record.id
        self.place = given or _noted(held)  # what the client has when all that was read has been sent
        self.topics: Sequence[str] = (CHANGE_LOG, messages(self.name))  # which are told when there is more
        self.has_more = False  # what was read last is not all there is
        self.has_news = given is not None  # since it was noted in the session how far its client has come
        self._changes = changes
        self._outages = changes.outages  # that this client has heard of, or need not hear of
        self._messages = messages_to
        self._held = held

    async def enter(self) -> None:
        """A client that does not say what it has goes on where its older stream was, as far as that is noted."""
        await self._held.wake_workers()  # an older one at another worker
        if not self.has_news and await self._held.reload():
            self.place = _noted(self._held)

    async def read(self) -> list[Event]:
        """The next events, if there are any at the moment."""
        if not self._held.record.initialized:  # before that the server may not speak unasked
            return []
        place = self.place
        events: list[Event] = []
        heard = await self._changes.changes_for(self._held, place.number, self._outages)
        for change, number in heard.changes:
            place = place if number is None else place._replace(number=number)
            id = None if number is None else str(place)
            events.append((encode_event(change_notification(change), id=id), place))
        place = place._replace(number=heard.position)
        for number, message in await self._messages.said(self.name, place.message):
            place = place._replace(message=number)
            events.append((encode_event(message, id=str(place)), place))
        self.place, self._outages, self.has_more = place, heard.outages, heard.more
        self.has_news = self.has_news or bool(events)
        return events

    async def note(self, sent: EventId) -> None:
        """A client that comes again without saying what it has is told the rest."""
        with suppress(ProtocolError):  # no room for it: then it is told some things twice
            await self._held.change(
                lambda record: record.replace(unheard_since=sent.number, unheard_message=sent.message)
            )
            self.has_news = sent != self.place


def _noted(held: SessionHandle) -> EventId:
    return EventId(CHANGES, held.record.unheard_since or 0, held.record.unheard_message)


class CallSource:
    """The rest of a call's events, whether it still runs or not."""

    has_news = False

    def __init__(self, store: EventStore, session: str, place: EventId) -> None:
        self.name = log_name(session, place.stream)
        self.place = place
        self.topics: Sequence[str] = (self.name,)
        self.has_more = self.finished = False
        self._running = store.running.get(self.name)
        self.is_far = store.state.shared and self._running is None  # another worker writes it, and may be lost
        self._is_expected = self.is_far
        self._store = store
        self._last = 0  # the newest number in the log

    async def enter(self) -> None: ...

    async def note(self, sent: EventId) -> None: ...

    async def is_ended(self) -> bool:
        """Whether its worker has written the end, or is lost and was answered for."""
        self._is_expected = await self._store.is_expected(self.name)
        member, worker = self._store.member, self.place.worker
        if self._is_expected and (worker == member.id or await member.is_lost(worker)):
            await self._store.answer_for_lost(self.name, self._last)
        return not self._is_expected

    async def read(self) -> list[Event]:
        events: list[Event] = []
        goes_on = self._is_expected if self._running is None else self._running.name in self._store.running
        page = await self._store.state.read(self.name, self.place.number)
        for number, data in page.records:
            self.place = self.place._replace(number=number)
            self.finished = data.startswith(END)
            if message := data.removeprefix(END):
                events.append((encode_event(message, id=str(self.place)), self.place))
        self._last = page.last
        self.has_more = bool(page.records) and self.place.number < page.last
        if page.last < self.place.number or not (self.has_more or goes_on):  # it was dropped, or has expired
            self.finished = True
        return events


class GetStream:
    """One GET while its connection holds."""

    def __init__(
        self,
        source: SessionSource | CallSource,
        held: SessionHandle,
        response: Response,
        listener: Listener,
        presence: Presence,
    ) -> None:
        self.source = source
        self.over = asyncio.Event()
        self._held = held
        self._response = response
        self._listener = listener
        self._presence = presence
        self._id = secrets.token_bytes(8)
        self._closed = False
        self._look_at = 0.0  # by the clock of the loop: at once
        self._sent = source.place  # how far the client has come for sure

    async def run(self) -> None:
        """Until nothing more can come, the session ends, or it is closed."""
        if not self._closed:
            await self._presence.enter(self.source.name, self._id)
            await self.source.enter()
            self._sent = self.source.place
        await self._response.open(self._priming())
        with suppress(StoreUnavailable):  # it was closed meanwhile
            while not self._closed and not self._response.ended:
                events = await until_answered(self.source.read, lambda: not self._closed)
                if not await self._send(events) or self.source.finished:
                    return
                if not self.source.has_more and not await self._may_have_more():
                    return

    async def _may_have_more(self) -> bool:
        """Waits until it does; False if the session has ended, or a newer stream has come."""
        told = await self._news()

        async def goes_on() -> bool:
            is_newest = topic(self._held.record.id) not in told or await self._is_newest()
            return is_newest and await self._held.reload()

        return bool(told) and await until_answered(goes_on, lambda: not self._closed)

    async def _is_newest(self) -> bool:
        """Of the session, at any worker. A client that comes twice for the rest of a call gets it twice."""
        source = self.source
        return isinstance(source, CallSource) or await self._presence.is_newest(source.name, self._id)

    async def _news(self) -> set[str]:
        """The topics that were told; a worker that writes the events elsewhere is checked every second meanwhile."""
        source = self.source
        if isinstance(source, SessionSource) or not source.is_far:
            return await self._listener.wait()
        clock = asyncio.get_running_loop().time
        while True:
            if clock() >= self._look_at:
                self._look_at = clock() + 1.0
                with suppress(StoreUnavailable):
                    if await source.is_ended():
                        return set(source.topics)
            with suppress(CallTimeout):
                return await with_timeout(self._listener.wait(), self._look_at - clock())

    async def _send(self, events: Sequence[Event]) -> bool:
        """False if not all of them were sent."""
        for frame, place in events:
            if self._closed:
                return False
            await self._response.event(frame)
            if self._response.ended:
                return False
            self._sent = place
        self._sent = self.source.place
        return True

    def _priming(self) -> bytes:
        if not self._held.record.revision.resumable:
            return b""
        id = f"{self.source.place}.{secrets.token_hex(4)}"  # no two events of a session have the same
        return priming_event(id, retry=RETRY_MILLISECONDS)

    def close(self, _grace: float = 0.0) -> None:
        self._closed = True
        self._listener.close()

    async def hang_up(self, retry: float | None = None) -> None:
        """Close the connection, also if the client takes nothing; it may come back for the rest."""
        self.close()
        await self._response.hang_up(retry_frame(retry))

    def client_left(self) -> None:
        self._response.abandon()
        self.close()

    async def beat(self) -> None:
        """The session stays alive, or is found to have ended; and so is the connection."""
        if not self._response.started:  # it waits for the one before it
            return
        try:
            if not await self._held.touch():
                self.close()
                return
            await self._presence.stay(self.source.name, self._id)
            await self._note()
        except StoreUnavailable as failure:
            log.debug("whether a session is still there is not known: %s", failure.message)
        await self._response.event(sse.KEEP_ALIVE)
        if self._response.ended:  # it takes nothing any more
            self.client_left()

    async def _note(self) -> None:
        if self.source.has_news and await self._is_newest():
            await self.source.note(self._sent)

    async def leave(self) -> None:
        with suppress(StoreUnavailable):  # then its client is told some things twice
            await self._note()
            await self._presence.leave(self.source.name, self._id)


class GetStreams:
    """All of them in this process."""

    def __init__(
        self,
        changes: ChangeLog,
        store: EventStore,
        messages_to: ServerMessages,
        traffic: InFlight,
        *,
        keep_alive: float,
    ) -> None:
        self._changes = changes
        self._store = store
        self._messages = messages_to
        self._traffic = traffic
        self._keep_alive = keep_alive
        self._newest: dict[str, GetStream] = {}  # by what they carry

    async def serve(self, visit: HttpRequest, held: SessionHandle, caller: str) -> None:
        """`caller`: whose share of the streams it counts towards."""
        id = visit.headers.get("last-event-id", "")
        place = EventId.read(id) if id else None
        if place is None or place.stream == CHANGES:
            source: SessionSource | CallSource = SessionSource(self._changes, self._messages, held, place)
        else:
            running = await self._store.find(held.record.id, place)
            if running is not None:  # the client has given up that connection, whether we know it or not
                await running.response.hang_up()
            source = CallSource(self._store, held.record.id, place)
        listener = self._store.state.listen([*source.topics, topic(held.record.id)])
        ends_itself = isinstance(source, CallSource) and not source.is_far  # with the call that runs here
        stream = GetStream(source, held, visit.response, listener, self._messages.presence)
        try:
            if not await held.reload():  # it has ended before there was a listener to hear of it
                inbound.session_of_verb(visit.headers, None)
            end = (lambda _grace: None) if ends_itself else stream.close
            self._traffic.open_stream(stream, end, stream.client_left, caller)
            await visit.while_welcome(self._run(visit, stream), stream.close)
        finally:
            listener.close()
            self._traffic.close_stream(stream)

    async def _run(self, visit: HttpRequest, stream: GetStream) -> None:
        name = stream.source.name
        older, self._newest[name] = self._newest.get(name), stream
        call = self._store.running.get(name)
        if call is not None:
            call.hang_up_tail = stream.hang_up
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        attending = loop.create_task(look_after(visit.receive, over, self._keep_alive, stream.beat, stream.client_left))
        try:
            if older is not None:
                await older.hang_up()
                await older.over.wait()  # until it is noted how far that one has come
            await stream.run()
        finally:
            over.set_result(None)
            if call is not None and call.hang_up_tail == stream.hang_up:
                call.hang_up_tail = None
            if self._newest.get(name) is stream:
                del self._newest[name]
            try:
                await (visit.response.close() if stream.source.finished else visit.response.hang_up())
                await attending  # before `leave`, whose word is the last
                await stream.leave()
            finally:
                stream.over.set()
