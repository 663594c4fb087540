"""A function that tells the client something over and over keeps the loop from nobody, and can be cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dovetail import Client, Context, Server

PROMPTLY = 20

TELLING: dict[str, Callable[[Context, int], Awaitable[None]]] = {
    "progress": lambda ctx, count: ctx.report_progress(count),
    "log": lambda ctx, count: ctx.info(f"row {count}"),
    "log that nobody wants": lambda ctx, count: ctx.debug(f"row {count}"),
}


@pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("tell", TELLING.values(), ids=TELLING)
async def test_others_are_served_meanwhile(tell: Any, listens: bool, revision: str) -> None:
    server = Server("rows", version="1", log_level="info")
    stopped = asyncio.Event()

    @server.tool
    async def work(ctx: Context) -> None:
        count = 0
        try:
            while True:
                count += 1
                await tell(ctx, count)
        finally:
            stopped.set()

    @server.tool
    async def hello() -> str:
        return "hello"

    handlers: dict[str, Any] = {"progress_handler": lambda *_: None, "log_handler": lambda _: None} if listens else {}
    async with asyncio.timeout(PROMPTLY), Client(server, protocol_version=revision, **handlers) as client:
        endless = asyncio.create_task(client.call_tool("work"))
        await asyncio.sleep(0.05)
        assert (await client.call_tool("hello")).data == "hello"
        endless.cancel()
        await stopped.wait()
        with pytest.raises(asyncio.CancelledError):
            await endless
