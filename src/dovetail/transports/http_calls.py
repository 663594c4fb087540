"""What is being served over HTTP, a request or a batch: how it is awaited, looked after, cancelled and answered."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec

from dovetail.engine.client_requests import CALL_IS_OVER, PendingRequest
from dovetail.engine.concurrency import beside, go_on_beside
from dovetail.engine.core import Engine
from dovetail.engine.dispatch import handle
from dovetail.engine.exchange import Exchange
from dovetail.engine.sessions import HeldSession
from dovetail.errors import INTERNAL_ERROR, ProtocolError, QuestionFailed, RateLimited, Unauthorized
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.methods import RequestId
from dovetail.state.base import StoreTrouble
from dovetail.transports.answers import Answer
from dovetail.transports.asgi import Receive
from dovetail.transports.attending import Attendant
from dovetail.transports.response import Response
from dovetail.transports.server_messages import ServerMessages

log = logging.getLogger("dovetail")

Finish = Callable[["HttpCall", bytes, int], Awaitable[None]]
Part = Coroutine[Any, Any, bytes | None]  # one message of a batch, and its answer if it has one


def outcome_of(failure: BaseException, id: RequestId, request: Request, response: Response | None) -> tuple[bytes, int]:
    """What a client is told of a failure, and the status, which says something where nothing has begun.

    `response`: None if others share it, so that its head says nothing of this failure.
    """
    if not isinstance(failure, ProtocolError):
        log.error("%s could not be answered properly", request.method, exc_info=failure)
        failure = ProtocolError("Internal error", code=INTERNAL_ERROR)
    says_status = not request.revision.handshake or isinstance(failure, (RateLimited, Unauthorized))
    if response is not None:
        response.add_headers(response.headers_of(failure))
    return jsonrpc.error(id, failure), failure.http_status if says_status else 200


class Posted(msgspec.Struct, eq=False):
    """What one POST asks for. If it takes its time, its connection and its session are looked after."""

    answer: Answer
    receive: Receive
    session: HeldSession | None
    beat_seconds: float

    def client_left(self) -> None:
        self.answer.response.abandon()

    def _attendant(self) -> Attendant:
        """Called when it waits for something."""
        return Attendant(self, self.receive, self.beat_seconds)

    async def outlived(self) -> None:
        """A client that can come back is told so."""
        await self.answer.outlived()

    async def beat(self) -> None:
        """Every so often: the session stays alive, and so does the connection if it carries a stream. It is also how
        we learn that the connection takes nothing any more. That the session is gone ends no call.
        """
        if self.session is not None:
            with suppress(StoreTrouble):
                await self.session.use()
        await self.answer.keep_alive()
        if self.answer.response.ended:  # or its stream goes on by another connection, which does no harm
            self.client_left()


class HttpCall(Posted, eq=False):
    """A request in flight. Once it is closed, nothing more is sent for it."""

    exchange: Exchange
    id: RequestId  # whatever a middleware makes of the request
    end: Finish | None = None  # sends the answer, if that is more than just sending it
    batched: bool = False  # others share the answer: whoever has them all looks after them and sends it
    open: bool = True
    failed: bool = False  # its answer is an error
    left: bool = False  # the client went away, and that means that it wants no answer
    settle: Callable[[], Awaitable[None]] | None = None  # what has to happen before its answer goes out
    takes_time: "Callable[[HttpCall], Awaitable[None]] | None" = None  # told if it does
    leave: "Callable[[HttpCall], None] | None" = None  # told when it is over
    verdict: ProtocolError | None = None  # why the server has stopped it
    task: asyncio.Task[Any] | None = None  # from its first wait on: before that nobody can cancel it
    cancelled_before: int = 0  # how often its task was, when that began to wait

    @classmethod
    def of(
        cls,
        id: RequestId,
        exchange: Exchange,
        answer: Answer,
        receive: Receive,
        session: HeldSession | None,
        beat_seconds: float,
    ) -> "HttpCall":
        call = cls(answer, receive, session, beat_seconds, exchange, id)
        exchange.emit = call.emit
        return call

    @property
    def request(self) -> Request:
        return self.exchange.request

    async def emit(self, message: bytes) -> None:
        if self.open:
            await self.answer.carry(message)

    def close(self) -> None:
        self.open = False
        if self.exchange.back is not None:
            self.exchange.back.close()

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        if self.open:
            self.close()
            self.exchange.cancelled()
            if self.task is not None:
                self.task.cancel()

    def stop(self) -> None:
        """The server can't go on with it; the client is told."""
        if self.open:
            self.verdict = ProtocolError("The server is shutting down and has stopped this call", http_status=503)
            self.cancel()
        else:  # its answer is on the way to a client that takes nothing
            self.answer.response.abandon()

    async def outlived(self) -> None:
        await super().outlived()
        if self.takes_time is not None:
            await self.takes_time(self)

    def client_left(self) -> None:
        super().client_left()
        if self.request.revision.disconnect_cancels:
            self.left = True
            self.cancel()

    # ── serving ──

    async def serve(self, engine: Engine, begun: Awaitable[bytes] | None = None) -> bytes | None:
        """In its own task or in that of the HTTP request. Gives the answer if others send it; None if there is none.

        `begun`: what is left of the work, if somebody has begun it.
        """
        outcome: tuple[bytes, int] | None = None
        try:
            try:
                if self.open:  # the batch that it is in may have cancelled it already
                    outcome = jsonrpc.result(self.id, await (begun or self._begin(engine))), 200
            except asyncio.CancelledError:
                if self.open:  # somebody else wants this task to end, and knows why
                    self.close()
                    self.answer.response.abandon()
                    raise
            except BaseException as failure:
                outcome = self._failure(failure)
            if not self.open:
                self._end_cancellation()
                outcome = None if self.verdict is None else self._failure(self.verdict)
            if self.settle is not None:
                await self.settle()
            self.close()
            if self.batched:
                return None if outcome is None else outcome[0]
            await self._send(outcome)
        finally:
            self.exchange.emit = to_nobody  # or a circle is left for the garbage collector
            if self.leave is not None:
                self.leave(self)
            if self.session is not None and not self.batched and self.answer.is_unfinished:
                await self.answer.end()  # something has ended it in an unusual way
        return None

    def _begin(self, engine: Engine) -> Awaitable[bytes]:
        work = handle(engine, self.exchange)
        if not self.batched:
            return beside(work, self._attendant)
        self._note_task()
        return work

    def go_on(self, work: Coroutine[Any, Any, bytes], waited_for: Any) -> Awaitable[bytes]:
        """The rest of the work, after its first step."""
        return go_on_beside(work, waited_for, self._attendant())

    def _end_cancellation(self) -> None:
        """It was cancelled, and that is over; raises if somebody else as well has cancelled the task."""
        task = self.task
        if task is not None and task.cancelling() > self.cancelled_before and task.uncancel() > self.cancelled_before:
            raise asyncio.CancelledError

    def _send(self, outcome: tuple[bytes, int] | None) -> Awaitable[None]:
        if outcome is None:
            return _nothing() if self.left else self.answer.finish_silently()
        if self.end is not None:
            return self.end(self, *outcome)
        return self.answer.finish(*outcome)

    def _failure(self, failure: BaseException) -> tuple[bytes, int]:
        """While the client waits, it gets an answer."""
        if not isinstance(failure, ProtocolError) and not self._is_running():
            raise failure
        self.failed = True
        return outcome_of(failure, self.id, self.request, None if self.batched else self.answer.response)

    def _note_task(self) -> None:
        self.task = asyncio.current_task()
        assert self.task is not None
        self.cancelled_before = self.task.cancelling()

    def _attendant(self) -> Attendant:
        self._note_task()
        return super()._attendant()

    def _is_running(self) -> bool:
        """Whether this is asked from its own task; what is left when a loop closes is torn down by others."""
        try:
            return self.task is None or asyncio.current_task() is self.task
        except RuntimeError:  # no loop is running
            return False


