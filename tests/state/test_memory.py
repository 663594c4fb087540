"""The memory backend: the contract of all backends, its bounds, its sweep, and event loops that come and go."""

import asyncio
import gc
import weakref

import pytest
from contract import LONG, BackendContract, Clock, begun, fill

from dovetail.state.base import StoreFull
from dovetail.state.memory import RECORD_OVERHEAD, MemoryState


@pytest.fixture
def backend(clock: Clock) -> MemoryState:
    return MemoryState(clock=clock)


class TestMemoryState(BackendContract):
    """Everything of the contract."""


class TestSweep:
    async def test_writes_free_what_has_expired(self, backend: MemoryState, clock: Clock) -> None:
        for n in range(1000):
            await backend.put(f"key {n}", b"", ttl=10)
            await fill(backend, f"log {n}", 1, ttl=10)
        await backend.touch("key 0", LONG)
        clock.now += 10
        for n in range(1000):
            await backend.put("the same key", b"%d" % n, ttl=LONG)
        assert (backend.held, backend.log_bytes) == (2, 0)  # what was touched stays

    @pytest.mark.parametrize("max_entries", [20_000, 10_000], ids=["has room", "is full"])
    async def test_a_write_does_little_however_much_has_expired(self, clock: Clock, max_entries: int) -> None:
        state = MemoryState(max_entries=max_entries, clock=clock)
        for n in range(10_000):
            await state.put(f"session {n}", b"", ttl=10)
        clock.now += 10
        await state.put("key", b"", ttl=LONG)
        assert state.held > 8_900

    async def test_a_full_store_finds_what_has_expired_wherever_it_is(self, clock: Clock) -> None:
        state = MemoryState(max_entries=5_000, clock=clock)
        for n in range(5_000):
            await state.put(f"key {n}", b"", ttl=LONG if n < 4_990 else 1)
        clock.now += 1
        for n in range(10):
            await state.put(f"more {n}", b"", ttl=LONG)
        with pytest.raises(StoreFull):
            await state.put("more 10", b"", ttl=LONG)

    async def test_it_has_room_for_100_000_entries(self, backend: MemoryState) -> None:
        for n in range(100_000):
            await backend.put(f"key {n}", b"", ttl=LONG)
        with pytest.raises(StoreFull):
            await backend.put("more", b"", ttl=LONG)


class TestBounds:
    @pytest.mark.parametrize(("prefix", "most"), [("session/", 40), ("rate/", 30)])
    async def test_keys_fill_their_room_to_the_last_byte(self, clock: Clock, prefix: str, most: int) -> None:
        state = MemoryState(max_entry_bytes=40, clock=clock)
        one, two = f"{prefix}1", f"{prefix}2"
        rest = most - len(one + two)
        for _ in range(3):  # what was replaced or has expired takes no room
            await state.put(one, b"12", ttl=LONG)
            await state.put(one, b"", ttl=LONG)
            await state.put(two, bytes(rest), ttl=1)
            for key, size in ((one, 1), (two, rest + 1), (f"{prefix}3", 0)):
                with pytest.raises(StoreFull):
                    await state.put(key, bytes(size), ttl=LONG)
            clock.now += 1

    async def test_logs_fill_their_room_to_the_last_byte(self, clock: Clock) -> None:
        room = 3 * (RECORD_OVERHEAD + 10)
        state = MemoryState(max_log_bytes=room, clock=clock)
        for log in ("a", "b", "b"):
            await state.append(log, bytes(10), keep=9, ttl=LONG)
        assert (state.log_bytes, (await state.read("a", 0)).first) == (room, 1)
        await state.append("b", b"", keep=9, ttl=LONG)  # the log that rested longest makes room
        assert state.log_bytes == room - 10
        assert [(await state.read(log, 0)).first for log in "ab"] == [2, 1]
        await state.append("b", bytes(room - RECORD_OVERHEAD), keep=1, ttl=LONG)
        assert state.log_bytes == room
        with pytest.raises(StoreFull, match=f"max_log_bytes={room}"):
            await state.append("b", bytes(room - RECORD_OVERHEAD + 1), keep=1, ttl=LONG)


class TestEventLoops:
    @pytest.mark.parametrize("end", ["publish", "close"])
    def test_a_wait_on_a_loop_that_was_closed_under_it(self, backend: MemoryState, end: str) -> None:
        loop = asyncio.new_event_loop()
        dead, alive = backend.listen(["a"]), backend.listen(["a"])
        task = loop.run_until_complete(begun(dead))
        loop.close()

        async def act() -> set[str]:
            await (backend.publish("a") if end == "publish" else backend.close())
            return await alive.wait()

        assert asyncio.run(act()) == ({"a"} if end == "publish" else set())
        task._log_destroy_pending = False  # it was lost on purpose
        remembered = weakref.ref(loop)
        del task, loop
        gc.collect()
        assert remembered() is None
        assert asyncio.run(dead.wait()) == ({"a"} if end == "publish" else set())

    async def test_a_topic_that_is_removed_before_the_waiting_task_goes_on(self, backend: MemoryState) -> None:
        listener = backend.listen(["a", "b"])
        waiting = await begun(listener)
        await backend.publish("a")
        listener.remove("a")
        await asyncio.sleep(0)
        assert not waiting.done()  # an empty set would mean that it was closed
        await backend.publish("b")
        assert await waiting == {"b"}
