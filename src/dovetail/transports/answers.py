"""What goes back for one POST: JSON, unless something has to be told before; then a stream of events.

Where the client has a session, the events of its stream are kept in a log, so that it can come back for what it
missed: `{stream}.{number}` names each of them.
"""

import asyncio
import logging
import re
import secrets
from collections import deque
from typing import Protocol

from dovetail.errors import INVALID_REQUEST, ProtocolError
from dovetail.protocol import sse
from dovetail.protocol.sse import encode_event, priming_event
from dovetail.state.base import NoRoom, StateBackend
from dovetail.transports.response import Response
from dovetail.transports.visit import Accepted

KEEP_EVENTS = 1000  # of one stream
RETRY_SECONDS = 1.0  # after which a client that lost its connection may come back
MAX_LOGS = 20_000
WHILE_RUNNING = 30 * 86_400.0  # seconds that a log is kept while its call runs: numbers must not begin anew meanwhile
END = b""  # the record behind the last event of a stream; no message is empty
log = logging.getLogger("dovetail.http")
_EVENT_ID = re.compile(r"([a-z0-9]{1,32})\.([0-9]{1,15})(?:\.[a-z0-9]{1,32})?", re.ASCII)


class EventPlace:
    """A position in one stream: what an event id says."""

    __slots__ = ("number", "stream")

    def __init__(self, stream: str, number: int) -> None:
        self.stream = stream
        self.number = number

    @classmethod
    def read(cls, id: str) -> "EventPlace":
        """Raises if it can't be one of our ids."""
        found = _EVENT_ID.fullmatch(id)
        if found is None:
            raise unknown_event()
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.stream}.{self.number}"


def unknown_event() -> ProtocolError:
    text = "Last-Event-ID names no event that is kept for this session"
    return ProtocolError(text, code=INVALID_REQUEST, http_status=400)


class EventLogs:
    """The event logs of all sessions, and the streams that are still being written."""

    def __init__(self, state: StateBackend, *, ttl: float) -> None:
        self.state = state
        self.ttl = ttl
        self.running: dict[str, EventLog] = {}  # by the names of their logs
        self._kept: deque[str] = deque()  # names, oldest first; some may have expired

    def begin(self, session: str, response: Response) -> "EventLog":
        return EventLog(self, session, response)

    async def keep(self, name: str) -> None:
        """There is one more; if there are too many, the oldest gives way."""
        self._kept.append(name)
        if len(self._kept) > MAX_LOGS:
            oldest = self._kept.popleft()
            if oldest in self.running:
                self._kept.append(oldest)
            else:
                await self.state.drop(oldest)


class HangsUp(Protocol):
    async def hang_up(self, retry: float | None) -> None: ...


class EventLog:
    """The events of one stream, and the response that carries them as long as its connection holds."""

    __slots__ = ("_logs", "_session", "name", "response", "stream", "tail", "turn")

    def __init__(self, logs: EventLogs, session: str, response: Response) -> None:
        self._logs = logs
        self._session = session
        self.response = response
        self.stream = ""  # until it has begun
        self.name = ""
        self.tail: HangsUp | None = None  # the connection that carries it now, if the client came back

    def open(self) -> str:
        """Begin; gives the id that a client resumes from to get everything."""
        if not self.stream:
            self.stream = secrets.token_hex(8)
            self.name = log_name(self._session, self.stream)
            self.turn = asyncio.Lock()  # events are sent in the order in which they are kept
            self._logs.running[self.name] = self
        return str(EventPlace(self.stream, 0))

    async def append(self, message: bytes) -> str | None:
        """The id of the event; None if it can't be kept, which is no reason not to send it."""
        number = await self._append(message, WHILE_RUNNING)
        return None if number is None else str(EventPlace(self.stream, number))

    async def _append(self, record: bytes, ttl: float) -> int | None:
        try:
            number = await self._logs.state.append(self.name, record, keep=KEEP_EVENTS, ttl=ttl)
        except NoRoom as failure:
            log.warning("an event can't be kept for a client that comes back: %s", failure.message)
            return None
        if number == 1:
            await self._logs.keep(self.name)
        return number

    async def end(self) -> None:
        """No more events; whoever comes for the rest is told so."""
        if self.name in self._logs.running:
            del self._logs.running[self.name]
            if await self._append(END, self._logs.ttl) is None:
                await self._logs.state.publish(self.name)


def log_name(session: str, stream: str) -> str:
    return f"events/{session}/{stream}"


class Answer:
    """One POST's answer. `log` is there where the client can come back, `primes` where it is told so at once."""

    __slots__ = ("_accepted", "_log", "_primes", "response")

    def __init__(
        self, response: Response, accepted: Accepted, log: EventLog | None = None, *, primes: bool = False
    ) -> None:
        self.response = response
        self._accepted = accepted
        self._log = log
        self._primes = primes and accepted.stream

    async def emit(self, message: bytes) -> None:
        """Send something before the answer. Who reads JSON only does not get it."""
        if not self._accepted.stream:
            return
        await self._open()
        if self._log is None:
            await self.response.event(encode_event(message))
        elif self._log.stream:  # else the client left before it knew that there is something to come back to
            async with self._log.turn:
                id = await self._log.append(message)
                await self.response.event(encode_event(message, id=id))

    async def _open(self) -> None:
        if self.response.started or self.response.ended:
            return
        first = b""
        if self._log is not None:
            id = self._log.open()
            if self._primes:
                first = priming_event(id, retry=milliseconds(RETRY_SECONDS))
        await self.response.open(first)

    async def outlived(self) -> None:
        """The call takes its time: a client that can come back is told how, while there is a connection."""
        if self._primes:
            await self._open()

    async def keep_alive(self) -> None:
        if self._accepted.stream:
            await self._open()
            await self.response.event(sse.KEEP_ALIVE)

    @property
    def can_close(self) -> bool:
        return self._primes

    async def close_stream(self, retry: float | None) -> None:
        """Close the connection but not the stream: the client comes back for the rest after `retry` seconds."""
        await self._open()
        if self._log is not None and self._log.tail is not None:
            await self._log.tail.hang_up(retry)
        else:
            await self.response.hang_up(retry_frame(retry))

    async def finish(self, message: bytes, status: int) -> None:
        """The answer itself. A status that says something is said in JSON, also to who reads streams only."""
        if self.response.started or (status == 200 and not self._accepted.json):
            await self.emit(message)
            await self._end()
        else:
            await self.response.json(status, message)

    async def finish_silently(self) -> None:
        """The call was cancelled, so nothing may be answered; but the request has to end."""
        if self._accepted.stream:
            await self.response.open()
            await self._end()
        else:
            await self.response.empty(204)

    async def _end(self) -> None:
        if self._log is not None:
            await self._log.end()
        await self.response.close()


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def retry_frame(seconds: float | None) -> bytes:
    return b"" if seconds is None else b"retry: %d\n\n" % milliseconds(seconds)
