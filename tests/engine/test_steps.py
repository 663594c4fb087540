"""`ctx.step`: once per call, however often its function runs, whoever sends the same state again, and wherever."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dovetail import Client, Context, Server, ServerError, SetupError
from dovetail.engine import steps
from dovetail.state.base import NoRoom
from dovetail.state.memory import MemoryState
from replaying import MODERN, asking_client, is_interim, play, retry

SURE = {"Sure?": "yes", "Really?": "yes", "Name?": "Ada"}
LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
Body = Callable[[Context], Any]


def serving(body: Body, **options: Any) -> Server:
    server = Server("steps", **options)
    server.add_tool(body, name="tool")
    return server


def text_of(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


async def call(client: Client, **more: Any) -> dict[str, Any]:
    return await client.request("tools/call", {"name": "tool", **more})


class Effect:
    """A side effect that is counted, and may wait or fail."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)  # of each time; afterwards the number of times
        self.times = 0
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    def _outcome(self) -> Any:
        self.times += 1
        outcome = self.outcomes.pop(0) if self.outcomes else self.times
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def sync(self) -> Any:
        return self._outcome()

    async def __call__(self) -> Any:
        self.begun.set()
        await self.go.wait()
        return self._outcome()


def asks_before_and_after(effect: Callable[[], Any]) -> Body:
    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        number = await ctx.step("effect", effect)
        await ctx.elicit("Really?", str)
        return f"{number}"

    return tool


# ── once per call ──


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_step_runs_once_in_all_runs_of_a_call_and_again_in_the_next_call(kind: str) -> None:
    effect = Effect()
    async with asking_client(serving(asks_before_and_after(effect if kind == "async" else effect.sync))) as client:
        assert (await play(client, "tool", SURE)).text == "1"
        assert effect.times == 1
        assert (await play(client, "tool", SURE)).text == "2"


async def test_a_step_before_the_first_question() -> None:
    effect = Effect()

    async def tool(ctx: Context) -> str:
        number = await ctx.step("effect", effect)
        for _ in range(3):
            await ctx.elicit("Sure?", str)
        return f"{number}"

    async with asking_client(serving(tool)) as client:
        played = await play(client, "tool", SURE)
        assert (played.text, len(played.rounds), effect.times) == ("1", 3, 1)


async def test_steps_of_the_same_name_are_counted() -> None:
    effect = Effect()

    async def tool(ctx: Context) -> list[int]:
        found = []
        for _ in range(3):
            found.append(await ctx.step("effect", effect))
            await ctx.elicit("Sure?", str)
        return found

    async with asking_client(serving(tool)) as client:
        played = await play(client, "tool", SURE)
        assert (played.result["structuredContent"], effect.times) == ([1, 2, 3], 3)


async def test_names_that_look_alike_are_not_the_same() -> None:
    async def tool(ctx: Context) -> list[int]:
        names = ["a", "a#1", "a#2", "a/b", "ä", "A"]
        found = [await ctx.step(name, lambda n=n: n) for n, name in enumerate(names)]
        await ctx.elicit("Sure?", str)
        return found

    async with asking_client(serving(tool)) as client:
        assert (await play(client, "tool", SURE)).result["structuredContent"] == [0, 1, 2, 3, 4, 5]


async def test_prompts_and_resources_take_steps() -> None:
    effect = Effect()
    server = Server("steps")

    async def numbered(ctx: Context) -> str:
        number = await ctx.step("effect", effect)
        await ctx.elicit("Sure?", str)
        return f"{number}"

    server.add_prompt(numbered, name="numbered")
    server.add_resource("number://one", numbered)
    async with asking_client(server) as client:
        played = await play(client, "numbered", SURE, method="prompts/get")
        assert played.result["messages"][0]["content"]["text"] == "1"
        played = await play(client, "number://one", SURE, method="resources/read")
        assert played.result["contents"][0]["text"] == "2"


