"""Tools whose `max_concurrency` holds for all workers, as their clients meet it."""

import asyncio
from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.engine import leases
from dovetail.engine.leases import FleetLimit
from dovetail.engine.limits import Limit
from far_state import FarState
from wire import MODERN, Wire


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(leases, "STAND_BACK", 0.001)


class Press:
    """What several servers use, and how many do so at once."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.go = asyncio.Event()

    async def press(self) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go.wait()
        self.running -= 1
        return "pressed"


def serving(press: Press, state: FarState | None, **options: Any) -> Server:
    server = Server("factory", **options)
    server.add_tool(press.press, max_concurrency=1)
    server.add_tool(lambda: "quick", name="quick")

    @server.tool(max_concurrency=1)
    async def asks(ctx: Context) -> str:
        return f"Hello {(await ctx.elicit('Name?', str)).data}"

    if state is not None:
        server.engine.state = state
    return server


def limit_of(server: Server, name: str) -> Limit:
    tool = server.engine.tools.get(name)
    assert tool is not None
    limit = server.engine.book.of(tool).slots
    assert limit is not None
    return limit


async def test_a_tool_runs_once_in_all_workers() -> None:
    state, press = FarState(), Press()
    async with Wire(serving(press, state), MODERN) as one, Wire(serving(press, state), MODERN) as other:
        for number, wire in enumerate((one, one, other, other)):
            wire.send(wire.request("tools/call", {"name": "press"}, id=number))
        await asyncio.sleep(0.05)
        assert (press.running, press.most) == (1, 1)
        press.go.set()
        for wire in (one, one, other, other):
            assert (await wire.receive())["result"]["content"][0]["text"] == "pressed"
        assert press.most == 1
    assert not any(key.startswith("slot/") for key in state._entries.things)


async def test_without_a_shared_state_nothing_is_asked_of_a_store() -> None:
    server = serving(Press(), None)
    async with Wire(server, MODERN):
        assert type(limit_of(server, "press")) is Limit


async def test_a_store_in_trouble_refuses_such_a_tool_and_no_other() -> None:
    state, press = FarState(), Press()
    press.go.set()
    server = serving(press, state)
    async with Wire(server, MODERN) as wire:
        state.break_down()
        refused = await wire.exchange(wire.request("tools/call", {"name": "press"}))
        assert refused["error"]["message"] == (
            "The tool press can't be called now: its limit is kept in a store that is in trouble; try again later"
        )
        assert (await wire.ask("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"
        state.trouble = None
        assert (await wire.ask("tools/call", {"name": "press"}))["content"][0]["text"] == "pressed"


async def test_a_call_that_waits_too_long_for_its_turn_is_refused() -> None:
    state, press = FarState(), Press()
    async with Wire(serving(press, state), MODERN) as one, Wire(serving(press, state, timeout=0.1), MODERN) as other:
        one.send(one.request("tools/call", {"name": "press"}, id=1))
        await asyncio.sleep(0.02)
        refused = await other.exchange(other.request("tools/call", {"name": "press"}))
        assert refused["result"]["isError"] is True
        assert refused["result"]["content"][0]["text"] == (
            "The tool press is busy: no slot became free within 0.1 s; try again in 1 s."
        )
        press.go.set()
        await one.receive()


async def test_others_have_the_slot_while_a_client_is_asked() -> None:
    state = FarState()
    servers = [serving(Press(), state, max_queue=0) for _ in range(2)]
    capabilities = {"elicitation": {}}
    async with (
        Wire(servers[0], "2025-11-25", capabilities=capabilities) as one,
        Wire(servers[1], "2025-11-25", capabilities=capabilities) as other,
    ):
        questions = []
        for wire in (one, other):  # one slot, but both are asked
            wire.send(wire.request("tools/call", {"name": "asks"}, id=1))
            questions.append(await wire.receive())
            assert questions[-1]["method"] == "elicitation/create"
        assert [limit_of(server, "asks").running for server in servers] == [0, 0]
        assert isinstance(limit_of(servers[0], "asks"), FleetLimit)
        for wire, question in zip((one, other), questions, strict=True):
            answer = {"action": "accept", "content": {"value": "Ada"}}
            wire.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        for wire in (one, other):
            assert (await wire.receive())["result"]["content"][0]["text"] == "Hello Ada"
        assert [limit_of(server, "asks").running for server in servers] == [0, 0]
