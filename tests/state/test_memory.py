"""The memory backend: the contract of all backends, its bounds, its sweep, and event loops that come and go."""

import asyncio
import contextlib
import gc
import weakref

import pytest
from contract import LONG, BackendContract, Elapse, begun, fill, record
from without_loop import Clock, at_once

from dovetail.errors import ProtocolError
from dovetail.state.base import LogPage, NoRoom
from dovetail.state.memory import RECORD_OVERHEAD, MemoryState


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backend(clock: Clock) -> MemoryState:
    return MemoryState(clock=clock)


@pytest.fixture
def elapse(clock: Clock) -> Elapse:
    async def elapse(seconds: float) -> None:
        clock.now += seconds

    return elapse


class TestMemoryState(BackendContract):
    """Everything of the contract."""


def test_no_call_suspends(backend: MemoryState) -> None:
    version = at_once(backend.put("key", b"value", ttl=LONG))
    assert at_once(backend.get("key")) == (b"value", version)
    assert at_once(backend.touch("key", LONG)) is True
    assert at_once(backend.delete("key")) is True
    assert at_once(backend.claim("key", b"", LONG)) is True
    assert at_once(backend.add("counter", 1, LONG)) == 1
    assert at_once(backend.append("log", b"record 1", keep=1, ttl=LONG)) == 1
    assert at_once(backend.read("log", 0)).records == [record(1)]
    at_once(backend.drop("log"))
    at_once(backend.publish("topic"))
    at_once(backend.close())


async def test_something_expires_exactly_at_its_time(backend: MemoryState, clock: Clock) -> None:
    await backend.put("key", b"", ttl=10)
    clock.now += 9.999
    assert await backend.get("key") is not None
    clock.now = 1010.0
    assert await backend.get("key") is None


