"""Streams that a client GETs: what its session hears of unasked, or the rest of a call's answer.

Both are read from a log, from where the client left off; neither belongs to the connection that carries it.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from dovetail.engine.changes import LOG as CHANGE_LOG
from dovetail.engine.changes import ChangeLog
from dovetail.engine.handlers import change_notification
from dovetail.engine.limits import CallTimeout, with_timeout
from dovetail.engine.member import Vigil
from dovetail.engine.sessions import HeldSession, messages, topic
from dovetail.errors import ProtocolError
from dovetail.protocol import inbound, sse
from dovetail.protocol.session import Session
from dovetail.protocol.sse import encode_event, priming_event
from dovetail.state.base import Listener, StoreTrouble
from dovetail.transports.answers import RETRY_SECONDS, milliseconds, retry_frame
from dovetail.transports.attending import look_after
from dovetail.transports.event_log import END, HANG_UP, EventLogs, EventPlace, log_name
from dovetail.transports.response import Response
from dovetail.transports.traffic import Traffic
from dovetail.transports.visit import Visit
from dovetail.transports.way_back import WayBack

AGAIN_SECONDS = 0.5  # between two tries to read from a store that is out of reach
LOOK_SECONDS = 1.0  # in which a worker far away must have said something, or is looked after
CHANGES = "changes"  # the stream of changes, in event ids; calls have random names of another length
log = logging.getLogger("dovetail.http")

Event = tuple[bytes, EventPlace]  # framed, and where the client is when it has it


class Source(Protocol):
    """Where the events of a tail come from."""

    place: EventPlace  # what the client has, or will have when what was read last has been sent
    has_more: bool  # what was read last is not all there is
    is_far: bool  # another worker writes it, and should be looked after
    last_frame: bytes | None  # with which the connection is to be closed, though there is more to come

    @property
    def ends_itself(self) -> bool:
        """It is part of a call, and ends with it."""

    @property
    def name(self) -> str:
        """Of the log that it is read from."""

    @property
    def topics(self) -> Sequence[str]:
        """What is told when there is more."""

    @property
    def finished(self) -> bool:
        """Nothing more will come."""

    def follow(self, told: EventPlace) -> None:
        """An older tail has told so much."""

    async def enter(self) -> None:
        """A tail begins."""

    async def stay(self) -> None:
        """It is still there; every so often."""

    async def owns(self) -> bool:
        """Whether no newer tail has taken its place, at any worker."""

    async def look(self) -> None:
        """Nothing has come for a second from afar."""

    async def read(self) -> list[Event]:
        """The next events, if there are any at the moment."""

    async def leave(self, told: EventPlace) -> None:
        """The tail ends, and so much was told."""


class ChangeSource:
    """What a session is told unasked: what changes for many, and what is said to it alone."""

    ends_itself = finished = is_far = False
    last_frame: bytes | None = None
    name = CHANGE_LOG

    def __init__(self, changes: ChangeLog, way_back: WayBack, held: HeldSession, place: EventPlace | None) -> None:
        """`place`: what the client says it has."""
        self._changes = changes
        self._way_back = way_back
        self._held = held
        self._session = held.record.id
        self._stream = secrets.token_bytes(8)  # which of the session's streams this is
        self._is_given = place is not None
        self.has_more = False
        self.topics = (CHANGE_LOG, messages(self._session))
        self.place = place or EventPlace(CHANGES, held.record.unheard_since or 0, held.record.unheard_message)

    def follow(self, told: EventPlace) -> None:
        if not self._is_given:
            self.place = told

    async def enter(self) -> None:
        await self._way_back.enter(self._session, self._stream)
        await self._held.tell()  # an older one at another worker

    async def stay(self) -> None:
        await self._way_back.stay(self._session, self._stream)

    async def owns(self) -> bool:
        return await self._way_back.is_owner(self._session, self._stream)

    async def look(self) -> None:
        """Every worker writes it."""

    async def read(self) -> list[Event]:
        if not self._held.record.initialized:  # before that we may not speak unasked
            return []
        before = self.place
        try:
            return [*await self._read_changes(), *await self._read_messages()]
        except BaseException:
            self.place = before  # nothing of it is told
            raise

    async def _read_changes(self) -> list[Event]:
        events: list[Event] = []
        self.has_more = True
        while self.has_more and not events:
            before = self.place
            heard = await self._changes.heard(self._held, before.number)
            self.place = EventPlace(CHANGES, heard.position, before.message)
            self.has_more = heard.more
            for change, number in heard.changes:
                place = before if number is None else EventPlace(CHANGES, number, before.message)
                id = None if number is None else str(place)
                events.append((encode_event(change_notification(change), id=id), place))
        return events

    async def _read_messages(self) -> list[Event]:
        events: list[Event] = []
        for record in await self._way_back.said(self._session, self.place.message):
            self.place = self.place._replace(message=record.id)
            events.append((encode_event(record.data, id=str(self.place)), self.place))
        return events

    async def leave(self, told: EventPlace) -> None:
        """A client that comes again without saying what it has is told the rest."""
        await self._way_back.leave(self._session, self._stream)
        record = self._held.record
        if (told.number, told.message) != (record.unheard_since, record.unheard_message):
            with suppress(ProtocolError):  # no room for it: then it is told some things twice
                await self._held.change(lambda record: _having_told(record, told))


def _having_told(record: Session, told: EventPlace) -> Session:
    return record.replace(unheard_since=told.number, unheard_message=told.message)


class CallSource:
    """The rest of a call's answer, whether it is still being made or not."""

    ends_itself = True

    def __init__(self, logs: EventLogs, way_back: WayBack, session: str, place: EventPlace) -> None:
        self._logs = logs
        self._way_back = way_back
        self._stream = secrets.token_bytes(8)
        self._last = 0  # the newest number in the log
        self.place = place
        self.name = log_name(session, place.stream)
        self.topics = (self.name,)
        self.finished = self.has_more = self._has_caught_up = False
        self.last_frame: bytes | None = None
        self.is_far = logs.state.shared and self.name not in logs.running
        self._vigil = Vigil(logs.member, place.worker, logs.state)

    def follow(self, told: EventPlace) -> None:
        """The client says itself what it has."""

    async def enter(self) -> None:
        """A call that runs here knows who carries it."""
        if self.is_far:
            await self._way_back.enter(self.name, self._stream)

    async def stay(self) -> None:
        if self.is_far:
            await self._way_back.stay(self.name, self._stream)

    async def owns(self) -> bool:
        """A client that comes twice for the same gets it twice."""
        return True

    async def look(self) -> None:
        is_own = self.place.worker == self._logs.member.id  # and does not run: then it is over, or will be in a moment
        if self.name not in self._logs.late and (is_own or await self._vigil.is_lost()):
            await self._logs.end_lost(self.name, self._last)

    async def read(self) -> list[Event]:
        events: list[Event] = []
        running = self.is_far or self.name in self._logs.running  # asked first, so that nothing is written between
        page = await self._logs.state.read(self.name, self.place.number)
        for record in page.records:
            self.place = self.place._replace(number=record.id)
            if record.data == END:
                self.finished = True
            elif not record.data.startswith(HANG_UP):
                events.append((encode_event(record.data, id=str(self.place)), self.place))
            elif self._has_caught_up:  # it is meant for this connection
                self.last_frame = record.data.removeprefix(HANG_UP)
                break
        if self.is_far and page.last < self.place.number:  # it was dropped, or has expired
            self.finished = True
        self._last = page.last
        self._has_caught_up = True
        self.has_more = bool(page.records) and self.place.number < page.last
        if not self.has_more and not running:  # also if its end was not kept
            self.finished = True
        return events

    async def leave(self, told: EventPlace) -> None:  # noqa: ARG002
        """The log stays for who comes again."""
        if self.is_far:
            await self._way_back.leave(self.name, self._stream)


