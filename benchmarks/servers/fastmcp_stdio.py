"""FastMCP on stdin and stdout as its users run it, without a banner; with the argument `uvloop` on its fastest loop."""

import sys
from functools import partial

import anyio
from fastmcp import FastMCP

server = FastMCP("bench", version="1.0.0")


async def add(a: int, b: int) -> int:
    return a + b


server.tool(add)

if __name__ == "__main__":
    if sys.argv[1:] == ["uvloop"]:
        quiet = partial(server.run_stdio_async, show_banner=False, log_level="WARNING")
        anyio.run(quiet, backend_options={"use_uvloop": True})
    else:
        server.run(show_banner=False, log_level="WARNING")
