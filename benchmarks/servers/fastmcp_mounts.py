"""FastMCP with a proxy for each of BENCH_SECONDS, which its backend takes for a list: `app` for uvicorn."""

import os

from fastmcp import FastMCP
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.server import create_proxy

server = FastMCP("gateway")
for number, seconds in enumerate(os.environ["BENCH_SECONDS"].split()):
    transport = StreamableHttpTransport(os.environ["BENCH_BACKEND"], headers={"x-seconds": seconds})
    server.mount(create_proxy(transport, name=f"b{number}"), namespace=f"b{number}")
app = server.http_app(path="/mcp", json_response=True, stateless_http=True)
