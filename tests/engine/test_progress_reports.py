"""Progress on the wire: tokens, order, thinning, and that it ends with the call."""

import asyncio
import time
from typing import Any

import pytest

from dovetail import Context, Server, ToolError
from wire import MODERN, Wire

EVERY = pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-11-25", MODERN])


def new_server() -> Server:
    server = Server("progress", version="1.0.0")

    @server.resource("a://nested")
    async def nested(ctx: Context) -> str:
        await ctx.report_progress(1)  # below what its caller has told
        await ctx.report_progress(50)
        return ""

    @server.tool
    async def steps(ctx: Context, values: list[Any], pause: float = 0, fail: bool = False) -> str:
        for value in values:
            await ctx.report_progress(value, 100, f"at {value}")
            await asyncio.sleep(pause)
        if fail:
            raise ToolError("in the middle")
        return "done"

    @server.tool
    def in_a_thread(ctx: Context, values: list[Any]) -> str:
        for value in values:
            ctx.report_progress(value)
        return "done"

    @server.tool(thread=False)
    def on_the_loop(ctx: Context, values: list[Any]) -> str:
        for value in values:
            ctx.report_progress(value)
        return "done"

    @server.tool
    async def nests(ctx: Context) -> str:
        await ctx.report_progress(10)
        await ctx.read_resource("a://nested")
        await ctx.report_progress(20)
        return "done"

    @server.tool
    async def leaves_a_task(ctx: Context) -> str:
        async def late() -> None:
            await asyncio.sleep(0.02)
            await ctx.report_progress(2)
            await ctx.info("late")

        server.late = asyncio.create_task(late())  # type: ignore[attr-defined]
        await ctx.report_progress(1)
        return "done"

    return server


async def run(wire: Wire, name: str, token: Any = "t", **arguments: Any) -> list[dict[str, Any]]:
    meta = {} if token is None else {"progressToken": token}
    before = len(wire.seen)
    answer = await wire.exchange(wire.request("tools/call", {"name": name, "arguments": arguments, "_meta": meta}))
    assert "result" in answer
    await wire.quiet(0.03)
    return [message["params"] for message in wire.seen[before:] if "method" in message]


@pytest.mark.rule("PROG-1", "PROG-2", "PROG-4", "PROG-5")
@EVERY
async def test_reports_carry_token_total_and_message(version: str) -> None:
    async with Wire(new_server(), version) as wire:
        sent = await run(wire, "steps", values=[0, 0.5, 2])
        assert [each["progress"] for each in sent] == [0, 0.5, 2]
        assert {each["progressToken"] for each in sent} == {"t"}
        assert {each["total"] for each in sent} == {100}
        assert ("message" in sent[0]) is (version != "2024-11-05")


@pytest.mark.rule("PROG-1", "PROG-2")
@pytest.mark.parametrize("token", [0, "", -5, 2**70, "0", "é"])
async def test_every_string_and_integer_is_a_token(token: Any) -> None:
    for version in ("2025-06-18", MODERN):
        async with Wire(new_server(), version) as wire:
            sent = await run(wire, "steps", token, values=[1])
            assert [(type(each["progressToken"]), each["progressToken"]) for each in sent] == [(type(token), token)]


async def test_without_a_token_there_is_silence() -> None:
    async with Wire(new_server(), "2025-06-18") as wire:
        for name in ("steps", "in_a_thread", "on_the_loop"):
            assert await run(wire, name, None, values=[1, 2]) == []


@pytest.mark.parametrize("token", [True, 1.5, [], {}, None])
async def test_other_tokens_are_refused(token: Any) -> None:
    async with Wire(new_server(), MODERN) as wire:
        params = {"name": "steps", "arguments": {"values": []}, "_meta": {"progressToken": token}}
        assert (await wire.refusal("tools/call", params))["code"] == -32602


@pytest.mark.rule("PROG-3")
@pytest.mark.parametrize("name", ["steps", "in_a_thread", "on_the_loop"])
async def test_it_only_rises(name: str) -> None:
    async with Wire(new_server(), MODERN) as wire:
        sent = await run(wire, name, values=[1, 1, 0, 3, 2, 3, 4.5])
        assert [each["progress"] for each in sent] == [1, 3, 4.5]


@pytest.mark.rule("PROG-3")
async def test_it_only_rises_whoever_reports() -> None:
    async with Wire(new_server(), MODERN) as wire:
        assert [each["progress"] for each in await run(wire, "nests")] == [10, 50]


@pytest.mark.rule("PROG-7")
@pytest.mark.parametrize("name", ["steps", "in_a_thread", "on_the_loop"])
async def test_a_flood_is_thinned_and_the_last_report_comes_before_the_answer(name: str) -> None:
    async with Wire(new_server(), MODERN) as wire:
        began = time.monotonic()
        sent = [each["progress"] for each in await run(wire, name, values=list(range(2000)))]
        at_most = 20 + 50 * (time.monotonic() - began) + 2
        assert sent[:20] == list(range(20))
        assert sent[-1] == 1999
        assert len(sent) <= at_most
        assert sent == sorted(set(sent))


async def test_the_latest_report_goes_out_while_the_call_goes_on() -> None:
    server = new_server()
    release = asyncio.Event()

    @server.tool
    async def waits(ctx: Context) -> str:
        for value in range(100):
            await ctx.report_progress(value)
        await release.wait()
        return "done"

    async with Wire(server, MODERN) as wire:
        wire.send(wire.request("tools/call", {"name": "waits", "_meta": {"progressToken": 1}}))
        while (await wire.receive())["params"]["progress"] != 99:
            pass
        release.set()
        assert "result" in await wire.receive()


@pytest.mark.rule("PROG-6")
async def test_nothing_comes_after_the_answer() -> None:
    async with Wire(new_server(), "2025-11-25") as wire:
        assert [each["progress"] for each in await run(wire, "leaves_a_task")] == [1]
        await wire.server.late
        await wire.quiet(0.05)


async def test_the_last_report_comes_before_a_failure_too() -> None:
    async with Wire(new_server(), "2025-11-25") as wire:
        sent = await run(wire, "steps", values=list(range(100)), fail=True)
        assert sent[-1]["progress"] == 99


@pytest.mark.parametrize("value", ["5", None, True, []])
async def test_a_report_that_is_no_number_is_the_authors_mistake(value: Any) -> None:
    async with Wire(new_server(), MODERN) as wire:
        assert await run(wire, "steps", values=[value]) == []
        assert wire.seen[-1]["result"]["isError"] is True
        assert await run(wire, "on_the_loop", values=[1, value, 2]) != []  # told before the answer, or only logged
