"""Servers that do not come to their start: nothing of it is left, however often it is tried again."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail.engine import core
from http_serving import PausingState
from http_stage import Stage
from http_wire import HttpWire


class SharedState(PausingState):
    shared = True


async def asked(app: Any) -> int:
    return (await HttpWire(app).raw("POST", b"{}", {"content-type": "application/json"}).done()).status


async def test_a_start_without_its_store_leaves_no_link_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "START_PAUSES", ())
    server = Stage().server
    app = server.asgi(state="redis://127.0.0.1:1/0")
    others = asyncio.all_tasks()
    for _ in range(2):
        assert await asked(app) == 503
        assert asyncio.all_tasks() <= others
        assert server.engine._state is None
    await app.drain(1)
    assert asyncio.all_tasks() <= others


@pytest.mark.parametrize("way", ["fails", "is cancelled"])
async def test_a_lifespan_that_is_not_entered_leaves_no_store_open(tmp_path: Path, way: str) -> None:
    entered = asyncio.Event()

    @asynccontextmanager
    async def lifespan(_server: Any) -> AsyncIterator[None]:
        entered.set()
        if way == "fails":
            raise ValueError("no database")
        await asyncio.sleep(3600)
        yield

    server = Stage(lifespan=lifespan).server
    app = server.asgi(state=f"sqlite:///{tmp_path}/state.db")
    before = threading.active_count()
    for _ in range(2):
        asking = asyncio.create_task(asked(app))
        await entered.wait()
        if way == "is cancelled":
            await app.drain(1)
        assert await asking == (500 if way == "fails" else 503)
        assert threading.active_count() == before
        assert server.engine._state is None


async def test_a_store_of_somebody_else_stays_open() -> None:
    state = SharedState()

    @asynccontextmanager
    async def broken(_server: Any) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    await state.put("key", b"value", ttl=60)
    assert await asked(Stage(lifespan=broken).server.asgi(state=state)) == 500
    assert await state.get("key") is not None


async def test_a_server_that_is_ended_while_it_catches_up_leaves_its_lifespan() -> None:
    state = SharedState()
    lived: list[str] = []

    @asynccontextmanager
    async def lifespan(_server: Any) -> AsyncIterator[None]:
        lived.append("entered")
        yield
        lived.append("left")

    catching_up = asyncio.Event()
    server = Stage(lifespan=lifespan).server

    @server.on_refresh
    async def endless() -> None:
        catching_up.set()
        await asyncio.sleep(3600)

    await state.put("refresh", b"1", ttl=60)
    app = server.asgi(state=state)
    asking = asyncio.create_task(asked(app))
    await catching_up.wait()
    await asyncio.wait_for(app.drain(0.1), 10)
    assert await asking == 503
    assert lived == ["entered", "left"]
