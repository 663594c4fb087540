import asyncio
import time

from dovetail import Server

server = Server("factory", version="1.0.0", timeout=30, max_concurrency=100, max_queue=500, max_threads=8)


@server.tool(timeout=0.05)
async def assemble() -> str:
    """Takes too long and is stopped."""
    await asyncio.sleep(60)
    return "never"


@server.tool(max_concurrency=1, timeout=None)
def press(part: str) -> str:
    """There is only one press: calls wait for their turn."""
    time.sleep(0.01)
    return f"pressed {part}"


@server.tool(thread=False)
def weigh(grams: int) -> float:
    """Quick, and never waits: it runs on the event loop, without a thread."""
    return grams / 1000


if __name__ == "__main__":
    server.run()
