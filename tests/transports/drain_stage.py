"""A server that notes what happens to its lifespan, and how long a drain of it takes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dovetail import Context, Server
from http_stage import Stage
from http_wire import HttpWire

LISTEN = {"notifications": {"toolsListChanged": True}}


async def status(app: Any, path: str) -> int:
    return (await HttpWire(app).raw("GET", path=path).done()).status


async def in_time(app: Any, timeout: float | None = None, seconds: float = 2.0) -> float:
    """Drain, and tell how long it took."""
    begun = time.monotonic()
    await asyncio.wait_for(app.drain(timeout), seconds)
    return time.monotonic() - begun


class Alive(Stage):
    """Notes what happens to its lifespan."""

    def __init__(self, *, trouble: str = "", **options: Any) -> None:
        super().__init__(lifespan=self._lifespan, **options)
        self.notes: list[str] = []
        self.trouble = trouble
        self.server.add_tool(self.spirit)

    @asynccontextmanager
    async def _lifespan(self, _server: Server) -> AsyncIterator[str]:
        if self.trouble == "start":
            raise RuntimeError("no database")
        self.notes.append("entered")
        yield "alive"
        self.notes.append("left")
        if self.trouble == "end":
            raise RuntimeError("no farewell")

    async def spirit(self, ctx: Context) -> str:
        return str(ctx.lifespan)
