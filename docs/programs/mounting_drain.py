import asyncio
from contextlib import suppress
from socket import socket

import uvicorn
from fastapi import FastAPI

from dovetail import Server

server = Server("shop", version="1.0.0")
app = FastAPI()
mcp = server.asgi()
mcp.mount_on(app, "/mcp")


@server.tool
async def pack(seconds: float) -> str:
    """Pack an order."""
    await asyncio.sleep(seconds)
    return "packed"


class DrainingServer(uvicorn.Server):
    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await asyncio.gather(mcp.drain(), super().shutdown(sockets))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        DrainingServer(uvicorn.Config(app, timeout_graceful_shutdown=35)).run()
