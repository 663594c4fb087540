"""`max_sessions` of workers that share a state: each bounds those that it opened, wherever they are used."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.state.base import StateBackend
from dovetail.state.sqlite import SqliteState
from http_serving import Clock, PausingState, sessions_of, settle
from http_stage import Stage
from http_wire import HttpWire

SILENT = 245  # seconds: a minute, and a tenth of `session_timeout` in which use elsewhere may go untold


class SharedState(PausingState):
    shared = True


class Workers:
    """Two that open two sessions each, and a clock to turn."""

    def __init__(self, apps: list[Any], state: StateBackend, clock: Clock) -> None:
        self.apps = apps
        self.state = state
        self.clock = clock

    async def session(self, at: int) -> list[HttpWire]:
        """One session, at each of the workers."""
        first = await HttpWire.session(self.apps[at])
        wires = [HttpWire(app, first.version) for app in self.apps]
        for wire in wires:
            wire.session_id, wire.ids = first.session_id, first.ids
        return wires

    async def alive(self, wire: HttpWire) -> bool:
        return await self.state.get(f"session/{wire.session_id}") is not None


@contextlib.asynccontextmanager
async def workers_on(state: StateBackend, clock: Clock) -> AsyncIterator[Workers]:
    apps = [Stage().server.asgi(state=state, max_sessions=2) for _ in range(2)]
    for app in apps:
        await app.start()
        sessions_of(app)._clock = clock
    yield Workers(apps, state, clock)
    for app in apps:
        await app.drain(1)
    await settle()
    await state.close()


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    clock = Clock()
    async with workers_on(SharedState(clock=clock), clock) as both:
        yield both


@pytest.fixture(params=["memory", "sqlite"])
async def on_any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Workers]:
    clock = Clock()
    state = (
        SharedState(clock=clock) if request.param == "memory" else SqliteState(tmp_path / "state.sqlite", clock=clock)
    )
    async with workers_on(state, clock) as both:
        yield both


async def used(wire: HttpWire) -> int:
    return (await wire.call("add", {"a": 1, "b": 1})).status


async def test_what_is_used_at_another_worker_stays_and_what_is_silent_goes(on_any_store: Workers) -> None:
    workers = on_any_store
    (_, used_there), (silent, _) = [await workers.session(at=0) for _ in range(2)]
    workers.clock.sleep(SILENT)
    assert await used(used_there) == 200
    workers.clock.sleep(50)
    newcomer, _ = await workers.session(at=0)
    assert [await workers.alive(wire) for wire in (used_there, silent, newcomer)] == [True, False, True]
    assert await used(silent) == 404
    assert await used(used_there) == 200


async def test_if_all_are_used_elsewhere_the_newcomer_is_refused_here_only(workers: Workers) -> None:
    wires = [(await workers.session(at=0))[1] for _ in range(2)]
    workers.clock.sleep(SILENT)
    assert [await used(wire) for wire in wires] == [200, 200]
    with pytest.raises(AssertionError, match="2 sessions, all of them in use"):
        await HttpWire.session(workers.apps[0])
    await HttpWire.session(workers.apps[1])
    assert [await used(wire) for wire in wires] == [200, 200]


async def test_a_stream_elsewhere_ends_with_its_session(workers: Workers) -> None:
    (_, silent), _ = [await workers.session(at=0) for _ in range(2)]
    stream = await silent.get().started()
    workers.clock.sleep(SILENT)
    await workers.session(at=0)
    await stream.done()
    assert await used(silent) == 404


async def test_however_many_are_opened_each_worker_leaves_two(on_any_store: Workers) -> None:
    workers = on_any_store
    opened: list[list[HttpWire]] = [[], []]
    for number in range(20):
        for at, app in enumerate(workers.apps):
            opened[at].append(await HttpWire.session(app))
            if number % 2:
                assert await used(opened[at][-1]) == 200
        workers.clock.sleep(SILENT)
        for wires in opened:
            assert sum([await workers.alive(wire) for wire in wires]) <= 2
    for wires in opened:
        assert [await workers.alive(wire) for wire in wires] == [False] * 18 + [True] * 2
