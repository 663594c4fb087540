"""Calls that stay open while workers die: none is lost without a word, none is doubled, no answer goes astray."""

import asyncio
import collections
import random
from pathlib import Path
from typing import Any

import pytest
from dying_fleet import FAILURES, KEYS, LONG, MAX_REPEATS, SHORT, dying_fleet

from dovetail import Client
from sdk import MODERN
from server_requests import CAPABILITIES, is_input_required, retry

PROGRAM = Path(__file__).parent / "fleet_open_calls_server.py"
LOST = "The call was lost with the worker that held it; whether it had its effect is not known"
MAX_THOUGHT = 0.5  # seconds that a user takes to answer


class Bookings:
    """How the calls of all callers have ended: each has a result, or its client was told why not."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.repeats = 0

    async def book(self, client: Client, caller: str, number: int) -> None:
        """One call; a round that is not answered is repeated, and meets any worker."""
        nonce = f"{caller}-{number}"
        params: dict[str, Any] = {"name": "book", "arguments": {"nonce": nonce, "seconds": random.uniform(0, 0.05)}}
        try:
            result = await client.request("tools/call", params)
        except FAILURES as failure:  # a repeat would be another call
            self.told[nonce] = f"at its beginning: {type(failure).__name__}"
            return
        while is_input_required(result):
            await asyncio.sleep(random.uniform(0, MAX_THOUGHT))  # its worker may die meanwhile
            answers = retry(result, lambda message: f"{caller}:{message.split()[0]}")
            result = await self._repeat(client, {**params, **answers})
        text = result["content"][0]["text"]
        if result.get("isError"):
            self.told[nonce] = text
        else:
            self.results[nonce] = text

    async def _repeat(self, client: Client, params: dict[str, Any]) -> Any:
        for _ in range(MAX_REPEATS):
            try:
                return await client.request("tools/call", params)
            except FAILURES:
                self.repeats += 1
                await asyncio.sleep(0.1)
        raise AssertionError(f"{params['arguments']} is not answered")


@pytest.mark.parametrize(
    ("calls", "in_flight", "calls_for_a_death"),
    [pytest.param(50, 8, 15, marks=SHORT), pytest.param(1000, 32, 50, marks=LONG)],
)
async def test_open_calls_while_workers_die(tmp_path: Path, calls: int, in_flight: int, calls_for_a_death: int) -> None:
    """So many calls of each caller."""
    bookings = Bookings()
    async with dying_fleet(tmp_path, PROGRAM, "redis", calls, calls_for_a_death) as workers:

        async def call_as(caller: str) -> None:
            async def book(client: Client, number: int) -> None:
                await bookings.book(client, caller, number)

            await workers.make_calls(MODERN, caller, book, in_flight, capabilities=CAPABILITIES)

        await asyncio.gather(*map(call_as, KEYS))
    lines = (tmp_path / "bookings").read_text().splitlines()
    booked = collections.Counter(line.split()[0] for line in lines)
    told = collections.Counter(bookings.told.values())
    print(f"\n{len(workers.killed)} workers killed, {bookings.repeats} repeats, {len(bookings.results)} booked, {told}")  # noqa: T201
    assert max(booked.values()) == 1, [nonce for nonce, times in booked.items() if times > 1]
    for line in lines:
        nonce = line.split()[0]
        caller = nonce.partition("-")[0]
        assert line == f"{nonce} {caller}:Day {caller}:Hour {caller}:Room", "an answer went astray"
    assert set(bookings.results.values()) <= set(lines)
    assert all(text.split()[0] == nonce for nonce, text in bookings.results.items())
    assert all(text == LOST or text.startswith("at its beginning") for text in told), told
    everything = {f"{caller}-{number}" for caller in KEYS for number in range(calls)}
    assert bookings.results.keys() | bookings.told.keys() == everything
    assert len(bookings.results) > calls  # of both callers: more than half, or it has proved nothing
