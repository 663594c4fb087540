"""Requests to the client up to 2025-11-25: a running call sends one and waits for the client's answer.

A request that waits is in the table of its connection, or over HTTP in that of its worker (`PendingRequests`). Where
workers share a state, it is a key there too: the client may send its answer to any of them.
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
from dovetail.engine.concurrency import HeldSlots, paused_timeouts, with_timeout
from dovetail.engine.options import MAX_ANSWER_TIMEOUT
from dovetail.engine.request_context import ClientChannel, Mark, RequestContext, client_requests_of, refuse_in_step
from dovetail.engine.threads import thread_slot_lent, waiting_thread
from dovetail.errors import (
    URL_ELICITATION_REQUIRED,
    AnswerTimeout,
    Busy,
    MissingCapability,
    ProtocolError,
    QuestionFailed,
    ToolError,
    UrlElicitationRequired,
)
from dovetail.protocol import jsonrpc
from dovetail.protocol.capabilities import require_askable
from dovetail.protocol.elicitation import InputRequest, InputRequired
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
IsThere = Callable[[], Awaitable[bool]]  # whether the client can still be reached

MAX_AT_ONCE = 32  # questions of one call; its others wait, so that it leaves room for other calls of its client
MAX_OPEN = 100  # questions to one client that wait for an answer
MAX_SHARED = 10_000  # to all clients of one process, over HTTP
MAX_KEPT = 256 * 1024  # bytes of answers that a call keeps for the case that its function is called again
MAX_VISITS = 100  # of one session
UNREAD_SECONDS = 60.0  # an answer is read at once, unless the worker that asked is gone

CALL_IS_OVER = "The client can't be asked any more: the call is over"
NOT_READY = "The client can't be asked yet: it has not sent notifications/initialized"
GONE = "The client can't answer any more: its connection has closed"
LOST = "The question to the client was lost: the server's state store has forgotten it"
LEFT = "The client can't answer any more: it has closed its connection and did not come back"
STOPPING = "The client can't answer any more: the server is shutting down"


# ── from a question of a function to its answer, in every revision ──


async def ask(engine: "Engine", context: RequestContext, inquiry: InputRequest[T], timeout: Any) -> T:
    """The checked answer. Raises MissingCapability before anything is sent to a client that can't answer."""
    refuse_in_step()
    if timeout is None:
        timeout = engine.options.answer_timeout
    elif not isinstance(timeout, (int, float)) or not 0 < timeout <= MAX_ANSWER_TIMEOUT:
        raise ValueError(f"timeout={timeout!r} of a question must be a number of seconds, above 0, and a year at most")
    answer = await client_requests_of(engine, context).answer(inquiry, float(timeout))
    return inquiry.read(answer, context.request.revision)


