"""Timeouts of calls, also under cancellation."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dovetail.engine.limits import CallTimeout, with_timeout


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def answer(after: float | None = None) -> str:
    if after is not None:
        await asyncio.sleep(after)
    return "answer"


async def timed(work: Coroutine[Any, Any, str], seconds: float) -> str:
    return await with_timeout(work, seconds)


async def test_work_that_never_waits_needs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_timer(*_: object) -> None:
        raise AssertionError("a timer was set")

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", no_timer)
    assert await with_timeout(answer(), 10) == "answer"


@pytest.mark.parametrize("after", [0, 0.005])
async def test_work_in_time_returns_its_result(after: float) -> None:
    assert await with_timeout(answer(after), 10) == "answer"


async def test_work_that_takes_too_long_is_cancelled() -> None:
    stopped = False

    async def slow() -> None:
        nonlocal stopped
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)  # cleaning up may wait
            stopped = True

    with pytest.raises(CallTimeout, match=r"Timed out after 0\.01 s") as caught:
        await with_timeout(slow(), 0.01)
    assert stopped
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.seconds == 0.01
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0.01)  # the task goes on as if nothing had happened


@pytest.mark.parametrize("kind", [TimeoutError, ValueError, StopAsyncIteration])
@pytest.mark.parametrize("waits", [True, False])
async def test_exceptions_of_the_work_pass_through(kind: type[Exception], waits: bool) -> None:
    async def fail() -> None:
        if waits:
            await asyncio.sleep(0)
        raise kind("its own")

    with pytest.raises(kind, match="its own") as caught:
        await with_timeout(fail(), 10)
    assert not isinstance(caught.value, CallTimeout)


async def test_a_cancellation_from_outside_stays_one() -> None:
    task = asyncio.create_task(timed(answer(60), 30))
    await turns()
    task.cancel("outside")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancellation_from_outside_wins_over_an_expiry_in_the_same_turn() -> None:
    async def stubborn() -> str:
        try:
            return await answer(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)  # the expiry arrives while the work cleans up after the outer cancellation
            raise

    task = asyncio.create_task(timed(stubborn(), 0.01))
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_that_swallows_the_expiry_returns_its_result() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "anyway"
        return "never"

    assert await with_timeout(stubborn(), 0.01) == "anyway"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize(("outer", "inner", "winner"), [(0.01, 5, 0.01), (5, 0.01, 0.01)])
async def test_timeouts_nest(outer: float, inner: float, winner: float) -> None:
    with pytest.raises(CallTimeout) as caught:
        await with_timeout(timed(answer(60), inner), outer)
    assert caught.value.seconds == winner


async def test_agrees_with_asyncio_timeout_around_it() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            await with_timeout(answer(60), 5)
    assert not isinstance(caught.value, CallTimeout)


async def test_works_inside_a_task_group() -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(timed(answer(0.001), 5))
    assert task.result() == "answer"


def test_closing_the_call_closes_the_work() -> None:
    closed = False

    async def work() -> str:
        nonlocal closed
        try:
            return await answer(60)
        finally:
            closed = True

    async def main() -> None:
        call = timed(work(), 5)
        call.send(None)
        call.close()

    asyncio.run(main())
    assert closed
