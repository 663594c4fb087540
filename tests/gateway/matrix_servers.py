"""One backend of the matrix in three makes: `matrix_servers.py (own | sdk | fastmcp) --port N`, of both eras over HTTP.

A make may run where the packages of the others are not, so they are imported late.
"""

import argparse
import asyncio
import collections
from collections.abc import Callable
from typing import Annotated, Any

NOTE = "notes://all"
PAGE = "https://example.com/sign-in"
LANGUAGES = ("python", "perl", "ruby")


def plain_tools(context: Any) -> list[Callable[..., Any]]:
    """Those that are the same for all makes; `context` is the class of a make's context."""
    cancelled: set[str] = set()
    heard = collections.defaultdict[str, asyncio.Event](asyncio.Event)

    async def add(a: int, b: int) -> int:
        return a + b

    async def work(ctx: context) -> str:
        await ctx.info("working")
        return "worked"

    async def report(mark: str, ctx: context) -> str:
        """Ends when its client has heard it."""
        await ctx.report_progress(1, 2, "half")
        await ctx.report_progress(2, 2, "done")
        await heard[mark].wait()
        return "worked"

    async def go_on(mark: str) -> str:
        heard[mark].set()
        return "told"

    async def linger(mark: str, ctx: context) -> str:
        await ctx.report_progress(1, 2, "lingering")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.add(mark)
            raise
        return "rested"

    async def was_cancelled(mark: str) -> str:
        return "yes" if mark in cancelled else "no"

    return [add, work, report, go_on, linger, was_cancelled]


def notes() -> str:
    return "milk"


def review(language: str) -> str:
    return f"Review this {language} program."


def languages(value: str) -> list[str]:
    return [each for each in LANGUAGES if each.startswith(value)]


def make_own() -> Any:
    from dovetail import Context, Server

    server = Server("own", version="1.0.0")
    for tool in plain_tools(Context):
        server.add_tool(tool)
    server.resource(NOTE)(notes)
    server.prompt(review)
    server.completion(prompt="review", argument="language")(languages)

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

    return server


def make_sdk() -> Any:
    import mcp_types as types
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
    from pydantic import BaseModel

    server = MCPServer("sdk", version="1.0.0")
    for tool in plain_tools(Context):
        server.add_tool(tool)
    server.resource(NOTE)(notes)
    server.prompt()(review)

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
        page = types.ElicitRequest(params=types.ElicitRequestURLParams(message="Sign in", url=PAGE))
        return in_rounds(ctx, page, lambda answer: str(answer.action))

    @server.tool()
    async def sample(said: Annotated[types.CreateMessageResult, Resolve(ask_model)]) -> str:
        return text_of(said)

    @server.tool()
    async def roots(found: Annotated[types.ListRootsResult, Resolve(ask_roots)]) -> str:
        return uris_of(found)

    @server.completion()
    async def complete(ref: Any, argument: types.CompletionArgument, context: Any) -> types.Completion:
        return types.Completion(values=languages(argument.value))

    return server


def in_rounds(ctx: Any, request: Any, read: Callable[[Any], str]) -> Any:
    """Ask by hand, since 2026-07-28: the question, or what is read from its answer."""
    import mcp_types as types

    if not ctx.input_responses:
        return types.InputRequiredResult(input_requests={"it": request})
    return read(ctx.input_responses["it"])


def text_of(said: Any) -> str:
    return str(said.content.text)


def uris_of(found: Any) -> str:
    return ", ".join(str(root.uri) for root in found.roots)


def make_fastmcp() -> Any:
    """Its context asks by requests and for forms only; the other questions go by the session of the SDK below it."""
    import mcp_types as types
    from fastmcp import Context, FastMCP

    server = FastMCP("fastmcp", version="1.0.0")
    for tool in plain_tools(Context):
        server.tool(tool)
    server.resource(NOTE)(notes)
    server.prompt(review)
    form = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}
    hello = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Hello?"))
    Answer = str | types.InputRequiredResult

    def has_rounds(ctx: Context) -> bool:
        return ctx.request_context is not None and ctx.request_context.protocol_version >= "2026"

    @server.tool
    async def touch(ctx: Context) -> str:
        await ctx.send_notification(
            types.ResourceUpdatedNotification(params=types.ResourceUpdatedNotificationParams(uri=NOTE))
        )
        return "touched"

    @server.tool
    async def ask(ctx: Context) -> Answer:
        if has_rounds(ctx):
            params = types.ElicitRequestFormParams(message="Who?", requested_schema=form)
            request = types.ElicitRequest(params=params)
            return in_rounds(ctx, request, lambda answer: f"{answer.action} {answer.content['value']}")
        answer = await ctx.elicit("Who?", str)
        return f"{answer.action} {answer.data}"

    @server.tool
    async def visit(ctx: Context) -> Answer:
        if has_rounds(ctx):
            page = types.ElicitRequest(params=types.ElicitRequestURLParams(message="Sign in", url=PAGE))
            return in_rounds(ctx, page, lambda answer: str(answer.action))
        return (await ctx.session.elicit_url("Sign in", PAGE, "visit", related_request_id=ctx.request_id)).action

    @server.tool
    async def sample(ctx: Context) -> Answer:
        if has_rounds(ctx):
            params = types.CreateMessageRequestParams(messages=[hello], max_tokens=10)
            return in_rounds(ctx, types.CreateMessageRequest(params=params), text_of)
        return text_of(await ctx.session.create_message([hello], max_tokens=10, related_request_id=ctx.request_id))

    @server.tool
    async def roots(ctx: Context) -> Answer:
        if has_rounds(ctx):
            return in_rounds(ctx, types.ListRootsRequest(), uris_of)
        return uris_of(await ctx.session.list_roots())

    @server.completion
    def complete(ref: Any, argument: types.CompletionArgument, context: Any) -> list[str]:
        return languages(argument.value)

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("make", choices=["own", "sdk", "fastmcp"])
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    if given.make == "own":
        make_own().run(transport="http", port=given.port, drain_timeout=1.0)
    elif given.make == "sdk":
        make_sdk().run("streamable-http", port=given.port)
    else:
        make_fastmcp().run("http", port=given.port, show_banner=False)
