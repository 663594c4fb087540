"""Requests go out and their answers come back, matched by id; everything else that a server says is passed on.

It knows JSON-RPC and nothing of MCP but progress, cancellation and ping, which belong to requests and not to features.
Questions of the server's are read by the audience, and answered in tasks of their own.
"""

import asyncio
import contextlib
import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.client.complaints import Complaints
from dovetail.client.links import Link
from dovetail.client.open_questions import Answer, OpenQuestions
from dovetail.client.patience import Patience, TimeLimit
from dovetail.client.results import in_client_words
from dovetail.errors import BadAnswer, ConnectionLost, DovetailError, ProtocolError, ServerError, TooManyRequests
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import UNREADABLE, BadMessage, Envelope, encode
from dovetail.protocol.methods import CancelledParams, RequestId
from dovetail.protocol.revisions import Revision

Direction = Literal["sent", "received"]
Transcript = Callable[[Direction, bytes], Any]
ProgressHandler = Callable[[float, float | None, str | None], Awaitable[None] | None]

MAX_ID_LENGTH = 10_000  # of a question of the server's, which its answer repeats
LONGEST_RETRY = 24 * 3600.0  # seconds that a server may ask to be left alone for

log = logging.getLogger("dovetail.client")


class Audience(Protocol):
    """Who hears what is not an answer."""

    def hear(self, method: str, params: Raw) -> None:
        """A notification came that belongs to no request."""

    def prepare(self, method: str, params: Raw) -> Answer:
        """What answers a question of the server's; raises ProtocolError if nothing does."""

    def missed(self) -> None:
        """The server may have said something that nobody heard."""

    def session_ended(self, reason: str) -> None:
        """What the server knew of this client is gone, but not the server."""

    def silence(self, reason: str) -> None:
        """The server is gone."""


class Pending:
    """A request without its answer yet."""

    __slots__ = ("answer", "id", "limit", "max_timeout", "method", "on_progress", "timeout")

    def __init__(self, id: RequestId, method: str, on_progress: ProgressHandler | None) -> None:
        self.id = id
        self.method = method
        self.on_progress = on_progress
        self.limit: TimeLimit | None = None  # of who waits for the answer; progress extends it
        self.timeout: float | None = None
        self.max_timeout = 0.0
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


class Conversation:
    """One link, the requests on their way over it, and the handlers that still run."""

    def __init__(self, link: Link, audience: Audience, transcript: Transcript | None = None) -> None:
        self._link = link
        self._audience = audience
        self._transcript = transcript
        self._ids = itertools.count(1)
        self._pending: dict[RequestId, Pending] = {}
        self._handlers: set[asyncio.Task[None]] = set()
        self.patience = Patience()
        self._questions = OpenQuestions(self.write, self.patience)
        self._complaints = Complaints()
        self._over: str | None = None  # why it is over
        self.answers_ping = True

    async def open(self) -> None:
        await self._link.open(self)

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
            await self._link.close()  # also if this task is cancelled meanwhile: a process must not be left behind

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
                with self.patience.counting(within) as limit:
                    pending.limit, pending.timeout, pending.max_timeout = limit, timeout, max_timeout
                    await self._link.drain()
                    return await pending.answer
        except TimeoutError:
            self.abandon(pending, "timed out", tell=cancellable)
            raise TimeoutError(f"{method}: {_lateness(limit, timeout or 0, max_timeout)}") from None
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
        message = jsonrpc.request(pending.id, method, encode(params) if params else None)
        self._pending[pending.id] = pending
        try:
            self.write(message)
        except BaseException:
            del self._pending[pending.id]
            raise
        return pending

    def abandon(self, pending: Pending, reason: str, *, tell: bool = True) -> None:
        """Forget a request and tell the server to stop; no harm if it has been answered."""
        if self._pending.pop(pending.id, None) is None or self._over is not None:
            return
        stopped = self._link.abandon(pending.id)
        if tell and not stopped:
            self.tell("notifications/cancelled", {"requestId": pending.id, "reason": reason})

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self.write(jsonrpc.notification(method, None if params is None else encode(params)))

    def write(self, message: bytes) -> None:
        if self._over is not None:
            raise ConnectionLost(f"Nothing can be sent: {self._over}")
        self._note("sent", message)
        self._link.write(message)

    async def drain(self) -> None:
        await self._link.drain()

    @property
    def modern(self) -> bool:
        """Whether a revision without a handshake may be tried."""
        return self._link.modern

    @property
    def reconnects(self) -> bool:
        """Whether a request may get through after another one was lost."""
        return self._link.reconnects

    def agreed(self, revision: Revision) -> None:
        """What follows is said in this revision."""
        self.answers_ping = revision.handshake
        self._link.agreed(revision)

    # ── in ──

    def receive(self, message: bytes, about: RequestId | None = None) -> None:
        if self._over is not None:
            return
        self._note("received", message)
        try:
            decoded = jsonrpc.decode(message)
        except BadMessage as bad:
            self._complaints.add("the server sent something that is no message: %s", bad.message)
            return
        for part in decoded if isinstance(decoded, list) else [decoded]:
            if self.is_over:
                return  # what came first has ended it
            if isinstance(part, BadMessage):
                self._complaints.add("the server sent something that is no message: %s", part.message)
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
            self._complaints.add("the server could not read a message: %s", failure_of("a message", message.error))

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
        if isinstance(message.id, str) and len(message.id) > MAX_ID_LENGTH:
            self._complaints.add("the server asked under an id that is too long: %s…", message.id[:100])
            return
        if message.method == "ping" and self.answers_ping:
            self.write(jsonrpc.result(message.id, b"{}"))
            return
        assert isinstance(message.method, str)
        try:
            self._questions.take(message.id, self._audience.prepare(message.method, message.params))
        except ProtocolError as refusal:
            self.write(jsonrpc.error(message.id, refusal))

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
            if pending.limit is not None and pending.timeout is not None:
                pending.limit.extend(pending.timeout, pending.max_timeout)
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
        self._complaints.sum_up()
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
            task = asyncio.get_running_loop().create_task(_guarded(outcome))
            self._handlers.add(task)
            task.add_done_callback(self._handlers.discard)

    def _note(self, direction: Direction, message: bytes) -> None:
        if self._transcript is not None:
            self.run_handler(self._transcript, direction, message)


def _lateness(limit: TimeLimit, timeout: float, max_timeout: float) -> str:
    if not limit.is_extended:
        return f"no answer within {timeout:g} s"
    if limit.is_last:
        return f"progress, but no answer within {max(timeout, max_timeout):g} s"
    return f"no progress for {timeout:g} s"


async def _guarded(work: Awaitable[Any]) -> None:
    try:
        await work
    except Exception:
        log.exception("a handler of the client's failed")


def failure_of(method: str, error: Any) -> ServerError | BadAnswer:
    """The error of an answer, as it is raised."""
    try:
        failure = msgspec.json.decode(error, type=_Failure)
    except UNREADABLE as bad:
        return BadAnswer(f"{method}: the server's error can't be read: {in_client_words(bad)}")
    seconds = failure.data.get("retryAfter") if isinstance(failure.data, dict) else None
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0:
        return TooManyRequests(failure.code, failure.message, failure.data, retry_after=min(seconds, LONGEST_RETRY))
    return ServerError(failure.code, failure.message, failure.data)
