"""The Redis backend on a real server: the contract of all backends with real time, and what only this one has."""

import asyncio
import contextlib
import random
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from contract import BackendContract, Elapse, begun, fill, heard, subscribed
from redis_stage import LONG, Wire, eventually

import stores
from dovetail.state.base import StoreTrouble
from dovetail.state.redis import PAGE_BYTES, RedisState


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stores.StoreServer]:
    stores.demand()
    server = stores.StoreServer(tmp_path_factory.mktemp("store"))
    yield server
    server.kill()


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
async def backend(store: stores.StoreServer, prefix: str) -> AsyncIterator[RedisState]:
    state = RedisState(store.url, prefix=prefix)
    yield state
    await state.close()


@pytest.fixture
async def other(store: stores.StoreServer, prefix: str) -> AsyncIterator[RedisState]:
    """Another worker's."""
    state = RedisState(store.url, prefix=prefix)
    yield state
    await state.close()


@pytest.fixture
def elapse() -> Elapse:
    return asyncio.sleep


class TestRedisState(BackendContract):
    """Everything of the contract."""

    wakes_at_first = True


class TestTwoWorkers:
    async def test_prefixes_keep_servers_apart(
        self, backend: RedisState, store: stores.StoreServer, prefix: str
    ) -> None:
        stranger = RedisState(store.url, prefix=prefix + "2")
        listener = await subscribed(stranger, "topic")
        await backend.put("key", b"value", ttl=LONG)
        await fill(backend, "log", 1)
        await backend.publish("topic")
        assert await stranger.get("key") is None
        assert (await stranger.read("log", 0)).last == 0
        waiting = await begun(listener)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await stranger.close()
        assert await waiting == set()

    async def test_wake_ups_cross(self, backend: RedisState, other: RedisState) -> None:
        with contextlib.closing(await subscribed(backend, "topic", "log")) as listener:
            await other.publish("topic")
            assert await heard(listener) == {"topic"}
            await fill(other, "log", 1)
            assert await heard(listener) == {"log"}

    async def test_nothing_is_lost_before_a_subscription_stands(self, backend: RedisState, other: RedisState) -> None:
        """Whoever listens has told nobody else yet, and the other worker is quicker than the subscription."""
        await asyncio.gather(backend.check(), other.check())
        for n in range(200):
            with contextlib.closing(backend.listen([f"topic {n}"])) as listener:
                await other.publish(f"topic {n}")
                assert await heard(listener) == {f"topic {n}"}

    async def test_only_what_somebody_listens_to_is_subscribed(
        self, backend: RedisState, store: stores.StoreServer, prefix: str
    ) -> None:
        def channels() -> int:
            return store.command("PUBSUB", "CHANNELS", f"{prefix}*").count(prefix.encode())

        listeners = [backend.listen([f"topic {n}", "shared"]) for n in range(1200)]  # more than one batch
        await eventually(lambda: store.command("PUBSUB", "NUMSUB", f"{prefix}:t/shared").endswith(b":1\r\n"))
        await eventually(lambda: channels() == 1201)
        for listener in listeners[1:]:
            listener.close()
        await eventually(lambda: channels() == 2)
        listeners[0].close()
        await eventually(lambda: channels() == 0)


class TestLostAnswers:
    async def test_calls_that_are_given_up_leave_no_answers_behind(self, backend: RedisState) -> None:
        for n in range(20):
            await backend.put(f"key {n}", b"%d" % n, ttl=LONG)
        chance = random.Random(7)

        async def get(n: int) -> None:
            found = await backend.get(f"key {n}")
            assert found is not None
            assert found.value == b"%d" % n

        for _ in range(15):
            tasks = [asyncio.create_task(get(n % 20)) for n in range(80)]
            await asyncio.sleep(chance.random() * 0.01)
            for task in chance.sample(tasks, 40):
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}

    async def test_what_can_not_be_asked_twice_is_not(self, store: stores.StoreServer, prefix: str) -> None:
        async with Wire(store.port).open() as wire:
            state = RedisState(wire.url, prefix=prefix)
            assert await state.add("counter", 1, LONG) == 1
            await state.put("gone", b"", ttl=LONG)
            for text, attempt in (
                (b"counter", lambda: state.add("counter", 1, LONG)),
                (b"claimed", lambda: state.claim("claimed", b"mine", LONG)),
                (b"new", lambda: state.put("new", b"", ttl=LONG, if_version=0)),
                (b"gone", lambda: state.delete("gone")),
                (b"appended", lambda: state.append("log", b"appended", keep=9, ttl=LONG)),
            ):
                wire.cut_after = text
                with pytest.raises(StoreTrouble):
                    await attempt()
            assert wire.cuts == 5
            assert (await state.read("log", 0)).last == 1
            assert await state.add("counter", 1, LONG) == 3
            assert (await state.get("claimed")).value == b"mine"
            assert await state.delete("gone") is False
            await state.close()

    async def test_what_can_be_asked_twice_is(self, store: stores.StoreServer, prefix: str) -> None:
        async with Wire(store.port).open() as wire:
            state = RedisState(wire.url, prefix=prefix)
            await state.put("key", b"old", ttl=LONG)
            for attempt in (
                lambda: state.put("key", b"value", ttl=LONG),
                lambda: state.get("key"),
                lambda: state.touch("key", LONG),
            ):
                wire.cut_after = b":k/key"
                assert await attempt()
            assert wire.cuts == 3
            await state.close()


