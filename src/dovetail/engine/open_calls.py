"""Calls that stay open between the rounds of a client of 2026-07-28: their work can't run again for an answer.

The work is a task of the worker where the call began. Its questions end the client's request; the request state names
the call, its worker and the round, and the next request brings the answers, perhaps to another worker. That one writes
them to the store and waits for what the worker of the call stores there: a result, an error or more questions.

    open-call/<id>            the outcome of the last round that was answered; its topic wakes the requests that wait
    open-call/<id>/<round>    the answers of a round, claimed: the first count; empty if the client has cancelled
    open-call/<id>/answers    no key: the topic that wakes the worker of the call
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Raw

from dovetail.engine.caller_state import state_owner
from dovetail.engine.idempotency import Failure
from dovetail.engine.request_context import RequestContext
from dovetail.errors import DovetailError, ProtocolError, QuestionFailed, ToolBusy, ToolError, UrlElicitationRequired
from dovetail.protocol.capabilities import require_client_support
from dovetail.protocol.elicitation import MAX_INPUT_REQUESTS, InputRequest, InputRequired, ServerRequest
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.request_state import MAX_ROUNDS
from dovetail.protocol.revisions import Revision
from dovetail.state.base import Codec, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

MAX_OPEN_CALLS = 1000  # of one process, that have asked
MAX_PER_CALLER = 100  # all callers that are not known are one
GATHER_TIME = 0.01  # seconds in which further questions join a round
OUTCOME_TTL = 120.0  # seconds that the end of a call is stored for repeats of its last request
POLL_INTERVAL = 1.0  # seconds; a lost worker wakes no request that waits for it
STORE_WAIT = 2.0  # seconds that questions wait for the store; then they are sent, and stored later

LOST = "The call was lost with the worker that held it; whether it had its effect is not known"
GONE = "The call is not open any more: it was answered too late, or was cancelled; make it again from its beginning"
OTHER_ROUND = "These questions were answered already, and the call has gone on since"
FAILED = "The call failed unexpectedly; whether it had its effect is not known"
TOO_LONG = "The call had an outcome, but it is too long to be handed over by the worker that holds the call"
log = logging.getLogger("dovetail")


class Question(msgspec.Struct, frozen=True):
    """An `InputRequest` that can be stored; its result is read where it was made."""

    server_request: ServerRequest

    def params(self, revision: Revision) -> dict[str, Any]:  # noqa: ARG002
        return self.server_request.params

    def read(self, result: bytes | Raw, revision: Revision) -> Raw:  # noqa: ARG002
        return Raw(bytes(result))


class CallState(msgspec.Struct, frozen=True):
    """The sealed state of a round."""

    call: str
    worker: str
    round: int


Outcome: TypeAlias = bytes | Failure | dict[str, Question]


class Record(CallState, frozen=True):
    """What came after the answers of a round, or before all rounds if it is 0."""

    outcome: Outcome

    def result(self) -> bytes | InputRequired:
        """The result or the questions; raises the error."""
        if isinstance(self.outcome, Failure):
            raise self.outcome.to_error()
        if isinstance(self.outcome, bytes):
            return self.outcome
        state = CallState(self.call, self.worker, self.round + 1)
        return InputRequired(self.outcome, state=msgspec.to_builtins(state))


Run: TypeAlias = Callable[["OpenCall"], Coroutine[Any, Any, bytes]]
RECORDS: Codec[Record] = Codec(Record, "record of an open call")
ANSWERS: Codec[dict[str, bytes]] = Codec(dict[str, bytes], "record of answers")
CANCELLED = b""  # in place of answers


def open_calls_of(engine: "Engine") -> "OpenCalls":
    """The open calls of a server, made for its first."""
    root = engine.root
    root.open_calls = root.open_calls or OpenCalls(root)
    return root.open_calls


class OpenCall:
    """One call and its work, which asks by `await call(request)`."""

    def __init__(self, calls: "OpenCalls", context: RequestContext, run: Run, answer_timeout: float) -> None:
        self.id = secrets.token_hex(16)
        self.name = f"open-call/{self.id}"
        self.topic = f"{self.name}/answers"
        self.owner = state_owner(context)
        self.answer_timeout = answer_timeout
        self.waiting: list[RequestContext] = []  # the requests that wait for its outcome in this process
        self.answered = 0  # the last round that was answered
        self.record: Record | None = None  # the last outcome
        self.storing: asyncio.Task[None] | None = None
        self.is_over = False
        self.failure: DovetailError | None = None  # its end, if it is one
        self._calls = calls
        self._revision, self._capabilities = context.request.revision, context.request.capabilities
        self._pending: dict[str, tuple[Question, asyncio.Future[Raw]]] = {}
        self._numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self.outcome = asyncio.Future[Record]()  # of the round that was answered last
        self._task = calls.start(self._work(run))

    async def __call__(self, request: InputRequest[Any]) -> Raw:
        """The client's raw result. Raises MissingCapability, QuestionFailed or ToolBusy if it can't be asked."""
        asked = request.server_request
        require_client_support(asked, self._revision, self._capabilities)
        if self.is_over:
            raise QuestionFailed(GONE)
        if len(self._pending) >= MAX_INPUT_REQUESTS:
            raise QuestionFailed(f"A call may have {MAX_INPUT_REQUESTS} questions at once")
        self._calls.admit(self)
        key, answer = f"question-{next(self._numbers)}", asyncio.Future[Raw]()
        self._pending[key] = Question(msgspec.structs.replace(asked, params=request.params(self._revision))), answer
        if not self.outcome.done():
            self._set_timer(GATHER_TIME, self._ask)
        try:
            return await answer
        finally:
            self._pending.pop(key, None)

    @property
    def context(self) -> RequestContext | None:
        """Of the last request that waits in this process: for progress and logs."""
        return self.waiting[-1] if self.waiting else None

    @property
    def waits_for_answers(self) -> bool:
        return self.outcome.done() and not self.is_over

    def accept(self, round: int, answers: Mapping[str, bytes]) -> None:
        """Take the answers of a round, the first time. Those that are missing are asked for again in the next one."""
        if self.waits_for_answers and round == self.answered + 1:
            self._begin_round()
            for key in answers.keys() & self._pending.keys():
                _, answer = self._pending.pop(key)
                if not answer.done():
                    answer.set_result(Raw(answers[key]))
            self._set_timer(GATHER_TIME, self._ask)
        elif round != self.answered:
            raise ToolError(OTHER_ROUND)

    def end(self, end: bytes | DovetailError) -> None:
        """End the call, once: the request that waits gets its end, or the next one that brings answers."""
        if self.is_over:
            return
        if self.waits_for_answers:
            self._begin_round()
        self.is_over = True
        self._clear_timer()
        self._task.cancel()
        self.failure = None if isinstance(end, bytes) else end
        self._give(end if isinstance(end, bytes) else Failure.from_error(end))

    async def _work(self, run: Run) -> None:
        try:
            self.end(await run(self))
        except (ToolError, ProtocolError, UrlElicitationRequired) as failure:
            self.end(failure)
        except Exception:
            log.exception("the work of an open call failed")
        finally:
            self.end(ToolError(FAILED))  # unless it has ended

    def _ask(self) -> None:
        """Give the request that waits the questions that are pending, if there are any."""
        if self._pending and self.answered == MAX_ROUNDS:
            self.end(ToolError(f"The call has asked {MAX_ROUNDS} times without coming to an end"))
        elif self._pending:
            self._set_timer(self.answer_timeout, lambda: self.end(ToolError(GONE)))
            self._give({key: question for key, (question, _) in self._pending.items()})

    def _begin_round(self) -> None:
        self.answered += 1
        self.outcome = asyncio.Future[Record]()

    def _give(self, outcome: Outcome) -> None:
        self.record = Record(self.id, self._calls.lease.id, self.answered, outcome)
        self.outcome.set_result(self.record)
        self._calls.store(self)

    def _set_timer(self, seconds: float, function: Callable[[], None]) -> None:
        self._clear_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, function)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class OpenCalls:
    """The open calls that this worker holds, and the way to those of other workers."""

    def __init__(self, engine: "Engine") -> None:
        self.lease = engine.worker_lease()
        self._engine = engine
        self._state = engine.state
        self._asking: dict[str, OpenCall] = {}  # those that have asked, by id, until their end is stored
        self._listener = engine.state.listen([])
        self.start(self._take_answers())

    async def begin(self, context: RequestContext, run: Run, answer_timeout: float) -> bytes | InputRequired:
        """Run the work of a new call until it ends or asks. Raises its error, or ToolBusy before it begins."""
        self._check_room(state_owner(context))
        seconds = min(answer_timeout, self._engine.options.answer_timeout)  # that of a proxy, and of the root
        return await self._wait(OpenCall(self, context, run, seconds), context)

    async def resume(
        self, state: Any, responses: Mapping[str, Any] | None, context: RequestContext
    ) -> bytes | InputRequired:
        """Hand over the answers of a round. The outcome is the same for each request that brings them."""
        given = msgspec.convert(state, CallState)
        answers = {key: encode(response) for key, response in (responses or {}).items()}
        if (call := self._asking.get(given.call)) is None:
            return await self._wait_for_store(given, ANSWERS.encode(answers))
        call.accept(given.round, answers)
        return await self._wait(call, context)

    async def close(self) -> None:
        """End all calls: the server stops, and waits for their tasks."""
        self._listener.close()
        for call in tuple(self._asking.values()):
            call.end(ToolError(LOST))

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task that the server waits for when it stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._engine.running_steps.add(task)
        task.add_done_callback(self._engine.running_steps.discard)
        return task

    def _check_room(self, owner: str | None) -> None:
        owners = [call.owner for call in self._asking.values()]
        if owners.count(owner) >= MAX_PER_CALLER or len(owners) >= MAX_OPEN_CALLS:
            raise ToolBusy("Too many calls wait for answers to their questions; answer some, or try again later")

    def admit(self, call: OpenCall) -> None:
        """Hold a call that asks. Raises ToolBusy."""
        if call.id not in self._asking:
            self._check_room(call.owner)
            self._asking[call.id] = call
            self._listener.add(call.topic)

    # ── the worker that holds the call ──

    async def _wait(self, call: OpenCall, context: RequestContext) -> bytes | InputRequired:
        call.waiting.append(context)
        try:
            record = await asyncio.shield(call.outcome)
            if call.failure is not None:
                raise call.failure
            if call.waits_for_answers and call.storing is not None:  # so that any worker knows the call
                await asyncio.wait([call.storing], timeout=STORE_WAIT)
            return record.result()
        except asyncio.CancelledError:
            if len(call.waiting) == 1:  # else another request has brought the same answers
                call.end(ToolError(GONE))
            raise
        finally:
            call.waiting.remove(context)

    def store(self, call: OpenCall) -> None:
        """Store the outcome of a call that has asked, in the background."""
        if call.id in self._asking and (call.storing is None or call.storing.done()):
            call.storing = self.start(self._store(call))

    async def _store(self, call: OpenCall) -> None:
        stored: Record | None = None
        while (record := call.record) is not None and record is not stored:
            ttl = OUTCOME_TTL if call.is_over else OUTCOME_TTL + call.answer_timeout
            try:
                if self.lease.store_error is not None:
                    await self.lease.renew()  # without a lease the call would be taken for lost
                await self._state.put(call.name, RECORDS.encode(record), ttl=ttl)
                stored = record
                await self._state.publish(call.name)
            except (StoreUnavailable, StoreFull) as failure:
                if self._engine.open_calls is not self:  # the server has stopped
                    return
                if isinstance(failure, StoreFull) and call.record is record:
                    call.record = msgspec.structs.replace(record, outcome=Failure.from_error(ToolError(TOO_LONG)))
                await asyncio.sleep(POLL_INTERVAL)
        if call.is_over:
            del self._asking[call.id]
            self._listener.remove(call.topic)

    async def _take_answers(self) -> None:
        """Take what other workers have written for the calls of this one."""
        while topics := await self._listener.wait():
            for call in [each for each in self._asking.values() if each.topic in topics]:
                with suppress(StoreUnavailable):  # the waiting worker publishes again
                    await self._take(call)

    async def _take(self, call: OpenCall) -> None:
        round = call.answered + 1 if call.waits_for_answers else call.answered
        entry = await self._state.get(f"{call.name}/{round}")
        if entry is not None and entry.value == CANCELLED:
            if not call.waiting:
                call.end(ToolError(GONE))
        elif entry is not None:
            with suppress(ToolError):  # answered here meanwhile
                call.accept(round, ANSWERS.decode(entry.value) or {})

    # ── other workers ──

    async def _wait_for_store(self, given: CallState, answers: bytes) -> bytes | InputRequired:
        """The outcome of a round of a call that is not held here, or not any more."""
        name = f"open-call/{given.call}"
        try:
            with closing(self._state.listen([name])) as listener:
                while (record := await self._look(name, given, answers)) is None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_INTERVAL):
                            if not await listener.wait():
                                raise StoreUnavailable  # it was closed
        except asyncio.CancelledError:
            with suppress(StoreUnavailable, StoreFull):  # then the call goes on, and its end is not read
                await self._state.put(f"{name}/{given.round}", CANCELLED, ttl=OUTCOME_TTL)
                await self._state.publish(f"{name}/answers")
            raise
        return record.result()

    async def _look(self, name: str, given: CallState, answers: bytes) -> Record | None:
        """The outcome; None if there is none yet, and the worker of the call has the answers."""
        is_lost = await self.lease.is_lost(given.worker)
        entry = await self._state.get(name)  # afterwards: it may have been the worker's last deed
        record = None if entry is None else RECORDS.decode(entry.value)
        if record is not None and record.round > given.round:
            raise ToolError(OTHER_ROUND)
        if record is not None and record.round == given.round and not (is_lost and isinstance(record.outcome, dict)):
            return record
        if is_lost or record is None or given.worker == self.lease.id:
            raise ToolError(LOST if is_lost else GONE)
        await self._state.claim(f"{name}/{given.round}", answers, OUTCOME_TTL)
        await self._state.publish(f"{name}/answers")
        return None
