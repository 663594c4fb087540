"""Requests to the client up to 2025-11-25: one is sent, and its answer comes back or is waited for in vain.

An answer arrives at a `Mailbox`. On a pipe those are kept with the connection (`PipeReplies`); over HTTP they lie in
the state backend, where any worker finds them (`SharedReplies`).
"""

import asyncio
import itertools
import os
import re
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail import registry
from dovetail.engine.concurrency import CallTimeout, Limit, Slots, standing_still, with_timeout
from dovetail.engine.exchange import BackChannel, Exchange, Mailbox, Mark, interview_of
from dovetail.engine.input_required import Steps, refuse_in_step
from dovetail.engine.options import LONGEST_ANSWER
from dovetail.engine.threads import resting
from dovetail.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    URL_ELICITATION_REQUIRED,
    AnswerTimeout,
    Busy,
    MissingCapability,
    ProtocolError,
    QuestionFailed,
    ToolError,
    UrlElicitationRequired,
)
from dovetail.protocol import jsonrpc
from dovetail.protocol.elicitation import InputRequired, Inquiry
from dovetail.protocol.features import require_askable
from dovetail.protocol.jsonrpc import UNREADABLE, BadMessage, Envelope, encode
from dovetail.protocol.methods import RequestId
from dovetail.protocol.request_state import MAX_ROUNDS
from dovetail.protocol.revisions import Revision
from dovetail.protocol.session import Session
from dovetail.registry.elicitation import ElicitUrl
from dovetail.registry.outputs import to_jsonable
from dovetail.state.base import MAX_TTL, Codec, Conflict, Entry, StateBackend, StoreTrouble, until_answered

if TYPE_CHECKING:
    from dovetail.engine.core import Engine
    from dovetail.registry.roots import Root

T = TypeVar("T")
Send = Callable[[bytes], Coroutine[Any, Any, None]]
IsThere = Callable[[], Awaitable[bool]]  # whether the client can still be reached

MAX_KEPT = 256 * 1024  # bytes of answers, as much as a later client would carry
MAX_AT_ONCE = 32  # questions of one call; its others wait, so that it leaves room for other calls of its client
MAX_OPEN = 100  # questions to one client that wait for an answer
MAX_SHARED = 10_000  # to all clients of one process, over HTTP
MAX_VISITS = 100  # of one session
EXTENSIONS = 3  # times the timeout: a client that reports progress gets so much in all, and no more
CALL_OFF_SECONDS = 1.0  # for a client to take the news that it need not answer
UNREAD_SECONDS = 60.0  # an answer is read at once, unless the worker that asked is gone
BEAT_SECONDS = 15.0  # between two looks whether a client over HTTP is still there
GIVE_UP_BEATS = 4  # in a row without it: then it has gone
MAX_REASON = 500  # characters of a client's error message that are passed on

CALL_IS_OVER = "The client can't be asked any more: the call is over"
NOT_READY = "The client can't be asked yet: it has not sent notifications/initialized"
GONE = "The client can't answer any more: its connection has closed"
LEFT = "The client can't answer any more: it has closed its connection and did not come back"
STOPPING = "The client can't answer any more: the server is shutting down"
LOST = "The question to the client was lost: the server's state store has forgotten it"
WORDS = {
    PARSE_ERROR: "it could not read the question",
    INVALID_REQUEST: "it did not take the question for a request",
    METHOD_NOT_FOUND: "it does not know this method",
    INVALID_PARAMS: "it did not take the question as it was put",
    INTERNAL_ERROR: "something went wrong inside it",
}


# ── from a question of a function to its answer, in every revision ──


async def ask(engine: "Engine", exchange: Exchange, inquiry: Inquiry[T], timeout: float | None) -> T:
    """The checked answer. Raises MissingCapability before anything is sent to a client that can't answer."""
    refuse_in_step()
    answer = await interview_of(engine, exchange).answer(inquiry, _seconds(engine, timeout))
    return inquiry.read(answer, exchange.request.revision)


def _seconds(engine: "Engine", timeout: Any) -> float:
    if timeout is None:
        return engine.options.answer_timeout
    if not isinstance(timeout, (int, float)) or not 0 < timeout <= LONGEST_ANSWER:
        raise ValueError(f"timeout={timeout!r} of a question must be a number of seconds, above 0, and a year at most")
    return float(timeout)