class TestBounds:
    async def test_keys_and_logs_have_one_limit(self, clock: Clock) -> None:
        state = MemoryState(max_entries=3, clock=clock)
        await state.put("key", b"", ttl=LONG)
        await state.add("counter", 1, LONG)
        await fill(state, "log", 1)
        for attempt in (
            lambda: state.put("more", b"", ttl=LONG),
            lambda: state.claim("more", b"", LONG),
            lambda: state.add("more", 1, LONG),
            lambda: state.append("more", b"", keep=1, ttl=LONG),
        ):
            with pytest.raises(NoRoom, match="max_entries=3"):
                await attempt()
        assert state.held == 3

    async def test_a_full_store_goes_on_with_what_it_has(self, clock: Clock) -> None:
        state = MemoryState(max_entries=2, clock=clock)
        await state.put("key", b"old", ttl=LONG)
        await fill(state, "log", 1)
        await state.put("key", b"new", ttl=LONG)
        assert await fill(state, "log", 2) == [2, 3]
        assert await state.touch("key", LONG)
        await state.delete("key")
        await state.put("other", b"", ttl=LONG)

    async def test_what_has_expired_makes_room(self, clock: Clock) -> None:
        state = MemoryState(max_entries=100, clock=clock)
        for n in range(50):
            await state.put(f"key {n}", b"", ttl=1)
            await fill(state, f"log {n}", 1, ttl=1)
        clock.now += 1
        for n in range(100):
            await state.put(f"new {n}", b"", ttl=LONG)
        assert state.held == 100

    async def test_what_has_expired_makes_room_however_deep_it_lies(self, clock: Clock) -> None:
        state = MemoryState(max_entries=51, clock=clock)
        for n in range(50):
            await state.put(f"key {n:02}", b"", ttl=1)
        await state.put("last", b"", ttl=1)
        for n in range(50):
            await state.touch(f"key {n:02}", LONG)
        clock.now += 1
        await state.put("new", b"", ttl=LONG)
        assert state.held == 51

    async def test_the_bytes_of_values_are_bounded(self, clock: Clock) -> None:
        state = MemoryState(max_entry_bytes=100, clock=clock)
        await state.put("a", b"x" * 49, ttl=LONG)
        await state.put("b", b"x" * 49, ttl=1)
        for key in ("a", "b", "c"):
            with pytest.raises(NoRoom, match="max_entry_bytes=100"):
                await state.put(key, b"x" * 50, ttl=LONG)
        assert (await state.get("a")).value == b"x" * 49
        await state.put("a", b"x" * 48, ttl=LONG)
        await state.put("b", b"x" * 50, ttl=1)
        clock.now += 1
        await state.put("c", b"x" * 50, ttl=LONG)

    async def test_many_small_values_that_have_expired_make_room_for_a_large_one(self, clock: Clock) -> None:
        state = MemoryState(max_entry_bytes=100, clock=clock)
        for n in range(50):
            await state.put(f"{n:02}", b"", ttl=1)
        clock.now += 1
        await state.put("k", b"x" * 99, ttl=LONG)

    async def test_a_refusal_becomes_503(self) -> None:
        with pytest.raises(ProtocolError) as caught:
            await MemoryState(max_entries=0).put("key", b"", ttl=LONG)
        assert caught.value.http_status == 503

    async def test_the_log_that_was_quiet_longest_loses_its_oldest_records(self, clock: Clock) -> None:
        state = MemoryState(max_log_bytes=6 * (8 + RECORD_OVERHEAD), clock=clock)
        for log in ("a", "b", "c", "a"):
            await fill(state, log, 1)
        await fill(state, "c", 2)  # the order is now b, a, c; with six records the store is full
        await fill(state, "c", 1)
        assert await state.read("b", 0) == LogPage([], 2, 1)
        assert (await state.read("a", 0)).first == 1
        await fill(state, "c", 1)
        assert (await state.read("a", 0)).first == 2
        await fill(state, "c", 3)
        assert await state.read("a", 0) == LogPage([], 3, 2)
        assert (await state.read("c", 0)).first == 3  # it has the store for itself, and loses its own oldest
        assert state.log_bytes == 6 * (8 + RECORD_OVERHEAD)

    async def test_an_emptied_log_still_counts_on(self, clock: Clock) -> None:
        state = MemoryState(max_log_bytes=2 * (8 + RECORD_OVERHEAD), clock=clock)
        await fill(state, "quiet", 2)
        await fill(state, "loud", 2)
        assert await state.read("quiet", 2) == LogPage([], 3, 2)
        assert await state.append("quiet", b"record 3", keep=9, ttl=LONG) == 3
        assert await state.read("quiet", 1) == LogPage([record(3)], 3, 3)

    async def test_the_writer_is_spared_before_the_others(self, clock: Clock) -> None:
        state = MemoryState(max_log_bytes=3 * (8 + RECORD_OVERHEAD), clock=clock)
        await fill(state, "writer", 1)
        await fill(state, "other", 2)
        await state.append("writer", b"record 2", keep=9, ttl=LONG)
        assert (await state.read("writer", 0)).first == 1
        assert (await state.read("other", 0)).first == 2

    async def test_trimming_and_expiry_come_before_losing_records(self, clock: Clock) -> None:
        state = MemoryState(max_log_bytes=3 * (8 + RECORD_OVERHEAD), clock=clock)
        await fill(state, "quiet", 1)
        await fill(state, "loud", 2)
        await state.append("loud", b"record 3", keep=2, ttl=1)
        assert (await state.read("quiet", 0)).records == [record(1)]
        clock.now += 1
        await fill(state, "new", 2)
        assert (await state.read("quiet", 0)).records == [record(1)]

    async def test_many_logs_that_have_expired_make_room_for_a_large_record(self, clock: Clock) -> None:
        state = MemoryState(max_log_bytes=51 * (8 + RECORD_OVERHEAD), clock=clock)
        await fill(state, "quiet", 1)
        for n in range(50):
            await fill(state, f"log {n}", 1, ttl=1)
        clock.now += 1
        await state.append("large", b"x" * 40 * RECORD_OVERHEAD, keep=1, ttl=LONG)
        assert (await state.read("quiet", 0)).records == [record(1)]

    async def test_a_record_larger_than_everything_is_refused(self, clock: Clock) -> None:
        state = MemoryState(max_log_bytes=1000, clock=clock)
        await fill(state, "log", 1)
        for log in ("log", "new"):
            with pytest.raises(NoRoom, match="1000 bytes is too large for max_log_bytes=1000"):
                await state.append(log, b"x" * 1000, keep=9, ttl=LONG)
        assert await state.read("log", 0) == LogPage([record(1)], 1, 1)
        assert await state.read("new", 0) == LogPage([], 0, 0)
        assert await state.append("log", b"x" * (1000 - RECORD_OVERHEAD), keep=9, ttl=LONG) == 2

    async def test_empty_records_take_room_too(self, clock: Clock) -> None:
        state = MemoryState(max_log_bytes=10 * RECORD_OVERHEAD, clock=clock)
        for _ in range(100):
            await state.append("log", b"", keep=1000, ttl=LONG)
        assert len((await state.read("log", 0)).records) == 10

    async def test_bytes_are_given_back(self, backend: MemoryState, clock: Clock) -> None:
        await fill(backend, "dropped", 5)
        await fill(backend, "expired", 5, ttl=1)
        await fill(backend, "trimmed", 5, keep=2)
        await backend.drop("dropped")
        clock.now += 1
        await backend.read("expired", 0)
        assert backend.log_bytes == 2 * (8 + RECORD_OVERHEAD)
        await backend.drop("trimmed")
        assert backend.log_bytes == 0


