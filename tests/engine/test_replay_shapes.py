"""Functions of every shape ask: what is asked together travels together, and no run counts that lacks an answer."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from dovetail import Context, Server, ToolError
from dovetail.engine import input_required
from replaying import asking_client, messages, play

LETTERS = {"A?": "a", "B?": "b", "C?": "c"}
Shape = Callable[[Context], Awaitable[str]]
SHAPES: list[Any] = []


def shape(*rounds: str, text: str) -> Callable[[Any], Any]:
    """A function, what it asks in each round, and what it returns when `A?` is answered by a, and so on."""

    def add(function: Any) -> Any:
        asked = [[f"{letter}?" for letter in letters] for letters in rounds]
        SHAPES.append(pytest.param(function, asked, text, id=function.__name__))
        return function

    return add


async def letter(ctx: Context, name: str) -> str:
    return str((await ctx.elicit(f"{name}?", str)).data)


def letter_in_thread(ctx: Context, name: str) -> str:
    return str(ctx.wait(ctx.elicit(f"{name}?", str)).data)


# ── one after the other, and beside each other ──


@shape("A", "B", "C", text="a b c")
async def in_sequence(ctx: Context) -> str:
    return f"{await letter(ctx, 'A')} {await letter(ctx, 'B')} {await letter(ctx, 'C')}"


@shape("A", "B", text="b")
async def by_branch(ctx: Context) -> str:
    return await letter(ctx, "B" if await letter(ctx, "A") == "a" else "C")


@shape("A", "A", "A", text="aaa")
async def in_a_loop(ctx: Context) -> str:
    return "".join([await letter(ctx, "A") for _ in range(3)])


@shape("ABC", text="a b c")
async def by_gather(ctx: Context) -> str:
    return " ".join(await asyncio.gather(*(letter(ctx, name) for name in "ABC")))


@shape("ABC", text="a b c")
async def by_task_group(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(letter(ctx, name)) for name in "ABC"]
    return " ".join(task.result() for task in tasks)


@shape("ABC", text="a b c")
async def by_anyio_task_group(ctx: Context) -> str:
    found: dict[str, str] = {}

    async def find(name: str) -> None:
        found[name] = await letter(ctx, name)

    async with anyio.create_task_group() as group:
        for name in "ABC":
            group.start_soon(find, name)
    return " ".join(found[name] for name in "ABC")


@shape("ABC", text="a b c")
async def nested_groups(ctx: Context) -> str:
    async def two() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(letter(ctx, name)) for name in "BC"]
        return [task.result() for task in tasks]

    first, others = await asyncio.gather(letter(ctx, "A"), two())
    return " ".join([first, *others])


@shape("AB", "C", text="a b c")
async def gather_of_sequences(ctx: Context) -> str:
    async def two() -> list[str]:
        return [await letter(ctx, "B"), await letter(ctx, "C")]

    first, others = await asyncio.gather(letter(ctx, "A"), two())
    return " ".join([first, *others])


@shape("AB", text="a b")
async def one_has_to_go_deeper(ctx: Context) -> str:
    async def deep() -> str:
        return await asyncio.wait_for(asyncio.create_task(letter(ctx, "B")), 5)

    return " ".join(await asyncio.gather(letter(ctx, "A"), deep()))


@shape("A", "B", text="a b")
async def one_comes_late(ctx: Context) -> str:
    async def late() -> str:
        await asyncio.sleep(0.01)
        return await letter(ctx, "B")

    return " ".join(await asyncio.gather(letter(ctx, "A"), late()))


@shape("AB", text="a b")
async def by_wait(ctx: Context) -> str:
    tasks = [asyncio.create_task(letter(ctx, name)) for name in "AB"]
    await asyncio.wait(tasks)
    return " ".join(task.result() for task in tasks)


@shape("AB", text="a b")
async def as_completed(ctx: Context) -> str:
    return " ".join(sorted([await each for each in asyncio.as_completed([letter(ctx, name) for name in "AB"])]))


@shape("A", text="a")
async def by_wait_for(ctx: Context) -> str:
    return await asyncio.wait_for(letter(ctx, "A"), 5)


@shape("A", text="a")
async def by_timeout(ctx: Context) -> str:
    async with asyncio.timeout(5):
        return await letter(ctx, "A")


@shape("A", text="a")
async def by_a_timeout_that_is_over(ctx: Context) -> str:
    try:
        async with asyncio.timeout(0):
            return await letter(ctx, "A")
    except TimeoutError:
        return await letter(ctx, "B")


@shape("A", text="a")
async def behind_a_shield(ctx: Context) -> str:
    return await asyncio.shield(letter(ctx, "A"))


@shape("A", "B", text="a b")
async def by_generator(ctx: Context) -> str:
    async def letters() -> AsyncIterator[str]:
        for name in "AB":
            yield await letter(ctx, name)

    async with contextlib.aclosing(letters()) as found:
        return " ".join([each async for each in found])


# ── whatever they do with what a question raises ──


@shape("A", text="a")
async def bare_except(ctx: Context) -> str:
    try:
        return await letter(ctx, "A")
    except:  # noqa: E722
        return "wrong"


@shape("A", text="a")
async def asks_something_else_instead(ctx: Context) -> str:
    try:
        return await letter(ctx, "A")
    except BaseException:
        return await letter(ctx, "B")


@shape("A", text="a")
async def says_that_it_failed(ctx: Context) -> str:
    try:
        return await letter(ctx, "A")
    except BaseException:
        raise ToolError("wrong") from None


@shape("A", text="a")
async def exits(ctx: Context) -> str:
    try:
        return await letter(ctx, "A")
    except BaseException:
        raise SystemExit(1) from None


@shape("A", text="a")
async def cancels_itself(ctx: Context) -> str:
    try:
        return await letter(ctx, "A")
    except BaseException:
        raise asyncio.CancelledError from None


@shape("A", "B", text="a b")
async def suppresses_everything(ctx: Context) -> str:
    found = []
    for name in "AB":
        with contextlib.suppress(BaseException):
            found.append(await letter(ctx, name))
    return " ".join(found)


@shape("A", text="a")
async def tries_again_and_again(ctx: Context) -> str:
    for _ in range(1000):
        with contextlib.suppress(BaseException):
            return await letter(ctx, "A")
    return "wrong"


@shape("AB", "C", text="a b c")
async def gather_that_returns_exceptions(ctx: Context) -> str:
    found = await asyncio.gather(letter(ctx, "A"), letter(ctx, "B"), return_exceptions=True)
    return f"{found[0]} {found[1]} {await letter(ctx, 'C')}"


@shape("A", text="a")
async def group_that_is_caught(ctx: Context) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(letter(ctx, "A"))
    except BaseExceptionGroup:
        return "wrong"
    return task.result()


@shape("A", "B", text="a")
async def asks_at_the_end_too(ctx: Context) -> str:
    try:
        return await letter(ctx, "A")
    finally:
        await letter(ctx, "B")


@shape("A", "B", text="a b")
async def in_a_context_manager(ctx: Context) -> str:
    @contextlib.asynccontextmanager
    async def frame() -> AsyncIterator[str]:
        first = await letter(ctx, "A")
        try:
            yield first
        except BaseException:
            await letter(ctx, "C")

    async with frame() as first:
        return f"{first} {await letter(ctx, 'B')}"
    return "wrong"


@shape("A", text="done")
async def leaves_a_task_behind(ctx: Context) -> str:
    task = asyncio.create_task(letter(ctx, "A"))
    task.add_done_callback(lambda task: task.exception())
    await asyncio.sleep(0)
    return "done"


# ── threads ──


@shape("A", "B", text="a b")
def def_function(ctx: Context) -> str:
    return f"{letter_in_thread(ctx, 'A')} {letter_in_thread(ctx, 'B')}"


@shape("A", text="a")
def def_function_with_bare_except(ctx: Context) -> str:
    try:
        return letter_in_thread(ctx, "A")
    except:  # noqa: E722
        return letter_in_thread(ctx, "B")


@shape("AB", text="a b")
def def_function_that_gathers(ctx: Context) -> str:
    async def both() -> list[str]:
        return await asyncio.gather(letter(ctx, "A"), letter(ctx, "B"))

    return " ".join(ctx.wait(both()))


@shape("ABC", text="a b c")
def threads_of_its_own(ctx: Context) -> str:
    with ThreadPoolExecutor(3) as pool:
        return " ".join(pool.map(lambda name: letter_in_thread(ctx, name), "ABC"))


@shape("AB", text="a b")
async def threads_of_asyncio(ctx: Context) -> str:
    return " ".join(await asyncio.gather(*(asyncio.to_thread(letter_in_thread, ctx, name) for name in "AB")))


@pytest.mark.rule("MRTR-1", "MRTR-3", "MRTR-8")
@pytest.mark.parametrize(("function", "rounds", "text"), SHAPES)
async def test_every_shape(function: Shape, rounds: list[list[str]], text: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(input_required, "MOMENT", 0.2)  # two busy cores start threads slowly
    server = Server("shapes")
    server.add_tool(function, name="shape")
    async with asking_client(server) as client:
        played = await play(client, "shape", LETTERS)
        assert (played.rounds, played.text, played.failed) == (rounds, text, False)


# ── the same, with steps ──


def stepping(server: Server) -> list[str]:
    """Tools whose steps are told in the list that is returned."""
    steps: list[str] = []

    async def step(ctx: Context, name: str) -> None:
        await ctx.step(name, lambda: steps.append(name))

    @server.tool
    async def rolls_back(ctx: Context) -> str:
        try:
            return await letter(ctx, "A")
        except BaseException:
            await step(ctx, "roll back")
            raise

    @server.tool
    async def cleans_up(ctx: Context) -> str:
        try:
            return await letter(ctx, "A")
        finally:
            await step(ctx, "clean up")

    @server.tool
    async def beside(ctx: Context) -> str:
        found = await asyncio.gather(letter(ctx, "A"), step(ctx, "beside"), return_exceptions=True)
        await step(ctx, "afterwards")
        return str(found[0])

    return steps


@pytest.mark.parametrize(
    ("tool", "expected"),
    [("rolls_back", []), ("cleans_up", ["clean up"]), ("beside", ["beside", "afterwards"])],
)
async def test_a_run_without_its_answer_takes_no_more_steps(tool: str, expected: list[str]) -> None:
    server = Server("steps")
    steps = stepping(server)
    async with asking_client(server) as client:
        assert (await play(client, tool, LETTERS)).text == "a"
    assert steps == expected


async def test_an_endless_loop_that_catches_everything_does_not_freeze_us(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(input_required, "MANY", 100)
    tries = 0
    server = Server("loops")

    @server.tool
    async def stubborn(ctx: Context) -> str:
        nonlocal tries
        while tries < 101:
            tries += 1
            with contextlib.suppress(BaseException):
                return await letter(ctx, "A")
        return "wrong"

    async with asking_client(server) as client:
        call = asyncio.create_task(client.request("tools/call", {"name": "stubborn"}))
        turns = 0
        while not call.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100
        assert messages(call.result()) == ["A?"]
    assert "The tool stubborn catches what its questions raise" in caplog.text


async def test_more_questions_than_one_round_holds_are_asked_in_the_next() -> None:
    server = Server("many")

    @server.tool
    async def many(ctx: Context) -> int:
        found = await asyncio.gather(*(ctx.elicit(f"{n}?", int) for n in range(150)))
        return sum(each.data or 0 for each in found)

    async with asking_client(server) as client:
        played = await play(client, "many", lambda message: int(message[:-1]))
        assert [len(each) for each in played.rounds] == [100, 50]
        assert played.text == str(sum(range(150)))


async def test_the_same_question_in_parallel_gets_an_answer_for_each() -> None:
    server = Server("twins")

    @server.tool
    async def twins(ctx: Context) -> list[str]:
        return list(await asyncio.gather(letter(ctx, "A"), letter(ctx, "A")))

    numbers = itertools.count()
    async with asking_client(server) as client:
        played = await play(client, "twins", lambda _: f"a{next(numbers)}")
        assert played.rounds == [["A?", "A?"]]
        assert sorted(played.result["structuredContent"]) == ["a0", "a1"]