async def list_roots(engine: "Engine", exchange: Exchange, timeout: float | None) -> "list[Root]":
    """The client's roots; asked for once if it promises to tell of changes."""
    roots = registry.roots.Roots()
    sessions, revision = exchange.sessions, exchange.request.revision
    declared = exchange.request.capabilities.get("roots")
    if sessions is None or not isinstance(declared, dict) or declared.get("listChanged") is not True:
        return await ask(engine, exchange, roots, timeout)
    await sessions.reload()
    version = sessions.record.roots_version
    if (kept := sessions.record.roots) is not None:
        return roots.read(kept, revision)
    refuse_in_step()
    answer = await interview_of(engine, exchange).answer(roots, _seconds(engine, timeout))
    found = roots.read(answer, revision)

    def keep(record: Session) -> Session:  # unless they have changed meanwhile
        return record.replace(roots=bytes(answer)) if record.roots_version == version else record

    with suppress(ProtocolError):  # no room for them: then they are asked for again
        await sessions.change(keep)
    return found


class Live:
    """The interview of a call that stays open while its client is asked."""

    is_waiting = False

    def __init__(self, engine: "Engine", exchange: Exchange) -> None:
        self._engine = engine
        self._exchange = exchange
        self._steps = Steps(engine, {})
        self._lending = Lending(Slots())
        self._room = asyncio.Semaphore(MAX_AT_ONCE)
        self._rounds = 0
        self._answers: dict[tuple[str, int], Raw] = {}  # what was asked, and the how-manieth time in one run
        self._kept = 0  # bytes of answers
        self._occurrences: Counter[str] = Counter()
        self._pending = PendingQuestions(exchange)
        self.input_responses: Mapping[str, Any] = {}
        self.request_state: Any = None

    async def answer(self, inquiry: Inquiry[Any], timeout: float) -> Raw:
        """Asked once, also if the function is called again because it has asked by itself."""
        digest = inquiry.question.digest
        self._occurrences[digest] += 1
        place = digest, self._occurrences[digest]
        known = self._answers.get(place)
        if known is not None:
            return known
        answer = await self._put(inquiry, timeout)
        self._kept += len(bytes(answer))
        if self._kept <= MAX_KEPT:  # else it is asked again, if it comes to that
            self._answers[place] = answer
        return answer

    async def _put(self, inquiry: Inquiry[Any], timeout: float) -> Raw:
        back = self._back(inquiry)
        if not isinstance(inquiry, ElicitUrl):
            return await self._request(inquiry, back, timeout)
        await self._remember(inquiry, back)
        is_willing = False
        try:
            answer = await self._request(inquiry, back, timeout)
            is_willing = inquiry.read(answer, self._revision).accepted
        finally:
            if not is_willing:
                await self._forget(inquiry)
        return answer

    async def _request(self, inquiry: Inquiry[Any], back: BackChannel, timeout: float) -> Raw:
        method, params = inquiry.question.method, encode(inquiry.params(self._revision))
        slots = self._exchange.slots
        if slots is not None and slots is not self._lending.slots:  # the first question of a run
            self._lending = Lending(slots)
        lending = self._lending
        with standing_still(), resting():  # what else the function does meanwhile costs it nothing
            async with lending, self._room:
                if lending.slots.is_over:
                    raise QuestionFailed(CALL_IS_OVER)  # it had to wait, and its function did not wait for it
                with self._pending.one():
                    async with back.pending(method, timeout) as box:
                        return await reply_to(box, method, params, timeout)

    @property
    def _revision(self) -> Revision:
        return self._exchange.request.revision

    def _back(self, inquiry: Inquiry[Any]) -> BackChannel:
        """Raises unless there is a way, and the client understands the question."""
        back, question = self._exchange.back, inquiry.question
        if back is None:
            missing: dict[str, Any] = {path.partition(".")[0]: {} for path in question.requires}
            raise MissingCapability(missing, self._exchange.no_way_back)
        require_askable(question, self._revision, self._exchange.request.capabilities)
        return back

    async def _remember(self, visit: ElicitUrl, back: BackChannel) -> None:
        """The client may be told later that the user is done at a URL."""
        session = self._exchange.request.session
        if self._revision.elicitation_ids and session is not None:
            elicitations = self._engine.elicitations
            elicitations.began(session.id, visit.elicitation_id, back)
            if elicitations.far is not None:
                await elicitations.far.visit_began(session.id, visit.elicitation_id)

    async def _forget(self, visit: ElicitUrl) -> None:
        session, elicitations = self._exchange.request.session, self._engine.elicitations
        if session is not None:
            elicitations.ended(session.id, visit.elicitation_id)
            if elicitations.far is not None:
                await elicitations.far.visit_ended(visit.elicitation_id)

    def mark(self) -> Mark:
        return self._occurrences.copy(), self._steps.met.copy()

    def begin_again(self, mark: Mark | None = None) -> None:
        questions, steps = mark or (Counter(), Counter())
        self._occurrences = questions.copy()
        self._steps.met = steps.copy()

    async def ask_together(self, required: InputRequired) -> None:
        """The questions go out together; then the function is called again, as the client of today would do it."""
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            raise ToolError(f"This call can't go on: it has asked {MAX_ROUNDS} times without coming to an end")
        timeout = self._engine.options.answer_timeout
        for inquiry in required.requests.values():
            self._back(inquiry)
        try:
            async with asyncio.TaskGroup() as group:
                asked = {key: group.create_task(self._put(each, timeout)) for key, each in required.requests.items()}
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        self.input_responses = {key: _object(key, task.result()) for key, task in asked.items()}
        self.request_state = None if required.state is UNSET else to_jsonable(required.state)

    async def require_urls(self, required: UrlElicitationRequired) -> None:
        for inquiry in required.elicitations:
            await self._remember(inquiry, self._back(inquiry))
        data = {"elicitations": [inquiry.params(self._revision) for inquiry in required.elicitations]}
        raise ProtocolError(str(required), code=URL_ELICITATION_REQUIRED, data=data)

    async def settle(self) -> None:
        await self._steps.settle()

    def finished(self) -> None:
        """There was only one run, which can't differ from itself."""

    async def step(self, name: str, function: Callable[[], Any], *, in_thread: bool) -> Any:
        return await self._steps.run(name, function, in_thread=in_thread)


