"""A duplex connection to one client, in all revisions: stdio, HTTP+SSE and the in-process client.

A transport feeds it lines without their newline and gives it a `MessageWriter` to write to.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context as ContextVars
from contextvars import copy_context
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
from dovetail.protocol.revisions import LATEST
from dovetail.protocol.session import Session

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.engine.server_requests import PendingRequest, PendingRequests

LISTEN = "subscriptions/listen"
CLEANUP_TIMEOUT = 1.0  # seconds that cancelled calls get

log = logging.getLogger("dovetail")


class ConnectionLimits(msgspec.Struct, frozen=True):
    in_flight: int = 10_000  # requests
    listens: int = 1_000


class MessageWriter(Protocol):
    """Where a connection writes to."""

    def write(self, message: bytes) -> None:
        """Send one message; never blocks."""

    async def drain(self) -> None:
        """Wait while the other side reads too slowly."""


class Call(msgspec.Struct, eq=False):
    """One request in flight, and its `ClientChannel`. Once it is closed, nothing more is sent for it."""

    connection: "Connection"
    open: bool = True
    context: RequestContext | None = None
    task: "asyncio.Task[Any] | None" = None  # from its start on

    async def emit(self, message: bytes) -> None:
        if self.open:
            await self.connection.send(message)

    def pending(self, method: str, timeout: float) -> "AbstractAsyncContextManager[PendingRequest]":  # noqa: ARG002
        connection = self.connection
        if not self.open or connection.closed:
            raise QuestionFailed(lazy.server_requests.CALL_ENDED)
        if connection.session is None or not connection.session.initialized:
            raise QuestionFailed(lazy.server_requests.NOT_INITIALIZED)
        return connection.pending_requests().open("", timeout, connection.send)

    def for_task(self) -> "Call":
        return Call(self.connection)

    async def notify(self, message: bytes) -> None:
        if not self.connection.closed:
            await self.connection.send(message)

    def cancel(self) -> None:
        """Stop the call; one that has not started never does."""
        self.open = False
        if self.context is not None:
            self.context.mark_cancelled()
        if self.task is not None:
            self.task.cancel()
        else:
            self.context = None

    def close(self) -> None:
        """Close the call and drop its request: the call may live on as the channel of a URL elicitation."""
        self.open = False
        self.context = self.task = None


class Connection:
    """One client: its session, if there was a handshake, and its calls in flight."""

    def __init__(
        self, engine: Engine, writer: MessageWriter, *, handshake_only: bool = False,
        principal: "Principal | None" = None, locate: Callable[[], str | None] | None = None, in_process: bool = False,
        limits: ConnectionLimits | None = None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.writer = writer
        self._handshake_only = handshake_only  # HTTP+SSE is older than requests that need no session
        self._principal = principal
        self._locate = locate
        self._in_process = in_process
        self._limits = limits or ConnectionLimits()
        self.session: Session | None = None
        self.first_request = asyncio.Event()  # the client has made a valid request
        self._loop = asyncio.get_running_loop()
        self._received: list[tuple[Call, ContextVars]] = []  # requests that have not started
        self._calls: dict[RequestId, Call] = {}
        self._background: set[asyncio.Task[Any]] = set()  # batches, and cancelled calls that still clean up
        self._subscription: Subscription | None = None
        self._changes_task: asyncio.Task[None] | None = None
        self._is_closing = self.closed = False
        self._pending_requests: PendingRequests | None = None  # from the first one on

    # ── incoming messages ──

    def feed(self, line: bytes | bytearray | memoryview) -> None:
        """Receive one line; its request starts at the next turn of the loop."""
        self.receive(line)
        if len(self._received) == 1:
            self._loop.call_soon(self.start_calls)

    def start_calls(self) -> None:
        """Serve the received requests in their order, each until it waits for something."""
        received, self._received = self._received, []
        for call, variables in received:
            work = self._serve(call, self.writer.write)
            if sys.version_info >= (3, 12):  # eager: a call that never waits costs no turn of the loop
                asyncio.Task(work, loop=self._loop, context=variables, eager_start=True)
            else:
                self._loop.create_task(work, context=variables)

    def receive(self, line: bytes | bytearray | memoryview) -> None:
        """Receive one line; its request starts with `start_calls`. Never raises."""
        try:
            message = jsonrpc.decode(line)
        except BadMessage as bad:
            self.reject(bad, bad.id)
            return
        if isinstance(message, list):
            self._receive_batch(message)
        elif message.is_request:
            try:
                self._received.append((self._admit(message), copy_context()))
            except ProtocolError as failure:
                assert isinstance(message.id, (int, str))
                self.reject(failure, message.id)
        else:
            self._receive_one_way(message)

    def reject(self, failure: ProtocolError, id: RequestId | None = None) -> None:
        log.debug("a message is refused: %s", failure)
        self.writer.write(self._error(id, failure))

    def _error(self, id: RequestId | None, failure: ProtocolError) -> bytes:
        optional = self.session is None or self.session.revision.error_id_optional
        return jsonrpc.error(id, failure, id_optional=optional)

    def _admit(self, message: Envelope, *, batched: bool = False) -> Call:
        """Decide the revision of a request and add it to the calls in flight."""
        assert isinstance(message.id, (int, str))
        limits = self._limits
        if message.id in self._calls:
            raise ProtocolError("A request with this id is still in flight", code=INVALID_REQUEST)
        if len(self._calls) >= limits.in_flight:
            raise Busy(f"This connection has {limits.in_flight} requests in flight; wait for some of them")
        parsed = inbound.parse_request(message, self.engine.methods)
        if parsed.method == LISTEN and self._listens() >= limits.listens:
            raise Busy(f"This connection has {limits.listens} listens open; end some of them")
        if batched and parsed.method == "initialize":
            raise ProtocolError("initialize can't be part of a batch", code=INVALID_REQUEST)
        if self._handshake_only:
            inbound.refuse_modern(parsed)
        request = inbound.modern(parsed) or inbound.on_connection(parsed, self.session)
        if batched:
            inbound.allow_batch(request.revision)
        if request.method == "initialize":
            self._open_session(request)
        call = self._calls[message.id] = Call(self)
        call.context = RequestContext(
            request, call.emit, principal=self._principal, locate=self._locate, in_process=self._in_process
        )
        if request.revision.handshake and self.session is not None:
            call.context.session_access = self
            call.context.channel = call
        self.first_request.set()
        return call

    def _listens(self) -> int:
        contexts = [call.context for call in self._calls.values()]
        return sum(context is not None and context.request.method == LISTEN for context in contexts)

    def _open_session(self, request: Request) -> None:
        # At once and not in the request's task: the client's next message belongs to the session already.
        assert isinstance(request.params, InitializeParams)
        announced = self.engine.announced_kinds()
        self.session = Session.open(os.urandom(16).hex(), request.params, request.revision, announced=announced)
        request.session = self.session

    def _drop_session(self) -> None:
        self._forget_elicitations()
        self.session = None
        if self._subscription is not None:  # notifications/initialized came before the response to initialize
            self._subscription.end()
            self._subscription = None

    def _receive_one_way(self, message: Envelope) -> None:
        """Receive a response or a notification. Unknown and malformed ones are ignored."""
        if self.engine.notification_hooks and message.is_notification:
            lazy.hooks.notify(self.engine, message, self.session)
        if not message.is_notification:
            if self._pending_requests is not None:
                response = lazy.server_requests.ClientResponse.from_envelope(message)
                self._pending_requests.deliver("", message.id, response)
        elif message.method == "notifications/cancelled":
            id = inbound.read_cancelled_id(message)
            if id is not None:
                self._cancel(id)
        elif message.method == "notifications/progress":
            if self._pending_requests is not None:
                self._pending_requests.deliver("", inbound.read_progress_token(message))
        elif message.method == "notifications/initialized" and self.session is not None:
            self._on_initialized()
        elif (receive := self.engine.notifications.get(message.method)) is not None:  # type: ignore[arg-type]
            revision = LATEST if self.session is None else self.session.revision
            receive(message, revision, self.session, self._principal)

    def _cancel(self, id: RequestId) -> None:
        call = self._calls.get(id)
        if call is None or call.context is None or call.context.request.method == "initialize":
            return
        log.debug("the client cancelled the request %r", id)
        del self._calls[id]  # here, because a call that is cancelled before it starts never runs its own clean-up
        call.cancel()
        if call.task is not None:
            self._track(call.task)

    def _track(self, task: asyncio.Task[Any]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ── responses ──

    async def send(self, message: bytes) -> None:
        self.writer.write(message)
        await self.writer.drain()

    async def _serve(self, call: Call, deliver: Callable[[bytes], None]) -> None:
        """Send the encoded response; none if the client has cancelled, for then nothing more may be sent."""
        if call.context is None:  # cancelled before it started
            return
        request = call.context.request
        call.task = asyncio.current_task(self._loop)
        try:
            body = await handle(self.engine, call.context)
            response = jsonrpc.result(request.id, body)
        except ProtocolError as failure:
            if request.method == "initialize":
                self._drop_session()
            response = jsonrpc.error(request.id, failure)
        except BaseException:  # any failure gets a response while the client waits for one
            if not call.open or asyncio.current_task(self._loop) is not call.task:  # torn down after the loop's end
                raise
            log.exception("%s failed, and its response could not be made", request.method)
            response = jsonrpc.error(request.id, ProtocolError("Internal error", code=INTERNAL_ERROR))
        finally:
            is_wanted = call.open
            call.close()
            if self._calls.get(request.id) is call:
                del self._calls[request.id]
        if is_wanted:
            deliver(response)

    def _receive_batch(self, messages: Sequence[Envelope | BadMessage]) -> None:
        try:
            inbound.allow_batch(None if self.session is None else self.session.revision)
        except ProtocolError as failure:
            self.reject(failure)
            return
        tasks: list[asyncio.Task[None]] = []
        responses: list[list[bytes]] = [[] for _ in messages]  # empty for notifications and cancelled requests
        for message, response in zip(messages, responses, strict=True):
            if isinstance(message, BadMessage):
                response.append(self._error(message.id, message))
            elif not message.is_request:
                self._receive_one_way(message)
            else:
                assert isinstance(message.id, (int, str))
                try:
                    call = self._admit(message, batched=True)
                except ProtocolError as failure:
                    response.append(self._error(message.id, failure))
                else:
                    call.task = task = self._loop.create_task(self._serve(call, response.append))
                    tasks.append(task)
        if tasks or any(responses):
            self._track(self._loop.create_task(self._serve_batch(tasks, responses)))

    async def _serve_batch(self, tasks: Sequence[asyncio.Task[None]], responses: Sequence[list[bytes]]) -> None:
        """Serve a batch; one line with all responses is sent when the last one is ready."""
        await asyncio.gather(*tasks, return_exceptions=True)
        if items := [item for response in responses for item in response]:
            await self.send(jsonrpc.batch(items))

    # ── the session ──

    @property
    def record(self) -> Session:
        assert self.session is not None
        return self.session

    async def change(self, change: Callable[[Session], Session]) -> None:
        record = change(self.record)
        record.check_size(len(msgspec.msgpack.encode(record)))
        self.session = record
        self._update_subscription()

    def _update_subscription(self) -> None:
        if self._subscription is not None:
            for uri in self.record.subscriptions - self._subscription.uris:
                self._subscription.add_uri(uri)
            for uri in self._subscription.uris - self.record.subscriptions:
                self._subscription.remove_uri(uri)

    def _on_initialized(self) -> None:
        if self.record.initialized:
            return
        self.session = self.record.replace(initialized=True)
        kinds = [kind for kind in LIST_KINDS if kind in self.session.announced]
        self._subscription = self.engine.hub.subscribe(kinds, self.session.subscriptions)
        self._changes_task = self._loop.create_task(self._send_changes(self._subscription))

    def forget_principal(self) -> None:
        """Make the client anonymous and end its subscriptions, because its token has expired."""
        self._principal = None
        for call in self._calls.values():
            if call.context is not None and call.context.request.method in (LISTEN, "resources/subscribe"):
                call.context.principal = None  # if it has not subscribed yet
                if call.context.subscription is not None:
                    call.context.subscription.end()
        if self.session is not None:
            self.session = self.session.replace(subscriptions=frozenset())
            self._update_subscription()

    async def _send_changes(self, subscription: Subscription) -> None:
        async for change in subscription:
            await self.send(change_notification(change))

    def pending_requests(self) -> "PendingRequests":
        if self._pending_requests is None:
            self._pending_requests = lazy.server_requests.PendingRequests()
            if self._is_closing:
                self._pending_requests.close(lazy.server_requests.CONNECTION_CLOSED)
        return self._pending_requests

    # ── the end ──

    async def close(self, grace: float = 0.0) -> None:
        """End the connection after a disconnect or when the server stops: calls are cancelled after `grace` seconds."""
        self._is_closing = True
        if self._pending_requests is not None:
            self._pending_requests.close(lazy.server_requests.CONNECTION_CLOSED)
        if self._subscription is not None:
            self._subscription.end()
        try:
            await self._end_calls(grace)
        finally:
            self.closed = True
            self._forget_elicitations()

    async def _end_calls(self, grace: float) -> None:
        if self._received or any(call.task is None for call in self._calls.values()):
            self.start_calls()
            await asyncio.sleep(0)  # now all of them have started
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        tasks += self._background
        if self._changes_task is not None:
            tasks.append(self._changes_task)
        if not tasks:
            return
        _, slow = await asyncio.wait(tasks, timeout=grace)
        self.cancel_calls()
        for task in slow:
            task.cancel()
        if slow:
            await asyncio.wait(slow, timeout=CLEANUP_TIMEOUT)

    def cancel_calls(self) -> None:
        """Cancel all calls of a client that does not wait any more; a running `close` need not wait for them either."""
        for call in self._calls.values():
            call.cancel()
        self._forget_elicitations()

    def _forget_elicitations(self) -> None:
        if self.session is not None:
            self.engine.session_ended(self.session.id)
