"""Redis stands still, restarts, is full or forgets everything: errors come soon and say so, and then all is well."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from fleet_client import HANDSHAKE, Loud, RawListening, RawSession, Reply, modern, running
from fleet_processes import Fleet, FleetProcess, fleet
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
REFUSED_SECONDS = 8.0  # in which a refusal comes, however the store fails: 3, and some for a busy machine
RECOVERED_SECONDS = 15.0
OVERFULL_BYTES = 2**20  # what Redis uses for connections goes up and down; this is more


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One for all tests: each leaves the store as it should be."""
    with fleet(tmp_path_factory.mktemp("outages"), workers=2, store="redis") as two:
        yield two
        two.assert_clean()


@pytest.fixture
def redis(two: Fleet) -> FleetProcess:
    assert two.store is not None
    return two.store


async def ready(http: aiohttp.ClientSession, workers: Sequence[FleetProcess], status: int, words: str = "") -> None:
    """Wait until `/ready` says so: workers look by themselves, every second."""
    async with asyncio.timeout(RECOVERED_SECONDS):
        for worker in workers:
            while True:
                async with http.get(f"{worker.origin}/ready") as reply:
                    if reply.status == status and words in (await reply.json())["status"]:
                        break
                await asyncio.sleep(0.05)


async def noticed(workers: Sequence[FleetProcess], outage: Callable[[], None]) -> None:
    """Begin an outage of the store, and wait until each worker has lost its connection."""
    known = [worker.said.count("is out of reach") for worker in workers]
    await asyncio.to_thread(outage)
    async with asyncio.timeout(RECOVERED_SECONDS):
        for worker, before in zip(workers, known, strict=True):
            while worker.said.count("is out of reach") == before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def refused(session: RawSession, method: str, params: dict[str, Any]) -> Reply:
    """A request that the store has to be asked for is refused soon."""
    async with asyncio.timeout(REFUSED_SECONDS):
        reply = await session.send("POST", session.request(method, params))
    assert reply.status == 503, reply
    return reply


def hello() -> dict[str, Any]:
    return {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "late", "version": "1"}}


async def counts(session: RawSession, leave_after: int) -> None:
    """A call of the session has all its events, and its answer."""
    received, arguments = list[float](), {"nonce": "n", "steps": 5, "pause": 0.02}
    assert await session.call("count", arguments, received, leave_after=leave_after) == "n 5"
    assert received == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("outage", ["paused", "restarted"])
async def test_refusals_are_bounded_and_plain_calls_go_on(
    two: Fleet, http: aiohttp.ClientSession, redis: FleetProcess, outage: str
) -> None:
    sessions = [await RawSession(http, two.url).open() for _ in range(5)]
    await ready(http, two.workers, 200)
    begin, end = (redis.pause, redis.go_on) if outage == "paused" else (redis.stop, redis.start)
    begin()
    try:
        call = {"name": "whoami", "arguments": {}}
        await asyncio.gather(*(refused(session, "tools/call", call) for session in sessions))
        await refused(RawSession(http, two.url), "initialize", hello())
        async with asyncio.timeout(REFUSED_SECONDS):
            for number in range(20):
                assert await modern(http, two.url, "echo", nonce=f"{number}") == f"{number}"
        await ready(http, two.workers, 503)
        async with http.get(f"{two.nginx.origin}/health") as health:
            assert health.status == 200
    finally:
        end()
    await ready(http, two.workers, 200)
    for session in sessions:
        for url in two.urls:
            assert await session.ask("ping", at=url) == {}
        await counts(session, leave_after=2)


async def test_a_store_that_has_forgotten_everything(
    two: Fleet, http: aiohttp.ClientSession, redis: FleetProcess
) -> None:
    """Sessions are gone, and their clients get the error that makes them begin anew."""
    session = await RawSession(http, two.url).open()
    async with running(session.listen()):
        await asyncio.wait_for(session.is_listening.wait(), RECOVERED_SECONDS)
    redis.stop()
    await ready(http, two.workers, 503)
    for kept in redis.log.parent.glob("appendonlydir/*"):
        kept.unlink()
    await asyncio.to_thread(redis.start)
    await ready(http, two.workers, 200)
    statuses = [(await session.send("POST", session.request("ping", {}), at=url)).status for url in two.urls]
    assert statuses == [404, 404]
    again = await RawSession(http, two.url).open()
    for url in two.urls:
        assert await again.ask("ping", at=url) == {}


