"""FastMCP with the tools of public servers, which its BM25 transform searches: `app` for uvicorn."""

from typing import Any

from benchmarks.servers.public_tools import wanted
from fastmcp import FastMCP
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools.base import Tool, ToolResult


class Nothing(Tool):  # type: ignore[misc]
    async def run(self, arguments: dict[str, Any]) -> ToolResult:  # noqa: ARG002
        return ToolResult(content="nothing")


server = FastMCP("bench", version="1.0.0")
for tool in wanted():
    server.add_tool(Nothing(name=tool.name, description=tool.description, parameters=tool.input_schema))
server.add_transform(BM25SearchTransform(max_results=5))
app = server.http_app(path="/mcp", json_response=True, stateless_http=True)
