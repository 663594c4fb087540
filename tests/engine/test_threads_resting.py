"""Threads that wait for somebody outside: their places are free for others, and no place is lost or made up."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engine import threads
from dovetail.engine.threads import CallEnded, ThreadPool, resting, wait_in_thread


class Question:
    """Something that a thread waits for, until it is answered; called off slowly if it is cancelled."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def _wait(self) -> str:
        with resting():
            self.asked.set()
            try:
                await self.answered.wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0.002)
                raise
        return "answer"

    def __call__(self) -> str:
        return wait_in_thread(lambda: asyncio.run_coroutine_threadsafe(self._wait(), self._loop))


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # threads tell nobody
            await asyncio.sleep(0.001)


def places(pool: ThreadPool) -> tuple[int, int]:
    """Places that are taken without an idle thread in them, and threads that rest."""
    return pool._threads - len(pool._idle), pool._resting


async def test_while_one_waits_for_an_answer_another_runs() -> None:
    pool, question = ThreadPool(max_threads=1), Question()
    asking = asyncio.create_task(pool.run(question, label="asks"))
    await question.asked.wait()
    async with asyncio.timeout(5):
        assert await pool.run(lambda: "other", label="other") == "other"
    question.answered.set()
    assert await asking == "answer"
    await settled(lambda: places(pool) == (0, 0))
    pool.close()


async def test_one_that_waits_already_gets_the_place() -> None:
    pool, question = ThreadPool(max_threads=1), Question()
    gate = threading.Event()

    def hold_then_ask() -> str:
        gate.wait(5)
        return question()

    asking = asyncio.create_task(pool.run(hold_then_ask, label="asks"))
    await asyncio.sleep(0)
    other = asyncio.create_task(pool.run(lambda: "other", label="other"))
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(5):
        assert await other == "other"
    question.answered.set()
    assert await asking == "answer"
    pool.close()


async def test_calls_that_are_cancelled_while_they_ask_lose_no_place() -> None:
    pool = ThreadPool(max_threads=2)
    for _ in range(10):
        question = Question()
        asking = asyncio.create_task(pool.run(question, label="asks"))
        await question.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
    await settled(lambda: places(pool) == (0, 0) and pool.stuck == 0)
    async with asyncio.timeout(5):
        assert await asyncio.gather(*(pool.run(lambda: 1, label="after") for _ in range(4))) == [1, 1, 1, 1]
    pool.close()


async def test_only_so_many_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_RESTING", 1)
    pool, questions = ThreadPool(max_threads=1), [Question(), Question()]
    asking = [asyncio.create_task(pool.run(question, label="asks")) for question in questions]
    await questions[1].asked.wait()
    waiting = asyncio.create_task(pool.run(lambda: "other", label="other"))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    for question in questions:
        question.answered.set()
    assert await asyncio.gather(*asking, waiting) == ["answer", "answer", "other"]
    await settled(lambda: places(pool) == (0, 0))
    pool.close()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from(["ask", "answer", "cancel", "work", "turn"]), max_size=25))
def test_no_place_is_lost_or_made_up(moves: list[str]) -> None:
    async def play() -> None:
        pool = ThreadPool(max_threads=2)
        open_questions: list[tuple[Question, asyncio.Task[str]]] = []
        tasks: list[asyncio.Task[str]] = []
        for move in moves:
            if move == "ask":
                question = Question()
                task = asyncio.create_task(pool.run(question, label="asks"))
                open_questions.append((question, task))
                tasks.append(task)
            elif move == "work":
                tasks.append(asyncio.create_task(pool.run(lambda: "work", label="works")))
            elif open_questions and move == "answer":
                open_questions.pop(0)[0].answered.set()
            elif open_questions and move == "cancel":
                open_questions.pop()[1].cancel()
            await asyncio.sleep(0.002 if move == "turn" else 0)
        for question, _ in open_questions:
            question.answered.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, (str, asyncio.CancelledError, CallEnded)) for each in outcomes), outcomes
        await settled(lambda: places(pool) == (0, 0) and not pool.stuck)
        assert await asyncio.gather(*(pool.run(lambda: 1, label="after") for _ in range(3))) == [1, 1, 1]
        pool.close()

    asyncio.run(play())
