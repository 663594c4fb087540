"""Functions inside others that ask, requests that a middleware makes twice, and steps that are left behind."""

import asyncio
import logging
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from msgspec import Raw

from dovetail import (
    Client,
    Context,
    Elicit,
    ElicitUrl,
    InputRequired,
    Request,
    Server,
    ServerError,
    ToolError,
    UrlElicitationRequired,
)
from replaying import MODERN, asking_client, is_interim, play, retry

BOTH = pytest.mark.parametrize("revision", ["2025-11-25", MODERN])


def numbered() -> Any:
    """Answers that tell how many there were before."""
    answers: list[str] = []

    def answer(question: Any) -> str:
        answers.append(question.message)
        return f"answer {len(answers)}"

    return answer


@BOTH
async def test_a_resource_that_asks_by_itself_does_not_confuse_the_tool_that_reads_it(revision: str) -> None:
    server, steps = Server("nested"), list[int]()

    @server.resource("note://one")
    async def note(ctx: Context) -> str | InputRequired:
        return "a note" if "key" in ctx.input_responses else InputRequired({"key": Elicit("Key?", str)})

    @server.tool
    async def twice(ctx: Context) -> str:
        first = (await ctx.elicit("Next?", str)).data
        await ctx.step("save", lambda: steps.append(1))
        if revision != MODERN:  # where the answer to a key is only there in one round
            await ctx.read_resource("note://one")
        second = (await ctx.elicit("Next?", str)).data
        await ctx.step("save", lambda: steps.append(2))
        return f"{first}, {second}"

    async with Client(server, protocol_version=revision, elicitation_handler=numbered()) as client:
        text = (await client.call_tool("twice")).text
    assert text == ("answer 1, answer 2" if revision == MODERN else "answer 1, answer 3")
    assert steps == [1, 2]


async def test_requests_that_a_middleware_makes_at_once_give_their_slots_back() -> None:
    server = Server("hedged", max_concurrency=2, max_queue=0)

    @server.tool
    async def work() -> str:
        await asyncio.sleep(0.001)
        return "done"

    @server.middleware
    async def hedge(request: Request, call_next: Any) -> Any:
        if request.method != "tools/call":
            return await call_next(request)
        return (await asyncio.gather(call_next(request), call_next(request)))[0]

    async with Client(server) as client:
        for _ in range(5):
            assert (await client.call_tool("work")).text == "done"
    assert server.engine.limit.running == 0


@BOTH
async def test_a_request_that_a_middleware_makes_again_takes_no_step_twice(revision: str) -> None:
    server, charged = Server("retried"), list[int]()

    @server.tool
    async def pay(ctx: Context) -> str:
        await ctx.step("charge", lambda: charged.append(1))
        if len(charged) == 1 and not runs.append(1) and len(runs) == 1:
            raise ToolError("not yet")
        return (await ctx.elicit("Sure?", str)).data or ""

    runs: list[int] = []

    @server.middleware
    async def again(request: Request, call_next: Any) -> Any:
        result = await call_next(request)
        return await call_next(request) if getattr(result, "is_error", False) else result

    async with Client(server, protocol_version=revision, elicitation_handler=lambda _: "yes") as client:
        assert (await client.call_tool("pay")).text == "yes"
    assert charged == [1]


async def test_a_short_question_at_first_does_not_bound_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    server, now = Server("slow"), [1_000_000.0]
    monkeypatch.setattr("dovetail.engine.input_required.time.time", lambda: now[0])

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("Quick?", str, timeout=10)
        return (await ctx.elicit("Long?", str)).data or ""

    async with asking_client(server) as client:
        result = await client.request("tools/call", {"name": "ask"})
        result = await client.request("tools/call", {"name": "ask", **retry(result, {"Quick?": "yes"})})
        now[0] += 3000
        result = await client.request("tools/call", {"name": "ask", **retry(result, {"Long?": "yes"})})
    assert not is_interim(result)


async def test_a_step_that_runs_while_a_page_is_required_runs_once() -> None:
    server, effects = Server("mail"), list[int]()

    async def slowly() -> None:
        await asyncio.sleep(0.02)
        effects.append(1)

    @server.tool
    async def unread(ctx: Context) -> str:
        with suppress(TimeoutError):
            await asyncio.wait_for(ctx.step("slow", slowly), 0.001)
        raise UrlElicitationRequired(ElicitUrl("Sign in", "https://example.com/in"))

    async with asking_client(server) as client:
        played = await play(client, "unread", lambda _: "accept", limit=2)
    assert played.failed
    await asyncio.sleep(0.03)
    assert effects == [1]


@BOTH
async def test_a_step_that_was_left_behind_keeps_nobody_waiting(revision: str) -> None:
    server, go = Server("impatient", timeout=0.5), asyncio.Event()

    @server.tool
    async def quick(ctx: Context) -> str:
        with suppress(TimeoutError):
            await asyncio.wait_for(ctx.step("slow", go.wait), 0.001)
        return "did without"

    async with Client(server, protocol_version=revision) as client:
        assert (await client.call_tool("quick")).text == "did without"
        go.set()


async def test_a_run_that_fails_is_not_taken_for_another_run(caplog: pytest.LogCaptureFixture) -> None:
    server, down = Server("shop"), list[int]()

    @server.tool
    async def buy(ctx: Context) -> str:
        if len(down) == 2:
            raise ToolError("the database is down")
        down.append(1)
        return f"{(await ctx.elicit('What?', str)).data} {(await ctx.elicit('How many?', str)).data}"

    async with asking_client(server) as client:
        assert (await play(client, "buy", {"What?": "hats", "How many?": "2"})).failed
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_every_digit_of_an_argument_counts() -> None:
    server = Server("bank")

    @server.tool
    async def pay(amount: Decimal, ctx: Context) -> str:
        return f"{amount} {(await ctx.elicit('Sure?', str)).data}"

    async with asking_client(server) as client:
        sent = await play(client, "pay", {"Sure?": "yes"}, {"amount": Raw(b"0.1")})
        assert sent.text == "0.1 yes"
        params = {"name": "pay", "arguments": {"amount": Raw(b"0.10000000000000000001")}}
        with pytest.raises(ServerError, match="request state can't be used"):
            await client.request("tools/call", {**params, "requestState": sent.states[0]})