class LiveRequests:
    """The interview of a call that stays open while its client is asked."""

    is_waiting = False

    def __init__(self, engine: "Engine", context: RequestContext) -> None:
        self._engine = engine
        self._context = context
        self._revision: Revision = context.request.revision
        self._steps: Steps | None = None  # from the first one on
        self._room = asyncio.Semaphore(MAX_AT_ONCE)
        self._asking: set[asyncio.Task[Any]] = set()  # that wait for answers
        self._rounds = 0
        self._answers: dict[tuple[str, int], Raw] = {}  # what was asked, and the how-manieth time in one run
        self._kept = 0  # bytes of answers
        self._occurrences: Counter[str] = Counter()
        self.input_responses: Mapping[str, Any] = {}
        self.request_state: Any = None
        context.finish.append(self._call_off)

    async def answer(self, inquiry: InputRequest[Any], timeout: float) -> Raw:
        """Asked once, also if the function is called again because it has asked by itself."""
        digest = inquiry.question.digest
        self._occurrences[digest] += 1
        place = digest, self._occurrences[digest]
        answer = self._answers.get(place)
        if answer is None:
            answer = await self._request(inquiry, timeout)
            self._kept += len(bytes(answer))
            if self._kept <= MAX_KEPT:  # else it is asked again, if it comes to that
                self._answers[place] = answer
        return answer

    async def _request(self, inquiry: InputRequest[Any], timeout: float) -> Raw:
        back, method = self._back(inquiry), inquiry.question.method
        if isinstance(inquiry, ElicitUrl):
            await self._remember(inquiry, back)
        params = encode(inquiry.params(self._revision))
        slots = self._context.slots or HeldSlots()
        task = asyncio.current_task()
        assert task is not None
        place = nullcontext() if waiting_thread.get() is None else thread_slot_lent()
        with paused_timeouts(), place:  # what else the function does meanwhile costs it nothing
            async with slots.released(), self._room:
                if slots.closed:
                    raise QuestionFailed(CALL_IS_OVER)  # it had to wait, and its function did not wait for it
                self._asking.add(task)
                try:
                    async with back.pending(method, timeout) as pending:
                        return await pending.result(method, params, timeout)
                finally:
                    self._asking.discard(task)

    def _back(self, inquiry: InputRequest[Any]) -> ClientChannel:
        """Raises unless there is a way, and the client understands the question."""
        back, question = self._context.back, inquiry.question
        if back is None:
            missing: dict[str, Any] = {path.partition(".")[0]: {} for path in question.requires}
            raise MissingCapability(missing, self._context.no_way_back)
        require_askable(question, self._revision, self._context.request.capabilities)
        return back

    async def _remember(self, visit: ElicitUrl, back: ClientChannel) -> None:
        """The client may be told that the user is done at a URL, from before it is asked until its session ends."""
        session = self._context.request.session
        if self._revision.elicitation_ids and session is not None:
            elicitations = self._engine.elicitations
            elicitations.began(session.id, visit.elicitation_id, back)
            if elicitations.far is not None:
                await elicitations.far.visit_began(session.id, visit.elicitation_id)

    async def _call_off(self) -> None:
        """The call ends: what it leaves open is called off before its answer goes out."""
        left = self._asking.difference([asyncio.current_task()])
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=2.0)

    def mark(self) -> Mark:
        return self._occurrences.copy(), Counter() if self._steps is None else self._steps.met.copy()

    def begin_again(self, mark: Mark | None = None) -> None:
        questions, steps = mark or (Counter(), Counter())
        self._occurrences = questions.copy()
        if self._steps is not None:
            self._steps.met = steps.copy()

    async def ask_together(self, required: InputRequired) -> None:
        """The questions go out together; then the function is called again, as the client of today would do it."""
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            raise ToolError(f"This call can't go on: it has asked {MAX_ROUNDS} times without coming to an end")
        timeout = self._engine.options.answer_timeout
        for inquiry in required.requests.values():
            self._back(inquiry)
        try:
            async with asyncio.TaskGroup() as group:
                asked = {
                    key: group.create_task(self._request(each, timeout)) for key, each in required.requests.items()
                }
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        self.input_responses = {key: _object(key, task.result()) for key, task in asked.items()}
        self.request_state = None if required.state is UNSET else to_jsonable(required.state)

    async def require_urls(self, required: UrlElicitationRequired) -> None:
        for inquiry in required.elicitations:
            await self._remember(inquiry, self._back(inquiry))
        data = {"elicitations": [inquiry.params(self._revision) for inquiry in required.elicitations]}
        raise ProtocolError(str(required), code=URL_ELICITATION_REQUIRED, data=data)

    async def settle(self) -> None:
        if self._steps is not None:
            await self._steps.settle()

    def finished(self) -> None:
        """There was only one run, which can't differ from itself."""

    async def step(self, name: str, function: Callable[[], Any], *, in_thread: bool) -> Any:
        if self._steps is None:
            self._steps = lazy.input_required.Steps(self._engine, {})
        return await self._steps.run(name, function, in_thread=in_thread)


def _object(key: str, answer: Raw) -> Any:
    """An answer that only the function itself reads; in the later era others would not come so far either."""
    try:
        value = jsonrpc.parse(answer)
    except BadMessage:
        value = None
    if not isinstance(value, dict):
        raise QuestionFailed(f"The client's answer to {key} can't be used: it must be an object")
    return value


# ── one request, and its reply ──


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


class _GivenUp(QuestionFailed):
    """The call waits no longer. The client may have the question still, and is told that it need not answer."""


