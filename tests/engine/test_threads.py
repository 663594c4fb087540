"""The pool of daemon threads: order, reuse, cancellation, stuck and waiting threads, odd exceptions, the exit."""

import asyncio
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
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.threads import CallEnded, ThreadPool, thread_slot_lent, wait_in_thread
from dovetail.errors import Busy, ToolBusy
from http_serving import until

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


def start(pool: ThreadPool, function: Callable[[], Any], label: str = "t") -> asyncio.Task[Any]:
    return asyncio.create_task(pool.run(function, label=label))


async def check_is_whole(pool: ThreadPool, threads: int) -> None:
    """As many threads as there may be run at the same time, and no more."""
    await until(lambda: pool.stuck == 0)
    meeting, running, most = threading.Barrier(threads), 0, 0
    lock = threading.Lock()

    def work(meets: bool) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if meets:
            meeting.wait(WAIT)
        with lock:
            running -= 1

    await asyncio.gather(*(start(pool, partial(work, n < threads), f"{n}") for n in range(4 * threads)))
    assert most == threads


async def abandon(pool: ThreadPool, function: Callable[[], object], label: str = "tool 'slow'") -> None:
    """Start a function and cancel its caller while it runs."""
    started = threading.Event()
    task = start(pool, lambda: (started.set(), function()), label)
    await until(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# ── running ──


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
    await check_is_whole(pool, 40)
    await until(lambda: threading.active_count() >= 40)
    names = {await pool.run(lambda: threading.current_thread().name, label="t") for _ in range(50)}
    assert len(names) <= 2, "the one that worked last works next, so that others may end"
    pool.close()


# ── exceptions ──


class Signal(BaseException):
    pass


FOR_THE_LOOP = (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)


@pytest.mark.parametrize("kind", [LookupError, Signal, *FOR_THE_LOOP])
async def test_an_exception_keeps_its_traceback_and_means_nothing_to_the_loop(kind: type[BaseException]) -> None:
    def deep_inside() -> NoReturn:
        raise kind("away")

    pool, name = ThreadPool(max_threads=1, name=f"leave {kind.__name__}"), f"leave {kind.__name__}-1"
    with pytest.raises(RuntimeError if kind in FOR_THE_LOOP else kind) as caught:
        await pool.run(lambda: deep_inside(), label="tool 'quit'")
    error = caught.value
    if kind in FOR_THE_LOOP:
        assert f"tool 'quit' raised {kind.__name__}" in str(error)
        error = error.__cause__  # type: ignore[assignment]
    assert isinstance(error, kind)
    assert "deep_inside" in "".join(traceback.format_tb(error.__traceback__))
    assert await pool.run(lambda: "still here", label="t") == "still here"
    assert [each.name for each in threading.enumerate() if kind.__name__ in each.name] == [name]
    pool.close()


async def test_nothing_keeps_a_finished_call_alive() -> None:
    class Thing(Exception):
        pass

    def fail() -> NoReturn:
        raise Thing

    pool, dead = ThreadPool(), list[weakref.ref[Thing]]()
    gc.disable()
    try:
        try:
            await pool.run(fail, label="t")
        except Thing as error:
            dead.append(weakref.ref(error))
        await until(lambda: dead[0]() is None)
    finally:
        gc.enable()
    pool.close()


# ── cancellation and stuck threads ──


async def test_cancelling_a_waiting_call_means_it_never_runs(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=1)
    ran: list[str] = []
    held = start(pool, lambda: gate.wait(WAIT))
    waiting = [start(pool, lambda n=n: ran.append(n)) for n in "abc"]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(held, waiting[0], waiting[2])
    assert ran == ["a", "c"]
    assert pool.stuck == 0
    pool.close()


async def test_the_log_names_a_stuck_thread_once_and_its_return(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ThreadPool(grace=0.02)
    await abandon(pool, lambda: gate.wait(WAIT), label="tool 'thumbnail'")
    await until(lambda: len(caplog.records) == 1)
    pool.close()  # would name it too
    gate.set()
    await until(lambda: len(caplog.records) == 2)
    stuck, back = caplog.records
    assert stuck.name == back.name == "dovetail.threads"
    assert stuck.levelno == back.levelno == logging.WARNING
    assert all(word in stuck.getMessage() for word in ("tool 'thumbnail' is stuck", "dovetail-1", "1 of at most 100"))
    assert "tool 'thumbnail' has ended" in back.getMessage()


async def test_too_many_stuck_threads_refuse_new_calls_and_those_that_wait(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=2, max_stuck=1)
    running = start(pool, lambda: gate.wait(WAIT), "tool 'a'")
    started = threading.Event()
    stuck = start(pool, lambda: (started.set(), gate.wait(WAIT)), "tool 'b'")
    waiting = start(pool, lambda: None, "tool 'c'")
    await until(started.is_set)
    stuck.cancel()
    with pytest.raises(Busy, match="tool 'c' can't run: 1 earlier calls were given up"):
        await waiting
    with pytest.raises(Busy, match="tool 'd' can't run"):
        await pool.run(lambda: None, label="tool 'd'")
    gate.set()
    assert await running is True
    await until(lambda: pool.stuck == 0)
    assert await pool.run(lambda: "again", label="t") == "again"
    pool.close()


async def test_an_abandoned_call_gives_its_slot_to_those_who_wait_and_those_who_come(gate: threading.Event) -> None:
    pool, begun = ThreadPool(max_threads=1), threading.Event()
    stuck = start(pool, lambda: (begun.set(), gate.wait(WAIT)), "tool 'slow'")
    await until(begun.is_set)
    waiting = start(pool, lambda: "waited", "tool 'b'")
    await asyncio.sleep(0)
    stuck.cancel()
    async with asyncio.timeout(WAIT / 2):
        assert await waiting == "waited"
        assert await pool.run(lambda: "came", label="tool 'slow'") == "came"
    assert pool.stuck == 1
    gate.set()
    await check_is_whole(pool, 1)
    pool.close()


async def test_a_label_whose_share_is_stuck_is_refused_and_no_other(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=4, share=2)
    running = [start(pool, lambda: gate.wait(WAIT), "tool a") for _ in range(2)]
    waiting, other = start(pool, lambda: "late", "tool a"), start(pool, lambda: "other", "tool b")
    assert await other == "other"
    for task in running:
        task.cancel()
    with pytest.raises(ToolBusy, match="The tool a is busy: 2 of its earlier calls were given up"):
        await waiting
    with pytest.raises(ToolBusy):
        await pool.run(lambda: None, label="tool a")
    assert await pool.run(lambda: "other", label="tool b") == "other"
    gate.set()
    await check_is_whole(pool, 4)
    pool.close()


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
                wait_in_thread(self.work(), self.loop)
            except BaseException as error:
                self.outcomes.append(error)


async def test_a_thread_that_waits_for_the_loop_comes_back_when_its_call_ends(caplog: pytest.LogCaptureFixture) -> None:
    pool = ThreadPool(max_threads=1, max_stuck=1)
    for _ in range(3):
        waiter = Waiter()
        call = start(pool, waiter)
        await waiter.begun.wait()
        call.cancel()
        await asyncio.wait_for(waiter.ended.wait(), WAIT)
        await until(lambda: pool.stuck == 0)
        assert [type(error) for error in waiter.outcomes] == [CallEnded, CallEnded]
        assert call.cancelled()
    assert await pool.run(lambda: "fine", label="t") == "fine"
    assert caplog.records == []
    pool.close()


class Question:
    """Something that a thread waits for, until it is answered; called off slowly if it is cancelled."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def _wait(self) -> str:
        with thread_slot_lent():
            self.asked.set()
            try:
                await self.answered.wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0.002)
                raise
        return "answer"

    def __call__(self) -> str:
        return wait_in_thread(self._wait(), self._loop)


async def test_while_some_wait_for_an_answer_others_run_but_only_so_many_lend_their_slot() -> None:
    pool, questions = ThreadPool(max_threads=1, max_waiting=2), [Question() for _ in range(3)]
    asking = [start(pool, question) for question in questions]
    for question in questions[:2]:
        await question.asked.wait()
    await questions[2].asked.wait()
    waiting = start(pool, lambda: "another")
    await asyncio.sleep(0.02)
    assert not waiting.done()
    for question in questions:
        question.answered.set()
    assert await asyncio.gather(*asking, waiting) == ["answer", "answer", "answer", "another"]
    await check_is_whole(pool, 1)
    pool.close()


async def test_who_could_lend_no_slot_the_second_time_leaves_the_count_as_it_was(gate: threading.Event) -> None:
    pool, early, late = ThreadPool(max_threads=2, max_waiting=1), Question(), Question()
    between = threading.Event()
    twice = start(pool, lambda: (early(), between.set(), gate.wait(WAIT), late()))
    early.answered.set()
    await until(between.is_set)
    first, *others = (Question() for _ in range(3))
    asking = [start(pool, first)]
    await first.asked.wait()  # it has lent its slot, so no other one may
    gate.set()
    late.answered.set()
    await twice
    for question in others:
        asking.append(start(pool, question))
        await question.asked.wait()
    last = start(pool, lambda: others[0].answered.is_set())
    for _ in range(20):
        await asyncio.to_thread(int)  # time for a thread to start
    for question in (*others, first):
        question.answered.set()
    assert await last, "it ran when a slot was free"
    await asyncio.gather(*asking)
    await check_is_whole(pool, 2)
    pool.close()


# ── any order of events ──

ACTS: dict[str, Callable[[], object]] = {
    "short": lambda: "done",
    "long": lambda: time.sleep(0.001) or "done",  # type: ignore[func-returns-value]
    "fails": lambda: 1 // 0,
}
MOVES = [*ACTS, "ask", "answer", "cancel", "turn", "pause", "reopen"]


@given(st.integers(1, 4), st.lists(st.sampled_from(MOVES), max_size=40))
async def test_every_call_ends_and_no_thread_is_lost_or_made_up(max_threads: int, moves: list[str]) -> None:
    pool = ThreadPool(max_threads, max_stuck=1000)
    questions: list[Question] = []
    tasks: list[asyncio.Task[Any]] = []
    for move in moves:
        if move in ACTS:
            tasks.append(start(pool, ACTS[move]))
        elif move == "ask":
            questions.append(Question())
            tasks.append(start(pool, questions[-1]))
        elif move == "answer" and questions:
            questions[len(questions) // 2].answered.set()
        elif move == "cancel" and tasks:
            tasks[len(tasks) // 2].cancel()
        elif move == "reopen":
            pool.close()
            pool.open()
        await asyncio.sleep(0.002 if move == "pause" else 0)
    for question in questions:
        question.answered.set()
    expected = (str, ZeroDivisionError, asyncio.CancelledError, Busy)
    outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 2 * WAIT)
    assert all(isinstance(each, expected) for each in outcomes), outcomes
    await check_is_whole(pool, max_threads)
    pool.close()


async def test_short_functions_pass_blocked_ones_wherever_they_stand(gate: threading.Event) -> None:
    pool = ThreadPool(max_threads=9)
    tasks = [start(pool, (lambda: gate.wait(WAIT)) if n % 5 == 0 else (lambda n=n: n)) for n in range(40)]
    async with asyncio.timeout(WAIT / 2):
        assert await asyncio.gather(*(each for n, each in enumerate(tasks) if n % 5)) == [n for n in range(40) if n % 5]
    gate.set()
    await asyncio.gather(*tasks)
    pool.close()


# ── closing, idling, failing to start ──


async def test_closing_ends_idle_threads_refuses_those_who_wait_and_lets_the_running_finish(
    gate: threading.Event,
) -> None:
    pool, begun = ThreadPool(max_threads=2, name="closing", share=1), threading.Barrier(3)
    running = [start(pool, lambda: begun.wait(WAIT) >= 0 and gate.wait(WAIT), each) for each in "ab"]
    waiting = [start(pool, lambda: None, label) for label in ("tool 'x'", "a")]
    await asyncio.to_thread(begun.wait, WAIT)
    pool.close()
    for task in (*waiting, start(pool, lambda: None)):
        with pytest.raises(Busy, match="can't run: the server is shutting down"):
            await task
    gate.set()
    assert await asyncio.gather(*running) == [True, True]
    await until(lambda: not any(thread.name.startswith("closing") for thread in threading.enumerate()))


async def test_idle_threads_end_after_a_while_and_no_call_is_lost_just_then() -> None:
    pool = ThreadPool(max_threads=2, name="idling", idle=0.0005)
    for _ in range(150):
        assert await asyncio.wait_for(pool.run(lambda: 1, label="t"), WAIT) == 1
        await asyncio.sleep(0.0005)
    await until(lambda: not any(thread.name.startswith("idling") for thread in threading.enumerate()))
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


# ── loops and the exit ──


def test_a_loop_that_closes_before_its_thread_is_done_prints_nothing(
    capfd: pytest.CaptureFixture[str], gate: threading.Event
) -> None:
    pool = ThreadPool()
    asyncio.run(abandon(pool, lambda: gate.wait(WAIT)))
    gate.set()
    asyncio.run(until(lambda: not pool.stuck))
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
