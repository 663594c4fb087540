"""Requests of ours to a client, up to 2025-11-25: one goes out, and its answer comes back or is waited for in vain.

`ask` sends and waits. The answer arrives at a `Mailbox`. On a pipe those are kept with the connection (`PipeReplies`);
over HTTP they lie in the state backend (`SharedReplies`), where whichever worker gets the answer finds them.
"""

import asyncio
import itertools
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol

import msgspec
from msgspec import Raw, UnsetType

from dovetail.engine.exchange import Exchange
from dovetail.engine.limits import CallTimeout, with_timeout
from dovetail.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    AnswerTimeout,
    Busy,
    QuestionFailed,
)
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import UNREADABLE, Envelope, encode
from dovetail.protocol.methods import RequestId
from dovetail.state.base import MAX_TTL, Conflict, Entry, StateBackend, StoreTrouble
from dovetail.state.records import Codec

Send = Callable[[bytes], Coroutine[Any, Any, None]]
IsThere = Callable[[], Awaitable[bool]]  # whether the client can still be reached

MAX_OPEN = 100  # questions to one client that wait for an answer
MAX_SHARED = 10_000  # to all clients of one process, over HTTP
EXTENSIONS = 3  # times the timeout: a client that reports progress gets so much in all, and no more
CALL_OFF_SECONDS = 1.0  # for a client to take the news that it need not answer
UNREAD_SECONDS = 60.0  # an answer is read at once, unless whoever asked is gone
BEAT_SECONDS = 15.0  # between two looks whether a client over HTTP is still there
GIVE_UP_BEATS = 4  # in a row without it: then it has gone
AGAIN_SECONDS = 0.5  # between two looks into a store that is out of reach
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

_OWN_ID = r"dovetail-[0-9a-f]{16}"
_OPEN = b""  # the value of a question that has no answer yet


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


class Mailbox(Protocol):
    """Where the answer to one question arrives."""

    @property
    def id(self) -> str: ...

    async def news(self) -> Reply | None:
        """Waits for the answer; None is a sign of life before that. Raises QuestionFailed if none can come."""


async def ask(
    opening: AbstractAsyncContextManager[Mailbox], send: Send, method: str, params: bytes, timeout: float
) -> Raw:
    """Put a question and wait for its result. Whatever ends the waiting, the client is told if it need not answer.

    `send` raises QuestionFailed if there is no way to the client.
    """
    async with opening as box:
        request = jsonrpc.request(box.id, method, _with_token(params, box.id))
        try:
            reply = await _reply(box, send, request, timeout)
        except asyncio.CancelledError:
            await _call_off(send, box.id, "The call that asked has ended")
            raise
        except GivenUp as failure:
            await _call_off(send, box.id, str(failure))
            raise
        if reply is None:
            await _call_off(send, box.id, "No answer came in time")
            raise AnswerTimeout(f"The client did not answer {method} within {timeout:g} s")
        return reply.result(method)


async def _reply(box: Mailbox, send: Send, request: bytes, timeout: float) -> Reply | None:
    """None if none came in time; progress makes the time begin anew, but not for ever."""
    loop = asyncio.get_running_loop()
    last = loop.time() + timeout * EXTENSIONS
    try:
        async with asyncio.timeout(timeout) as limit:
            await send(request)
            while (reply := await box.news()) is None:
                limit.reschedule(min(loop.time() + timeout, last))
            return reply
    except TimeoutError:
        if not limit.expired():  # somebody else's
            raise
        return None


async def _call_off(send: Send, id: str, reason: str) -> None:
    """The client need not answer; if it can't be told, nobody waits for that.

    Questions often end together: the first that fails may end the others while they are at this.
    """
    params = encode({"requestId": id, "reason": reason})
    telling = asyncio.get_running_loop().create_task(
        _tell(send, jsonrpc.notification("notifications/cancelled", params))
    )
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


def _refuse_more(running: int) -> None:
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
    async def open(self) -> AsyncIterator[Mailbox]:
        if self._closed:
            raise QuestionFailed(GONE)
        _refuse_more(len(self._boxes))
        box = _PipeBox(f"dovetail-{next(self._numbers)}")
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
    __slots__ = ("id", "lost", "reply", "told")

    def __init__(self, id: str) -> None:
        self.id = id
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
    async def open(self, session: str, timeout: float, is_there: IsThere = _always) -> AsyncIterator[Mailbox]:
        """`is_there` is asked every beat; a client that is not there for some of them is given up."""
        self._refuse_more(session)
        box = _SharedBox(self, session, is_there)
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
        _refuse_more(self._open[session])
        if len(self._boxes) >= MAX_SHARED:
            raise Busy("The server waits for the answers of too many clients; try again later", http_status=503)

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
    __slots__ = ("_is_there", "_replies", "id", "key", "listener")

    def __init__(self, replies: SharedReplies, session: str, is_there: IsThere) -> None:
        self._replies = replies
        self._is_there = is_there
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
        while True:
            try:
                return await self._replies.state.get(self.key)
            except StoreTrouble:
                if self._replies.closed:
                    raise GivenUp(STOPPING) from None
                await asyncio.sleep(AGAIN_SECONDS)

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


_codec: Codec[Reply] = Codec(Reply, "answer")


def _key(session: str, id: str) -> str:
    return f"question/{session}/{id}"


def _lifetime(timeout: float) -> float:
    """Longer than anybody waits: whoever asked deletes it, unless its process dies."""
    return min(timeout * EXTENSIONS + UNREAD_SECONDS, MAX_TTL)
