"""Requests to the client since 2026-07-28: a call ends in `input_required` and comes again with input.

Its function runs again then. A response is keyed by the digest of its request and how often that occurred in the run,
so the order of the requests does not matter; a request that has changed is made anew. Earlier responses and the results
of steps travel with the client, as the sealed request state.

`ctx.step` runs a side effect once, however often its function runs. A client may send the same state twice, so a run
that began with a state claims each of its steps in the store before it runs them. A claim proves something only if the
store still has all earlier ones, so the steps of a call are refused in another generation of the store than its first.
"""

import asyncio
import hashlib
import inspect
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail import engine as lazy
from dovetail.engine.request_context import Checkpoint, InputNeeded, RequestContext, running_step
from dovetail.engine.request_state import BadSeal, TooLarge
from dovetail.engine.threads import as_coroutine
from dovetail.errors import INVALID_PARAMS, ProtocolError, SetupError, ToolError, UrlElicitationRequired
from dovetail.protocol import jsonrpc, request_state
from dovetail.protocol.capabilities import require_client_support
from dovetail.protocol.elicitation import MAX_INPUT_REQUESTS, InputRequest, InputRequired, ServerRequest
from dovetail.protocol.methods import CallToolParams, GetPromptParams, ReadResourceParams
from dovetail.protocol.request_state import MAX_ROUNDS, Binding, Round
from dovetail.protocol.results import InputRequiredResult
from dovetail.schema.encode import OutputError, encode_json
from dovetail.state.base import MAX_TTL, StateBackend

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

log = logging.getLogger("dovetail")

InteractiveParams = CallToolParams | GetPromptParams | ReadResourceParams
NOT_YET_DONE = "The user has agreed to open the page that this needs, but is not done there; call again afterwards"
NOT_WILLING = "The user did not want to open the page that this needs"
BAD_STATE = "The request state can't be used; make the request again without it"
SUBJECTS = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}
CALL_LIFETIME_FACTOR = 4  # times the timeout of its first requests: a claim must outlive every state of its call
GENERATION_KEY = "generation"  # a random name, which disappears when the store loses its records
CLAIMED = b""  # in place of a result; no JSON is empty
MAX_NAME = 200  # characters of the name of a step


def resume(engine: "Engine", context: RequestContext) -> None:
    """Read the request state and the input responses of a request, or refuse them, before the function runs."""
    params: InteractiveParams = context.request.params
    if not context.request.revision.input_required or context.server_requests is not None:
        return  # the revision does not have these fields, or they were read already
    responses = request_state.read_responses(params.input_responses)
    state = params.request_state
    previous = _open_state(engine, context, state) if isinstance(state, str) else None
    if previous is not None and (metrics := engine.metrics) is not None:
        metrics.add(lazy.metrics.REPLAYS, context.request.method)
        metrics.add(lazy.metrics.QUESTIONS, "answered", by=len(responses.keys() & {*previous.requested}))
    telemetry = (context.served or engine).telemetry
    if previous is not None and previous.asked is not None and telemetry is not None:
        telemetry.answered(previous.asked, responses)
    context.server_requests = ReplayedRequests(engine, context, previous, responses)


def _open_state(engine: "Engine", context: RequestContext, token: str) -> Round:
    """Open the request state. The client gets the same error for every bad state; only the log has the reason."""
    try:
        previous = request_state.decode_round(engine.sealer.open(token))
    except BadSeal as bad:
        raise _bad_state(context, str(bad)) from None
    except msgspec.DecodeError:
        raise _bad_state(context, "it was sealed by another version of this library") from None
    if previous.expires <= time.time():
        if (metrics := engine.metrics) is not None:
            metrics.add(lazy.metrics.QUESTIONS, "timed_out", by=len(previous.requested))
        raise _bad_state(context, "it has expired")
    if (difference := _binding(engine, context).difference(previous.binding)) is not None:
        raise _bad_state(context, f"it was made for another request, whose {difference} was different")
    return previous


def _bad_state(context: RequestContext, reason: str) -> ProtocolError:
    log.warning("%s: a request state was refused: %s", context.request.method, reason)
    return ProtocolError(BAD_STATE, code=INVALID_PARAMS)


def _binding(engine: "Engine", context: RequestContext) -> Binding:
    params: InteractiveParams = context.original_params or context.request.params
    if isinstance(params, ReadResourceParams):
        name, arguments = params.uri, jsonrpc.NO_PARAMS
    else:
        name, arguments = params.name, params.arguments
    return Binding.from_request(context.request.method, name, arguments, context.owner, engine.root.info.name)


