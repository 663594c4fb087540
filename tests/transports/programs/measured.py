"""A server with metrics for Prometheus: `measured.py '{"workers": 3, …}'`; the options are those of `run`."""

import asyncio
import json
import sys
from typing import Any

from dovetail import Context, Server, ToolError
from dovetail.transports import serve
from dovetail.transports.supervisor import RestartPolicy

server, child = Server("measured", version="1.0.0"), Server("child", version="1.0.0")
server.mount(child, namespace="child")


@child.tool
@server.tool
async def add(a: int, b: int) -> int:
    return a + b


@server.tool(max_concurrency=1)
async def fail(ctx: Context) -> str:
    await asyncio.sleep(0)
    raise ToolError("always")


@server.tool(cache=60, cache_shared=True)
def remember(a: int) -> int:
    return a


@server.tool(task=True)
async def work() -> str:
    return "done"


def main(options: dict[str, Any]) -> None:
    http = server.http_options({"port": 0, "metrics": True, **options}, running=True)  # type: ignore[typeddict-item]
    timings = serve.Timings(restarts=RestartPolicy(min_uptime=0.0))  # however soon a worker is killed
    serve.serve_http(server.engine, http, owner=server, timings=timings)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
