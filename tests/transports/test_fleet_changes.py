"""Changes in a fleet: who hears of them after outages, what an answer waits for, and lost counts of refreshes."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_asking import leave

from dovetail import Context
from dovetail.engine import subscriptions as changes
from dovetail.state import base as patience
from dovetail.state.base import StoreTrouble
from http_serving import PausingState, endpoint_of, settle, until
from http_stage import Stage, text_of
from http_wire import HttpWire

TOOLS = {"notifications": {"toolsListChanged": True}}
CHANGED = "notifications/tools/list_changed"
TOO_LONG = 1.5  # seconds for what has nothing to wait for


class GatedState(PausingState):
    """A shared store. Changes are written while `gate` is open; it can forget, go away and come back."""

    shared = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate = asyncio.Event()
        self.gate.set()
        self.away = False

    async def append(self, log: str, data: bytes, **options: Any) -> int:
        if log == changes.LOG:
            await self.gate.wait()
        if self.away:
            raise StoreTrouble
        return await super().append(log, data, **options)

    def come_back(self) -> None:
        self.away = False
        self.outages += 1
        self._topics.tell_all()

    async def changes(self) -> list[changes.LoggedChange | None]:
        return [changes.change_codec().decode(record.data) for record in (await self.read(changes.LOG, 0)).records]


class Fleet:
    """Workers that serve the same, in one process."""

    def __init__(self, stages: list[Any], state: GatedState) -> None:
        self.state = state
        self.stages = stages
        self.apps = [stage.server.asgi(state=state) for stage in stages]

    async def start(self) -> None:
        for app in self.apps:
            await app.start()
        await settle(50)

    async def stop(self) -> None:
        for app in self.apps:
            await asyncio.wait_for(app.drain(0.2), 10)

    async def session(self, version: str = "2025-11-25") -> list[HttpWire]:
        first = await HttpWire.session(self.apps[0], version)
        wires = [HttpWire(app, version) for app in self.apps]
        for wire in wires:
            wire.session_id, wire.ids = first.session_id, first.ids
        return wires


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (changes, patience):
        monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)


@pytest.fixture
async def state() -> GatedState:
    return GatedState()


@pytest.fixture
async def fleet(state: GatedState) -> AsyncIterator[Fleet]:
    fleet = Fleet([Stage(), Stage(), Stage()], state)
    await fleet.start()
    yield fleet
    await fleet.stop()
    assert not state._topics.names


async def listens(app: Any, asked: dict[str, Any] = TOOLS) -> Any:
    listen = HttpWire(app).start("subscriptions/listen", asked)
    await listen.message()
    return listen


# ── the start ──


async def test_whoever_listens_before_a_worker_knows_where_the_log_ends_misses_nothing(
    monkeypatch: pytest.MonkeyPatch, state: GatedState
) -> None:
    fleet = Fleet([Stage(), Stage()], state)
    await fleet.apps[0].start()
    await settle(50)
    found, read = asyncio.Event(), GatedState.read

    async def reads_late(self: GatedState, log: str, *args: Any, **options: Any) -> Any:
        await found.wait()
        return await read(self, log, *args, **options)

    monkeypatch.setattr(GatedState, "read", reads_late)
    await fleet.apps[1].start()
    listening = await listens(fleet.apps[1])
    fleet.stages[0].server.add_tool(late_tool)
    await settle(50)
    found.set()
    assert (await listening.message())["method"] == CHANGED
    await leave(listening)
    await fleet.stop()


def late_tool() -> str:
    return "late"


# ── outages ──


async def test_whoever_listens_hears_of_an_outage_once(fleet: Fleet, state: GatedState) -> None:
    listening = [await listens(app) for app in fleet.apps]
    state.come_back()
    for each in listening:
        assert (await each.message())["method"] == CHANGED
    await settle(200)
    for each in listening:
        await leave(each)
        assert len(each.messages) == 2  # with the acknowledgement


async def test_an_outage_right_after_another_is_announced_too(fleet: Fleet, state: GatedState) -> None:
    listen = await listens(fleet.apps[1])
    stream = await (await HttpWire.session(fleet.apps[2])).get().started()
    for number in range(1, 4):
        state.come_back()
        assert (await listen.message())["method"] == CHANGED
        await stream.until(lambda number=number: [m["method"] for m in stream.messages].count(CHANGED) >= number)
        await settle(200)
        assert [m["method"] for m in stream.messages].count(CHANGED) == number
        assert len(listen.messages) == number + 1
    await leave(listen)
    await leave(stream)


async def test_a_worker_that_starts_later_tells_of_outages_as_well(state: GatedState) -> None:
    for _ in range(2):  # the second one finds that there was one before
        fleet = Fleet([Stage()], state)
        await fleet.start()
        listen = await listens(fleet.apps[0])
        state.come_back()
        assert (await listen.message())["method"] == CHANGED
        await settle(200)
        await leave(listen)
        assert len(listen.messages) == 2
        await fleet.stop()


async def test_a_worker_that_starts_in_an_outage_tells_of_it(fleet: Fleet, state: GatedState) -> None:
    state.come_back()
    await settle(100)
    late = Fleet([Stage()], state)
    read, troubles = state.read, iter([StoreTrouble()] * 5)

    async def troubled(*arguments: Any, **options: Any) -> Any:
        for trouble in troubles:
            raise trouble
        return await read(*arguments, **options)

    state.read = troubled  # type: ignore[method-assign]
    await late.apps[0].start()
    listen = await listens(late.apps[0])
    state.come_back()
    assert (await listen.message())["method"] == CHANGED
    await leave(listen)
    await late.stop()


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_store_that_came_back_without_its_log(fleet: Fleet, state: GatedState, kept: int) -> None:
    """Or with its beginning only."""
    listening = [await listens(app) for app in fleet.apps]
    for number in range(3):
        fleet.stages[0].change_tools()
        for each in listening:
            await each.until(lambda each=each, number=number: len(each.messages) == number + 2)
    records = (await state.read(changes.LOG, 0)).records
    await state.drop(changes.LOG)
    for record in records[:kept]:
        await state.append(changes.LOG, record.data, keep=99, ttl=99)
    state.come_back()
    for each in listening:
        await each.until(lambda each=each: len(each.messages) == 5)
    await settle(200)
    for each in listening:
        await leave(each)
        assert len(each.messages) == 5


# ── what an answer waits for ──


async def test_a_plain_call_does_not_wait_for_the_changes_of_others(fleet: Fleet, state: GatedState) -> None:
    state.gate.clear()
    fleet.stages[0].change_tools()
    await settle()
    async with asyncio.timeout(TOO_LONG):
        assert text_of((await HttpWire(fleet.apps[0]).call("add", {"a": 1, "b": 2})).answer) == "3"
        call = HttpWire(fleet.apps[0]).start_call("work")  # it has to wait, but not for that
        await fleet.stages[0].entered.wait()
        fleet.stages[0].server.notify_resource_updated("test://one")
        fleet.stages[0].go.set()
        assert text_of((await call.done()).answer) == "done"
    state.gate.set()


WAYS = ["at once", "after a pause", "in a thread", "in a task", "by itself"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_who_changes_something_is_answered_when_it_is_written(
    fleet: Fleet, state: GatedState, way: str, version: str
) -> None:
    server = fleet.stages[0].server

    async def notify(ctx: Context) -> None:
        await ctx.notify_tools_changed()

    async def changing(ctx: Context) -> str:
        if way == "after a pause":
            await asyncio.sleep(0)
        if way == "in a task":
            await asyncio.create_task(notify(ctx))
        elif way == "by itself":
            server.notify_resource_updated("test://one")
        else:
            await notify(ctx)
        return "changed"

    def in_thread() -> str:
        server.notify_resource_updated("test://one")
        return "changed"

    server.add_tool(in_thread if way == "in a thread" else changing, name="changing")
    await settle(50)
    wire = HttpWire(fleet.apps[0]) if version == "2026-07-28" else await HttpWire.session(fleet.apps[0], version)
    before = len(await state.changes())
    state.gate.clear()
    call = wire.start_call("changing")
    await asyncio.sleep(0.1)
    assert not call.ended
    state.gate.set()
    assert text_of((await call.done()).answer) == "changed"
    assert len(await state.changes()) == before + 1


async def test_a_batch_that_changes_something(fleet: Fleet, state: GatedState) -> None:
    async def changing(ctx: Context) -> str:
        await ctx.notify_tools_changed()
        return "changed"

    fleet.stages[0].server.add_tool(changing)
    await settle(50)
    wire = await HttpWire.session(fleet.apps[0], "2025-03-26")
    state.gate.clear()
    part = wire.message("tools/call", {"name": "changing", "arguments": {}}, id=7)
    batch = wire.raw("POST", json.dumps([part]).encode())
    await asyncio.sleep(0.1)
    assert not batch.ended
    state.gate.set()
    await batch.done()


# ── refreshing ──


@pytest.mark.parametrize("refreshing", [0, 1, 2])
async def test_a_refresh_reaches_all_after_its_count_was_lost(state: GatedState, refreshing: int) -> None:
    """Also one by a worker that has started since, and knows of none before."""
    stages, ran = [Stage(), Stage(), Stage()], list[int]()
    for number, stage in enumerate(stages):
        stage.server.on_refresh(lambda number=number: ran.append(number))
    fleet = Fleet(stages, state)
    for app in fleet.apps[:2]:
        await app.start()
    await stages[0].server.refresh()
    await stages[1].server.refresh()
    await until(lambda: sorted(ran) == [0, 0, 1, 1])  # the functions run in threads
    await state.delete("refresh")
    await fleet.apps[2].start()
    await stages[refreshing].server.refresh()
    await until(lambda: sorted(ran) == [0, 0, 0, 1, 1, 1, 2])
    await fleet.stop()


# ── and more ──


async def test_a_change_that_can_not_be_written_is_given_up(
    fleet: Fleet, state: GatedState, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.stages[0].server.notify_resource_updated("test://\ud800")
    fleet.stages[0].change_tools()
    await asyncio.sleep(0.1)
    assert [told.kind for told in await state.changes() if told] == ["tools"]
    assert len([each for each in caplog.records if "change" in each.message]) == 1
    assert endpoint_of(fleet.apps[0])._changes._subscription._pending == {}