def _object(key: str, answer: Raw) -> Any:
    """An answer that only the function itself reads; in the later era others would not come so far either."""
    try:
        value = jsonrpc.parse(answer)
    except BadMessage:
        value = None
    if not isinstance(value, dict):
        raise QuestionFailed(f"The client's answer to {key} can't be used: it must be an object")
    return value


class Lending:
    """`async with lending:` others have the slots of a call while its client is asked.

    The first of several questions gives them back, the last takes them again before the function goes on.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._questions = 0
        self._lent: tuple[Limit, ...] = ()  # in the order in which they are taken
        self._taking = asyncio.Lock()

    async def __aenter__(self) -> None:
        self._questions += 1
        if not self._taking.locked():  # else whoever takes them gives them back
            self._lend()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._questions -= 1
        if self._questions:
            return
        if error is not None and not isinstance(error, Exception):  # cancelled: it must not wait
            self._take_at_once()
            return
        async with self._taking:
            await self._take()

    def _lend(self) -> None:
        held, self.slots.held = self.slots.held, ()
        self._lent = held + self._lent
        for limit in held:
            limit.release()

    async def _take(self) -> None:
        try:
            while self._lent and not self._questions and not self.slots.is_over:
                limit, self._lent = self._lent[0], self._lent[1:]
                try:
                    await limit.reclaim()
                finally:
                    self._have(limit)
        except asyncio.CancelledError:
            self._take_at_once()
            raise
        if self._questions:  # another part of the function has asked meanwhile
            self._lend()

    def _take_at_once(self) -> None:
        lent, self._lent = self._lent, ()
        for limit in lent:
            limit.overdraw()
            self._have(limit)

    def _have(self, limit: Limit) -> None:
        if self.slots.is_over:  # the function has ended without waiting for this
            limit.release()
        else:
            self.slots.held += (limit,)


# ── one request, and its reply ──


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What a client has answered: a result or an error, as it came."""

    is_result: bool
    body: bytes

    @classmethod
    def of(cls, message: Envelope) -> "Reply":
        if not isinstance(message.result, UnsetType):
            return cls(True, bytes(message.result))
        assert not isinstance(message.error, UnsetType)
        return cls(False, bytes(message.error))

    def result(self, method: str) -> Raw:
        """Raises QuestionFailed if it is an error."""
        if self.is_result:
            return Raw(self.body)
        raise _refusal(method, self.body)


