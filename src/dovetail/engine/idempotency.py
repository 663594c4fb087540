"""Calls that may be repeated: a call with an idempotency key runs once, and its repeats get its result.

The record of a key is claimed before the function runs and holds the outcome afterwards: a result, an error, or the
questions of a round. A run whose worker was lost, that was cancelled or that timed out has an unknown outcome; it is
never run again. A call that was refused before its function began frees its key.
"""

import asyncio
import hashlib
import logging
import os
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail.engine.call_tool import call_tool, error_result, has_begun
from dovetail.engine.request_context import RequestContext
from dovetail.errors import URL_ELICITATION_REQUIRED, DovetailError, ProtocolError, ToolError
from dovetail.protocol.jsonrpc import encode, invalid_params, sendable
from dovetail.protocol.methods import CallToolParams
from dovetail.protocol.request_state import Round, arguments_digest, decode_round
from dovetail.protocol.results import InputRequiredResult, Result, ToolResult
from dovetail.protocol.types import CALL_KEY, PROCESS_KEY, REPLAY_KEY
from dovetail.registry.outputs import restore_result, store_result
from dovetail.registry.registration import Idempotency
from dovetail.registry.tools import Tool
from dovetail.schema.encode import OutputError, to_jsonable
from dovetail.state.base import Codec, Conflict, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

KEY_HEADER = "idempotency-key"
MAX_KEY = 255  # characters
MIN_SECRET_KEY = 32  # characters of a key that nothing but its secrecy keeps from other callers
MAX_STORED_BYTES = 1024 * 1024  # of one result
MAX_RUN = 86_400.0  # seconds that a claim lasts beyond its window, for a function that still runs
POLL_INTERVAL = 1.0  # seconds; a lost worker wakes no call that waits for it
STORE_WAIT = 2.0  # seconds that a response waits for the store; then it is sent, and its result stored later
RETRY_DELAYS = (0.1, 0.5, 1.0, 2.0, 5.0, *[15.0] * 40)  # seconds, for a store that takes no outcome: ten minutes

OTHER_ARGUMENTS = "this idempotency key was used for a call with other arguments; use a new key for each call"
OTHER_CALL = "this idempotency key belongs to no call with this request state; send the key of its first round"
BAD_KEY = f"an idempotency key is a string of 1 to {MAX_KEY} printable characters"
SHORT_KEY = f"an idempotency key needs {MIN_SECRET_KEY} characters at least where callers are unknown; use a random one"
TWO_KEYS = f"the header Idempotency-Key and _meta[{CALL_KEY!r}] name different keys; send one of them"
log = logging.getLogger("dovetail")

# Outcomes without a result. A store that is full takes no record that is longer than the claim, which holds RUNS.
RUNS, UNKNOWN, TOO_LONG = range(3)
TEXTS = {
    UNKNOWN: "The outcome of the earlier call of {} with this idempotency key is unknown: it was begun and did not end"
    ". It may or may not have had its effect; check that before you call again, with a new key.",
    TOO_LONG: "The earlier call of {} with this idempotency key has ended, and its result was too long to be stored. "
    "It is not run again; check its effect before you call again, with a new key.",
}


class Failure(NamedTuple):
    """A ProtocolError, or the text of another error, that can be stored."""

    code: int  # 0 for a ToolError
    message: str
    data: Any
    http_status: int

    @classmethod
    def from_error(cls, error: DovetailError) -> "Failure":
        if not isinstance(error, ProtocolError):
            return cls(0, sendable(str(error)), None, 200)
        data = None
        with suppress(OutputError):  # data that can't be sent either
            data = to_jsonable(error.data)
        return cls(error.code, sendable(error.message), data, error.http_status)

    def to_error(self) -> ToolError | ProtocolError:
        if self.code == 0:
            return ToolError(self.message)
        return ProtocolError(self.message, code=self.code, data=self.data, http_status=self.http_status)


