"""Streams that a client GETs: what its session hears of unasked, or the rest of a call's answer.

Both are read from a log, from where the client left off; neither belongs to the connection that carries it.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from dovetail.engine.changes import ChangeLog
from dovetail.engine.limits import CallTimeout, with_timeout
from dovetail.engine.sessions import HeldSession, topic
from dovetail.protocol import inbound, sse
from dovetail.protocol.sse import priming_event
from dovetail.state.base import Listener, StoreTrouble, until_answered
from dovetail.transports.answers import RETRY_SECONDS, milliseconds, retry_frame
from dovetail.transports.attending import look_after
from dovetail.transports.event_log import EventLogs, EventPlace
from dovetail.transports.response import Response
from dovetail.transports.tail_sources import CHANGES, CallSource, ChangeSource, Event, Source
from dovetail.transports.traffic import Traffic
from dovetail.transports.visit import Visit
from dovetail.transports.way_back import WayBack

LOOK_SECONDS = 1.0  # between two looks after a worker far away
log = logging.getLogger("dovetail.http")


class Tail:
    """One such stream while its connection holds."""

    def __init__(self, source: Source, held: HeldSession, response: Response, listener: Listener) -> None:
        self.source = source
        self._held = held
        self._response = response
        self._listener = listener
        self._closed = False
        self._look_at = 0.0  # by the clock of the loop: at once
        self.told = source.place  # how far the client has come for sure

    async def run(self) -> None:
        """Until nothing more can come, the session ends, or somebody closes it."""
        is_newest = await self.source.enter(self._is_open)
        self.told = self.source.place
        await self._response.open(self._priming())
        while is_newest and not self._response.ended:
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
        try:
            return await until_answered(self.source.read, self._is_open)
        except StoreTrouble:
            return ()

    async def _may_have_more(self) -> bool:
        """Waits until it does; False if its time is over. In doubt nothing is told: a newer one may tell the same."""
        told = await self._told()
        if not told:
            return False
        has_session_news = topic(self._held.record.id) in told
        try:
            return await until_answered(partial(self._goes_on, has_session_news), self._is_open)
        except StoreTrouble:
            return False

    async def _goes_on(self, has_session_news: bool) -> bool:
        return await self._held.reload() and (not has_session_news or await self.source.owns())

    async def _told(self) -> set[str]:
        if not self.source.is_far:
            return await self._listener.wait()
        clock = asyncio.get_running_loop().time
        while True:
            if clock() >= self._look_at:  # however much is told meanwhile
                self._look_at = clock() + LOOK_SECONDS
                with suppress(StoreTrouble):
                    if await self.source.look():
                        return set(self.source.topics)
            with suppress(CallTimeout):
                return await with_timeout(self._listener.wait(), self._look_at - clock())

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

    def _is_open(self) -> bool:
        return not self._closed

    def close(self, _grace: float = 0.0) -> None:
        self._closed = True
        self._listener.close()

    async def hang_up(self, retry: float | None) -> None:
        """The server closes the connection; the client comes back for the rest."""
        await self._response.hang_up(retry_frame(retry))
        self.close()

    async def give_way(self) -> None:
        """To a newer one, also if the client takes nothing."""
        self.close()
        await self._response.hang_up()

    def left(self) -> None:
        """The client is gone."""
        self._response.abandon()
        self.close()

    async def beat(self) -> None:
        """Every so often: the session stays alive, or is found to have ended; and so is the connection."""
        if not self._response.started:  # it waits for the one before it
            return
        try:
            if not await self._held.use():
                self.close()
                return
            await self.source.stay(self.told)
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

    async def serve(self, visit: Visit, held: HeldSession, caller: str) -> None:
        """`caller`: whose share of the streams it counts towards."""
        id = visit.headers.get("last-event-id", "")
        place = EventPlace.read(id) if id else None
        if place is None or place.stream == CHANGES:
            source: Source = ChangeSource(self._changes, self._way_back, held, place)
        else:
            running = await self._logs.find(held.record.id, place)
            if running is not None:  # the client has given up that connection, whether we know it or not
                await running.response.hang_up()
            source = CallSource(self._logs, self._way_back, held.record.id, place)
        await self._serve(visit, held, source, caller)

    async def _serve(self, visit: Visit, held: HeldSession, source: Source, caller: str) -> None:
        listener = self._logs.state.listen([*source.topics, topic(held.record.id)])
        tail = Tail(source, held, visit.response, listener)
        try:
            if not await held.reload():  # it has ended before there was somebody to hear of it
                inbound.session_of_verb(visit.headers, None)
            self._traffic.open_stream(tail, _wait if source.ends_itself else tail.close, tail.left, caller)
            await visit.while_welcome(self._run(visit, tail, f"{held.record.id} {source.name}"), tail.close)
        finally:
            listener.close()
            self._traffic.close_stream(tail)

    async def _run(self, visit: Visit, tail: Tail, owned: str) -> None:
        older, self._owners[owned] = self._owners.get(owned), tail
        call = self._logs.running.get(tail.source.name)
        if call is not None:
            call.tail = tail
            self._way_back.resumed.add(call.response)
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        attending = loop.create_task(look_after(visit.receive, over, self._keep_alive, tail.beat, tail.left))
        try:
            if older is not None:
                await older.give_way()
            await tail.run()
        finally:
            over.set_result(None)
            if call is not None and call.tail is tail:
                call.tail = None
                self._way_back.resumed.discard(call.response)
            if self._owners.get(owned) is tail:
                del self._owners[owned]
            await (visit.response.close() if tail.source.finished else visit.response.hang_up())
            await attending  # the last word of it is that of `leave`
            with suppress(StoreTrouble):  # then it is told some things twice
                await tail.source.leave(tail.told)


def _wait(_grace: float) -> None:
    """How to end what ends itself."""
