"""Users of older clients who take their time, and a server that asks them."""

import asyncio
from collections.abc import Callable
from typing import Any

from asking_stage import answer_to
from dovetail import Context, Server
from dovetail.engine.concurrency import Limit
from http_stage import text_of
from wire import Wire

LEGACY = "2025-11-25"
ANSWER = {"action": "accept", "content": {"value": "Ada"}}


class Users(Wire):
    """A pipe to a server whose questions are answered when the test says so."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, LEGACY, capabilities={"elicitation": {}})
        self.server = server

    def call(self, id: int, name: str = "asks", **arguments: Any) -> None:
        self.send(self.request("tools/call", {"name": name, "arguments": arguments}, id))

    def cancel(self, id: int) -> None:
        self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})

    async def asked(self, method: str = "elicitation/create") -> dict[str, Any]:
        message: dict[str, Any] = await self.receive()
        assert message.get("method") == method, message
        return message

    def answer(self, question: dict[str, Any]) -> None:
        self.send(answer_to(question, ANSWER))

    async def text(self) -> str:
        return text_of(await self.receive())

    @property
    def limit(self) -> Limit:
        return self.server.engine.limit

    def limit_of(self, tool: str) -> Limit:
        found = self.server.engine.tools.get(tool)
        assert found is not None
        limit = self.server.engine.book.of(found).slots
        assert limit is not None
        return limit


def serving(*, per_tool: int | None = None, **options: Any) -> Server:
    server = Server("live", **options)
    options = {} if per_tool is None else {"max_concurrency": per_tool}

    @server.tool(**options)
    async def asks(ctx: Context, times: int = 1) -> str:
        answers = await asyncio.gather(*(ctx.elicit("Name?", str) for _ in range(times)))
        return " ".join(str(answer.data) for answer in answers)

    @server.tool(**options)
    def asks_in_thread(ctx: Context) -> str:
        return f"{ctx.wait(ctx.elicit('Name?', str)).data}"

    @server.tool
    async def quick() -> str:
        return "quick"

    @server.prompt
    async def greeting(ctx: Context) -> str:
        return f"Hello {(await ctx.elicit('Name?', str)).data}"

    @server.resource("note://one")
    async def note(ctx: Context) -> str:
        return f"Note of {(await ctx.elicit('Name?', str)).data}"

    return server


def blocking(server: Server) -> Callable[[], None]:
    """A tool that holds its slot until the returned function is called."""
    go = asyncio.Event()

    @server.tool
    async def block() -> str:
        await go.wait()
        return "went on"

    return go.set