class PendingRequest:
    """A request to a client that waits for its answer."""

    def __init__(self, table: "PendingRequests", client: str, send: Send, is_there: IsThere) -> None:
        self._table = table
        self._send = send
        self._is_there = is_there
        self._news = asyncio.Event()
        self._failure = ""  # why there will be no answer
        self.id = f"dovetail-{os.urandom(8).hex()}"
        self.key = f"question/{client}/{self.id}"
        self.reply: Reply | None = None

    def take(self, reply: Reply | None, failure: str = "") -> None:
        """The answer, of which the first counts; nothing is a sign of life."""
        self.reply = self.reply or reply
        self._failure = "" if self.reply is not None else self._failure or failure
        self._news.set()

    async def result(self, method: str, params: bytes, timeout: float) -> Raw:
        """Send it and wait for its result. If the call stops waiting, the client is told that it need not answer."""
        request = jsonrpc.request(self.id, method, _with_token(params, self.id))
        try:
            async with asyncio.timeout(timeout) as limit:
                await self._send(request)
                await self._answered(limit, timeout)
        except asyncio.CancelledError:
            await self._call_off("The call that asked has ended")
            raise
        except _GivenUp as failure:
            await self._call_off(str(failure))
            raise
        except TimeoutError:
            if not limit.expired():  # of the way to the client
                raise
            await self._call_off("No answer came in time")
            raise AnswerTimeout(f"The client did not answer {method} within {timeout:g} s") from None
        assert self.reply is not None
        if not self.reply.is_result:
            raise _refusal(method, self.reply.body)
        return Raw(self.reply.body)

    async def _answered(self, limit: asyncio.Timeout, timeout: float) -> None:
        """Returns when the answer is there. Progress makes the time begin anew, but not for ever."""
        loop, table = asyncio.get_running_loop(), self._table
        last, missed = loop.time() + timeout * table.extensions, 0
        while self.reply is None:
            try:
                async with asyncio.timeout(table.beat):
                    await self._news.wait()
            except TimeoutError:
                with suppress(StoreUnavailable):
                    if await table.look(self):
                        return
                    if not await table.is_known(self):
                        raise QuestionFailed(LOST) from None
                    missed = 0 if await self._is_there() else missed + 1
                if missed >= table.beats:
                    raise _GivenUp(LEFT) from None
                continue
            if self._failure:
                raise _GivenUp(self._failure)
            self._news.clear()
            missed = 0
            limit.reschedule(min(loop.time() + timeout, last))

    async def _call_off(self, reason: str) -> None:
        """The client need not answer; if it can't be told, nothing waits for that.

        Questions often end together: the first that fails may end the others while they are at this.
        """
        params = encode({"requestId": self.id, "reason": reason})
        telling = asyncio.create_task(self._tell(jsonrpc.notification("notifications/cancelled", params)))
        try:
            await asyncio.shield(telling)
        except asyncio.CancelledError:
            await asyncio.wait({telling})
            raise

    async def _tell(self, message: bytes) -> None:
        with suppress(Exception):
            await with_timeout(self._send(message), self._table.call_off)


def _with_token(params: bytes, id: str) -> bytes:
    """So that the client can report progress, which gives it more time."""
    members = jsonrpc.members(params)
    meta = jsonrpc.members(members["_meta"]) if "_meta" in members else {}
    meta.setdefault("progressToken", Raw(encode(id)))
    return encode({**members, "_meta": meta})


class _ClientError(msgspec.Struct, frozen=True):
    code: int | None = None
    message: str = ""


def _refusal(method: str, error: bytes, longest: int = 500) -> QuestionFailed:
    """A client's error in words; the client's own are cut and cleaned, for a model will read them."""
    try:
        said = msgspec.json.decode(error, type=_ClientError)
    except UNREADABLE:
        said = _ClientError()
    message = "".join(each if each.isprintable() else " " for each in said.message[:longest]).strip()
    if len(said.message) > longest:
        message += "…"
    reason = message or ("it did not say why" if said.code is None else f"error {said.code}")
    return QuestionFailed(f"The client could not answer {method}: {reason}", code=said.code)


# ── all requests that wait ──


_OWN_ID = re.compile(r"dovetail-[0-9a-f]{16}")
_OPEN = b""  # the value of a question that has no answer yet
_codec: Codec[Reply] = Codec(Reply, "answer")


async def _always() -> bool:
    return True


