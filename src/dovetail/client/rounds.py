"""A request of several rounds, since 2026-07-28: what the server asks for is answered, and the request made again with
the answers, until its result is complete.

Nothing is kept from one request to another, and of a request only what its latest round said.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from dovetail.client.answering import Unanswerable
from dovetail.client.open_questions import Answer
from dovetail.client.results import decode, kind_of
from dovetail.errors import BadAnswer
from dovetail.protocol.jsonrpc import NO_PARAMS

Send = Callable[[Mapping[str, Any]], Awaitable[Raw]]
Prepare = Callable[[str, Raw], Answer]

METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})  # the only ones that may ask
INPUT_REQUIRED = "input_required"
MAX_QUESTIONS = 100  # in one round
MAX_INTERIM_BYTES = 16 * 1024 * 1024
FIRST_PAUSE_SECONDS = 0.1  # before a request that only waits is made again; doubled each time
LONGEST_PAUSE_SECONDS = 5.0


class _InputRequest(msgspec.Struct, frozen=True):
    method: str
    params: Raw = NO_PARAMS


class _Interim(msgspec.Struct, frozen=True, rename="camel"):
    """A result that is none yet."""

    input_requests: dict[str, _InputRequest] | None = None
    request_state: str | None = None


async def in_rounds(method: str, params: Mapping[str, Any], send: Send, prepare: Prepare, max_rounds: int) -> Raw:
    """The complete result. `send` makes one request, `prepare` reads one question."""
    raw = await send(params)
    waits = 0  # in a row, of rounds in which nothing was asked
    for _ in range(max_rounds):
        if kind_of(method, raw) != INPUT_REQUIRED:
            return raw
        interim = _read(method, raw)
        waits = 0 if interim.input_requests else waits + 1
        more = await _gathered(method, interim, prepare) if interim.input_requests else await _paused(waits)
        if interim.request_state is not None:
            more["requestState"] = interim.request_state
        raw = await send({**params, **more})
    if kind_of(method, raw) != INPUT_REQUIRED:
        return raw
    raise BadAnswer(f"{method}: the server still asks for more after {max_rounds} rounds; max_rounds= allows no others")


def _read(method: str, raw: Raw) -> _Interim:
    if len(raw) > MAX_INTERIM_BYTES:
        raise BadAnswer(f"{method}: the server asks with more than {MAX_INTERIM_BYTES} bytes")
    interim = decode(method, raw, _Interim)
    if not interim.input_requests and interim.request_state is None:
        raise BadAnswer(f"{method}: the server wants an answer, but asks nothing")
    if len(interim.input_requests or ()) > MAX_QUESTIONS:
        raise BadAnswer(f"{method}: the server asks more than {MAX_QUESTIONS} questions at once")
    return interim


async def _paused(waits: int) -> dict[str, Any]:
    await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2.0 ** (waits - 1), LONGEST_PAUSE_SECONDS))
    return {}


async def _gathered(method: str, interim: _Interim, prepare: Prepare) -> dict[str, Any]:
    """All answers; nobody is asked anything if one of the questions can't be answered."""
    requests = interim.input_requests or {}
    try:
        answers = [prepare(request.method, request.params) for request in requests.values()]
    except Unanswerable as unanswerable:
        raise BadAnswer(f"{method}: {unanswerable.advice}") from None
    return {"inputResponses": dict(zip(requests, await _at_once(answers), strict=True))}


async def _at_once(answers: Sequence[Answer]) -> list[Mapping[str, Any]]:
    """The first failure, or who stops waiting, stops them all."""
    tasks = [asyncio.ensure_future(answer()) for answer in answers]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
