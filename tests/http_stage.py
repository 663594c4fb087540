"""A server for tests of the HTTP app: its tools stop where a test wants to look."""

import asyncio
from typing import Any

from dovetail import Context, Server
from dovetail.engine.subscriptions import Change
from http_wire import HttpWire

HANDSHAKE = ["2025-03-26", "2025-06-18", "2025-11-25"]
MODERN = "2026-07-28"
REVISIONS = [*HANDSHAKE, MODERN]


class Stage:
    """A server whose tool waits until the test says go."""

    def __init__(self, **options: Any) -> None:
        self.server = Server("stage", version="1.0.0", **options)
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.ran: list[str] = []
        self.server.add_tool(self.work)
        self.server.add_tool(self.tell)
        self.server.add_tool(self.add)
        for name in ("one", "two"):
            self.server.add_resource(f"test://{name}", lambda: "1", name=name)

    def change_tools(self) -> None:
        self.server.engine.publish(Change("tools"))

    async def work(self) -> str:
        """Says that it has begun, and waits."""
        self.ran.append("work")
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "done"

    async def tell(self, ctx: Context, times: int = 1) -> str:
        """Notifies, waits, and notifies again."""
        for _ in range(times):
            await ctx.warning("first")
        self.entered.set()
        await self.go.wait()
        await ctx.warning("second")
        return "told"

    async def add(self, a: int, b: int) -> int:
        return a + b


async def open_wire(app: Any, version: str, **options: Any) -> HttpWire:
    """A client of any revision."""
    return HttpWire(app, **options) if version == MODERN else await HttpWire.session(app, version, **options)


def text_of(answer: Any) -> str:
    return answer["result"]["content"][0]["text"]
