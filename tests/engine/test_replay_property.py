"""Little programs that ask: run by replay, in whatever pieces, they give what one run in one piece gives."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dovetail import Client, Context, Server
from replaying import accepted, asking_client, is_interim

MOST_QUESTIONS = 20


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
    kinds = ("sequence", "gather", "gather_exceptions", "group", "branch", "loop", "catch", "finally", "timed")
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
        number = await self.ctx.step(f"{node.name}.number", lambda: _awaited(self.effects.total()))
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

    async def finally_(self, node: Node) -> Any:
        try:
            return await self.run(node.parts[0])
        finally:
            with contextlib.suppress(Exception):
                await self.sequence(Node("sequence", node.parts[1:]))


setattr(Run, "finally", Run.finally_)


async def _awaited(value: Any) -> Any:
    return value


# ── answers ──


def answer(message: str, occurrence: int) -> int:
    """Whoever is asked says the same to the same question, but something else if it is asked once more."""
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
        return await function()


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


def answers_to(interim: dict[str, Any], habits: Habits) -> dict[str, Any]:
    requests = interim["inputRequests"]
    kept = [
        key for number, key in enumerate(requests) if not habits.forgets or number % habits.forgets == 0
    ]  # always the first, so that it goes on
    return {key: accepted(answer(requests[key]["params"]["message"], int(key.rpartition("-")[2]))) for key in kept}


async def by_replay(server: Server, habits: Iterator[Habits]) -> Any:
    async with asking_client(server) as client:
        result = await client.request("tools/call", {"name": "run"})
        while is_interim(result):
            habit = next(habits)
            again = {"inputResponses": answers_to(result, habit), "requestState": result["requestState"]}
            result = await made_again(client, {"name": "run", **again}, habit)
        return result


async def made_again(client: Client, params: dict[str, Any], habit: Habits) -> dict[str, Any]:
    if habit.at_once:
        results = await asyncio.gather(*(client.request("tools/call", params) for _ in range(habit.times)))
    else:
        results = [await client.request("tools/call", params) for _ in range(habit.times)]
    return results[habit.follows % len(results)]


def cycled(habits: list[Habits]) -> Iterator[Habits]:
    while True:
        yield from habits


def check_replay(program: Node, habits: list[Habits]) -> None:
    expected, expected_effects, questions = in_one_piece(program)
    assume(0 < questions <= MOST_QUESTIONS)
    effects: Counter[str] = Counter()
    result = asyncio.run(by_replay(serving(program, effects), cycled(habits)))
    assert not result["isError"], result
    assert result["structuredContent"] == {"result": expected}
    assert effects == expected_effects


SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@settings(max_examples=60, suppress_health_check=SLOW)
@given(PROGRAMS.map(named), st.lists(HABITS, min_size=1, max_size=4))
def test_replay_gives_what_a_run_in_one_piece_gives(program: Node, habits: list[Habits]) -> None:
    check_replay(program, habits)


@pytest.mark.soak
@settings(max_examples=2000, suppress_health_check=SLOW)
@given(PROGRAMS.map(named), st.lists(HABITS, min_size=1, max_size=4))
def test_replay_of_two_thousand_programs(program: Node, habits: list[Habits]) -> None:
    check_replay(program, habits)


@settings(max_examples=25, suppress_health_check=SLOW)
@given(PROGRAMS.map(named))
def test_a_client_of_2025_11_25_gets_the_same(program: Node) -> None:
    expected, expected_effects, questions = in_one_piece(program)
    assume(0 < questions <= MOST_QUESTIONS)
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
