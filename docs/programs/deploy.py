from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dovetail import Context, Server


@asynccontextmanager
async def greeting(server: Server) -> AsyncIterator[str]:
    yield "Hello"  # what is opened here is closed after the last call


server = Server("greeter", version="1.0.0", lifespan=greeting)


@server.tool
async def greet(name: str, ctx: Context) -> str:
    """Greet a person."""
    return f"{ctx.lifespan}, {name}!"


if __name__ == "__main__":
    server.run(
        transport="http",
        host="0.0.0.0",  # all networks of this machine or container
        allowed_hosts=["mcp.example.com"],
        allowed_origins=["https://app.example.com"],
        drain_delay=5,
    )
