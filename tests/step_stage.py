"""A server whose tool takes steps, and a side effect that is counted and may wait or fail."""

import asyncio
from collections.abc import Callable
from typing import Any

from dovetail import Client, Context, Server

SURE = {"Sure?": "yes", "Really?": "yes", "Name?": "Ada"}
Body = Callable[[Context], Any]


def serving(body: Body, **options: Any) -> Server:
    server = Server("steps", **options)
    server.add_tool(body, name="tool")
    return server


def text_of(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


async def call(client: Client, **more: Any) -> dict[str, Any]:
    return await client.request("tools/call", {"name": "tool", **more})


class Effect:
    """A side effect that is counted, and may wait or fail."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)  # of each time; afterwards the number of times
        self.times = 0
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    def _outcome(self) -> Any:
        self.times += 1
        outcome = self.outcomes.pop(0) if self.outcomes else self.times
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def sync(self) -> Any:
        return self._outcome()

    async def __call__(self) -> Any:
        assert not self.begun.is_set() or self.go.is_set(), "it was begun a second time"
        self.begun.set()
        await self.go.wait()
        return self._outcome()


def asks_before_and_after(effect: Callable[[], Any]) -> Body:
    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        number = await ctx.step("effect", effect)
        await ctx.elicit("Really?", str)
        return f"{number}"

    return tool
