"""A server that lets its connections go, and what was said on them."""

import asyncio
from typing import Any

from dovetail import Context
from http_stage import Stage, text_of


class Polling(Stage):
    """Its tools let go of the connection, once for each number in `closes`."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: asyncio.Queue[None] = asyncio.Queue()
        self.server.add_tool(self.poll)
        self.server.add_tool(self.poll_in_thread)
        self.closed = 0

    async def poll(self, ctx: Context, closes: int = 1, retry: float | None = None) -> str:
        for number in range(closes):
            await ctx.error(f"before {number}")
            await ctx.close_stream(retry)
            self.closed += 1
            await self.steps.get()
            await ctx.error(f"after {number}")
        return "polled"

    def poll_in_thread(self, ctx: Context) -> str:
        ctx.error("before")
        ctx.close_stream(0.5)
        self.closed += 1
        ctx.wait(self.steps.get())
        return "polled"


def said(exchange: Any) -> list[str]:
    return [each["params"]["data"] if "method" in each else text_of(each) for each in exchange.messages]
