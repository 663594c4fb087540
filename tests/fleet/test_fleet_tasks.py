"""Tasks on a fleet: while workers die none runs twice or ends without a word, and a thousand are open at once."""

import asyncio
import collections
import json
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from dying_fleet import FAILURES, KEYS, LONG, MAX_REPEATS, SHORT, dying_fleet
from fleet_processes import fleet

from dovetail import CallToolResult, Client, ElicitRequest, ServerError, ToolTask
from sdk import HANDSHAKE, MODERN

PROGRAM = Path(__file__).parent / "fleet_tasks_server.py"
LOST = "was lost; whether"  # the worker that ran a task, or that began it
MAX_THOUGHT = 0.5  # seconds that a user takes to answer
CONNECTIONS = 100  # at once; the nginx of the tests takes 1,000, and each request needs two
CALLERS = {f"caller-{number}": {"key": f"key-of-caller-{number}-for-tests"} for number in range(10)}


class Bookings:
    """How the tasks of all callers have ended: each has a result, or its client was told why not."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.told: dict[str, str] = {}

    async def book(self, client: Client, caller: str, number: int) -> None:
        nonce = f"{caller}-{number}"
        arguments = {"nonce": nonce, "seconds": random.uniform(0, 0.05)}
        try:
            task = await client.start_tool("book", arguments)
        except FAILURES as failure:  # a repeat would be another task
            self.told[nonce] = f"at its beginning: {type(failure).__name__}"
            return
        for _ in range(MAX_REPEATS):
            try:
                self.results[nonce] = (await task.wait()).text
                return
            except ServerError as failure:
                if task.status == "failed":
                    self.told[nonce] = str(failure)
                    return
            except FAILURES:
                await asyncio.sleep(0.1)
        raise AssertionError(f"{nonce} has no end")


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
@pytest.mark.parametrize(
    ("calls", "in_flight", "calls_for_a_death"),
    [pytest.param(20, 8, 10, marks=SHORT), pytest.param(500, 32, 50, marks=LONG)],
)
@pytest.mark.rule("TASK-7", "TASK-13")
async def test_tasks_while_workers_die(
    tmp_path: Path, revision: str, calls: int, in_flight: int, calls_for_a_death: int
) -> None:
    """So many tasks of each caller."""
    bookings = Bookings()
    async with dying_fleet(tmp_path, PROGRAM, "redis", calls, calls_for_a_death) as workers:

        async def call_as(caller: str) -> None:
            async def answer(request: ElicitRequest) -> str:
                await asyncio.sleep(random.uniform(0, MAX_THOUGHT))
                return f"{caller}:{request.message.split()[-1]}"

            async def book(client: Client, number: int) -> None:
                await bookings.book(client, caller, number)

            await workers.make_calls(revision, caller, book, in_flight, tasks=True, elicitation_handler=answer)

        await asyncio.gather(*map(call_as, KEYS))
    reserved = collections.Counter((tmp_path / "reserved").read_text().split())
    booked = (tmp_path / "bookings").read_text().splitlines()
    told = collections.Counter(bookings.told.values())
    print(f"\n{revision}: {len(workers.killed)} workers killed, {len(bookings.results)} booked, {told}")  # noqa: T201
    assert max(reserved.values()) == 1, "a step ran twice"
    assert len(set(booked)) == len(booked), "a task ran twice"
    for line in booked:
        nonce = line.split()[0]
        assert line == f"{nonce} {nonce.partition('-')[0]}:{nonce}?", "an answer went astray"
    assert set(bookings.results.values()) <= set(booked)
    assert all(text.split()[0] == nonce for nonce, text in bookings.results.items())
    assert all(LOST in text or text.startswith("at its beginning") for text in told), told
    assert bookings.results.keys() | bookings.told.keys() == {f"{name}-{n}" for name in KEYS for n in range(calls)}
    assert len(bookings.results) > calls  # of both callers: more than half, or it has proved nothing


@pytest.mark.parametrize("store", ["redis", "sqlite"])
@pytest.mark.parametrize("tasks", [pytest.param(100, marks=SHORT), pytest.param(1000, marks=LONG)])
async def test_many_tasks_are_open_at_once(tmp_path: Path, store: str, tasks: int) -> None:
    keys = {"FLEET_KEYS": json.dumps(CALLERS)}
    with fleet(tmp_path, workers=4, store=store, program=PROGRAM, **keys) as workers:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(Client(workers.url, auth=caller["key"], tasks=True, timeout=60))
                for caller in CALLERS.values()
            ]
            slots = asyncio.Semaphore(CONNECTIONS)

            async def start(number: int) -> ToolTask:
                async with slots:
                    return await clients[number % len(clients)].start_tool("wait", {"nonce": str(number)})

            started = await asyncio.gather(*map(start, range(tasks)))
            assert {task.status for task in started} == {"working"}
            assert len({task.id for task in started}) == tasks
            (tmp_path / "gate").touch()

            async def wait(task: ToolTask) -> CallToolResult:
                async with slots:
                    return await task.wait()

            results = await asyncio.gather(*map(wait, started))
            assert [result.text for result in results] == [str(number) for number in range(tasks)]
        workers.assert_clean()
