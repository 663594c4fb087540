"""Asking since 2026-07-28: a call with open questions ends, and comes again with the answers; its function runs again.

An answer has a place: what was asked, and the how-manieth time. So it finds its question in the next run whatever the
order of things there, and a question that has changed is asked anew. Earlier answers and the results of steps travel
with the client, sealed.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw

from dovetail.engine.exchange import Exchange
from dovetail.engine.interview import Mark, Unanswered
from dovetail.engine.seal import BadSeal, TooLarge
from dovetail.engine.steps import Steps, life_at_beginning
from dovetail.engine.threads import is_for_thread
from dovetail.errors import INVALID_PARAMS, ProtocolError, ToolError, UrlElicitationRequired
from dovetail.protocol import jsonrpc
from dovetail.protocol.features import require_askable
from dovetail.protocol.methods import CallToolParams, GetPromptParams, ReadResourceParams
from dovetail.protocol.questions import MAX_QUESTIONS, InputRequired, Inquiry, Question
from dovetail.protocol.results import Interim
from dovetail.protocol.rounds import (
    MAX_ROUNDS,
    MAX_WASTED,
    Binding,
    Round,
    decode_round,
    encode_round,
    read_responses,
)
from dovetail.registry.outputs import encode_json

if TYPE_CHECKING:
    from dovetail.engine.core import Engine

log = logging.getLogger("dovetail")

AskingParams = CallToolParams | GetPromptParams | ReadResourceParams
NOT_YET_DONE = "The user has agreed to open the page that this needs, but is not done there; call again afterwards"
NOT_WILLING = "The user did not want to open the page that this needs"
OTHERS = {
    "method": "another method",
    "name": "another tool, prompt or resource",
    "arguments": "other arguments",
    "principal": "another caller",
    "server": "another server",
}
BAD_STATE = "The request state can't be used; make the request again without it"
SUBJECTS = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}
TURNS = 3  # of the loop, in which whoever runs beside a question may ask too
MOMENT = 0.02  # seconds, in which other threads may
CALL_LASTS = 4  # times as long as its first questions are good for: a claim must outlive every state of its call
CLAIMS_OUTLIVE = 3600.0  # seconds: a run that began at the last moment may take so long to its last step
MANY = 10_000  # questions and steps of a run that is over already


def resume(engine: "Engine", exchange: Exchange) -> None:
    """A request brings a state or answers: they are opened, or refused, before the function runs."""
    params: AskingParams = exchange.request.params
    if not exchange.request.revision.rounds or exchange.interview is not None:
        return  # where these fields mean nothing, or were read already
    responses = read_responses(params.input_responses)
    state = params.request_state
    before = _open(engine, exchange, state) if isinstance(state, str) else None
    exchange.interview = Replay(engine, exchange, before, responses)


def _open(engine: "Engine", exchange: Exchange, token: str) -> Round:
    """Whoever sends a state that is not right hears only that; why it is not stands in the log."""
    try:
        before = decode_round(engine.sealer.open(token))
    except BadSeal as bad:
        raise _refused(exchange, str(bad)) from None
    except msgspec.DecodeError:
        raise _refused(exchange, "it was sealed by another version of this library") from None
    if before.expires <= time.time():
        raise _refused(exchange, "it has expired")
    if (difference := _binding(engine, exchange).difference(before.binding)) is not None:
        raise _refused(exchange, f"it was made for {OTHERS[difference]}")
    return before


def _refused(exchange: Exchange, reason: str) -> ProtocolError:
    log.warning("%s: a request state was refused: %s", exchange.request.method, reason)
    return ProtocolError(BAD_STATE, code=INVALID_PARAMS)


def _binding(engine: "Engine", exchange: Exchange) -> Binding:
    params: AskingParams = exchange.arrived
    if isinstance(params, ReadResourceParams):
        name, arguments = params.uri, jsonrpc.NO_PARAMS
    else:
        name, arguments = params.name, params.arguments
    return Binding.of(exchange.request.method, name, arguments, exchange.owner, engine.info.name)


def interim(exchange: Exchange) -> Interim:
    """The questions that have kept a function from its end."""
    assert isinstance(exchange.interview, Replay)
    return exchange.interview.interim()


class Replay:
    """The interview of one run: what is known from before, and what this run asks besides.

    From the first question that stays unanswered the run is over, whatever its function still does: it may have caught
    what was raised, and then it knows less than it should. So it may ask nothing more, and take no step.
    """

    def __init__(self, engine: "Engine", exchange: Exchange, before: Round | None, responses: dict[str, Raw]) -> None:
        self._engine = engine
        self._exchange = exchange
        self._before = before
        self._responses = responses
        asked = () if before is None else before.asked
        self._fresh = {place: responses[place] for place in asked if place in responses}
        self._answers = {**({} if before is None else before.answers), **self._fresh}
        self._steps = _steps(engine, before)
        self._life = "" if before is None else before.life
        self.begin_again()

    def begin_again(self, mark: Mark | None = None) -> None:
        """A middleware makes the request twice: a second run, in the same round."""
        questions, steps = mark or (Counter(), Counter())
        self._occurrences = questions.copy()
        self._steps.met = steps.copy()
        self._taken: set[str] = set()  # places whose answers this run has used
        self._open: dict[str, Any] = {}  # what this run asks in vain, by place or by the function's own key
        self._timeouts: list[float] = []  # of what it asks
        self._own_keys: set[str] = set()
        self._own_state: Raw | None = None
        self._is_over = False
        self._refusals = 0

    def mark(self) -> Mark:
        return self._occurrences.copy(), self._steps.met.copy()

    @property
    def input_responses(self) -> Mapping[str, Any]:
        return {key: jsonrpc.parse(response) for key, response in self._responses.items()}

    @property
    def request_state(self) -> Any:
        state = UNSET if self._before is None else self._before.state
        return None if state is UNSET else jsonrpc.parse(state)

    @property
    def is_waiting(self) -> bool:
        return bool(self._open) or self._own_state is not None

    # ── asking ──

    async def ask(self, inquiry: Inquiry[Any], timeout: float) -> Raw:
        await self._go_on()
        place = self._place(inquiry.question)
        answer = self._answers.get(place)
        if answer is not None:
            self._taken.add(place)
            return answer
        self._check(inquiry)
        self._leave_open(place, inquiry, timeout)
        try:
            await self._let_others_ask()
        finally:
            self._is_over = True
        raise Unanswered

    async def _go_on(self) -> None:
        """Raises Unanswered if the run is over."""
        if not self._is_over:
            return
        self._refusals += 1
        if self._refusals == MANY:
            log.error("%s catches what its questions raise, and goes on: use `except Exception`", self._subject)
        await asyncio.sleep(0 if self._refusals < MANY else 1)  # it may be in a loop that never ends
        raise Unanswered

    async def _let_others_ask(self) -> None:
        """What is asked beside each other travels in one round."""
        known = 0
        while known < len(self._open):
            known = len(self._open)
            if is_for_thread():
                await asyncio.sleep(MOMENT)
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def _check(self, inquiry: Inquiry[Any]) -> None:
        require_askable(inquiry.question, self._exchange.request.revision, self._exchange.request.capabilities)

    def _place(self, question: Question) -> str:
        kind = question.method.partition("/")[0]
        place = f"{kind}-{question.digest}"
        self._occurrences[place] += 1
        return f"{place}-{self._occurrences[place]}"

    def _leave_open(self, key: str, inquiry: Inquiry[Any], timeout: float) -> None:
        if len(self._open) >= MAX_QUESTIONS:  # the next round will come to it
            return
        params = inquiry.params(self._exchange.request.revision)
        request = {"method": inquiry.question.method, "params": params}
        if not params:
            del request["params"]
        self._open[key] = request
        self._timeouts.append(timeout)

    async def ask_together(self, required: InputRequired) -> None:
        await self._go_on()
        for inquiry in required.requests.values():
            self._check(inquiry)
        self._own_state = Raw(b"null" if required.state is UNSET else encode_json(required.state))
        for key, inquiry in required.requests.items():
            self._leave_open(key, inquiry, self._engine.options.answer_timeout)
            self._own_keys.add(key)
        self._is_over = True
        raise Unanswered

    async def require_urls(self, required: UrlElicitationRequired) -> None:
        """Each page is shown once: whoever was there, or did not want to, is not sent there again in this call."""
        await self._go_on()
        answered: list[bool] = []
        for inquiry in required.elicitations:
            place = self._place(inquiry.question)
            if (answer := self._answers.get(place)) is not None:
                self._taken.add(place)
                answered.append(inquiry.read(answer, self._exchange.request.revision).accepted)
            else:
                self._check(inquiry)
                self._leave_open(place, inquiry, self._engine.options.answer_timeout)
        if self._open:
            self._is_over = True
            raise Unanswered
        raise ToolError(NOT_YET_DONE if all(answered) else NOT_WILLING)

    async def step(self, name: str, function: Callable[[], Any], *, in_thread: bool) -> Any:
        await self._go_on()
        return await self._steps.run(name, function, in_thread=in_thread)

    # ── the end of a round ──

    async def settle(self) -> None:
        await self._steps.settle()
        if self._before is None:
            self._life = await life_at_beginning(self._engine)

    def finished(self) -> None:
        """A run that did not come by all that earlier ones did was another run. Nobody can tell what is right then."""
        if self._before is None:
            return
        missed = [place for place in self._before.used if place not in self._taken]
        missed += self._steps.not_met(self._before.steps)
        if missed:
            log.error(
                "%s has ended without coming to %d questions or steps of its earlier runs: what it reads must be the "
                "same in every run of a call, or be kept by ctx.step; or else its code has changed meanwhile",
                self._subject,
                len(missed),
            )

    def interim(self) -> Interim:
        """What goes out instead of a result. Raises ToolError if the call can't go on like that."""
        self._is_over = True
        number = 1 if self._before is None else self._before.number + 1
        if number > MAX_ROUNDS:
            raise self._given_up(f"it has asked {MAX_ROUNDS} times without coming to an end")
        wasted = self._wasted()
        if wasted >= MAX_WASTED:
            raise self._given_up(
                f"it asks something else each time it is run again: the answers of {wasted} rounds were of no use. "
                "A question must not depend on the time, on chance or on what changes; keep such values by ctx.step"
            )
        try:
            state = self._engine.sealer.seal(encode_round(self._round(number, wasted)))
        except TooLarge as failure:
            raise self._given_up(f"its answers and steps are too large to be kept: {failure}") from None
        return Interim(self._open, state)

    def _wasted(self) -> int:
        if self._before is None or not self._fresh or self._taken & self._fresh.keys():
            return 0
        return self._before.wasted + 1

    def _round(self, number: int, wasted: int) -> Round:
        earlier_state = UNSET if self._before is None else self._before.state
        now, timeouts = time.time(), self._timeouts or [self._engine.options.answer_timeout]
        longest = max(self._engine.options.answer_timeout, *timeouts)
        ends = now + CALL_LASTS * longest if self._before is None else self._before.ends
        return Round(
            call=secrets.token_hex(16) if self._before is None else self._before.call,
            number=number,
            expires=min(now + min(timeouts), ends),
            ends=ends,
            binding=_binding(self._engine, self._exchange),
            life=self._life,
            asked=[place for place in self._open if place not in self._own_keys],
            answers=self._answers,
            used=sorted({*(() if self._before is None else self._before.used), *self._taken}),
            steps=self._steps.done,
            wasted=wasted,
            state=earlier_state if self._own_state is None else self._own_state,
        )

    @property
    def _subject(self) -> str:
        params: AskingParams = self._exchange.request.params
        name = params.uri if isinstance(params, ReadResourceParams) else params.name
        shown = "".join(filter(str.isprintable, name[:128]))  # a URI is what a stranger wrote
        return f"The {SUBJECTS[self._exchange.request.method]} {shown}"

    def _given_up(self, reason: str) -> ToolError:
        text = f"{self._subject} can't go on: {reason}"
        log.error(text)
        return ToolError(text)


def _steps(engine: "Engine", before: Round | None) -> Steps:
    """The steps of a run. Their claims outlive the state, which others may bring too."""
    if before is None:
        return Steps(engine, {})
    lifetime = before.ends - time.time() + CLAIMS_OUTLIVE
    return Steps(engine, dict(before.steps), call=before.call, life=before.life, lifetime=lifetime)
