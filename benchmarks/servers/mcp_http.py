"""The official SDK over HTTP: `app` for uvicorn, with the options that make it fastest."""

from benchmarks.servers import offered
from benchmarks.servers.offered import IMAGE, PLAIN, REST, SESSIONS, TOOL, search
from mcp.server.mcpserver import Context, Image, MCPServer


async def count(ctx: Context) -> int:
    return await offered.count(ctx.report_progress)


async def image() -> Image:
    """An image of 1 MiB in base64."""
    return Image(data=IMAGE, format="png")


called = offered.called(count=count, image=image)

server = MCPServer("bench", version="1.0.0", log_level="WARNING")
server.add_tool(called, structured_output=False if PLAIN else None)
for name in REST:
    server.add_tool(search, name=name)

# JSON is faster than an event stream, but can't carry progress. Stateless is faster where nothing needs a session.
app = server.streamable_http_app(json_response=TOOL != "count", stateless_http=not SESSIONS)
