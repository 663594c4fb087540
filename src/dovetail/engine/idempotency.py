"""Calls that may be repeated: a call with an idempotency key runs once, and its repeats get its result.

The record of a key is claimed before the function runs and holds the outcome afterwards: a result, an error, or the
questions of a round. A run whose worker was lost, or that was cancelled, has an unknown outcome; it is never run again.
A call that was refused before its function began frees its key.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail import engine as lazy
from dovetail.engine.call_tool import error_result, has_begun, run_tool
from dovetail.engine.concurrency import Limit
from dovetail.engine.request_context import RequestContext
from dovetail.engine.workers import WorkerLease
from dovetail.errors import URL_ELICITATION_REQUIRED, ProtocolError
from dovetail.protocol.jsonrpc import encode, invalid_params
from dovetail.protocol.methods import CallToolParams
from dovetail.protocol.request_state import Round, arguments_digest, decode_round
from dovetail.protocol.results import InputRequiredResult, Result, ToolResult
from dovetail.protocol.types import CALL_KEY, PROCESS_KEY, REPLAY_KEY, Content
from dovetail.registry.outputs import FencedResult
from dovetail.registry.tools import Tool
from dovetail.schema.encode import OutputError, to_jsonable
from dovetail.state.base import Codec, Conflict, Entry, Listener, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

KEY_HEADER = "idempotency-key"
MAX_KEY = 255  # characters
MIN_SECRET_KEY = 32  # characters of a key that nothing but its secrecy keeps from other callers
MAX_STORED_BYTES = 1024 * 1024  # of one outcome
MAX_RUN = 86_400.0  # seconds that a claim lasts beyond its window, for a function that still runs
POLL_INTERVAL = 1.0  # seconds; a lost worker wakes no call that waits for it
STORE_WAIT = 2.0  # seconds that a response waits for the store; then it is sent, and its result stored later
RETRY_DELAYS = (0.1, 0.5, 1.0, 2.0, 5.0, *[15.0] * 40)  # seconds, for a store that is unavailable: ten minutes

OTHER_ARGUMENTS = "this idempotency key was used for a call with other arguments; use a new key for each call"
OTHER_CALL = "this idempotency key belongs to no call with this request state; send the key of its first round"
BAD_KEY = f"an idempotency key is a string of 1 to {MAX_KEY} printable characters"
SHORT_KEY = f"an idempotency key needs {MIN_SECRET_KEY} characters at least where callers are unknown; use a random one"
TWO_KEYS = f"the header Idempotency-Key and _meta[{CALL_KEY!r}] name different keys; send one of them"
UNKNOWN = (
    "The outcome of the earlier call of {} with this idempotency key is unknown: it was begun and did not end. It may "
    "or may not have had its effect; check that before you call again, with a new key."
)
TOO_LONG = (
    "The earlier call of {} with this idempotency key has ended, and its result was too long to be stored. It is not "
    "run again; check its effect before you call again, with a new key."
)
NOT_ANSWERED = "The earlier call of {} with this idempotency key had no answer in time; call again, with a new key."

log = logging.getLogger("dovetail")


class StoredResult(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    """The fields of a ToolResult: in every revision it can be sent again."""

    content: tuple[Content, ...] = ()
    structured: Raw | UnsetType = UNSET
    is_error: bool = False
    meta: dict[str, Any] | None = None
    has_schema: bool = False
    wrap: bool = False
    text_copy: bool = True
    fenced: bool = False

    @classmethod
    def from_result(cls, result: ToolResult) -> "StoredResult":
        fields = {name: getattr(result, name) for name in ToolResult.__struct_fields__}
        if result.structured is not UNSET:
            fields["structured"] = Raw(encode(result.structured))
        return cls(**fields, fenced=isinstance(result, FencedResult))

    def replay(self) -> Result:
        fields = {name: getattr(self, name) for name in ToolResult.__struct_fields__}
        kind = FencedResult if self.fenced else ToolResult
        return kind(**{**fields, "meta": {**(self.meta or {}), REPLAY_KEY: True}})


class StoredError(msgspec.Struct, frozen=True, tag="error", omit_defaults=True):
    """The JSON-RPC error in which a function has ended."""

    code: int
    message: str
    data: Any = None
    http_status: int = 200

    @classmethod
    def from_failure(cls, failure: ProtocolError) -> "StoredError":
        data = None
        with suppress(OutputError):  # data that can't be sent either
            data = to_jsonable(failure.data)
        return cls(failure.code, failure.message, data, failure.http_status)

    def replay(self) -> Result:
        raise ProtocolError(self.message, code=self.code, data=self.data, http_status=self.http_status)


class StoredQuestions(msgspec.Struct, frozen=True, tag="questions"):
    """The result of a round that asks the client; since 2026-07-28."""

    requests: Mapping[str, Raw]
    state: str

    def replay(self) -> Result:
        return InputRequiredResult(self.requests, self.state)


Outcome = StoredResult | StoredError | StoredQuestions
_decode_outcome: Callable[[bytes], Outcome] = msgspec.json.Decoder(Outcome).decode


class Record(msgspec.Struct, frozen=True):
    """What the store holds of a key."""

    worker: str  # that has claimed it
    run: str  # its id
    arguments: str  # their digest
    status: Literal["running", "asking", "done"] = "running"
    outcome: bytes = b""
    call: str = ""  # the id that all rounds of a call share
    round: int = 0  # of the questions
    expires: float = 0.0  # seconds since 1970, when they can't be answered any more

    def ended(self, outcome: Outcome, **changes: Any) -> "Record":
        return msgspec.structs.replace(self, **{"status": "done", "outcome": encode(outcome), **changes})


CODEC: Codec[Record] = Codec(Record, "idempotency key")


class Claim(msgspec.Struct):
    """A call that wants to run, or runs."""

    name: str  # of the record
    tool: Tool
    record: Record
    continued: Round | None  # the round that it goes on with
    is_known_elsewhere: bool  # it is a repeat, and another process, or an earlier one, knows whether the first has run
    previous: Record | None = None  # that it has replaced: the questions of that round

    @property
    def window(self) -> float:
        assert self.tool.idempotency is not None
        return self.tool.idempotency.window

    def outcome(self, found: Record) -> Outcome | None:
        """The outcome in a record; None if its call runs, or has come to the round that this one goes on with."""
        if found.arguments != self.record.arguments:
            raise invalid_params(OTHER_ARGUMENTS)
        if self.continued is not None and self.continued.call != found.call:
            raise invalid_params(OTHER_CALL)
        if found.status == "running":
            return None
        if found.status == "done":
            return _decode_outcome(found.outcome)
        if self.continued is not None and self.continued.number == found.round:
            return None
        return failed(self.tool, NOT_ANSWERED) if found.expires <= time.time() else _decode_outcome(found.outcome)


def failed(tool: Tool, text: str) -> StoredResult:
    result = error_result(text.format(tool.name), has_schema=tool.definition.output_schema is not None)
    return StoredResult.from_result(result)


async def call_once(engine: "Engine", context: RequestContext, tool: Tool) -> Result:
    """The result of a call of a tool with `idempotency=`; without a key it simply runs."""
    owner = lazy.caller_state.state_owner(context)
    key = read_key(context, is_known=owner is not None)
    if key is None:
        return await run_tool(engine, context)
    calls = engine.keyed_calls
    if calls is None or calls.state is not engine.state:
        calls = engine.keyed_calls = KeyedCalls(engine)
    digest = hashlib.sha256(encode([owner, tool.name, key])).hexdigest()
    return await calls.call(context, tool, f"idempotency/{digest}")


def read_key(context: RequestContext, *, is_known: bool) -> str | None:
    """The key in `_meta` or in the header; raises ProtocolError for a bad one."""
    request, given = context.request, list[Any]()
    if CALL_KEY in (meta := request.meta):
        given.append(meta[CALL_KEY])
    if request.headers is not None and KEY_HEADER in request.headers:
        text = request.headers[KEY_HEADER]
        given.append(text[1:-1] if text[:1] == text[-1:] == '"' else text)  # a string of structured fields, or bare
    if not given:
        return None
    key = given[0]
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise invalid_params(BAD_KEY)
    if key != given[-1]:
        raise invalid_params(TWO_KEYS)
    if not is_known and len(key) < MIN_SECRET_KEY:
        raise invalid_params(SHORT_KEY)
    return key


def _continued_round(engine: "Engine", context: RequestContext) -> Round | None:
    """The round that a request continues; None if it is the first of its call. Raises if its state is bad."""
    params: CallToolParams = context.request.params
    if not context.request.revision.input_required or not isinstance(params.request_state, str):
        return None
    lazy.input_required.resume(engine, context)
    return decode_round(engine.sealer.open(params.request_state))


class KeyedCalls:
    """The calls with a key that this process runs, and those that wait for one."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.state = engine.state
        if engine.lease is None:
            engine.lease = WorkerLease(engine.state, engine.lease_timings)
            engine.lease.start()
        self._lease = engine.lease
        self._running: set[str] = set()  # ids of the runs whose outcome is not stored
        most = engine.options.max_concurrency + engine.options.max_queue
        self._waiting = Limit(most, 0, subject="The server")

    async def call(self, context: RequestContext, tool: Tool, name: str) -> Result:
        """Run the call, or give the outcome of an earlier one; `name` is that of the record."""
        continued = _continued_round(self._engine, context)
        params: CallToolParams = context.original_params or context.request.params
        record = Record(
            worker=self._lease.id,
            run=os.urandom(8).hex(),
            arguments=arguments_digest(params.arguments),
            call="" if continued is None else continued.call,
        )
        process = context.request.meta.get(PROCESS_KEY, self._engine.process)
        claim = Claim(name, tool, record, continued, process != self._engine.process)
        outcome = await self._claim_or_join(claim)
        return await self._run(context, claim) if outcome is None else outcome.replay()

    # ── before the run ──

    async def _claim_or_join(self, claim: Claim) -> Outcome | None:
        """The outcome of an earlier call, when it has ended; None if this call has the claim."""
        listener: Listener | None = None
        try:
            while True:
                entry = await self.state.get(claim.name)
                found = None if entry is None else CODEC.decode(entry.value)
                if entry is None and claim.continued is not None:
                    raise invalid_params(OTHER_CALL)
                if found is None and (entry is not None or claim.is_known_elsewhere):  # another version has written it
                    return failed(claim.tool, UNKNOWN)
                if found is not None and (outcome := claim.outcome(found)) is not None:
                    return outcome
                if entry is None or found is None or found.status == "asking":
                    claim.previous = found
                    if await self._put(claim, 0 if entry is None else entry.version):
                        return None
                elif listener is None:  # then look once more: it may have ended before
                    await self._waiting.acquire()
                    listener = self.state.listen([claim.name])
                else:
                    await self._wait(listener, claim, entry, found)
        finally:
            if listener is not None:
                listener.close()
                self._waiting.release()

    async def _put(self, claim: Claim, version: int) -> bool:
        """Whether this call has the claim: no other was first."""
        if self._lease.store_error is not None:
            await self._lease.renew()  # a claim without a lease would be taken for lost
        self._running.add(claim.record.run)
        try:
            ttl = claim.window + MAX_RUN
            await self.state.put(claim.name, CODEC.encode(claim.record), ttl=ttl, if_version=version)
        except Conflict:
            self._running.discard(claim.record.run)
            return False
        except BaseException:  # it may have happened
            self._settle(claim, claim.previous)
            raise
        return True

    async def _wait(self, listener: Listener, claim: Claim, entry: Entry, found: Record) -> None:
        """Wait for another run. If it was lost, that is stored, once."""
        if found.worker == self._lease.id:
            is_lost = found.run not in self._running
        else:
            is_lost = await self._lease.is_lost(found.worker)
        if is_lost:
            log.warning("%s: a call with an idempotency key was lost, its outcome is unknown", claim.tool.label)
            unknown = CODEC.encode(found.ended(failed(claim.tool, UNKNOWN)))
            with suppress(Conflict):  # another call was first, or the run has ended
                await self.state.put(claim.name, unknown, ttl=claim.window, if_version=entry.version)
                await self.state.publish(claim.name)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_INTERVAL):
                if not await listener.wait():
                    raise StoreUnavailable  # it was closed

    # ── the run ──

    async def _run(self, context: RequestContext, claim: Claim) -> Result:
        own = claim.record
        ended: Record | None = own.ended(failed(claim.tool, UNKNOWN))  # unless it comes to an end
        context.outlives_connection = True
        try:
            result = await run_tool(self._engine, context)
            ended = self._ended(claim, result)
            return result
        except ProtocolError as failure:
            is_question = failure.code == URL_ELICITATION_REQUIRED  # the call can be made when it is answered
            ended = None if is_question else own.ended(StoredError.from_failure(failure))
            raise
        finally:
            context.outlives_connection = False
            storing = self._settle(claim, ended if has_begun(context) else claim.previous)
            await asyncio.wait([storing], timeout=STORE_WAIT)

    def _ended(self, claim: Claim, result: Result) -> Record:
        if isinstance(result, InputRequiredResult):
            asked = decode_round(self._engine.sealer.open(result.state))
            questions = StoredQuestions({key: Raw(encode(each)) for key, each in result.requests.items()}, result.state)
            round = {"call": asked.call, "round": asked.number, "expires": asked.expires}
            return claim.record.ended(questions, status="asking", **round)
        assert isinstance(result, ToolResult)
        ended = claim.record.ended(StoredResult.from_result(result))
        return ended if len(ended.outcome) <= MAX_STORED_BYTES else claim.record.ended(failed(claim.tool, TOO_LONG))

    def _settle(self, claim: Claim, ended: Record | None) -> "asyncio.Task[None]":
        """Store the end of a run, or free its key (None), even if the call is cancelled or the store unavailable."""
        steps = self._engine.running_steps
        task = asyncio.get_running_loop().create_task(self._store_end(claim, ended))
        steps.add(task)
        task.add_done_callback(steps.discard)
        return task

    async def _store_end(self, claim: Claim, ended: Record | None) -> None:
        try:
            for delay in RETRY_DELAYS:
                try:
                    return await self._replace(claim, ended)
                except Conflict:  # another worker takes this one for lost
                    continue
                except StoreFull:
                    ended = None if ended is None else claim.record.ended(failed(claim.tool, TOO_LONG))
                except StoreUnavailable:
                    pass
                await asyncio.sleep(delay)
            log.error("%s: the result of a call with an idempotency key could not be stored", claim.tool.label)
        finally:
            self._running.discard(claim.record.run)

    async def _replace(self, claim: Claim, ended: Record | None) -> None:
        """Replace the record of a claim, if it is still there."""
        entry = await self.state.get(claim.name)
        found = None if entry is None else CODEC.decode(entry.value)
        if entry is None or found is None or found.run != claim.record.run:
            return
        if ended is None:
            await self.state.delete(claim.name)
        else:
            await self.state.put(claim.name, CODEC.encode(ended), ttl=claim.window, if_version=entry.version)
        await self.state.publish(claim.name)