class PendingRequests:
    """The requests that wait for the client of one pipe, or for those of all sessions at one worker."""

    def __init__(
        self, state: StateBackend | None = None, *,
        beat: float | None = None, beats: int = 4, extensions: int = 3, call_off: float = 1.0, most: int = MAX_SHARED,
    ) -> None:  # fmt: skip
        """Every `beat` seconds the client is looked for; one that is not there for `beats` in a row is given up.

        One that reports progress gets `extensions` times the timeout. It takes `call_off` seconds at most to tell a
        client that it need not answer. `most` requests may wait.
        """
        self._state = state if state is not None and state.shared else None
        self._requests: dict[str, dict[object, PendingRequest]] = {}  # by client and id
        self.waiting = 0
        self._most = most
        self._closed = ""
        self.beat, self.beats, self.extensions, self.call_off = beat, beats, extensions, call_off

    @asynccontextmanager
    async def open(
        self, client: str, timeout: float, send: Send, is_there: IsThere = _always
    ) -> AsyncIterator[PendingRequest]:
        """A request that is about to be sent, until it is answered."""
        if self._closed:
            raise QuestionFailed(self._closed)
        requests = self._requests.get(client, {})
        if len(requests) >= MAX_OPEN:
            raise Busy(f"{MAX_OPEN} questions wait for this client's answers already; ask less at once")
        if self.waiting >= self._most:
            raise Busy("The server waits for the answers of too many clients; try again later", http_status=503)
        request = PendingRequest(self, client, send, is_there)
        requests = self._requests.setdefault(client, requests)
        requests[request.id] = request
        self.waiting += 1
        try:
            if self._state is None:
                yield request
            else:
                async with self._shared(self._state, request, timeout):
                    yield request
        finally:
            self.waiting -= 1
            del requests[request.id]
            if not requests:
                del self._requests[client]

    @asynccontextmanager
    async def _shared(self, state: StateBackend, request: PendingRequest, timeout: float) -> AsyncIterator[None]:
        """Other workers know of it, for longer than the call waits if this one dies."""
        ttl = min(timeout * self.extensions + UNREAD_SECONDS, MAX_TTL)
        listener = state.listen([request.key])
        hearing = asyncio.create_task(self._hear(request, listener))
        try:
            await state.put(request.key, _OPEN, ttl=ttl, if_version=0)
            yield
        finally:
            listener.close()
            with suppress(StoreUnavailable):  # it expires
                await state.delete(request.key)
            await hearing

    async def _hear(self, request: PendingRequest, listener: Listener) -> None:
        while await listener.wait():
            with suppress(StoreUnavailable):  # then the next beat looks
                await self.look(request)
            request.take(None)

    def take(self, client: str, id: object, reply: Reply | None = None) -> bool:
        """The answer of a client, or that it is at work on it. False if this process has not asked it that."""
        request = self._requests.get(client, {}).get(id)
        if request is not None:
            request.take(reply)
        return request is not None

    async def take_anywhere(self, client: str, id: object, reply: Reply | None = None) -> None:
        """The same for a request of any worker. An answer to nothing that this client was asked is ignored."""
        if self.take(client, id, reply) or self._state is None or not isinstance(id, str) or not _OWN_ID.fullmatch(id):
            return
        key = f"question/{client}/{id}"
        entry = await self._state.get(key)
        if entry is None:
            return
        if reply is not None and entry.value == _OPEN:
            with suppress(Conflict):  # another answer was quicker
                await self._state.put(key, _codec.encode(reply), ttl=UNREAD_SECONDS, if_version=entry.version)
        await self._state.publish(key)

    async def look(self, request: PendingRequest) -> bool:
        """Whether another worker has got the answer, which it then has."""
        entry = None if self._state is None else await self._state.get(request.key)
        if entry is not None and entry.value != _OPEN:
            request.take(_codec.decode(entry.value))
        return request.reply is not None

    async def is_known(self, request: PendingRequest) -> bool:
        """False if the store, which workers share, has lost it: no other worker could take its answer."""
        return self._state is None or await self._state.get(request.key) is not None

    async def is_open(self, client: str, id: str) -> bool:
        """Whether any worker waits for the answer."""
        request = self._requests.get(client, {}).get(id)
        if request is not None or self._state is None:
            return request is not None and request.reply is None
        entry = await self._state.get(f"question/{client}/{id}")
        return entry is not None and entry.value == _OPEN

    def close(self, reason: str = STOPPING) -> None:
        """No answers are taken any more."""
        self._closed = reason
        for requests in self._requests.values():
            for request in requests.values():
                request.take(None, failure=reason)


# ── visits to URLs ──


class SharedVisits(Protocol):
    """Visits of clients that any worker has asked."""

    async def visit_began(self, session: str, id: str) -> None: ...

    async def visit_ended(self, id: str) -> str | None:
        """The session that waits to be told, if one does: from now on it does not."""

    async def tell_session(self, id: str, message: bytes) -> None: ...


class Elicitations:
    """Visits to URLs that clients were asked for, so that they can be told when the user is done there."""

    def __init__(self) -> None:
        self.far: SharedVisits | None = None  # where the clients of other workers are reached
        self._visits: dict[str, dict[str, ClientChannel]] = {}  # by session and id, the oldest first

    def began(self, session: str, id: str, client: ClientChannel) -> None:
        visits = self._visits.setdefault(session, {})
        visits[id] = client
        if len(visits) > MAX_VISITS:
            del visits[next(iter(visits))]

    def ended(self, session: str, id: str) -> ClientChannel | None:
        """There is nothing to be told any more."""
        visits = self._visits.get(session, {})
        client = visits.pop(id, None)
        if not visits:
            self._visits.pop(session, None)
        return client

    def left(self, session: str) -> None:
        """The session has ended."""
        self._visits.pop(session, None)

    async def completed(self, id: str) -> bool:
        """Tell the clients that were asked with this id, and no others. False if there is none."""
        clients = {each: client for each in tuple(self._visits) if (client := self.ended(each, id)) is not None}
        message = jsonrpc.notification("notifications/elicitation/complete", encode({"elicitationId": id}))
        if self.far is not None:
            session = await self.far.visit_ended(id)
            if session is None:  # another worker has told it
                return False
            if session not in clients:
                await self.far.tell_session(session, message)
                return True
        for client in clients.values():
            await client.tell(message)
        return bool(clients)