class GivenUp(QuestionFailed):
    """Nobody waits any more. The client may have the question still, and is told that it need not answer."""


async def reply_to(box: Mailbox, method: str, params: bytes, timeout: float) -> Raw:
    """Send a request and wait for its result. Whatever ends the waiting, the client is told if it need not answer."""
    request = jsonrpc.request(box.id, method, _with_token(params, box.id))
    try:
        reply = await _reply(box, request, timeout)
    except asyncio.CancelledError:
        await _call_off(box, "The call that asked has ended")
        raise
    except GivenUp as failure:
        await _call_off(box, str(failure))
        raise
    if reply is None:
        await _call_off(box, "No answer came in time")
        raise AnswerTimeout(f"The client did not answer {method} within {timeout:g} s")
    return reply.result(method)


async def _reply(box: Mailbox, request: bytes, timeout: float) -> "Reply | None":
    """None if none came in time; progress makes the time begin anew, but not for ever."""
    loop = asyncio.get_running_loop()
    last = loop.time() + timeout * EXTENSIONS
    try:
        async with asyncio.timeout(timeout) as limit:
            await box.send(request)
            while (reply := await box.news()) is None:
                limit.reschedule(min(loop.time() + timeout, last))
            return reply
    except TimeoutError:
        if not limit.expired():  # somebody else's
            raise
        return None


async def _call_off(box: Mailbox, reason: str) -> None:
    """The client need not answer; if it can't be told, nobody waits for that.

    Questions often end together: the first that fails may end the others while they are at this.
    """
    params = encode({"requestId": box.id, "reason": reason})
    telling = asyncio.create_task(_tell(box.send, jsonrpc.notification("notifications/cancelled", params)))
    try:
        await asyncio.shield(telling)
    except asyncio.CancelledError:
        await asyncio.wait({telling})
        raise


async def _tell(send: Send, message: bytes) -> None:
    with suppress(Exception):
        await with_timeout(send(message), CALL_OFF_SECONDS)


def _with_token(params: bytes, id: str) -> bytes:
    """So that the client can report progress, which gives it more time."""
    members = jsonrpc.members(params)
    meta = jsonrpc.members(members["_meta"]) if "_meta" in members else {}
    meta.setdefault("progressToken", Raw(encode(id)))
    return encode({**members, "_meta": meta})


class _ClientError(msgspec.Struct, frozen=True):
    code: int | None = None
    message: str = ""


def _refusal(method: str, error: bytes) -> QuestionFailed:
    """A client's error in words; whatever it says is cut and cleaned, for a model will read it."""
    try:
        said = msgspec.json.decode(error, type=_ClientError)
    except UNREADABLE:
        said = _ClientError()
    message = "".join(each if each.isprintable() else " " for each in said.message[:MAX_REASON]).strip()
    if len(said.message) > MAX_REASON:
        message += "…"
    words = "" if said.code is None else WORDS.get(said.code, "")
    reason = ": ".join(part for part in (words, message) if part) or "it did not say why"
    return QuestionFailed(f"The client could not answer {method}: {reason}", code=said.code)


class PendingQuestions:
    """Those of one call. What it leaves open when it ends is called off before its answer goes out."""

    __slots__ = ("_tasks",)

    def __init__(self, exchange: Exchange) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        exchange.finish.append(self._call_off)

    @contextmanager
    def one(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def _call_off(self) -> None:
        left = self._tasks - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=2 * CALL_OFF_SECONDS)


def refuse_more(running: int) -> None:
    if running >= MAX_OPEN:
        raise Busy(f"{MAX_OPEN} questions wait for this client's answers already; ask less at once")


# ── on a pipe ──


