"""Asking up to 2025-11-25: a question is a request to the client, and the function waits for its answer."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw

from dovetail.engine.exchange import BackChannel, Exchange
from dovetail.engine.limits import standing_still
from dovetail.engine.steps import Steps
from dovetail.engine.threads import resting
from dovetail.errors import (
    URL_ELICITATION_REQUIRED,
    MissingCapability,
    ProtocolError,
    ToolError,
    UrlElicitationRequired,
)
from dovetail.protocol.features import require_askable
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.questions import InputRequired, Inquiry
from dovetail.protocol.revisions import Revision
from dovetail.protocol.rounds import MAX_ROUNDS
from dovetail.registry.elicitation import ElicitUrl
from dovetail.registry.outputs import to_jsonable

if TYPE_CHECKING:
    from dovetail.engine.core import Engine


class Live:
    """The interview of a call that stays open while its client is asked."""

    is_waiting = False

    def __init__(self, engine: "Engine", exchange: Exchange) -> None:
        self._engine = engine
        self._exchange = exchange
        self._steps = Steps(engine, None, {}, engine.options.answer_timeout)
        self._rounds = 0
        self._answers: dict[tuple[str, int], Raw] = {}  # what was asked, and the how-manieth time in one run
        self._occurrences: Counter[str] = Counter()
        self.input_responses: Mapping[str, Any] = {}
        self.request_state: Any = None

    async def ask(self, inquiry: Inquiry[Any], timeout: float) -> Raw:
        """Asked once, also if the function is called again because it has asked by itself."""
        digest = inquiry.question.digest
        self._occurrences[digest] += 1
        place = digest, self._occurrences[digest]
        if place not in self._answers:
            self._answers[place] = await self._put(inquiry, timeout)
        return self._answers[place]

    async def _put(self, inquiry: Inquiry[Any], timeout: float) -> Raw:
        back = self._back(inquiry)
        self._remember(inquiry, back)
        with standing_still(), resting():  # the time of the function, not that of the person who is asked
            return await back.ask(inquiry.question.method, encode(inquiry.params(self._revision)), timeout)

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

    def _remember(self, inquiry: Inquiry[Any], back: BackChannel) -> None:
        """The client may be told later that the user is done at a URL."""
        if self._revision.elicitation_ids and isinstance(inquiry, ElicitUrl):
            self._engine.elicitations.began(inquiry.elicitation_id, back)

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
        self.input_responses = {key: msgspec.json.decode(task.result()) for key, task in asked.items()}
        self.request_state = None if required.state is UNSET else to_jsonable(required.state)
        self._occurrences.clear()
        self._steps = Steps(self._engine, None, self._steps.done, self._engine.options.answer_timeout)

    async def require_urls(self, required: UrlElicitationRequired) -> None:
        for inquiry in required.elicitations:
            self._remember(inquiry, self._back(inquiry))
        data = {"elicitations": [inquiry.params(self._revision) for inquiry in required.elicitations]}
        raise ProtocolError(str(required), code=URL_ELICITATION_REQUIRED, data=data)

    async def step(self, name: str, function: Callable[[], Any], *, in_thread: bool) -> Any:
        return await self._steps.run(name, function, in_thread=in_thread)
