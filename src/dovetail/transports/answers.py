"""What goes back for one POST: JSON, unless something has to be told before; then a stream of events.

Where the client has a session, the events of its stream are kept in the event store, so that it can come back.
"""

from collections.abc import Awaitable

import msgspec

from dovetail.protocol import sse
from dovetail.protocol.methods import RequestId
from dovetail.protocol.sse import encode_event
from dovetail.transports.event_store import EventStore, EventStream
from dovetail.transports.response import Response
from dovetail.transports.visit import Accepted

RETRY_SECONDS = 1.0  # after which a client that lost its connection may come back


class Answer(msgspec.Struct, eq=False):
    """One POST's answer."""

    response: Response
    accepted: Accepted
    session: str = ""  # the client's, if it has one
    store: EventStore | None = None  # where it can come back
    primes: bool = False  # and is told so at once
    requests: tuple[RequestId, ...] = ()  # what it answers
    events: EventStream | None = None  # from the first event on

    @property
    def reads_streams(self) -> bool:
        return self.accepted.stream

    async def emit(self, message: bytes) -> None:
        await self.carry(message)

    async def carry(self, message: bytes, *, last: bool = False) -> bool:
        """Send something before the answer, or that as the `last`, or keep it for a client that comes back.

        False if neither is possible: who reads JSON only does not get it.
        """
        if not self.accepted.stream:
            return False
        if not self.response.started:
            await self._open()
        if self.events is not None:
            return await self.events.send(message, last=last)
        if self.store is not None:  # the client left before it knew that there is something to come back to
            return False
        await self.response.event(encode_event(message), last=last)
        return not self.response.ended

    async def _open(self) -> None:
        if self.response.started or self.response.ended:
            return
        if self.store is None:
            await self.response.open()
            return
        if self.events is None:
            self.events = EventStream(self.store, self.session, self.response, self.requests)
        await self.events.open(milliseconds(RETRY_SECONDS) if self.primes else None)

    async def outlived(self) -> None:
        """The call takes its time: a client that can come back is told how, while there is a connection."""
        if self.primes:
            await self._open()

    async def keep_alive(self) -> None:
        if self.accepted.stream:
            await self._open()
            await self.response.event(sse.KEEP_ALIVE)

    async def close_stream(self, retry: float | None) -> None:
        """Close the connection but not the stream: the client comes back for the rest after `retry` seconds."""
        await self._open()
        events = self.events
        if events is not None and events.hang_up_tail is not None:
            await events.hang_up_tail(retry)
        elif events is not None and self.response.ended:
            await events.hang_up_elsewhere(retry_frame(retry))
        else:
            await self.response.hang_up(retry_frame(retry))

    def finish(self, message: bytes, status: int) -> Awaitable[None]:
        """The answer itself. A status that says something is said in JSON, also to who reads streams only."""
        if self.response.started or (status == 200 and not self.accepted.json):
            return self._finish_stream(message)
        return self.response.json(status, message)

    async def _finish_stream(self, message: bytes) -> None:
        try:
            await self.carry(message, last=True)
        except BaseException:
            if self.events is not None:
                await self.events.end()
            raise
        await self.end()

    async def finish_silently(self) -> None:
        """The call was cancelled, so nothing may be answered; but the request has to end."""
        if self.accepted.stream:
            await self.response.open()
            await self.end()
        else:
            await self.response.empty(204)

    @property
    def is_unfinished(self) -> bool:
        """There is a stream to come back to, and its end was not told."""
        return self.events is not None and self.events.is_unfinished

    async def end(self) -> None:
        if self.events is not None:
            await self.events.end()
        await self.response.close()


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def retry_frame(seconds: float | None) -> bytes:
    return b"" if seconds is None else b"retry: %d\n\n" % milliseconds(seconds)
