"""A Redis that is full: what needs room is refused in plain words, all else goes on; with room all is well again."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from fleet_ledger import Loud
from fleet_processes import Fleet, fleet
from fleet_raw import HANDSHAKE, RawListening, RawSession, Reply, modern
from fleet_visitors import running
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

pytestmark = [pytest.mark.timeout(120)]
REFUSED_SECONDS = 4.0
RECOVERED_SECONDS = 15.0
FULL_SECONDS = 9.0  # longer than it takes to miss a worker
OVERFULL_BYTES = 2**20  # what it uses for connections goes up and down; this is more


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, workers=2, store="redis", FLEET_HASTE="3") as two:
        yield two
        two.assert_clean()


@pytest.fixture
async def redis(two: Fleet) -> AsyncIterator[Redis]:
    assert two.store is not None
    async with Redis(port=two.store.port) as redis:
        yield redis


async def fill(redis: Redis) -> None:
    """It holds more of somebody else's data than it may, so that there is no room for the smallest record."""
    await redis.config_set("maxmemory-policy", "noeviction")
    for number in range(10):
        await redis.set(f"somebody else's {number}", b"x" * (OVERFULL_BYTES // 5))
    await redis.config_set("maxmemory", (await redis.info("memory"))["used_memory"] - OVERFULL_BYTES)
    with pytest.raises(OutOfMemoryError):
        await redis.set("one more", b"x")


async def hello(http: aiohttp.ClientSession, url: str) -> Reply:
    stranger = RawSession(http, url)
    params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "late", "version": "1"}}
    return await stranger.send("POST", stranger.request("initialize", params))


async def becomes(http: aiohttp.ClientSession, url: str, status: int, words: str) -> None:
    """Wait until `/ready` says so: workers look by themselves, every second."""
    async with asyncio.timeout(REFUSED_SECONDS):
        while True:
            async with http.get(url.removesuffix("/mcp") + "/ready") as reply:
                if (reply.status, (await reply.json())["status"]) == (status, words):
                    return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_full_store(two: Fleet, http: aiohttp.ClientSession, redis: Redis) -> None:
    session = await RawSession(http, two.urls[0]).open(elicitation={})
    await session.ask("resources/subscribe", uri="board://full")
    listening = RawListening(http, two.urls[1], resourceSubscriptions=["board://full"])
    async with running(session.hear(at=two.urls[1])), running(listening.hear()):
        await asyncio.wait_for(session.hears.wait(), RECOVERED_SECONDS)
        await asyncio.wait_for(listening.hears.wait(), RECOVERED_SECONDS)
        await fill(redis)
        await nothing_new_but_all_else(two, http, session)
        await redis.config_set("maxmemory", 0)
        await all_is_well(two, http, session)
        assert await modern(http, two.urls[0], "touch_resource", name="full", version=2) == "2"
        async with asyncio.timeout(RECOVERED_SECONDS):
            while not (listening.heard and session.heard):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def nothing_new_but_all_else(two: Fleet, http: aiohttp.ClientSession, session: RawSession) -> None:
    for url in two.urls:
        for number in range(20):
            assert await modern(http, url, "echo", nonce=f"{number}") == f"{number}"
        began = time.monotonic()
        refusal = await hello(http, url)
        assert time.monotonic() - began < REFUSED_SECONDS
        await becomes(http, url, 503, "state store full")
        assert refusal.status == 503
        assert refusal.json["error"]["message"] == "The server's state store is full; try again later"
        assert (await session.send("POST", session.request("ping", {}), at=url)).status == 200
        try:
            answer = await session.call("count", {"nonce": "n", "steps": 3, "pause": 0}, [])
        except Loud as refused:
            assert str(refused) == "503"  # noqa: PT017
        else:
            assert answer == "n 3"


async def all_is_well(two: Fleet, http: aiohttp.ClientSession, session: RawSession) -> None:
    session.resume_url = session.answer_url = two.urls[1]
    for leave_after in (0, 2):
        heard: list[float] = []
        arguments = {"nonce": "n", "steps": 5, "pause": 0.02}
        assert await session.call("count", arguments, heard, leave_after=leave_after) == "n 5"
        assert heard == [1, 2, 3, 4, 5]
    assert await session.call("ask", {"nonce": "room"}, [], leave_after=1) == "room room"
    for url in two.urls:
        assert (await hello(http, url)).status == 200
        await becomes(http, url, 200, "ok")


@pytest.mark.soak
async def test_a_store_that_is_full_for_long(two: Fleet, http: aiohttp.ClientSession, redis: Redis) -> None:
    """Longer than a lease lasts: leases are renewed all the same, so that nobody is told that a worker was lost.

    Events can't be kept, so whoever leaves misses some; the answer comes when there is room again.
    """
    sessions = [await RawSession(http, two.urls[0]).open() for _ in range(4)]
    heard: list[list[float]] = [[] for _ in sessions]
    arguments = {"nonce": "n", "steps": 120, "pause": 0.1}
    calls = []
    for place, session in enumerate(sessions):
        session.resume_url = two.urls[1]
        calls.append(asyncio.create_task(session.call("count", arguments, heard[place], leave_after=place * 10)))
    await asyncio.sleep(1)
    await fill(redis)
    await asyncio.sleep(FULL_SECONDS)
    await redis.config_set("maxmemory", 0)
    assert await asyncio.gather(*calls) == ["n 120"] * len(sessions)
    assert heard[0] == list(range(1, 121))  # who never left has missed nothing
    assert all(each == sorted(set(each)) for each in heard)
