"""A store that loses all its records while calls of sessions are running: they go on, and are answered."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stores
from dovetail.state.base import StateBackend
from dovetail.state.redis import RedisState
from dovetail.state.sqlite import SqliteState
from http_serving import until
from http_stage import HANDSHAKE, Stage, text_of
from http_wire import HttpWire

SOON = {"keep_alive": 0.05, "session_timeout": 2.0}  # a session is touched by its calls every 0.2 s


class Watched:
    """Notes what it was asked, and whether there was something to touch or to delete."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.found: list[tuple[str, str, bool]] = []

    async def touch(self, key: str, ttl: float) -> bool:
        found: bool = await super().touch(key, ttl)  # type: ignore[misc]
        self.found.append(("touch", key, found))
        return found

    async def delete(self, key: str) -> bool:
        found: bool = await super().delete(key)  # type: ignore[misc]
        self.found.append(("delete", key, found))
        return found

    def missed(self, verb: str, family: str) -> bool:
        return any(each[0] == verb and each[1].startswith(family) and not each[2] for each in self.found)


class WatchedRedis(Watched, RedisState): ...


class WatchedSqlite(Watched, SqliteState): ...


class Worker(NamedTuple):
    stage: Stage
    app: Any
    state: Any
    empty: Callable[[], object]


@contextlib.asynccontextmanager
async def redis_store(folder: Path) -> AsyncIterator[tuple[StateBackend, Callable[[], object]]]:
    stores.demand()
    server = stores.StoreServer(folder / "store")
    try:
        yield WatchedRedis(server.url), lambda: server.command("FLUSHALL")
    finally:
        server.kill()


@contextlib.asynccontextmanager
async def sqlite_store(folder: Path) -> AsyncIterator[tuple[StateBackend, Callable[[], object]]]:
    (folder / "store").mkdir()
    yield (
        WatchedSqlite(folder / "store" / "state.sqlite"),
        lambda: [file.unlink() for file in (folder / "store").iterdir()],
    )


@pytest.fixture(params=[redis_store, sqlite_store], ids=["redis", "sqlite"])
async def worker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Worker]:
    stage = Stage()
    async with request.param(tmp_path) as (state, empty):
        app = stage.server.asgi(state=state, **SOON)
        await app.start()
        yield Worker(stage, app, state, empty)
        await app.drain(1)
        await state.close()


@pytest.mark.parametrize("tool", ["work", "tell"])
@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_running_call_goes_on(worker: Worker, version: str, tool: str) -> None:
    wire = await HttpWire.session(worker.app, version)
    call = wire.start_call(tool)
    await worker.stage.entered.wait()
    await until(lambda: ("touch", f"session/{wire.session_id}", True) in worker.state.found)
    worker.empty()
    await until(lambda: worker.state.missed("touch", "session/"))
    await worker.state.publish(f"session/{wire.session_id}")  # and whoever looks after its calls looks again
    await until(lambda: worker.state.missed("delete", "cancel/") or call.ended)
    worker.stage.go.set()
    assert text_of((await call.done()).answer) in ("done", "told")
    assert (await wire.call("add", {"a": 1, "b": 1})).status == 404


async def test_who_ends_a_session_ends_its_calls_at_other_workers_too(worker: Worker) -> None:
    wire = await HttpWire.session(worker.app)
    call = wire.start_call("work")
    await worker.stage.entered.wait()
    await until(lambda: ("touch", f"session/{wire.session_id}", True) in worker.state.found)
    other = Stage().server.asgi(state=worker.state, **SOON)
    await other.start()
    there = HttpWire(other, wire.version)
    there.session_id = wire.session_id
    assert (await there.delete()).status == 204
    await call.done()
    assert worker.stage.cancelled.is_set()
    assert call.messages == []
    await other.drain(1)
