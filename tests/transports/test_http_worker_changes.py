"""Changes and refreshes in a fleet: who is notified, what a response waits for, and an unavailable store."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from http_clients import RESOURCES, TOOLS, UPDATED, Fleet, FleetOf, leave, methods, no_answer

from dovetail import Context
from http_serving import Stage, endpoint_of, settle, until
from http_wire import HANDSHAKE, MODERN, HttpWire, initialize, open_wire, text_of

BOTH = {"toolsListChanged": True, "resourceSubscriptions": ["test://one"]}


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_changes_elsewhere_are_notified_once_and_written_once(fleet: Fleet, version: str) -> None:
    wires = await fleet.session(version)
    await wires[2].ask("resources/subscribe", {"uri": "test://one"})
    streams = [await wires[0].get().started(), *[await fleet.listens(at, **BOTH) for at in range(3)]]
    fleet.stages[0].server.notify_resource_updated("test://one")
    for stream in streams:
        assert (await stream.message())["params"]["uri"] == "test://one"
    fleet.stages[1].change_tools()
    for stream in streams:
        assert (await stream.message())["method"] == TOOLS
    await settle(50)
    assert [len(stream.messages) for stream in streams] == [2, 3, 3, 3]
    assert (await fleet.store.read("changes", 0)).last == 2
    await leave(*streams)


async def test_after_each_outage_every_listener_is_notified_once_of_all_that_it_asked_for(fleet: Fleet) -> None:
    wires = await fleet.session()
    await wires[0].ask("resources/subscribe", {"uri": "test://one"})
    stream = await wires[1].get().started()
    listens = [await fleet.listens(at, **BOTH) for at in range(3)]
    for number in range(1, 4):
        fleet.store.come_back()
        for listen in listens:
            assert {(await listen.message())["method"] for _ in range(2)} == {TOOLS, UPDATED}
        await stream.until(lambda number=number: len(stream.messages) >= 3 * number)
        await settle(200)
        assert {*methods(stream)[-3:]} == {TOOLS, RESOURCES, UPDATED}
        assert [len(each.messages) for each in (stream, *listens)] == [3 * number, *[2 * number + 1] * 3]
    await leave(stream, *listens)


async def test_a_plain_call_neither_touches_the_store_nor_waits_for_the_changes_of_others(fleet: Fleet) -> None:
    endpoint_of(fleet.apps[0]).lease._renewing.cancel()
    touched: list[str] = []

    async def fate(name: str, key: str) -> bool:
        touched.append(name)
        return True

    fleet.views[0].fate = fate
    wire = HttpWire(fleet.apps[0])
    assert (await wire.ask("tools/list"))["tools"]
    assert text_of((await wire.call("add", {"a": 1, "b": 2})).answer) == "3"
    assert touched == []
    fleet.store.gate.clear()
    fleet.stages[0].change_tools()
    await settle()
    assert text_of((await wire.call("add", {"a": 1, "b": 2})).answer) == "3"
    call = wire.start_call("work")  # it has to wait, but not for that
    await fleet.stages[0].entered.wait()
    fleet.stages[0].server.notify_resource_updated("test://one")
    fleet.stages[0].go.set()
    assert text_of((await call.done()).answer) == "done"
    fleet.store.gate.set()


@pytest.mark.parametrize("way", ["at once", "in a thread", "in a task", "by itself"])
@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25", MODERN])
async def test_who_changes_something_is_answered_when_it_is_written(fleet: Fleet, way: str, version: str) -> None:
    server = fleet.stages[0].server

    async def changing(ctx: Context) -> None:
        await (asyncio.create_task(ctx.notify_tools_changed()) if way == "in a task" else ctx.notify_tools_changed())

    def in_thread() -> None:
        server.notify_resource_updated("test://one")

    async def by_itself() -> None:
        server.notify_resource_updated("test://one")

    server.add_tool({"in a thread": in_thread, "by itself": by_itself}.get(way, changing), name="changing")
    await settle(50)
    wire = await open_wire(fleet.apps[0], version)
    before = (await fleet.store.read("changes", 0)).last
    fleet.store.gate.clear()
    part = wire.message("tools/call", {"name": "changing", "arguments": {}}, id=7)
    is_batch = version == "2025-03-26"
    call = wire.raw("POST", json.dumps([part]).encode()) if is_batch else wire.start_call("changing")
    assert await asyncio.wait({call.task}, timeout=0.1) == (set(), {call.task})
    fleet.store.gate.set()
    await call.done()
    assert (await fleet.store.read("changes", 0)).last == before + 1


async def test_a_change_that_can_not_be_written_is_given_up(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    listen = await fleet.listens(1)
    fleet.stages[0].server.notify_resource_updated("test://\ud800")
    fleet.stages[0].change_tools()
    assert (await listen.message())["method"] == TOOLS
    assert len([each for each in caplog.records if "change" in each.message]) == 1
    fleet.stages[0].server.add_tool(fleet.stages[0].add, name="new")  # one that the others do not have is warned of
    assert "on_refresh" in caplog.text
    await leave(listen)


class Refreshing(Stage):
    """`loads` are run by a refresh, which is noted in `ran`."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: Callable[[], Any] = lambda: None
        self.server.on_refresh(self.load)

    async def load(self) -> None:
        self.ran.append("load")
        if (found := self.loads()) is not None:
            await found

    def offer(self) -> None:
        for name in ("one", "two"):
            self.server.add_tool(self.add, name=name)