class Record(msgspec.Struct, frozen=True):
    """What the store holds of a key: a call that runs, or its result, its error, or the questions of its last round."""

    worker: str  # that has claimed it
    run: str  # its id
    arguments: str  # their digest
    outcome: bytes | Failure | InputRequiredResult | int = RUNS  # a result is encoded
    call: str = ""  # the id that all rounds of a call share
    round: int = 0  # of the questions
    expires: float = 0.0  # seconds since 1970, when they can't be answered any more

    def replay(self, tool: Tool) -> Result:
        if isinstance(self.outcome, InputRequiredResult):
            return self.outcome
        if isinstance(self.outcome, Failure):
            raise self.outcome.to_error()
        if isinstance(self.outcome, bytes):
            result = restore_result(self.outcome)
        else:
            has_schema = tool.definition.output_schema is not None
            result = error_result(TEXTS[self.outcome].format(tool.name), has_schema=has_schema)
        return replace(result, meta={**(result.meta or {}), REPLAY_KEY: True})


CODEC: Codec[Record] = Codec(Record, "idempotency key")


async def call_once(engine: "Engine", context: RequestContext, tool: Tool) -> Result:
    """The result of a call of a tool with `idempotency=`; without a key it simply runs."""
    owner = lazy.caller_state.state_owner(context)
    if (key := read_key(context, is_known=owner is not None)) is None:
        return await call_tool(engine, context, tool)
    digest = hashlib.sha256(encode([owner, engine.path + tool.name, key])).hexdigest()
    return await KeyedCall(engine, context, tool, f"idempotency/{digest}").result()


def read_key(context: RequestContext, *, is_known: bool) -> str | None:
    """The key in `_meta` or in the header; raises ProtocolError for a bad one."""
    meta, headers = context.request.meta, context.request.headers
    given = [meta[CALL_KEY]] if CALL_KEY in meta else []
    if headers is not None and (text := headers.get(KEY_HEADER)) is not None:
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


