"""Calls that stay open between the rounds of a client of 2026-07-28: their work can't run again for an answer.

The work is a task of the worker where the call began. Its questions end the client's request; the request state names
the call, its worker and the round, and the next request brings the answers, perhaps to another worker. That one writes
them to the store and waits for what the worker of the call stores there: a result, an error or more questions.

    open-call/<id>            the outcome of the last round that was answered; its topic wakes the requests that wait
    open-call/<id>/<round>    the answers of a round, claimed: the first count
    open-call/<id>/cancelled  a client has cancelled a request that waited at another worker
    open-call/<id>/answers    no key: the topic that wakes the worker of the call
"""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

from dovetail.engine.caller_state import state_owner
from dovetail.engine.input_required import CALL_LIFETIME_FACTOR
from dovetail.engine.request_context import RequestContext
from dovetail.engine.workers import WorkerLease
from dovetail.errors import ProtocolError, QuestionFailed, ToolBusy, ToolError
from dovetail.protocol.capabilities import require_client_support
from dovetail.protocol.elicitation import MAX_INPUT_REQUESTS, InputRequest, ServerRequest
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.request_state import MAX_ROUNDS
from dovetail.protocol.revisions import Revision
from dovetail.schema.encode import OutputError, to_jsonable
from dovetail.state.base import Codec, Listener, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

MAX_OPEN_CALLS = 1000  # of one process, that have asked
MAX_PER_CALLER = 100
MAX_ANONYMOUS = 500  # of all callers that are not known
MAX_ANSWER_BYTES = 1024 * 1024  # of one round
MAX_STORED_BYTES = 4 * 1024 * 1024  # of a result for another worker
GATHER_TIME = 0.01  # seconds in which further questions join a round
OUTCOME_TTL = 120.0  # seconds that the end of a call is stored for repeats of its last request
POLL_INTERVAL = 1.0  # seconds; a lost worker wakes no request that waits for it
STORE_WAIT = 2.0  # seconds that questions wait for the store; then they are sent, and stored later
STORE_PATIENCE = 15.0  # seconds that a waiting request bears with a store that is unavailable
RECORD_WAIT = 5.0  # seconds to wait for the record of a call, which may be written late
RETRY_DELAY = 0.3  # seconds, for a store that is unavailable
STOP_WAIT = 2.0  # seconds that the work of calls gets to end when the server stops

LOST = "The call was lost with the worker that held it; whether it had its effect is not known"
GONE = "The call is not open any more: it was answered too late, or was cancelled; make it again from its beginning"
EXPIRED = "The call has ended because its questions were not answered in time; make it again from its beginning"
OTHER_ROUND = "These questions were answered already, and the call has gone on since"
CANCELLED = "The call was cancelled"
STOPPED = "The call was stopped because the server shuts down; whether it had its effect is not known"
TOO_LONG = "The call had an outcome, but it is too long to be handed over by the worker that holds the call"
BUSY = "Too many calls wait for answers to their questions; answer some, or try again later"
log = logging.getLogger("dovetail")


class Question(msgspec.Struct, frozen=True, array_like=True):
    """An `InputRequest` that can be stored; its result is read where it was made."""

    method: str
    rendered: dict[str, Any]
    requires: tuple[str, ...]

    @property
    def server_request(self) -> ServerRequest:
        return ServerRequest(method=self.method, params=self.rendered, requires=self.requires)

    def params(self, revision: Revision) -> dict[str, Any]:  # noqa: ARG002
        return self.rendered

    def read(self, result: bytes | Raw, revision: Revision) -> Raw:  # noqa: ARG002
        return Raw(bytes(result))


class Finished(NamedTuple):
    value: bytes


class Failed(NamedTuple):
    error: Exception


class Asks(NamedTuple):
    """What an `InputRequired` is made of."""

    requests: Mapping[str, Question]
    state: dict[str, Any]


class CallState(msgspec.Struct, frozen=True):
    """The sealed state of a round."""

    call: str
    worker: str
    round: int


class Error(msgspec.Struct, frozen=True, array_like=True):
    """A ProtocolError if it has a code; `is_own`: a ToolError, else an unexpected failure."""

    text: str
    is_own: bool = False
    code: int | None = None
    data: Any = None

    @classmethod
    def from_exception(cls, failure: Exception) -> "Error":
        if isinstance(failure, ToolError):
            return cls(str(failure), is_own=True)
        if not isinstance(failure, ProtocolError):
            return cls(f"{type(failure).__name__}: {failure}")
        data = None
        with suppress(OutputError):  # data that can't be sent either
            data = to_jsonable(failure.data)
        return cls(failure.message, code=failure.code, data=data)

    def to_exception(self) -> Exception:
        if self.code is not None:
            return ProtocolError(self.text, code=self.code, data=self.data)
        return ToolError(self.text) if self.is_own else RuntimeError(self.text)