async def test_every_worker_refreshes_and_each_client_is_notified_of_it() -> None:
    fleet = Fleet(Refreshing)
    for stage in fleet.stages:
        stage.loads = stage.offer
    late = fleet.apps.pop()
    await fleet.start()
    stream = await (await HttpWire.session(fleet.apps[0])).get().started()
    listens = [await fleet.listens(at) for at in range(2)]
    await fleet.stages[1].server.refresh()
    for received in (*listens, stream):
        assert (await received.message())["method"] == TOOLS
    await until(lambda: [len(stage.ran) for stage in fleet.stages] == [1, 1, 0])
    await late.start()  # and has all of it too
    fleet.apps.append(late)
    for app in fleet.apps:
        assert {"one", "two"} <= {each["name"] for each in (await HttpWire(app).ask("tools/list"))["tools"]}
    await leave(stream, *listens)
    await fleet.stop()


async def test_a_refresh_while_one_runs_is_made_after_it() -> None:
    stage, go = Refreshing(), asyncio.Event()
    stage.loads = go.wait
    refreshes = [asyncio.create_task(stage.server.refresh()) for _ in range(2)]
    await settle()
    assert stage.ran == ["load"]
    go.set()
    await asyncio.gather(*refreshes)
    assert stage.ran == ["load"] * 2


async def test_a_function_that_hangs_does_not_keep_the_server_from_ending(fleet_of: FleetOf) -> None:
    fleet = await fleet_of(Refreshing, count=2)
    fleet.stages[1].loads = asyncio.Event().wait
    await fleet.stages[0].server.refresh()
    await until(lambda: bool(fleet.stages[1].ran))
    await asyncio.wait_for(fleet.apps[1].drain(0.1), 5)


async def test_what_needs_a_session_is_refused_for_now_and_plain_calls_go_on(fleet: Fleet) -> None:
    wire, *_ = await fleet.session()
    fleet.views[0].fate = no_answer
    for refused in (
        await wire.call("add", {"a": 1, "b": 2}),
        await wire.notify("notifications/cancelled", {"requestId": 9}),
        await wire.get().done(),
        await wire.delete(),
        await initialize(wire.app),
    ):
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "state store" in refused.json["error"]["message"]
    assert text_of((await HttpWire(wire.app).call("add", {"a": 1, "b": 2})).answer) == "3"
    fleet.views[0].fate = None
    assert text_of((await wire.call("add", {"a": 1, "b": 2})).answer) == "3"
    fleet.views[0].fate = no_answer
    fleet.stages[0].change_tools()
    await asyncio.wait_for(wire.app.drain(1), 10)  # it ends without the store


async def test_readiness_shows_it_and_costs_the_store_nothing(
    fleet_of: FleetOf, pass_time: Callable[[float], None]
) -> None:
    fleet = await fleet_of(Stage, count=1)
    probe = HttpWire(fleet.apps[0])
    askers = set()

    async def fate(name: str, key: str) -> bool:
        askers.add(asyncio.current_task())
        return True

    for is_away, status in ((False, 200), (True, 503), (False, 200)):
        fleet.views[0].fate = no_answer if is_away else fate
        pass_time(1)  # after which the worker looks again
        await probe.until_ready(status)
        assert (await probe.raw("GET", path="/health").done()).status == 200
    before = set(askers)
    assert [(await probe.raw("GET", path="/ready").done()).status for _ in range(100)] == [200] * 100
    assert askers == before  # who asks for readiness has a task too
