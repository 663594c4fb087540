"""A duplex connection to one client, for requests of all revisions: stdio, HTTP+SSE and the in-process client.

A transport feeds it lines without their newline and gives it a `Pipe` to write to.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dovetail import engine as lazy
from dovetail.engine.dispatch import handle
from dovetail.engine.engine import Engine
from dovetail.engine.handlers import change_notification
from dovetail.engine.request_context import RequestContext
from dovetail.engine.subscriptions import LIST_KINDS, Subscription
from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, Busy, ProtocolError, QuestionFailed
from dovetail.protocol import inbound, jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.jsonrpc import BadMessage, Envelope
from dovetail.protocol.methods import InitializeParams, RequestId
from dovetail.protocol.session import Session

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.engine.client_requests import PendingRequest, PendingRequests

MAX_IN_FLIGHT = 10_000
MAX_LISTENS = 1_000
SUBSCRIBING = frozenset({"subscriptions/listen", "resources/subscribe"})
SETTLE_SECONDS = 1.0  # how long cancelled calls get to clean up

log = logging.getLogger("dovetail")


class Pipe(Protocol):
    """Where a connection writes to."""

    def write(self, message: bytes) -> None:
        """Send one message; never blocks."""

    async def drain(self) -> None:
        """Wait while the other side reads too slowly."""


class Call(msgspec.Struct, eq=False):
    """One request in flight, and its way back to the client. Once it is closed, nothing more is sent for it."""

    connection: "Connection"
    open: bool = True
    context: RequestContext | None = None
    task: "asyncio.Task[Any] | None" = None  # from its first step on

    async def emit(self, message: bytes) -> None:
        if self.open:
            await self.connection.send(message)

    def pending(self, method: str, timeout: float) -> "AbstractAsyncContextManager[PendingRequest]":  # noqa: ARG002
        connection = self.connection
        if not self.open:
            raise QuestionFailed(lazy.client_requests.CALL_IS_OVER)
        if connection.session is None or not connection.session.initialized:
            raise QuestionFailed(lazy.client_requests.NOT_READY)
        return connection.requests().open("", timeout, connection.send)

    async def tell(self, message: bytes) -> None:
        if not self.connection.closed:
            await self.connection.send(message)

    def cancel(self) -> None:
        """Stop it, or see to it that it never begins: its client does not wait any more."""
        self.open = False
        if self.context is not None:
            self.context.cancelled()
        if self.task is not None:
            self.task.cancel()
        else:
            self.context = None

    def close(self) -> None:
        """What is kept of it, to tell the client something later, does not hold the request."""
        self.open = False
        self.context = self.task = None


BatchAnswer = bytes | asyncio.Task[bytes | None]


def _is_running(task: "asyncio.Task[Any] | None") -> bool:
    """Whether this is asked from that task; what is left when a loop closes is torn down by others."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no loop is running
        return False


def _outcome(task: asyncio.Task[bytes | None]) -> bytes | None:
    return None if task.cancelled() or task.exception() is not None else task.result()


