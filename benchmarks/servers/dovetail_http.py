"""Dovetail over HTTP: `app` for uvicorn, or with a port as the argument as its users run it."""

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.servers.offered import IMAGE, REST, STEPS, TOOL, add, add_in_thread, search, text

from dovetail import Context, Image, Server


async def count(ctx: Context) -> int:
    """Count, and report every step."""
    for step in range(1, STEPS + 1):
        await ctx.report_progress(step, total=STEPS)
    return STEPS


async def image() -> Image:
    """An image of 1 MiB in base64."""
    return Image(IMAGE, "image/png")


TOOLS: dict[str, Callable[..., Any]] = {
    "add": add,
    "add_in_thread": add_in_thread,
    "count": count,
    "text": text,
    "image": image,
}

server = Server("bench", version="1.0.0", page_size=10_000)  # whole lists, as the peers send them
server.add_tool(TOOLS[TOOL])
for name in REST:
    server.add_tool(search, name=name)

if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
else:
    app = server.asgi()
