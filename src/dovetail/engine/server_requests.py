"""Requests to the client: `request_input` for every revision, and `LiveRequests`, which wait, up to 2025-11-25.

A pending request is in the table of its connection, or over HTTP in that of its worker (`PendingRequests`). Where
workers share a state, it is a key there too: the client may send its response to any of them.
"""

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail import engine as lazy
from dovetail import errors
from dovetail.engine.concurrency import HeldSlots, paused_timeouts, with_timeout
from dovetail.engine.options import MAX_ANSWER_TIMEOUT
from dovetail.engine.request_context import (
    Checkpoint,
    ClientChannel,
    RequestContext,
    refuse_in_step,
    server_requests_of,
)
from dovetail.engine.threads import thread_slot_lent, waiting_thread
from dovetail.protocol import jsonrpc
from dovetail.protocol.capabilities import require_client_support
from dovetail.protocol.elicitation import InputRequest, InputRequired, restore_answer
from dovetail.protocol.jsonrpc import UNREADABLE, BadMessage, Envelope, encode
from dovetail.protocol.request_state import MAX_ROUNDS
from dovetail.protocol.revisions import Revision
from dovetail.registry.elicitation import ElicitUrl
from dovetail.schema.encode import to_jsonable
from dovetail.state.base import MAX_TTL, Codec, Conflict, Listener, StateBackend, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.engine.input_required import Steps

T = TypeVar("T")
Send = Callable[[bytes], Coroutine[Any, Any, None]]
IsReachable = Callable[[], Awaitable[bool]]

MAX_REQUESTS_PER_CALL = 32  # at once; further ones wait, so that other calls of the same client can send theirs
MAX_REQUESTS_PER_CLIENT = 100  # pending
MAX_PENDING_REQUESTS = 10_000  # to all clients of one process, over HTTP
MAX_CACHED_BYTES = 256 * 1024  # of responses that a call caches in case its function runs again
MAX_URL_ELICITATIONS = 100  # of one session
UNREAD_RESPONSE_TTL = 60.0  # seconds; a response stays unread only if the worker that sent the request has died

CALL_ENDED = "The client can't be asked any more: the call is over"
NOT_INITIALIZED = "The client can't be asked yet: it has not sent notifications/initialized"
CONNECTION_CLOSED = "The client can't answer any more: its connection has closed"
REQUEST_LOST = "The question to the client was lost: the server's state store has forgotten it"
CLIENT_DISCONNECTED = "The client can't answer any more: it has closed its connection and did not reconnect"
SERVER_STOPPING = "The client can't answer any more: the server is shutting down"


async def request_input(engine: "Engine", context: RequestContext, input_request: InputRequest[T], timeout: Any) -> T:
    """The checked response, in every revision. Raises MissingCapability if the client can't answer such a request."""
    refuse_in_step()
    if timeout is None:
        timeout = engine.options.answer_timeout
    elif not isinstance(timeout, (int, float)) or not 0 < timeout <= MAX_ANSWER_TIMEOUT:
        raise ValueError(f"timeout={timeout!r} of a question must be a number of seconds, above 0, and a year at most")
    response = await server_requests_of(engine, context).request(input_request, float(timeout))
    return input_request.read(response, context.request.revision)