class TestWhatLiesThere:
    async def test_all_but_the_counter_expires(
        self, backend: RedisState, store: stores.StoreServer, prefix: str
    ) -> None:
        await backend.put("key", b"", ttl=LONG)
        await backend.add("counter", 1, LONG)
        await fill(backend, "log", 1)
        await backend.publish("topic")
        for name in ("k/key", "k/counter", "l/log"):
            assert int(store.command("PTTL", f"{prefix}:{name}")[1:]) > 0
        assert store.command("PTTL", f"{prefix}:n") == b":-1\r\n"

    async def test_versions_outlive_the_loss_of_all_data(
        self, backend: RedisState, other: RedisState, store: stores.StoreServer
    ) -> None:
        version = await backend.put("key", b"old", ttl=LONG)
        store.command("FLUSHALL")
        assert await other.put("key", b"new", ttl=LONG) > version

    async def test_a_page_has_bounds(self, backend: RedisState) -> None:
        data = bytes(PAGE_BYTES // 3)
        for _ in range(8):
            await backend.append("log", data, keep=100, ttl=LONG)
        got: list[int] = []
        pages = 0
        while page := (await backend.read("log", len(got), 100)).records:
            got.extend(record.id for record in page)
            pages += 1
        assert got == list(range(1, 9))
        assert pages == 2


class TestLoopsAndProcesses:
    def test_one_loop_after_another(self, store: stores.StoreServer, prefix: str) -> None:
        """Made before there is one, and never closed."""
        before = clients(store)
        state = RedisState(store.url, prefix=prefix)
        listener = state.listen(["topic"])

        async def use() -> int:
            total = await state.add("counter", 1, LONG)
            await state.publish("topic")
            assert await heard(listener) == {"topic"}
            return total

        assert [asyncio.run(use()) for _ in range(3)] == [1, 2, 3]
        assert clients(store) == before

    async def test_close(self, store: stores.StoreServer, prefix: str) -> None:
        before = clients(store)
        state = RedisState(store.url, prefix=prefix)
        await asyncio.gather(*(state.add("counter", 1, LONG) for _ in range(20)))
        assert clients(store) > before
        calls = [asyncio.create_task(state.add("counter", 1, LONG)) for _ in range(100)]
        await asyncio.sleep(0)
        await state.close()
        await state.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 3)
        assert {type(outcome) for outcome in outcomes} <= {int, StoreTrouble}
        await eventually(lambda: clients(store) == before)
        with pytest.raises(StoreTrouble, match="closed"):
            await state.get("counter")
        never_used = RedisState(store.url, prefix=prefix)
        await never_used.close()
        with pytest.raises(StoreTrouble, match="closed"):
            await never_used.check()

    def test_forks(self, store: stores.StoreServer, prefix: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", FORKING, store.url, prefix], capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["200"], "")


def clients(store: stores.StoreServer) -> int:
    return store.command("CLIENT", "LIST", "TYPE", "normal").count(b"addr=127") + store.command(
        "CLIENT", "LIST", "TYPE", "pubsub"
    ).count(b"addr=127")


FORKING = """
import asyncio, os, sys
from dovetail.state.redis import RedisState

state = RedisState(sys.argv[1], prefix=sys.argv[2])

async def count():
    for _ in range(100):
        await state.add("counter", 1, 60)

child = os.fork()
asyncio.run(count())
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(asyncio.run(state.get("counter")).value.decode())
"""
