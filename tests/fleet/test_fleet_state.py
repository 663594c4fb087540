"""State of callers and repeated calls while workers die: no update is lost, no call with a key runs twice."""

import asyncio
import collections
import random
import secrets
from collections.abc import Collection
from itertools import product
from pathlib import Path

import pytest
from dying_fleet import FAILURES, LONG, MAX_REPEATS, SHORT, connected, dying_fleet

from dovetail import Client, ToolError
from sdk import HANDSHAKE, MODERN

PROGRAM = Path(__file__).parent / "fleet_state_server.py"


def storms(
    *short: tuple[str, str, int], long: int, stores: Collection[str] = ("redis", "sqlite")
) -> pytest.MarkDecorator:
    """These few in `make test`; in `make soak` `long` calls in each era on each store."""
    few = [pytest.param(*case, marks=SHORT) for case in short]
    many = [pytest.param(*case, long, marks=LONG) for case in product((HANDSHAKE, MODERN), stores)]
    return pytest.mark.parametrize(("revision", "store", "calls"), [*few, *many])


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

    async with dying_fleet(tmp_path, PROGRAM, store, calls) as workers:
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

    async with dying_fleet(tmp_path, PROGRAM, store, calls) as workers:
        await workers.make_calls(revision, "ada", charge)
    charged = collections.Counter((tmp_path / "charges").read_text().split())
    print(f"\n{calls} calls, {len(workers.killed)} workers killed, {repeats} repeats, {len(unknown)} unknown")  # noqa: T201
    assert max(charged.values()) == 1, [nonce for nonce, times in charged.items() if times > 1]
    assert all("unknown" in text for text in unknown.values()), set(unknown.values())
    assert results.keys() <= charged.keys()
    assert all(results[nonce] == f"charged {nonce}" for nonce in results)
    assert results.keys() | unknown.keys() == {f"n{number}" for number in range(calls)}
    assert len(results) > calls / 2
