"""JSON-RPC dispatcher of a client: matches responses to requests, and runs the server's requests."""

import asyncio
import contextlib
import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.client.results import describe_error
from dovetail.client.transports.base import OutgoingMessage, RequestTimeouts, Transport, cancel_and_wait
from dovetail.errors import BadResponse, ConnectionLost, DovetailError, ProtocolError, ServerError, TooManyRequests
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import UNREADABLE, BadMessage, Envelope, encode
from dovetail.protocol.methods import CancelledParams, RequestId
from dovetail.protocol.revisions import Revision

log = logging.getLogger("dovetail.client")

Params = Mapping[str, Any]
Direction = Literal["sent", "received"]
Transcript = Callable[[Direction, bytes], Any]
ProgressHandler = Callable[[float, float | None, str | None], Awaitable[None] | None]
RunHandler = Callable[[], Awaitable[Mapping[str, Any]]]  # runs the handler of a server's request

MAX_SERVER_REQUESTS = 100  # that run at once
MAX_RETRY_AFTER = 24 * 3600.0  # seconds that a server may ask a client to wait


class ServerRequests:
    """The server's pending requests, up to 2025-11-25: the handler of each runs in a task."""

    def __init__(self, send: Callable[[bytes], None], timeouts: RequestTimeouts) -> None:
        self._send = send
        self._timeouts = timeouts
        self._tasks: dict[RequestId, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()  # with cancelled tasks that have not ended

    def start(self, id: RequestId, run_handler: RunHandler) -> None:
        """Start the handler of a request. Raises ProtocolError if too many are pending."""
        if id in self._tasks:
            log.warning("the server sent request %r twice; the second one is ignored", id)
            return
        if len(self._running) >= MAX_SERVER_REQUESTS:
            raise ProtocolError(f"Too many questions at once: {MAX_SERVER_REQUESTS} are being answered")
        self._tasks[id] = task = asyncio.get_running_loop().create_task(self._run(id, run_handler))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, id: RequestId, run_handler: RunHandler) -> None:
        with self._timeouts.paused():
            response = await _respond(id, run_handler)
        if self._tasks.get(id) is not asyncio.current_task():
            return  # cancelled, but the handler went on
        del self._tasks[id]
        try:
            self._send(response)
        except ConnectionLost as lost:
            log.info("%r is not answered: %s", id, lost)

    def cancel(self, id: RequestId) -> None:
        task = self._tasks.pop(id, None)
        if task is not None and task is not asyncio.current_task():  # a handler may close its client
            task.cancel()

    def cancel_all(self) -> None:
        for id in tuple(self._tasks):
            self.cancel(id)

    async def close(self) -> None:
        self.cancel_all()
        await asyncio.gather(*self._running - {asyncio.current_task()}, return_exceptions=True)


async def _respond(id: RequestId, run_handler: RunHandler) -> bytes:
    """The response, even if the handler fails; raises CancelledError only if this task is cancelled."""
    try:
        return jsonrpc.result(id, encode(await run_handler()))
    except ProtocolError as refusal:
        return jsonrpc.error(id, refusal)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        log.warning("the handler of a server request was cancelled")
    except Exception:
        log.exception("the handler of a server request failed")
    return jsonrpc.error(id, ProtocolError("The client failed to answer"))


class MessageHandler(Protocol):
    """Receives the server's notifications and requests; implemented by the session."""

    def handle_notification(self, method: str, params: Raw) -> None: ...

    def prepare_handler(self, method: str, params: Raw) -> RunHandler:
        """Prepare the run of the handler. Raises ProtocolError if the request can't be answered."""

    def messages_missed(self) -> None: ...

    def session_ended(self, reason: str) -> None: ...

    def connection_lost(self, reason: str) -> None: ...


class PendingRequest(msgspec.Struct, eq=False):
    id: RequestId
    method: str
    on_progress: ProgressHandler | None
    result: asyncio.Future[Raw]
    extend: Callable[[], None] = lambda: None  # restarts the caller's timeout at progress


class _Progress(msgspec.Struct, frozen=True, rename="camel"):
    progress_token: RequestId
    progress: float
    total: float | None = None
    message: str | None = None


