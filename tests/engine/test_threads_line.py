"""The line of jobs and the way back: nobody is delayed by a function that blocks, and no wake-up is wasted or lost."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engine.thread_jobs import Returns
from dovetail.engine.threads import ThreadPool
from dovetail.errors import Busy

WAIT = 5.0  # a bound for what should take no time at all


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds functions back; opened at the end."""
    event = threading.Event()
    yield event
    event.set()


def start(pool: ThreadPool, function: Callable[[], Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(pool.run(function, label="t"))


async def warm_up(pool: ThreadPool) -> None:
    """Some threads are idle then, others are still to be started."""
    await asyncio.gather(*(start(pool, lambda: time.sleep(0.005)) for _ in range(5)))


# ── nobody is delayed ──


@pytest.mark.parametrize("warm", [False, True])
async def test_as_many_as_there_are_threads_run_at_the_same_time(warm: bool) -> None:
    pool = ThreadPool(max_threads=12)
    if warm:
        await warm_up(pool)
    meeting = threading.Barrier(12)
    await asyncio.gather(*(start(pool, lambda: meeting.wait(WAIT)) for _ in range(12)))
    pool.close()


@pytest.mark.parametrize("max_threads", [1, 2, 40])
@pytest.mark.parametrize("before", [1, 2, 30])
@pytest.mark.parametrize("warm", [False, True])
async def test_outcomes_arrive_while_the_next_function_blocks(
    max_threads: int, before: int, warm: bool, gate: threading.Event
) -> None:
    pool = ThreadPool(max_threads=max_threads)
    if warm:
        await warm_up(pool)
    short = [start(pool, lambda n=n: n) for n in range(before)]
    blocked = start(pool, lambda: gate.wait(WAIT))
    async with asyncio.timeout(WAIT / 2):
        assert await asyncio.gather(*short) == list(range(before))
    assert not blocked.done()
    gate.set()
    assert await blocked is True
    pool.close()


async def test_short_functions_pass_blocked_ones_wherever_they_stand(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=9)
    tasks = [start(pool, (lambda: gate.wait(WAIT)) if n % 5 == 0 else (lambda n=n: n)) for n in range(40)]
    async with asyncio.timeout(WAIT / 2):
        assert await asyncio.gather(*(each for n, each in enumerate(tasks) if n % 5)) == [n for n in range(40) if n % 5]
    gate.set()
    await asyncio.gather(*tasks)
    pool.close()


async def test_one_thread_at_a_time_is_called_to_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, begun = ThreadPool(), list[str]()
    begin = pool._start_thread
    monkeypatch.setattr(pool, "_start_thread", lambda: begun.append("thread"))
    tasks = [start(pool, lambda n=n: n) for n in range(40)]
    await asyncio.sleep(0)
    assert begun == ["thread"]  # the next one is called by it, not by the loop
    monkeypatch.undo()
    begin()
    assert await asyncio.gather(*tasks) == list(range(40))
    pool.close()


# ── the way back ──


async def test_outcomes_that_are_ready_together_call_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    calls: list[Callable[..., object]] = []
    monkeypatch.setattr(loop, "call_soon_threadsafe", calls.append)
    returns = Returns(loop)
    futures = [loop.create_future() for _ in range(4)]
    returns.call_loop()
    assert calls == []  # there is nothing to come for
    for number, future in enumerate(futures[:3]):
        returns.add((future, (number, None)))
        returns.call_loop()
    futures[1].cancel()
    (deliver,) = calls
    deliver()
    assert [future.done() for future in futures] == [True, True, True, False]
    assert (futures[0].result(), futures[2].result()) == (0, 2)
    returns.add((futures[3], (None, LookupError("none"))))
    returns.call_loop()
    assert len(calls) == 2
    deliver()
    assert isinstance(futures[3].exception(), LookupError)


def test_a_closed_loop_is_not_called() -> None:
    loop = asyncio.new_event_loop()
    returns = Returns(loop)
    returns.add((loop.create_future(), (1, None)))
    loop.close()
    returns.call_loop()


def test_several_loops_at_once() -> None:
    pool = ThreadPool(max_threads=3)

    async def many(start: int) -> list[int]:
        numbers = []
        for base in range(start, start + 200, 10):
            numbers += await asyncio.gather(*(pool.run(lambda n=base + k: n, label="t") for k in range(10)))
        return numbers

    with ThreadPoolExecutor(4) as executor:
        runs = [executor.submit(asyncio.run, many(base)) for base in range(0, 4000, 1000)]
        assert [run.result(30) for run in runs] == [list(range(base, base + 200)) for base in range(0, 4000, 1000)]
    pool.close()


async def test_a_loop_is_called_before_another_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, pool = asyncio.get_running_loop(), ThreadPool()
    calls: list[Callable[..., object]] = []
    monkeypatch.setattr(loop, "call_soon_threadsafe", calls.append)
    returns = Returns(loop)
    pool._return_to(returns)
    returns.add((loop.create_future(), (1, None)))
    pool._return_to(None)
    assert len(calls) == 1


async def test_closing_loses_no_outcome() -> None:
    for _ in range(30):
        pool = ThreadPool(max_threads=2)
        tasks = [start(pool, lambda n=n: n) for n in range(8)]
        await asyncio.sleep(random.choice([0, 0, 0.0005]))
        pool.close()
        async with asyncio.timeout(WAIT):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes[:2] == [0, 1]
        assert all(each == n or isinstance(each, Busy) for n, each in enumerate(outcomes))


# ── a system that has no more threads to give ──


async def test_those_who_find_no_new_thread_wait_for_the_ones_there_are(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = ThreadPool()
    started, second_gate = threading.Event(), threading.Event()
    first = start(pool, lambda: (started.set(), gate.wait(WAIT)))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(started.wait, WAIT)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        others = [start(pool, lambda n=n: n) for n in range(3)]
        blocked = start(pool, lambda: second_gate.wait(WAIT))
        await asyncio.sleep(0.01)
        gate.set()
        async with asyncio.timeout(WAIT / 2):
            assert await asyncio.gather(*others) == [0, 1, 2]
        assert not blocked.done()
        second_gate.set()
        await asyncio.gather(first, blocked)
    pool.close()


async def test_who_becomes_idle_while_a_new_thread_fails_to_start_is_called(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    pool = ThreadPool()
    started, free = threading.Event(), threading.Event()

    def elsewhere() -> int:
        assert free.wait(WAIT)
        return asyncio.run(asyncio.wait_for(pool.run(lambda: 3, label="t"), WAIT / 2))

    def refuse(thread: threading.Thread) -> None:
        gate.set()
        until(lambda: bool(pool._idle))
        free.set()
        until(lambda: bool(pool._line))
        raise RuntimeError("can't start new thread")

    other = asyncio.create_task(asyncio.to_thread(elsewhere))
    first = start(pool, lambda: (started.set(), gate.wait(WAIT)))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(started.wait, WAIT)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        second = start(pool, lambda: 2)
        await asyncio.sleep(0)
    await first
    assert (await second, await other) == (2, 3)
    pool.close()


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not done() and time.monotonic() < end:
        time.sleep(0.001)


# ── whatever comes ──

ACTS: dict[str, Callable[[], object]] = {
    "short": lambda: None,
    "long": lambda: time.sleep(0.001),
    "fails": lambda: 1 // 0,
}


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.lists(st.sampled_from([*ACTS, "cancel", "turn", "reopen"]), max_size=40))
def test_every_call_ends_and_no_thread_is_lost(max_threads: int, moves: list[str]) -> None:
    async def play() -> None:
        pool = ThreadPool(max_threads, max_stuck=1000)
        tasks: list[asyncio.Task[Any]] = []
        for move in moves:
            if move in ACTS:
                tasks.append(start(pool, ACTS[move]))
            elif move == "cancel" and tasks:
                tasks[len(tasks) // 2].cancel()
            elif move == "turn":
                await asyncio.sleep(0)
            elif move == "reopen":
                pool.close()
                pool.open()
        expected = (type(None), ZeroDivisionError, asyncio.CancelledError, Busy)
        async with asyncio.timeout(WAIT):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, expected) for each in outcomes), outcomes
            while pool.stuck or pool._threads != len(pool._idle):  # noqa: ASYNC110  # threads tell nobody
                await asyncio.sleep(0.001)
        assert pool._threads <= max_threads
        pool.close()
        assert pool._threads == 0

    asyncio.run(play())