async def test_a_question_inside_a_step_is_asked_before_the_step_counts() -> None:
    async def tool(ctx: Context) -> str:
        async def effect() -> str:
            return str((await ctx.elicit("Name?", str)).data)

        name = await ctx.step("effect", effect)
        await ctx.elicit("Sure?", str)
        return name

    async with asking_client(serving(tool)) as client:
        played = await play(client, "tool", SURE)
        assert (played.rounds, played.text) == ([["Name?"], ["Sure?"]], "Ada")


# ── what is remembered ──


@dataclass
class Order:
    number: int
    tags: tuple[str, ...]


@pytest.mark.parametrize("revision", [*LEGACY, MODERN])
async def test_a_result_is_what_json_makes_of_it_in_every_revision(revision: str) -> None:
    seen: list[Any] = []

    async def tool(ctx: Context) -> str:
        seen.append(await ctx.step("order", lambda: Order(7, ("a", "b"))))
        seen.append(await ctx.step("nothing", lambda: None))
        seen.append(await ctx.step("keys", lambda: {1: 2.0}))
        return "done"

    async with Client(serving(tool), protocol_version=revision) as client:
        await client.call_tool("tool")
    assert seen == [{"number": 7, "tags": ["a", "b"]}, None, {"1": 2.0}]


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_result_that_is_not_json_is_said_in_words(revision: str) -> None:
    failures: list[SetupError] = []

    async def tool(ctx: Context) -> str:
        try:
            await ctx.step("odd", lambda: object())
        except SetupError as failure:
            failures.append(failure)
        return "done"

    async with Client(serving(tool), protocol_version=revision) as client:
        await client.call_tool("tool")
    assert str(failures[0]).startswith("ctx.step('odd'): the result must be JSON, to be remembered")


@pytest.mark.parametrize("name", ["", "x" * 201, None, 5])
async def test_a_name_that_is_none(name: Any) -> None:
    async def tool(ctx: Context) -> str:
        with pytest.raises(SetupError, match=r"ctx\.step: the name"):
            await ctx.step(name, lambda: 1)
        return "refused"

    async with asking_client(serving(tool)) as client:
        assert text_of(await call(client)) == "refused"


async def test_what_is_no_function() -> None:
    async def tool(ctx: Context) -> str:
        with pytest.raises(SetupError, match="give it a function"):
            await ctx.step("pay", 5)  # type: ignore[arg-type]
        return "refused"

    async with asking_client(serving(tool)) as client:
        assert text_of(await call(client)) == "refused"


async def test_a_result_too_large_to_travel() -> None:
    async def tool(ctx: Context) -> str:
        await ctx.step("large", lambda: "x" * 300_000)
        await ctx.elicit("Sure?", str)
        return "done"

    async with asking_client(serving(tool)) as client:
        assert "too large to be kept" in (await play(client, "tool", SURE)).text


# ── failures ──


async def test_a_step_that_raises_is_tried_again() -> None:
    effect = Effect(RuntimeError("not yet"), RuntimeError("not yet"))

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        while True:
            try:
                return f"{await ctx.step('effect', effect)}"
            except RuntimeError:
                await ctx.elicit("Try again?", str)

    async with asking_client(serving(tool)) as client:
        played = await play(client, "tool", lambda _: "yes")
        assert played.rounds == [["Sure?"], ["Try again?"]]  # then the first try is made again, and the next one
        assert (played.text, effect.times) == ("3", 3)


async def test_the_same_state_again_after_a_failure_tries_the_step_again(caplog: Any) -> None:
    effect = Effect(RuntimeError("not yet"))

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    async with asking_client(serving(tool)) as client:
        again = retry(await call(client), SURE)
        assert (await call(client, **again))["isError"]
        assert text_of(await call(client, **again)) == "2"
        assert text_of(await call(client, **again)) == "2"
    assert "not yet" in caplog.text


async def test_who_waits_for_a_step_that_fails_takes_it_over() -> None:
    effect = Effect(RuntimeError("not yet"))
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    async with asking_client(serving(tool)) as client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))
        await effect.begun.wait()
        second = asyncio.create_task(call(client, **again))
        await asyncio.sleep(0.01)
        effect.go.set()
        assert (await first)["isError"]
        assert text_of(await second) == "2"


