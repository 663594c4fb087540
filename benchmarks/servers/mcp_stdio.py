"""The official SDK on stdin and stdout as its users run it, or, with `uvloop` as the argument, on its fastest loop."""

import sys

import anyio
from mcp.server.mcpserver import MCPServer

server = MCPServer("bench", version="1.0.0", log_level="WARNING")


@server.tool()
async def add(a: int, b: int) -> int:
    return a + b


if __name__ == "__main__":
    if sys.argv[1:] == ["uvloop"]:
        anyio.run(server.run_stdio_async, backend_options={"use_uvloop": True})
    else:
        server.run()