class SessionBack(msgspec.Struct, eq=False):
    """The way from a call to its client; what is told goes there also when the call is over."""

    _messages: ServerMessages
    _session: HeldSession
    _answer: Answer | None  # as long as the call is open

    def pending(self, method: str, timeout: float) -> AbstractAsyncContextManager[PendingRequest]:
        if self._answer is None:
            raise QuestionFailed(CALL_IS_OVER)
        return self._messages.pending(self._session, self._answer, method, timeout)

    async def tell(self, message: bytes) -> None:
        if self._answer is None or not await self._answer.carry(message):
            await self._messages.tell(self._session, message)

    def close(self) -> None:
        self._answer = None


class HttpBatch(Posted, eq=False):
    """Requests that share one answer, which goes out when the last of them is done."""

    calls: list[HttpCall] = []
    is_answering: bool = False

    async def outlived(self) -> None:
        await super().outlived()
        for call in self.calls:
            if call.takes_time is not None:
                await call.takes_time(call)

    def stop(self) -> None:
        """Its calls are stopped one by one; what is left is an answer that nobody takes."""
        if self.is_answering:
            self.answer.response.abandon()

    async def serve(self, parts: Sequence[Part]) -> None:
        """All answers together; those that were cancelled have none."""
        try:
            outcomes = await beside(_all_outcomes(parts), self._attendant)
            self.is_answering = True
            answers = [each for each in outcomes if isinstance(each, bytes)]
            if answers:
                await self.answer.finish(jsonrpc.batch(answers), 200)
            else:
                await self.answer.finish_silently()
        finally:
            if self.answer.is_unfinished:
                await self.answer.end()


async def _nothing() -> None: ...


async def to_nobody(message: bytes) -> None: ...


async def _all_outcomes(parts: Sequence[Part]) -> list[bytes | BaseException | None]:
    outcomes = await asyncio.gather(*parts, return_exceptions=True)
    for failure in outcomes:
        if isinstance(failure, BaseException) and not isinstance(failure, asyncio.CancelledError):
            log.error("a part of a batch failed", exc_info=failure)
    return outcomes
