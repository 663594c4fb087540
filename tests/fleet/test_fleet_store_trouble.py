"""Redis stands still, restarts or forgets everything: errors come soon and say so, and then all is well again."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from fleet_ledger import Loud
from fleet_processes import Fleet, FleetProcess, fleet
from fleet_raw import HANDSHAKE, MODERN, RawSession, modern
from fleet_visitors import running
from redis.asyncio import Redis

from dovetail import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
REFUSED_SECONDS = 4.0  # in which a refusal comes, however the store fails: 3, and some for a busy machine
RECOVERED_SECONDS = 15.0
LONG_SECONDS = 6.0  # in which a command and the next one fail
STEPS = 40  # of a call: some before the trouble, and more after it than the last one who leaves has heard


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, workers=2, store="redis") as two:
        yield two
        two.assert_clean()


@pytest.fixture
def redis(two: Fleet) -> FleetProcess:
    assert two.store is not None
    return two.store


class Trouble:
    """`await trouble.begin()`, and some time later `await trouble.end()`."""

    def __init__(self, kind: str, redis: FleetProcess) -> None:
        self.kind = kind
        self._redis = redis

    async def begin(self) -> None:
        await asyncio.to_thread(self._redis.pause if self.kind == "paused" else self._redis.stop)

    async def end(self) -> None:
        await asyncio.to_thread(self._redis.go_on if self.kind == "paused" else self._redis.start)


@pytest.fixture(params=["paused", "restarted"])
def trouble(request: pytest.FixtureRequest, redis: FleetProcess) -> Trouble:
    return Trouble(request.param, redis)


async def ready(http: aiohttp.ClientSession, worker: FleetProcess) -> int:
    async with http.get(f"{worker.origin}/ready") as response:
        return response.status


async def all_ready(http: aiohttp.ClientSession, fleet: Fleet, status: int) -> None:
    async with asyncio.timeout(RECOVERED_SECONDS):
        while {await ready(http, worker) for worker in fleet.workers} != {status}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def refusal(session: RawSession, at: str | None = None) -> tuple[int, float]:
    """The status of a call in a session, and after how long it came."""
    began = time.monotonic()
    reply = await session.send("POST", session.request("tools/call", {"name": "whoami", "arguments": {}}), at=at)
    return reply.status, time.monotonic() - began


async def test_refusals_are_bounded_and_plain_calls_go_on(
    two: Fleet, http: aiohttp.ClientSession, trouble: Trouble
) -> None:
    sessions = [await RawSession(http, two.url).open() for _ in range(5)]
    await all_ready(http, two, 200)
    await trouble.begin()
    try:
        refused = await asyncio.gather(*(refusal(session) for session in sessions))
        assert {status for status, _ in refused} == {503}
        assert max(seconds for _, seconds in refused) < REFUSED_SECONDS
        hello = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "late", "version": "1"}}
        newcomer = RawSession(http, two.url)
        assert (await newcomer.send("POST", newcomer.request("initialize", hello))).status == 503
        began = time.monotonic()
        for number in range(20):
            assert await modern(http, two.url, "echo", nonce=f"{number}") == f"{number}"
        assert time.monotonic() - began < REFUSED_SECONDS
        await all_ready(http, two, 503)
        async with http.get(f"{two.nginx.origin}/health") as health:
            assert health.status == 200
    finally:
        await trouble.end()
    await all_ready(http, two, 200)
    for session in sessions:
        for url in two.urls:
            assert await session.ask("ping", at=url) == {}
        heard: list[float] = []
        arguments = {"nonce": "n", "steps": 5, "pause": 0.02}
        assert await session.call("count", arguments, heard, leave_after=2) == "n 5"
        assert heard == [1, 2, 3, 4, 5]


async def test_a_plain_call_never_touches_the_store(
    two: Fleet, http: aiohttp.ClientSession, redis: FleetProcess
) -> None:
    """Nor does a list; a call in a session does, so what is counted here are real commands."""
    async with Redis(port=redis.port) as asker:
        session = await RawSession(http, two.url).open()

        async def commands() -> int:
            """That were made so far, without what workers do by themselves."""
            counted = await asker.info("commandstats")
            own = ("ping", "info", "config", "pexpire", "subscribe", "unsubscribe", "hello", "client")
            return sum(each["calls"] for name, each in counted.items() if name.split("_")[1].split("|")[0] not in own)

        before = await commands()
        for number in range(50):
            assert await modern(http, two.url, "echo", nonce=f"{number}") == f"{number}"
        async with Client(two.url, protocol_version=MODERN) as client:
            await client.list_tools()
        assert await commands() == before
        await session.ask("tools/call", name="echo", arguments={"nonce": "n"})
        assert await commands() > before


@pytest.mark.soak
async def test_nothing_piles_up(two: Fleet, http: aiohttp.ClientSession, trouble: Trouble) -> None:
    session = await RawSession(http, two.url).open()
    before = sum(resident_bytes(worker.pid) for worker in two.workers)
    await trouble.begin()
    try:
        refused = await asyncio.gather(*(refusal(session) for _ in range(400)))
        await all_ready(http, two, 503)  # from now on, 200 means that it is back
    finally:
        await trouble.end()
    assert {status for status, _ in refused} == {503}
    assert max(seconds for _, seconds in refused) < 2 * REFUSED_SECONDS  # a crowd on two cores
    assert sum(resident_bytes(worker.pid) for worker in two.workers) - before < 40 * 2**20
    await all_ready(http, two, 200)
    assert await session.ask("ping") == {}


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.soak
async def test_a_call_in_flight_ends_one_way_or_the_other(
    two: Fleet, http: aiohttp.ClientSession, trouble: Trouble
) -> None:
    """Events can't be kept for a while, so who leaves then may miss some; what comes is right, in order, and once."""
    sessions = [await RawSession(http, two.url).open() for _ in range(6)]
    arguments = {"nonce": "n", "steps": STEPS, "pause": 0.05}
    heard: list[list[float]] = [[] for _ in sessions]
    calls = [
        asyncio.create_task(session.call("count", arguments, heard[place], leave_after=place * 5))
        for place, session in enumerate(sessions)
    ]
    await asyncio.sleep(0.25)
    await trouble.begin()
    await asyncio.sleep(LONG_SECONDS)
    await all_ready(http, two, 503)
    await trouble.end()
    for place, outcome in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
        assert heard[place] == sorted(set(heard[place])), place
        assert outcome == f"n {STEPS}" or (place and isinstance(outcome, Loud)), (place, outcome)
        if place == 0:  # who never left has missed nothing
            assert heard[0] == list(range(1, STEPS + 1))
    await all_ready(http, two, 200)
    for session in sessions:
        assert await session.ask("ping") == {}


async def test_a_store_that_has_forgotten_everything(
    two: Fleet, http: aiohttp.ClientSession, redis: FleetProcess
) -> None:
    """Sessions are gone, and their clients are told so in the words that make them begin anew."""
    session = await RawSession(http, two.url).open()
    async with running(session.hear()):
        await asyncio.wait_for(session.hears.wait(), RECOVERED_SECONDS)
    redis.stop()
    await all_ready(http, two, 503)
    for kept in redis.log.parent.glob("appendonlydir/*"):
        kept.unlink()
    await asyncio.to_thread(redis.start)
    await all_ready(http, two, 200)
    statuses = [(await session.send("POST", session.request("ping", {}), at=url)).status for url in two.urls]
    assert statuses == [404, 404]
    again = await RawSession(http, two.url).open()
    for url in two.urls:
        assert await again.ask("ping", at=url) == {}
