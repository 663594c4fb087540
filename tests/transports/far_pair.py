"""Two workers of a test on one store, which may take what one of them sends, lose it, refuse it, or say nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from far_views import CALLS

from dovetail.engine import member
from dovetail.state import base as patience
from dovetail.state.base import NoRoom, StoreTrouble
from dovetail.transports import event_log, late_logs, tails
from http_serving import PausingState, endpoint_of, settle
from http_stage import Stage
from http_wire import HttpWire

Fate = Callable[[str, str, bytes], str]  # of a call, its key and its data, if any


class RefusingView:
    """What one worker sees of a store in memory that it shares with others: for this one alone it may be in trouble."""

    shared = True
    outages = 0

    def __init__(self, store: PausingState) -> None:
        self._store = store
        self.fate: Fate = all_is_well
        self.listen = store.listen

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)

        async def asked(*args: Any, **options: Any) -> Any:
            key, data = (*args, "", b"")[:2]
            fate = self.fate(name, key, data if isinstance(data, bytes) else b"")
            if fate == "lost":
                raise StoreTrouble
            if fate == "refused":
                raise NoRoom("full")
            answer = await getattr(self._store, name)(*args, **options)
            if fate == "kept without a word":
                raise StoreTrouble
            return answer

        return asked

    async def close(self) -> None: ...


def all_is_well(_name: str, _key: str, _data: bytes) -> str:
    return "kept"


def away(_name: str, _key: str, _data: bytes) -> str:
    return "lost"


def of(name: str, key: str, fate: str, times: int = 1_000_000) -> Fate:
    """For the next calls of that name, with a key that begins so."""
    left = [fate] * times if times < 1_000_000 else None

    def decide(asked: str, its: str, _data: bytes) -> str:
        if asked != name or not its.startswith(key):
            return "kept"
        return fate if left is None else left.pop() if left else "kept"

    return decide


class Pair:
    """Two workers that serve the same."""

    def __init__(self) -> None:
        self.store = PausingState()
        self.views = [RefusingView(self.store), RefusingView(self.store)]
        self.stages = [Stage(), Stage()]
        self.apps = [stage.server.asgi(state=view) for stage, view in zip(self.stages, self.views, strict=True)]

    @property
    def logs(self) -> event_log.EventLogs:
        return endpoint_of(self.apps[0])._logs

    async def session(self) -> list[HttpWire]:
        first = await HttpWire.session(self.apps[0], "2025-11-25")
        wires = [HttpWire(app, "2025-11-25") for app in self.apps]
        for wire in wires:
            wire.session_id, wire.ids = first.session_id, first.ids
        return wires

    async def resumed(self, tool: str = "tell") -> Any:
        """The rest of a call that the first worker runs, at the second."""
        wires = await self.session()
        call = wires[0].start_call(tool, id="t")
        await call.message()
        await call.cut()
        rest = wires[1].get(call.events[0].id)
        await rest.message()
        return rest

    async def lose(self) -> None:
        """The first shows no more that it lives."""
        lost = endpoint_of(self.apps[0]).member
        assert lost._renewing is not None
        lost._renewing.cancel()
        await settle()
        await self.store.delete(f"worker/{lost.id}")


def shorten_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "CERTAIN_SECONDS", 0.1)
    monkeypatch.setattr(tails, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(patience, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(late_logs, "MAX_PAUSE", 0.02)
    monkeypatch.setattr(event_log, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(event_log, "HOLD_SECONDS", 0.0)


@asynccontextmanager
async def running_pair() -> AsyncIterator[Pair]:
    pair = Pair()
    for app in pair.apps:
        await app.start()
    await settle(50)
    yield pair
    for view in pair.views:
        view.fate = all_is_well
    for app in pair.apps:
        await asyncio.wait_for(app.drain(0.2), 10)
    assert not pair.store._topics.names


def error_of(answer: Any) -> str:
    return answer["error"]["message"]
