"""The events of streams, kept so that a client can come back for what it missed: `{stream}.{number}` names each.

The stream that is not a call's is read from two logs, so that its events have a second number: `{stream}.{n}-{m}`.
A log ends with a record of its own. The record before that is the answer, which is what a client comes back for.
"""

import asyncio
import logging
import re
import secrets
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from msgspec import UnsetType

from dovetail.engine.member import Member
from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.methods import RequestId
from dovetail.state.base import Codec, Conflict, LogPage, NoRoom, StateBackend, StoreTrouble, until_answered
from dovetail.transports.late_logs import LateLogs
from dovetail.transports.response import Response
from dovetail.transports.sure_log import KEEP_EVENTS, Draft, Replaced, SureLog

MAX_LOGS = 20_000
WHILE_RUNNING = 30 * 86_400.0  # seconds that a log is kept while its call runs: numbers must not begin anew meanwhile
WHILE_RUNNING_SHARED = 86_400.0  # the same in a store for all, where a worker that dies leaves its logs behind …
RENEW_SECONDS = WHILE_RUNNING_SHARED / 4  # … and one that lives renews them
LOOK_SECONDS = 0.5  # between two looks whether one has to be renewed
WORKER_LOST = "The worker that served this call was lost; whether the call had an effect is not known"
ANSWER_LOST = "This call has ended, but the server could not keep its answer for a client that comes back"
WORKER_LETTERS = 12  # of the name of a stream are its worker's name
STILL_RUNNING = b"still running"  # a record that is no event either: it keeps the log from expiring
HANG_UP = b"hang up "  # how a record begins that is no event: a connection is to be closed, and what to say before
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
        self.running: dict[str, EventLog] = {}  # by the names of their logs, until their end is written or late
        self.unnoted: set[EventLog] = set()  # others have to know what they are asked, or that they still are
        self.late = LateLogs(ttl)  # those whose end is still to be written
        self.is_in_trouble = False  # the last event could not be kept: the next ones don't wait for the store
        self._kept: deque[str] = deque()  # names, oldest first; some may have expired
        self._renewing: asyncio.Task[None] | None = None  # from the first that others may ask for

    @property
    def while_running(self) -> float:
        return WHILE_RUNNING_SHARED if self.state.shared else WHILE_RUNNING

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

    def could_not_keep(self, failure: ProtocolError) -> None:
        """Said when trouble begins, and not for every event."""
        if not self.is_in_trouble:
            log.warning("events can't be kept for clients that come back: %s", failure.message)
        self.is_in_trouble = True

    def add(self, log: "EventLog") -> None:
        self.running[log.name] = log
        if self.state.shared:
            self.unnoted.add(log)

    def remove(self, log: "EventLog") -> None:
        self.running.pop(log.name, None)
        self.unnoted.discard(log)

    def renew_all(self) -> None:
        """As long as their calls run."""
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        """Soon for those that could not be noted, and now and then for all."""
        all_at = _now() + RENEW_SECONDS
        while True:
            await asyncio.sleep(min(LOOK_SECONDS, RENEW_SECONDS))
            if _now() >= all_at:
                all_at = _now() + RENEW_SECONDS
                self.unnoted.update(self.running.values())
            for each in tuple(self.unnoted):
                await each.renew()

    async def stop(self) -> None:
        await self.late.stop()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])

    async def find(self, session: str, place: EventPlace) -> "EventLog | None":
        """The stream if it is being written here. Raises unless it has come so far and there is a rest to be had."""
        name = log_name(session, place.stream)
        running = self.running.get(name)  # asked first, so that nothing is written between
        page = await self.state.read(name, 0, 0)
        if place.message or place.number > page.last:
            raise unknown_event()
        if running is None and not _has_rest(page, place.number) and not await self.is_to_end(name):
            raise unknown_event()
        return running

    async def is_to_end(self, name: str) -> bool:
        """Some worker still has to write its end, or has done so just now."""
        return self.state.shared and await self.state.get(asked_key(name)) is not None

    async def end_lost(self, name: str, last: int) -> None:
        """The worker that wrote it is lost: whoever waits for the answer is told so, once."""
        state = self.state
        entry = await state.get(asked_key(name))
        if entry is None:  # it has ended, or was dropped
            return
        ids = _asked.decode(entry.value) or []
        page = await state.read(name, last - 1) if last else None
        is_answered = page is not None and bool(page.records) and _is_answer(page.records[-1].data)
        try:
            if ids and not is_answered:
                answer = _error(ids, WORKER_LOST)
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


def _error(ids: Sequence[RequestId], text: str) -> bytes:
    answers = [jsonrpc.error(id, ProtocolError(text, code=INTERNAL_ERROR)) for id in ids]
    return answers[0] if len(answers) == 1 else jsonrpc.batch(answers)


class HangsUp(Protocol):
    async def hang_up(self, retry: float | None) -> None: ...


