"""Streams that a client GETs: the changes that its session hears of, or the rest of a call's answer.

Both are read from a log, from where the client left off; neither belongs to the connection that carries it.
"""

import asyncio
import secrets
from contextlib import suppress
from typing import Protocol

from dovetail.engine.changes import LOG as CHANGE_LOG
from dovetail.engine.changes import ChangeLog
from dovetail.engine.handlers import change_notification
from dovetail.engine.sessions import HeldSession, topic
from dovetail.errors import ProtocolError
from dovetail.protocol import inbound, sse
from dovetail.protocol.sse import encode_event, priming_event
from dovetail.state.base import Listener
from dovetail.transports.answers import RETRY_SECONDS, milliseconds, retry_frame
from dovetail.transports.attending import look_after
from dovetail.transports.event_log import END, EventLogs, EventPlace, log_name
from dovetail.transports.response import Response
from dovetail.transports.traffic import Traffic
from dovetail.transports.visit import Visit

CHANGES = "changes"  # the stream of changes, in event ids; calls have random names of another length


class Source(Protocol):
    """Where the events of a tail come from."""

    place: EventPlace  # what the client has, or will have when what was read last has been sent

    @property
    def ends_itself(self) -> bool:
        """It is part of a call, and ends with it."""

    @property
    def topic(self) -> str:
        """What is told when there is more."""

    @property
    def finished(self) -> bool:
        """Nothing more will come."""

    async def read(self) -> list[bytes]:
        """The next framed events; an empty list if there are none at the moment."""

    async def leave(self, told: int) -> None:
        """The tail ends, and so much was told."""


class ChangeSource:
    """What a session is told unasked."""

    ends_itself = finished = False
    topic = CHANGE_LOG

    def __init__(self, changes: ChangeLog, held: HeldSession, position: int) -> None:
        self._changes = changes
        self._held = held
        self.place = EventPlace(CHANGES, position)

    async def read(self) -> list[bytes]:
        if not self._held.record.initialized:  # before that we may not speak unasked
            return []
        frames: list[bytes] = []
        while not frames:
            heard = await self._changes.heard(self._held.record, self.place.number)
            if heard.position == self.place.number and not heard.changes:
                break
            self.place.number = heard.position
            for change, number in heard.changes:
                id = None if number is None else str(EventPlace(CHANGES, number))
                frames.append(encode_event(change_notification(change), id=id))
        return frames

    async def leave(self, told: int) -> None:
        """A client that comes again without saying what it has is told the rest."""
        if told != self._held.record.unheard_since:
            with suppress(ProtocolError):  # no room for it: then it is told some things twice
                await self._held.change(lambda record: record.replace(unheard_since=told))


class CallSource:
    """The rest of a call's answer, whether it is still being made or not."""

    ends_itself = True

    def __init__(self, logs: EventLogs, session: str, place: EventPlace) -> None:
        self._logs = logs
        self.place = place
        self.topic = log_name(session, place.stream)
        self.finished = False

    async def read(self) -> list[bytes]:
        frames: list[bytes] = []
        running = self.topic in self._logs.running  # asked first, so that nothing is written between
        page = await self._logs.state.read(self.topic, self.place.number)
        for record in page.records:
            self.place.number = record.id
            if record.data == END:
                self.finished = True
            else:
                frames.append(encode_event(record.data, id=str(self.place)))
        if not page.records and not running:  # its end was not kept
            self.finished = True
        return frames

    async def leave(self, told: int) -> None:
        """The log stays for who comes again."""


class Tail:
    """One such stream while its connection holds."""

    def __init__(self, source: Source, held: HeldSession, response: Response, listener: Listener) -> None:
        self.source = source
        self._held = held
        self._response = response
        self._listener = listener
        self._closed = False
        self.told = source.place.number  # how far the client has come for sure

    async def run(self) -> None:
        """Until nothing more can come, the session ends, or somebody closes it."""
        await self._response.open(self._priming())
        while not self._response.ended:
            frames = await self.source.read()
            for frame in frames:
                if self._closed:  # whoever comes next is told
                    return
                await self._response.event(frame)
            if not self._response.ended:
                self.told = self.source.place.number
            if self.source.finished:
                return
            if not frames and (not await self._listener.wait() or not await self._held.reload()):
                return

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
        if not await self._held.use():
            self.close()
            return
        await self._response.event(sse.KEEP_ALIVE)
        if self._response.ended:  # it takes nothing any more
            self.left()


class Tails:
    """All of them in this process: the newest of a stream owns it."""

    def __init__(self, changes: ChangeLog, logs: EventLogs, traffic: Traffic, *, keep_alive: float) -> None:
        self._changes = changes
        self._logs = logs
        self._traffic = traffic
        self._keep_alive = keep_alive
        self._owners: dict[str, Tail] = {}  # by session and what they listen to

    async def serve(self, visit: Visit, held: HeldSession) -> None:
        id = visit.headers.get("last-event-id", "")
        place = EventPlace.read(id) if id else None
        if place is None or place.stream == CHANGES:
            position = self._begin(held) if place is None else place.number
            source: Source = ChangeSource(self._changes, held, position)
        else:
            running = await self._logs.find(held.record.id, place)
            if running is not None:  # the client has given up that connection, whether we know it or not
                await running.response.hang_up()
            source = CallSource(self._logs, held.record.id, place)
        await self._serve(visit, held, source)

    def _begin(self, held: HeldSession) -> int:
        """Where a stream of changes starts if the client does not say what it has."""
        older = self._owners.get(_owned(held, CHANGE_LOG))
        return older.told if older is not None else held.record.unheard_since or 0

    async def _serve(self, visit: Visit, held: HeldSession, source: Source) -> None:
        listener = self._logs.state.listen([source.topic, topic(held.record.id)])
        tail = Tail(source, held, visit.response, listener)
        try:
            if not await held.reload():  # it has ended before there was somebody to hear of it
                inbound.session_of_verb(visit.headers, None)
            self._traffic.open_stream(tail, _wait if source.ends_itself else tail.close, tail.left)
            await self._run(visit, tail, _owned(held, source.topic))
        finally:
            listener.close()
            self._traffic.close_stream(tail)

    async def _run(self, visit: Visit, tail: Tail, owned: str) -> None:
        if (older := self._owners.get(owned)) is not None:
            older.close()
        self._owners[owned] = tail
        call = self._logs.running.get(tail.source.topic)
        if call is not None:
            call.tail = tail
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        attending = loop.create_task(look_after(visit.receive, over, self._keep_alive, tail.beat, tail.left))
        try:
            await tail.run()
        finally:
            over.set_result(None)
            if call is not None and call.tail is tail:
                call.tail = None
            if self._owners.get(owned) is tail:
                del self._owners[owned]
                await tail.source.leave(tail.told)
            await (visit.response.close() if tail.source.finished else visit.response.hang_up())
            await attending


def _owned(held: HeldSession, log: str) -> str:
    return f"{held.record.id} {log}"


def _wait(_grace: float) -> None:
    """How to end what ends itself."""
