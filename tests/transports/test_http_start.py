"""Servers that do not come to their start: nothing of it is left, however often it is tried again."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from http_serving import PausingState
from http_stage import Stage
from http_wire import HttpWire


class SharedState(PausingState):
    shared = True


async def asked(app: Any) -> int:
    return (await HttpWire(app).raw("POST", b"{}", {"content-type": "application/json"}).done()).status


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
    for _ in range(2):
        asking = asyncio.create_task(asked(app))
        await entered.wait()
        if way == "is cancelled":
            await app.drain(1)
        assert await asking == (500 if way == "fails" else 503)
        assert "dovetail-state" not in [thread.name for thread in threading.enumerate()]
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
