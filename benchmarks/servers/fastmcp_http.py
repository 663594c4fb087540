"""FastMCP over HTTP: `app` for uvicorn, with the options that make it fastest."""

from collections.abc import Callable
from typing import Any

from benchmarks.servers.offered import IMAGE, REST, SESSIONS, STEPS, TOOL, add, add_in_thread, search, text
from fastmcp import Context, FastMCP
from fastmcp.tools import Tool
from fastmcp.utilities.types import Image


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

server = FastMCP("bench", version="1.0.0")
server.add_tool(Tool.from_function(TOOLS[TOOL], **({"output_schema": None} if TOOL in PLAIN else {})))
for name in REST:
    server.add_tool(Tool.from_function(search, name=name))

# JSON is faster than an event stream, but can't carry progress. Stateless is faster where nothing needs a session.
app = server.http_app(path="/mcp", json_response=TOOL != "count", stateless_http=not SESSIONS)