class LiveRequests:
    """The server requests of a call that keeps running while it waits for the responses."""

    needs_input = False

    def __init__(self, engine: "Engine", context: RequestContext) -> None:
        self._engine = engine
        self._context = context
        self._revision: Revision = context.request.revision
        self._steps: Steps | None = None  # from the first one on
        self._slots = asyncio.Semaphore(MAX_REQUESTS_PER_CALL)
        self._pending: set[asyncio.Task[Any]] = set()  # tasks that wait for responses
        self._rounds = 0
        self._responses: dict[tuple[str, int], Raw] = {}  # by digest of the request, and its occurrence in one run
        self._cached_bytes = 0
        self._occurrences: Counter[str] = Counter()
        self.input_responses: Mapping[str, Any] = {}
        self.request_state: Any = None
        context.before_response.append(self._cancel_pending)

    async def request(self, input_request: InputRequest[Any], timeout: float) -> Raw:
        """Send the request once, even if the function runs again after InputRequired."""
        digest = input_request.server_request.digest
        self._occurrences[digest] += 1
        key = digest, self._occurrences[digest]
        response = self._responses.get(key)
        if response is None:
            response = await self._send(input_request, timeout)
            self._cached_bytes += len(bytes(response))
            if self._cached_bytes <= MAX_CACHED_BYTES:  # else a second run sends the request again
                self._responses[key] = response
        return response

    async def _send(self, input_request: InputRequest[Any], timeout: float) -> Raw:
        self._check(input_request)
        if isinstance(input_request, ElicitUrl):
            await self._register_url(input_request)
        slots = self._context.slots or HeldSlots()
        task = asyncio.current_task()
        assert task is not None
        pool_place = nullcontext() if waiting_thread.get() is None else thread_slot_lent()
        with paused_timeouts(), pool_place:  # the time that the client takes does not count against the function
            async with slots.released(), self._slots:
                if slots.closed:
                    raise errors.QuestionFailed(CALL_ENDED)  # the function has ended while this request was queued
                self._pending.add(task)
                try:
                    exchange: Awaitable[Any] = self._exchange(input_request, timeout)
                    method, metrics = input_request.server_request.method, self._engine.metrics
                    telemetry = (self._context.served or self._engine).telemetry
                    if metrics is not None:
                        exchange = lazy.metrics.asked(metrics, exchange)
                    return await (exchange if telemetry is None else telemetry.ask(method, exchange))
                finally:
                    self._pending.discard(task)

    def _check(self, input_request: InputRequest[Any]) -> None:
        """Raises unless the client is reachable and has the capabilities that a request needs."""
        request = input_request.server_request
        if self._context.channel is None:
            missing: dict[str, Any] = {path.partition(".")[0]: {} for path in request.requires}
            raise errors.MissingCapability(missing, self._context.no_channel_reason)
        require_client_support(request, self._revision, self._context.request.capabilities)

    async def _exchange(self, input_request: InputRequest[Any], timeout: float) -> Raw:
        """The client's result for one request."""
        assert self._context.channel is not None
        method, params = input_request.server_request.method, encode(input_request.params(self._revision))
        async with self._context.channel.pending(method, timeout) as request:
            return await request.result(method, params, timeout)

    async def _register_url(self, input_request: ElicitUrl) -> None:
        """Register a URL before its request is sent: `complete_elicitation` then works until the session ends."""
        session, channel = self._context.request.session, self._context.channel
        if self._revision.elicitation_ids and session is not None and channel is not None:
            await self._engine.elicitations.register(session.id, input_request.elicitation_id, channel)

    async def _cancel_pending(self) -> None:
        """Cancel pending requests, so that the client gets the cancellations before the response."""
        pending = self._pending.difference([asyncio.current_task()])
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=2.0)

    def checkpoint(self) -> Checkpoint:
        return self._occurrences.copy(), Counter() if self._steps is None else self._steps.occurrences.copy()

    def restart(self, checkpoint: Checkpoint | None = None) -> None:
        requests, steps = checkpoint or (Counter(), Counter())
        self._occurrences = requests.copy()
        if self._steps is not None:
            self._steps.occurrences = steps.copy()

    async def request_all(self, required: InputRequired) -> None:
        """Send all requests at once. The function then runs again, as if the client had made a second round."""
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            raise errors.ToolError(f"This call can't go on: it has asked {MAX_ROUNDS} times without coming to an end")
        timeout, requests = self._engine.options.answer_timeout, required.requests
        for input_request in requests.values():
            self._check(input_request)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {key: group.create_task(self._send(each, timeout)) for key, each in requests.items()}
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        answers = {key: _parse_object(key, task.result()) for key, task in tasks.items()}
        self.input_responses = {
            key: restore_answer(requests[key].server_request, answer, self._revision) for key, answer in answers.items()
        }
        self.request_state = None if required.state is UNSET else to_jsonable(required.state)

    async def require_urls(self, required: errors.UrlElicitationRequired) -> None:
        for input_request in required.elicitations:
            self._check(input_request)
            await self._register_url(input_request)
        data = {"elicitations": [input_request.params(self._revision) for input_request in required.elicitations]}
        raise errors.ProtocolError(str(required), code=errors.URL_ELICITATION_REQUIRED, data=data)

    async def wait_for_steps(self) -> None:
        if self._steps is not None:
            await self._steps.wait()

    def check_replay(self) -> None:
        """Check nothing: the call had one run."""

    async def step(self, name: str, function: Callable[[], Any], *, in_thread: bool) -> Any:
        if self._steps is None:
            self._steps = lazy.input_required.Steps(self._engine, {})
        return await self._steps.run(name, function, in_thread=in_thread)