class TestSweep:
    async def test_writes_free_what_has_expired(self, backend: MemoryState, clock: Clock) -> None:
        for n in range(1000):
            await backend.put(f"key {n}", b"", ttl=10)
            await fill(backend, f"log {n}", 1, ttl=10)
        clock.now += 10
        for n in range(500):
            await backend.put("the same key", b"%d" % n, ttl=LONG)
        assert backend.held == 1
        assert backend.log_bytes == 0

    async def test_appends_free_keys_too(self, backend: MemoryState, clock: Clock) -> None:
        for n in range(100):
            await backend.claim(f"key {n}", b"", 10)
        clock.now += 10
        await fill(backend, "log", 50)
        assert backend.held == 1

    async def test_a_write_does_little_however_much_has_expired(self, backend: MemoryState, clock: Clock) -> None:
        for n in range(10_000):
            await backend.put(f"session {n}", b"", ttl=10)
        clock.now += 10
        await backend.put("key", b"", ttl=LONG)
        assert backend.held > 9_900

    async def test_what_is_touched_stays(self, backend: MemoryState, clock: Clock) -> None:
        for n in range(100):
            await backend.put(f"key {n}", b"", ttl=10)
        for _ in range(20):
            clock.now += 9
            for n in range(0, 100, 2):
                assert await backend.touch(f"key {n}", 10)
            for n in range(100):
                await backend.put("write", b"%d" % n, ttl=LONG)
        assert backend.held == 51
        clock.now += 10
        for n in range(100):
            await backend.put("write", b"%d" % n, ttl=LONG)
        assert backend.held == 1

    async def test_alarms_of_deleted_keys_do_not_pile_up(self, backend: MemoryState) -> None:
        for n in range(5000):
            await backend.claim(f"key {n}", b"", LONG)
            await backend.delete(f"key {n}")
            await fill(backend, f"log {n}", 1)
            await backend.drop(f"log {n}")
        assert backend.held == 0
        assert len(backend._entries.alarms) < 100
        assert len(backend._logs.alarms) < 100

    async def test_ever_shorter_times_do_not_pile_up(self, backend: MemoryState, clock: Clock) -> None:
        for n in range(5000):
            await backend.put("key", b"", ttl=LONG - n / 100)
        assert len(backend._entries.alarms) < 100
        clock.now += LONG - 50
        assert await backend.get("key") is not None
        clock.now += 0.1
        await backend.put("write", b"", ttl=LONG)
        assert backend.held == 1

    async def test_a_key_that_came_back_is_not_freed_by_its_old_alarm(self, backend: MemoryState, clock: Clock) -> None:
        await backend.put("key", b"old", ttl=10)
        await backend.delete("key")
        await backend.put("key", b"new", ttl=20)
        clock.now += 10
        for n in range(10):
            await backend.put("write", b"%d" % n, ttl=LONG)
        assert (await backend.get("key")).value == b"new"
        assert len(backend._entries.alarms) == 3  # of `key`, of `write`, and the one that never rings


