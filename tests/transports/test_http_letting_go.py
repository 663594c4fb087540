"""Connections that the server lets go of on purpose: the client comes back for the rest."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from polling_stage import Polling, said

from dovetail import Context
from dovetail.state.memory import MemoryState
from http_serving import PausingState, serving, settle, until
from http_stage import HANDSHAKE, Stage, text_of
from http_wire import HttpWire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


async def go_on(stage: Polling) -> None:
    stage.steps.put_nowait(None)
    await settle()


@pytest.mark.parametrize("retry", [None, 0, 0.25])
@pytest.mark.rule("SH-10", "SH-13")
async def test_a_tool_lets_go_of_the_connection_and_the_client_polls(retry: float | None) -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("poll", {"retry": retry})
        await until(lambda: bool(call.sent) and not call.sent[-1].get("more_body", True))
        assert said(call) == ["before 0"]
        assert call._decoder.retry == (1000 if retry is None else retry * 1000)
        tail = wire.get(call.events[-1].id)
        await tail.event()
        await go_on(stage)
        await tail.done()
        assert said(tail) == ["after 0", "polled"]
        await call.done()


async def test_it_may_let_go_as_often_as_it_likes() -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        connection = wire.start_call("poll", {"closes": 4, "retry": 0.1})
        everything = []
        for number in range(4):
            await until(lambda number=number: stage.closed == number + 1)
            last = connection.events[-1].id
            everything += said(connection)
            connection = wire.get(last)
            await connection.event()
            await go_on(stage)
        await connection.done()
        everything += said(connection)
        expected = [text for number in range(4) for text in (f"before {number}", f"after {number}")]
        assert everything == [*expected, "polled"]


async def test_it_may_let_go_while_nobody_is_there() -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("poll", {"closes": 3})
        first = await call.event()
        for _ in range(3):
            await go_on(stage)
        await call.done()
        rest = await wire.get(first.id).done()
        assert len(said(rest)) == 7
        assert said(rest)[-1] == "polled"


async def test_a_tool_in_a_thread_lets_go_too() -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("poll_in_thread")
        await until(lambda: stage.closed == 1)
        assert said(call) == ["before"]
        assert call._decoder.retry == 500
        await go_on(stage)
        await call.done()
        assert said(await wire.get(call.events[-1].id).done()) == ["polled"]


async def in_json(app: Any) -> HttpWire:
    return await HttpWire.session(app, accept="application/json")


async def in_2025_03_26(app: Any) -> HttpWire:
    return await HttpWire.session(app, "2025-03-26")


async def in_2025_06_18(app: Any) -> HttpWire:
    return await HttpWire.session(app, "2025-06-18")


async def in_2026_07_28(app: Any) -> HttpWire:
    return HttpWire(app)


@pytest.mark.parametrize("tool", ["poll", "poll_in_thread"])
@pytest.mark.parametrize("client", [in_json, in_2025_03_26, in_2025_06_18, in_2026_07_28])
@pytest.mark.rule("SH-13")
async def test_who_can_not_come_back_is_not_let_go(client: Callable[[Any], Any], tool: str) -> None:
    stage = Polling()
    async with serving(stage.server) as app:
        wire = await client(app)
        call = wire.start_call(tool)
        await until(lambda: stage.closed == 1)
        await settle()
        assert not call.sent or call.sent[-1].get("more_body", True)
        await go_on(stage)
        await call.done()
        assert text_of(call.answer) == "polled"


async def test_letting_go_of_who_is_just_coming_back() -> None:
    """At any moment of its coming: in the end it gets everything."""
    for turns in range(15):
        stage = Polling()
        async with serving(stage.server, state=PausingState()) as app:
            wire = await HttpWire.session(app)
            call = wire.start_call("poll", {"closes": 2})
            await until(lambda stage=stage: stage.closed == 1)
            tail = wire.get(call.events[-1].id)
            await settle(turns)
            await go_on(stage)  # it notifies and lets go again
            await until(lambda stage=stage: stage.closed == 2)
            await go_on(stage)
            await call.done()
            await tail.done()
            told = said(tail)
            if told[-1:] != ["polled"]:
                told += said(await wire.get(tail.events[-1].id).done())
            assert told == ["after 0", "before 1", "after 1", "polled"], turns


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("state", [MemoryState, PausingState])
@pytest.mark.parametrize("version", HANDSHAKE)
async def test_who_loses_every_connection_misses_nothing(version: str, state: type[MemoryState], seed: int) -> None:
    chance = random.Random(seed)
    stage = Stage()

    @stage.server.tool
    async def count(ctx: Context) -> str:
        for number in range(40):
            await ctx.error(number)
            await settle(chance.randrange(3))
            if chance.random() < 0.1:
                await ctx.close_stream(0)
        return "counted"

    async with serving(stage.server, state=state()) as app:
        wire = await HttpWire.session(app, version)
        connection = wire.start_call("count")
        last, taken = "", []
        while not taken or b"counted" not in taken[-1].data:
            wanted = chance.randrange(1, 8)
            await connection.until(lambda c=connection, n=wanted: len(c.events) >= n or c.ended)
            for event in connection.events[:wanted]:
                last = event.id
                taken += [event] if event.data else []
            if chance.random() < 0.5:
                connection.leave()
            connection = wire.get(last)
        connection.leave()
        await connection.done()
        assert [json.loads(event.data)["params"]["data"] for event in taken[:-1]] == list(range(40))
        assert len({event.id for event in taken}) == 41