class Tail:
    """One such stream while its connection holds."""

    def __init__(self, source: Source, held: HeldSession, response: Response, listener: Listener) -> None:
        self.source = source
        self._held = held
        self._response = response
        self._listener = listener
        self._closed = False
        self.told = source.place  # how far the client has come for sure

    def follow(self, older: "Tail") -> None:
        """Take the place of another one."""
        older.close()
        self.source.follow(older.told)
        self.told = self.source.place

    async def run(self) -> None:
        """Until nothing more can come, the session ends, or somebody closes it."""
        await self.source.enter()
        await self._response.open(self._priming())
        while not self._response.ended:
            events = await self._read()
            if not await self._tell(events) or self.source.finished:
                return
            if self.source.last_frame is not None:
                await self._response.hang_up(self.source.last_frame)
                return
            if self.source.has_more:
                continue
            if not await self._may_have_more():
                return

    async def _read(self) -> Sequence[Event]:
        """What there is. While the store is out of reach that is nothing, and when it is back there is news of that."""
        while not self._closed:
            try:
                return await self.source.read()
            except StoreTrouble:
                await asyncio.sleep(AGAIN_SECONDS)
        return ()

    async def _may_have_more(self) -> bool:
        """Waits until it does; False if its time is over."""
        told = await self._told()
        try:
            if not told or not await self._held.reload():
                return False
            return topic(self._held.record.id) not in told or await self.source.owns()
        except StoreTrouble:
            return True

    async def _told(self) -> set[str]:
        if not self.source.is_far:
            return await self._listener.wait()
        while True:
            try:
                return await with_timeout(self._listener.wait(), LOOK_SECONDS)
            except CallTimeout:
                with suppress(StoreTrouble):
                    await self.source.look()

    async def _tell(self, events: Sequence[Event]) -> bool:
        """False if not all of them were told; whoever comes next is told the rest."""
        for frame, place in events:
            if self._closed:
                return False
            await self._response.event(frame)
            if self._response.ended:
                return False
            self.told = place
        self.told = self.source.place
        return True

    def _priming(self) -> bytes:
        if not self._held.record.revision.resumable:
            return b""
        id = f"{self.source.place}.{secrets.token_hex(4)}"  # no two events of a session have the same
        return priming_event(id, retry=milliseconds(RETRY_SECONDS))

    def close(self, _grace: float = 0.0) -> None:
        self._closed = True
        self._listener.close()

    async def hang_up(self, retry: float | None) -> None:
        """The server closes the connection; the client comes back for the rest."""
        await self._response.hang_up(retry_frame(retry))
        self.close()

    def left(self) -> None:
        """The client is gone."""
        self._response.abandon()
        self.close()

    async def beat(self) -> None:
        """Every so often: the session stays alive, or is found to have ended; and so is the connection."""
        try:
            if not await self._held.use():
                self.close()
                return
            await self.source.stay()
        except StoreTrouble as failure:
            log.debug("nobody knows whether a session is still there: %s", failure.message)
        await self._response.event(sse.KEEP_ALIVE)
        if self._response.ended:  # it takes nothing any more
            self.left()