def _parse_object(key: str, response: Raw) -> Any:
    """Parse a response that only the function reads. Since 2026-07-28 it has to be an object too."""
    with suppress(BadMessage):
        if isinstance(value := jsonrpc.parse(response), dict):
            return value
    raise errors.QuestionFailed(f"The client's answer to {key} can't be used: it must be an object")


# ── one request and its response ──


class ClientResponse(msgspec.Struct, frozen=True, array_like=True):
    """The client's result or error, as the client sent it."""

    is_result: bool
    body: bytes

    @classmethod
    def from_envelope(cls, message: Envelope) -> "ClientResponse":
        if not isinstance(message.result, UnsetType):
            return cls(True, bytes(message.result))
        assert not isinstance(message.error, UnsetType)
        return cls(False, bytes(message.error))


class _Abandoned(errors.QuestionFailed):
    """The call stops waiting, although the client may still have the request: it is sent a cancellation."""


class PendingRequest:
    """A request to a client that has no response yet."""

    def __init__(self, table: "PendingRequests", client: str, send: Send, is_reachable: IsReachable) -> None:
        self._table = table
        self._send = send
        self._is_reachable = is_reachable
        self._updated = asyncio.Event()
        self._failure = ""  # why there will be no response
        self.id = f"dovetail-{os.urandom(8).hex()}"
        self.key = f"server-request/{client}/{self.id}"
        self.response: ClientResponse | None = None

    def deliver(self, response: ClientResponse | None, failure: str = "") -> None:
        """Take the client's first response; later ones are ignored. None is progress, which extends the timeout."""
        self.response = self.response or response
        self._failure = "" if self.response is not None else self._failure or failure
        self._updated.set()

    async def result(self, method: str, params: bytes, timeout: float) -> Raw:
        """Send the request and wait for its result. If the call stops waiting, the client is sent a cancellation."""
        request = jsonrpc.request(self.id, method, _with_progress_token(params, self.id))
        try:
            async with asyncio.timeout(timeout) as limit:
                await self._send(request)
                await self._wait_for_response(limit, timeout)
        except (asyncio.CancelledError, _Abandoned) as failure:
            await self._cancel(str(failure) if isinstance(failure, _Abandoned) else "The call that asked has ended")
            raise
        except TimeoutError:
            if not limit.expired():  # raised by the transport
                raise
            await self._cancel("No answer came in time")
            raise errors.AnswerTimeout(f"The client did not answer {method} within {timeout:g} s") from None
        assert self.response is not None
        if not self.response.is_result:
            raise question_failed(method, self.response.body)
        return Raw(self.response.body)

    async def _wait_for_response(self, limit: asyncio.Timeout, timeout: float) -> None:
        """Wait for the response. Progress restarts the timeout, up to `max_extensions` times its length in all."""
        loop, table = asyncio.get_running_loop(), self._table
        deadline, missed = loop.time() + timeout * table.max_extensions, 0
        while self.response is None:
            try:
                async with asyncio.timeout(table.check_interval):
                    await self._updated.wait()
            except TimeoutError:
                with suppress(StoreUnavailable):
                    if not await table.poll(self):
                        raise errors.QuestionFailed(REQUEST_LOST) from None
                    missed = 0 if self._updated.is_set() or await self._is_reachable() else missed + 1
                if missed >= table.max_missed:
                    raise _Abandoned(CLIENT_DISCONNECTED) from None
                continue
            if self._failure:
                raise _Abandoned(self._failure)
            self._updated.clear()
            missed = 0
            limit.reschedule(min(loop.time() + timeout, deadline))

    async def _cancel(self, reason: str) -> None:
        """Send a cancellation. Shielded: a failing sibling may cancel this task while the cancellation is sent."""
        params = encode({"requestId": self.id, "reason": reason})
        sending = asyncio.create_task(self._try_to_send(jsonrpc.notification("notifications/cancelled", params)))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait({sending})
            raise

    async def _try_to_send(self, message: bytes) -> None:
        with suppress(Exception):
            await with_timeout(self._send(message), self._table.cancel_timeout)


