"""Calls over HTTP, a request or a batch: how each is awaited, kept alive, cancelled and answered.

Up to 2025-11-25 a call outlives its connection, and its client may cancel it by another one, at any worker.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from dovetail.engine.call_tool import EXITS
from dovetail.engine.concurrency import resume_with_timer, run_with_timer
from dovetail.engine.dispatch import handle
from dovetail.engine.engine import Engine
from dovetail.engine.request_context import RequestContext
from dovetail.engine.sessions import SessionHandle, topic
from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, ProtocolError, RateLimited, Unauthorized
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.methods import RequestId
from dovetail.state.base import Listener, StateBackend, StoreUnavailable
from dovetail.transports.http.asgi import Receive
from dovetail.transports.http.request import look_after
from dovetail.transports.http.response import Answer, Response

KEEPALIVE_AFTER = 0.05  # seconds; only a call that takes longer has its connection looked after

log = logging.getLogger("dovetail")

Finish = Callable[["HttpCall", bytes, int], Awaitable[None]]
Part = Coroutine[Any, Any, bytes | None]  # one message of a batch, and its answer if it has one


def outcome_of(failure: BaseException, id: RequestId, request: Request, response: Response | None) -> tuple[bytes, int]:
    """The error that a client gets for a failure, and the status, which counts if no response has begun.

    `response`: None if the calls of a batch share it, so that its head says nothing of this failure.
    """
    if not isinstance(failure, ProtocolError):
        log.error("%s could not be answered properly", request.method, exc_info=failure)
        failure = ProtocolError("Internal error", code=INTERNAL_ERROR)
    says_status = not request.revision.handshake or isinstance(failure, (RateLimited, Unauthorized))
    if response is not None:
        response.add_headers(response.headers_of(failure))
    return jsonrpc.error(id, failure), failure.http_status if says_status else 200


class Posted(msgspec.Struct, eq=False):
    """What one POST asks for. It is the timer beside its own work: if that takes long, its connection is kept alive."""

    answer: Answer
    receive: Receive
    session: SessionHandle | None
    beat_seconds: float
    timer: asyncio.TimerHandle | None = None
    over: asyncio.Future[None] | None = None

    def begin(self) -> None:
        self.timer = asyncio.get_running_loop().call_later(KEEPALIVE_AFTER, self._keep_alive)

    def translate_cancellation(self, cancelled: asyncio.CancelledError) -> BaseException:
        return cancelled

    def end(self) -> None:
        # Not by cancelling: it may be in the middle of sending something.
        if self.timer is not None:
            self.timer.cancel()
        if self.over is not None and not self.over.done():
            self.over.set_result(None)

    def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        self.over = loop.create_future()
        loop.create_task(self._look_after(self.over)).add_done_callback(_report)

    async def _look_after(self, over: asyncio.Future[None]) -> None:
        await self.outlived()
        await look_after(self.receive, over, self.beat_seconds, self.beat, self.client_left)

    async def outlived(self) -> None:
        """It takes its time: a client that can come back is told so."""
        await self.answer.outlived()

    async def beat(self) -> None:
        """The session stays alive, and so does the connection if it carries a stream; one that takes nothing is found.

        That the session is gone ends no call.
        """
        if self.session is not None:
            with suppress(StoreUnavailable):
                await self.session.touch()
        await self.answer.keep_alive()
        if self.answer.response.ended:  # or its stream goes on by another connection, which does no harm
            self.client_left()

    def client_left(self) -> None:
        self.answer.response.abandon()


class HttpCall(Posted, eq=False, kw_only=True):
    """A request in flight. Once it is closed, nothing more is sent for it."""

    context: RequestContext
    id: RequestId  # also if a middleware changes the request
    finish: Finish | None = None  # sends the answer, if that is more than just sending it
    batched: bool = False  # a batch has it, looks after it and sends its answer
    open: bool = True
    failed: bool = False  # its answer is an error
    left: bool = False  # the client went away, and that means that it wants no answer
    settle: Callable[[], Awaitable[None]] | None = None  # awaited before the answer: its changes must be in their log
    takes_time: "Callable[[HttpCall], Awaitable[None]] | None" = None  # called if it does
    leave: "Callable[[HttpCall], None] | None" = None  # called when it is over
    verdict: ProtocolError | None = None  # why the server has stopped it
    task: asyncio.Task[Any] | None = None  # that serves it
    cancelled_before: int = 0  # how often its task was, when that began to serve it

    @property
    def request(self) -> Request:
        return self.context.request

    async def emit(self, message: bytes) -> None:
        if self.open:
            await self.answer.carry(message)

    def close(self) -> None:
        self.open = False
        if self.context.back is not None:
            self.context.back.close()

    def cancel(self) -> None:
        """The client does not want the answer any more."""
        if self.open:
            self.close()
            self.context.cancelled()
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
        await self.answer.outlived()
        if self.takes_time is not None:
            await self.takes_time(self)

    def client_left(self) -> None:
        self.answer.response.abandon()
        if self.request.revision.disconnect_cancels:
            self.left = True
            self.cancel()

    # ── serving ──

    async def serve(self, engine: Engine, begun: Awaitable[bytes] | None = None) -> bytes | None:
        """In its own task or in that of the HTTP request. Gives the answer to a batch; None if there is none.

        `begun`: what is left of the work, if it was begun before.
        """
        outcome: tuple[bytes, int] | None = None
        self.task = task = asyncio.current_task()
        assert task is not None
        self.cancelled_before = task.cancelling()
        try:
            try:
                if self.open:  # the batch that it is in may have cancelled it already
                    outcome = jsonrpc.result(self.id, await (begun or self._begin(engine))), 200
            except asyncio.CancelledError:
                if self.open:  # it is the task that is to end, not this call alone
                    self.close()
                    self.answer.response.abandon()
                    raise
            except (Exception, *EXITS) as failure:
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
            self.context.emit = to_nobody  # or a circle is left for the garbage collector
            if self.leave is not None:
                self.leave(self)
            events = self.answer.events
            if events is not None and events.is_unfinished and not self.batched:
                await self.answer.end()  # something has ended it in an unusual way
        return None

    def _begin(self, engine: Engine) -> Awaitable[bytes]:
        work = handle(engine, self.context)
        return work if self.batched else run_with_timer(work, lambda: self)

    def go_on(self, work: Coroutine[Any, Any, bytes], waited_for: Any) -> Awaitable[bytes]:
        """The rest of the work, after its first step."""
        return resume_with_timer(work, waited_for, self)

    def _end_cancellation(self) -> None:
        """It was cancelled, and that is over; raises if the task was cancelled for another reason too."""
        task = self.task
        if task is not None and task.cancelling() > self.cancelled_before and task.uncancel() > self.cancelled_before:
            raise asyncio.CancelledError

    async def _send(self, outcome: tuple[bytes, int] | None) -> None:
        if outcome is None:
            if not self.left:
                await self.answer.finish_silently()
        elif self.finish is not None:
            await self.finish(self, *outcome)
        else:
            await self.answer.finish(*outcome)

    def _failure(self, failure: BaseException) -> tuple[bytes, int]:
        self.failed = True
        return outcome_of(failure, self.id, self.request, None if self.batched else self.answer.response)


class HttpBatch(Posted, eq=False):
    """Requests that share one answer, which goes out when the last of them is done."""

    calls: list[HttpCall] = []
    is_answering: bool = False

    async def outlived(self) -> None:
        await self.answer.outlived()
        for call in self.calls:
            if call.takes_time is not None:
                await call.takes_time(call)

    def stop(self) -> None:
        """Its calls are stopped one by one; what is left is an answer that its client does not take."""
        if self.is_answering:
            self.answer.response.abandon()

    async def serve(self, parts: Sequence[Part]) -> None:
        """All answers together; those that were cancelled have none."""
        try:
            outcomes = await run_with_timer(_all_outcomes(parts), lambda: self)
            self.is_answering = True
            answers = [each for each in outcomes if isinstance(each, bytes)]
            if answers:
                await self.answer.finish(jsonrpc.batch(answers), 200)
            else:
                await self.answer.finish_silently()
        finally:
            events = self.answer.events
            if events is not None and events.is_unfinished:
                await self.answer.end()


async def to_nobody(message: bytes) -> None: ...


async def _all_outcomes(parts: Sequence[Part]) -> list[bytes | BaseException | None]:
    outcomes = await asyncio.gather(*parts, return_exceptions=True)
    for failure in outcomes:
        if isinstance(failure, BaseException) and not isinstance(failure, asyncio.CancelledError):
            log.error("a part of a batch failed", exc_info=failure)
    return outcomes


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (failure := task.exception()) is not None:
        log.error("looking after a call failed", exc_info=failure)


# ── calls that outlive their connection ──


def detached(posted: Posted, work: Coroutine[Any, Any, object]) -> Awaitable[object]:
    """All of the work, also if its connection ends. In our own HTTP the task of a request goes on then."""
    return work if posted.answer.response.whole is not None else apart(posted, work)


async def apart(posted: Posted, work: Coroutine[Any, Any, object]) -> None:
    """In a task of its own: the host may end that of the HTTP request when the client leaves."""
    loop = asyncio.get_running_loop()
    over = posted.answer.response.over = loop.create_future()
    loop.create_task(work).add_done_callback(partial(_pass_on, over))
    try:
        await over
    except asyncio.CancelledError:
        posted.client_left()
        raise


def _pass_on(over: asyncio.Future[None], task: asyncio.Task[object]) -> None:
    """The end of a call, to the HTTP request if that still waits."""
    failure = None if task.cancelled() else task.exception()
    if over.done():
        if failure is not None:
            log.error("a call failed after its request had ended", exc_info=failure)
    elif failure is not None:
        over.set_exception(failure)
    else:
        over.set_result(None)


# ── calls of sessions, by session and id ──


class SessionCalls:
    """Those under way at this worker.

    One that takes its time is known to the other workers too: there the client may cancel it, or end its session. A
    call that is over sooner need not be.
    """

    def __init__(self, state: StateBackend) -> None:
        self._state = state
        self.here: dict[tuple[str, RequestId], HttpCall] = {}
        self._known: dict[str, set[HttpCall]] = {}  # to other workers, by the topics of their sessions
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._state.shared:
            self._listener = self._state.listen([])
            self._task = asyncio.get_running_loop().create_task(self._listen(self._listener))

    async def stop(self) -> None:
        if self._listener is not None and self._task is not None:
            self._listener.close()
            await asyncio.wait([self._task])

    def refuse_twice(self, session: str, id: RequestId) -> None:
        if (session, id) in self.here:
            raise ProtocolError("A request with this id is still in flight", code=INVALID_REQUEST)

    def add(self, session: str, call: HttpCall) -> None:
        self.here[session, call.id] = call
        call.takes_time = self._make_known

    def remove(self, call: HttpCall) -> None:
        assert call.session is not None
        session = call.session.record.id
        self.here.pop((session, call.id), None)
        if self._listener is None:
            return
        calls = self._known.get(topic(session))
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._known[topic(session)]
                self._listener.remove(topic(session))

    async def cancel(self, session: str, id: RequestId) -> None:
        """The client wants no answer to it; `initialize` can't be cancelled. A client uses an id once in a session."""
        call = self.here.get((session, id))
        if call is not None:
            if call.request.method != "initialize":
                call.cancel()
        elif self._listener is not None:  # other workers may have it
            await self._state.put(_note(session, id), b"", ttl=30.0)  # for calls that they do not know yet
            await self._state.publish(topic(session))

    def end(self, session: str) -> None:
        """The session has ended, and other workers have heard of that."""
        for (owner, _), call in tuple(self.here.items()):
            if owner == session:
                call.cancel()

    async def _make_known(self, call: HttpCall) -> None:
        """From now on it can be reached. Its session may have ended just before it was admitted."""
        if call.session is None or not call.open:
            return
        if self._listener is not None:
            name = topic(call.session.record.id)
            self._known.setdefault(name, set()).add(call)
            self._listener.add(name)
        with suppress(StoreUnavailable):
            await self._cancel_unwanted({call})

    async def _listen(self, listener: Listener) -> None:
        while told := await listener.wait():
            for name in told:
                try:
                    await self._cancel_unwanted(self._known.get(name, set()))
                except Exception as failure:  # a call that goes on for too long does no harm
                    log.debug("whether calls are still wanted is not known: %s", failure)

    async def _cancel_unwanted(self, calls: set[HttpCall]) -> None:
        for call in tuple(calls):
            assert call.session is not None
            note = _note(call.session.record.id, call.id)
            if await call.session.has_ended() or await self._state.delete(note):
                call.cancel()


def _note(session: str, id: RequestId) -> str:
    return f"cancel/{session}/{hashlib.sha256(jsonrpc.encode(id)).hexdigest()[:32]}"
