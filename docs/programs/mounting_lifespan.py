import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType

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


def on_signal(number: int, do: Callable[[], object]) -> None:
    """Before what uvicorn does then."""
    uvicorns = signal.getsignal(number)

    def handle(number: int, frame: FrameType | None) -> None:
        do()
        if callable(uvicorns):
            uvicorns(number, frame)

    signal.signal(number, handle)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()

    async def drain() -> None:
        await ending.wait()
        await mcp.drain()

    draining = asyncio.create_task(drain())
    if threading.current_thread() is threading.main_thread():  # it is not in FastAPI's TestClient
        for number in (signal.SIGINT, signal.SIGTERM):
            on_signal(number, lambda: loop.call_soon_threadsafe(ending.set))
    yield
    ending.set()
    await draining


app = FastAPI(lifespan=lifespan)
mcp.mount_on(app, "/mcp")

if __name__ == "__main__":
    uvicorn.run(app)
