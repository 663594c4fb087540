"""A fleet whose workers die while calls are in flight, and its clients."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fleet_processes import Fleet, fleet

from dovetail import Client, ConnectionLost, ServerError

WORKERS = 4
IN_FLIGHT = 32
KEYS = {name: {"key": f"key-of-{name}-for-tests"} for name in ("ada", "bob")}
SHORT = [pytest.mark.slow, pytest.mark.timeout(180)]
LONG = [pytest.mark.soak, pytest.mark.timeout(1800)]
CALLS_FOR_A_DEATH = 100  # of a worker
MAX_PAUSE = 0.2  # seconds between two calls of a client
CALL_TIMEOUT = 60.0  # seconds; longer than a worker is missed for
MAX_REPEATS = 200  # of one call, until it is answered
FAILURES = (ConnectionLost, ServerError, TimeoutError)  # after these a call may or may not have had its effect

Call = Callable[[Client, int], Awaitable[None]]


class DyingFleet:
    """Four workers, of which one after the other is killed and started again while calls are in flight."""

    def __init__(self, workers: Fleet, calls: int, calls_for_a_death: int = CALLS_FOR_A_DEATH) -> None:
        self.killed: list[int] = []
        self._workers = workers
        self._calls = calls
        self._calls_for_a_death = calls_for_a_death
        self._chance = random.Random(calls)
        self._killing = asyncio.Lock()

    @property
    def url(self) -> str:
        return self._workers.url

    async def make_calls(
        self, revision: str, caller: str, call: Call, in_flight: int = IN_FLIGHT, *, calls: int = 0, **options: Any
    ) -> None:
        """All calls, with so many in flight; each slot has a client of its own. `options` are those of the clients."""
        numbers = iter(range(calls or self._calls))

        async def client_calls() -> None:
            async with connected(self.url, revision, caller, **options) as client:
                for number in numbers:  # all clients share it
                    if number % self._calls_for_a_death == self._calls_for_a_death // 2:
                        await self._kill()
                    await call(client, number)
                    await asyncio.sleep(self._chance.uniform(0, MAX_PAUSE))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(in_flight):
                tasks.create_task(client_calls())

    async def _kill(self) -> None:
        async with self._killing:
            victim = self._chance.choice(self._workers.workers)
            self.killed.append(victim.pid)
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(victim.start)


@asynccontextmanager
async def dying_fleet(
    folder: Path, program: Path, store: str, calls: int, calls_for_a_death: int = CALLS_FOR_A_DEATH, **environment: str
) -> AsyncIterator[DyingFleet]:
    keys = {"FLEET_KEYS": json.dumps(KEYS), "FLEET_HASTE": "3"}
    with fleet(folder, workers=WORKERS, store=store, program=program, **keys, **environment) as workers:
        yield DyingFleet(workers, calls, calls_for_a_death)
        workers.assert_clean()


@asynccontextmanager
async def connected(url: str, revision: str, caller: str, **options: Any) -> AsyncIterator[Client]:
    """A client; while workers die, connecting may take several tries."""
    for _ in range(MAX_REPEATS):
        client = Client(url, protocol_version=revision, auth=KEYS[caller]["key"], timeout=CALL_TIMEOUT, **options)
        try:
            await client.open()
            break
        except FAILURES:
            await asyncio.sleep(0.1)
    try:
        yield client
    finally:
        await client.close()
