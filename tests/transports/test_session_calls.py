"""Calls that are cancelled late, or at another worker than the one that runs them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from http_serving import PausingState, endpoint_of, settle, until
from http_stage import Stage
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


async def test_the_cancellation_of_an_unknown_call_is_told_to_the_other_workers(pair: Pair) -> None:
    wires = await pair.session()
    await cancel(wires[0], 77)
    assert len(pair.notes()) == 1


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
