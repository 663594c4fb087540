"""Dovetail over HTTP with a tool that changes the list of tools, in the two ways of `dovetail_http`."""

import sys

from benchmarks.servers.changing import Coming

from dovetail import Server

server = Server("bench", version="1.0.0")
extra = Coming(server)


@server.tool
async def change() -> str:
    extra.change()
    return "changed"


if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
else:
    app = server.asgi()
