import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from dovetail import Server

server = Server("shop", version="1.0.0")
mcp = server.asgi()


@server.tool
async def pack(seconds: float) -> str:
    """Pack an order."""
    await asyncio.sleep(seconds)
    return "packed"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with mcp.lifespan():
        yield


app = FastAPI(lifespan=lifespan)
mcp.mount_on(app, "/mcp")

if __name__ == "__main__":
    uvicorn.run(app, timeout_graceful_shutdown=35)
