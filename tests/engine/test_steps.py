"""`ctx.step`: once per call, however often its function runs; what it remembers, and what becomes of failures."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from dovetail import Client, Context, Server, SetupError
from replaying import MODERN, asking_client, play, retry
from step_stage import SURE, Effect, asks_before_and_after, call, serving, text_of

LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


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


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_step_can_not_ask(revision: str, blocking: bool) -> None:
    """For the answer it would have to run again."""
    failures: list[SetupError] = []

    async def effect(ctx: Context) -> str:
        return str((await ctx.elicit("Name?", str)).data)

    async def tool(ctx: Context) -> str:
        try:
            await ctx.step("effect", lambda: effect(ctx))
        except SetupError as failure:
            failures.append(failure)
        return "done"

    def in_thread(ctx: Context) -> str:
        try:
            ctx.wait(ctx.step("effect", lambda: ctx.wait(effect(ctx))))
        except SetupError as failure:
            failures.append(failure)
        return "done"

    server = Server("steps")
    server.add_tool(in_thread if blocking else tool, name="tool")
    async with Client(server, protocol_version=revision, elicitation_handler=lambda _: "Ada") as client:
        assert (await client.call_tool("tool")).text == "done"
    assert str(failures[0]) == "ctx.step('effect'): a step can't ask the client, because it runs once; ask before it"


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
    assert str(failures[0]).startswith("ctx.step('odd'): ")
    assert str(failures[0]).endswith("; it is remembered as JSON, so return what JSON can hold, or None")


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
