"""Asking older clients: many at once, functions that ask by themselves, and what comes back."""

import asyncio
import gc
from typing import Any

import pytest
from live_stage import LEGACY, Users, serving

from asking_stage import answer_to
from dovetail import Client, Context, Elicit, ElicitReply, InputRequired, Server
from dovetail.engine.client_requests import MAX_AT_ONCE, Elicitations
from http_serving import settle
from replaying import MODERN

# ── many at once ──


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_as_many_questions_as_a_function_likes(revision: str) -> None:
    server = serving()
    async with Client(server, protocol_version=revision, elicitation_handler=lambda question: "Ada") as client:
        assert (await client.call_tool("asks", {"times": 150})).text == " ".join(["Ada"] * 150)


async def test_a_client_is_asked_some_of_them_at_a_time() -> None:
    async with Users(serving()) as users:
        users.call(1, times=MAX_AT_ONCE + 2)
        questions = [await users.asked() for _ in range(MAX_AT_ONCE)]
        await settle()
        assert users.lines.empty()
        users.answer(questions.pop())
        questions.append(await users.asked())
        for question in questions:
            users.answer(question)
        users.answer(await users.asked())
        assert await users.text() == " ".join(["Ada"] * (MAX_AT_ONCE + 2))


# ── functions that ask by themselves ──


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_a_step_that_was_begun_is_over_before_the_function_is_called_again(revision: str) -> None:
    server = Server("live")
    done: list[str] = []

    async def slow() -> str:
        await asyncio.sleep(0.1)
        done.append("step")
        return "booked"

    @server.tool
    async def asks_by_itself(ctx: Context) -> Any:
        if not ctx.input_responses:
            try:
                await asyncio.wait_for(ctx.step("s", slow), 0.01)
            except TimeoutError:
                return InputRequired({"name": Elicit("Name?", str)})
        return f"{await ctx.step('s', slow)} {len(done)}"

    async with Client(server, protocol_version=revision, elicitation_handler=lambda question: "Ada") as client:
        assert (await client.call_tool("asks_by_itself")).text == "booked 1"
    assert done == ["step"]


async def test_a_function_that_asks_by_itself_holds_no_slot_meanwhile() -> None:
    server = serving(max_concurrency=1, max_queue=0)

    @server.tool
    async def asks_by_itself(ctx: Context) -> Any:
        if not ctx.input_responses:
            return InputRequired({"a": Elicit("A?", str), "b": Elicit("B?", str)})
        return f"{sorted(ctx.input_responses)} {server.engine.limit.running}"

    async with Users(server) as users:
        users.call(1, "asks_by_itself")
        questions = [await users.asked(), await users.asked()]
        users.call(2, "quick")
        assert await users.text() == "quick"
        for question in questions:
            users.answer(question)
        assert await users.text() == "['a', 'b'] 1"
        assert users.limit.running == 0


# ── what comes back ──


@pytest.mark.parametrize("result", [5, "x", [1], None])
async def test_an_answer_to_a_question_by_hand_is_an_object(result: Any) -> None:
    """As it is in the later era, where others never reach the function."""
    server = Server("by hand")

    @server.tool
    async def greet(ctx: Context) -> str | InputRequired:
        return str(ctx.input_responses) if ctx.input_responses else InputRequired({"name": Elicit("Name?", str)})

    async with Users(server) as users:
        users.call(1, "greet")
        users.send({**answer_to(await users.asked(), {}), "result": result})
        assert await users.text() == "The client's answer to name can't be used: it must be an object"


@pytest.mark.rule("EL-18")
@pytest.mark.parametrize(("action", "told"), [("accept", True), ("decline", False), ("cancel", False), ("what", False)])
async def test_only_who_was_willing_hears_that_a_visit_is_over(action: str, told: bool) -> None:
    server = Server("mail")

    @server.tool
    async def sign_in(ctx: Context) -> str:
        await ctx.elicit_url("Sign in", "https://example.com/in", elicitation_id="visit")
        return "done"

    heard: list[str] = []
    async with Client(
        server,
        protocol_version=LEGACY,
        elicitation_handler=lambda _: ElicitReply(action) if action != "what" else 1 / 0,  # type: ignore[arg-type]
        elicitation_complete_handler=heard.append,
    ) as client:
        await client.call_tool("sign_in", raise_on_error=False)
        assert await server.complete_elicitation("visit") is told
        await client.ping()
    assert heard == (["visit"] if told else [])
    assert vars(server.engine.elicitations) == vars(Elicitations())


def test_a_loop_that_dies_in_mid_call_is_torn_down_quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "asyncio")  # which says that the tasks of a dead loop were pending
    begin_and_die()
    gc.collect()
    assert "tool hang failed" not in caplog.text


def begin_and_die() -> None:
    server = Server("dying")

    @server.tool(timeout=30)
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    async def begin() -> None:
        client = Client(server)
        await client.__aenter__()
        call = asyncio.ensure_future(client.call_tool("hang"))
        await asyncio.sleep(0.02)
        assert not call.done()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