class EventLog:
    """The events of one stream, and the response that carries them as long as its connection holds."""

    __slots__ = (
        "_asked", "_end", "_is_noted", "_log", "_logs", "_unkept", "is_over", "is_running", "name", "response",
        "stream", "tail", "turn",
    )  # fmt: skip

    def __init__(self, logs: EventLogs, session: str, response: Response, asked: Sequence[RequestId]) -> None:
        self._logs = logs
        self._asked = asked
        self.response = response
        self.stream = f"{logs.member.id}{secrets.token_hex(8)}"
        self.name = log_name(session, self.stream)
        self.tail: HangsUp | None = None  # the connection that carries it now, if the client came back
        self.turn = asyncio.Lock()  # events are sent in the order in which they are kept
        self._log = SureLog(logs.state, self.name)
        self._unkept: Draft | None = None  # what came last, if it is not kept
        self._end: Draft | None = Draft(END)  # until it is kept
        self._is_noted = not logs.state.shared  # others know what is asked
        self.is_running = True  # more events may come: nobody has ended it, here or in the place of this worker
        self.is_over = False  # nothing more will be written: neither events nor the end
        logs.add(self)

    @property
    def beginning(self) -> str:
        """The id that a client resumes from to get everything."""
        return f"{self.stream}.0"

    # ── what others have to know ──

    async def begin(self) -> None:
        """Before the client hears of it: other workers may be asked for the rest, and told that this one is lost."""
        if not self._is_noted:
            self._logs.renew_all()
            with suppress(NoRoom, StoreTrouble):  # the next event tries again, and so does `renew`
                await self._note()

    async def _note(self) -> None:
        data = _asked.encode(list(self._asked))
        await self._logs.state.put(asked_key(self.name), data, ttl=WHILE_RUNNING_SHARED)
        self._is_noted = True
        self._logs.unnoted.discard(self)

    async def renew(self) -> None:
        """If it is not in use just now; and nothing comes after the answer."""
        if self.turn.locked():
            return
        async with self.turn:
            if self.is_running:
                with suppress(NoRoom, StoreTrouble, Replaced):
                    await self._note()
                    if self._log.last:
                        await self._append(Draft(STILL_RUNNING), WHILE_RUNNING_SHARED)

    # ── events ──

    async def append(self, message: bytes) -> str | None:
        """The id of the event; None if it can't be kept, which is no reason not to send it.

        Raises Replaced if others have answered: then it is.
        """
        self._unkept = draft = Draft(message)
        try:
            number = await self._append(draft, self._logs.while_running)
        except StoreTrouble:
            return None
        except NoRoom:
            self.shed_answer()
            return None
        self._unkept = None
        return f"{self.stream}.{number}"

    async def hang_up_elsewhere(self, last: bytes) -> None:
        """Whoever carries it at another worker ends with this frame."""
        if self._logs.state.shared:
            async with self.turn:
                if self.is_running:
                    with suppress(NoRoom, StoreTrouble, Replaced):
                        await self._append(Draft(HANG_UP + last), WHILE_RUNNING_SHARED)

    async def _append(self, draft: Draft, ttl: float) -> int:
        """A short outage holds events back: what is sent while nobody knows whether it is kept may be told twice."""
        logs = self._logs
        until = _now() + (0.0 if logs.is_in_trouble else HOLD_SECONDS)
        try:
            number = await until_answered(lambda: self._write(draft, ttl), lambda: _now() < until)
        except (NoRoom, StoreTrouble) as failure:
            logs.could_not_keep(failure)
            raise
        except Replaced:
            self.is_running, self.is_over = False, True
            logs.remove(self)
            raise
        logs.is_in_trouble = False
        if number == 1:
            await logs.keep(self.name)
        return number

    async def _write(self, draft: Draft, ttl: float) -> int:
        """Nothing is kept before it is known what to answer if this worker is lost."""
        if not self._is_noted:
            await self._note()
        return await self._log.append(draft, ttl=ttl)

    # ── the end ──

    async def end(self) -> None:
        """No more events; whoever comes for the rest is told so."""
        async with self.turn:
            if not self.is_running:
                return
            self.is_running = is_written = False
            try:
                is_written = await self.write_end()
            finally:  # as long as this worker lives, others find it with those that run or are late
                if not is_written:
                    self._logs.late.add(self)
                self._logs.remove(self)

    async def write_end(self) -> bool:
        """The answer if it is not kept, and the end after it. False if the store is in trouble."""
        try:
            await self._write_end()
        except StoreTrouble:
            return False
        return True

    async def _write_end(self) -> None:
        logs, state = self._logs, self._logs.state
        try:
            if self._unkept is not None:
                await self._append(self._unkept, logs.while_running)
                self._unkept = None
            if self._end is not None:
                await self._append(self._end, logs.ttl)
                self._end = None
            self.is_over = True
        except Replaced:
            return
        except NoRoom:
            await state.drop(self.name)  # without the answer there is nothing to come back for
            self.is_over = True
            await state.publish(self.name)
        if state.shared:
            await state.delete(asked_key(self.name))

    @property
    def unkept_bytes(self) -> int:
        return 0 if self._unkept is None else len(self._unkept.data)

    def shed_answer(self) -> None:
        """There is no room for what is not kept. If the store has no answer after all, there will be an error."""
        if self._unkept is not None and _is_answer(self._unkept.data):
            self._unkept.data = _error(self._asked, ANSWER_LOST)
        else:
            self._unkept = None


def _now() -> float:
    return asyncio.get_running_loop().time()