class Record(msgspec.Struct, frozen=True):
    """The outcome of a round: what came after its answers, or before all rounds if it is 0."""

    round: int
    outcome: bytes | Error | dict[str, Question]


Outcome: TypeAlias = Finished | Failed | Asks
Run: TypeAlias = Callable[["OpenCall"], Coroutine[Any, Any, bytes]]
RECORDS: Codec[Record] = Codec(Record, "record of an open call")
NO_RECORD = Record(-1, b"")
ANSWERS: Codec[dict[str, bytes]] = Codec(dict[str, bytes], "record of answers")


def open_calls_of(engine: "Engine") -> "OpenCalls":
    """The open calls of a server, made for its first."""
    root = engine.root
    root.open_calls = root.open_calls or OpenCalls(root)
    return root.open_calls


class OpenCall:
    """One call and its work, which asks by `await call(request)`."""

    def __init__(self, calls: "OpenCalls", context: RequestContext, run: Run) -> None:
        self.id = secrets.token_hex(16)
        self.name = f"open-call/{self.id}"
        self.owner = state_owner(context)
        self.contexts: list[RequestContext] = []  # of the requests that wait, in this process
        self.round = 0  # whose questions were given out last
        self.answered = 0  # the last round that was answered
        self.record: tuple[Record, float] | None = None  # for other workers, and until when it is good
        self.stored: tuple[Record, float] | None = None  # what the store has of it
        self.storing: asyncio.Task[None] | None = None
        self._calls = calls
        self._revision, self._capabilities = context.request.revision, context.request.capabilities
        self._pending: dict[str, tuple[Question, asyncio.Future[Raw]]] = {}
        self._asked: frozenset[str] = frozenset()  # keys of the last round
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()  # of the round that was answered last
        self.end: Finished | Failed | None = None
        self._timer: asyncio.TimerHandle | None = None
        timeout = calls.engine.options.answer_timeout
        self._timeout, self._ends = timeout, self._loop.time() + CALL_LIFETIME_FACTOR * timeout
        self.task: asyncio.Task[bytes] = self._loop.create_task(run(self))
        self.task.add_done_callback(self._ended)

    @property
    def context(self) -> RequestContext | None:
        """The request that waits now, for progress and logs; None if none does, or at another worker."""
        return self.contexts[-1] if self.contexts else None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and its last request has got the end."""
        return self.end is not None and self.outcome.done() and self.answered == self.round

    async def __call__(self, request: InputRequest[Any]) -> Raw:
        """The client's raw result. Raises MissingCapability, QuestionFailed or ToolBusy if it can't be asked."""
        asked = request.server_request
        require_client_support(asked, self._revision, self._capabilities)
        if self.end is not None:
            raise QuestionFailed(CANCELLED)
        if len(self._pending) >= MAX_INPUT_REQUESTS:
            raise QuestionFailed(f"A call may have {MAX_INPUT_REQUESTS} questions at once")
        self._calls.admit(self)
        key, answer = f"question-{next(self._numbers)}", asyncio.Future[Raw]()
        self._pending[key] = Question(asked.method, request.params(self._revision), asked.requires), answer
        if not self.outcome.done():
            self._set_timer(GATHER_TIME, self._go_on)
        try:
            return await answer
        finally:
            self._pending.pop(key, None)

    def accept(self, round: int, answers: Mapping[str, bytes]) -> None:
        """Take the answers of a round, the first time. Those that are missing are asked for again in the next one."""
        if round == self.round > self.answered:
            self._begin_round()
            for key in self._asked & answers.keys() & self._pending.keys():
                _, answer = self._pending.pop(key)
                if not answer.done():
                    answer.set_result(Raw(answers[key]))
            self._set_timer(GATHER_TIME, self._go_on)
        elif round != self.answered:
            raise ToolError(OTHER_ROUND)

    def cancel(self, reason: str) -> None:
        """Stop the work; the request that waits, or the next one, gets the reason."""
        self.end = self.end or Failed(ToolError(reason))
        self.task.cancel()
        if self.outcome.done() and self.round > self.answered:
            self._begin_round()
        self._go_on()

    def _begin_round(self) -> None:
        self.answered = self.round
        self.outcome = self._loop.create_future()

    def _ended(self, task: "asyncio.Task[bytes]") -> None:
        failure = ToolError(CANCELLED) if task.cancelled() else task.exception()
        if failure is None:
            self.end = self.end or Finished(task.result())
        else:
            self.end = self.end or Failed(failure if isinstance(failure, Exception) else RuntimeError(repr(failure)))
        self._go_on()

    def _go_on(self) -> None:
        """Give the requests that wait the end of the call, or the questions that are pending."""
        if self.outcome.done():
            return  # none waits
        if self.end is not None:
            self._clear_timer()
            self._give(self.end, OUTCOME_TTL)
        elif self.round >= MAX_ROUNDS and self._pending:
            self.cancel(f"The call has asked {MAX_ROUNDS} times without coming to an end")
        elif self._pending:
            self.round += 1
            self._asked = frozenset(self._pending)
            seconds = max(0.0, min(self._timeout, self._ends - self._loop.time()))
            self._set_timer(seconds, lambda: self.cancel(EXPIRED))
            state = msgspec.to_builtins(CallState(self.id, self._calls.lease.id, self.round))
            self._give(Asks({key: question for key, (question, _) in self._pending.items()}, state), seconds + 60.0)

    def _give(self, outcome: Outcome, ttl: float) -> None:
        self.outcome.set_result(outcome)
        stored: bytes | Error | dict[str, Question]
        if isinstance(outcome, Finished):
            is_short = len(outcome.value) <= MAX_STORED_BYTES
            stored = bytes(outcome.value) if is_short else Error(TOO_LONG, is_own=True)
        else:
            stored = Error.from_exception(outcome.error) if isinstance(outcome, Failed) else dict(outcome.requests)
        self.record = Record(self.answered, stored), time.monotonic() + ttl
        self._calls.store(self)

    def _set_timer(self, seconds: float, function: Callable[[], None]) -> None:
        self._clear_timer()
        self._timer = self._loop.call_later(seconds, function)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class OpenCalls:
    """The open calls that this worker holds, and the way to those of other workers."""

    def __init__(self, engine: "Engine") -> None:
        if engine.lease is None:
            engine.lease = WorkerLease(engine.state, engine.lease_timings)
            engine.lease.start()
        self.engine = engine
        self.lease = engine.lease
        self._state = engine.state
        self._begun: set[OpenCall] = set()  # until their work has ended
        self._asking: dict[str, OpenCall] = {}  # those that have asked, by id, until their end is stored
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listener: Listener | None = None  # from the first question on, where other workers share the state

    async def begin(self, context: RequestContext, run: Run) -> Outcome:
        """Run the work of a new call until it ends or asks. Raises ToolBusy before that."""
        self._check_room(state_owner(context))
        call = OpenCall(self, context, run)
        self._begun.add(call)
        call.task.add_done_callback(lambda _: self._begun.discard(call))
        self._keep(call.task)
        return await self._outcome(call, context)

    async def resume(self, state: Any, responses: Mapping[str, Any], context: RequestContext) -> Outcome:
        """Hand over the answers of a round. The outcome is the same for each request that brings them."""
        try:
            given = msgspec.convert(state, CallState)
        except msgspec.ValidationError:  # of another version
            raise ToolError(GONE) from None
        answers = {key: encode(response) for key, response in responses.items()}
        if sum(map(len, answers.values())) > MAX_ANSWER_BYTES:
            raise ToolError(f"The answers are too long; {MAX_ANSWER_BYTES} bytes are allowed in one round")
        call = self._asking.get(given.call)
        if call is None:
            return await self._outcome_in_store(given, ANSWERS.encode(answers))
        call.accept(given.round, answers)
        return await self._outcome(call, context)

    async def close(self) -> None:
        """Stop all calls: the server stops."""
        if self._listener is not None:
            self._listener.close()
        for call in tuple(self._begun):
            call.cancel(STOPPED)
        for is_last in (False, True):
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=STOP_WAIT)
            for task in () if is_last else self._tasks:
                task.cancel()

    async def _outcome(self, call: OpenCall, context: RequestContext) -> Outcome:
        call.contexts.append(context)
        try:
            outcome = await asyncio.shield(call.outcome)
            if isinstance(outcome, Asks) and call.storing is not None:  # so that any worker knows the call
                await asyncio.wait([call.storing], timeout=STORE_WAIT)
            return outcome
        except asyncio.CancelledError:
            if len(call.contexts) == 1:
                call.cancel(CANCELLED)
            raise
        finally:
            call.contexts.remove(context)

    def _check_room(self, owner: str | None) -> None:
        most = MAX_ANONYMOUS if owner is None else MAX_PER_CALLER
        owners = [call.owner for call in self._asking.values() if call.end is None]
        if owners.count(owner) >= most or len(owners) >= MAX_OPEN_CALLS:
            raise ToolBusy(BUSY)

    def admit(self, call: OpenCall) -> None:
        """Hold a call that asks. Raises ToolBusy."""
        if call.id in self._asking:
            return
        self._check_room(call.owner)
        self._asking[call.id] = call
        if self._state.shared:
            if self._listener is None:
                self._listener = self._state.listen([])
                self._keep(asyncio.get_running_loop().create_task(self._take_answers(self._listener)))
            self._listener.add(f"{call.name}/answers")

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── the worker that holds the call ──

    def store(self, call: OpenCall) -> None:
        """Store the outcome of a call that has asked, in the background."""
        if call.id in self._asking and (call.storing is None or call.storing.done()):
            call.storing = asyncio.get_running_loop().create_task(self._store(call))
            self._keep(call.storing)

    async def _store(self, call: OpenCall) -> None:
        """Store one record of a call after the other, for as long as they are good."""
        while (record := call.record) is not None and record is not call.stored and record[1] > time.monotonic():
            try:
                if self.lease.store_error is not None:
                    await self.lease.renew()  # without a lease the call would be taken for lost
                ttl = max(0.001, record[1] - time.monotonic())
                await self._state.put(call.name, RECORDS.encode(record[0]), ttl=ttl)
                call.stored = record
                await self._state.publish(call.name)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_DELAY)
            except StoreFull as failure:
                log.warning("the outcome of an open call can't be stored for other workers: %s", failure.message)
                if isinstance(record[0].outcome, Error):
                    break
                if call.record is record:  # an error is shorter
                    call.record = Record(record[0].round, Error(TOO_LONG, is_own=True)), record[1]
        if call.is_over:
            del self._asking[call.id]
            if self._listener is not None:
                self._listener.remove(f"{call.name}/answers")

    async def _take_answers(self, listener: Listener) -> None:
        """Take what other workers have written for the calls of this one."""
        while topics := await listener.wait():
            for topic in topics:
                call = self._asking.get(topic.split("/")[1])
                if call is not None:
                    with suppress(ProtocolError):  # of the store: the waiting worker publishes again
                        await self._take(call)

    async def _take(self, call: OpenCall) -> None:
        if await self._state.get(f"{call.name}/cancelled") is not None:
            call.cancel(CANCELLED)
        round = call.round
        if round > call.answered and (entry := await self._state.get(f"{call.name}/{round}")) is not None:
            with suppress(ToolError):  # answered here meanwhile
                call.accept(round, ANSWERS.decode(entry.value) or {})

    # ── other workers ──

    async def _outcome_in_store(self, given: CallState, answers: bytes) -> Outcome:
        """The outcome of a round of a call that is not held here, or not any more."""
        name, clock = f"open-call/{given.call}", asyncio.get_running_loop().time
        began = available = clock()
        try:
            with closing(self._state.listen([name])) as listener:
                while True:
                    try:
                        is_late = clock() - began > RECORD_WAIT
                        if (outcome := await self._look(name, given, answers, is_late)) is not None:
                            return outcome
                        available = clock()
                    except StoreUnavailable:
                        if clock() - available > STORE_PATIENCE:
                            raise
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_INTERVAL):
                            if not await listener.wait():
                                raise StoreUnavailable  # it was closed
        except asyncio.CancelledError:
            self._keep(asyncio.get_running_loop().create_task(self._cancel_elsewhere(name)))
            raise

    async def _look(self, name: str, given: CallState, answers: bytes, is_late: bool) -> Outcome | None:
        """The outcome; None if there is none yet, and the worker of the call has the answers."""
        found = await self._read(name)
        if found.round < given.round and await self.lease.is_lost(given.worker):
            found = await self._read(name)  # it may have been its last deed
            if found.round < given.round:
                raise ToolError(LOST)
        if found.round < given.round:
            if given.worker == self.lease.id or (found is NO_RECORD and is_late):
                raise ToolError(GONE)
            await self._state.claim(f"{name}/{given.round}", answers, OUTCOME_TTL)
            await self._state.publish(f"{name}/answers")
            return None
        if found.round > given.round:
            raise ToolError(OTHER_ROUND)
        if isinstance(found.outcome, bytes):
            return Finished(found.outcome)
        if isinstance(found.outcome, Error):
            return Failed(found.outcome.to_exception())
        if await self.lease.is_lost(given.worker):
            raise ToolError(LOST)
        return Asks(found.outcome, msgspec.to_builtins(CallState(given.call, given.worker, given.round + 1)))

    async def _read(self, name: str) -> Record:
        entry = await self._state.get(name)
        return NO_RECORD if entry is None else RECORDS.decode(entry.value) or NO_RECORD

    async def _cancel_elsewhere(self, name: str) -> None:
        with suppress(StoreUnavailable, StoreFull):  # then it goes on, for nobody
            await self._state.put(f"{name}/cancelled", b"", ttl=OUTCOME_TTL)
            await self._state.publish(f"{name}/answers")
