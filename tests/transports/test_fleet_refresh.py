"""Refreshes in a fleet that meet, fail, hang or are not counted; and batches that are reached from elsewhere."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import Context
from dovetail.engine import subscriptions as changes
from dovetail.state import base as patience
from dovetail.state.base import NoRoom, StoreTrouble
from dovetail.state.memory import MemoryState
from http_serving import PausingState, settle
from http_stage import Stage
from http_wire import HttpWire

LISTEN = {"notifications": {"toolsListChanged": True}}
TELLS = ["a", "b", "c", "d"]


class ScriptedState(PausingState):
    """A shared store that may not answer what has to do with a refresh."""

    shared = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.claims: Exception | None = None  # what is said of each that has to do with a refresh

    async def claim(self, key: str, value: bytes, ttl: float) -> bool:
        first = await super().claim(key, value, ttl)
        if self.claims is not None and key.startswith("refreshed/"):
            raise self.claims
        return first


class Pair:
    """Two workers. The tool of the first tells four things, waits, and answers."""

    def __init__(self) -> None:
        self.state = ScriptedState()
        self.stages = [Stage(), Stage()]
        self.apps = [stage.server.asgi(state=self.state) for stage in self.stages]
        self.stages[0].server.add_tool(self.teller)
        self.go = asyncio.Event()

    async def teller(self, ctx: Context) -> str:
        for each in TELLS:
            await ctx.warning(each)
        await self.go.wait()
        return "answer"

    async def session(self, version: str = "2025-11-25") -> list[HttpWire]:
        first = await HttpWire.session(self.apps[0], version)
        wires = [HttpWire(app, version) for app in self.apps]
        for wire in wires:
            wire.session_id, wire.ids = first.session_id, first.ids
        return wires

    async def restart(self) -> None:
        for app in self.apps:
            await app.drain(0.1)
        for app in self.apps:
            await app.start()


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    for module in (changes, patience):
        monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    pair = Pair()
    for app in pair.apps:
        await app.start()
    yield pair
    for app in pair.apps:
        await asyncio.wait_for(app.drain(0.2), 10)


# ── the log of a call ──


@pytest.mark.parametrize("way", ["cancel", "delete"])
async def test_a_batch_is_reached_from_elsewhere(pair: Pair, way: str) -> None:
    wires = await pair.session("2025-03-26")
    parts = [wires[0].message("tools/call", {"name": "work", "arguments": {}}, id="c"), wires[0].message("ping", id=2)]
    batch = wires[0].raw("POST", json.dumps(parts).encode())
    await pair.stages[0].entered.wait()
    if way == "cancel":
        await wires[1].notify("notifications/cancelled", {"requestId": "c"})
    else:
        await wires[1].delete()
    await pair.stages[0].cancelled.wait()
    await batch.done()


# ── refreshing ──


async def test_a_refresh_while_one_runs_is_made_after_it() -> None:
    stage, seen, go, source = Stage(), list[int](), asyncio.Event(), [1]

    @stage.server.on_refresh
    async def load() -> None:
        seen.append(source[0])
        await go.wait()

    first = asyncio.create_task(stage.server.refresh())
    await settle()
    source[0] = 2
    second = asyncio.create_task(stage.server.refresh())
    await settle()
    go.set()
    await asyncio.gather(first, second)
    assert seen == [1, 2]


async def test_what_changed_before_a_function_failed_is_told(pair: Pair) -> None:
    def load() -> None:
        pair.stages[0].server.add_tool(pair.teller, name="new")
        raise ValueError("no")

    pair.stages[0].server.on_refresh(load)
    await pair.restart()
    listen = HttpWire(pair.apps[1]).start("subscriptions/listen", LISTEN)
    await listen.message()
    with pytest.raises(ValueError, match="no"):
        await pair.stages[0].server.refresh()
    assert (await listen.message())["method"] == "notifications/tools/list_changed"
    listen.leave()
    await listen.done()


@pytest.mark.parametrize("trouble", [StoreTrouble(), NoRoom("full")])
@pytest.mark.parametrize("fails", [True, False])
async def test_if_nobody_knows_who_tells_of_a_refresh_it_is_told(pair: Pair, trouble: Exception, fails: bool) -> None:
    """All of it, and whoever has asked for it hears of what went wrong in the function, not in the store."""
    server = pair.stages[0].server

    @server.on_refresh
    def load() -> None:
        server.add_tool(pair.teller, name="new")
        server.add_resource("test://new", lambda: "new", name="new")
        if fails:
            raise ValueError("no")

    await pair.restart()
    asked = {"notifications": {"toolsListChanged": True, "resourcesListChanged": True}}
    listen = HttpWire(pair.apps[1]).start("subscriptions/listen", asked)
    await listen.message()
    pair.state.claims = trouble
    if fails:
        with pytest.raises(ValueError, match="no"):
            await server.refresh()
    else:
        await server.refresh()
    told = {(await listen.message())["method"] for _ in range(2)}
    assert told == {"notifications/tools/list_changed", "notifications/resources/list_changed"}
    listen.leave()
    await listen.done()


async def test_what_only_another_worker_changes_is_told(pair: Pair) -> None:
    one, other = (stage.server for stage in pair.stages)
    one.on_refresh(lambda: None)
    other.on_refresh(lambda: other.add_tool(pair.teller, name="new"))
    await pair.restart()
    listen = HttpWire(pair.apps[0]).start("subscriptions/listen", LISTEN)
    await listen.message()
    await one.refresh()
    assert (await listen.message())["method"] == "notifications/tools/list_changed"
    listen.leave()
    await listen.done()


async def test_a_count_that_is_lost_or_none(pair: Pair) -> None:
    ran: list[int] = []
    server = pair.stages[0].server
    server.on_refresh(lambda: ran.append(1))
    await pair.restart()
    for _ in range(3):
        await server.refresh()
    await pair.state.delete("refresh")
    await server.refresh()
    assert len(ran) == 4
    await pair.state.put("refresh", b"x", ttl=60)
    await pair.restart()


async def test_a_function_that_hangs_does_not_keep_the_server_from_ending(pair: Pair) -> None:
    one, other = (stage.server for stage in pair.stages)
    never = asyncio.Event()
    one.on_refresh(lambda: None)
    other.on_refresh(never.wait)
    await pair.restart()
    await one.refresh()
    await settle(50)
    await asyncio.wait_for(pair.apps[1].drain(0.1), 5)


# ── and more ──


@pytest.mark.slow
async def test_a_file_is_watched_though_the_worker_that_was_asked_to_has_stopped(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("0")
    for stage in pair.stages:
        stage.server.add_file(path, uri="test://file")
    wires = await pair.session()
    stream = await wires[0].get().started()
    await wires[1].start("resources/subscribe", {"uri": "test://file"}).done()
    await settle(50)
    await pair.apps[1].drain(0.1)
    path.write_text("1 and more")
    async with asyncio.timeout(5):
        assert (await stream.message())["method"] == "notifications/resources/updated"
    stream.leave()
    await stream.done()


async def test_a_call_does_not_wait_for_all_that_changes_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    written = MemoryState.append

    async def slowly(*arguments: Any, **options: Any) -> int:
        await asyncio.sleep(0.02)
        return await written(*arguments, **options)

    monkeypatch.setattr(MemoryState, "append", slowly)

    async def change() -> None:
        for number in range(10_000):
            pair.stages[0].server.notify_resource_updated(f"test://{number % 50}")
            await asyncio.sleep(0.005)

    changing = asyncio.create_task(change())
    await asyncio.sleep(0.05)
    async with asyncio.timeout(2):  # as long as there are changes, something waits to be written
        await HttpWire(pair.apps[0]).call("add", {"a": 1, "b": 2})
    changing.cancel()
    await asyncio.wait([changing])
