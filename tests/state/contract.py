"""What every state backend must do. A test class for a backend inherits `BackendContract` and supplies two fixtures:

`backend`   the backend, empty
`elapse`    `await elapse(seconds)` lets so much time pass for the backend: by the clock of conftest.py, or a real sleep
"""

import asyncio
import contextlib
import itertools
import math
from collections.abc import Awaitable, Callable

import pytest

from dovetail.state.base import (
    MAX_COUNT,
    MAX_NAME,
    MAX_TTL,
    Conflict,
    Entry,
    Listener,
    LogPage,
    LogRecord,
    StateBackend,
)

Elapse = Callable[[float], Awaitable[None]]

LONG = 60.0
SHORT = 0.4  # a time to live that a test can wait for
MOST_OF_IT = 0.25
AFTER_IT = 0.5
NAMES = ["", "plain", "two words", "a:b/c?d=*[x]", "ünïcode 名", "line\nbreak\0", "x" * MAX_NAME]
BAD_NAMES = ["x" * (MAX_NAME + 1), "half \ud800"]
BAD_TIMES = [0, -1.0, math.nan, math.inf, math.nextafter(MAX_TTL, math.inf)]
VALUES = [b"", b"text", b"\0\xff\r\n", bytes(range(256)) * 400]


class Clock:
    """Stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def received(listener: Listener) -> set[str]:
    return await asyncio.wait_for(listener.wait(), 5)


async def receives_nothing(listener: Listener) -> bool:
    """Looks for a tenth of a second, in which a wake-up would have come."""
    try:
        await asyncio.wait_for(listener.wait(), 0.1)
    except TimeoutError:
        return True
    return False


async def begun(listener: Listener) -> "asyncio.Task[set[str]]":
    """A task that waits at the listener by now."""
    task = asyncio.create_task(listener.wait())
    await asyncio.sleep(0)
    return task


async def fill(backend: StateBackend, log: str, count: int, *, keep: int = 100, ttl: float = LONG) -> list[int]:
    appends = (backend.append(log, b"record %d" % n, keep=keep, ttl=ttl) for n in range(1, count + 1))
    return await asyncio.gather(*appends)


def attempts(backend: StateBackend, name: str, ttl: float = LONG) -> list[Callable[[], Awaitable[object]]]:
    """Everything that makes a new key or log."""
    return [
        lambda: backend.put(name, b"", ttl=ttl),
        lambda: backend.put(name, b"", ttl=ttl, if_version=0),
        lambda: backend.claim(name, b"", ttl),
        lambda: backend.add(name, 1, ttl),
        lambda: backend.append(name, b"", keep=1, ttl=ttl),
    ]


def record(id: int) -> LogRecord:
    return LogRecord(id, b"record %d" % id)


class KeysContract:
    @pytest.mark.parametrize("value", VALUES, ids=len)
    async def test_any_bytes_can_be_stored(self, backend: StateBackend, value: bytes) -> None:
        version = await backend.put("key", value, ttl=LONG)
        assert version > 0
        assert await backend.get("key") == Entry(value, version)
        assert type((await backend.get("key")).value) is bytes
        await backend.append("log", value, keep=1, ttl=LONG)
        page = await backend.read("log", 0)
        assert page.records == [LogRecord(1, value)]
        assert type(page.records[0].data) is bytes

    async def test_names_are_arbitrary_and_exact(self, backend: StateBackend) -> None:
        for name in NAMES:
            await backend.put(name, name.encode(), ttl=LONG)
        for name in NAMES:
            assert (await backend.get(name)).value == name.encode()
        assert await backend.get("PLAIN") is None

    @pytest.mark.parametrize("name", BAD_NAMES, ids=["long", "surrogate"])
    async def test_nothing_is_stored_under_a_bad_name(self, backend: StateBackend, name: str) -> None:
        for attempt in attempts(backend, name):
            with pytest.raises(ValueError, match="name"):
                await attempt()
        with pytest.raises(ValueError, match="name"):
            backend.listen(["fine", name])
        with contextlib.closing(backend.listen([])) as listener, pytest.raises(ValueError, match="name"):
            listener.add(name)

    @pytest.mark.parametrize("name", ["never put", *BAD_NAMES], ids=["unknown", "long", "surrogate"])
    async def test_nothing_is_found_where_nothing_is_stored(self, backend: StateBackend, name: str) -> None:
        assert await backend.get(name) is None
        assert await backend.touch(name, LONG) is False
        assert await backend.remaining(name) is None
        assert await backend.delete(name) is False
        assert await backend.read(name, 0) == LogPage([], 0, 0)
        assert await backend.read(name, 7) == LogPage([], 0, 0)
        await backend.drop(name)
        await backend.publish(name)

    @pytest.mark.parametrize("ttl", BAD_TIMES)
    async def test_a_time_to_live_that_is_none(self, backend: StateBackend, ttl: float) -> None:
        for attempt in [*attempts(backend, "key", ttl), lambda: backend.touch("key", ttl)]:
            with pytest.raises(ValueError, match="ttl"):
                await attempt()
        assert await backend.get("key") is None

    async def test_put_with_another_version_changes_nothing(self, backend: StateBackend) -> None:
        first = await backend.put("key", b"one", ttl=LONG)
        second = await backend.put("key", b"two", ttl=LONG)
        for wrong in (0, first, second + 1):
            with pytest.raises(Conflict):
                await backend.put("key", b"three", ttl=LONG, if_version=wrong)
        assert await backend.get("key") == Entry(b"two", second)

    async def test_no_version_comes_back_after_a_key_was_gone(self, backend: StateBackend, elapse: Elapse) -> None:
        """Else a slow writer would overwrite a record that it has never seen."""
        deleted = await backend.put("key", b"one", ttl=LONG)
        await backend.delete("key")
        expired = await backend.put("key", b"two", ttl=SHORT)
        await elapse(AFTER_IT)
        await backend.claim("key", b"three", LONG)
        for old in (deleted, expired):
            with pytest.raises(Conflict):
                await backend.put("key", b"late", ttl=LONG, if_version=old)
        assert (await backend.get("key")).value == b"three"

    async def test_one_of_many_writers_wins(self, backend: StateBackend) -> None:
        version = await backend.put("key", b"", ttl=LONG)
        await fill(backend, "log", 3)
        writers = [backend.put("key", b"%d" % n, ttl=LONG, if_version=version) for n in range(20)]
        writers += [backend.append("log", b"%d" % n, keep=9, ttl=LONG, if_last=3) for n in range(8)]
        outcomes = await asyncio.gather(*writers, return_exceptions=True)
        assert [sum(isinstance(each, Conflict) for each in some) for some in (outcomes[:20], outcomes[20:])] == [19, 7]
        assert (await backend.read("log", 0)).last == 4

    async def test_a_key_expires(self, backend: StateBackend, elapse: Elapse) -> None:
        await backend.put("key", b"value", ttl=SHORT)
        await elapse(MOST_OF_IT)
        assert await backend.get("key") is not None
        assert await backend.claim("key", b"too early", LONG) is False
        await elapse(MOST_OF_IT)
        assert await backend.get("key") is None
        assert await backend.touch("key", LONG) is False
        assert await backend.delete("key") is False
        assert await backend.claim("key", b"second", LONG) is True
        assert await backend.delete("key") is True
        assert await backend.put("key", b"value", ttl=LONG, if_version=0)

    async def test_touch_prolongs_and_leaves_the_version(self, backend: StateBackend, elapse: Elapse) -> None:
        version = await backend.put("key", b"value", ttl=SHORT)
        await elapse(MOST_OF_IT)
        assert await backend.touch("key", SHORT) is True
        await elapse(MOST_OF_IT)
        assert await backend.get("key") == Entry(b"value", version)
        await elapse(MOST_OF_IT)
        assert await backend.get("key") is None

    async def test_how_long_a_key_has_still_to_live(self, backend: StateBackend, elapse: Elapse) -> None:
        await backend.put("key", b"value", ttl=LONG)
        assert LONG - 5 < await backend.remaining("key") <= LONG
        await elapse(MOST_OF_IT)
        assert await backend.remaining("key") <= LONG - MOST_OF_IT + 0.01
        await backend.touch("key", 2 * LONG)
        assert 2 * LONG - 5 < await backend.remaining("key") <= 2 * LONG
        await backend.put("key", b"value", ttl=MAX_TTL)
        assert MAX_TTL - 5 < await backend.remaining("key") <= MAX_TTL
        await backend.append("log", b"", keep=1, ttl=LONG)
        assert await backend.remaining("log") is None


class ClaimsAndCountersContract:
    async def test_counting(self, backend: StateBackend) -> None:
        assert [await backend.add("key", n, LONG) for n in (1, 1, 5, -3, -10, 0)] == [1, 2, 7, 4, -6, -6]
        totals = await asyncio.gather(*(backend.add("other", 1, LONG) for _ in range(50)))
        assert sorted(totals) == list(range(1, 51))

    async def test_the_time_of_a_counter_begins_with_it(self, backend: StateBackend, elapse: Elapse) -> None:
        await backend.add("key", 1, SHORT)
        await elapse(MOST_OF_IT)
        assert await backend.add("key", 1, SHORT) == 2
        assert await backend.remaining("key") <= SHORT - MOST_OF_IT + 0.01
        await elapse(MOST_OF_IT)
        assert await backend.add("key", 1, SHORT) == 1

    async def test_a_counter_is_a_key_like_any_other(self, backend: StateBackend) -> None:
        await backend.add("key", 40, LONG)
        before = await backend.get("key")
        await backend.add("key", 2, LONG)
        after = await backend.get("key")
        assert (before.value, after.value) == (b"40", b"42")
        assert after.version > before.version
        assert await backend.touch("key", LONG) is True
        await backend.put("key", b"-7", ttl=LONG)
        assert await backend.add("key", 1, LONG) == -6
        assert await backend.delete("key") is True
        assert await backend.add("key", 1, LONG) == 1

    @pytest.mark.parametrize("value", [b"", b"x", b" 1", b"1 ", b"+1", b"01", b"-0", b"1_0", b"1.0", b"9" * 5000])
    async def test_what_is_no_number_is_not_counted_on(self, backend: StateBackend, value: bytes) -> None:
        entry = Entry(value, await backend.put("key", value, ttl=LONG))
        with pytest.raises(ValueError, match="number"):
            await backend.add("key", 1, LONG)
        assert await backend.get("key") == entry

    @pytest.mark.parametrize("end", [MAX_COUNT, -MAX_COUNT])
    async def test_a_counter_has_an_end(self, backend: StateBackend, end: int) -> None:
        step = 1 if end > 0 else -1
        assert await backend.add("key", end - step, LONG) == end - step
        assert await backend.add("key", step, LONG) == end
        with pytest.raises(ValueError, match="counter"):
            await backend.add("key", step, LONG)
        assert await backend.add("key", -step, LONG) == end - step


class LogsContract:
    async def test_ids_count_from_one_in_each_log(self, backend: StateBackend) -> None:
        assert await fill(backend, "log", 3) == [1, 2, 3]
        assert await fill(backend, "other", 2) == [1, 2]
        assert await backend.read("log", 0) == LogPage([record(1), record(2), record(3)], 1, 3)

    @pytest.mark.parametrize(
        ("after", "limit", "ids"),
        [
            (-5, 100, [4, 5, 6, 7, 8]),
            (3, 100, [4, 5, 6, 7, 8]),
            (4, 100, [5, 6, 7, 8]),
            (2**70, 100, []),
            (0, 2, [4, 5]),
            (5, 2, [6, 7]),
            (0, 0, []),
        ],
    )
    async def test_reading_on(self, backend: StateBackend, after: int, limit: int, ids: list[int]) -> None:
        await fill(backend, "log", 8, keep=5)
        assert await backend.read("log", after, limit) == LogPage([record(id) for id in ids], 4, 8)

    async def test_a_page_has_a_hundred_records_at_most_by_default(self, backend: StateBackend) -> None:
        await fill(backend, "log", 120, keep=200)
        assert len((await backend.read("log", 0)).records) == 100
        assert len((await backend.read("log", 0, 200)).records) == 120

    async def test_every_append_says_how_many_stay(self, backend: StateBackend) -> None:
        await fill(backend, "log", 6, keep=10)
        await backend.append("log", b"record 7", keep=3, ttl=LONG)
        assert await backend.read("log", 0) == LogPage([record(5), record(6), record(7)], 5, 7)
        await backend.append("log", b"record 8", keep=1, ttl=LONG)
        assert await backend.read("log", 0) == LogPage([record(8)], 8, 8)
        with pytest.raises(ValueError, match="keep"):
            await backend.append("log", b"", keep=0, ttl=LONG)

    @pytest.mark.parametrize("count", [0, 2])
    async def test_append_after_the_expected_record(self, backend: StateBackend, count: int) -> None:
        await fill(backend, "log", count)
        for expected in {0, 1, 2, 3} - {count}:
            with pytest.raises(Conflict):
                await backend.append("log", b"late", keep=9, ttl=LONG, if_last=expected)
        assert (await backend.read("log", 0)).last == count
        assert await backend.append("log", b"record", keep=9, ttl=LONG, if_last=count) == count + 1

    async def test_a_log_expires_after_its_last_append(self, backend: StateBackend, elapse: Elapse) -> None:
        await fill(backend, "log", 1, ttl=SHORT)
        await elapse(MOST_OF_IT)
        await backend.append("log", b"record 2", keep=100, ttl=SHORT)
        await elapse(MOST_OF_IT)
        assert await backend.read("log", 0) == LogPage([record(1), record(2)], 1, 2)
        await elapse(MOST_OF_IT)
        assert await backend.read("log", 0) == LogPage([], 0, 0)
        assert await fill(backend, "log", 2) == [1, 2]

    async def test_writers_at_the_same_time_get_ids_of_their_own(self, backend: StateBackend) -> None:
        texts = [b"%d" % n for n in range(50)]
        ids = await asyncio.gather(*(backend.append("log", text, keep=100, ttl=LONG) for text in texts))
        assert sorted(ids) == list(range(1, 51))
        stored = {record.id: record.data for record in (await backend.read("log", 0)).records}
        assert stored == dict(zip(ids, texts, strict=True))

    async def test_keys_and_logs_do_not_meet(self, backend: StateBackend) -> None:
        await backend.put("name", b"value", ttl=LONG)
        assert await fill(backend, "name", 2) == [1, 2]
        await backend.delete("name")
        assert (await backend.read("name", 0)).last == 2
        await backend.put("name", b"value", ttl=LONG)
        await fill(backend, "other", 3)
        await backend.drop("name")
        assert (await backend.get("name")).value == b"value"
        assert await backend.read("name", 0) == LogPage([], 0, 0)
        assert (await backend.read("other", 0)).last == 3
        assert await fill(backend, "name", 1) == [1]


async def subscribed(backend: StateBackend, *topics: str) -> Listener:
    """A listener at a store far away, after the wake-ups that it gets when the store has got its new topics."""
    listener, left = backend.listen(topics), set(topics)
    while left:
        left -= await received(listener)
    return listener


class ListenersContract:
    wakes_at_first = False

    async def listening(self, backend: StateBackend, *topics: str) -> Listener:
        return await subscribed(backend, *topics) if self.wakes_at_first else backend.listen(topics)

    async def test_each_topic_is_notified_once(self, backend: StateBackend) -> None:
        with contextlib.closing(await self.listening(backend, "a", "end")) as listener:
            for _ in range(200):
                await backend.publish("a")
            await backend.publish("end")
            rounds = 1
            while "end" not in await received(listener):
                rounds += 1
            assert rounds < 200
            assert await receives_nothing(listener)

    async def test_only_listeners_are_notified(self, backend: StateBackend) -> None:
        two = await self.listening(backend, "a", "b")
        with contextlib.closing(backend.listen(["a"])) as one, contextlib.closing(two):
            await backend.publish("b")
            await backend.publish("nobody")
            assert await received(two) == {"b"}
            assert await receives_nothing(one)
            await backend.publish("a")
            assert await received(one) == {"a"}
            assert await received(two) == {"a"}
            with contextlib.closing(backend.listen(["a"])) as late:
                assert await receives_nothing(late) or self.wakes_at_first

    async def test_an_append_wakes_who_listens_to_the_log(self, backend: StateBackend) -> None:
        with contextlib.closing(await self.listening(backend, "log")) as listener:
            await fill(backend, "other", 1)
            waiting = await begun(listener)
            with pytest.raises(RuntimeError, match="waits"):
                await listener.wait()
            await fill(backend, "log", 1)
            assert await asyncio.wait_for(waiting, 5) == {"log"}
            assert (await backend.read("log", 0)).records == [record(1)]

    async def test_topics_come_and_go(self, backend: StateBackend) -> None:
        with contextlib.closing(backend.listen([])) as listener:
            waiting = await begun(listener)
            listener.add("a")
            listener.add("a")
            await backend.publish("a")
            assert await asyncio.wait_for(waiting, 5) == {"a"}
            await receives_nothing(listener)
            listener.remove("a")
            listener.remove("never added")
            await backend.publish("a")
            assert await receives_nothing(listener)

    async def test_a_wake_up_outlives_the_wait_that_was_cancelled(self, backend: StateBackend) -> None:
        with contextlib.closing(await self.listening(backend, "a")) as listener:
            waiting = await begun(listener)
            await backend.publish("a")
            waiting.cancel()
            woken: set[str] = set()
            with contextlib.suppress(asyncio.CancelledError):
                woken = await waiting  # where the wake-up was quicker
            assert woken or await received(listener) == {"a"}

    async def test_close_ends_the_wait_and_all_later_ones(self, backend: StateBackend) -> None:
        listener = backend.listen(["a", "b"])
        waiting = await begun(listener)
        listener.close()
        assert await asyncio.wait_for(waiting, 5) == set()
        listener.close()
        listener.add("c")
        listener.remove("a")
        await backend.publish("c")
        assert await received(listener) == set()

    async def test_a_reader_that_tails_a_log_misses_nothing(self, backend: StateBackend) -> None:
        """The way of every stream: listen, read to the end, wait, read on."""

        async def tail() -> list[int]:
            got: list[int] = []
            with contextlib.closing(backend.listen(["log"])) as listener:
                while len(got) < 100:
                    while page := (await backend.read("log", got[-1] if got else 0, 7)).records:
                        got.extend(record.id for record in page)
                    if len(got) < 100:
                        await listener.wait()
            return got

        async def write() -> None:
            for n in range(100):
                await backend.append("log", b"%d" % n, keep=1000, ttl=LONG)
                if n % 3:
                    await asyncio.sleep(0)

        outcomes = await asyncio.wait_for(asyncio.gather(tail(), write(), tail(), tail()), 20)
        assert [outcomes[0], outcomes[2], outcomes[3]] == list(itertools.repeat(list(range(1, 101)), 3))

    async def test_closing_the_backend_closes_every_listener(self, backend: StateBackend) -> None:
        listeners = [backend.listen(["a"]), backend.listen([]), backend.listen(["b"])]
        waiting = [await begun(listener) for listener in listeners]
        await backend.close()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [set(), set(), set()]
        assert await received(backend.listen(["a"])) == set()
        await backend.close()


class BackendContract(KeysContract, ClaimsAndCountersContract, LogsContract, ListenersContract):
    """All of it."""
