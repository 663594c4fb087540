"""Calls and batches over HTTP: how they are served, kept alive, cancelled and finished.

Up to 2025-11-25 a call outlives its connection, and its client may cancel it on another one, at any worker.
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
from dovetail.engine.concurrency import run_with_timer
from dovetail.engine.dispatch import handle
from dovetail.engine.engine import Engine
from dovetail.engine.request_context import RequestContext
from dovetail.engine.sessions import session_topic
from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, ProtocolError, RateLimited, Unauthorized
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.methods import RequestId
from dovetail.state.base import Listener, StateBackend, StoreUnavailable
from dovetail.transports.http.asgi import Receive
from dovetail.transports.http.request import keep_alive
from dovetail.transports.http.response import HttpResponse, PostResponse

SLOW_AFTER = 0.05  # seconds of waiting; then a call is primed, known to other workers, and its connection kept alive

log = logging.getLogger("dovetail")

Outcome = tuple[bytes, int]  # a JSON-RPC response and its HTTP status
BatchItem = Coroutine[Any, Any, bytes | None]  # serves one message of a batch; gives the response if there is one


def error_outcome(failure: BaseException, id: RequestId, request: Request, response: HttpResponse | None) -> Outcome:
    """The error response to a failed call. `response`: None in a batch, whose calls share the headers."""
    if not isinstance(failure, ProtocolError):
        log.error("%s failed, and its response could not be made", request.method, exc_info=failure)
        failure = ProtocolError("Internal error", code=INTERNAL_ERROR)
    has_status = not request.revision.handshake or isinstance(failure, (RateLimited, Unauthorized))
    if response is not None:
        response.add_headers(response.error_headers(failure))
    return jsonrpc.error(id, failure), failure.http_status if has_status else 200


class PostInFlight(msgspec.Struct, eq=False):
    """One POST that is being served; a `Timer` (see `run_with_timer`) that begins keep-alives if it takes long."""

    response: PostResponse
    receive: Receive
    keep_alive_interval: float
    timer: asyncio.TimerHandle | None = None
    finished: asyncio.Future[None] | None = None  # from the first keep-alive on

    def begin(self) -> None:
        self.timer = asyncio.get_running_loop().call_later(SLOW_AFTER, self._begin_keep_alive)

    def translate_cancellation(self, cancelled: asyncio.CancelledError) -> BaseException:
        return cancelled

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.finished is not None and not self.finished.done():
            self.finished.set_result(None)  # its task is not cancelled: it may be sending a keep-alive

    def _begin_keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        self.finished = loop.create_future()
        loop.create_task(self._keep_alive(self.finished)).add_done_callback(_log_failure)

    async def _keep_alive(self, finished: asyncio.Future[None]) -> None:
        await self.response.prime()
        await self.announce()
        await keep_alive(self.receive, finished, self.keep_alive_interval, self.beat, self.on_disconnect)

    async def announce(self) -> None:
        """Make a call that takes long known to other workers."""

    async def beat(self) -> None:
        """Keep the session and the connection alive; the end of the session ends no call."""
        if (session := self.response.session) is not None:
            with suppress(StoreUnavailable):
                await session.touch()
        await self.response.keep_alive()
        if self.response.http_response.ended:
            self.on_disconnect()

    def on_disconnect(self) -> None:
        self.response.http_response.abandon()


class HttpCall(PostInFlight, eq=False, kw_only=True):
    """One call that is being served. Once it is closed, its function can send nothing more."""

    context: RequestContext
    id: RequestId  # a middleware may change the one in the request
    send_response: "Callable[[HttpCall, bytes, int], Awaitable[None]] | None" = None  # instead of `response.finish`
    batched: bool = False  # its batch sends the response and the keep-alives
    open: bool = True
    failed: bool = False  # its response is an error
    disconnected: bool = False  # its client has disconnected, which has cancelled it
    before_response: Callable[[], Awaitable[None]] | None = None  # flushes the changes that it made to the change log
    on_slow: "Callable[[HttpCall], Awaitable[None]] | None" = None  # if it takes long
    on_done: "Callable[[HttpCall], None] | None" = None
    stop_error: ProtocolError | None = None  # why the server has stopped it
    task: asyncio.Task[Any] | None = None  # that serves it

    async def emit(self, message: bytes) -> None:
        if self.open:
            await self.response.send_message(message)

    def close(self) -> None:
        self.open = False
        if self.context.channel is not None:
            self.context.channel.close()

    def cancel(self) -> None:
        """Cancel the call: the client wants no response any more."""
        if self.open:
            self.close()
            self.context.mark_cancelled()
            if self.task is not None:
                self.task.cancel()

    def stop(self) -> None:
        """Stop the call because the server shuts down: the response is an error."""
        if self.open:
            self.stop_error = ProtocolError("The server is shutting down and has stopped this call", http_status=503)
            self.cancel()
        else:  # its client does not take the response
            self.response.http_response.abandon()

    async def announce(self) -> None:
        if self.on_slow is not None:
            await self.on_slow(self)

    def on_disconnect(self) -> None:
        self.response.http_response.abandon()
        if self.context.request.revision.disconnect_cancels and not self.context.outlives_connection:
            self.disconnected = True
            self.cancel()

    async def serve(self, engine: Engine, rest: Awaitable[bytes] | None = None) -> bytes | None:
        """Run the call, or the `rest` of one that has begun, and send its response; one of a batch returns it."""
        outcome: Outcome | None = None
        self.task = task = asyncio.current_task()
        assert task is not None
        earlier_cancellations = task.cancelling()
        try:
            try:
                if self.open:  # its batch may have cancelled it already
                    outcome = jsonrpc.result(self.id, await (rest or self._begin(engine))), 200
            except asyncio.CancelledError:
                if self.open:  # the task was cancelled, not the call alone
                    self.close()
                    self.response.http_response.abandon()
                    raise
            except (Exception, *EXITS) as failure:
                outcome = self._failure(failure)
            if not self.open:
                if task.cancelling() > earlier_cancellations and task.uncancel() > earlier_cancellations:
                    raise asyncio.CancelledError  # the task was cancelled for another reason too
                outcome = None if self.stop_error is None else self._failure(self.stop_error)
            if self.before_response is not None:
                await self.before_response()
            self.close()
            if self.batched:
                return None if outcome is None else outcome[0]
            await self._send(outcome)
        finally:
            self.context.emit = discard  # breaks a reference cycle
            if self.on_done is not None:
                self.on_done(self)
            events = self.response.events
            if events is not None and events.is_unfinished and not self.batched:
                await self.response.end()
        return None

    def _begin(self, engine: Engine) -> Awaitable[bytes]:
        work = handle(engine, self.context)
        return work if self.batched else run_with_timer(work, lambda: self)

    async def _send(self, outcome: Outcome | None) -> None:
        if outcome is None:
            if not self.disconnected:
                await self.response.finish_cancelled()
        elif self.send_response is not None:
            await self.send_response(self, *outcome)
        else:
            await self.response.finish(*outcome)

    def _failure(self, failure: BaseException) -> Outcome:
        self.failed = True
        response = None if self.batched else self.response.http_response
        return error_outcome(failure, self.id, self.context.request, response)


class HttpBatch(PostInFlight, eq=False):
    """Calls of one batch; their responses are sent together."""

    calls: list[HttpCall] = []
    is_responding: bool = False

    async def announce(self) -> None:
        for call in self.calls:
            await call.announce()

    def stop(self) -> None:
        """Stop the calls one by one; a client that does not take the response is abandoned."""
        if self.is_responding:
            self.response.http_response.abandon()

    async def serve(self, items: Sequence[BatchItem]) -> None:
        try:
            outcomes = await run_with_timer(_gather(items), lambda: self)
            self.is_responding = True
            responses = [each for each in outcomes if isinstance(each, bytes)]  # cancelled calls have none
            if responses:
                await self.response.finish(jsonrpc.batch(responses), 200)
            else:
                await self.response.finish_cancelled()
        finally:
            events = self.response.events
            if events is not None and events.is_unfinished:
                await self.response.end()


async def discard(message: bytes) -> None: ...


async def _gather(items: Sequence[BatchItem]) -> list[bytes | BaseException | None]:
    outcomes = await asyncio.gather(*items, return_exceptions=True)
    for failure in outcomes:
        if isinstance(failure, BaseException) and not isinstance(failure, asyncio.CancelledError):
            log.error("a part of a batch failed", exc_info=failure)
    return outcomes


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (failure := task.exception()) is not None:
        log.error("the keep-alive of a call failed", exc_info=failure)


def detached(post: PostInFlight, work: Coroutine[Any, Any, object]) -> Awaitable[object]:
    """Run work that a disconnect does not cancel. With a fast path, the task of the request goes on anyway."""
    return work if post.response.http_response.fast_path is not None else in_own_task(post, work)


async def in_own_task(post: PostInFlight, work: Coroutine[Any, Any, object]) -> None:
    """Run in another task: the host may cancel that of the HTTP request when the client disconnects."""
    loop = asyncio.get_running_loop()
    finished = post.response.http_response.finished = loop.create_future()
    loop.create_task(work).add_done_callback(partial(_forward_outcome, finished))
    try:
        await finished
    except asyncio.CancelledError:
        post.on_disconnect()
        raise


def _forward_outcome(finished: asyncio.Future[None], task: asyncio.Task[object]) -> None:
    failure = None if task.cancelled() else task.exception()
    if finished.done():
        if failure is not None:
            log.error("a call failed after its request had ended", exc_info=failure)
    elif failure is not None:
        finished.set_exception(failure)
    else:
        finished.set_result(None)


class RunningCalls:
    """Calls of sessions at this worker. Other workers know of those that take long, so that clients can cancel them."""

    def __init__(self, state: StateBackend) -> None:
        self._state = state
        self.by_id: dict[tuple[str, RequestId], HttpCall] = {}  # and by session
        self._announced: dict[str, set[HttpCall]] = {}  # to other workers, by the topics of their sessions
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

    def refuse_duplicate(self, session_id: str, id: RequestId) -> None:
        if (session_id, id) in self.by_id:
            raise ProtocolError("A request with this id is still in flight", code=INVALID_REQUEST)

    def add(self, session_id: str, call: HttpCall) -> None:
        self.by_id[session_id, call.id] = call
        call.on_slow = self._announce

    def remove(self, call: HttpCall) -> None:
        assert call.response.session is not None
        session_id = call.response.session.record.id
        self.by_id.pop((session_id, call.id), None)
        if self._listener is None:
            return
        calls = self._announced.get(session_topic(session_id))
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._announced[session_topic(session_id)]
                self._listener.remove(session_topic(session_id))

    async def cancel(self, session_id: str, id: RequestId) -> None:
        """Cancel the call that a client's `notifications/cancelled` names; `initialize` can't be cancelled."""
        call = self.by_id.get((session_id, id))
        if call is not None:
            if call.context.request.method != "initialize":
                call.cancel()
        elif self._listener is not None:  # another worker may run it, or begin it later
            await self._state.put(_cancel_key(session_id, id), b"", ttl=30.0)
            await self._state.publish(session_topic(session_id))

    def cancel_session(self, session_id: str) -> None:
        """Cancel the calls of a session that has ended; the session itself notifies other workers."""
        for (owner, _), call in tuple(self.by_id.items()):
            if owner == session_id:
                call.cancel()

    async def _announce(self, call: HttpCall) -> None:
        """Listen for a cancellation by another worker, and check whether there was one before."""
        if (session := call.response.session) is None or not call.open:
            return
        if self._listener is not None:
            name = session_topic(session.record.id)
            self._announced.setdefault(name, set()).add(call)
            self._listener.add(name)
        with suppress(StoreUnavailable):
            await self._cancel_unwanted({call})

    async def _listen(self, listener: Listener) -> None:
        while topics := await listener.wait():
            for name in topics:
                try:
                    await self._cancel_unwanted(self._announced.get(name, set()))
                except Exception as failure:  # the calls go on, which does no harm
                    log.debug("cancellations by other workers can't be read: %s", failure)

    async def _cancel_unwanted(self, calls: set[HttpCall]) -> None:
        for call in tuple(calls):
            session = call.response.session
            assert session is not None
            key = _cancel_key(session.record.id, call.id)
            if await session.has_ended() or await self._state.delete(key):
                call.cancel()


def _cancel_key(session_id: str, id: RequestId) -> str:
    return f"cancel/{session_id}/{hashlib.sha256(jsonrpc.encode(id)).hexdigest()[:32]}"
