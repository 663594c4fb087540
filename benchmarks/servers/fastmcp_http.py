"""FastMCP over HTTP: `app` for uvicorn, with the options that make it fastest."""

from benchmarks.servers import offered
from benchmarks.servers.offered import IMAGE, PLAIN, REST, SESSIONS, TOOL, search
from fastmcp import Context, FastMCP
from fastmcp.tools import Tool
from fastmcp.utilities.types import Image


async def count(ctx: Context) -> int:
    return await offered.count(ctx.report_progress)


async def image() -> Image:
    """An image of 1 MiB in base64."""
    return Image(data=IMAGE, format="png")


called = offered.called(count=count, image=image)

server = FastMCP("bench", version="1.0.0")
server.add_tool(Tool.from_function(called, **({"output_schema": None} if PLAIN else {})))
for name in REST:
    server.add_tool(Tool.from_function(search, name=name))

# JSON is faster than an event stream, but can't carry progress. Stateless is faster where nothing needs a session.
app = server.http_app(path="/mcp", json_response=TOOL != "count", stateless_http=not SESSIONS)
