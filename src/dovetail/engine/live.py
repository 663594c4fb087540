"""Asking up to 2025-11-25: a question is a request to the client, and the function waits for its answer."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw

from dovetail.engine.exchange import BackChannel, Exchange
from dovetail.engine.interview import Mark
from dovetail.engine.limits import Limit, Slots, standing_still
from dovetail.engine.replies import CALL_IS_OVER
from dovetail.engine.steps import Steps
from dovetail.engine.threads import resting
from dovetail.errors import (
    URL_ELICITATION_REQUIRED,
    MissingCapability,
    ProtocolError,
    QuestionFailed,
    ToolError,
    UrlElicitationRequired,
)
from dovetail.protocol import jsonrpc
from dovetail.protocol.features import require_askable
from dovetail.protocol.jsonrpc import BadMessage, encode
from dovetail.protocol.questions import InputRequired, Inquiry
from dovetail.protocol.revisions import Revision
from dovetail.protocol.rounds import MAX_ROUNDS
from dovetail.registry.elicitation import ElicitUrl
from dovetail.registry.outputs import to_jsonable

if TYPE_CHECKING:
    from dovetail.engine.core import Engine

MAX_KEPT = 256 * 1024  # bytes of answers, as much as a later client would carry
MAX_AT_ONCE = 32  # questions of one call; its others wait, so that it leaves room for other calls of its client


class Live:
    """The interview of a call that stays open while its client is asked."""

    is_waiting = False

    def __init__(self, engine: "Engine", exchange: Exchange) -> None:
        self._engine = engine
        self._exchange = exchange
        self._steps = Steps(engine, {})
        self._lending = Lending(Slots())
        self._room = asyncio.Semaphore(MAX_AT_ONCE)
        self._rounds = 0
        self._answers: dict[tuple[str, int], Raw] = {}  # what was asked, and the how-manieth time in one run
        self._kept = 0  # bytes of answers
        self._occurrences: Counter[str] = Counter()
        self.input_responses: Mapping[str, Any] = {}
        self.request_state: Any = None

    async def ask(self, inquiry: Inquiry[Any], timeout: float) -> Raw:
        """Asked once, also if the function is called again because it has asked by itself."""
        digest = inquiry.question.digest
        self._occurrences[digest] += 1
        place = digest, self._occurrences[digest]
        known = self._answers.get(place)
        if known is not None:
            return known
        answer = await self._put(inquiry, timeout)
        self._kept += len(bytes(answer))
        if self._kept <= MAX_KEPT:  # else it is asked again, if it comes to that
            self._answers[place] = answer
        return answer

    async def _put(self, inquiry: Inquiry[Any], timeout: float) -> Raw:
        back = self._back(inquiry)
        if not isinstance(inquiry, ElicitUrl):
            return await self._send(inquiry, back, timeout)
        await self._remember(inquiry, back)
        is_willing = False
        try:
            answer = await self._send(inquiry, back, timeout)
            is_willing = inquiry.read(answer, self._revision).accepted
        finally:
            if not is_willing:
                await self._forget(inquiry)
        return answer

    async def _send(self, inquiry: Inquiry[Any], back: BackChannel, timeout: float) -> Raw:
        params = encode(inquiry.params(self._revision))
        lending = self._lending_of_this_run()
        with standing_still(), resting():  # what else the function does meanwhile costs it nothing
            async with lending, self._room:
                if lending.slots.is_over:
                    raise QuestionFailed(CALL_IS_OVER)  # it had to wait, and its function did not wait for it
                return await back.ask(self._exchange, inquiry.question.method, params, timeout)

    def _lending_of_this_run(self) -> "Lending":
        slots = self._exchange.slots
        if slots is not None and slots is not self._lending.slots:  # the first question of a run
            self._lending = Lending(slots)
        return self._lending

    @property
    def _revision(self) -> Revision:
        return self._exchange.request.revision

    def _back(self, inquiry: Inquiry[Any]) -> BackChannel:
        """Raises unless there is a way, and the client understands the question."""
        back, question = self._exchange.back, inquiry.question
        if back is None:
            missing: dict[str, Any] = {path.partition(".")[0]: {} for path in question.requires}
            raise MissingCapability(missing, self._exchange.no_way_back)
        require_askable(question, self._revision, self._exchange.request.capabilities)
        return back

    async def _remember(self, visit: ElicitUrl, back: BackChannel) -> None:
        """The client may be told later that the user is done at a URL."""
        session = self._exchange.request.session
        if self._revision.elicitation_ids and session is not None:
            elicitations = self._engine.elicitations
            elicitations.began(session.id, visit.elicitation_id, back)
            if elicitations.far is not None:
                await elicitations.far.visit_began(session.id, visit.elicitation_id)

    async def _forget(self, visit: ElicitUrl) -> None:
        session, elicitations = self._exchange.request.session, self._engine.elicitations
        if session is not None:
            elicitations.ended(session.id, visit.elicitation_id)
            if elicitations.far is not None:
                await elicitations.far.visit_ended(visit.elicitation_id)

    def mark(self) -> Mark:
        return self._occurrences.copy(), self._steps.met.copy()

    def begin_again(self, mark: Mark | None = None) -> None:
        questions, steps = mark or (Counter(), Counter())
        self._occurrences = questions.copy()
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
                asked = {key: group.create_task(self._put(each, timeout)) for key, each in required.requests.items()}
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
        await self._steps.settle()

    def finished(self) -> None:
        """There was only one run, which can't differ from itself."""

    async def step(self, name: str, function: Callable[[], Any], *, in_thread: bool) -> Any:
        return await self._steps.run(name, function, in_thread=in_thread)


def _object(key: str, answer: Raw) -> Any:
    """An answer that nobody reads but the function itself; in the later era others would not come so far either."""
    try:
        value = jsonrpc.parse(answer)
    except BadMessage:
        value = None
    if not isinstance(value, dict):
        raise QuestionFailed(f"The client's answer to {key} can't be used: it must be an object")
    return value


class Lending:
    """`async with lending:` others have the slots of a call while its client is asked.

    The first of several questions gives them back, the last takes them again before the function goes on.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._questions = 0
        self._lent: tuple[Limit, ...] = ()  # in the order in which they are taken
        self._taking = asyncio.Lock()

    async def __aenter__(self) -> None:
        self._questions += 1
        if not self._taking.locked():  # else whoever takes them gives them back
            self._lend()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._questions -= 1
        if self._questions:
            return
        if error is not None and not isinstance(error, Exception):  # cancelled: it must not wait
            self._take_at_once()
            return
        async with self._taking:
            await self._take()

    def _lend(self) -> None:
        held, self.slots.held = self.slots.held, ()
        self._lent = held + self._lent
        for limit in held:
            limit.release()

    async def _take(self) -> None:
        try:
            while self._lent and not self._questions and not self.slots.is_over:
                limit, self._lent = self._lent[0], self._lent[1:]
                try:
                    await limit.reclaim()
                finally:
                    self._have(limit)
        except asyncio.CancelledError:
            self._take_at_once()
            raise
        if self._questions:  # another part of the function has asked meanwhile
            self._lend()

    def _take_at_once(self) -> None:
        lent, self._lent = self._lent, ()
        for limit in lent:
            limit.overdraw()
            self._have(limit)

    def _have(self, limit: Limit) -> None:
        if self.slots.is_over:  # the function has ended without waiting for this
            limit.release()
        else:
            self.slots.held += (limit,)
