"""A gateway of four workers that die, in front of a backend that asks across eras: what the backend did is what counts.

Clients of 2026-07-28 call it in sessions with a handshake, handshake clients call it in 2026-07-28. Every call ends
with its result or with a word of why not, the backend books it at most once, and gets no answer of another call.
"""

import asyncio
import collections
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dying_fleet import FAILURES, KEYS, LONG, MAX_REPEATS, SHORT, DyingFleet, dying_fleet
from server_process import serving

from dovetail import Client, ElicitRequest
from sdk import HANDSHAKE, MODERN
from server_requests import is_input_required, retry

PROGRAM = Path(__file__).parent / "fleet_gateway_server.py"
FORMS = {"elicitation": {"form": {}}}
WORDS = (  # how a call may end that a worker took with it; a timeout is none
    "at its beginning: ConnectionLost",
    "The call was lost with the worker that held it; whether it had its effect is not known",
    "ServerError: The worker that served this call was lost; whether the call had an effect is not known",
    "ConnectionLost: tools/call: the server answered 502",
)
MAX_THOUGHT = 0.3  # seconds that a user takes to answer


class Storm:
    """The calls of all callers, and how they have ended."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.repeats = 0

    async def book_in_rounds(self, client: Client, nonce: str) -> None:
        """A round that is not answered is repeated, and meets any worker."""
        params: dict[str, Any] = {"name": "old_book", "arguments": arguments(nonce)}
        try:
            result = await client.request("tools/call", params)
        except FAILURES as failure:  # a repeat would be another call
            self.told[nonce] = f"at its beginning: {type(failure).__name__}"
            return
        while is_input_required(result):
            await asyncio.sleep(random.uniform(0, MAX_THOUGHT))  # its worker may die meanwhile
            result = await self._repeat(client, {**params, **retry(result, lambda message: own_answer(message, "old"))})
        self._end(nonce, result["content"][0]["text"], result.get("isError", False))

    async def _repeat(self, client: Client, params: dict[str, Any]) -> Any:
        for _ in range(MAX_REPEATS):
            try:
                return await client.request("tools/call", params)
            except FAILURES:
                self.repeats += 1
                await asyncio.sleep(0.1)
        raise AssertionError(f"{params['arguments']} is not answered")

    async def book_in_one(self, client: Client, nonce: str) -> None:
        """Its client answers meanwhile. A worker that dies takes the call with it."""
        try:
            result = await client.call_tool("new_book", arguments(nonce), raise_on_error=False)
        except FAILURES as failure:
            self.told[nonce] = f"{type(failure).__name__}: {failure}"
            return
        self._end(nonce, result.text, result.is_error)

    def _end(self, nonce: str, text: str, is_error: bool) -> None:
        assert nonce not in self.results.keys() | self.told.keys(), f"{nonce} has ended twice"
        (self.told if is_error else self.results)[nonce] = text


def arguments(nonce: str) -> dict[str, Any]:
    return {"nonce": nonce, "seconds": random.uniform(0, 0.05)}


def own_answer(message: str, namespace: str) -> str:
    """`[old] Day of ada-7?` is answered by `ada-7:Day`."""
    mount, question, _, nonce = message.split()
    assert mount == f"[{namespace}]"
    return f"{nonce.removesuffix('?')}:{question}"


async def fill_in(question: ElicitRequest) -> str:
    await asyncio.sleep(random.uniform(0, MAX_THOUGHT))
    return own_answer(question.message, "new")


@asynccontextmanager
async def dying_gateway(folder: Path, calls: int, calls_for_a_death: int) -> AsyncIterator[DyingFleet]:
    command = [str(PROGRAM), "--bookings", str(folder / "bookings")]
    with serving(command, folder / "backend.log") as backend:
        url = f"{backend.origin}/mcp"
        async with dying_fleet(folder, PROGRAM, "redis", calls, calls_for_a_death, FLEET_BACKEND=url) as workers:
            yield workers
    assert not backend.complaints, (folder / "backend.log").read_text()[-3000:]


@pytest.mark.parametrize(
    ("in_rounds", "in_one", "in_flight", "calls_for_a_death"),
    [pytest.param(22, 8, 6, 10, marks=SHORT), pytest.param(750, 250, 24, 50, marks=LONG)],
)
async def test_calls_that_ask_across_eras_while_workers_die(
    tmp_path: Path, in_rounds: int, in_one: int, in_flight: int, calls_for_a_death: int
) -> None:
    """So many calls of each of two callers."""
    storm = Storm()
    async with dying_gateway(tmp_path, in_rounds, calls_for_a_death) as workers:

        def book_modern(caller: str) -> Any:
            async def book(client: Client, number: int) -> None:
                await storm.book_in_rounds(client, f"{caller}-{number}")

            return workers.make_calls(MODERN, caller, book, in_flight, capabilities=FORMS)

        def book_handshake(caller: str) -> Any:
            async def book(client: Client, number: int) -> None:
                await storm.book_in_one(client, f"{caller}-one-{number}")

            options = {"calls": in_one, "elicitation_handler": fill_in}
            return workers.make_calls(HANDSHAKE, caller, book, in_flight // 3, **options)

        await asyncio.gather(*map(book_modern, KEYS), *map(book_handshake, KEYS))
    lines = [line.split() for line in (tmp_path / "bookings").read_text().splitlines()]
    booked = collections.Counter(words[1] for words in lines if words[0] == "booked")
    told = collections.Counter(storm.told.values())
    figures = f"{len(workers.killed)} workers killed, {storm.repeats} repeats, {len(storm.results)} booked"
    print(f"\n{figures}, {told}")  # noqa: T201
    assert [words for words in lines if words[0] != "booked"] == [], "an answer went astray"
    assert max(booked.values()) == 1, [nonce for nonce, times in booked.items() if times > 1]
    assert all(text == f"booked {nonce}" for nonce, text in storm.results.items())
    assert storm.results.keys() <= booked.keys()
    kinds = {"": in_rounds, "one-": in_one}
    every = {f"{caller}-{kind}{number}" for caller in KEYS for kind, calls in kinds.items() for number in range(calls)}
    assert storm.results.keys() | storm.told.keys() == every
    assert 2 * len(storm.results) > len(every), "it has proved nothing"
    assert not [text for text in told if not text.startswith(WORDS)], "these say nothing"
