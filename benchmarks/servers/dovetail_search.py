"""Dovetail with the tools of public servers, which are searched."""

import sys
from typing import Any

from benchmarks.servers.public_tools import wanted

from dovetail import Server


async def nothing(arguments: dict[str, Any]) -> str:  # noqa: ARG001
    return "nothing"


server = Server("bench", version="1.0.0", tool_search=True)
for tool in wanted():
    server.tool(name=tool.name, description=tool.description, input_schema=tool.input_schema)(nothing)

if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
else:
    app = server.asgi()
