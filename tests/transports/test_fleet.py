"""Several workers, one server: any request of a session may come to any of them. Here they share a store in memory."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asking_stage import AskingStage
from dovetail import Context
from dovetail.engine.subscriptions import Change
from dovetail.transports.event_store import WORKER_LOST
from http_serving import PausingState, endpoint_of, settle
from http_stage import HANDSHAKE, Stage, text_of
from http_wire import MODERN, HttpWire

LISTEN = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["test://one"]}}


class SharedState(PausingState):
    """What Redis is to workers on many hosts, for apps in one process."""

    shared = True


class Fleet:
    """Workers that serve the same, each in an app of its own."""

    def __init__(self, stages: list[Any], apps: list[Any], state: SharedState) -> None:
        self.stages = stages
        self.apps = apps
        self.state = state

    async def session(self, version: str, at: int = 0, **options: Any) -> "list[HttpWire]":
        """One session, at each of the workers."""
        first = await HttpWire.session(self.apps[at], version, **options)
        wires = [HttpWire(app, version) for app in self.apps]
        for wire in wires:
            wire.session_id, wire.ids = first.session_id, first.ids
        return wires

    async def lose(self, number: int) -> None:
        """The worker shows no more that it lives, as if it were killed; what it runs goes on, to make things worse."""
        lost = endpoint_of(self.apps[number]).member
        assert lost._renewing is not None
        lost._renewing.cancel()
        await asyncio.sleep(0)
        await self.state.delete(f"worker/{lost.id}")


async def _fleet(kind: Any) -> AsyncIterator[Fleet]:
    state = SharedState()
    stages = [kind() for _ in range(3)]
    apps = [stage.server.asgi(state=state) for stage in stages]
    for app in apps:
        await app.start()
    endpoints = [endpoint_of(app) for app in apps]
    yield Fleet(stages, apps, state)
    for app in apps:
        await asyncio.wait_for(app.drain(1), 10)
    await settle()
    assert not any(each._calls.here or each._calls._known for each in endpoints)
    assert not any(each._store.running or each._streams._newest for each in endpoints)
    assert not state._topics.names


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    async for fleet in _fleet(Stage):
        yield fleet


@pytest.fixture
async def asking_fleet() -> AsyncIterator[Fleet]:
    async for fleet in _fleet(AskingStage):
        yield fleet


every_handshake = pytest.mark.parametrize("version", HANDSHAKE)


# ── any request, any worker ──


@every_handshake
async def test_a_session_works_everywhere(fleet: Fleet, version: str) -> None:
    for wire in await fleet.session(version):
        assert text_of((await wire.call("add", {"a": 1, "b": 2})).answer) == "3"


async def test_what_a_session_has_set_holds_everywhere(fleet: Fleet) -> None:
    wires = await fleet.session("2025-11-25")
    await wires[0].start("logging/setLevel", {"level": "error"}).done()
    call = wires[1].start_call("tell")
    await fleet.stages[1].entered.wait()
    fleet.stages[1].go.set()
    await call.done()
    assert [each for each in call.messages if each.get("method") == "notifications/message"] == []


async def test_the_end_of_a_session_ends_its_calls_and_streams_everywhere(fleet: Fleet) -> None:
    wires = await fleet.session("2025-11-25")
    stream = await wires[1].get().started()
    call = await wires[0].start_call("work").started()  # it takes its time
    assert (await wires[2].delete()).status == 204
    await fleet.stages[0].cancelled.wait()
    await asyncio.gather(call.done(), stream.done())
    for wire in wires:
        assert (await wire.start("ping").done()).status == 404


async def test_a_call_is_cancelled_from_elsewhere(fleet: Fleet) -> None:
    wires = await fleet.session("2025-11-25")
    call = await wires[0].start_call("work", id="c").started()
    await wires[1].notify("notifications/cancelled", {"requestId": "other"})
    await wires[1].notify("notifications/cancelled", {"requestId": "c"})
    await fleet.stages[0].cancelled.wait()
    await call.done()
    assert call.messages == []


async def test_a_cancellation_may_come_before_the_call_can_be_reached(fleet: Fleet) -> None:
    wires = await fleet.session("2025-11-25")
    call = wires[0].start_call("work", id="c")
    await fleet.stages[0].entered.wait()
    await wires[1].notify("notifications/cancelled", {"requestId": "c"})
    await fleet.stages[0].cancelled.wait()
    await call.done()


@every_handshake
async def test_a_change_is_heard_everywhere(fleet: Fleet, version: str) -> None:
    wires = await fleet.session(version)
    assert (await wires[2].start("resources/subscribe", {"uri": "test://one"}).done()).status == 200
    stream = await wires[0].get().started()
    fleet.stages[1].server.notify_resource_updated("test://one")
    assert (await stream.message())["params"] == {"uri": "test://one"}
    fleet.stages[2].change_tools()
    assert (await stream.message())["method"] == "notifications/tools/list_changed"
    stream.leave()
    await stream.done()


async def test_a_listen_hears_of_changes_elsewhere_once(fleet: Fleet) -> None:
    listens = [HttpWire(app).start("subscriptions/listen", LISTEN) for app in fleet.apps]
    for listen in listens:
        assert (await listen.message())["method"] == "notifications/subscriptions/acknowledged"
    fleet.stages[0].server.notify_resource_updated("test://one")
    for listen in listens:
        assert (await listen.message())["params"]["uri"] == "test://one"
    fleet.stages[1].change_tools()
    for listen in listens:
        assert (await listen.message())["method"] == "notifications/tools/list_changed"
    await settle(50)
    for listen in listens:
        assert len(listen.messages) == 3
        listen.leave()
        await listen.done()


async def test_after_an_outage_every_listener_is_told_of_all_that_it_asked_for(fleet: Fleet) -> None:
    wires = await fleet.session("2025-11-25")
    await wires[0].start("resources/subscribe", {"uri": "test://one"}).done()
    stream = await wires[1].get().started()
    listen = HttpWire(fleet.apps[2]).start("subscriptions/listen", LISTEN)
    await listen.message()
    fleet.state.outages += 1
    fleet.state._topics.tell_all()
    heard = [await listen.message() for _ in range(2)]
    assert {each["method"] for each in heard} == {
        "notifications/tools/list_changed",
        "notifications/resources/updated",
    }
    heard = [await stream.message() for _ in range(3)]  # the stage has tools and resources
    assert {each["method"] for each in heard} == {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
    }
    await settle(50)
    assert len(listen.messages) == 3
    assert len(stream.messages) == 3
    for each in (stream, listen):
        each.leave()
        await each.done()


async def test_the_newest_stream_of_a_session_owns_it(fleet: Fleet) -> None:
    wires = await fleet.session("2025-11-25")
    older = await wires[0].get().started()
    newer = await wires[1].get().started()
    await older.done()
    fleet.stages[2].change_tools()
    assert (await newer.message())["method"] == "notifications/tools/list_changed"
    newer.leave()
    await newer.done()


async def test_the_rest_of_an_answer_is_had_elsewhere(fleet: Fleet) -> None:
    wires = await fleet.session("2025-11-25")
    call = wires[0].start_call("tell", {"times": 2}, id="t")
    await call.message()
    place = call.events[-1].id
    assert (await call.message())["params"]["data"] == "first"
    await call.cut()
    rest = wires[1].get(place)
    assert (await rest.message())["params"]["data"] == "first"
    fleet.stages[0].go.set()
    assert (await rest.message())["params"]["data"] == "second"
    assert text_of(await rest.message()) == "told"
    await rest.done()
    again = await wires[2].get(place).done()
    assert again.messages == rest.messages


@every_handshake
async def test_an_answer_to_a_question_may_come_anywhere(asking_fleet: Fleet, version: str) -> None:
    capabilities = {"roots": {}}
    wires = await asking_fleet.session(version, capabilities=capabilities)
    call = wires[0].start_call("ask")
    question = await call.message()
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}}
    assert (await wires[2].raw("POST", json.dumps(answer).encode()).done()).status == 202
    await call.done()
    assert json.loads(text_of(call.answer)) == [{"roots": []}]


async def test_a_question_is_heard_where_the_rest_of_the_answer_is(asking_fleet: Fleet) -> None:
    wires = await asking_fleet.session("2025-11-25", capabilities={"roots": {}})
    call = wires[0].start_call("ask")
    question = await call.message()
    primed = call.events[0].id
    await call.cut()
    rest = wires[1].get(primed)
    assert (await rest.message())["id"] == question["id"]
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}}
    await wires[2].raw("POST", json.dumps(answer).encode()).done()
    assert json.loads(text_of(await rest.message())) == [{"roots": []}]
    await rest.done()


async def test_a_visit_is_told_over_from_anywhere(fleet: Fleet) -> None:
    @fleet.stages[0].server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("Sign in", "https://example.com/in", elicitation_id="page")).action

    capabilities = {"elicitation": {"url": {}}}
    wires = await fleet.session("2025-11-25", capabilities=capabilities)
    stream = await wires[1].get().started()
    call = wires[0].start_call("visit")
    question = await call.message()
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}
    await wires[2].raw("POST", json.dumps(answer).encode()).done()
    assert text_of((await call.done()).answer) == "accept"
    assert await fleet.stages[2].server.complete_elicitation("page")
    assert (await stream.message())["method"] == "notifications/elicitation/complete"
    assert not await fleet.stages[2].server.complete_elicitation("page")
    stream.leave()
    await stream.done()


# ── refreshing ──


@pytest.mark.parametrize("is_async", [False, True])
async def test_every_worker_refreshes_and_each_client_hears_of_it_once(is_async: bool) -> None:
    state, stages = SharedState(), [Stage() for _ in range(3)]
    ran: list[int] = []

    def refreshing(number: int) -> Any:
        def change() -> None:
            ran.append(number)
            stages[number].server.add_tool(stages[number].add, name="one")
            stages[number].server.add_tool(stages[number].add, name="two")

        async def change_async() -> None:
            await asyncio.sleep(0)
            change()

        return change_async if is_async else change

    for number, stage in enumerate(stages):
        stage.server.on_refresh(refreshing(number))
    apps = [stage.server.asgi(state=state) for stage in stages]
    for app in apps[:2]:
        await app.start()
    session = await HttpWire.session(apps[0])
    stream = await session.get().started()
    listens = [HttpWire(app).start("subscriptions/listen", LISTEN) for app in apps[:2]]
    for listen in listens:
        await listen.message()
    await stages[1].server.refresh()
    for heard in (*listens, stream):
        assert (await heard.message())["method"] == "notifications/tools/list_changed"
    assert sorted(ran) == [0, 1]
    await apps[2].start()  # later, and has all of it too
    for app in apps:
        names = {each["name"] for each in (await HttpWire(app).ask("tools/list"))["tools"]}
        assert {"one", "two"} <= names
    await settle(100)
    assert [len(listen.messages) for listen in listens] == [2, 2]
    assert len(stream.messages) == 1
    for each in (*listens, stream):
        each.leave()
        await each.done()
    for app in apps:
        await app.drain(1)


async def test_a_tool_that_only_one_worker_has_is_warned_of(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.stages[0].server.add_tool(fleet.stages[0].add, name="new")
    assert "on_refresh" in caplog.text


# ── a worker is lost ──


async def test_whoever_waits_for_a_lost_worker_is_told_once(fleet: Fleet) -> None:
    wires = await fleet.session("2025-11-25")
    call = wires[0].start_call("tell", id="t")
    await call.message()
    primed = call.events[0].id
    await call.cut()
    rests = [wires[1].get(primed), wires[2].get(primed)]
    for rest in rests:
        await rest.message()
    await fleet.lose(0)
    for rest in rests:
        lost = await rest.message()
        assert (lost["id"], lost["error"]["message"]) == ("t", WORKER_LOST)
        await rest.done()
    fleet.stages[0].go.set()  # it lives after all, and comes too late
    await settle(100)
    again = await wires[1].get(primed).done()
    assert [each for each in again.messages if "id" in each] == [lost]


async def test_a_call_that_said_nothing_before_its_worker_was_lost(fleet: Fleet) -> None:
    wires = await fleet.session("2025-11-25")
    call = wires[0].start_call("work", id=7)
    primed = (await call.event()).id
    await call.cut()
    await fleet.lose(0)
    rest = await wires[1].get(primed).done()
    assert [each["id"] for each in rest.messages] == [7]
    assert rest.answer["error"]["message"] == WORKER_LOST
    fleet.stages[0].go.set()
    await settle(100)


async def test_a_worker_that_only_could_not_show_itself_is_not_lost(fleet: Fleet) -> None:
    """The store stood still for longer than a lease lasts."""
    wires = await fleet.session("2025-11-25")
    call = wires[0].start_call("tell", id="t")
    await call.message()
    primed = call.events[0].id
    await call.cut()
    rest = wires[1].get(primed)
    await rest.message()
    alive = endpoint_of(fleet.apps[0]).member
    await fleet.state.delete(f"worker/{alive.id}")
    for _ in range(5):
        fleet.state.outages += 1
        await asyncio.sleep(0.05)
    await fleet.state.put(f"worker/{alive.id}", b"", ttl=60)
    await asyncio.sleep(0.2)
    fleet.stages[0].go.set()
    assert (await rest.message())["params"]["data"] == "second"
    assert text_of(await rest.message()) == "told"
    await rest.done()


# ── HTTP+SSE ──


async def test_what_an_sse_client_posts_elsewhere_reaches_its_stream(fleet: Fleet) -> None:
    stream = HttpWire(fleet.apps[0], "2024-11-05").raw("GET", path="/sse")
    path, _, query = (await stream.event()).data.decode().partition("?")
    hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}},
    ]
    for number, message in enumerate(messages):
        wire = HttpWire(fleet.apps[number % 3])
        headers: dict[str, str | None] = {"content-type": "application/json"}
        posted = await wire.raw("POST", json.dumps(message).encode(), headers, path=path, query=query).done()
        assert posted.status == 202
        answer = await stream.message() if "id" in message else None
    assert text_of(answer) == "3"
    stream.leave()
    await stream.done()
    await settle()
    late = await HttpWire(fleet.apps[1]).raw("POST", b"{}", headers, path=path, query=query).done()
    assert late.status == 404


# ── what does not need the store ──


async def test_a_plain_call_does_not_touch_the_store(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = []
    for name in ("get", "put", "touch", "delete", "claim", "add", "append", "read", "drop", "publish"):
        monkeypatch.setattr(type(fleet.state), name, lambda *_, name=name, **__: touched.append(name))
    for app in fleet.apps:
        endpoint_of(app).member._renewing.cancel()
    answer = await HttpWire(fleet.apps[0], MODERN).call("add", {"a": 1, "b": 2})
    assert (text_of(answer.answer), touched) == ("3", [])
    monkeypatch.undo()


async def test_a_change_at_one_worker_is_written_once(fleet: Fleet) -> None:
    fleet.stages[0].server.engine.publish(Change("tools"))
    await settle(100)
    assert (await fleet.state.read("changes", 0)).last == 1