# ── cancelled calls, and tasks left behind ──


@pytest.mark.rule("MRTR-12")
async def test_a_step_of_a_cancelled_call_runs_to_its_end_and_the_next_finds_its_result() -> None:
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    async with asking_client(serving(tool)) as client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))
        await effect.begun.wait()
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(call(client, **again))
        await asyncio.sleep(0.01)
        assert not second.done()
        effect.go.set()
        assert text_of(await second) == "1"
    assert effect.times == 1


async def test_a_step_of_a_call_that_timed_out_runs_to_its_end() -> None:
    effect = Effect()
    effect.go.clear()
    server = Server("steps")

    @server.tool(timeout=0.05)
    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    async with asking_client(server) as client:
        again = retry(await call(client), SURE)
        assert "did not finish" in text_of(await call(client, **again))
        effect.go.set()
        assert text_of(await call(client, **again)) == "1"
    assert effect.times == 1


async def test_a_step_beside_a_question_is_waited_for_before_the_round_ends() -> None:
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        number, _ = await asyncio.gather(ctx.step("effect", effect), ctx.elicit("Sure?", str))
        return f"{number}"

    async with asking_client(serving(tool)) as client:
        first = asyncio.create_task(call(client))
        await effect.begun.wait()
        await asyncio.sleep(0.01)
        assert not first.done()
        effect.go.set()
        assert text_of(await call(client, **retry(await first, SURE))) == "1"
    assert effect.times == 1


@pytest.mark.parametrize("group", [asyncio.TaskGroup, None])
async def test_a_step_in_a_task_that_is_stopped_or_left_behind_counts(group: Any) -> None:
    effect = Effect()

    async def tool(ctx: Context) -> str:
        if group is None:
            background = asyncio.create_task(ctx.step("effect", effect))
            await ctx.elicit("Sure?", str)
            return f"{await background}"
        async with group() as tasks:
            task = tasks.create_task(ctx.step("effect", effect))
            tasks.create_task(ctx.elicit("Sure?", str))
        return f"{task.result()}"

    async with asking_client(serving(tool)) as client:
        assert (await play(client, "tool", SURE)).text == "1"
    assert effect.times == 1


async def test_a_task_left_behind_begins_no_step_after_the_round() -> None:
    effect = Effect()
    late = asyncio.Event()

    async def tool(ctx: Context) -> str:
        async def later() -> None:
            await late.wait()
            await ctx.step("effect", effect)

        background = asyncio.create_task(later())
        background.add_done_callback(lambda task: task.cancelled() or task.exception())
        await ctx.elicit("Sure?", str)
        await background
        return "done"

    async with asking_client(serving(tool)) as client:
        first = await call(client)
        late.set()
        await asyncio.sleep(0.01)
        assert effect.times == 0
        assert text_of(await call(client, **retry(first, SURE))) == "done"
    assert effect.times == 1


async def test_a_server_that_stops_waits_for_its_steps() -> None:
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        return f"{await ctx.step('effect', effect)}"

    async with asking_client(serving(tool)) as client:
        running = asyncio.create_task(call(client))
        await effect.begun.wait()
        running.cancel()
        asyncio.get_running_loop().call_later(0.05, effect.go.set)
    assert effect.times == 1


# ── threads ──


async def test_in_a_def_function_a_step_runs_in_its_thread() -> None:
    threads: list[int] = []

    def tool(ctx: Context) -> str:
        ctx.wait(ctx.elicit("Sure?", str))
        threads.append(threading.get_ident())
        number = ctx.wait(ctx.step("effect", lambda: threads.append(threading.get_ident()) or 7))
        ctx.wait(ctx.elicit("Really?", str))
        return f"{number}"

    async with asking_client(serving(tool, max_threads=1)) as client:
        assert (await play(client, "tool", SURE)).text == "7"
    assert len(threads) == 3  # two runs came to the step, and one of them took it
    assert threads[0] == threads[1] != threading.get_ident()


