"""Dovetail over HTTP: `app` for uvicorn, or with a port as the argument as its users run it."""

import sys

from benchmarks.servers import offered
from benchmarks.servers.offered import IMAGE, REST, search

from dovetail import Context, Image, Server


async def count(ctx: Context) -> int:
    return await offered.count(ctx.report_progress)


async def image() -> Image:
    """An image of 1 MiB in base64."""
    return Image(IMAGE, "image/png")


called = offered.called(count=count, image=image)

server = Server("bench", version="1.0.0", page_size=10_000)  # whole lists, as the peers send them
server.add_tool(called)
for name in REST:
    server.add_tool(search, name=name)

if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
else:
    app = server.asgi()