class _ErrorObject(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: Any = None


class Dispatcher:
    """The requests of one connection and the user's handlers that run for it."""

    def __init__(self, transport: Transport, handler: MessageHandler, transcript: Transcript | None = None) -> None:
        self.transport = transport
        self._handler = handler
        self._transcript = transcript
        self._ids = itertools.count(1)
        self._pending: dict[RequestId, PendingRequest] = {}
        self._handlers: set[asyncio.Future[Any]] = set()
        self.timeouts = RequestTimeouts()
        self._server_requests = ServerRequests(self._send_response, self.timeouts)
        self._warnings = 0
        self._closed: str | None = None  # the reason
        self.answers_ping = True
        self.carrier: RequestId | None = None  # the HTTP request whose stream brought the message that is handled now

    async def open(self) -> None:
        await self.transport.open(self)

    async def close(self) -> None:
        """Close the connection. Pending requests raise ConnectionLost."""
        self.connection_lost("the client was closed")
        try:
            await cancel_and_wait(*self._handlers - {asyncio.current_task()})
            await self._server_requests.close()
        finally:
            await self.transport.close()  # also if this task is cancelled: it may have a child process

    async def request(
        self,
        method: str,
        params: Params,
        *,
        timeout: float | None,
        max_timeout: float = 0,
        on_progress: ProgressHandler | None = None,
        on_sent: Callable[[RequestId], None] | None = None,
        cancellable: bool = True,
    ) -> Raw:
        """Send a request and return the raw result. A timeout cancels it; progress extends that up to `max_timeout`."""
        pending = self.start(method, params, on_progress)
        if on_sent is not None:
            on_sent(pending.id)
        try:
            async with asyncio.timeout(timeout) as limit:
                with self.timeouts.track(limit) as pausable:
                    if timeout is not None:
                        pending.extend = partial(pausable.extend, timeout, max_timeout)
                    await self.transport.drain()
                    return await pending.result
        except TimeoutError:
            self.cancel(pending, "timed out", notify=cancellable)
            late = f"no answer within {timeout:g} s"
            if on_progress is not None:
                late = f"no progress for {timeout:g} s, or no answer within {max(timeout or 0, max_timeout):g} s"
            raise TimeoutError(f"{method}: {late}") from None
        except asyncio.CancelledError:
            self.cancel(pending, "the caller was cancelled", notify=cancellable)
            raise
        finally:
            self._pending.pop(pending.id, None)

    def start(self, method: str, params: Params, on_progress: ProgressHandler | None = None) -> PendingRequest:
        """Send a request without waiting for its response."""
        result = asyncio.get_running_loop().create_future()
        pending = PendingRequest(next(self._ids), method, on_progress, result)
        if on_progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": pending.id}}
        body = jsonrpc.request(pending.id, method, encode(params) if params else None)
        self._pending[pending.id] = pending
        try:
            self._write(OutgoingMessage(body, pending.id, method, params))
        except BaseException:
            del self._pending[pending.id]
            raise
        return pending

    def cancel(self, pending: PendingRequest, reason: str, *, notify: bool = True) -> None:
        """Forget a request and have the server stop it, unless the response has arrived."""
        if self._pending.pop(pending.id, None) is None or self._closed is not None:
            return
        stopped = self.transport.cancel_request(pending.id)
        if notify and not stopped:
            self.notify("notifications/cancelled", {"requestId": pending.id, "reason": reason})

    def notify(self, method: str, params: Params | None = None) -> None:
        body = jsonrpc.notification(method, None if params is None else encode(params))
        self._write(OutgoingMessage(body, method=method, params=params or {}))

    def _send_response(self, body: bytes) -> None:
        self._write(OutgoingMessage(body))

    def _write(self, message: OutgoingMessage) -> None:
        if self._closed is not None:
            raise ConnectionLost(f"Nothing can be sent: {self._closed}")
        self._record("sent", message.body)
        self.transport.write(message)

    def set_revision(self, revision: Revision) -> None:
        self.answers_ping = revision.handshake
        self.transport.set_revision(revision)

    def receive(self, message: bytes, request_id: RequestId | None = None) -> None:
        if self._closed is not None:
            return
        self._record("received", message)
        try:
            decoded = jsonrpc.decode(message)
            parts: Sequence[Envelope | BadMessage] = decoded if isinstance(decoded, list) else [decoded]
        except BadMessage as bad:
            parts = [bad]
        self.carrier = request_id
        for part in parts:
            if self.is_closed:
                return  # a part before this one has closed it
            if isinstance(part, BadMessage):
                self._warn("the server sent something that is no message: %s", part.message)
            else:
                self._dispatch(part, request_id)

    def _dispatch(self, message: Envelope, request_id: RequestId | None) -> None:
        if message.is_request:
            self._handle_request(message)
        elif message.is_notification:
            assert isinstance(message.method, str)
            if message.method == "notifications/progress":
                self._progress(message.params)
            else:
                if message.method == "notifications/cancelled":
                    self._cancelled(message.params)
                self._handler.handle_notification(message.method, message.params)
        elif message.id is not UNSET:
            self._resolve(message, message.id)
        elif request_id is not None:
            self._resolve(message, request_id)
        else:
            self._warn("the server could not read a message: %s", read_server_error("a message", message.error))

    def _resolve(self, message: Envelope, id: Any) -> None:
        pending = self._pending.pop(id, None)
        if pending is None or pending.result.done():
            log.debug("a response to %r, which is not pending", id)
        elif isinstance(message.result, Raw):
            pending.result.set_result(message.result)
        else:
            pending.result.set_exception(read_server_error(pending.method, message.error))

    def is_pending(self, id: RequestId) -> bool:
        return id in self._pending

    def request_failed(self, id: RequestId | None, failure: DovetailError, body: bytes | None = None) -> None:
        if self._closed is not None:
            return
        if body is not None:
            self._record("received", body)
        pending = None if id is None else self._pending.pop(id, None)
        if id is None:
            log.warning("%s", failure)
        elif pending is not None and not pending.result.done():
            pending.result.set_exception(failure)

    def messages_missed(self) -> None:
        self._handler.messages_missed()

    def _handle_request(self, message: Envelope) -> None:
        assert isinstance(message.id, (int, str))
        if message.method == "ping" and self.answers_ping:
            self._send_response(jsonrpc.result(message.id, b"{}"))
            return
        assert isinstance(message.method, str)
        try:
            self._server_requests.start(message.id, self._handler.prepare_handler(message.method, message.params))
        except ProtocolError as refusal:
            self._send_response(jsonrpc.error(message.id, refusal))

    def _cancelled(self, params: Raw) -> None:
        with contextlib.suppress(*UNREADABLE):
            id = msgspec.json.decode(params, type=CancelledParams).request_id
            if not isinstance(id, UnsetType):
                self._server_requests.cancel(id)

    def _progress(self, params: Raw) -> None:
        try:
            report = msgspec.json.decode(params, type=_Progress)
        except UNREADABLE:
            return
        pending = self._pending.get(report.progress_token)
        if pending is not None and pending.on_progress is not None:
            pending.extend()
            self.run_handler(pending.on_progress, report.progress, report.total, report.message)

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def session_ended(self, reason: str) -> None:
        if self._closed is None:
            self._fail_all(reason)
            self._handler.session_ended(reason)

    def connection_lost(self, reason: str) -> None:
        if self._closed is None:
            self._closed = reason
            self._fail_all(reason)
            self._handler.connection_lost(reason)

    def _fail_all(self, reason: str) -> None:
        for pending in self._pending.values():
            if not pending.result.done():
                pending.result.set_exception(ConnectionLost(f"{pending.method}: {reason}"))
        self._pending.clear()
        self._server_requests.cancel_all()

    def run_handler(self, handler: Callable[..., Any], *arguments: Any) -> None:
        """Call a handler, as a task if it is async; an exception is logged."""
        try:
            outcome = handler(*arguments)
        except Exception:
            log.exception("a handler of the client's failed")
            return
        if outcome is not None and inspect.isawaitable(outcome):
            task = asyncio.ensure_future(outcome)
            self._handlers.add(task)
            task.add_done_callback(self._handler_done)

    def _handler_done(self, task: "asyncio.Future[Any]") -> None:
        self._handlers.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("a handler of the client's failed", exc_info=failure)

    def _warn(self, text: str, detail: object) -> None:
        """Log the first few malformed messages; a server may send any number of them."""
        self._warnings += 1
        if self._warnings <= 5:
            log.warning(text, detail)

    def _record(self, direction: Direction, message: bytes) -> None:
        if self._transcript is not None:
            self.run_handler(self._transcript, direction, message)


def read_server_error(method: str, error: Any) -> ServerError | BadResponse:
    """The exception for the error of a response."""
    try:
        failure = msgspec.json.decode(error, type=_ErrorObject)
    except UNREADABLE as bad:
        return BadResponse(f"{method}: the server's error can't be read: {describe_error(bad)}")
    seconds = failure.data.get("retryAfter") if isinstance(failure.data, dict) else None
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0:
        return TooManyRequests(failure.code, failure.message, failure.data, retry_after=min(seconds, MAX_RETRY_AFTER))
    return ServerError(failure.code, failure.message, failure.data)
