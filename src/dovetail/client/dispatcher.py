"""JSON-RPC dispatcher of a client: matches responses to requests by id and runs the server's requests.

It knows nothing of MCP but progress, cancellation and ping, which belong to requests and not to features.
"""

import asyncio
import contextlib
import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.client.results import in_client_words
from dovetail.client.transports.base import OutgoingMessage, RequestTimeouts, Transport
from dovetail.errors import BadResponse, ConnectionLost, DovetailError, ProtocolError, ServerError, TooManyRequests
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import UNREADABLE, BadMessage, Envelope, encode
from dovetail.protocol.methods import CancelledParams, RequestId
from dovetail.protocol.revisions import Revision

log = logging.getLogger("dovetail.client")

Direction = Literal["sent", "received"]
Transcript = Callable[[Direction, bytes], Any]
ProgressHandler = Callable[[float, float | None, str | None], Awaitable[None] | None]
ClientReply = Callable[[], Awaitable[Mapping[str, Any]]]  # answers a request of the server's once it is called

LONGEST_RETRY = 24 * 3600.0  # seconds that a server may ask to be left alone for


class ServerRequests:
    """Requests of the server's that are not answered yet, up to 2025-11-25: each is answered in a task of its own."""

    def __init__(self, answer: Callable[[bytes], None], time_limits: RequestTimeouts, max_open: int = 100) -> None:
        self._answer = answer
        self._time_limits = time_limits
        self._max_open = max_open
        self._tasks: dict[RequestId, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()  # those that were withdrawn and have not ended count, too

    def take(self, id: RequestId, reply: ClientReply) -> None:
        """Begin to answer. Raises ProtocolError if the server asks too much at once."""
        if id in self._tasks:
            log.warning("the server asks %r again, which is being answered", id)
            return
        if len(self._running) >= self._max_open:
            raise ProtocolError(f"Too many questions at once: {self._max_open} are being answered")
        self._tasks[id] = task = asyncio.get_running_loop().create_task(self._work(id, reply))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, id: RequestId, reply: ClientReply) -> None:
        with self._time_limits.paused():
            message = await _answered(id, reply)
        if self._tasks.get(id) is not asyncio.current_task():
            return  # it was withdrawn, and the handler went on
        del self._tasks[id]
        try:
            self._answer(message)
        except ConnectionLost as lost:
            log.info("%r is not answered: %s", id, lost)

    def withdraw(self, id: RequestId) -> None:
        """The server does not want to know any more."""
        task = self._tasks.pop(id, None)
        if task is not None and task is not asyncio.current_task():  # a handler may close its client
            task.cancel()

    def withdraw_all(self) -> None:
        for id in tuple(self._tasks):
            self.withdraw(id)

    async def close(self) -> None:
        """Stop them all, and wait until they have."""
        self.withdraw_all()
        await asyncio.gather(*self._running - {asyncio.current_task()}, return_exceptions=True)


async def _answered(id: RequestId, answer: ClientReply) -> bytes:
    """The message that answers, whatever becomes of the work; only who stops it stops this."""
    try:
        return jsonrpc.result(id, encode(await answer()))
    except ProtocolError as refusal:
        return jsonrpc.error(id, refusal)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        log.warning("the handler of a question was cancelled")
    except Exception:
        log.exception("the handler of a question failed")
    return jsonrpc.error(id, ProtocolError("The client failed to answer"))


class Audience(Protocol):
    """The session, which hears what is not an answer."""

    def hear(self, method: str, params: Raw) -> None: ...

    def prepare(self, method: str, params: Raw) -> ClientReply:
        """Raises ProtocolError if nothing answers the request."""
        ...

    def missed(self) -> None: ...

    def session_ended(self, reason: str) -> None: ...

    def silence(self, reason: str) -> None: ...


class Pending:
    """A request without its answer yet."""

    __slots__ = ("answer", "extend", "id", "method", "on_progress")

    def __init__(self, id: RequestId, method: str, on_progress: ProgressHandler | None) -> None:
        self.id = id
        self.method = method
        self.on_progress = on_progress
        self.extend: Callable[[], None] = lambda: None  # the time limit of the caller who waits, at progress
        self.answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()


class _Progress(msgspec.Struct, frozen=True, rename="camel"):
    progress_token: RequestId
    progress: float
    total: float | None = None
    message: str | None = None


