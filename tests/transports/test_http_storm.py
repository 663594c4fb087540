"""A storm of requests: many clients do all that clients may do, in an order that a seed decides."""

import asyncio
import random
from typing import Any

import pytest
from http_clients import LOGS

from dovetail import Context
from dovetail.engine.subscriptions import Change
from dovetail.state.memory import MemoryState
from http_serving import PausingState, Stage, serving, settle
from http_wire import HANDSHAKE, MODERN, HttpExchange, HttpWire, open_wire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


class Storm:
    """Some clients, and all that they have begun."""

    def __init__(self, app: Any, stage: Stage, seed: int) -> None:
        self.app = app
        self.stage = stage
        self.chance = random.Random(seed)
        self.wires: list[HttpWire] = []
        self.begun: list[tuple[HttpWire, HttpExchange]] = []
        self.stalled: list[HttpExchange] = []

    async def run(self, steps: int) -> None:
        for version in (*HANDSHAKE, "2025-11-25", MODERN):
            self.wires.append(await open_wire(self.app, version))
        self.call()
        deeds = [
            *[self.call] * 6, *[self.cancel] * 2, *[self.leave] * 2, *[self.resume] * 5,
            *[self.listen] * 2, *[self.change] * 3, self.cut, self.stall, self.read_on, self.subscribe, self.delete,
        ]  # fmt: skip
        for _ in range(steps):
            self.chance.choice(deeds)()
            await settle(self.chance.randrange(4))

    async def end(self) -> None:
        for each in self.stalled:
            each.read_on()
        for _, exchange in self.begun:
            if self.chance.random() < 0.5:
                exchange.leave()
        await self.app.drain(0.2)
        done, late = await asyncio.wait({exchange.task for _, exchange in self.begun}, timeout=3)
        assert not late
        for task in done:
            assert task.cancelled() or task.exception() is None

    # ── what clients do ──

    def any_wire(self, *, modern: bool | None = None) -> HttpWire:
        return self.chance.choice([wire for wire in self.wires if modern in (None, wire.version == MODERN)])

    def any_exchange(self) -> HttpExchange:
        return self.chance.choice(self.begun)[1]

    def call(self) -> None:
        wire = self.any_wire()
        arguments = {"pauses": self.chance.randrange(6), "closes": self.chance.random() < 0.2}
        self.begun.append((wire, wire.start_call("busy", arguments, meta=LOGS, id=f"c{self.chance.randrange(5)}")))

    def cancel(self) -> None:
        wire = self.any_wire(modern=False)
        body = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c%d"}}'
        self.begun.append((wire, wire.raw("POST", body % self.chance.randrange(5))))

    def leave(self) -> None:
        self.any_exchange().leave()

    def cut(self) -> None:
        left = self.any_exchange()
        left.leave()
        left.task.cancel()

    def stall(self) -> None:
        self.stalled.append(self.any_exchange())
        self.stalled[-1].stall()

    def read_on(self) -> None:
        if self.stalled:
            self.stalled.pop().read_on()

    def resume(self) -> None:
        """Or a stream beside all calls."""
        known = [(wire, each.id) for wire, exchange in self.begun for each in exchange.events if each.id]
        wire, id = self.chance.choice([*known, *[(self.any_wire(modern=False), None)] * (len(known) or 1)])
        self.begun.append((wire, wire.get(id)))

    def listen(self) -> None:
        wire = self.any_wire(modern=True)
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["test://one"]}
        self.begun.append((wire, wire.start("subscriptions/listen", {"notifications": wanted})))

    def subscribe(self) -> None:
        wire = self.any_wire(modern=False)
        self.begun.append((wire, wire.start("resources/subscribe", {"uri": "test://one"})))

    def delete(self) -> None:
        if self.chance.random() < 0.2:
            wire = self.any_wire(modern=False)
            self.begun.append((wire, wire.raw("DELETE")))

    def change(self) -> None:
        change = self.chance.choice([Change("tools"), Change("resources"), Change("updated", "test://one")])
        self.stage.server.engine.publish(change)

    # ── what must hold ──

    def check(self) -> None:
        for wire, exchange in self.begun:
            assert [message["type"] for message in exchange.sent].count("http.response.start") <= 1
            assert all(message["more_body"] for message in exchange.sent[1:-1])
            if exchange.is_stream:
                assert all("method" in message for message in exchange.messages[:-1])  # the answer comes last
                if wire.version == "2025-11-25":
                    assert exchange.events == [] or exchange.events[0].data == b""


@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 150), (1, 150), *(pytest.param(seed, 2000, marks=pytest.mark.soak) for seed in range(20))]
)
@pytest.mark.parametrize("state", [MemoryState, PausingState])
async def test_a_storm(
    stage: Stage, state: type[MemoryState], seed: int, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    @stage.server.tool
    async def busy(ctx: Context, pauses: int, closes: bool) -> str:
        for number in range(pauses):
            await ctx.report_progress(number)
            await ctx.warning(f"{number}")
            await asyncio.sleep(0.001 * number)
            if closes:
                await ctx.close_stream(0)
        return "busy"

    async with serving(stage.server, state=state(), keep_alive=0.01, max_streams=20, max_sessions=50) as app:
        storm = Storm(app, stage, seed)
        await storm.run(steps)
        await storm.end()
        storm.check()
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
