"""The pool of daemon threads: order, reuse, cancellation, stuck threads, odd exceptions, the exit."""

import asyncio
import concurrent.futures
import contextvars
import gc
import logging
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

import pytest

from dovetail.engine import threads
from dovetail.engine.threads import CallEnded, ThreadPool, wait_in_thread
from dovetail.errors import Busy, SetupError

WAIT = 5.0  # a bound for what should take no time at all


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds functions back; opened at the end. No thread outlives its test, nor does a line of its log."""
    before = set(threading.enumerate())  # idle ones of other tests may live on for a while
    event = threading.Event()
    yield event
    event.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "GRACE_SECONDS", 0.02)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(WAIT / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never happened")


async def abandon(pool: ThreadPool, function: Callable[[], object], label: str = "tool 'slow'") -> None:
    """Start a function and cancel its caller while it runs."""
    started = threading.Event()

    def body() -> object:
        started.set()
        return function()

    task = asyncio.create_task(pool.run(body, label=label))
    await until(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# ── running ──


async def test_returns_the_result_from_a_named_daemon_thread() -> None:
    pool = ThreadPool(name="workshop")
    thread = await pool.run(threading.current_thread, label="t")
    assert thread is not threading.main_thread()
    assert thread.daemon
    assert thread.name == "workshop-1"
    pool.close()


async def test_copies_the_context_variables() -> None:
    user = contextvars.ContextVar("user", default="nobody")
    user.set("ada")
    pool = ThreadPool()

    def change() -> str:
        seen = user.get()
        user.set("changed in the thread")
        return seen

    assert await pool.run(change, label="t") == "ada"
    assert user.get() == "ada"
    pool.close()


async def test_one_call_after_another_needs_one_thread() -> None:
    pool = ThreadPool()
    names = {await pool.run(lambda: threading.current_thread().name, label="t") for _ in range(50)}
    assert names == {"dovetail-1"}
    pool.close()


async def test_the_idle_thread_that_worked_last_works_next(gate: threading.Event) -> None:
    pool = ThreadPool()

    def name() -> str:
        return threading.current_thread().name

    def name_later() -> str:
        gate.wait(WAIT)
        return name()

    held = asyncio.create_task(pool.run(name_later, label="t"))
    await asyncio.sleep(0)
    assert await pool.run(name, label="t") == "dovetail-2"
    gate.set()
    assert await held == "dovetail-1"
    assert [await pool.run(name, label="t") for _ in range(3)] == ["dovetail-1"] * 3
    pool.close()


async def test_never_more_than_max_threads_run() -> None:
    pool = ThreadPool(max_threads=3)
    lock = threading.Lock()
    running = most = 0

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    await asyncio.gather(*(pool.run(work, label="t") for _ in range(30)))
    assert most == 3
    pool.close()


async def test_waiting_is_first_in_first_out() -> None:
    pool = ThreadPool(max_threads=1)
    order: list[int] = []
    await asyncio.gather(*(pool.run(lambda n=n: order.append(n), label="t") for n in range(20)))
    assert order == list(range(20))
    pool.close()


# ── exceptions ──


async def test_an_exception_keeps_its_traceback() -> None:
    def deep_inside() -> NoReturn:
        raise LookupError("not here")

    pool = ThreadPool()
    with pytest.raises(LookupError, match="not here") as caught:
        await pool.run(lambda: deep_inside(), label="t")
    assert "deep_inside" in "".join(traceback.format_tb(caught.value.__traceback__))
    pool.close()


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_exceptions_with_a_meaning_for_the_loop_are_ordinary_failures(kind: type[BaseException]) -> None:
    def leave() -> NoReturn:
        raise kind("away")

    pool = ThreadPool(max_threads=1, name=f"leave {kind.__name__}")
    with pytest.raises(RuntimeError, match=f"tool 'quit' raised {kind.__name__}") as caught:
        await pool.run(leave, label="tool 'quit'")
    assert isinstance(caught.value.__cause__, kind)
    assert await pool.run(lambda: "still here", label="t") == "still here"
    assert [each.name for each in threading.enumerate() if kind.__name__ in each.name] == [f"leave {kind.__name__}-1"]
    pool.close()


async def test_other_base_exceptions_are_carried_as_they_are() -> None:
    class Signal(BaseException):
        pass

    def signal() -> NoReturn:
        raise Signal

    pool = ThreadPool()
    with pytest.raises(Signal):
        await pool.run(signal, label="t")
    pool.close()


async def test_nothing_keeps_a_finished_call_alive() -> None:
    class Thing(Exception):
        pass

    async def failing() -> weakref.ref[Thing]:
        def fail() -> NoReturn:
            raise Thing

        try:
            await pool.run(fail, label="t")
        except Thing as error:
            return weakref.ref(error)
        raise AssertionError

    pool = ThreadPool()
    gc.disable()
    try:
        dead = await failing()
        await until(lambda: dead() is None)
    finally:
        gc.enable()
    pool.close()


# ── cancellation and stuck threads ──


async def test_cancelling_a_waiting_call_means_it_never_runs(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=1)
    ran: list[str] = []
    held = asyncio.create_task(pool.run(lambda: gate.wait(WAIT), label="t"))
    waiting = [asyncio.create_task(pool.run(lambda n=n: ran.append(n), label="t")) for n in "abc"]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(held, waiting[0], waiting[2])
    assert ran == ["a", "c"]
    assert pool.stuck == 0
    pool.close()


async def test_a_stuck_thread_frees_its_slot_at_once(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=1)
    await abandon(pool, lambda: gate.wait(WAIT))
    assert pool.stuck == 1
    assert await pool.run(lambda: threading.current_thread().name, label="t") == "dovetail-2"
    gate.set()
    await until(lambda: pool.stuck == 0)
    pool.close()


async def test_a_call_that_waits_gets_the_slot_of_a_stuck_one(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=1)
    started = threading.Event()
    stuck = asyncio.create_task(pool.run(lambda: (started.set(), gate.wait(WAIT)), label="t"))
    waiting = asyncio.create_task(pool.run(lambda: "served", label="t"))
    await until(started.is_set)
    assert not waiting.done()
    stuck.cancel()
    assert await asyncio.wait_for(waiting, WAIT) == "served"
    pool.close()


async def test_what_a_stuck_thread_returns_or_raises_is_dropped(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> NoReturn:
        gate.wait(WAIT)
        raise ValueError("too late")

    pool = ThreadPool()
    await abandon(pool, fail)
    await abandon(pool, lambda: gate.wait(WAIT))
    gate.set()
    await until(lambda: pool.stuck == 0)
    await asyncio.sleep(0.01)
    gc.collect()
    assert caplog.records == []  # no "exception was never retrieved", and no line for a thread that came back in time
    pool.close()


@pytest.mark.usefixtures("short_grace")
async def test_the_log_names_a_stuck_thread_once_and_its_return(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ThreadPool()
    await abandon(pool, lambda: gate.wait(WAIT), label="tool 'thumbnail'")
    await until(lambda: len(caplog.records) == 1)
    pool.close()  # would name it too
    gate.set()
    await until(lambda: len(caplog.records) == 2)
    stuck, back = caplog.records
    assert stuck.name == back.name == "dovetail.threads"
    assert stuck.levelno == back.levelno == logging.WARNING
    assert stuck.getMessage() == (
        "tool 'thumbnail' is stuck: its call has ended, but its thread dovetail-1 still runs "
        "(1 of at most 100 stuck threads)"
    )
    assert back.getMessage() == "tool 'thumbnail' came back: its thread dovetail-1 is no longer stuck"


async def test_closing_names_stuck_threads_without_waiting(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ThreadPool()
    await abandon(pool, lambda: gate.wait(WAIT), label="tool 'thumbnail'")
    pool.close()
    assert "tool 'thumbnail' is stuck" in caplog.text


async def test_too_many_stuck_threads_refuse_new_calls_and_those_that_wait(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=2, max_stuck=1)
    running = asyncio.create_task(pool.run(lambda: gate.wait(WAIT), label="tool 'a'"))
    started = threading.Event()
    stuck = asyncio.create_task(pool.run(lambda: (started.set(), gate.wait(WAIT)), label="tool 'b'"))
    waiting = asyncio.create_task(pool.run(lambda: None, label="tool 'c'"))
    await until(started.is_set)
    stuck.cancel()
    message = "tool 'c' can't run: 1 earlier calls were given up but still hold their threads; try again later"
    with pytest.raises(Busy, match=message):
        await waiting
    with pytest.raises(Busy, match="tool 'd' can't run"):
        await pool.run(lambda: None, label="tool 'd'")
    gate.set()
    assert await running is True
    await until(lambda: pool.stuck == 0)
    assert await pool.run(lambda: "again", label="t") == "again"
    pool.close()


async def test_random_cancellations_leave_the_pool_whole() -> None:
    pool = ThreadPool(max_threads=4, max_stuck=1000)
    tasks = [asyncio.create_task(pool.run(lambda: time.sleep(0.001), label="t")) for _ in range(300)]
    for number, task in enumerate(tasks):
        if number % 3 == 0:
            task.cancel()
        if number % 7 == 0:
            await asyncio.sleep(0.001)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    await until(lambda: pool.stuck == 0 and pool._threads == len(pool._idle))
    assert pool._threads <= 4
    pool.close()
    assert pool._threads == 0


async def test_random_cancellations_leave_each_label_its_share() -> None:
    pool = ThreadPool(max_threads=4, max_stuck=1000, share=2)
    running, most = {"a": 0, "b": 0}, {"a": 0, "b": 0}
    lock = threading.Lock()

    def work(label: str) -> None:
        with lock:
            running[label] += 1
            most[label] = max(most[label], running[label])
        time.sleep(0.001)
        with lock:
            running[label] -= 1

    for _ in range(5):
        tasks = [asyncio.create_task(pool.run(partial(work, each), label=each)) for each in "ab" * 40]
        for number, task in enumerate(tasks):
            if number % 3 == 0:
                task.cancel()
            if number % 7 == 0:
                await asyncio.sleep(0.001)
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, (asyncio.CancelledError, Busy))
        await until(lambda: pool.stuck == 0)
    assert most == {"a": 2, "b": 2}
    meeting = threading.Barrier(4)
    await asyncio.gather(*(pool.run(lambda: meeting.wait(WAIT), label=each) for each in "abab"))
    assert not pool._beside, "labels that nobody waits for are kept"
    pool.close()


async def test_closing_refuses_those_who_wait_for_their_share(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=4, share=1)
    running = asyncio.create_task(pool.run(lambda: gate.wait(WAIT), label="t"))
    waiting = asyncio.create_task(pool.run(lambda: None, label="t"))
    await asyncio.sleep(0)
    pool.close()
    with pytest.raises(Busy, match="shutting down"):
        await waiting
    gate.set()
    assert await running is True


# ── threads that wait for the loop ──


class Waiter:
    """Waits in a thread for the loop, without end, and remembers how that ended."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.outcomes: list[BaseException] = []

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    def __call__(self) -> None:
        for _ in range(2):  # the second one does not even start
            try:
                wait_in_thread(lambda: asyncio.run_coroutine_threadsafe(self.work(), self.loop))
            except BaseException as error:
                self.outcomes.append(error)

    def knows(self) -> bool:
        return [type(error) for error in self.outcomes] == [CallEnded, CallEnded]