def _with_progress_token(params: bytes, id: str) -> bytes:
    members = jsonrpc.members(params)
    meta = jsonrpc.members(members["_meta"]) if "_meta" in members else {}
    meta.setdefault("progressToken", Raw(encode(id)))
    return encode({**members, "_meta": meta})


class _ClientError(msgspec.Struct, frozen=True):
    code: int | None = None
    message: str = ""


def question_failed(method: str, error: bytes, longest: int = 500) -> errors.QuestionFailed:
    """The failure for an error of the client; its message is cut and cleaned, because a model will read it."""
    try:
        given = msgspec.json.decode(error, type=_ClientError)
    except UNREADABLE:
        given = _ClientError()
    message = "".join(each if each.isprintable() else " " for each in given.message[:longest]).strip()
    if len(given.message) > longest:
        message += "…"
    reason = message or ("it did not say why" if given.code is None else f"error {given.code}")
    return errors.QuestionFailed(f"The client could not answer {method}: {reason}", code=given.code)


# ── all pending requests ──


_OWN_ID = re.compile(r"dovetail-[0-9a-f]{16}")
_PENDING = b""  # the value of a key in the store until the response is there
_codec: Codec[ClientResponse] = Codec(ClientResponse, "answer")


async def _always() -> bool:
    return True


