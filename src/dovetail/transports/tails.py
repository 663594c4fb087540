"""Streams that a client GETs: the changes that its session hears of, or the rest of a call's answer.

Both are read from a log, from where the client left off; neither belongs to the connection that carries it.
"""

import asyncio
from typing import Protocol

from dovetail.engine.changes import LOG as CHANGE_LOG
from dovetail.engine.changes import ChangeLog
from dovetail.engine.handlers import change_notification
from dovetail.engine.sessions import HeldSession, Sessions, topic
from dovetail.protocol import sse
from dovetail.protocol.sse import encode_event, priming_event
from dovetail.state.base import Listener
from dovetail.transports.answers import (
    END,
    RETRY_SECONDS,
    EventLogs,
    EventPlace,
    log_name,
    milliseconds,
    retry_frame,
    unknown_event,
)
from dovetail.transports.http_calls import look_after
from dovetail.transports.response import Response
from dovetail.transports.traffic import Traffic
from dovetail.transports.visit import Visit

CHANGES = "changes"  # the stream of changes, in event ids; calls have random names of another length


class Source(Protocol):
    """Where the events of a tail come from."""

    place: EventPlace  # what the client has, or will have when what was read last has been sent

    @property
    def topic(self) -> str:
        """What is told when there is more."""

    async def read(self) -> list[bytes]:
        """The next framed events; an empty list if there are none at the moment."""

    @property
    def finished(self) -> bool:
        """Nothing more will come."""


class ChangeSource:
    """What a session is told unasked."""

    finished = False
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


class CallSource:
    """The rest of a call's answer, whether it is still being made or not."""

    def __init__(self, logs: EventLogs, session: str, place: EventPlace) -> None:
        self._logs = logs
        self.place = place
        self.topic = log_name(session, place.stream)
        self.finished = False

    async def read(self) -> list[bytes]:
        frames: list[bytes] = []
        page = await self._logs.state.read(self.topic, self.place.number)
        for record in page.records:
            self.place.number = record.id
            if record.data == END:
                self.finished = True
            else:
                frames.append(encode_event(record.data, id=str(self.place)))
        return frames


class Tail:
    """One such stream while its connection holds."""

    def __init__(self, source: Source, held: HeldSession, response: Response, listener: Listener) -> None:
        self._source = source
        self._held = held
        self._response = response
        self._listener = listener

    async def run(self, sessions: Sessions) -> None:
        """Until nothing more can come, the session ends, or somebody closes it."""
        await self._response.open()
        if self._held.record.revision.resumable:
            frame = priming_event(str(self._source.place), retry=milliseconds(RETRY_SECONDS))
            await self._response.event(frame)
        while not self._response.ended:
            frames = await self._source.read()
            for frame in frames:
                await self._response.event(frame)
            if self._source.finished:
                return
            if not frames and (not await self._listener.wait() or not await sessions.reload(self._held)):
                return

    def close(self) -> None:
        self._listener.close()

    async def hang_up(self, retry: float | None) -> None:
        """The server closes the connection; the client comes back for the rest."""
        if retry is not None:
            await self._response.event(retry_frame(retry))
        await self._response.close()
        self.close()


class Tails:
    """All of them in this process: the newest of a stream owns it."""

    def __init__(
        self, sessions: Sessions, changes: ChangeLog, logs: EventLogs, traffic: Traffic, *, keep_alive: float
    ) -> None:
        self._sessions = sessions
        self._changes = changes
        self._logs = logs
        self._traffic = traffic
        self._keep_alive = keep_alive
        self._owners: dict[str, Tail] = {}  # by what they listen to

    async def serve(self, visit: Visit, held: HeldSession) -> None:
        id = visit.headers.get("last-event-id", "")
        place = EventPlace.read(id) if id else None
        if place is None or place.stream == CHANGES:
            source: Source = ChangeSource(self._changes, held, await self._begin(held, place))
        else:
            await self._check(held.record.id, place)
            source = CallSource(self._logs, held.record.id, place)
        await self._run(visit, held, source)

    async def _begin(self, held: HeldSession, place: EventPlace | None) -> int:
        """Where a stream of changes starts: where the client left off, at its session's beginning, or now."""
        if place is not None:
            return place.number
        since = held.record.unheard_since
        if since is None:
            return await self._changes.position()
        await held.change(lambda record: record.replace(unheard_since=None))
        return since

    async def _check(self, session: str, place: EventPlace) -> None:
        """Raises unless there is such a stream, and it has come so far."""
        running = self._logs.running.get((session, place.stream))
        last = (await self._logs.state.read(log_name(session, place.stream), 0, 0)).last
        if place.number > last or (last == 0 and running is None):
            raise unknown_event()
        if running is not None:
            await running.response.close()  # the client has given up that connection, whether we know it or not

    async def _run(self, visit: Visit, held: HeldSession, source: Source) -> None:
        session = held.record.id
        listener = self._logs.state.listen([source.topic, topic(session)])
        tail = Tail(source, held, visit.response, listener)
        self._traffic.open_stream(tail, tail.close)
        owned = f"{session} {source.topic}"
        if (older := self._owners.get(owned)) is not None:
            older.close()
        self._owners[owned] = tail
        running = self._logs.running.get((session, source.place.stream))
        if running is not None:
            running.tail = tail
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def beat() -> None:
            await self._sessions.use(held.record)
            await visit.response.event(sse.KEEP_ALIVE)

        def left() -> None:
            visit.response.abandon()
            tail.close()

        attending = asyncio.get_running_loop().create_task(
            look_after(visit.receive, over, self._keep_alive, beat, left)
        )
        try:
            await tail.run(self._sessions)
        finally:
            over.set_result(None)
            tail.close()
            if self._owners.get(owned) is tail:
                del self._owners[owned]
            if running is not None and running.tail is tail:
                running.tail = None
            self._traffic.close_stream(tail)
            await visit.response.close()
            await attending