async def test_a_thread_that_waits_for_the_loop_comes_back_when_its_call_ends(caplog: pytest.LogCaptureFixture) -> None:
    pool = ThreadPool(max_threads=1, max_stuck=1)
    for _ in range(3):
        waiter = Waiter()
        call = asyncio.create_task(pool.run(waiter, label="t"))
        await waiter.begun.wait()
        call.cancel()
        await asyncio.wait_for(waiter.ended.wait(), WAIT)
        await until(waiter.knows)
        await until(lambda: pool.stuck == 0)
        assert call.cancelled()
    assert await pool.run(lambda: "fine", label="t") == "fine"
    assert caplog.records == []
    pool.close()


async def test_what_a_waiting_thread_runs_for_the_loop_is_given_up_too() -> None:
    pool = ThreadPool(max_threads=1)
    inner = Waiter()
    loop = asyncio.get_running_loop()

    def outer() -> str:
        wait_in_thread(lambda: asyncio.run_coroutine_threadsafe(bounded(), loop))
        return "outer goes on"

    async def bounded() -> None:
        task = asyncio.create_task(pool.run(inner, label="inner"))
        await inner.begun.wait()
        task.cancel()
        await asyncio.wait({task})

    assert await asyncio.wait_for(pool.run(outer, label="outer"), WAIT) == "outer goes on"
    assert inner.knows()
    assert pool.stuck == 0
    pool.close()


