"""What the streams that a client GETs are read from: the logs of its session, or the log of a call.

A place in a log goes in, and the events behind it come out, framed. Each source knows who else reads the same.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from dovetail.engine.changes import LOG as CHANGE_LOG
from dovetail.engine.changes import ChangeLog
from dovetail.engine.handlers import change_notification
from dovetail.engine.member import Vigil
from dovetail.engine.sessions import HeldSession, messages
from dovetail.errors import ProtocolError
from dovetail.protocol.session import Session
from dovetail.protocol.sse import encode_event
from dovetail.transports.event_log import END, HANG_UP, STILL_RUNNING, EventLogs, EventPlace, log_name
from dovetail.transports.way_back import STREAM_BYTES, WayBack

CHANGES = "changes"  # the stream of changes, in event ids; calls have random names of another length

Event = tuple[bytes, EventPlace]  # framed, and where the client is when it has it


class Source(Protocol):
    """Where the events of a tail come from."""

    place: EventPlace  # what the client has, or will have when what was read last has been sent
    has_more: bool  # what was read last is not all there is
    is_far: bool  # another worker writes it, and should be looked after
    last_frame: bytes | None  # with which the connection is to be closed, though there is more to come

    @property
    def ends_itself(self) -> bool:
        """It is part of a call that runs here, and ends with it."""

    @property
    def name(self) -> str:
        """Of the log that it is read from."""

    @property
    def topics(self) -> Sequence[str]:
        """What is told when there is more."""

    @property
    def finished(self) -> bool:
        """Nothing more will come."""

    async def enter(self, still: Callable[[], bool]) -> bool:
        """A tail begins, maybe at another place, if it is `still` open. False if a newer one has come meanwhile."""

    async def stay(self, told: EventPlace) -> None:
        """It is still there, and so much was told; every so often."""

    async def owns(self) -> bool:
        """Whether no newer tail has taken its place, at any worker."""

    async def look(self) -> bool:
        """After who writes it afar; at once, and then every second. Whether it has to be read again."""

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
        self._outages = changes.outages  # that this client has heard of, or need not hear of
        self._way_back = way_back
        self._held = held
        self._session = held.record.id
        self._stream = secrets.token_bytes(STREAM_BYTES)  # which of the session's streams this is
        self._is_given = place is not None
        self._has_news = False  # something was read, and it is not noted that it was told
        self.has_more = False
        self.topics = (CHANGE_LOG, messages(self._session))
        self.place = place or _unheard(held.record)
        self._noted = None if self._is_given else self.place  # what the session knows to be told

    async def enter(self, still: Callable[[], bool]) -> bool:
        """A client that does not say what it has goes on where its older stream was."""
        presence = self._way_back.presence
        is_second = await presence.enter(self._session, self._stream, still, follows=not self._is_given)
        await self._held.tell()  # an older one at another worker
        if is_second and not await presence.follow(self._session, self._stream):
            return False
        if not self._is_given and await self._held.reload():
            self.place = self._noted = _unheard(self._held.record)
        return True

    async def stay(self, told: EventPlace) -> None:
        """If the worker is lost, a client that comes again is told little of it twice."""
        await self._way_back.presence.stay(self._session, self._stream)
        if self._has_news and told != self._noted and await self.owns():
            await self._note(told)
            self._has_news = told != self.place

    async def owns(self) -> bool:
        return await self._way_back.presence.is_newest(self._session, self._stream)

    async def look(self) -> bool:
        """Every worker writes it."""
        return False

    async def read(self) -> list[Event]:
        if not self._held.record.initialized:  # before that we may not speak unasked
            return []
        before, outages = self.place, self._outages
        try:
            events = [*await self._read_changes(), *await self._read_messages()]
        except BaseException:
            self.place, self._outages = before, outages  # nothing of it is told
            raise
        self._has_news = self._has_news or bool(events)
        return events

    async def _read_changes(self) -> list[Event]:
        events: list[Event] = []
        self.has_more = True
        while self.has_more and not events:
            before = self.place
            heard = await self._changes.heard(self._held, before.number, self._outages)
            self.place = EventPlace(CHANGES, heard.position, before.message)
            self._outages = heard.outages
            self.has_more = heard.more
            for change, number in heard.changes:
                place = before if number is None else EventPlace(CHANGES, number, before.message)
                id = None if number is None else str(place)
                events.append((encode_event(change_notification(change), id=id), place))
        return events

    async def _read_messages(self) -> list[Event]:
        events: list[Event] = []
        for place, message in await self._way_back.said(self._session, self.place.message):
            self.place = self.place._replace(message=place)
            if await self._way_back.is_over(self._session, message):
                continue
            events.append((encode_event(message, id=str(self.place)), self.place))
        return events

    async def leave(self, told: EventPlace) -> None:
        """A client that comes again without saying what it has is told the rest."""
        presence = self._way_back.presence
        if told != self._noted and await presence.counts(self._session, self._stream):
            await self._note(told)
        await presence.leave(self._session, self._stream)

    async def _note(self, told: EventPlace) -> None:
        with suppress(ProtocolError):  # no room for it: then it is told some things twice
            await self._held.change(lambda record: _having_told(record, told))
            self._noted = told


def _unheard(record: Session) -> EventPlace:
    return EventPlace(CHANGES, record.unheard_since or 0, record.unheard_message)


def _having_told(record: Session, told: EventPlace) -> Session:
    return record.replace(unheard_since=told.number, unheard_message=told.message)


class CallSource:
    """The rest of a call's answer, whether it is still being made or not."""

    def __init__(self, logs: EventLogs, way_back: WayBack, session: str, place: EventPlace) -> None:
        self._logs = logs
        self._way_back = way_back
        self._stream = secrets.token_bytes(STREAM_BYTES)
        self._last = 0  # the newest number in the log
        self.place = place
        self.name = log_name(session, place.stream)
        self.topics = (self.name,)
        self.finished = self.has_more = self._has_caught_up = False
        self.last_frame: bytes | None = None
        self._log = logs.running.get(self.name)
        self.is_far = logs.state.shared and self._log is None
        self.ends_itself = not self.is_far
        self._is_to_end = self.is_far  # as far as is known
        self._vigil = Vigil(logs.member, place.worker, logs.state)

    async def enter(self, still: Callable[[], bool]) -> bool:
        """A call that runs here knows who carries it."""
        if self.is_far:
            await self._way_back.presence.enter(self.name, self._stream, still)
        return True

    async def stay(self, told: EventPlace) -> None:  # noqa: ARG002
        """The client says itself what it has."""
        if self.is_far:
            await self._way_back.presence.stay(self.name, self._stream)

    async def owns(self) -> bool:
        """A client that comes twice for the same gets it twice."""
        return True

    async def look(self) -> bool:
        """Also whether its end was written since it was read last, or never will be: it was dropped."""
        logs = self._logs
        self._is_to_end = await logs.is_to_end(self.name)
        if not self._is_to_end:
            return True
        is_own = self.place.worker == logs.member.id  # and does not run
        if (is_own or await self._vigil.is_lost()) and self.name not in logs.late:
            await logs.end_lost(self.name, self._last)
        return False

    async def read(self) -> list[Event]:
        events: list[Event] = []
        goes_on = self._is_to_end if self._log is None else not self._log.is_over  # asked before it is read
        page = await self._logs.state.read(self.name, self.place.number)
        for record in page.records:
            self.place = self.place._replace(number=record.id)
            if record.data == END:
                self.finished = True
            elif record.data == STILL_RUNNING:
                continue
            elif not record.data.startswith(HANG_UP):
                events.append((encode_event(record.data, id=str(self.place)), self.place))
            elif self._has_caught_up:  # it is meant for this connection
                self.last_frame = record.data.removeprefix(HANG_UP)
                break
        if self.is_far and page.last < self.place.number:  # it was dropped, or has expired
            self.finished = True
        self._last = page.last
        self.has_more = bool(page.records) and self.place.number < page.last
        self._has_caught_up = self._has_caught_up or not self.has_more
        if not self.has_more and not goes_on:  # also if its end was not kept
            self.finished = True
        return events

    async def leave(self, told: EventPlace) -> None:  # noqa: ARG002
        """The log stays for who comes again."""
        if self.is_far:
            await self._way_back.presence.leave(self.name, self._stream)
