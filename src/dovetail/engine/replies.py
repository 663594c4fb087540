"""Requests of ours to a client, up to 2025-11-25: one goes out, and its answer comes back or is waited for in vain.

`ask` sends and waits. The answer arrives at a `Mailbox`. On a pipe those are kept with the connection (`PipeReplies`);
over HTTP they lie in the state backend (`SharedReplies` in `shared_replies.py`).
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol

import msgspec
from msgspec import Raw, UnsetType

from dovetail.engine.exchange import Exchange
from dovetail.engine.limits import with_timeout
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

Send = Callable[[bytes], Coroutine[Any, Any, None]]

MAX_OPEN = 100  # questions to one client that wait for an answer
EXTENSIONS = 3  # times the timeout: a client that reports progress gets so much in all, and no more
CALL_OFF_SECONDS = 1.0  # for a client to take the news that it need not answer
MAX_REASON = 500  # characters of a client's error message that are passed on

CALL_IS_OVER = "The client can't be asked any more: the call is over"
NOT_READY = "The client can't be asked yet: it has not sent notifications/initialized"
GONE = "The client can't answer any more: its connection has closed"

WORDS = {
    PARSE_ERROR: "it could not read the question",
    INVALID_REQUEST: "it did not take the question for a request",
    METHOD_NOT_FOUND: "it does not know this method",
    INVALID_PARAMS: "it did not take the question as it was put",
    INTERNAL_ERROR: "something went wrong inside it",
}


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
    async def open(self) -> AsyncIterator[Mailbox]:
        if self._closed:
            raise QuestionFailed(GONE)
        refuse_more(len(self._boxes))
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
