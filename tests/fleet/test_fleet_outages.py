"""After an outage of the store each listener hears of every kind and URI that it asked for: once, and not twice.

A change may have gone unheard meanwhile, so all of them are told; they are counted here, as they come over the wire.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from fleet_client import RawListening, RawSession, modern, running
from fleet_processes import Fleet, FleetProcess, fleet
from redis.asyncio import Redis

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
STILL_SECONDS = 4.5  # longer than any command waits, and than it takes to notice
DOWN_SECONDS = 1.0
TOLD_SECONDS = 15.0
QUIET_SECONDS = 6.0  # longer than workers differ in when they notice that an outage is over
URIS = ["board://a", "board://b"]
KINDS = ["tools", "resources"]  # those that the server has
EVERYTHING = [
    *((f"notifications/{kind}/list_changed", "") for kind in KINDS),
    *(("notifications/resources/updated", uri) for uri in URIS),
]

Listener = RawListening | RawSession
Outage = Callable[[FleetProcess], Awaitable[None]]


async def restart(redis: FleetProcess) -> None:
    await asyncio.to_thread(redis.kill)
    await asyncio.sleep(DOWN_SECONDS)
    await asyncio.to_thread(redis.start)


async def stand_still(redis: FleetProcess) -> None:
    redis.pause()
    await asyncio.sleep(STILL_SECONDS)
    redis.go_on()


async def cut_all_lines(redis: FleetProcess) -> None:
    """Nobody can tell that from an outage: what was published meanwhile is lost."""
    async with Redis(port=redis.port) as asker:
        for kind in ("pubsub", "normal"):
            await asker.client_kill_filter(_type=kind, skipme=True)


SHORT, LONG = [restart, stand_still], [restart, stand_still, restart, cut_all_lines]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, workers=3, store="redis") as three:
        yield three
        three.assert_clean()


@pytest.fixture
async def listeners(three: Fleet, http: aiohttp.ClientSession) -> AsyncIterator[list[Listener]]:
    """At each worker one of 2026-07-28, and the stream of a session that was begun at another one."""
    wanted = {"toolsListChanged": True, "resourcesListChanged": True, "resourceSubscriptions": URIS}
    listenings = [RawListening(http, url, **wanted) for url in three.urls]
    sessions = [await RawSession(http, url).open() for url in three.urls]
    for session in sessions:
        for uri in URIS:
            await session.ask("resources/subscribe", uri=uri)
    hearing = [session.hear(at=url) for session, url in zip(sessions, reversed(three.urls), strict=True)]
    async with contextlib.AsyncExitStack() as stack:
        for work in (*hearing, *(listening.hear() for listening in listenings)):
            await stack.enter_async_context(running(work))
        for each in (*sessions, *listenings):
            await asyncio.wait_for(each.hears.wait(), TOLD_SECONDS)
        yield [*sessions, *listenings]
        assert [session.streams for session in sessions] == [1] * len(sessions)  # none of them broke


def told(listener: Listener) -> Counter[tuple[str, str]]:
    return Counter((each["method"], each.get("params", {}).get("uri", "")) for each in listener.heard)


async def all_are_told(listeners: list[Listener], times: int) -> None:
    """Of everything, so often."""
    expected = Counter(dict.fromkeys(EVERYTHING, times))
    async with asyncio.timeout(TOLD_SECONDS):
        while not all(told(listener) >= expected for listener in listeners):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [told(listener) for listener in listeners] == [expected] * len(listeners)


@pytest.mark.parametrize("outages", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)], ids=["short", "long"])
async def test_all_are_told_of_everything_once(
    three: Fleet, http: aiohttp.ClientSession, listeners: list[Listener], outages: list[Outage]
) -> None:
    """After each outage, however soon the next one comes; and who notices late that it is over adds nothing."""
    assert three.store is not None
    for times, outage in enumerate(outages, 1):
        await outage(three.store)
        await all_are_told(listeners, times)
    if outages is LONG:
        await asyncio.sleep(QUIET_SECONDS)
        await all_are_told(listeners, len(outages))
    for listener in listeners:
        listener.heard.clear()
    await modern(http, three.urls[1], "touch_resource", name="a", version=1)  # one by one, as ever
    async with asyncio.timeout(TOLD_SECONDS):
        while not all(listener.heard for listener in listeners):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [told(listener) for listener in listeners] == [Counter([("notifications/resources/updated", URIS[0])])] * 6