def input_required_result(context: RequestContext) -> InputRequiredResult:
    assert isinstance(context.server_requests, ReplayedRequests)
    return context.server_requests.input_required_result()


class ReplayedRequests:
    """The server requests of one run: the responses of earlier rounds, and the requests that have none yet.

    The run has ended at its first request without a response, even if its function catches `InputNeeded` and goes on:
    it would act on less than it needs to know. From then on it can make no request and take no step.
    """

    def __init__(
        self, engine: "Engine", context: RequestContext,
        previous: Round | None = None, responses: dict[str, Raw] | None = None,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._context = context
        self._received = responses or {}
        self._previous = previous = previous or Round(call=secrets.token_hex(16))
        self._new_responses = {key: self._received[key] for key in previous.requested if key in self._received}
        self._responses = previous.responses | self._new_responses
        self._generation = previous.generation
        self._steps = Steps(engine, dict(previous.steps), previous if previous.number else None)
        self.restart()

    def restart(self, checkpoint: Checkpoint | None = None) -> None:
        """A second run in the same round: a middleware has made the request twice."""
        requests, steps = checkpoint or (Counter(), Counter())
        self._occurrences = requests.copy()
        self._steps.occurrences = steps.copy()
        self._used: set[str] = set()  # keys of the responses that this run has used
        self._pending: dict[str, Any] = {}  # requests without a response, by our key or the author's own
        self._timeouts: list[float] = []  # of those
        self._author_keys: set[str] = set()
        self._author_state: Raw | None = None
        self._ended = False

    def checkpoint(self) -> Checkpoint:
        return self._occurrences.copy(), self._steps.occurrences.copy()

    @property
    def steps(self) -> "Steps":
        return self._steps

    @property
    def input_responses(self) -> Mapping[str, Any]:
        return {key: jsonrpc.parse(response) for key, response in self._received.items()}

    @property
    def request_state(self) -> Any:
        state = self._previous.state
        return None if isinstance(state, UnsetType) else jsonrpc.parse(state)

    @property
    def needs_input(self) -> bool:
        return bool(self._pending) or self._author_state is not None

    # ── requests ──

    async def request(self, input_request: InputRequest[Any], timeout: float) -> Raw:
        await self._raise_if_ended()
        key, response = self._find_response(input_request.server_request)
        if response is not None:
            return response
        self._add_pending({key: input_request}, timeout)
        try:
            await self._wait_for_concurrent_requests()
        finally:
            self._ended = True
        raise InputNeeded

    async def _raise_if_ended(self) -> None:
        if self._ended:
            await asyncio.sleep(0.001)  # the function may be in an endless loop
            raise InputNeeded

    async def _wait_for_concurrent_requests(self, turns: int = 3) -> None:
        """Give the loop some turns, so that requests that a function makes at the same time travel in one round."""
        known = 0
        while known < len(self._pending):
            known = len(self._pending)
            for _ in range(turns):
                await asyncio.sleep(0)

    def _find_response(self, request: ServerRequest) -> tuple[str, Raw | None]:
        """The key of the request, and its response; None if there is none."""
        name = f"{request.method.partition('/')[0]}-{request.digest}"
        self._occurrences[name] += 1
        key = f"{name}-{self._occurrences[name]}"
        if key in self._responses:
            self._used.add(key)
        return key, self._responses.get(key)

    def _add_pending(self, input_requests: Mapping[str, InputRequest[Any]], timeout: float) -> None:
        """Add these requests to the round; none of them if the client lacks a capability for one."""
        request = self._context.request
        for each in input_requests.values():
            require_client_support(each.server_request, request.revision, request.capabilities)
        for key, each in input_requests.items():
            if len(self._pending) < MAX_INPUT_REQUESTS:  # the others go into the next round
                params = each.params(request.revision)
                self._pending[key] = {"method": each.server_request.method, **({"params": params} if params else {})}
                self._timeouts.append(timeout)

    async def request_all(self, required: InputRequired) -> None:
        await self._raise_if_ended()
        state = Raw(b"null" if required.state is UNSET else encode_json(required.state))
        self._add_pending(required.requests, self._engine.options.answer_timeout)
        self._author_keys.update(required.requests)
        self._author_state = state
        self._ended = True
        raise InputNeeded

    async def require_urls(self, required: UrlElicitationRequired) -> None:
        """Request each URL once in a call, even if the user declines or is not done in the next round."""
        await self._raise_if_ended()
        accepted: list[bool] = []
        for input_request in required.elicitations:
            key, response = self._find_response(input_request.server_request)
            if response is not None:
                accepted.append(input_request.read(response, self._context.request.revision).accepted)
            else:
                self._add_pending({key: input_request}, self._engine.options.answer_timeout)
        if self._pending:
            self._ended = True
            raise InputNeeded
        raise ToolError(NOT_YET_DONE if all(accepted) else NOT_WILLING)

    async def step(self, name: str, function: Callable[[], Any], *, in_thread: bool) -> Any:
        await self._raise_if_ended()
        return await self._steps.run(name, function, in_thread=in_thread)

    # ── the end of a round ──

    async def wait_for_steps(self) -> None:
        await self._steps.wait()
        if not self._previous.number:
            self._generation = await generation_at_start(self._engine)

    def check_replay(self) -> None:
        """Log a warning if this run did not make all requests of earlier runs; it can't be known which run is right."""
        previous = self._previous
        steps = {f"{name}#{number + 1}" for name, times in self._steps.occurrences.items() for number in range(times)}
        missed = len({*previous.used} - self._used) + len(previous.steps.keys() - steps)
        if missed:
            text = (
                "%s has ended without coming to %d questions or steps of its earlier runs: what it reads must be the "
                "same in every run of a call, or be stored by ctx.step; or its code has changed meanwhile"
            )
            log.error(text, self._subject, missed)

    def input_required_result(self) -> InputRequiredResult:
        """Raises ToolError if the call has made too many rounds, or its state is too large."""
        self._ended = True
        if self._previous.number >= MAX_ROUNDS:
            raise self._given_up(f"it has asked {MAX_ROUNDS} times without coming to an end")
        is_wasted = self._new_responses and not self._used & self._new_responses.keys()
        wasted = self._previous.wasted + 1 if is_wasted else 0
        if wasted >= request_state.MAX_WASTED:
            raise self._given_up(
                f"it asks something else each time it is run again: the answers of {wasted} rounds were of no use. "
                "A question must not depend on the time, on chance or on what changes; store such values by ctx.step"
            )
        try:
            state = self._engine.sealer.seal(request_state.encode_round(self._next_round(wasted)))
        except TooLarge as failure:
            raise self._given_up(f"its answers and steps are too large for the request state: {failure}") from None
        if (metrics := self._engine.metrics) is not None:
            metrics.add(lazy.metrics.QUESTIONS, "asked", by=len(self._pending.keys() - self._author_keys))
        return InputRequiredResult(self._pending, state)

    def _next_round(self, wasted: int) -> Round:
        previous, now, default = self._previous, time.time(), self._engine.options.answer_timeout
        timeouts = self._timeouts or [default]
        telemetry = (self._context.served or self._engine).telemetry
        ends = previous.ends or now + CALL_LIFETIME_FACTOR * max(default, *timeouts)
        return Round(
            call=previous.call,
            number=previous.number + 1,
            expires=min(now + min(timeouts), ends),
            ends=ends,
            binding=_binding(self._engine, self._context),
            generation=self._generation,
            requested=[key for key in self._pending if key not in self._author_keys],
            responses=self._responses,
            used=sorted({*previous.used, *self._used}),
            steps=self._steps.results,
            wasted=wasted,
            state=previous.state if self._author_state is None else self._author_state,
            asked=None if telemetry is None else telemetry.asking(self._pending),
        )

    @property
    def _subject(self) -> str:
        params: InteractiveParams = self._context.request.params
        name = params.uri if isinstance(params, ReadResourceParams) else params.name
        printable = "".join(filter(str.isprintable, name[:128]))  # a URI comes from the client
        return f"The {SUBJECTS[self._context.request.method]} {printable}"

    def _given_up(self, reason: str) -> ToolError:
        text = f"{self._subject} can't go on: {reason}"
        log.error(text)
        return ToolError(text)


# ── steps ──


class Steps(msgspec.Struct, eq=False):
    """The steps of one run."""

    _engine: "Engine"
    results: dict[str, Raw]
    _previous: Round | None = None
    claim_timeout: float = 30.0  # to wait for a step of another request with the same state
    occurrences: Counter[str] = msgspec.field(default_factory=Counter)  # by name, in this run
    _running: set[asyncio.Task[Raw]] = set()

    async def run(self, name: object, function: Callable[[], Any], *, in_thread: bool) -> Any:
        """Run the step to its end, even if its call is cancelled: half a side effect helps no user."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise SetupError(f"ctx.step: the name {name!r} must be a string of up to {MAX_NAME} characters")
        if not callable(function):
            raise SetupError(f"ctx.step({name!r}): give it a function, as in ctx.step({name!r}, lambda: save(note))")
        self.occurrences[name] += 1
        key = f"{name}#{self.occurrences[name]}"
        result = self.results.get(key)
        if result is None:
            task = asyncio.get_running_loop().create_task(self._run(name, key, function, in_thread))
            for running in (self._running, self._engine.running_steps):
                running.add(task)
                task.add_done_callback(running.discard)
            result = await asyncio.shield(task)
        return msgspec.json.decode(result)

    async def wait(self) -> None:
        """Wait for all steps that have begun: the next run must know their results."""
        while self._running:
            await asyncio.wait(self._running)

    async def _run(self, name: str, key: str, function: Callable[[], Any], in_thread: bool) -> Raw:
        def call() -> Coroutine[Any, Any, Any]:
            return as_coroutine(self._call(name, function, in_thread))

        if self._previous is None:
            result = _encode_result(name, await call())
        else:
            digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
            result = await self._claim_and_run(name, self._previous, f"step/{self._previous.call}/{digest}", call)
        self.results[key] = result
        return result

    async def _claim_and_run(self, name: str, previous: Round, claim: str, call: Callable[[], Awaitable[Any]]) -> Raw:
        ttl = max(previous.ends - time.time(), 0.0) + 3600.0  # longer than the state, for its last run
        while not await self._engine.state.claim(claim, CLAIMED, ttl):
            if (result := await self._result_of_other_request(claim, name)) is not None:
                return result
        try:
            await self._check_generation(name, previous.generation)
            value = await call()
        except (Exception, InputNeeded):  # not CancelledError: the side effect may have happened
            await self._publish_result(claim, name, None, ttl)
            raise
        result = _encode_result(name, value)
        await self._publish_result(claim, name, result, ttl)
        return result

    async def _publish_result(self, claim: str, name: str, result: Raw | None, ttl: float) -> None:
        """Publish the result to requests that wait for this step. After a failure (None) they may run it themselves."""
        state = self._engine.state
        try:
            if result is None:
                await state.delete(claim)
            else:
                await state.put(claim, bytes(result), ttl=ttl)
            await state.publish(claim)
        except Exception as failure:  # this run has its result all the same
            log.warning("the outcome of the step %r can't be stored: %s", name, failure)

    async def _check_generation(self, name: str, generation: str) -> None:
        """Compare generations after the claim: if they are equal, the store had all claims of the call at that time."""
        if await store_generation(self._engine.state) == generation:
            return
        log.warning("the step %r was refused: the state store was emptied since its call began, or is another", name)
        raise ToolError(
            f"The step {name} was refused: the server has lost its record of what was done in this call. "
            "Look whether it has had its effect before you make this call again, from its beginning"
        )

    async def _result_of_other_request(self, claim: str, name: str) -> Raw | None:
        """Wait for the result of another request with the same state, which has the claim. None if its step failed."""
        state = self._engine.state
        try:
            with closing(state.listen([claim])) as listener:
                async with asyncio.timeout(self.claim_timeout):
                    while (entry := await state.get(claim)) is not None and entry.value == CLAIMED:
                        if not await listener.wait():  # the state has been closed
                            raise TimeoutError
        except TimeoutError:
            raise ToolError(
                f"The step {name} was begun by an earlier request and has not ended; it is not done a second time. "
                "Look whether it has had its effect before you make this call again"
            ) from None
        return None if entry is None else Raw(entry.value)

    async def _call(self, name: str, function: Callable[[], Any], in_thread: bool) -> Any:
        running_step.set(name)  # for this task, which is the step's own, and for its thread
        value = await self._engine.threads.run(function, label=f"step {name}") if in_thread else function()
        return await value if inspect.isawaitable(value) else value


def _encode_result(name: str, value: Any) -> Raw:
    try:
        return Raw(encode_json(value))
    except OutputError as failure:
        text = f"{failure}; it is remembered as JSON, so return what JSON can hold, or None"
        raise SetupError(f"ctx.step({name!r}): {text}") from None


async def store_generation(state: StateBackend) -> str:
    """Random name that is renewed after the store was emptied; an in-memory store has its own in each process."""
    while (entry := await state.get(GENERATION_KEY)) is None:
        await state.claim(GENERATION_KEY, secrets.token_bytes(8), MAX_TTL)
    return entry.value.hex()


async def generation_at_start(engine: "Engine") -> str:
    """The generation for a new call; the last known one if the store is unavailable, since each step compares it."""
    with suppress(ProtocolError):
        if engine.store_generation != (generation := await store_generation(engine.state)):
            await engine.state.touch(GENERATION_KEY, MAX_TTL)  # once in each process
            engine.store_generation = generation
    return engine.store_generation
