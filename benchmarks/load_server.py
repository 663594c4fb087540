"""The server of the load test: a tool that changes the list of tools, and nothing else."""

from dovetail import Server

server = Server("load", version="1.0.0")


@server.tool
async def change() -> str:
    """Change the list of tools, and so tell everyone who listens."""
    server.remove_tool("extra")
    server.add_tool(extra)
    return "changed"


async def extra() -> str:
    """Comes and goes."""
    return "here"


if __name__ == "__main__":
    server.run(
        transport="http", port=0, max_sessions=50_000, max_streams=50_000, max_per_caller=50_000, max_connections=50_000
    )