async def test_a_def_function_may_hand_over_a_coroutine_function() -> None:
    effect = Effect()

    def tool(ctx: Context) -> str:
        number = ctx.wait(ctx.step("effect", effect))
        ctx.wait(ctx.elicit("Sure?", str))
        return f"{number}"

    async with asking_client(serving(tool)) as client:
        assert (await play(client, "tool", SURE)).text == "1"


async def test_a_step_in_the_thread_of_a_cancelled_call_counts() -> None:
    begun, go, times = threading.Event(), threading.Event(), []

    def effect() -> int:
        begun.set()
        go.wait(5)
        times.append(1)
        return len(times)

    def tool(ctx: Context) -> str:
        ctx.wait(ctx.elicit("Sure?", str))
        return f"{ctx.wait(ctx.step('effect', effect))}"

    async with asking_client(serving(tool)) as client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))
        await asyncio.to_thread(begun.wait, 5)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(call(client, **again))
        await asyncio.sleep(0.01)
        go.set()
        assert text_of(await second) == "1"
    assert times == [1]


# ── several workers ──


def two_workers(body: Body, state: MemoryState | None = None) -> tuple[Server, Server]:
    """Two servers that share their secret and their state."""
    servers = serving(body, secret="the same on both workers"), serving(body, secret="the same on both workers")
    servers[1].engine.state = servers[0].engine.state = state or MemoryState()
    return servers


@pytest.mark.rule("MRTR-12")
async def test_two_workers_run_a_step_once() -> None:
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    one, other = two_workers(tool)
    async with asking_client(one) as first_client, asking_client(other) as second_client:
        again = retry(await call(first_client), SURE)
        first = asyncio.create_task(call(first_client, **again))
        await effect.begun.wait()
        second = asyncio.create_task(call(second_client, **again))
        await asyncio.sleep(0.01)
        effect.go.set()
        assert (text_of(await first), text_of(await second)) == ("1", "1")
        assert text_of(await call(second_client, **again)) == "1"


async def test_a_step_of_a_dead_worker_is_not_done_a_second_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(steps, "PATIENCE", 0.05)
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('send mail', effect)}"

    dead, alive = two_workers(tool)
    async with asking_client(dead) as client, asking_client(alive) as other_client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))  # it will never come to its end
        await effect.begun.wait()
        result = await call(other_client, **again)
        assert result["isError"]
        assert text_of(result).startswith("The step send mail was begun by an earlier request and has not ended")
        effect.go.set()
        await first
    assert effect.times == 1


class Full(MemoryState):
    """Has room for a claim, and none for a result."""

    async def put(self, *arguments: Any, **options: Any) -> int:
        raise NoRoom("There is no room")


async def test_a_result_that_can_not_be_kept_is_still_known_to_its_run(caplog: Any) -> None:
    effect = Effect()
    one, _ = two_workers(asks_before_and_after(effect), Full())
    async with asking_client(one) as client:
        assert (await play(client, "tool", SURE)).text == "1"
    assert "the result of the step 'effect#1' can't be kept: There is no room" in caplog.text


class Closed(MemoryState):
    async def claim(self, *arguments: Any, **options: Any) -> bool:
        raise NoRoom("There is no room")


async def test_a_step_that_can_not_be_claimed_is_not_taken() -> None:
    effect = Effect()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    server = serving(tool, secret="the same on both workers")
    async with asking_client(server) as client:
        server.engine.state = Closed()
        first = await call(client)
        assert is_interim(first)
        with pytest.raises(ServerError, match="There is no room"):
            await call(client, **retry(first, SURE))
    assert effect.times == 0


async def test_claims_outlive_the_state_that_others_may_bring() -> None:
    ttls: list[float] = []

    class Watched(MemoryState):
        async def claim(self, key: str, value: bytes, ttl: float) -> bool:
            if key.startswith("step/"):
                ttls.append(ttl)
            return await super().claim(key, value, ttl)

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str, timeout=7 * 86_400)
        return f"{await ctx.step('effect', lambda: 1)}"

    one, _ = two_workers(tool, Watched())
    async with asking_client(one) as client:
        assert (await play(client, "tool", SURE)).text == "1"
    assert ttls
    assert min(ttls) > 7 * 86_400