class PendingRequests:
    """The pending requests to the client of one connection, or to the clients of all sessions at one worker."""

    def __init__(
        self, state: StateBackend | None = None, *, check_interval: float | None = None, max_missed: int = 4,
        max_extensions: int = 3, cancel_timeout: float = 1.0, max_requests: int = MAX_PENDING_REQUESTS,
    ) -> None:  # fmt: skip
        """The client is given up after `max_missed` failed checks in a row, one every `check_interval` seconds."""
        self._state = state if state is not None and state.shared else None
        self._requests: dict[str, dict[object, PendingRequest]] = {}  # by client and id
        self.count = 0
        self._max_requests = max_requests
        self._closed = ""
        self.check_interval, self.max_missed = check_interval, max_missed
        self.max_extensions, self.cancel_timeout = max_extensions, cancel_timeout

    @asynccontextmanager
    async def open(
        self, client: str, timeout: float, send: Send, is_reachable: IsReachable = _always
    ) -> AsyncIterator[PendingRequest]:
        """Register a request that is about to be sent; it is pending until the end of the context."""
        if self._closed:
            raise errors.QuestionFailed(self._closed)
        requests = self._requests.get(client, {})
        if len(requests) >= MAX_REQUESTS_PER_CLIENT:
            raise errors.Busy(
                f"{MAX_REQUESTS_PER_CLIENT} questions wait for this client's answers already; ask less at once"
            )
        if self.count >= self._max_requests:
            raise errors.Busy("The server waits for the answers of too many clients; try again later", http_status=503)
        request = PendingRequest(self, client, send, is_reachable)
        requests = self._requests.setdefault(client, requests)
        requests[request.id] = request
        self.count += 1
        try:
            async with nullcontext() if self._state is None else self._shared(self._state, request, timeout):
                yield request
        finally:
            self.count -= 1
            del requests[request.id]
            if not requests:
                del self._requests[client]

    @asynccontextmanager
    async def _shared(self, state: StateBackend, request: PendingRequest, timeout: float) -> AsyncIterator[None]:
        """Put the request into the store, where other workers find it. If this worker dies, the key expires."""
        ttl = min(timeout * self.max_extensions + UNREAD_RESPONSE_TTL, MAX_TTL)
        listener = state.listen([request.key])
        listening = asyncio.create_task(self._listen(request, listener))
        try:
            await state.put(request.key, _PENDING, ttl=ttl, if_version=0)
            yield
        finally:
            listener.close()
            with suppress(StoreUnavailable):  # it expires
                await state.delete(request.key)
            await listening

    async def _listen(self, request: PendingRequest, listener: Listener) -> None:
        while await listener.wait():
            with suppress(StoreUnavailable):  # the next check polls again
                await self.poll(request)
            request.deliver(None)

    def deliver(self, client: str, id: object, response: ClientResponse | None = None) -> bool:
        """Pass on a client's response, or progress if None. False if this process has no such request pending."""
        request = self._requests.get(client, {}).get(id)
        if request is not None:
            request.deliver(response)
        return request is not None

    async def deliver_anywhere(self, client: str, id: object, response: ClientResponse | None = None) -> None:
        """Pass on a response to a request of any worker; ignored if no request of this client is pending for it."""
        if self.deliver(client, id, response) or self._state is None or not _OWN_ID.fullmatch(str(id)):
            return
        key = f"server-request/{client}/{id}"
        entry = await self._state.get(key)
        if entry is None:
            return
        if response is not None and entry.value == _PENDING:
            with suppress(Conflict):  # another response was there first
                await self._state.put(key, _codec.encode(response), ttl=UNREAD_RESPONSE_TTL, if_version=entry.version)
        await self._state.publish(key)

    async def poll(self, request: PendingRequest) -> bool:
        """Deliver a response that another worker has put into the store. False if the store has lost the request."""
        if self._state is None:
            return True
        entry = await self._state.get(request.key)
        if entry is not None and entry.value != _PENDING:
            request.deliver(_codec.decode(entry.value))
        return entry is not None or request.response is not None

    async def is_pending(self, client: str, id: str) -> bool:
        """Whether any worker waits for the response."""
        request = self._requests.get(client, {}).get(id)
        if request is not None or self._state is None:
            return request is not None and request.response is None
        entry = await self._state.get(f"server-request/{client}/{id}")
        return entry is not None and entry.value == _PENDING

    def close(self, reason: str = SERVER_STOPPING) -> None:
        self._closed = reason
        for requests in self._requests.values():
            for request in requests.values():
                request.deliver(None, failure=reason)


# ── URL elicitations ──


class SharedUrlElicitations(Protocol):
    """The URL elicitations of all workers."""

    async def register_elicitation(self, session: str, id: str) -> None: ...

    async def unregister_elicitation(self, id: str) -> str | None:
        """Unregister; returns the session to notify, or None if another worker was first."""

    async def notify_session(self, id: str, message: bytes) -> None: ...


class UrlElicitations:
    """The URL elicitations of all sessions: who gets `notifications/elicitation/complete` when a user is done."""

    def __init__(self) -> None:
        self.shared: SharedUrlElicitations | None = None  # where several workers share a state
        self._channels: dict[str, dict[str, ClientChannel]] = {}  # by session and elicitation id, the oldest first

    async def register(self, session: str, id: str, channel: ClientChannel) -> None:
        channels = self._channels.setdefault(session, {})
        channels[id] = channel
        if len(channels) > MAX_URL_ELICITATIONS:
            del channels[next(iter(channels))]
        if self.shared is not None:
            await self.shared.register_elicitation(session, id)

    def forget_session(self, session: str) -> None:
        self._channels.pop(session, None)

    async def complete(self, id: str) -> bool:
        """Notify the clients that were asked with this id, and no others. False if there are none."""
        notified = {session: channels.pop(id) for session, channels in self._channels.items() if id in channels}
        self._channels = {session: channels for session, channels in self._channels.items() if channels}
        message = jsonrpc.notification("notifications/elicitation/complete", encode({"elicitationId": id}))
        if self.shared is not None:
            session = await self.shared.unregister_elicitation(id)
            if session is None:  # another worker has notified it
                return False
            if session not in notified:
                await self.shared.notify_session(session, message)
                return True
        for channel in notified.values():
            await channel.notify(message)
        return bool(notified)
