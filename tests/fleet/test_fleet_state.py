"""State of callers and repeated calls while workers die: no update is lost, no call with a key runs twice."""

import asyncio
import collections
import json
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest
from fleet_processes import Fleet, fleet

from dovetail import Client, ConnectionLost, ServerError, ToolError
from sdk import HANDSHAKE, MODERN

PROGRAM = Path(__file__).parent / "fleet_state_server.py"
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


def storms(
    *short: tuple[str, str, int], long: int, stores: Collection[str] = ("redis", "sqlite")
) -> pytest.MarkDecorator:
    """These few in `make test`; in `make soak` `long` calls in each era on each store."""
    few = [pytest.param(*case, marks=SHORT) for case in short]
    many = [pytest.param(*case, long, marks=LONG) for case in product((HANDSHAKE, MODERN), stores)]
    return pytest.mark.parametrize(("revision", "store", "calls"), [*few, *many])


class DyingFleet:
    """Four workers, of which one after the other is killed and started again while calls are in flight."""

    def __init__(self, workers: Fleet, calls: int) -> None:
        self.killed: list[int] = []
        self._workers = workers
        self._calls = calls
        self._chance = random.Random(calls)
        self._killing = asyncio.Lock()

    @property
    def url(self) -> str:
        return self._workers.url

    async def make_calls(self, revision: str, caller: str, call: Call) -> None:
        """All calls, with so many in flight; each slot has a client of its own."""
        numbers = iter(range(self._calls))

        async def client_calls() -> None:
            async with connected(self.url, revision, caller) as client:
                for number in numbers:  # all clients share it
                    if number % CALLS_FOR_A_DEATH == CALLS_FOR_A_DEATH // 2:
                        await self._kill()
                    await call(client, number)
                    await asyncio.sleep(self._chance.uniform(0, MAX_PAUSE))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(client_calls())

    async def _kill(self) -> None:
        async with self._killing:
            victim = self._chance.choice(self._workers.workers)
            self.killed.append(victim.pid)
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(victim.start)


@asynccontextmanager
async def dying_fleet(folder: Path, store: str, calls: int) -> AsyncIterator[DyingFleet]:
    keys = {"FLEET_KEYS": json.dumps(KEYS), "FLEET_HASTE": "3"}
    with fleet(folder, workers=WORKERS, store=store, program=PROGRAM, **keys) as workers:
        yield DyingFleet(workers, calls)
        workers.assert_clean()


@asynccontextmanager
async def connected(url: str, revision: str, caller: str) -> AsyncIterator[Client]:
    """A client; while workers die, connecting may take several tries."""
    for _ in range(MAX_REPEATS):
        client = Client(url, protocol_version=revision, auth=KEYS[caller]["key"], timeout=CALL_TIMEOUT)
        try:
            await client.open()
            break
        except FAILURES:
            await asyncio.sleep(0.1)
    try:
        yield client
    finally:
        await client.close()


@storms((HANDSHAKE, "sqlite", 300), (MODERN, "redis", 300), long=10_000)
async def test_no_update_is_lost_while_workers_die(tmp_path: Path, revision: str, store: str, calls: int) -> None:
    """Two updates never come to the same count, and all that were confirmed are counted; of others nobody knows."""
    counts: list[int] = []
    unknown: collections.Counter[str] = collections.Counter()

    async def bump(client: Client, number: int) -> None:
        try:
            counts.append((await client.call_tool("bump")).data)
        except (*FAILURES, ToolError) as failure:
            unknown[str(failure)[:100]] += 1

    async with dying_fleet(tmp_path, store, calls) as workers:
        await workers.make_calls(revision, "ada", bump)
        async with connected(workers.url, revision, "ada") as ada, connected(workers.url, revision, "bob") as bob:
            final = await answered(ada, "counted")
            assert await answered(bob, "counted") == 0
    print(f"\n{calls} updates, {len(workers.killed)} workers killed, {len(counts)} confirmed, {unknown}: {final}")  # noqa: T201
    assert len(counts) == len(set(counts)), "two updates read the same count"
    assert len(counts) <= final <= calls
    assert len(counts) > calls / 2  # or it has proved nothing


async def answered(client: Client, tool: str) -> int:
    for _ in range(MAX_REPEATS):
        try:
            return int((await client.call_tool(tool)).data)
        except FAILURES:
            await asyncio.sleep(0.1)
    raise AssertionError(f"{tool} is not answered")


@storms((HANDSHAKE, "redis", 200), (MODERN, "sqlite", 200), long=10_000)
async def test_no_call_with_a_key_runs_twice_while_workers_die(
    tmp_path: Path, revision: str, store: str, calls: int
) -> None:
    """Each call is repeated with its key until there is an answer: the result, or that its outcome is unknown."""
    results: dict[str, str] = {}
    unknown: dict[str, str] = {}
    repeats = 0

    async def charge(client: Client, number: int) -> None:
        nonlocal repeats
        nonce, key = f"n{number}", secrets.token_urlsafe(32)
        arguments = {"nonce": nonce, "seconds": random.uniform(0, 0.02)}
        for _ in range(MAX_REPEATS):
            try:
                results[nonce] = (await client.call_tool("charge", arguments, idempotency_key=key)).data
                if number % 3 == 0:  # a client that has lost the answer after all
                    assert (await client.call_tool("charge", arguments, idempotency_key=key)).data == results[nonce]
                return
            except ToolError as told:
                unknown[nonce] = str(told)
                return
            except FAILURES:
                repeats += 1
                await asyncio.sleep(0.1)
        raise AssertionError(f"{nonce} is not answered")

    async with dying_fleet(tmp_path, store, calls) as workers:
        await workers.make_calls(revision, "ada", charge)
    charged = collections.Counter((tmp_path / "charges").read_text().split())
    print(f"\n{calls} calls, {len(workers.killed)} workers killed, {repeats} repeats, {len(unknown)} unknown")  # noqa: T201
    assert max(charged.values()) == 1, [nonce for nonce, times in charged.items() if times > 1]
    assert all("unknown" in text for text in unknown.values()), set(unknown.values())
    assert results.keys() <= charged.keys()
    assert all(results[nonce] == f"charged {nonce}" for nonce in results)
    assert results.keys() | unknown.keys() == {f"n{number}" for number in range(calls)}
    assert len(results) > calls / 2
