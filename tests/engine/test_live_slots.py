"""Asking older clients: the slot of a call that waits for its user is given to others meanwhile."""

import asyncio
from typing import Any

import pytest
from live_stage import Users, blocking, serving

from dovetail import Context
from dovetail.engine.client_requests import MAX_AT_ONCE
from dovetail.errors import QuestionFailed
from http_serving import settle


@pytest.mark.parametrize("tool", ["asks", "asks_in_thread"])
@pytest.mark.parametrize("options", [{"max_concurrency": 2}, {"per_tool": 2}], ids=["server", "tool"])
async def test_calls_that_wait_for_their_users_refuse_nobody(tool: str, options: dict[str, int]) -> None:
    async with Users(serving(max_queue=0, **options)) as users:
        questions = []
        for number in range(1, 6):
            users.call(number, tool)
            questions.append(await users.asked())
        assert (await users.ask("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"
        for question in questions:
            users.answer(question)
        assert [await users.text() for _ in questions] == ["Ada"] * 5
        assert users.limit.running == 0


@pytest.mark.parametrize(
    ("method", "params"), [("prompts/get", {"name": "greeting"}), ("resources/read", {"uri": "note://one"})]
)
async def test_prompts_and_resources_that_wait_hold_no_slot(method: str, params: Any) -> None:
    async with Users(serving(max_concurrency=1, max_queue=0)) as users:
        for number in (1, 2):
            users.send(users.request(method, params, number))
        questions = [await users.asked(), await users.asked()]
        assert users.limit.running == 0
        for question in questions:
            users.answer(question)
        for _ in questions:
            assert "Ada" in str((await users.receive())["result"])
        assert (users.limit.running, users.limit.waiting) == (0, 0)


async def test_the_function_goes_on_when_there_is_a_slot_for_it() -> None:
    server = serving(max_concurrency=1, max_queue=0, per_tool=1)
    go = blocking(server)
    async with Users(server) as users:
        users.call(1)
        question = await users.asked()
        users.call(2, "block")
        await settle()
        users.answer(question)
        await settle()
        assert users.lines.empty()  # neither refused nor served
        assert (users.limit.running, users.limit.waiting, users.limit_of("asks").running) == (1, 1, 1)
        go()
        assert [await users.text(), await users.text()] == ["went on", "Ada"]
        assert (users.limit.running, users.limit_of("asks").running) == (0, 0)


async def test_the_time_of_the_function_stands_still_while_it_waits_for_a_slot() -> None:
    server = serving(max_concurrency=1, timeout=0.1)
    go = asyncio.Event()

    @server.tool(timeout=None)
    async def block() -> str:
        await go.wait()
        return "went on"

    async with Users(server) as users:
        users.call(1)
        question = await users.asked()
        users.call(2, "block")
        await settle()
        users.answer(question)
        await asyncio.sleep(0.2)
        go.set()
        assert [await users.text(), await users.text()] == ["went on", "Ada"]


async def test_the_first_question_gives_the_slots_back_and_the_last_takes_them_again() -> None:
    async with Users(serving(max_concurrency=1, max_queue=0, per_tool=1)) as users:
        users.call(1, times=3)
        questions = [await users.asked() for _ in range(3)]
        for question in questions:
            assert (users.limit.running, users.limit_of("asks").running) == (0, 0)
            users.answer(question)
            await settle()
        assert await users.text() == "Ada Ada Ada"
        assert (users.limit.running, users.limit_of("asks").running) == (0, 0)


async def test_a_question_beside_one_that_waits_for_its_slot() -> None:
    """One part of the function asks anew while another waits to go on."""
    server = serving(max_concurrency=1)
    go = blocking(server)
    ask_again = asyncio.Event()

    @server.tool(max_concurrency=1)
    async def two_parts(ctx: Context) -> str:
        async def again() -> None:
            await ask_again.wait()
            await ctx.elicit("Again?", str)

        await asyncio.gather(ctx.elicit("Name?", str), again())
        return f"{server.engine.limit.running}"

    async with Users(server) as users:
        users.call(1, "two_parts")
        first = await users.asked()
        users.call(2, "block")
        await settle()
        users.answer(first)
        await settle()
        assert (users.limit.waiting, users.limit_of("two_parts").running) == (1, 1)
        ask_again.set()
        second = await users.asked()
        go()
        assert await users.text() == "went on"
        await settle()
        assert (users.limit.running, users.limit.waiting, users.limit_of("two_parts").running) == (0, 0, 0)
        users.answer(second)
        assert await users.text() == "1"
        assert (users.limit.running, users.limit_of("two_parts").running) == (0, 0)


@pytest.mark.parametrize("tool", ["asks", "asks_in_thread"])
async def test_a_call_that_is_cancelled_while_its_client_is_asked(tool: str) -> None:
    async with Users(serving(max_concurrency=1, max_queue=0, per_tool=1)) as users:
        users.call(1, tool)
        await users.asked()
        users.cancel(1)
        await users.asked("notifications/cancelled")
        await settle()
        assert (users.limit.running, users.limit_of(tool).running) == (0, 0)
        users.call(2, tool)
        users.answer(await users.asked())
        assert await users.text() == "Ada"


async def test_a_call_that_is_cancelled_while_it_waits_for_its_slot() -> None:
    server = serving(max_concurrency=1, max_queue=0, per_tool=1)
    go = blocking(server)
    async with Users(server) as users:
        users.call(1)
        question = await users.asked()
        users.call(2, "block")
        await settle()
        users.answer(question)
        await settle()
        users.cancel(1)
        await settle()
        assert (users.limit.running, users.limit.waiting, users.limit_of("asks").running) == (1, 0, 0)
        go()
        assert await users.text() == "went on"
        assert users.limit.running == 0


async def test_a_function_that_waits_no_longer_has_its_slot_at_once() -> None:
    server = serving(max_concurrency=1, max_queue=1)
    go = blocking(server)
    impatient, last = asyncio.Event(), asyncio.Event()

    @server.tool
    async def gives_up(ctx: Context) -> str:
        question = asyncio.create_task(ctx.elicit("Name?", str))
        await impatient.wait()
        question.cancel()
        await asyncio.wait([question])
        await last.wait()
        return "without a name"

    async with Users(server) as users:
        users.call(1, "gives_up")
        await users.asked()
        users.call(2, "block")
        await settle()
        impatient.set()
        await users.asked("notifications/cancelled")
        await settle()
        assert users.limit.running == 2  # for the moment
        users.call(3, "quick")
        go()
        assert await users.text() == "went on"
        await settle()
        assert (users.limit.running, users.limit.waiting) == (1, 1)
        last.set()
        assert {await users.text(), await users.text()} == {"without a name", "quick"}
        assert users.limit.running == 0


@pytest.mark.parametrize("number", [1, MAX_AT_ONCE + 8])
async def test_questions_that_outlive_their_function(number: int) -> None:
    server = serving(max_concurrency=1, max_queue=0)
    left: set[asyncio.Task[Any]] = set()

    @server.tool(max_concurrency=1)
    async def leaves(ctx: Context) -> str:
        left.update(asyncio.create_task(ctx.elicit("Name?", str)) for _ in range(number))
        await asyncio.sleep(0)
        return "left"

    async with Users(server) as users:
        for id in (1, 2):
            users.call(id, "leaves")
            for method in ("elicitation/create", "notifications/cancelled"):
                for _ in range(min(number, MAX_AT_ONCE)):
                    await users.asked(method)
            assert await users.text() == "left"
            outcomes = await asyncio.gather(*left, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, QuestionFailed}
            assert (users.limit.running, users.limit_of("leaves").running) == (0, 0)