class Tails:
    """All of them in this process: the newest of a stream owns it."""

    def __init__(
        self, changes: ChangeLog, logs: EventLogs, way_back: WayBack, traffic: Traffic, *, keep_alive: float
    ) -> None:
        self._changes = changes
        self._logs = logs
        self._way_back = way_back
        self._traffic = traffic
        self._keep_alive = keep_alive
        self._owners: dict[str, Tail] = {}  # by session and what they listen to

    async def serve(self, visit: Visit, held: HeldSession) -> None:
        id = visit.headers.get("last-event-id", "")
        place = EventPlace.read(id) if id else None
        if place is None or place.stream == CHANGES:
            source: Source = ChangeSource(self._changes, self._way_back, held, place)
        else:
            running = await self._logs.find(held.record.id, place)
            if running is not None:  # the client has given up that connection, whether we know it or not
                await running.response.hang_up()
            source = CallSource(self._logs, self._way_back, held.record.id, place)
        await self._serve(visit, held, source)

    async def _serve(self, visit: Visit, held: HeldSession, source: Source) -> None:
        listener = self._logs.state.listen([*source.topics, topic(held.record.id)])
        tail = Tail(source, held, visit.response, listener)
        try:
            if not await held.reload():  # it has ended before there was somebody to hear of it
                inbound.session_of_verb(visit.headers, None)
            self._traffic.open_stream(tail, _wait if source.ends_itself else tail.close, tail.left)
            await self._run(visit, tail, f"{held.record.id} {source.name}")
        finally:
            listener.close()
            self._traffic.close_stream(tail)

    async def _run(self, visit: Visit, tail: Tail, owned: str) -> None:
        if (older := self._owners.get(owned)) is not None:
            tail.follow(older)
        self._owners[owned] = tail
        call = self._logs.running.get(tail.source.name)
        if call is not None:
            call.tail = tail
            self._way_back.resumed.add(call.response)
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        attending = loop.create_task(look_after(visit.receive, over, self._keep_alive, tail.beat, tail.left))
        try:
            await tail.run()
        finally:
            over.set_result(None)
            if call is not None and call.tail is tail:
                call.tail = None
                self._way_back.resumed.discard(call.response)
            if self._owners.get(owned) is tail:
                del self._owners[owned]
                with suppress(StoreTrouble):  # then it is told some things twice
                    await tail.source.leave(tail.told)
            await (visit.response.close() if tail.source.finished else visit.response.hang_up())
            await attending


def _wait(_grace: float) -> None:
    """How to end what ends itself."""