class TestEventLoops:
    def test_data_outlive_a_loop(self, backend: MemoryState) -> None:
        asyncio.run(backend.put("key", b"value", ttl=LONG))
        asyncio.run(fill(backend, "log", 2))
        assert asyncio.run(backend.get("key")).value == b"value"
        assert asyncio.run(backend.read("log", 0)).last == 2

    def test_a_listener_may_wait_on_one_loop_after_another(self, backend: MemoryState) -> None:
        listener = backend.listen(["a"])
        for _ in range(2):
            asyncio.run(backend.publish("a"))
            assert asyncio.run(listener.wait()) == {"a"}

    def test_a_wait_that_ended_with_its_loop(self, backend: MemoryState) -> None:
        listener = backend.listen(["a"])
        asyncio.run(begun(listener))  # which cancels the task at its end
        asyncio.run(backend.publish("a"))
        assert asyncio.run(listener.wait()) == {"a"}

    @pytest.mark.parametrize("end", ["publish", "append", "close listener", "close backend"])
    def test_a_wait_on_a_loop_that_was_closed_under_it(self, backend: MemoryState, end: str) -> None:
        loop = asyncio.new_event_loop()
        dead, alive = backend.listen(["a"]), backend.listen(["a"])
        task = loop.run_until_complete(begun(dead))
        loop.close()

        async def act() -> None:
            if end == "publish":
                await backend.publish("a")
            elif end == "append":
                await fill(backend, "a", 1)
            elif end == "close listener":
                dead.close()
                await backend.publish("a")
            else:
                await backend.close()
            assert await alive.wait() == ({"a"} if end != "close backend" else set())
            assert await dead.wait() == set()

        asyncio.run(act())
        task._log_destroy_pending = False  # it was lost on purpose
        remembered = weakref.ref(loop)
        del task, loop
        gc.collect()
        assert remembered() is None

    def test_a_closed_listener_holds_no_loop(self, backend: MemoryState) -> None:
        loop = asyncio.new_event_loop()
        listener = backend.listen(["a"])

        async def wait_until_closed() -> None:
            waiting = await begun(listener)
            listener.close()
            assert await waiting == set()

        loop.run_until_complete(wait_until_closed())
        loop.close()
        remembered = weakref.ref(loop)
        del loop
        gc.collect()
        assert remembered() is None

    async def test_a_topic_that_is_removed_before_the_waiting_task_goes_on(self, backend: MemoryState) -> None:
        listener = backend.listen(["a", "b"])
        waiting = await begun(listener)
        await backend.publish("a")
        listener.remove("a")
        await asyncio.sleep(0)
        assert not waiting.done()  # an empty set would mean that it was closed
        await backend.publish("b")
        assert await waiting == {"b"}

    async def test_closed_listeners_leave_nothing_behind(self, backend: MemoryState) -> None:
        for n in range(100):
            listener = backend.listen([f"topic {n}", "shared"])
            await backend.publish("shared")
            listener.close()
        with contextlib.suppress(ValueError):
            backend.listen(["fine", "x" * 10_000])
        assert not backend._topics._by_name
        assert not backend._topics._open