async def test_a_cancellation_inside_of_the_work_is_not_the_end_of_the_call() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    pool = ThreadPool()
    loop = asyncio.get_running_loop()
    with pytest.raises(concurrent.futures.CancelledError):
        await pool.run(lambda: wait_in_thread(lambda: asyncio.run_coroutine_threadsafe(cancelled(), loop)), label="t")
    pool.close()


# ── closing, idling, failing to start ──


async def test_closing_ends_idle_threads_refuses_those_who_wait_and_lets_the_running_finish(
    gate: threading.Event,
) -> None:
    pool = ThreadPool(max_threads=2, name="closing")
    await asyncio.gather(*(pool.run(lambda: time.sleep(0.01), label="t") for _ in range(2)))
    running = [asyncio.create_task(pool.run(lambda: gate.wait(WAIT), label="t")) for _ in range(2)]
    waiting = asyncio.create_task(pool.run(lambda: None, label="tool 'x'"))
    await asyncio.sleep(0)
    pool.close()
    with pytest.raises(Busy, match="tool 'x' can't run: the server is shutting down"):
        await waiting
    with pytest.raises(Busy, match="shutting down"):
        await pool.run(lambda: None, label="t")
    gate.set()
    assert await asyncio.gather(*running) == [True, True]
    await until(lambda: not any(thread.name.startswith("closing") for thread in threading.enumerate()))


