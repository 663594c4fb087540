"""A backend of Dovetail whose lists take as many seconds as the header `x-seconds` says: many backends in one."""

import asyncio
import sys

from benchmarks.servers import offered

from dovetail import CallNext, Request, Result, Server

server = Server("bench", version="1.0.0")
server.add_tool(offered.called())


@server.middleware
async def wait(request: Request, call_next: CallNext) -> Result:
    if request.method == "tools/list" and request.headers is not None:
        await asyncio.sleep(float(request.headers.get("x-seconds") or "0"))
    return await call_next(request)


if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
