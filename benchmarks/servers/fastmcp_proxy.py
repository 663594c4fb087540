"""FastMCP's proxy in front of the backend that BENCH_BACKEND names: `app` for uvicorn."""

import os

from fastmcp.server import create_proxy

app = create_proxy(os.environ["BENCH_BACKEND"], name="backend").http_app(
    path="/mcp", json_response=True, stateless_http=True
)
