"""A store that is out of reach: what needs it gets a clear error, all else goes on, and it all comes back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.engine import subscriptions as changes
from dovetail.state import base as patience
from dovetail.state.base import StoreTrouble
from far_state import FarState
from http_serving import PausingState, endpoint_of, serving, settle
from http_stage import Stage, text_of
from http_wire import HttpWire

CALLS = ("get", "put", "touch", "delete", "claim", "add", "append", "read", "drop", "publish", "check")
LISTEN = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["test://one"]}}


class TroubledState(PausingState):
    """A shared store that can go away."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    def __getattribute__(self, name: str) -> Any:
        if name in CALLS and self.away:
            return _fail
        return super().__getattribute__(name)

    def come_back(self) -> None:
        self.away = False
        self.outages += 1
        self._topics.tell_all()


async def _fail(*_arguments: Any, **_options: Any) -> Any:
    await asyncio.sleep(0)
    raise StoreTrouble


@pytest.fixture
async def state(monkeypatch: pytest.MonkeyPatch) -> TroubledState:
    for module in (changes, patience):
        monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    return TroubledState()


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
async def app(stage: Stage, state: TroubledState) -> AsyncIterator[Any]:
    app = stage.server.asgi(state=state)
    await app.start()
    yield app
    await asyncio.wait_for(app.drain(1), 10)
    assert not state._topics.names


async def test_plain_calls_go_on(app: Any, state: TroubledState) -> None:
    state.away = True
    assert text_of((await HttpWire(app).call("add", {"a": 1, "b": 2})).answer) == "3"
    state.come_back()


async def test_what_needs_a_session_is_refused_for_now(app: Any, state: TroubledState) -> None:
    wire = await HttpWire.session(app)
    state.away = True
    for refused in (
        await wire.call("add", {"a": 1, "b": 2}),
        await wire.notify("notifications/cancelled", {"requestId": 9}),
        await wire.get().done(),
        await wire.delete(),
    ):
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "state store" in refused.json["error"]["message"]
    state.come_back()
    assert text_of((await wire.call("add", {"a": 1, "b": 2})).answer) == "3"


async def test_nobody_can_shake_hands_meanwhile(app: Any, state: TroubledState) -> None:
    state.away = True
    with pytest.raises(AssertionError, match="state store"):
        await HttpWire.session(app)
    state.come_back()
    await HttpWire.session(app)


async def probe(app: Any, path: str = "/ready") -> int:
    return (await HttpWire(app).raw("GET", path=path).done()).status


async def test_readiness_tells(app: Any, state: TroubledState) -> None:
    await HttpWire(app).until_ready(200)
    state.away = True
    await HttpWire(app).until_ready(503)
    assert await probe(app, "/health") == 200
    state.come_back()
    await HttpWire(app).until_ready(200)


async def test_who_asks_for_readiness_costs_the_store_nothing() -> None:
    state = Counting()
    async with serving(Stage().server, state=state) as app:
        await HttpWire(app).until_ready(200)  # once it has looked, in a task of its own
        before = set(state.askers)
        assert [await probe(app) for _ in range(100)] == [200] * 100
        assert before
        assert state.askers == before  # who asks for readiness has a task too


class Counting(FarState):
    """Notes the task of every command."""

    def __init__(self) -> None:
        super().__init__()
        self.askers: set[asyncio.Task[Any] | None] = set()

    async def _travel(self, name: str) -> None:
        self.askers.add(asyncio.current_task())
        await super()._travel(name)

    async def put(self, *arguments: Any, **options: Any) -> int:
        await self._travel("put")
        return await super().put(*arguments, **options)

    async def check(self) -> None:
        await self._travel("check")


async def test_events_wait_for_the_end_of_a_short_outage(app: Any, stage: Stage, state: TroubledState) -> None:
    wire = await HttpWire.session(app)
    call = wire.start_call("tell")
    await call.message()
    first = call.events[-1].id
    state.away = True
    stage.go.set()
    await asyncio.sleep(0.05)
    assert len(call.messages) == 1
    state.come_back()
    await call.done()
    assert all(event.id for event in call.events)
    assert (await wire.get(first).done()).messages == call.messages[1:]


async def test_events_are_numbered_rightly_after_it(app: Any, stage: Stage, state: TroubledState) -> None:
    wire = await HttpWire.session(app)
    call = wire.start_call("tell", {"times": 2})
    await call.message()
    first = call.events[-1].id
    await call.message()
    state.away = True
    await asyncio.sleep(0.1)
    state.come_back()
    stage.go.set()
    await call.done()
    rest = await wire.get(first).done()
    assert rest.messages == call.messages[1:]


async def test_listeners_stay_and_are_told_when_it_is_over(app: Any, stage: Stage, state: TroubledState) -> None:
    wire = await HttpWire.session(app)
    stream = await wire.get().started()
    listen = HttpWire(app).start("subscriptions/listen", LISTEN)
    await listen.message()
    state.away = True
    stage.server.notify_resource_updated("test://one")  # here it is heard nevertheless
    assert (await listen.message())["params"]["uri"] == "test://one"
    stage.change_tools()
    assert (await listen.message())["method"] == "notifications/tools/list_changed"
    await asyncio.sleep(0.1)
    assert stream.messages == []
    state.come_back()
    heard = {(await listen.message())["method"] for _ in range(2)}
    assert heard == {"notifications/tools/list_changed", "notifications/resources/updated"}
    await stream.until(lambda: len(stream.messages) >= 2)
    assert {each["method"] for each in stream.messages} == {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
    }
    assert not stream.ended
    for each in (stream, listen):
        each.leave()
        await each.done()


async def test_nothing_piles_up_meanwhile(app: Any, stage: Stage, state: TroubledState) -> None:
    state.away = True
    for _ in range(1000):
        stage.change_tools()
        await HttpWire(app).call("add", {"a": 1, "b": 2})
    endpoint = endpoint_of(app)
    assert len(endpoint._changes._subscription._pending) <= 1
    assert not endpoint._calls.here
    state.come_back()
    await settle(100)
    assert (await state.read("changes", 0)).last <= 5


async def test_the_server_ends_without_it(stage: Stage) -> None:
    state = TroubledState()
    app = stage.server.asgi(state=state)
    await app.start()
    state.away = True
    stage.change_tools()
    await asyncio.wait_for(app.drain(1), 10)