class PipeReplies:
    """The questions that are open at the other end of one pipe."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)  # no id is used twice
        self._boxes: dict[RequestId, _PipeBox] = {}
        self._closed = False

    @asynccontextmanager
    async def open(self, send: Send) -> AsyncIterator[Mailbox]:
        if self._closed:
            raise QuestionFailed(GONE)
        refuse_more(len(self._boxes))
        box = _PipeBox(f"dovetail-{next(self._numbers)}", send)
        self._boxes[box.id] = box
        try:
            yield box
        finally:
            del self._boxes[box.id]

    def answered(self, message: Envelope) -> None:
        """The first answer counts. One to nothing that was asked is ignored, and so is an error without an id."""
        box = None if isinstance(message.id, UnsetType) else self._boxes.get(message.id)
        if box is not None and box.reply is None:
            box.reply = Reply.of(message)
            box.told.set()

    def progressed(self, id: RequestId | None) -> None:
        """The client is at work on a question."""
        if id is not None and (box := self._boxes.get(id)) is not None:
            box.told.set()

    def close(self) -> None:
        """No answers will come any more."""
        self._closed = True
        for box in self._boxes.values():
            box.lost = True
            box.told.set()


class _PipeBox:
    __slots__ = ("id", "lost", "reply", "send", "told")

    def __init__(self, id: str, send: Send) -> None:
        self.id = id
        self.send = send
        self.reply: Reply | None = None
        self.lost = False
        self.told = asyncio.Event()

    async def news(self) -> Reply | None:
        await self.told.wait()
        self.told.clear()
        if self.reply is None and self.lost:
            raise QuestionFailed(GONE)
        return self.reply


# ── over HTTP ──


_OWN_ID = r"dovetail-[0-9a-f]{16}"
_OPEN = b""  # the value of a question that has no answer yet
_codec: Codec[Reply] = Codec(Reply, "answer")


async def _always() -> bool:
    return True


class SharedReplies:
    """The questions to all sessions. Each is a key, whose name is also told as a topic when there is news."""

    def __init__(self, state: StateBackend, *, beat: float = BEAT_SECONDS) -> None:
        self.state = state
        self.beat = beat
        self.closed = False
        self._open: Counter[str] = Counter()  # those that were put here, by session
        self._boxes: set[_SharedBox] = set()  # of all of them

    @asynccontextmanager
    async def open(
        self, session: str, timeout: float, send: Send, is_there: IsThere = _always
    ) -> AsyncIterator[Mailbox]:
        """`is_there` is asked every beat; a client that is not there for some of them is given up."""
        self._refuse_more(session)
        box = _SharedBox(self, session, send, is_there)
        self._boxes.add(box)
        self._open[session] += 1
        try:
            await self.state.put(box.key, _OPEN, ttl=_lifetime(timeout), if_version=0)
            yield box
        finally:
            box.listener.close()
            self._boxes.discard(box)
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]
            with suppress(StoreTrouble):  # it expires
                await self.state.delete(box.key)

    def _refuse_more(self, session: str) -> None:
        if self.closed:
            raise QuestionFailed(STOPPING)
        refuse_more(self._open[session])
        if len(self._boxes) >= MAX_SHARED:
            raise Busy("The server waits for the answers of too many clients; try again later", http_status=503)

    async def is_open(self, session: str, id: str) -> bool:
        """Whether somebody waits for the answer to a question."""
        entry = await self.state.get(_key(session, id))
        return entry is not None and entry.value == _OPEN

    def close(self) -> None:
        """The server stops: it takes no answers any more, so nobody waits for one."""
        self.closed = True
        for box in self._boxes:
            box.listener.close()

    async def answered(self, session: str, message: Envelope) -> None:
        """The first answer counts. One to nothing that this session was asked is ignored."""
        if not isinstance(message.id, str) or not re.fullmatch(_OWN_ID, message.id):
            return
        key = _key(session, message.id)
        entry = await self.state.get(key)
        if entry is None:
            return
        if entry.value != _OPEN:  # whoever asked may not have heard of it
            await self.state.publish(key)
            return
        answer = _codec.encode(Reply.of(message))
        with suppress(Conflict):  # another one was quicker
            await self.state.put(key, answer, ttl=UNREAD_SECONDS, if_version=entry.version)
            await self.state.publish(key)

    async def progressed(self, session: str, id: RequestId | None) -> None:
        """The client is at work on a question, if that is one."""
        if isinstance(id, str) and re.fullmatch(_OWN_ID, id):
            await self.state.publish(_key(session, id))


class _SharedBox:
    __slots__ = ("_is_there", "_replies", "id", "key", "listener", "send")

    def __init__(self, replies: SharedReplies, session: str, send: Send, is_there: IsThere) -> None:
        self._replies = replies
        self._is_there = is_there
        self.send = send
        self.id = f"dovetail-{os.urandom(8).hex()}"
        self.key = _key(session, self.id)
        self.listener = replies.state.listen([self.key])

    async def news(self) -> Reply | None:
        told = await self._told()
        is_stopping = self._replies.closed
        entry = await self._look() if told or is_stopping else None
        if entry is not None and entry.value != _OPEN and (reply := _codec.decode(entry.value)) is not None:
            return reply
        if is_stopping:
            raise GivenUp(STOPPING)
        if entry is None:  # the store was closed, or the key has expired
            raise QuestionFailed(LOST)
        return None

    async def _look(self) -> Entry | None:
        """The answer may be there while the store is out of reach: so that it is looked for until it is not."""
        try:
            return await until_answered(lambda: self._replies.state.get(self.key), lambda: not self._replies.closed)
        except StoreTrouble:
            raise GivenUp(STOPPING) from None

    async def _told(self) -> bool:
        """Waits for news; False if none will come. A beat cuts short only what can lose nothing."""
        missed = 0
        while missed < GIVE_UP_BEATS:
            try:
                return bool(await with_timeout(self.listener.wait(), self._replies.beat))
            except CallTimeout:
                with suppress(StoreTrouble):
                    missed = 0 if await self._is_there() else missed + 1
                entry = await self._look()
                if entry is None or entry.value != _OPEN:  # nobody has told us
                    return True
        raise GivenUp(LEFT)


def _key(session: str, id: str) -> str:
    return f"question/{session}/{id}"


def _lifetime(timeout: float) -> float:
    """Longer than anybody waits: whoever asked deletes it, unless its process dies."""
    return min(timeout * EXTENSIONS + UNREAD_SECONDS, MAX_TTL)


# ── visits to URLs ──


class SharedVisits(Protocol):
    """Visits of clients that any worker has asked."""

    async def visit_began(self, session: str, id: str) -> None: ...

    async def visit_ended(self, id: str) -> str | None:
        """The session that waits to be told, if one does: from now on it does not."""

    async def tell_session(self, id: str, message: bytes) -> None: ...


class Elicitations:
    """Visits to URLs that clients were asked for, so that they can be told when the user is done there."""

    def __init__(self) -> None:
        self.far: SharedVisits | None = None  # where the clients of other workers are reached
        self._visits: dict[str, OrderedDict[str, BackChannel]] = {}  # by session and id, the oldest first
        self._sessions: dict[str, set[str]] = {}  # by id

    def began(self, session: str, id: str, client: BackChannel) -> None:
        visits = self._visits.setdefault(session, OrderedDict())
        if len(visits) >= MAX_VISITS and id not in visits:
            self.ended(session, next(iter(visits)))
        self._visits.setdefault(session, visits)[id] = client
        self._sessions.setdefault(id, set()).add(session)

    def ended(self, session: str, id: str) -> BackChannel | None:
        """There is nothing to be told any more."""
        visits = self._visits.get(session)
        if visits is None or id not in visits:
            return None
        client = visits.pop(id)
        if not visits:
            del self._visits[session]
        self._sessions[id].remove(session)
        if not self._sessions[id]:
            del self._sessions[id]
        return client

    def left(self, session: str) -> None:
        """The session has ended."""
        for id in tuple(self._visits.get(session, ())):
            self.ended(session, id)

    async def completed(self, id: str) -> bool:
        """Tell the clients that were asked with this id, and no others. False if there is none."""
        sessions = sorted(self._sessions.get(id, ()))
        clients = {each: client for each in sessions if (client := self.ended(each, id)) is not None}
        params: dict[str, Any] = {"elicitationId": id}
        message = jsonrpc.notification("notifications/elicitation/complete", jsonrpc.encode(params))
        if self.far is not None:
            session = await self.far.visit_ended(id)
            if session is None:  # another worker has told it
                return False
            if session not in clients:
                await self.far.tell_session(session, message)
                return True
        for client in clients.values():
            await client.tell(message)
        return bool(clients)
