"""Replay: requests that are made together travel in one round, and several runs give what one run gives."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dovetail import Client, Context, Server
from http_serving import until
from server_requests import accept, asking_client, is_input_required, messages, play

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


@shape("A", "A", "A", text="aaa")
async def in_a_loop(ctx: Context) -> str:
    return "".join([await letter(ctx, "A") for _ in range(3)])


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


@shape("A", text="a")
async def by_a_timeout_that_is_over(ctx: Context) -> str:
    try:
        async with asyncio.timeout(0):
            return await letter(ctx, "A")
    except TimeoutError:
        return await letter(ctx, "B")


@shape("A", text="a")
async def tries_again_and_again(ctx: Context) -> str:
    for _ in range(1000):
        with contextlib.suppress(BaseException):
            return await letter(ctx, "A")
    return "wrong"


@shape("A", text="done")
async def leaves_a_task_behind(ctx: Context) -> str:
    task = asyncio.create_task(letter(ctx, "A"))
    task.add_done_callback(lambda task: task.exception())
    await asyncio.sleep(0)
    return "done"


@pytest.mark.rule("MRTR-1", "MRTR-3", "MRTR-8")
@pytest.mark.parametrize(("function", "rounds", "text"), SHAPES)
async def test_every_shape(function: Shape, rounds: list[list[str]], text: str) -> None:
    server = Server("shapes")
    server.add_tool(function, name="shape")
    async with asking_client(server) as client:
        played = await play(client, "shape", LETTERS)
        assert (played.rounds, played.text, played.failed) == (rounds, text, False)


async def test_an_endless_loop_that_catches_everything_does_not_freeze_us() -> None:
    tries, served = 0, False
    server = Server("loops")

    @server.tool
    async def stubborn(ctx: Context) -> str:
        nonlocal tries
        while not served:
            tries += 1
            with contextlib.suppress(BaseException):
                return await letter(ctx, "A")
        return "wrong"

    async with asking_client(server) as client:
        call = asyncio.create_task(client.request("tools/call", {"name": "stubborn"}))
        await until(lambda: tries > 20)
        await client.request("tools/list", {})
        served = True
        assert messages(await call) == ["A?"]


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


# ── programs ──


@dataclass
class Node:
    """One statement. Its name is its place in the program, so no two of them ask the same question."""

    kind: str
    parts: list["Node"] = field(default_factory=list)
    number: int = 0
    name: str = ""


def leaf(kind: str) -> st.SearchStrategy[Node]:
    return st.builds(Node, st.just(kind), number=st.integers(0, 4))


def around(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    kinds = ("sequence", "gather", "gather_exceptions", "group", "branch", "loop", "catch", "ends", "timed")
    return st.builds(Node, st.sampled_from(kinds), st.lists(parts, min_size=1, max_size=3))


LEAVES = ("ask", "ask", "step", "pause", "ask_with_step", "ask_in_thread")
PROGRAMS = st.recursive(st.one_of(*map(leaf, LEAVES)), around, max_leaves=10)


def named(node: Node, name: str = "p") -> Node:
    node.name = name
    for number, part in enumerate(node.parts):
        named(part, f"{name}.{number}")
    return node


class Run:
    """Runs a program with anything that can ask and take steps, and counts what its steps do."""

    def __init__(self, ctx: Any, effects: Counter[str]) -> None:
        self.ctx = ctx
        self.effects = effects

    async def run(self, node: Node) -> Any:
        return await getattr(self, node.kind)(node)

    async def ask(self, node: Node) -> Any:
        return (await self.ctx.elicit(f"{node.name}?", int)).data

    async def step(self, node: Node) -> Any:
        async def effect() -> list[str]:
            if node.number:
                await asyncio.sleep(0)
            self.effects[node.name] += 1
            return [node.name]

        return await self.ctx.step(node.name, effect)

    async def pause(self, node: Node) -> Any:
        await asyncio.sleep(0.001 if node.number == 4 else 0)

    async def ask_with_step(self, node: Node) -> Any:
        """What a step gave stands in the question."""
        number = await self.ctx.step(f"{node.name}.number", self.effects.total)
        return (await self.ctx.elicit(f"{node.name} {type(number).__name__}?", int)).data

    async def ask_in_thread(self, node: Node) -> Any:
        ask = self.ctx.elicit
        return (await asyncio.to_thread(lambda: self.ctx.wait(ask(f"{node.name}, in a thread?", int)))).data

    async def timed(self, node: Node) -> Any:
        async with asyncio.timeout(60):
            return [await asyncio.wait_for(self.run(part), 60) for part in node.parts]

    async def sequence(self, node: Node) -> Any:
        return [await self.run(part) for part in node.parts]

    async def gather(self, node: Node) -> Any:
        return list(await asyncio.gather(*map(self.run, node.parts)))

    async def gather_exceptions(self, node: Node) -> Any:
        found = await asyncio.gather(*map(self.run, node.parts), return_exceptions=True)
        return [*map(str, found), await self.run(Node("ask", name=f"{node.name}.after"))]

    async def group(self, node: Node) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.run(part)) for part in node.parts]
        return [task.result() for task in tasks]

    async def branch(self, node: Node) -> Any:
        answer = await self.ask(node)
        return [answer, await self.run(node.parts[answer % len(node.parts)])]

    async def loop(self, node: Node) -> Any:
        return [await self.sequence(node) for _ in range(await self.ask(node) % 3)]

    async def catch(self, node: Node) -> Any:
        try:
            return await self.sequence(node)
        except BaseException:
            await self.run(Node("step", name=f"{node.name}.wrong"))
            return await self.run(Node("ask", name=f"{node.name}.wrong"))

    async def ends(self, node: Node) -> Any:
        try:
            return await self.run(node.parts[0])
        finally:
            with contextlib.suppress(Exception):
                await self.sequence(Node("sequence", node.parts[1:]))


def answer(message: str, occurrence: int) -> int:
    """The same for the same question, but something else when it is asked once more."""
    return sum(message.encode()) * 7 + occurrence * 3


class Straight:
    """Answers at once: the run in one piece."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()

    def wait(self, question: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(question, self._loop).result()

    async def elicit(self, message: str, kind: type) -> Any:
        self.asked[message] += 1
        await asyncio.sleep(0)
        return type("Answer", (), {"data": answer(message, self.asked[message])})

    async def step(self, name: str, function: Callable[[], Any]) -> Any:
        result = function()
        return await result if isinstance(result, Awaitable) else result


def in_one_piece(program: Node) -> tuple[Any, Counter[str], int]:
    """The result, what the steps did, and how many questions there were."""

    async def run() -> tuple[Any, Counter[str], int]:
        straight, effects = Straight(), Counter[str]()
        result = await Run(straight, effects).run(program)
        return result, effects, straight.asked.total()

    return asyncio.run(run())


def serving(program: Node, effects: Counter[str]) -> Server:
    server = Server("programs")

    @server.tool
    async def run(ctx: Context) -> dict[str, Any]:
        return {"result": await Run(ctx, effects).run(program)}

    return server


# ── clients ──


@dataclass
class Habits:
    """How a client makes a request again: how often, at once or one after the other, and with which answers."""

    times: int
    at_once: bool
    follows: int  # whose state it goes on with
    forgets: int  # an answer out of so many; 0 for none


HABITS = st.builds(Habits, st.integers(1, 3), st.booleans(), st.integers(0, 2), st.sampled_from([0, 0, 2, 3]))


def answers_to(result: dict[str, Any], habits: Habits) -> dict[str, Any]:
    requests = result["inputRequests"]
    kept = list(requests)[:: habits.forgets or 1]  # always the first, so that it goes on
    return {key: accept(answer(requests[key]["params"]["message"], int(key.rpartition("-")[2]))) for key in kept}


async def by_replay(server: Server, habits: Iterator[Habits]) -> Any:
    async with asking_client(server) as client:
        result = await client.request("tools/call", {"name": "run"})
        while is_input_required(result):
            habit = next(habits)
            again = {"inputResponses": answers_to(result, habit), "requestState": result["requestState"]}
            calls = [client.request("tools/call", {"name": "run", **again}) for _ in range(habit.times)]
            results = await asyncio.gather(*calls) if habit.at_once else [await each for each in calls]
            result = results[habit.follows % len(results)]
        return result


SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@pytest.mark.long
@pytest.mark.rule("MRTR-12", "MRTR-16")
@pytest.mark.parametrize("examples", [100, pytest.param(2000, marks=pytest.mark.soak)])
def test_replay_gives_what_a_run_in_one_piece_gives(examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=SLOW)
    @given(PROGRAMS.map(named), st.lists(HABITS, min_size=1, max_size=4))
    def check(program: Node, habits: list[Habits]) -> None:
        expected, expected_effects, questions = in_one_piece(program)
        assume(0 < questions <= 20)
        effects: Counter[str] = Counter()
        result = asyncio.run(by_replay(serving(program, effects), itertools.cycle(habits)))
        assert not result["isError"], result
        assert result["structuredContent"] == {"result": expected}
        assert effects == expected_effects

    check()


@settings(max_examples=25, suppress_health_check=SLOW)
@given(PROGRAMS.map(named))
def test_a_client_of_2025_11_25_gets_the_same(program: Node) -> None:
    expected, expected_effects, questions = in_one_piece(program)
    assume(0 < questions <= 20)
    effects: Counter[str] = Counter()
    assert asyncio.run(_live(serving(program, effects))) == {"result": expected}
    assert effects == expected_effects


async def _live(server: Server) -> Any:
    asked: Counter[str] = Counter()

    def fill_in(question: Any) -> dict[str, Any]:
        asked[question.message] += 1
        return {"value": answer(question.message, asked[question.message])}

    async with Client(server, protocol_version="2025-11-25", elicitation_handler=fill_in) as client:
        return (await client.call_tool("run")).data