class KeyedCall:
    """One call with a key: it claims the key and runs, or gets what an earlier call has left there."""

    def __init__(self, engine: "Engine", context: RequestContext, tool: Tool, name: str) -> None:
        self._engine = engine
        self._lease = engine.worker_lease()
        self._context = context
        self._tool = tool
        self._name = name  # of the record
        self._answered = Round(call="")  # the round whose questions this call answers, if it is not the first
        state = context.request.params.request_state
        if context.request.revision.input_required and isinstance(state, str):
            lazy.input_required.resume(engine, context)  # raises if the state is bad
            self._answered = decode_round(engine.sealer.open(state))
        params: CallToolParams = context.original_params or context.request.params
        digest, run = arguments_digest(params.arguments), os.urandom(8).hex()
        self._claim = Record(self._lease.id, run=run, arguments=digest, call=self._answered.call)
        self._previous: Record | None = None  # that the claim has replaced: the questions which this call answers

    async def result(self) -> Result:
        found = await self._claim_or_find()
        if found is not None and found.outcome == RUNS:
            async with self._engine.waiting:
                found = await self._wait()
        return await self._run() if found is None else found.replay(self._tool)

    async def _wait(self) -> Record | None:
        """What the earlier call leaves when it ends; None if that is nothing, and this call has the claim."""
        with closing(self._engine.state.listen([self._name])) as listener:
            while (found := await self._claim_or_find()) is not None and found.outcome == RUNS:
                has_ended = found.worker == self._lease.id and found.run not in self._engine.keyed_runs
                if has_ended or await self._lease.is_lost(found.worker):  # and stored no outcome
                    return replace(self._claim, outcome=UNKNOWN)
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL):
                        if not await listener.wait():
                            raise StoreUnavailable  # it was closed
        return found

    async def _claim_or_find(self) -> Record | None:
        """What an earlier call has left, or that it runs; None if this call has the claim."""
        process, answered = self._engine.process, self._answered
        while True:
            version, found = await self._read()
            # A first round without a call may be the one that asked: its questions are not stored, yet or for good.
            calls = ("", answered.call) if found is not None and found.outcome in (RUNS, UNKNOWN) else (answered.call,)
            if answered.call and (found is None or found.call not in calls):
                raise invalid_params(OTHER_CALL)
            if found is None:
                # Another version has written the record; or the process that knew the first call of a repeat has ended.
                if version or self._context.request.meta.get(PROCESS_KEY, process) != process:
                    return replace(self._claim, outcome=UNKNOWN)
            elif found.arguments != self._claim.arguments:
                raise invalid_params(OTHER_ARGUMENTS)
            elif not isinstance(found.outcome, InputRequiredResult) or answered.number != found.round:
                return replace(self._claim, outcome=UNKNOWN) if 0 < found.expires <= time.time() else found
            self._previous = found
            if await self._put_claim(version):
                return None

    async def _put_claim(self, version: int) -> bool:
        """Whether this call has the claim: no other was first."""
        if self._lease.store_error is not None:
            await self._lease.renew()  # a claim without a lease would be taken for lost
        self._engine.keyed_runs.add(self._claim.run)
        try:
            await self._put(self._claim, version)
        except Conflict:
            self._engine.keyed_runs.discard(self._claim.run)
            return False
        except BaseException:  # it may have happened
            self._settle(self._previous)
            raise
        return True

    # ── the run ──

    async def _run(self) -> Result:
        context = self._context
        ended: Record | None = replace(self._claim, outcome=UNKNOWN)  # unless it comes to an end
        context.outlives_connection = True
        try:
            result = await call_tool(self._engine, context, self._tool)
            if not context.cancellation:  # by a timeout too: a thread goes on
                ended = self._ended(result)
            return result
        except ProtocolError as failure:
            # a URL to open is a question: the call can be made when it is answered
            ended = None if failure.code == URL_ELICITATION_REQUIRED else self._ended(failure)
            raise
        finally:
            context.outlives_connection = False
            storing = self._settle(ended if has_begun(context) else self._previous)
            await asyncio.wait([storing], timeout=STORE_WAIT)

    def _ended(self, end: Result | ProtocolError) -> Record:
        if isinstance(end, InputRequiredResult):
            asked = decode_round(self._engine.sealer.open(end.state))
            return replace(self._claim, outcome=end, call=asked.call, round=asked.number, expires=asked.expires)
        if isinstance(end, ProtocolError):
            return replace(self._claim, outcome=Failure.from_error(end))
        assert isinstance(end, ToolResult)
        stored = store_result(end)
        return replace(self._claim, outcome=stored if len(stored) <= MAX_STORED_BYTES else TOO_LONG)

    # ── the store ──

    async def _read(self) -> tuple[int, Record | None]:
        """The version of the record, 0 if there is none, and the record, None if it can't be read."""
        entry = await self._engine.state.get(self._name)
        return (0, None) if entry is None else (entry.version, CODEC.decode(entry.value))

    async def _put(self, record: Record, version: int) -> None:
        assert isinstance(self._tool.route, Idempotency)
        ttl = self._tool.route.window
        if record.outcome == RUNS or isinstance(record.outcome, InputRequiredResult):
            ttl += max(MAX_RUN, record.expires - time.time())  # the window begins when the call has ended
        await self._engine.state.put(self._name, CODEC.encode(record), ttl=ttl, if_version=version)

    def _settle(self, ended: Record | None) -> "asyncio.Task[None]":
        """Store the end of a run, or free its key (None), even if the call is cancelled or the store unavailable."""
        task = asyncio.get_running_loop().create_task(self._store_end(ended))
        self._engine.running_steps.add(task)
        task.add_done_callback(self._engine.running_steps.discard)
        task.add_done_callback(lambda _: self._engine.keyed_runs.discard(self._claim.run))
        return task

    async def _store_end(self, ended: Record | None) -> None:
        for delay in RETRY_DELAYS:
            try:
                version, found = await self._read()
                if found is not None and found.run == self._claim.run:  # then no other call writes the record
                    if ended is None:
                        await self._engine.state.delete(self._name)
                    else:
                        await self._put(ended, version)
                    await self._engine.state.publish(self._name)
                return
            except StoreFull:  # which takes no record that is longer than the claim
                if ended is not None and not isinstance(ended.outcome, int):
                    asked = isinstance(ended.outcome, InputRequiredResult)
                    ended = replace(self._claim, outcome=UNKNOWN if asked else TOO_LONG)
            except (StoreUnavailable, Conflict):  # Conflict: it has expired meanwhile
                pass
            if self._engine.lease is not self._lease:  # the server has stopped: this worker counts as lost
                return
            await asyncio.sleep(delay)
        log.error("%s: the outcome of a call with an idempotency key could not be stored", self._tool.label)
