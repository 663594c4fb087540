"""Batches, which only 2025-03-26 has."""

import asyncio
from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.protocol.jsonrpc import MAX_BATCH
from wire import CLIENT, MODERN, Wire

VERSION = "2025-03-26"


def new_server() -> Server:
    server = Server("batches", version="1.0.0")

    @server.tool
    async def wait(ctx: Context, seconds: float = 0) -> str:
        await ctx.report_progress(1)
        await asyncio.sleep(seconds)
        return str(seconds)

    return server


def call(id: Any, seconds: float = 0, **meta: Any) -> dict[str, Any]:
    params = {"name": "wait", "arguments": {"seconds": seconds}, "_meta": meta}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def ping(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "ping"}


@pytest.mark.rule("BASE-11")
async def test_one_line_with_all_answers_in_their_order() -> None:
    async with Wire(new_server(), VERSION) as wire:
        wire.send([call(1, 0.03), {"nonsense": True}, call("two", 0.01), ping(3), {"jsonrpc": "2.0", "id": 4}])
        answers = await wire.receive()
        assert [answer.get("id") for answer in answers] == [1, None, "two", 3, 4]
        assert [answers[place]["error"]["code"] for place in (1, 4)] == [-32600, -32600]
        assert answers[0]["result"]["content"][0]["text"] == "0.03"
        await wire.quiet(0.02)


@pytest.mark.rule("BASE-10", "BASE-11")
async def test_a_batch_without_requests_is_met_with_silence() -> None:
    async with Wire(new_server(), VERSION) as wire:
        wire.send([{"jsonrpc": "2.0", "method": "notifications/progress"}, {"jsonrpc": "2.0", "id": 1, "result": {}}])
        await wire.quiet(0.02)


async def test_bad_batches() -> None:
    async with Wire(new_server(), VERSION) as wire:
        wire.send([])
        assert (await wire.receive())["error"]["code"] == -32600
        wire.send([1, [ping(1)], None])
        assert [each["error"]["code"] for each in await wire.receive()] == [-32600] * 3
        wire.send([ping(number) for number in range(MAX_BATCH + 1)])
        assert (await wire.receive())["error"]["code"] == -32600
        wire.send([ping(number) for number in range(MAX_BATCH)])
        assert len(await wire.receive()) == MAX_BATCH


@pytest.mark.rule("BASE-12")
async def test_initialize_and_modern_requests_are_no_part_of_a_batch() -> None:
    async with Wire(new_server(), VERSION) as wire:
        hello = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": CLIENT}
        modern = Wire(wire.server, MODERN).request("tools/list", id=2)
        wire.send([{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, modern, ping(3)])
        answers = await wire.receive()
        assert [answer.get("error", {}).get("code") for answer in answers] == [-32600, -32600, None]


async def test_a_batch_before_the_handshake_is_refused() -> None:
    async with Wire(new_server()) as wire:
        wire.send([ping(1)])
        assert (await wire.receive())["error"]["code"] == -32600


async def test_an_id_counts_once_within_a_batch_too() -> None:
    async with Wire(new_server(), VERSION) as wire:
        wire.send([call(1, 0.02), ping(1)])
        answers = await wire.receive()
        assert ["error" in answer for answer in answers] == [False, True]
        assert answers[1]["error"]["code"] == -32600


async def test_progress_of_an_item_goes_out_at_once() -> None:
    async with Wire(new_server(), VERSION) as wire:
        wire.send([call(1, 0.02, progressToken="t")])
        assert (await wire.receive())["params"]["progress"] == 1
        assert len(await wire.receive()) == 1


async def test_batches_run_side_by_side() -> None:
    async with Wire(new_server(), VERSION) as wire:
        wire.send([call(1, 0.05), call(2)])
        wire.send([call(3)])
        assert [answer["id"] for answer in await wire.receive()] == [3]
        assert [answer["id"] for answer in await wire.receive()] == [1, 2]
        if ending := list(wire.connection._others):  # a task ends in the turns after its last answer
            await asyncio.wait(ending, timeout=5)
        assert not wire.connection._others
