"""A worker that has claimed a key is killed: the outcome is unknown, and no other worker runs the call again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from fleet_client import post
from fleet_processes import Fleet, fleet

from dovetail import Client
from dovetail.client.config import make_transport
from dovetail.client.transports.aiohttp import HttpLimits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
UNKNOWN = "may or may not have had its effect"
LONG = 600.0  # seconds: such a call ends by being killed


@pytest.fixture(scope="module", params=["redis", "sqlite"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Path]]:
    folder = tmp_path_factory.mktemp(request.param)
    with fleet(folder, workers=2, store=request.param, FLEET_HASTE="6") as two:
        yield two, folder / "pay.log"


def begun(log: Path, nonce: str) -> int:
    """How often a call has begun, at whatever worker."""
    return log.read_text().splitlines().count(f"begin {nonce}") if log.exists() else 0


async def until_begun(log: Path, nonce: str) -> None:
    async with asyncio.timeout(20):
        while not begun(log, nonce):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_call_whose_worker_is_killed_has_an_unknown_outcome(
    two: tuple[Fleet, Path], http: aiohttp.ClientSession
) -> None:
    (workers, log), nonce = two, "killed"
    arguments, headers = {"nonce": nonce, "seconds": LONG}, {"Idempotency-Key": "k" * 32, "Accept": "application/json"}
    first = asyncio.create_task(post(http, workers.urls[0], "pay", arguments, headers))
    await until_begun(log, nonce)
    waiting = asyncio.create_task(post(http, workers.urls[1], "pay", arguments, headers))
    workers.workers[0].kill()
    with pytest.raises(aiohttp.ClientError):
        await first
    workers.workers[0].start()
    answers = [await waiting, *[await post(http, url, "pay", arguments, headers) for url in workers.urls]]
    for answer in answers:
        result = answer.json["result"]
        assert result["isError"]
        assert UNKNOWN in result["content"][0]["text"]
        assert result["_meta"]["dovetail/idempotentReplay"] is True
    assert begun(log, nonce) == 1


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_a_client_repeats_by_itself_and_meets_the_other_worker(two: tuple[Fleet, Path], revision: str) -> None:
    (workers, log), nonce = two, f"client-{revision}"
    transport = make_transport(workers.url, {}, HttpLimits(first_retry_delay=0.5))
    async with Client(transport, protocol_version=revision) as client:
        call = asyncio.create_task(client.call_tool("pay", {"nonce": nonce, "seconds": 1.5}, raise_on_error=False))
        await until_begun(log, nonce)
        workers.nginx.kill()  # all connections break, and the call goes on
        workers.nginx.start()
        result = await call
    assert (result.text, result.is_error) == (nonce, False)
    assert result.meta["dovetail/idempotentReplay"] is True
    assert begun(log, nonce) == 1
