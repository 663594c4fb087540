"""The official SDK over HTTP with a tool that changes the list of tools: `app` for uvicorn."""

from benchmarks.servers.changing import Coming
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("bench", version="1.0.0", log_level="WARNING")
extra = Coming(server)


@server.tool()
async def change(ctx: Context) -> str:
    extra.change()
    await ctx.notify_tools_changed()  # its lists do not tell on their own
    return "changed"


# Not as JSON, which can't carry notifications.
app = server.streamable_http_app(stateless_http=True)
