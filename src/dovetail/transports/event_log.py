"""The events of streams, kept so that a client can come back for what it missed: `{stream}.{number}` names each.

The stream that is not a call's is read from two logs, so that its events have a second number: `{stream}.{n}-{m}`.
A log ends with a record of its own. The record before that is the answer, which is what a client comes back for.
"""

import asyncio
import hashlib
import logging
import re
import secrets
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import UnsetType

from dovetail.engine.member import Member
from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.methods import RequestId
from dovetail.state.base import Conflict, LogPage, NoRoom, StateBackend, StoreTrouble
from dovetail.state.records import Codec
from dovetail.transports.response import Response

KEEP_EVENTS = 1000  # of one stream
KEEP_BYTES = 4 * 1024 * 1024  # of one stream, so that a noisy one loses its own events before those of others
MAX_LOGS = 20_000
WHILE_RUNNING = 30 * 86_400.0  # seconds that a log is kept while its call runs: numbers must not begin anew meanwhile
WHILE_RUNNING_SHARED = 86_400.0  # the same in a store for all, where a worker that dies leaves its logs behind
WORKER_LOST = "The worker that served this call was lost; whether the call had an effect is not known"
WORKER_LETTERS = 12  # of the name of a stream are its worker's name
HANG_UP = b"hang up "  # how a record begins that is no event: a connection is to be closed, and what to say before
MAX_UNSURE = 1000
MAX_LATE = 1000  # streams whose end could not be written, and is tried again
LATE_TRIES = 240
AGAIN_SECONDS = 0.5  # between them
HOLD_SECONDS = 10.0  # that an event waits for a store that is out of reach
END = b""  # the record behind the last event of a stream; no message is empty
_asked: Codec[list[RequestId]] = Codec(list[RequestId], "request id")
log = logging.getLogger("dovetail.http")
_EVENT_ID = re.compile(r"([a-z0-9]{1,32})\.([0-9]{1,15})(?:-([0-9]{1,15}))?(?:\.[a-z0-9]{1,32})?", re.ASCII)


class EventPlace(NamedTuple):
    """A position in one stream: what an event id says."""

    stream: str
    number: int
    message: int = 0  # the position in what is said to the session alone; only the stream of changes has it

    @property
    def worker(self) -> str:
        """Who writes or has written the stream of a call."""
        return self.stream[:WORKER_LETTERS]

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
    """The event logs of all sessions, and the streams that are still being written by this worker."""

    def __init__(self, state: StateBackend, *, ttl: float, member: Member) -> None:
        self.state = state
        self.ttl = ttl
        self.member = member
        self.running: dict[str, EventLog] = {}  # by the names of their logs
        self.late: dict[str, asyncio.Task[None]] = {}  # those whose end is still to be written
        self._kept: deque[str] = deque()  # names, oldest first; some may have expired

    async def keep(self, name: str) -> None:
        """There is one more; if there are too many, the oldest gives way. A store for all has its own bounds."""
        if self.state.shared:
            return
        self._kept.append(name)
        if len(self._kept) > MAX_LOGS:
            oldest = self._kept.popleft()
            if oldest in self.running:
                self._kept.append(oldest)
            else:
                await self.state.drop(oldest)

    def write_later(self, log: "EventLog") -> None:
        """Its end could not be written. A client that comes back for the answer gets it when the store is back."""
        if self.state.shared and len(self.late) < MAX_LATE:
            task = asyncio.get_running_loop().create_task(self._write_late(log))
            self.late[log.name] = task
            task.add_done_callback(lambda _: self.late.pop(log.name, None))

    async def _write_late(self, log: "EventLog") -> None:
        for _ in range(LATE_TRIES):
            await asyncio.sleep(AGAIN_SECONDS)
            if await log.write_missed():
                return

    async def stop(self) -> None:
        for task in tuple(self.late.values()):
            task.cancel()
        if self.late:
            await asyncio.wait(self.late.values())

    async def find(self, session: str, place: EventPlace) -> "EventLog | None":
        """The stream if it is being written here. Raises unless it has come so far and there is a rest to be had."""
        name = log_name(session, place.stream)
        running = self.running.get(name)  # asked first, so that nothing is written between
        page = await self.state.read(name, 0, 0)
        if place.message or place.number > page.last:
            raise unknown_event()
        if running is None and not _has_rest(page, place.number) and not await self._is_written_elsewhere(name):
            raise unknown_event()
        return running

    async def _is_written_elsewhere(self, name: str) -> bool:
        return self.state.shared and await self.state.get(asked_key(name)) is not None

    async def end_lost(self, name: str, last: int) -> None:
        """The worker that wrote it is lost: whoever waits for the answer is told so, once."""
        state = self.state
        entry = await state.get(asked_key(name))
        ids = [] if entry is None else _asked.decode(entry.value) or []
        page = await state.read(name, last - 1) if last else None
        is_answered = page is not None and bool(page.records) and _is_answer(page.records[-1].data)
        try:
            if ids and not is_answered:
                answer = _lost_answer(ids)
                last = await state.append(name, answer, keep=KEEP_EVENTS, ttl=self.ttl, if_last=last)
            await state.append(name, END, keep=KEEP_EVENTS, ttl=self.ttl, if_last=last)
        except Conflict:  # another one was quicker, or the worker lives
            return
        await state.delete(asked_key(name))


