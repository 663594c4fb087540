"""Cancelling: what really stops, what stays silent, and what is ignored."""

import asyncio
import time
from typing import Any

import pytest

from dovetail import Context, Server
from http_serving import until
from wire import MODERN, Wire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")
BOTH = pytest.mark.parametrize("version", ["2025-11-25", MODERN])


class Bench:
    """A server with tools that tell what happened to them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.started = asyncio.Event()
        self.server = Server("bench", version="1.0.0", max_concurrency=4)
        for tool in (self.slow, self.stubborn, self.threaded, self.quick):
            self.server.add_tool(tool)

    async def slow(self) -> str:
        self.started.set()
        try:
            await asyncio.sleep(30)
        finally:
            self.events.append("cleaned up")
        return "never"

    async def stubborn(self, ctx: Context) -> str:
        self.started.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await ctx.report_progress(5)
            await ctx.error("I go on")
            await asyncio.sleep(0.01)
            await ctx.report_progress(6)
            self.events.append("went on")
        return "still here"

    def threaded(self, ctx: Context) -> str:
        ctx.report_progress(1)
        time.sleep(0.05)  # the first look comes after the cancellation
        if ctx.cancelled.wait(5) and ctx.cancelled:
            self.events.append("saw it")
        ctx.report_progress(2)
        return "dropped"

    async def quick(self) -> str:
        return "quick"


def cancel(id: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, **more}}


def calling(wire: Wire, name: str, id: Any) -> dict[str, Any]:
    return wire.request("tools/call", {"name": name, "_meta": {"progressToken": "p"}}, id=id)


async def still_fine(wire: Wire) -> None:
    assert (await wire.ask("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"


@pytest.mark.rule("CAN-2", "PROG-6", "STDIO-6")
@pytest.mark.parametrize(
    ("tool", "id", "event"), [("slow", 7, "cleaned up"), ("stubborn", "seven", "went on"), ("threaded", 7, "saw it")]
)
@BOTH
async def test_a_tool_stops_or_goes_on_without_a_response(version: str, tool: str, id: Any, event: str) -> None:
    bench = Bench()
    async with Wire(bench.server, version) as wire:
        wire.send(calling(wire, tool, id))
        if tool == "threaded":
            assert (await wire.receive())["params"]["progress"] == 1
        else:
            await bench.started.wait()
        wire.send(cancel(id, reason="changed my mind"))
        answer = await wire.exchange(calling(wire, "quick", id))  # which is free at once
        assert answer["result"]["content"][0]["text"] == "quick"
        await until(lambda: bench.events == [event])
        await wire.quiet(0.05)
        assert bench.server.engine.limit.running == 0
        await still_fine(wire)


@BOTH
async def test_a_call_that_has_not_begun(version: str) -> None:
    bench = Bench()
    async with Wire(bench.server, version) as wire:
        wire.send(calling(wire, "slow", 7))
        wire.send(cancel(7))
        await wire.quiet()
        assert bench.events == []
        await still_fine(wire)


@pytest.mark.rule("CAN-3", "CAN-4", "CAN-5")
@BOTH
async def test_cancellations_that_mean_nothing_are_ignored(version: str) -> None:
    bench = Bench()
    async with Wire(bench.server, version) as wire:
        wire.send(calling(wire, "slow", 7))
        await bench.started.wait()
        for params in ({}, {"requestId": None}, {"requestId": 8}, {"requestId": "7"}, {"requestId": 7.0}, [7], 7, None):
            wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled"})
        wire.send(cancel({"deep": [1]}))
        await wire.quiet(0.02)
        assert bench.events == []
        wire.send(cancel(7, reason={"not": "a string"}))
        await wire.quiet(0.02)
        assert bench.events == ["cleaned up"]
        wire.send(cancel(7))  # over already
        await still_fine(wire)


@pytest.mark.rule("CAN-6")
async def test_initialize_cannot_be_cancelled() -> None:
    bench = Bench()
    async with Wire(bench.server) as wire:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "w", "version": "1"}}
        wire.send(wire.request("initialize", params, id=1))
        wire.send(cancel(1))
        assert (await wire.receive())["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("together", [True, False])
async def test_items_of_a_batch(together: bool) -> None:
    bench = Bench()
    async with Wire(bench.server, "2025-03-26") as wire:
        calls = [calling(wire, "slow", 1), calling(wire, "quick", 2), calling(wire, "slow", 3)]
        if together:
            wire.send([*calls, cancel(1), cancel(3)])
        else:
            wire.send(calls)
            await bench.started.wait()
            wire.send([cancel(1), cancel(3)])
        answers = await wire.receive()
        assert [answer["id"] for answer in answers] == [2]
        wire.send([calling(wire, "slow", 4), cancel(4)])
        await wire.quiet()
        await still_fine(wire)


async def test_the_end_of_a_connection_cancels_too() -> None:
    bench = Bench()
    async with Wire(bench.server, "2025-11-25") as wire:
        wire.send(calling(wire, "slow", 1))
        wire.send(calling(wire, "threaded", 2))
        await bench.started.wait()
        assert (await wire.receive())["params"]["progress"] == 1
        await wire.connection.close(0.01)
        await until(lambda: sorted(bench.events) == ["cleaned up", "saw it"])


async def test_cancelled_can_be_awaited() -> None:
    server = Server("waits", version="1.0.0")
    begun, woken = asyncio.Event(), asyncio.Event()

    @server.tool
    async def waits(ctx: Context) -> str:
        async def watch() -> None:
            await ctx.cancelled
            woken.set()

        watcher = asyncio.create_task(watch())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await ctx.cancelled
        assert not ctx.cancelled
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            await watcher
            await ctx.cancelled  # at once, now
        return ""

    async with Wire(server, MODERN) as wire:
        wire.send(wire.request("tools/call", {"name": "waits"}, id=1))
        await asyncio.wait_for(begun.wait(), 5)
        wire.send(cancel(1))
        await asyncio.wait_for(woken.wait(), 5)
        await wire.quiet()
