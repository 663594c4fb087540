"""Changes and refreshes in a fleet: who hears of them, what an answer waits for, and a store that is out of reach."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from http_clients import RESOURCES, TOOLS, UPDATED, Fleet, FleetOf, SharedState, leave, methods

from dovetail import Context
from http_serving import Serve, Stage, settle, until
from http_wire import HANDSHAKE, MODERN, HttpWire, initialize, open_wire, text_of

BOTH = {"toolsListChanged": True, "resourceSubscriptions": ["test://one"]}


# ── who hears ──


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_changes_elsewhere_are_heard_once_and_written_once(fleet: Fleet, version: str) -> None:
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


async def test_a_tool_that_only_one_worker_has_is_warned_of(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.stages[0].server.add_tool(fleet.stages[0].add, name="new")
    assert "on_refresh" in caplog.text


# ── outages ──


async def test_each_outage_is_told_once_to_every_listener_of_all_that_it_asked_for(fleet: Fleet) -> None:
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


# ── what an answer waits for ──


async def test_a_plain_call_does_not_wait_for_the_changes_of_others(fleet: Fleet) -> None:
    fleet.store.gate.clear()
    fleet.stages[0].change_tools()
    await settle()
    assert text_of((await HttpWire(fleet.apps[0]).call("add", {"a": 1, "b": 2})).answer) == "3"
    call = HttpWire(fleet.apps[0]).start_call("work")  # it has to wait, but not for that
    await fleet.stages[0].entered.wait()
    fleet.stages[0].server.notify_resource_updated("test://one")
    fleet.stages[0].go.set()
    assert text_of((await call.done(1)).answer) == "done"
    fleet.store.gate.set()


@pytest.mark.parametrize("way", ["at once", "in a thread", "in a task", "by itself"])
@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25", MODERN])
async def test_who_changes_something_is_answered_when_it_is_written(fleet: Fleet, way: str, version: str) -> None:
    server = fleet.stages[0].server

    async def notify(ctx: Context) -> None:
        await ctx.notify_tools_changed()

    async def changing(ctx: Context) -> str:
        if way == "by itself":
            server.notify_resource_updated("test://one")
        else:
            await (asyncio.create_task(notify(ctx)) if way == "in a task" else notify(ctx))
        return "changed"

    def in_thread() -> str:
        server.notify_resource_updated("test://one")
        return "changed"

    server.add_tool(in_thread if way == "in a thread" else changing, name="changing")
    await settle(50)
    wire = await open_wire(fleet.apps[0], version)
    before = (await fleet.store.read("changes", 0)).last
    fleet.store.gate.clear()
    if version == "2025-03-26":  # in a batch
        part = wire.message("tools/call", {"name": "changing", "arguments": {}}, id=7)
        call = wire.raw("POST", json.dumps([part]).encode())
    else:
        call = wire.start_call("changing")
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
    await leave(listen)


# ── refreshing ──


class Refreshing(Stage):
    """`loads` are run by a refresh, which is noted in `ran`."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = []
        self.loads: Callable[[], Any] = lambda: None
        self.server.on_refresh(self.load)

    async def load(self) -> None:
        self.ran.append("load")
        if (found := self.loads()) is not None:
            await found

    def offer(self, *names: str) -> None:
        for name in names:
            self.server.add_tool(self.add, name=name)


@pytest.fixture
async def refreshing(fleet_of: FleetOf) -> Fleet:
    return await fleet_of(Refreshing)


def times(fleet: Fleet) -> list[int]:
    return [len(stage.ran) for stage in fleet.stages]


async def test_every_worker_refreshes_and_each_client_hears_of_it() -> None:
    fleet = Fleet(Refreshing)
    for stage in fleet.stages:
        stage.loads = lambda stage=stage: stage.offer("one", "two")
    late = fleet.apps.pop()
    await fleet.start()
    stream = await (await HttpWire.session(fleet.apps[0])).get().started()
    listens = [await fleet.listens(at) for at in range(2)]
    await fleet.stages[1].server.refresh()
    for heard in (*listens, stream):
        assert (await heard.message())["method"] == TOOLS
    await until(lambda: times(fleet) == [1, 1, 0])
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


async def test_a_function_that_hangs_does_not_keep_the_server_from_ending(refreshing: Fleet) -> None:
    refreshing.stages[1].loads = asyncio.Event().wait
    await refreshing.stages[0].server.refresh()
    await settle(50)
    await asyncio.wait_for(refreshing.apps[1].drain(0.1), 5)


# ── a store that is out of reach: what needs it gets a clear error, all else goes on, and it all comes back ──


@pytest.fixture
async def state() -> SharedState:
    return SharedState()


@pytest.fixture
async def app(serve: Serve, state: SharedState) -> Any:
    return await serve(state=state)


async def test_what_needs_a_session_is_refused_for_now_and_plain_calls_go_on(app: Any, state: SharedState) -> None:
    wire = await HttpWire.session(app)
    state.away = True
    for refused in (
        await wire.call("add", {"a": 1, "b": 2}),
        await wire.notify("notifications/cancelled", {"requestId": 9}),
        await wire.get().done(),
        await wire.delete(),
        await initialize(app),
    ):
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "state store" in refused.json["error"]["message"]
    assert text_of((await HttpWire(app).call("add", {"a": 1, "b": 2})).answer) == "3"
    state.come_back()
    assert text_of((await wire.call("add", {"a": 1, "b": 2})).answer) == "3"


async def test_readiness_tells_and_costs_the_store_nothing(
    fleet_of: FleetOf, pass_time: Callable[[float], None]
) -> None:
    fleet = await fleet_of(Stage, count=1)
    probe = HttpWire(fleet.apps[0])
    askers = set()

    async def fate(name: str, key: str) -> bool:
        askers.add(asyncio.current_task())
        return not fleet.store.away

    fleet.views[0].fate = fate
    for is_away, status in ((False, 200), (True, 503), (False, 200)):
        fleet.store.away = is_away
        pass_time(1)  # after which the worker looks again
        await probe.until_ready(status)
        assert (await probe.raw("GET", path="/health").done()).status == 200
    before = set(askers)
    assert [(await probe.raw("GET", path="/ready").done()).status for _ in range(100)] == [200] * 100
    assert askers == before  # who asks for readiness has a task too


async def test_the_server_ends_without_it(stage: Stage) -> None:
    state = SharedState()
    app = stage.server.asgi(state=state)
    await app.start()
    state.away = True
    stage.change_tools()
    await asyncio.wait_for(app.drain(1), 10)
