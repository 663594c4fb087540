"""The Redis backend when its store is slow, gone, full, restarted or not what it should be: bounded, and back again."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from contract import attempts, fill, received, record, subscribed
from redis_stage import BOUND, LONG, eventually, fails_within, is_back, pretender

import stores
from dovetail.state.base import Listener, StoreFull, StoreUnavailable
from dovetail.state.redis import RedisState

AT_ONCE = 0.3  # seconds for some calls that ask no store, on a busy machine


@pytest.fixture
def store(tmp_path: Path) -> Iterator[stores.StoreServer]:
    stores.demand()
    server = stores.StoreServer(tmp_path / "store")
    yield server
    server.kill()


@pytest.fixture
async def backend(store: stores.StoreServer) -> AsyncIterator[RedisState]:
    state = RedisState(store.url, prefix=uuid.uuid4().hex, max_waiting=1000)
    yield state
    await state.close()


async def notified_of_return(state: RedisState, listener: Listener, topics: set[str]) -> None:
    """All are notified at once, after the outage was counted. A wake-up without need may come before."""
    while (woken := await received(listener)) and state.outages == 0:
        pass
    assert woken == topics
    assert state.outages == 1


async def test_it_is_killed_and_comes_back(
    backend: RedisState, store: stores.StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dovetail")
    with contextlib.closing(await subscribed(backend, "a", "b")) as listener:
        await backend.publish("a")
        assert await received(listener) == {"a"}
        store.kill()
        await fails_within(backend, BOUND)
        for _ in range(3):
            await fails_within(backend, AT_ONCE)
        assert backend.outages == 0
        store.start()
        await notified_of_return(backend, listener, {"a", "b"})
        await backend.publish("b")
        while await received(listener) != {"b"}:  # a wake-up without need may come before
            await backend.publish("b")
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2
    assert "out of reach" in logged[0]
    assert "is back" in logged[1]


async def test_it_is_away_at_first(store: stores.StoreServer) -> None:
    store.stop()
    state = RedisState(store.url)
    with contextlib.closing(state.listen(["a"])) as listener:
        await fails_within(state, BOUND)
        store.start()
        await eventually(lambda: is_back(state))
        await notified_of_return(state, listener, {"a"})
    await state.close()


@pytest.mark.slow
async def test_it_is_paused_and_nothing_piles_up(backend: RedisState, store: stores.StoreServer) -> None:
    with contextlib.closing(await subscribed(backend, "a", "b")) as listener:
        store.pause()
        calls = [asyncio.create_task(backend.put(f"key {n}", b"", ttl=LONG)) for n in range(1500)]
        async with asyncio.timeout(2 * BOUND):  # fifteen hundred calls cost some time by themselves
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        refused = ["too much to do" in str(outcome) for outcome in outcomes]  # those that came too late, at once
        assert 500 <= sum(refused) < 1500
        for n in range(2000):
            backend.listen([f"topic {n}"]).close()
        await fails_within(backend, BOUND)
        store.resume()
        await notified_of_return(backend, listener, {"a", "b"})
    await eventually(lambda: is_back(backend))
    assert await backend.get("key 1499") is None


async def test_the_waiting_line_alone_is_cut(backend: RedisState, store: stores.StoreServer) -> None:
    with contextlib.closing(await subscribed(backend, "a", "b")) as listener:
        store.command("CLIENT", "KILL", "TYPE", "pubsub")
        await notified_of_return(backend, listener, {"a", "b"})
        await backend.check()


async def test_a_line_that_is_cut_again_and_again_comes_back_less_often(
    backend: RedisState, store: stores.StoreServer
) -> None:
    with contextlib.closing(await subscribed(backend, "a")):
        began = time.monotonic()
        for outages in range(1, 5):
            store.command("CLIENT", "KILL", "TYPE", "pubsub")
            await eventually(lambda outages=outages: backend.outages == outages)
            await backend.check()
    assert time.monotonic() - began > 0.5


async def test_kept_lines_are_cut(backend: RedisState, store: stores.StoreServer) -> None:
    """A counter is not asked twice, so a line that is dead already must be seen beforehand."""
    await asyncio.gather(*(backend.add("counter", 1, LONG) for _ in range(10)))
    store.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await asyncio.sleep(0.05)
    totals = await asyncio.gather(*(backend.add("counter", 1, LONG) for _ in range(10)))
    assert sorted(totals) == list(range(11, 21))


async def test_it_is_full(backend: RedisState, store: stores.StoreServer) -> None:
    await backend.put("key", b"value", ttl=LONG)
    await fill(backend, "log", 2)
    with contextlib.closing(backend.listen(["topic"])) as listener:
        await backend.check()
        store.command("CONFIG", "SET", "maxmemory", "1mb")
        for attempt in [*attempts(backend, "more"), lambda: backend.put("key", b"", ttl=LONG)]:
            with pytest.raises(StoreFull, match="full"):
                await attempt()
        assert (await backend.get("key")).value == b"value"
        assert (await backend.read("log", 0)).records == [record(1), record(2)]
        assert await backend.touch("key", LONG) is True
        await backend.publish("topic")
        assert await received(listener) == {"topic"}
        with contextlib.closing(backend.listen(["another"])) as late:
            await backend.publish("another")
            assert "another" in await received(late)
        assert await backend.delete("key") is True
        store.command("CONFIG", "SET", "maxmemory", "0")
        assert await backend.put("key", b"value", ttl=LONG)


async def test_it_becomes_a_replica(backend: RedisState, store: stores.StoreServer, tmp_path: Path) -> None:
    await backend.put("key", b"value", ttl=LONG)
    store.command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailable):
        await backend.put("key", b"value", ttl=LONG)
    with contextlib.suppress(StoreUnavailable):
        while True:  # until it is noticed for all calls
            await backend.get("key")
    store.command("REPLICAOF", "NO", "ONE")
    await eventually(lambda: is_back(backend))
    assert await backend.put("key", b"value", ttl=LONG)


@pytest.mark.parametrize(
    ("version", "mode", "words"), [("6.2.14", "standalone", "Redis 6.2.14"), ("7.4.0", "cluster", "Cluster")]
)
async def test_it_is_not_what_we_need(version: str, mode: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    async with pretender(redis_version=version, redis_mode=mode, role="master") as url:
        state = RedisState(url)
        with pytest.raises(StoreUnavailable, match=words):
            await state.check()
        with pytest.raises(StoreUnavailable, match="Valkey"):
            await state.get("key")
        await state.close()
    assert words in caplog.text


async def test_it_drops_records_when_it_is_full(store: stores.StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    """Also what has a time to live, as all of ours has: a claim that is gone lets a step run twice."""
    store.command("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    state = RedisState(store.url)
    with pytest.raises(StoreUnavailable, match=r"maxmemory-policy volatile-ttl .*set it to noeviction"):
        await state.check()
    assert caplog.text.count("set it to noeviction") == 1
    store.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await eventually(lambda: is_back(state))
    await state.close()


async def test_whether_it_drops_records_is_not_known(
    store: stores.StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    store.command("ACL", "SETUSER", "worker", "on", ">hunter2", "~*", "&*", "+@all", "-info")
    state = RedisState(store.url.replace("//", "//worker:hunter2@"))
    await state.check()
    await state.close()
    assert "make sure that it is noeviction" in caplog.text
    caplog.clear()
    async with pretender(redis_version="7.4.0", role="master") as url:  # it answers, but does not say
        state = RedisState(url)
        await state.check()
        await state.close()
    assert caplog.text.count("make sure that it is noeviction") == 1


@pytest.mark.long
async def test_its_line_for_wake_ups_is_dead_while_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    """Calls would go on, but nobody would learn of a change."""
    async with pretender(ignores=b"PING", redis_version="7.4.0", role="master") as url:
        state = RedisState(url)
        with pytest.raises(StoreUnavailable):
            await state.check()
        await eventually(lambda: "it gives no sign of life" in caplog.text)
        await state.close()


async def test_what_it_says_of_a_command_that_it_lacks_is_logged_without_our_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It repeats what it was sent, which may be the id of a session."""
    stores.demand()
    (tmp_path / "conf").write_text('rename-command UNLINK ""\n')
    server = stores.StoreServer(tmp_path / "store", str(tmp_path / "conf"))
    state = RedisState(server.url)
    with pytest.raises(StoreUnavailable):
        await state.delete("hunter2")
    await state.close()
    server.kill()
    assert "unknown command 'UNLINK'\n" in caplog.text
    assert "hunter2" not in caplog.text


async def test_something_else_answers() -> None:
    async with pretender(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        state = RedisState(url)
        await fails_within(state, BOUND)
        await state.close()