async def fill(asker: Redis) -> None:
    """It holds more data of other programs than it may, so that there is no room for the smallest record."""
    await asker.config_set("maxmemory-policy", "noeviction")
    for number in range(10):
        await asker.set(f"other data {number}", b"x" * (OVERFULL_BYTES // 5))
    await asker.config_set("maxmemory", (await asker.info("memory"))["used_memory"] - OVERFULL_BYTES)
    with pytest.raises(OutOfMemoryError):
        await asker.set("one more", b"x")


async def test_a_full_store(two: Fleet, http: aiohttp.ClientSession, redis: FleetProcess) -> None:
    session = await RawSession(http, two.urls[0]).open(elicitation={})
    session.resume_url = session.answer_url = two.urls[1]
    await session.ask("resources/subscribe", uri="board://full")
    listening = RawListening(http, two.urls[1], resourceSubscriptions=["board://full"])
    async with running(session.listen(at=two.urls[1])), running(listening.listen()), Redis(port=redis.port) as asker:
        await asyncio.wait_for(session.is_listening.wait(), RECOVERED_SECONDS)
        await asyncio.wait_for(listening.is_listening.wait(), RECOVERED_SECONDS)
        await fill(asker)
        for url, worker in zip(two.urls, two.workers, strict=True):  # nothing new, but all else
            for number in range(20):
                assert await modern(http, url, "echo", nonce=f"{number}") == f"{number}"
            refusal = await refused(RawSession(http, url), "initialize", hello())
            assert "state store is full" in refusal.json["error"]["message"]
            await ready(http, [worker], 503, "state store full")
            assert (await session.send("POST", session.request("ping", {}), at=url)).status == 200
            with contextlib.suppress(Loud):
                assert await session.call("count", {"nonce": "n", "steps": 3, "pause": 0}, []) == "n 3"
        await asker.config_set("maxmemory", 0)
        for leave_after in (0, 2):
            await counts(session, leave_after)
        assert await session.call("ask", {"nonce": "room"}, [], leave_after=1) == "room room"
        for url in two.urls:
            await RawSession(http, url).open()
        await ready(http, two.workers, 200, "ok")
        assert await modern(http, two.urls[0], "touch_resource", name="full", version=2) == "2"
        async with asyncio.timeout(RECOVERED_SECONDS):
            while not (listening.received and session.received):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


URIS = ["board://a", "board://b"]
EVERYTHING = [
    *((f"notifications/{kind}/list_changed", "") for kind in ("tools", "resources")),
    *(("notifications/resources/updated", uri) for uri in URIS),
]
Listener = RawListening | RawSession


@pytest.fixture
async def listeners(two: Fleet, http: aiohttp.ClientSession) -> AsyncIterator[list[Listener]]:
    """At each worker one of 2026-07-28, and the stream of a session that was begun at the other one."""
    wanted = {"toolsListChanged": True, "resourcesListChanged": True, "resourceSubscriptions": URIS}
    listenings = [RawListening(http, url, **wanted) for url in two.urls]
    sessions = [await RawSession(http, url).open() for url in two.urls]
    for session in sessions:
        for uri in URIS:
            await session.ask("resources/subscribe", uri=uri)
    listens = [session.listen(at=url) for session, url in zip(sessions, reversed(two.urls), strict=True)]
    async with AsyncExitStack() as stack:
        for work in (*listens, *(listening.listen() for listening in listenings)):
            await stack.enter_async_context(running(work))
        for each in (*sessions, *listenings):
            await asyncio.wait_for(each.is_listening.wait(), RECOVERED_SECONDS)
        yield [*sessions, *listenings]
        assert [session.streams for session in sessions] == [1, 1]  # neither of them broke


async def all_are_notified(listeners: list[Listener], expected: Counter[tuple[str, str]]) -> None:
    def notifications_of(listener: Listener) -> Counter[tuple[str, str]]:
        return Counter((each["method"], each.get("params", {}).get("uri", "")) for each in listener.received)

    async with asyncio.timeout(RECOVERED_SECONDS):
        while not all(notifications_of(listener) >= expected for listener in listeners):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [notifications_of(listener) for listener in listeners] == [expected] * len(listeners)


async def test_after_each_outage_all_are_notified_of_everything_once(
    two: Fleet, http: aiohttp.ClientSession, redis: FleetProcess, listeners: list[Listener]
) -> None:
    """A change may have been missed meanwhile, so each listener is notified of all that it asked for."""
    await noticed(two.workers, redis.kill)
    await asyncio.to_thread(redis.start)
    await all_are_notified(listeners, Counter(dict.fromkeys(EVERYTHING, 1)))
    await noticed(two.workers, redis.pause)
    redis.go_on()
    await all_are_notified(listeners, Counter(dict.fromkeys(EVERYTHING, 2)))
    async with Redis(port=redis.port) as asker:  # cut lines are no better: what was published meanwhile is lost
        for kind in ("pubsub", "normal"):
            await asker.client_kill_filter(_type=kind, skipme=True)
    await all_are_notified(listeners, Counter(dict.fromkeys(EVERYTHING, 3)))
    for listener in listeners:
        listener.received.clear()
    await modern(http, two.urls[1], "touch_resource", name="a", version=1)  # one by one, as ever
    await all_are_notified(listeners, Counter([("notifications/resources/updated", URIS[0])]))
