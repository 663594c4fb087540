"""A server whose tools talk, and what is heard of them."""

from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.protocol.features import LEVELS
from wire import Wire

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
INFO = "io.modelcontextprotocol/clientInfo"
quiet_logging = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


def new_server(**options: Any) -> Server:
    return Server("context", version="1.0.0", **options)


def chatty(**options: Any) -> Server:
    server = new_server(**options)

    @server.tool
    async def chat(ctx: Context) -> str:
        for level in LEVELS:
            await getattr(ctx, level)(f"at {level}", logger="mine")
        return "done"

    @server.tool
    def chat_in_a_thread(ctx: Context) -> str:
        for level in LEVELS:
            ctx.log(level, {"n": 1})
        return "done"

    @server.tool(thread=False)
    def chat_on_the_loop(ctx: Context) -> str:
        for level in LEVELS:
            ctx.log(level, {"n": 1})
        return "done"

    return server


async def heard(wire: Wire, name: str, meta: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The notifications that came before the answer; none may come after it."""
    before = len(wire.seen)
    await wire.ask("tools/call", {"name": name, "_meta": meta or {}})
    await wire.quiet(0.01)
    return [message["params"] for message in wire.seen[before:] if "method" in message]
