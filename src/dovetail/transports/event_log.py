"""The events of streams, kept so that a client can come back for what it missed: `{stream}.{number}` names each.

The stream that is not a call's is read from two logs, so that its events have a second number: `{stream}.{n}-{m}`.
A log ends with a record of its own. The record before that is the answer, which is what a client comes back for.
"""

import asyncio
import logging
import re
import secrets
from collections import deque
from typing import NamedTuple, Protocol

from dovetail.errors import INVALID_REQUEST, ProtocolError
from dovetail.state.base import LogPage, NoRoom, StateBackend
from dovetail.transports.response import Response

KEEP_EVENTS = 1000  # of one stream
KEEP_BYTES = 4 * 1024 * 1024  # of one stream, so that a noisy one loses its own events before those of others
MAX_LOGS = 20_000
WHILE_RUNNING = 30 * 86_400.0  # seconds that a log is kept while its call runs: numbers must not begin anew meanwhile
END = b""  # the record behind the last event of a stream; no message is empty
log = logging.getLogger("dovetail.http")
_EVENT_ID = re.compile(r"([a-z0-9]{1,32})\.([0-9]{1,15})(?:-([0-9]{1,15}))?(?:\.[a-z0-9]{1,32})?", re.ASCII)


class EventPlace(NamedTuple):
    """A position in one stream: what an event id says."""

    stream: str
    number: int
    message: int = 0  # the position in what is said to the session alone; only the stream of changes has it

    @classmethod
    def read(cls, id: str) -> "EventPlace":
        """Raises if it can't be one of our ids."""
        found = _EVENT_ID.fullmatch(id)
        if found is None:
            raise unknown_event()
        return cls(found[1], int(found[2]), int(found[3] or 0))

    def __str__(self) -> str:
        return f"{self.stream}.{self.number}-{self.message}" if self.message else f"{self.stream}.{self.number}"


def unknown_event() -> ProtocolError:
    text = "Last-Event-ID names no event that is kept for this session"
    return ProtocolError(text, code=INVALID_REQUEST, http_status=400)


def log_name(session: str, stream: str) -> str:
    return f"events/{session}/{stream}"


class EventLogs:
    """The event logs of all sessions, and the streams that are still being written."""

    def __init__(self, state: StateBackend, *, ttl: float) -> None:
        self.state = state
        self.ttl = ttl
        self.running: dict[str, EventLog] = {}  # by the names of their logs
        self._kept: deque[str] = deque()  # names, oldest first; some may have expired

    async def keep(self, name: str) -> None:
        """There is one more; if there are too many, the oldest gives way."""
        self._kept.append(name)
        if len(self._kept) > MAX_LOGS:
            oldest = self._kept.popleft()
            if oldest in self.running:
                self._kept.append(oldest)
            else:
                await self.state.drop(oldest)

    async def find(self, session: str, place: EventPlace) -> "EventLog | None":
        """The stream if it is still being written. Raises unless it has come so far and there is a rest to be had."""
        name = log_name(session, place.stream)
        running = self.running.get(name)  # asked first, so that nothing is written between
        page = await self.state.read(name, 0, 0)
        if place.message or place.number > page.last or (running is None and not _has_rest(page, place.number)):
            raise unknown_event()
        return running


def _has_rest(ended: LogPage, place: int) -> bool:
    """Whether a client finds the answer in a log that has ended, or has it already. Else it would ask for ever."""
    answer = ended.last - 1
    return ended.last > 0 and (ended.first <= answer or place >= answer)


class HangsUp(Protocol):
    async def hang_up(self, retry: float | None) -> None: ...


class EventLog:
    """The events of one stream, and the response that carries them as long as its connection holds."""

    __slots__ = ("_bytes", "_is_lost", "_logs", "_sizes", "name", "response", "stream", "tail", "turn")

    def __init__(self, logs: EventLogs, session: str, response: Response) -> None:
        self._logs = logs
        self.response = response
        self.stream = secrets.token_hex(8)
        self.name = log_name(session, self.stream)
        self.tail: HangsUp | None = None  # the connection that carries it now, if the client came back
        self.turn = asyncio.Lock()  # events are sent in the order in which they are kept
        self._sizes: deque[int] = deque()  # of the records that are kept
        self._bytes = 0  # of all of them
        self._is_lost = False  # what came last could not be kept
        logs.running[self.name] = self

    @property
    def is_running(self) -> bool:
        """It has not ended."""
        return self.name in self._logs.running

    @property
    def beginning(self) -> str:
        """The id that a client resumes from to get everything."""
        return f"{self.stream}.0"

    async def append(self, message: bytes) -> str | None:
        """The id of the event; None if it can't be kept, which is no reason not to send it."""
        number = await self._append(message, WHILE_RUNNING)
        self._is_lost = number is None
        return None if number is None else f"{self.stream}.{number}"

    async def _append(self, record: bytes, ttl: float) -> int | None:
        keep = self._make_room(record)
        try:
            number = await self._logs.state.append(self.name, record, keep=keep, ttl=ttl)
        except NoRoom as failure:
            self._bytes -= self._sizes.pop()
            log.warning("an event can't be kept for a client that comes back: %s", failure.message)
            return None
        if number == 1:
            await self._logs.keep(self.name)
        return number

    def _make_room(self, record: bytes) -> int:
        """How many records stay, with this one. The end is small: it does not drive out a large answer."""
        sizes = self._sizes
        sizes.append(len(record))
        self._bytes += len(record)
        while len(sizes) > KEEP_EVENTS or (record != END and self._bytes > KEEP_BYTES and len(sizes) > 1):
            self._bytes -= sizes.popleft()
        return len(sizes)

    async def end(self) -> None:
        """No more events; whoever comes for the rest is told so."""
        if not self.is_running:
            return
        async with self.turn:
            if self._logs.running.pop(self.name, None) is None:
                return
            if self._is_lost or await self._append(END, self._logs.ttl) is None:
                await self._logs.state.drop(self.name)  # without the answer there is nothing to come back for
                await self._logs.state.publish(self.name)