async def test_a_closed_pool_can_be_opened_again(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=1, name="reopened")
    for number in range(3):
        assert await pool.run(lambda n=number: n, label="t") == number
        held = asyncio.create_task(pool.run(lambda: gate.wait(WAIT), label="t"))
        await asyncio.sleep(0)
        pool.close()
        with pytest.raises(Busy, match="shutting down"):
            await pool.run(lambda: None, label="t")
        pool.open()
        gate.set()
        assert await held is True
        assert await pool.run(lambda: "open", label="t") == "open"
        gate.clear()
    pool.close()
    await until(lambda: not any(thread.name.startswith("reopened") for thread in threading.enumerate()))
    assert pool._threads == 0


async def test_idle_threads_end_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.02)
    pool = ThreadPool(name="idling")
    for _ in range(3):
        await pool.run(lambda: None, label="t")
        await until(lambda: not any(thread.name.startswith("idling") for thread in threading.enumerate()))
    assert pool._threads == 0
    assert pool._idle == []


async def test_no_call_is_lost_when_a_thread_ends_just_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.0005)
    pool = ThreadPool(max_threads=2)
    for _ in range(150):
        assert await asyncio.wait_for(pool.run(lambda: 1, label="t"), WAIT) == 1
        await asyncio.sleep(0.0005)
    pool.close()


async def test_a_system_without_threads_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = ThreadPool()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Busy, match="the system refuses to start another thread"):
            await pool.run(lambda: None, label="t")
    assert await pool.run(lambda: 1, label="t") == 1
    pool.close()


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_sizes_must_be_positive(sizes: tuple[int, int]) -> None:
    with pytest.raises(SetupError, match="at least 1"):
        ThreadPool(*sizes)


# ── loops and the exit ──


def test_serves_one_loop_after_another() -> None:
    pool = ThreadPool()
    for number in range(3):
        assert asyncio.run(pool.run(lambda n=number: n, label="t")) == number
    pool.close()


def test_a_loop_that_closes_before_its_thread_is_done_prints_nothing(
    capfd: pytest.CaptureFixture[str], gate: threading.Event
) -> None:
    pool = ThreadPool()
    asyncio.run(abandon(pool, lambda: gate.wait(WAIT)))
    gate.set()
    for _ in range(1000):
        if not pool.stuck:
            break
        time.sleep(0.005)
    assert asyncio.run(pool.run(lambda: "next loop", label="t")) == "next loop"
    pool.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("closes", [True, False])
def test_a_stuck_thread_never_delays_the_exit(closes: bool) -> None:
    program = f"""
        import asyncio, time
        from dovetail.engine.threads import ThreadPool

        async def main():
            pool = ThreadPool()
            try:
                await asyncio.wait_for(pool.run(lambda: time.sleep(60), label="tool 'sleepy'"), 0.05)
            except TimeoutError:
                print(await pool.run(lambda: "alive", label="t"))
            if {closes}:
                pool.close()

        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert ("tool 'sleepy' is stuck" in done.stderr) is closes
