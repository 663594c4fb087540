"""Dovetail over HTTP with a tool that changes the list of tools; the port is the argument."""

import sys

from dovetail import Server

server = Server("bench", version="1.0.0")
present = False


async def extra() -> str:
    return "here"


@server.tool
async def change() -> str:
    global present
    present = not present
    if present:
        server.add_tool(extra)
    else:
        server.remove_tool("extra")
    return "changed"


if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
