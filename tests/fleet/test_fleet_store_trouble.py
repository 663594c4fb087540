"""Redis stands still, restarts, is full or forgets everything: errors come soon and say so, and then all is well."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager

import aiohttp
import pytest
from fleet_client import HANDSHAKE, MODERN, Loud, RawListening, RawSession, Reply, modern, running
from fleet_processes import Fleet, FleetProcess, fleet
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from dovetail import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
REFUSED_SECONDS = 4.0  # in which a refusal comes, however the store fails: 3, and some for a busy machine
RECOVERED_SECONDS = 15.0
OVERFULL_BYTES = 2**20  # what Redis uses for connections goes up and down; this is more


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One for all tests: each leaves the store as it should be."""
    with fleet(tmp_path_factory.mktemp("trouble"), workers=2, store="redis") as two:
        yield two
        two.assert_clean()


Trouble = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def redis(two: Fleet) -> FleetProcess:
    assert two.store is not None
    return two.store


@pytest.fixture(params=["paused", "restarted"])
def trouble(request: pytest.FixtureRequest, redis: FleetProcess) -> Trouble:
    """`with trouble():` the store does not answer."""

    @contextmanager
    def trouble() -> Iterator[None]:
        begin, end = (redis.pause, redis.go_on) if request.param == "paused" else (redis.stop, redis.start)
        begin()
        try:
            yield
        finally:
            end()

    return trouble


async def ready(http: aiohttp.ClientSession, worker: FleetProcess) -> int:
    async with http.get(f"{worker.origin}/ready") as response:
        return response.status


async def all_ready(http: aiohttp.ClientSession, fleet: Fleet, status: int) -> None:
    async with asyncio.timeout(RECOVERED_SECONDS):
        while {await ready(http, worker) for worker in fleet.workers} != {status}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def refusal(session: RawSession) -> tuple[int, float]:
    """The status of a call in a session, and after how long it came."""
    began = time.monotonic()
    reply = await session.send("POST", session.request("tools/call", {"name": "whoami", "arguments": {}}))
    return reply.status, time.monotonic() - began


async def test_refusals_are_bounded_and_plain_calls_go_on(
    two: Fleet, http: aiohttp.ClientSession, trouble: Trouble
) -> None:
    sessions = [await RawSession(http, two.url).open() for _ in range(5)]
    await all_ready(http, two, 200)
    with trouble():
        refused = await asyncio.gather(*(refusal(session) for session in sessions))
        assert {status for status, _ in refused} == {503}
        assert max(seconds for _, seconds in refused) < REFUSED_SECONDS
        assert (await hello(http, two.url)).status == 503
        began = time.monotonic()
        for number in range(20):
            assert await modern(http, two.url, "echo", nonce=f"{number}") == f"{number}"
        assert time.monotonic() - began < REFUSED_SECONDS
        await all_ready(http, two, 503)
        async with http.get(f"{two.nginx.origin}/health") as health:
            assert health.status == 200
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


# ── a store that is full ──


@pytest.fixture
async def asker(redis: FleetProcess) -> AsyncIterator[Redis]:
    async with Redis(port=redis.port) as asker:
        yield asker


async def fill(asker: Redis) -> None:
    """It holds more of somebody else's data than it may, so that there is no room for the smallest record."""
    await asker.config_set("maxmemory-policy", "noeviction")
    for number in range(10):
        await asker.set(f"somebody else's {number}", b"x" * (OVERFULL_BYTES // 5))
    await asker.config_set("maxmemory", (await asker.info("memory"))["used_memory"] - OVERFULL_BYTES)
    with pytest.raises(OutOfMemoryError):
        await asker.set("one more", b"x")


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
async def test_a_full_store(two: Fleet, http: aiohttp.ClientSession, asker: Redis) -> None:
    session = await RawSession(http, two.urls[0]).open(elicitation={})
    await session.ask("resources/subscribe", uri="board://full")
    listening = RawListening(http, two.urls[1], resourceSubscriptions=["board://full"])
    async with running(session.hear(at=two.urls[1])), running(listening.hear()):
        await asyncio.wait_for(session.hears.wait(), RECOVERED_SECONDS)
        await asyncio.wait_for(listening.hears.wait(), RECOVERED_SECONDS)
        await fill(asker)
        await nothing_new_but_all_else(two, http, session)
        await asker.config_set("maxmemory", 0)
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


# ── after an outage: a change may have gone unheard, so each listener is told of all that it asked for, once ──

URIS = ["board://a", "board://b"]
EVERYTHING = [
    *((f"notifications/{kind}/list_changed", "") for kind in ("tools", "resources")),
    *(("notifications/resources/updated", uri) for uri in URIS),
]
Listener = RawListening | RawSession


async def restart(redis: FleetProcess) -> None:
    await asyncio.to_thread(redis.kill)
    await asyncio.sleep(1.0)
    await asyncio.to_thread(redis.start)


async def stand_still(redis: FleetProcess) -> None:
    """Longer than any command waits, and than it takes to notice."""
    redis.pause()
    await asyncio.sleep(4.5)
    redis.go_on()


async def cut_all_lines(redis: FleetProcess) -> None:
    """Nobody can tell that from an outage: what was published meanwhile is lost."""
    async with Redis(port=redis.port) as asker:
        for kind in ("pubsub", "normal"):
            await asker.client_kill_filter(_type=kind, skipme=True)


@pytest.fixture
async def listeners(two: Fleet, http: aiohttp.ClientSession) -> AsyncIterator[list[Listener]]:
    """At each worker one of 2026-07-28, and the stream of a session that was begun at the other one."""
    wanted = {"toolsListChanged": True, "resourcesListChanged": True, "resourceSubscriptions": URIS}
    listenings = [RawListening(http, url, **wanted) for url in two.urls]
    sessions = [await RawSession(http, url).open() for url in two.urls]
    for session in sessions:
        for uri in URIS:
            await session.ask("resources/subscribe", uri=uri)
    hearing = [session.hear(at=url) for session, url in zip(sessions, reversed(two.urls), strict=True)]
    async with AsyncExitStack() as stack:
        for work in (*hearing, *(listening.hear() for listening in listenings)):
            await stack.enter_async_context(running(work))
        for each in (*sessions, *listenings):
            await asyncio.wait_for(each.hears.wait(), RECOVERED_SECONDS)
        yield [*sessions, *listenings]
        assert [session.streams for session in sessions] == [1, 1]  # neither of them broke


async def all_are_told(listeners: list[Listener], expected: Counter[tuple[str, str]]) -> None:
    def told(listener: Listener) -> Counter[tuple[str, str]]:
        return Counter((each["method"], each.get("params", {}).get("uri", "")) for each in listener.heard)

    async with asyncio.timeout(RECOVERED_SECONDS):
        while not all(told(listener) >= expected for listener in listeners):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [told(listener) for listener in listeners] == [expected] * len(listeners)


async def test_after_each_outage_all_are_told_of_everything_once(
    two: Fleet, http: aiohttp.ClientSession, redis: FleetProcess, listeners: list[Listener]
) -> None:
    for times, outage in enumerate((restart, stand_still, cut_all_lines), 1):
        await outage(redis)
        await all_are_told(listeners, Counter(dict.fromkeys(EVERYTHING, times)))
    for listener in listeners:
        listener.heard.clear()
    await modern(http, two.urls[1], "touch_resource", name="a", version=1)  # one by one, as ever
    await all_are_told(listeners, Counter([("notifications/resources/updated", URIS[0])]))
