"""Serves tools whose calls become tasks: `python tasks_server.py [--port N]`, without a port on stdio.

What it says is judged, as in served.py.
"""

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from dovetail import Context, ProtocolError, Server, TaskConfig, ToolError
from official import judge_this_process

server = Server("films", version="1.0.0")
BRISK = TaskConfig(poll_interval=0.05)


@server.tool(task=BRISK)
async def render(scene: str, ctx: Context) -> str:
    """Draw a film, after two questions at once."""
    size, colour = await asyncio.gather(
        ctx.elicit("Which size?", ["small", "large"]), ctx.elicit("Which colour?", ["red", "blue"])
    )
    await ctx.report_progress(1, 2, "Drawing")
    return f"A {size.data} {colour.data} film of a {scene}."


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers, at once."""
    return a + b


@server.tool(task=BRISK)
async def fail() -> str:
    """Fail in words."""
    raise ToolError("There is no beach")


@server.tool(task=TaskConfig(mode="required", poll_interval=0.05))
async def break_down() -> str:
    """Fail in the protocol."""
    raise ProtocolError("The camera is broken")


@server.tool(task=BRISK)
async def wait_long() -> str:
    """Take a minute."""
    await asyncio.sleep(60)
    return "done"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    watch = judge_this_process()
    if options.port is None:
        server.run()
    else:
        server.run(transport="http", port=options.port)
    sys.exit(1 if watch is not None and any(witness.problems for witness in watch) else 0)