class _Failure(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: Any = None


class Dispatcher:
    """One link, the requests on their way over it, and the handlers that still run."""

    def __init__(self, transport: Transport, audience: Audience, transcript: Transcript | None = None) -> None:
        self.transport = transport
        self._audience = audience
        self._transcript = transcript
        self._ids = itertools.count(1)
        self._pending: dict[RequestId, Pending] = {}
        self._handlers: set[asyncio.Future[Any]] = set()
        self.time_limits = RequestTimeouts()
        self._questions = ServerRequests(self._answer, self.time_limits)
        self._complaints = 0  # messages that made no sense
        self._over: str | None = None  # why it is over
        self.answers_ping = True

    async def open(self) -> None:
        await self.transport.open(self)

    async def close(self) -> None:
        """Nothing more is sent or heard; whoever still waits gets ConnectionLost."""
        self._end("the client was closed")
        mine = self._handlers - {asyncio.current_task()}
        for task in mine:
            task.cancel()
        try:
            await asyncio.gather(*mine, return_exceptions=True)
            await self._questions.close()
        finally:
            await self.transport.close()  # also if this task is cancelled meanwhile: a process must not be left behind

    # ── out ──

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None,
        max_timeout: float = 0,
        on_progress: ProgressHandler | None = None,
        cancellable: bool = True,
    ) -> Raw:
        """The encoded result. Who stops waiting, by a timeout or a cancelled task, tells the server so.

        Progress makes `timeout` begin again, until `max_timeout` is over, too.
        """
        pending = self.start(method, params, on_progress)
        try:
            async with asyncio.timeout(timeout) as within:
                with self.time_limits.counting(within) as limit:
                    if timeout is not None:
                        pending.extend = partial(limit.extend, timeout, max_timeout)
                    await self.transport.drain()
                    return await pending.answer
        except TimeoutError:
            self.abandon(pending, "timed out", tell=cancellable)
            late = f"no answer within {timeout:g} s"
            if on_progress is not None:
                late = f"no progress for {timeout:g} s, or no answer within {max(timeout or 0, max_timeout):g} s"
            raise TimeoutError(f"{method}: {late}") from None
        except asyncio.CancelledError:
            self.abandon(pending, "the caller was cancelled", tell=cancellable)
            raise
        finally:
            self._pending.pop(pending.id, None)

    def start(self, method: str, params: Mapping[str, Any], on_progress: ProgressHandler | None = None) -> Pending:
        """Send a request and do not wait; `abandon` it if its answer is not wanted any more."""
        pending = Pending(next(self._ids), method, on_progress)
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

    def abandon(self, pending: Pending, reason: str, *, tell: bool = True) -> None:
        """Forget a request and tell the server to stop; no harm if it has been answered."""
        if self._pending.pop(pending.id, None) is None or self._over is not None:
            return
        stopped = self.transport.abandon(pending.id)
        if tell and not stopped:
            self.tell("notifications/cancelled", {"requestId": pending.id, "reason": reason})

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        body = jsonrpc.notification(method, None if params is None else encode(params))
        self._write(OutgoingMessage(body, method=method, params=params or {}))

    def _answer(self, body: bytes) -> None:
        self._write(OutgoingMessage(body))

    def _write(self, message: OutgoingMessage) -> None:
        if self._over is not None:
            raise ConnectionLost(f"Nothing can be sent: {self._over}")
        self._note("sent", message.body)
        self.transport.write(message)

    def agreed(self, revision: Revision) -> None:
        """What follows is said in this revision."""
        self.answers_ping = revision.handshake
        self.transport.agreed(revision)

    # ── in ──

    def receive(self, message: bytes, about: RequestId | None = None) -> None:
        if self._over is not None:
            return
        self._note("received", message)
        try:
            decoded = jsonrpc.decode(message)
        except BadMessage as bad:
            self._complain("the server sent something that is no message: %s", bad.message)
            return
        for part in decoded if isinstance(decoded, list) else [decoded]:
            if self.is_over:
                return  # what came first has ended it
            if isinstance(part, BadMessage):
                self._complain("the server sent something that is no message: %s", part.message)
            else:
                self._take(part, about)

    def _take(self, message: Envelope, about: RequestId | None) -> None:
        if message.is_request:
            self._reply(message)
        elif message.is_notification:
            assert isinstance(message.method, str)
            if message.method == "notifications/progress":
                self._progress(message.params)
            else:
                if message.method == "notifications/cancelled":
                    self._withdraw(message.params)
                self._audience.hear(message.method, message.params)
        elif message.id is not UNSET:
            self._settle(message, message.id)
        elif about is not None:
            self._settle(message, about)
        else:
            self._complain("the server could not read a message: %s", failure_of("a message", message.error))

    def _settle(self, message: Envelope, id: Any) -> None:
        pending = self._pending.pop(id, None)
        if pending is None or pending.answer.done():
            log.debug("an answer to %r, which nobody waits for", id)
        elif isinstance(message.result, Raw):
            pending.answer.set_result(message.result)
        else:
            pending.answer.set_exception(failure_of(pending.method, message.error))

    def awaits(self, id: RequestId) -> bool:
        return id in self._pending

    def failed(self, id: RequestId | None, failure: DovetailError, said: bytes | None = None) -> None:
        if self._over is not None:
            return
        if said is not None:
            self._note("received", said)
        pending = None if id is None else self._pending.pop(id, None)
        if id is None:
            log.warning("%s", failure)
        elif pending is not None and not pending.answer.done():
            pending.answer.set_exception(failure)

    def missed(self) -> None:
        self._audience.missed()

    def _reply(self, message: Envelope) -> None:
        assert isinstance(message.id, (int, str))
        if message.method == "ping" and self.answers_ping:
            self._answer(jsonrpc.result(message.id, b"{}"))
            return
        assert isinstance(message.method, str)
        try:
            self._questions.take(message.id, self._audience.prepare(message.method, message.params))
        except ProtocolError as refusal:
            self._answer(jsonrpc.error(message.id, refusal))

    def _withdraw(self, params: Raw) -> None:
        with contextlib.suppress(*UNREADABLE):
            id = msgspec.json.decode(params, type=CancelledParams).request_id
            if not isinstance(id, UnsetType):
                self._questions.withdraw(id)

    def _progress(self, params: Raw) -> None:
        try:
            told = msgspec.json.decode(params, type=_Progress)
        except UNREADABLE:
            return
        pending = self._pending.get(told.progress_token)
        if pending is not None and pending.on_progress is not None:
            pending.extend()
            self.run_handler(pending.on_progress, told.progress, told.total, told.message)

    # ── the end ──

    @property
    def is_over(self) -> bool:
        return self._over is not None

    def session_ended(self, reason: str) -> None:
        if self._over is None:
            self._fail_all(reason)
            self._questions.withdraw_all()
            self._audience.session_ended(reason)

    def lost(self, reason: str) -> None:
        if self._over is None:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._over = self._over or reason
        self._fail_all(reason)
        self._questions.withdraw_all()
        self._audience.silence(reason)

    def _fail_all(self, reason: str) -> None:
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(ConnectionLost(f"{pending.method}: {reason}"))
        self._pending.clear()

    # ── other people's code ──

    def run_handler(self, handler: Callable[..., Any], *arguments: Any) -> None:
        """Call a user's handler. One that is async runs as a task; what either raises goes to the log."""
        try:
            outcome = handler(*arguments)
        except Exception:
            log.exception("a handler of the client's failed")
            return
        if outcome is not None and inspect.isawaitable(outcome):
            task = asyncio.ensure_future(outcome)
            self._handlers.add(task)
            task.add_done_callback(self._handled)

    def _handled(self, task: "asyncio.Future[Any]") -> None:
        self._handlers.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("a handler of the client's failed", exc_info=failure)

    def _complain(self, words: str, detail: object) -> None:
        """A server may send any number of messages that make no sense: only the first few go to the log."""
        self._complaints += 1
        if self._complaints <= 5:
            log.warning(words, detail)

    def _note(self, direction: Direction, message: bytes) -> None:
        if self._transcript is not None:
            self.run_handler(self._transcript, direction, message)


def failure_of(method: str, error: Any) -> ServerError | BadResponse:
    """The error of an answer, as it is raised."""
    try:
        failure = msgspec.json.decode(error, type=_Failure)
    except UNREADABLE as bad:
        return BadResponse(f"{method}: the server's error can't be read: {in_client_words(bad)}")
    seconds = failure.data.get("retryAfter") if isinstance(failure.data, dict) else None
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0:
        return TooManyRequests(failure.code, failure.message, failure.data, retry_after=min(seconds, LONGEST_RETRY))
    return ServerError(failure.code, failure.message, failure.data)