class Connection:
    """Everything that belongs to one pipe: its session, if there was a handshake, and its calls in flight."""

    def __init__(
        self,
        engine: Engine,
        pipe: Pipe,
        *,
        handshake_only: bool = False,
        principal: "Principal | None" = None,
        locate: Callable[[], str | None] | None = None,
        in_process: bool = False,
    ) -> None:
        self.engine = engine
        self.pipe = pipe
        self._handshake_only = handshake_only  # HTTP+SSE is older than requests that need no session
        self._principal = principal  # who is at the other end, where that is known
        self._locate = locate  # and where that is
        self._in_process = in_process
        self.session: Session | None = None
        self.greeted = asyncio.Event()  # the client has made a first good request
        self._loop = asyncio.get_running_loop()
        self._taken: list[tuple[Call, Context]] = []  # requests that have not begun
        self._calls: dict[RequestId, Call] = {}
        self._others: set[asyncio.Task[Any]] = set()  # batches, and calls that were cancelled but still clean up
        self._subscription: Subscription | None = None
        self._pump: asyncio.Task[None] | None = None
        self._is_closing = self.closed = False
        self._requests: PendingRequests | None = None  # to the client, from the first one on

    # ── lines in ──

    def feed(self, line: bytes | bytearray | memoryview) -> None:
        """Take one line; a request begins when the loop turns."""
        self.take(line)
        if len(self._taken) == 1:
            self._loop.call_soon(self.begin)

    def begin(self) -> None:
        """Serve the requests that were taken: in their order, each until it waits for something."""
        taken, self._taken = self._taken, []
        for call, context in taken:
            self._begin_task(self._serve(call, self.pipe.write), context)

    if sys.version_info >= (3, 12):

        def _begin_task(self, work: Coroutine[Any, Any, None], context: Context) -> None:
            """At once: a call that never waits then costs no turn of the loop."""
            asyncio.Task(work, loop=self._loop, context=context, eager_start=True)

    else:

        def _begin_task(self, work: Coroutine[Any, Any, None], context: Context) -> None:
            self._loop.create_task(work, context=context)

    def take(self, line: bytes | bytearray | memoryview) -> None:
        """Take one line; a request begins with `begin`. Never raises, whatever it holds."""
        try:
            message = jsonrpc.decode(line)
        except BadMessage as bad:
            self._refuse(bad.id, bad)
            return
        if isinstance(message, list):
            self._feed_batch(message)
        elif message.is_request:
            try:
                self._taken.append((self._admit(message), copy_context()))
            except ProtocolError as failure:
                assert isinstance(message.id, (int, str))
                self._refuse(message.id, failure)
        else:
            self._notice(message)

    def reject(self, failure: ProtocolError) -> None:
        """The transport could not even read a line."""
        self._refuse(None, failure)

    def _refuse(self, id: RequestId | None, failure: ProtocolError) -> None:
        self.pipe.write(self._error(id, failure))

    def _error(self, id: RequestId | None, failure: ProtocolError) -> bytes:
        optional = self.session is None or self.session.revision.error_id_optional
        return jsonrpc.error(id, failure, id_optional=optional)

    def _admit(self, message: Envelope, *, batched: bool = False) -> Call:
        """Decide the revision of a request and put it among the calls in flight."""
        assert isinstance(message.id, (int, str))
        if message.id in self._calls:
            raise ProtocolError("A request with this id is still in flight", code=INVALID_REQUEST)
        if len(self._calls) >= MAX_IN_FLIGHT:
            raise Busy(f"This connection has {MAX_IN_FLIGHT} requests in flight; wait for some of them")
        opened = inbound.open_request(message)
        if opened.method == "subscriptions/listen" and self._listens() >= MAX_LISTENS:
            raise Busy(f"This connection has {MAX_LISTENS} listens open; end some of them")
        if batched and opened.method == "initialize":
            raise ProtocolError("initialize can't be part of a batch", code=INVALID_REQUEST)
        if self._handshake_only:
            inbound.refuse_modern(opened)
        request = inbound.modern(opened) or inbound.on_pipe(opened, self.session)
        if batched:
            inbound.allow_batch(request.revision)
        if request.method == "initialize":
            self._open_session(request)
        call = self._calls[message.id] = Call(self)
        call.context = RequestContext(
            request, call.emit, principal=self._principal, locate=self._locate, in_process=self._in_process
        )
        if request.revision.handshake and self.session is not None:
            call.context.sessions = self
            call.context.back = call
        self.greeted.set()
        return call

    def _listens(self) -> int:
        calls = [call.context for call in self._calls.values()]
        return sum(each is not None and each.request.method == "subscriptions/listen" for each in calls)

    def _open_session(self, request: Request) -> None:
        # At once and not in the request's task: what the client sends next belongs to the session already.
        assert isinstance(request.params, InitializeParams)
        announced = self.engine.announced_kinds()
        self.session = Session.open(os.urandom(16).hex(), request.params, request.revision, announced=announced)
        request.session = self.session

    def _drop_session(self) -> None:
        self._forget_visits()
        self.session = None
        if self._subscription is not None:  # the client was quick with its notifications/initialized
            self._subscription.end()
            self._subscription = None

    # ── lines out ──

    async def send(self, message: bytes) -> None:
        self.pipe.write(message)
        await self.pipe.drain()

    async def _serve(self, call: Call, deliver: Callable[[bytes], None]) -> None:
        """Deliver the encoded answer; none if the client has cancelled, for then nothing more may be sent."""
        if call.context is None:  # cancelled before it began
            return
        request = call.context.request
        call.task = asyncio.current_task(self._loop)
        try:
            body = await handle(self.engine, call.context)
            answer = jsonrpc.result(request.id, body)
        except ProtocolError as failure:
            if request.method == "initialize":
                self._drop_session()
            answer = jsonrpc.error(request.id, failure)
        except BaseException:  # whatever it is: while the client waits, it gets an answer
            if not call.open or not _is_running(call.task):
                raise
            log.exception("%s could not be answered properly", request.method)
            answer = jsonrpc.error(request.id, ProtocolError("Internal error", code=INTERNAL_ERROR))
        finally:
            is_wanted = call.open
            call.close()
            if self._calls.get(request.id) is call:
                del self._calls[request.id]
        if is_wanted:
            deliver(answer)

    def _feed_batch(self, messages: Sequence[Envelope | BadMessage]) -> None:
        try:
            inbound.allow_batch(None if self.session is None else self.session.revision)
        except ProtocolError as failure:
            self._refuse(None, failure)
            return
        answers = [answer for message in messages if (answer := self._feed_item(message)) is not None]
        if answers:
            self._keep(self._loop.create_task(self._serve_batch(answers)))

    def _feed_item(self, message: Envelope | BadMessage) -> BatchAnswer | None:
        """Its answer, or the task that will have it; None for what is not answered."""
        if isinstance(message, BadMessage):
            return self._error(message.id, message)
        if not message.is_request:
            self._notice(message)
            return None
        assert isinstance(message.id, (int, str))
        try:
            call = self._admit(message, batched=True)
        except ProtocolError as failure:
            return self._error(message.id, failure)
        call.task = task = self._loop.create_task(self._answer(call))
        return task

    async def _answer(self, call: Call) -> bytes | None:
        answers: list[bytes] = []
        await self._serve(call, answers.append)
        return answers[0] if answers else None

    async def _serve_batch(self, answers: Sequence[BatchAnswer]) -> None:
        """One line with all answers, when the last one is there; those that were cancelled have none."""
        tasks = [answer for answer in answers if not isinstance(answer, bytes)]
        await asyncio.gather(*tasks, return_exceptions=True)
        done = [answer if isinstance(answer, bytes) else _outcome(answer) for answer in answers]
        if items := [answer for answer in done if answer is not None]:
            await self.send(jsonrpc.batch(items))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    # ── notifications and answers in ──

    def _notice(self, message: Envelope) -> None:
        """Unknown and malformed ones are ignored: nobody waits for an answer."""
        if not message.is_notification:
            if self._requests is not None:
                self._requests.take("", message.id, lazy.client_requests.Reply.of(message))
        elif message.method == "notifications/cancelled":
            id = inbound.cancelled_request(message)
            if id is not None:
                self._cancel(id)
        elif message.method == "notifications/progress":
            if self._requests is not None:
                self._requests.take("", inbound.progressed_request(message))
        elif message.method == "notifications/initialized" and self.session is not None:
            self._start_operation()

    def _cancel(self, id: RequestId) -> None:
        call = self._calls.get(id)
        if call is None or call.context is None or call.context.request.method == "initialize":
            return
        log.debug("the client cancelled the request %r", id)
        # Out of flight here and now: what is cancelled before its first step never runs its own clean-up.
        del self._calls[id]
        call.cancel()
        if call.task is not None:
            self._keep(call.task)

    # ── the session, and what it hears unasked ──

    @property
    def record(self) -> Session:
        assert self.session is not None
        return self.session

    async def change(self, change: Callable[[Session], Session]) -> None:
        record = change(self.record)
        record.refuse_beyond_bounds(len(msgspec.msgpack.encode(record)))
        self.session = record
        if self._subscription is not None:
            for uri in record.subscriptions - self._subscription.uris:
                self._subscription.add_uri(uri)
            for uri in self._subscription.uris - record.subscriptions:
                self._subscription.remove_uri(uri)

    def _start_operation(self) -> None:
        if self.record.initialized:
            return
        self.session = self.record.replace(initialized=True)
        kinds = [kind for kind in LIST_KINDS if kind in self.session.announced]
        self._subscription = self.engine.hub.subscribe(kinds, self.session.subscriptions)
        self._pump = self._loop.create_task(self._send_changes(self._subscription))

    def forget_principal(self) -> None:
        """The client's token has expired: it is nobody in particular now, and hears nothing that it subscribed to."""
        self._principal = None
        for call in self._calls.values():
            if call.context is not None and call.context.request.method in SUBSCRIBING:
                call.context.principal = None  # if it has not begun to listen yet
                if call.context.subscription is not None:
                    call.context.subscription.end()
        if self.session is not None:
            self.session = self.session.replace(subscriptions=frozenset())
        if self._subscription is not None:
            for uri in tuple(self._subscription.uris):
                self._subscription.remove_uri(uri)

    async def _send_changes(self, subscription: Subscription) -> None:
        async for change in subscription:
            await self.send(change_notification(change))

    def requests(self) -> "PendingRequests":
        """What the client is asked."""
        if self._requests is None:
            self._requests = lazy.client_requests.PendingRequests()
            if self._is_closing:
                self._requests.close(lazy.client_requests.GONE)
        return self._requests

    # ── the end ──

    async def close(self, grace: float = 0.0) -> None:
        """The client is gone, or the server stops: calls get `grace` seconds to finish, then they are cancelled."""
        self._is_closing = True  # nothing more is read
        if self._requests is not None:
            self._requests.close(lazy.client_requests.GONE)
        if self._subscription is not None:
            self._subscription.end()
        try:
            await self._end_calls(grace)
        finally:
            self.closed = True
            self._forget_visits()

    async def _end_calls(self, grace: float) -> None:
        if self._taken or any(call.task is None for call in self._calls.values()):
            self.begin()
            await asyncio.sleep(0)  # now all of them have begun
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        tasks += self._others
        if self._pump is not None:
            tasks.append(self._pump)
        if not tasks:
            return
        _, slow = await asyncio.wait(tasks, timeout=grace)
        self.abandon()
        for task in slow:
            task.cancel()
        if slow:
            await asyncio.wait(slow, timeout=SETTLE_SECONDS)

    def abandon(self) -> None:
        """Nobody waits for the calls any more; who is in the middle of `close` need not wait for them either."""
        for call in self._calls.values():
            call.cancel()
        self._forget_visits()

    def _forget_visits(self) -> None:
        """To URLs: nobody is there any more to be told that the user is done."""
        if self.session is not None:
            self.engine.session_ended(self.session.id)
