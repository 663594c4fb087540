"""Calls that are cancelled late, or at another worker than the one that runs them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.transports import calls
from http_serving import PausingState, endpoint_of, settle, until
from http_stage import Stage, text_of
from http_wire import HttpWire


class SharedState(PausingState):
    """Its next `get` fails with whatever is in `failures`."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = []

    async def get(self, key: str) -> Any:
        if self.failures:
            raise self.failures.pop()
        return await super().get(key)


class Pair:
    """Two workers, and one session at both."""

    def __init__(self) -> None:
        self.state = SharedState()
        self.stages = [Stage(), Stage()]
        self.apps = [stage.server.asgi(state=self.state) for stage in self.stages]

    async def session(self) -> list[HttpWire]:
        first = await HttpWire.session(self.apps[0], "2025-11-25")
        wires = [HttpWire(app, "2025-11-25") for app in self.apps]
        for wire in wires:
            wire.session_id, wire.ids = first.session_id, first.ids
        return wires

    def notes(self) -> list[str]:
        return [key for key in self.state._entries.things if key.startswith("cancel/")]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    for app in pair.apps:
        await app.start()
    yield pair
    for app in pair.apps:
        await asyncio.wait_for(app.drain(0.2), 10)


async def cancel(wire: HttpWire, id: Any) -> None:
    await wire.notify("notifications/cancelled", {"requestId": id})


async def test_a_cancellation_that_comes_late_does_not_hit_the_next_call_with_its_id(pair: Pair) -> None:
    """Such ids are against the specification; but one worker alone does not punish them."""
    wires = await pair.session()
    await wires[0].call("add", {"a": 1, "b": 2}, id=1)
    await cancel(wires[0], 1)
    assert pair.notes() == []
    call = wires[0].start_call("work", id=1)
    await pair.stages[0].entered.wait()
    await settle(50)
    pair.stages[0].go.set()
    assert text_of((await call.done()).answer) == "done"


@pytest.mark.parametrize("other", ["session", "id"])
async def test_other_cancellations_are_told_to_the_other_workers(pair: Pair, other: str) -> None:
    wires = await pair.session()
    await wires[0].call("add", {"a": 1, "b": 2}, id=77)
    if other == "session":
        wires = await pair.session()
    await cancel(wires[0], 77 if other == "session" else "77")
    assert len(pair.notes()) == 1


async def test_it_is_kept_in_mind_for_a_while_only(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "NOTE_SECONDS", 0.05)
    wires = await pair.session()
    await wires[0].call("add", {"a": 1, "b": 2}, id=1)
    await asyncio.sleep(0.1)
    await cancel(wires[0], 1)
    assert len(pair.notes()) == 1
    await wires[0].call("add", {"a": 1, "b": 2}, id=2)
    assert len(endpoint_of(pair.apps[0])._calls._over) == 1


async def test_few_are_kept_in_mind(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_OVER", 3)
    wires = await pair.session()
    for id in (1, 2, 3, 1, 4, 5):  # the first one comes again
        await wires[0].call("add", {"a": 1, "b": 2}, id=id)
    assert len(endpoint_of(pair.apps[0])._calls._over) == 3
    for id, noted in ((5, 0), (1, 0), (3, 1)):
        await cancel(wires[0], id)
        assert len(pair.notes()) == noted


async def test_whatever_a_store_fails_with_calls_are_cancelled_later(pair: Pair) -> None:
    wires = await pair.session()
    call = wires[0].start_call("work", id="c")
    await until(lambda: bool(endpoint_of(pair.apps[0])._calls._known))
    await settle(50)
    pair.state.failures = [ValueError("what is that?")]
    await pair.state.publish(f"session/{wires[0].session_id}")
    await settle(50)
    assert not pair.state.failures
    await cancel(wires[1], "c")
    await asyncio.wait_for(pair.stages[0].cancelled.wait(), 5)
    await call.done()
