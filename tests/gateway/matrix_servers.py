"""One backend of the matrix in two makes: `matrix_servers.py (own | sdk) --port N` serves both eras over HTTP."""

import argparse
import asyncio
import collections
from typing import Annotated, Any

from dovetail import Context, Server

NOTE = "notes://all"
PAGE = "https://example.com/sign-in"
LANGUAGES = ("python", "perl", "ruby")


def make_own() -> Server:
    server = Server("own", version="1.0.0")
    cancelled: set[str] = set()
    heard = collections.defaultdict[str, asyncio.Event](asyncio.Event)

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.info("working")
        return "worked"

    @server.tool
    async def report(mark: str, ctx: Context) -> str:
        """Ends when its client has heard it."""
        await ctx.report_progress(1, 2, "half")
        await ctx.report_progress(2, 2, "done")
        await heard[mark].wait()
        return "worked"

    @server.tool
    async def go_on(mark: str) -> str:
        heard[mark].set()
        return "told"

    @server.tool
    async def linger(mark: str, ctx: Context) -> str:
        await ctx.report_progress(1, 2, "lingering")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.add(mark)
            raise
        return "rested"

    @server.tool
    def was_cancelled(mark: str) -> str:
        return "yes" if mark in cancelled else "no"

    @server.tool
    async def touch(ctx: Context) -> str:
        await ctx.notify_resource_updated(NOTE)
        return "touched"

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", str)
        return f"{answer.action} {answer.data}"

    @server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("Sign in", PAGE)).action

    @server.tool
    async def sample(ctx: Context) -> str:
        return (await ctx.sample("Hello?", max_tokens=10)).text

    @server.tool
    async def roots(ctx: Context) -> str:
        return ", ".join(root.uri for root in await ctx.list_roots())

    @server.resource(NOTE)
    def notes() -> str:
        return "milk"

    @server.prompt
    def review(language: str) -> str:
        return f"Review this {language} program."

    @server.completion(prompt="review", argument="language")
    def languages(value: str) -> list[str]:
        return [each for each in LANGUAGES if each.startswith(value)]

    return server


def make_sdk() -> Any:
    import mcp_types as types
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
    from pydantic import BaseModel

    server = MCPServer("sdk", version="1.0.0")
    cancelled: set[str] = set()
    heard = collections.defaultdict[str, asyncio.Event](asyncio.Event)

    class Name(BaseModel):
        value: str

    def ask_name() -> Elicit[Name]:
        return Elicit("Who?", Name)

    def ask_model() -> Sample:
        text = types.TextContent(type="text", text="Hello?")
        return Sample([types.SamplingMessage(role="user", content=text)], max_tokens=10)

    def ask_roots() -> ListRoots:
        return ListRoots()

    @server.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def work(ctx: Context) -> str:
        await ctx.info("working")
        return "worked"

    @server.tool()
    async def report(mark: str, ctx: Context) -> str:
        """Ends when its client has heard it."""
        await ctx.report_progress(1, 2, "half")
        await ctx.report_progress(2, 2, "done")
        await heard[mark].wait()
        return "worked"

    @server.tool()
    async def go_on(mark: str) -> str:
        heard[mark].set()
        return "told"

    @server.tool()
    async def linger(mark: str, ctx: Context) -> str:
        await ctx.report_progress(1, 2, "lingering")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.add(mark)
            raise
        return "rested"

    @server.tool()
    async def was_cancelled(mark: str) -> str:
        return "yes" if mark in cancelled else "no"

    @server.tool()
    async def touch(ctx: Context) -> str:
        await ctx.notify_resource_updated(NOTE)
        return "touched"

    @server.tool()
    async def ask(name: Annotated[Name, Resolve(ask_name)]) -> str:
        return f"accept {name.value}"

    @server.tool()
    async def visit(ctx: Context) -> types.InputRequiredResult | str:
        """By hand in rounds, by a request before."""
        if (ctx.protocol_version or "") < "2026":
            return (await ctx.elicit_url("Sign in", PAGE, "visit")).action
        if ctx.input_responses:
            return str(ctx.input_responses["page"].action)
        params = types.ElicitRequestURLParams(message="Sign in", url=PAGE)
        return types.InputRequiredResult(input_requests={"page": types.ElicitRequest(params=params)})

    @server.tool()
    async def sample(said: Annotated[types.CreateMessageResult, Resolve(ask_model)]) -> str:
        assert isinstance(said.content, types.TextContent)
        return said.content.text

    @server.tool()
    async def roots(found: Annotated[types.ListRootsResult, Resolve(ask_roots)]) -> str:
        return ", ".join(str(root.uri) for root in found.roots)

    @server.resource(NOTE)
    def notes() -> str:
        return "milk"

    @server.prompt()
    def review(language: str) -> str:
        return f"Review this {language} program."

    @server.completion()
    async def complete(ref: Any, argument: types.CompletionArgument, context: Any) -> types.Completion:
        return types.Completion(values=[each for each in LANGUAGES if each.startswith(argument.value)])

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("make", choices=["own", "sdk"])
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    if given.make == "own":
        make_own().run(transport="http", port=given.port, drain_timeout=1.0)
    else:
        make_sdk().run("streamable-http", port=given.port)