def _has_rest(ended: LogPage, place: int) -> bool:
    """Whether a client finds the answer in a log that has ended, or has it already. Else it would ask for ever."""
    answer = ended.last - 1
    return ended.last > 0 and (ended.first <= answer or place >= answer)


def asked_key(log: str) -> str:
    """Where the ids of the requests stand that a log is to answer, while it is being written."""
    return f"asked/{log}"


def _is_answer(record: bytes) -> bool:
    if record == END:
        return True
    try:
        message = jsonrpc.decode(record)
    except jsonrpc.BadMessage:
        return False
    return isinstance(message, list) or isinstance(message.method, UnsetType)


def _lost_answer(ids: Sequence[RequestId]) -> bytes:
    answers = [jsonrpc.error(id, ProtocolError(WORKER_LOST, code=INTERNAL_ERROR)) for id in ids]
    return answers[0] if len(answers) == 1 else jsonrpc.batch(answers)


class HangsUp(Protocol):
    async def hang_up(self, retry: float | None) -> None: ...


class EventLog:
    """The events of one stream, and the response that carries them as long as its connection holds."""

    __slots__ = (
        "_asked", "_bytes", "_is_in_trouble", "_is_lost", "_last", "_logs", "_missed", "_sizes", "_unsure", "name",
        "response", "stream", "tail", "turn",
    )  # fmt: skip

    def __init__(self, logs: EventLogs, session: str, response: Response, asked: Sequence[RequestId]) -> None:
        self._logs = logs
        self._asked = asked
        self.response = response
        self.stream = f"{logs.member.id}{secrets.token_hex(8)}"
        self.name = log_name(session, self.stream)
        self.tail: HangsUp | None = None  # the connection that carries it now, if the client came back
        self.turn = asyncio.Lock()  # events are sent in the order in which they are kept
        self._sizes: deque[int] = deque()  # of the records that are kept
        self._bytes = 0  # of all of them
        self._last = 0  # the newest number
        self._unsure: deque[bytes] = deque(maxlen=MAX_UNSURE)  # digests of records one of which the store may have
        self._missed: bytes | None = None  # what could not be written because of trouble, if that came last
        self._is_lost = False  # what came last could not be kept
        self._is_in_trouble = False  # the store has been away for too long to wait for it
        logs.running[self.name] = self

    async def begin(self) -> None:
        """Before the client hears of it: other workers may be asked for the rest, and told that this one is lost."""
        state = self._logs.state
        if not state.shared:
            return
        try:
            await state.put(asked_key(self.name), _asked.encode(list(self._asked)), ttl=WHILE_RUNNING_SHARED)
        except (NoRoom, StoreTrouble) as failure:
            log.warning("a client can't come back to its stream: %s", failure.message)

    @property
    def is_running(self) -> bool:
        """It has not ended."""
        return self.name in self._logs.running

    def was_ended(self) -> bool:
        """By another worker, which has taken this one for lost."""
        return not self.is_running

    @property
    def beginning(self) -> str:
        """The id that a client resumes from to get everything."""
        return f"{self.stream}.0"

    async def append(self, message: bytes) -> str | None:
        """The id of the event; None if it can't be kept, which is no reason not to send it."""
        number = await self._append(message, WHILE_RUNNING_SHARED if self._logs.state.shared else WHILE_RUNNING)
        self._is_lost = number is None
        return None if number is None else f"{self.stream}.{number}"

    async def hang_up_elsewhere(self, last: bytes) -> None:
        """Whoever carries it at another worker ends with this frame."""
        if self._logs.state.shared:
            async with self.turn:
                if self.is_running:
                    await self._append(HANG_UP + last, WHILE_RUNNING_SHARED)

    async def _append(self, record: bytes, ttl: float) -> int | None:
        keep = self._make_room(record)
        try:
            number = await self._append_in_time(record, keep, ttl)
        except (NoRoom, StoreTrouble) as failure:
            self._bytes -= self._sizes.pop()
            self._missed = record if isinstance(failure, StoreTrouble) else None
            log.warning("an event can't be kept for a client that comes back: %s", failure.message)
            return None
        except Conflict:  # others took this worker for lost, and have answered in its place
            self._logs.running.pop(self.name, None)
            return None
        self._missed = None
        if number == 1:
            await self._logs.keep(self.name)
        return number

    async def _append_in_time(self, record: bytes, keep: int, ttl: float) -> int:
        """A short outage holds events back: what is sent while nobody knows whether it is kept may be told twice."""
        clock = asyncio.get_running_loop().time
        until = clock() + HOLD_SECONDS
        while True:
            try:
                number = await self._append_next(record, keep, ttl)
            except StoreTrouble:
                self._is_in_trouble = self._is_in_trouble or clock() >= until
                if self._is_in_trouble:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._is_in_trouble = False
                return number

    async def _append_next(self, record: bytes, keep: int, ttl: float) -> int:
        """Raises Conflict if another worker has written to the log, StoreTrouble if the store has forgotten it."""
        state = self._logs.state
        self._unsure.append(_digest(record))  # until the store says so, which is not to be if this is cancelled
        try:
            number = await state.append(self.name, record, keep=keep, ttl=ttl, if_last=self._last)
        except NoRoom:
            self._unsure.pop()
            raise
        except Conflict:
            page = await state.read(self.name, self._last)
            if page.last < self._last:
                self._is_in_trouble = True  # waiting won't help
                raise StoreTrouble("The server's state store has forgotten a stream") from None
            found = _digest(page.records[0].data) if page.records else b""
            if found not in self._unsure:
                raise
            number = self._last = page.records[0].id
            if found != _digest(record):  # it was the one before
                self._unsure.clear()
                self._unsure.append(_digest(record))
                number = await state.append(self.name, record, keep=keep, ttl=ttl, if_last=self._last)
        self._last = number
        self._unsure.clear()
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
            if self._missed is not None or not await self._write_end():
                self._logs.write_later(self)

    async def _write_end(self) -> bool:
        """False if the store is in trouble."""
        state = self._logs.state
        try:
            if self._is_lost or await self._append(END, self._logs.ttl) is None:
                if self._missed is not None:
                    return False
                await state.drop(self.name)  # without the answer there is nothing to come back for
                await state.publish(self.name)
            if state.shared:
                await state.delete(asked_key(self.name))
        except StoreTrouble as failure:
            log.warning("the end of a stream can't be told yet to a client that comes back: %s", failure.message)
            return False
        return True

    async def write_missed(self) -> bool:
        """What the store did not take when it was to be written; False if it still does not."""
        if self._missed is not None and self._missed != END:
            self._is_lost = await self._append(self._missed, WHILE_RUNNING_SHARED) is None
        self._missed = None if not self._is_lost else self._missed
        return self._missed is None and await self._write_end()


def _digest(record: bytes) -> bytes:
    return hashlib.sha256(record).digest()
