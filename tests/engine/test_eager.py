"""Tasks that begin at once: whatever a coroutine does, it can't tell that its first step was made elsewhere."""

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from dovetail.engine.eager import EagerTasks

number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)


class Stage:
    """Begins coroutines from outside of any task, as a loop's callback does."""

    def __init__(self) -> None:
        self.tasks = EagerTasks()
        self.said: list[Any] = []

    async def say(self, word: Any) -> None:
        self.said.append(word)

    def begin(self, *work: Coroutine[Any, Any, None]) -> None:
        """On the next turn, all in one callback; then it is noted that they have had their first step."""
        asyncio.get_running_loop().call_soon(self._begin, work)

    async def goes_on(self) -> None:
        """Whatever has happened, the next one is served."""
        self.said.clear()
        self.begin(self.say("next"))
        await settle()
        assert sorted(self.said) == ["begun", "next"]

    def _begin(self, work: tuple[Coroutine[Any, Any, None], ...]) -> None:
        for each in work:
            self.tasks.begin(each, contextvars.copy_context())
        self.said.append("begun")


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    before = asyncio.all_tasks()
    stage = Stage()
    stage.begin(stage.say("warm"))
    await settle()
    stage.said.clear()
    yield stage
    stage.tasks.close()
    await settle()
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


async def test_what_does_not_wait_is_over_at_once_and_in_order(stage: Stage) -> None:
    stage.begin(*(stage.say(each) for each in range(5)))
    await asyncio.sleep(0)
    assert stage.said == [0, 1, 2, 3, 4, "begun"]


async def test_a_task_is_there_and_stays_the_same(stage: Stage) -> None:
    async def work() -> None:
        first = asyncio.current_task()
        assert first is not None
        assert first in asyncio.all_tasks()
        await asyncio.sleep(0)
        assert asyncio.current_task() is first
        stage.said.append(first)

    stage.begin(work(), work(), work())
    await settle()
    assert stage.said[0] == "begun"
    assert len(set(stage.said)) == 4, "each of those that wait has a task of its own"


async def test_context_variables_stay_with_their_work(stage: Stage) -> None:
    async def work(mine: int) -> None:
        assert number.get() == 7
        number.set(mine)
        if mine % 2:
            await asyncio.sleep(0)
        stage.said.append(number.get() == mine)

    number.set(7)
    stage.begin(*(work(each) for each in range(6)))
    await settle()
    assert sorted(map(str, stage.said)) == [*["True"] * 6, "begun"]
    assert number.get() == 7


async def test_the_tools_of_asyncio_work(stage: Stage) -> None:
    async def late() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(5)
        except TimeoutError:
            stage.said.append("late")

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stage.say("one"))
            tasks.create_task(stage.say("two"))
        stage.said.append("both")

    async def in_time() -> None:
        async with asyncio.timeout(5):
            await stage.say("in time")

    stage.begin(in_time(), late(), group(), in_time())
    await asyncio.sleep(0.05)
    assert sorted(stage.said) == sorted(["in time", "in time", "begun", "one", "two", "both", "late"])


async def nothing() -> None:
    await asyncio.sleep(0)


async def some_time() -> None:
    await asyncio.sleep(5)


async def something_done() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future


async def another_task() -> None:
    inner = asyncio.create_task(some_time())
    try:
        await inner
    finally:
        assert inner.cancelled(), "who waits for it passes the cancellation on"


WAITS = pytest.mark.parametrize("wait", [nothing, some_time, something_done, another_task])


@WAITS
@pytest.mark.parametrize("turns", [0, 1])
async def test_a_cancellation_hits_only_the_one(stage: Stage, wait: Callable[[], Awaitable[None]], turns: int) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def work(name: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await (wait() if name == "hit" else nothing())
        except asyncio.CancelledError as cancelled:
            stage.said.append((name, *cancelled.args, task.cancelling()))
            raise
        stage.said.append(name)

    stage.begin(work("hit"), work("other"))
    await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    hit = tasks[0]
    is_cancelled = hit.cancel("enough")
    await settle()
    assert stage.said.count("other") == 1
    assert stage.said.count(("hit", "enough", 1)) == is_cancelled
    assert stage.said.count("hit") == (not is_cancelled)
    assert hit.cancelled() is is_cancelled
    await stage.goes_on()


@WAITS
async def test_who_cancels_himself(stage: Stage, wait: Callable[[], Awaitable[None]]) -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await wait()
        except asyncio.CancelledError:
            task.uncancel()
            await asyncio.sleep(0)
            stage.said.append("goes on")

    stage.begin(work(), stage.say("other"))
    await settle()
    assert sorted(stage.said) == ["begun", "goes on", "other"]


async def test_who_cancels_himself_and_ends(stage: Stage) -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def waits() -> None:
        await asyncio.sleep(0.01)
        stage.said.append("not hit")

    stage.begin(work(), waits(), stage.say("nor this"))
    await asyncio.sleep(0.05)
    assert sorted(stage.said) == ["begun", "nor this", "not hit"]


async def test_inside_of_a_task(stage: Stage) -> None:
    stage.tasks.begin(stage.say("inner"), contextvars.copy_context())
    assert asyncio.current_task() is not None
    await settle()
    assert stage.said == ["inner"]


@pytest.mark.parametrize("failure", [ValueError, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("waits", [False, True])
async def test_who_fails_is_reported_and_hits_nobody_else(
    stage: Stage, failure: type[BaseException], waits: bool
) -> None:
    reported: list[type[BaseException]] = []

    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise failure

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(type(context["exception"])))
    stage.begin(work(), stage.say("other"))
    await settle()
    gc.collect()  # a task tells only when it goes that nobody has asked for its failure
    loop.set_exception_handler(None)
    assert sorted(stage.said) == ["begun", "other"]
    assert reported == ([] if failure is asyncio.CancelledError else [failure])
    await stage.goes_on()
