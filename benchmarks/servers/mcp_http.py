"""The official SDK over HTTP: `app` for uvicorn, with the options that make it fastest."""

from collections.abc import Callable
from typing import Any

from benchmarks.servers.offered import IMAGE, REST, SESSIONS, STEPS, TOOL, add, add_in_thread, search, text
from mcp.server.mcpserver import Context, Image, MCPServer


async def count(ctx: Context) -> int:
    """Count, and report every step."""
    for step in range(1, STEPS + 1):
        await ctx.report_progress(step, total=STEPS)
    return STEPS


async def image() -> Image:
    """An image of 1 MiB in base64."""
    return Image(data=IMAGE, format="png")


TOOLS: dict[str, Callable[..., Any]] = {
    "add": add,
    "add_in_thread": add_in_thread,
    "count": count,
    "text": text,
    "image": image,
}
PLAIN = {"text", "image"}  # no structured copy of a megabyte, as the others

server = MCPServer("bench", version="1.0.0", log_level="WARNING")
server.add_tool(TOOLS[TOOL], structured_output=False if TOOL in PLAIN else None)
for name in REST:
    server.add_tool(search, name=name)

# JSON is faster than an event stream, but can't carry progress. Stateless is faster where nothing needs a session.
app = server.streamable_http_app(json_response=TOOL != "count", stateless_http=not SESSIONS)
