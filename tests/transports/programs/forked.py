"""An app with metrics that is made before a fork: child and parent say how many calls and workers they see."""

import asyncio
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dovetail import Server
from http_wire import HttpWire

server = Server("forked", version="1.0.0")
server.add_tool(lambda: "x", name="x")
app = server.asgi(metrics=True)


async def serve(name: str, calls: int) -> None:
    wire = HttpWire(app)
    for _ in range(calls):
        await wire.call("x")
    text = (await wire.raw("GET", path="/metrics").done()).raw.decode()
    (counted,) = re.findall(r'_count\{.*gen_ai_tool_name="x".*\} (\d+)', text)
    (workers,) = re.findall(r"dovetail_workers (\d+)", text)
    print(f"{name} {counted} of {workers}", flush=True)  # noqa: T201
    await app.drain()


if (child := os.fork()) == 0:
    asyncio.run(serve("child", 3))
    os._exit(0)
os.waitpid(child, 0)
asyncio.run(serve("parent", 2))
