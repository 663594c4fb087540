"""A server of the official Python SDK with one of everything; it serves stdio, or HTTP with `--port N`."""

import sys
from typing import Annotated

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, ElicitationResult, Resolve
from pydantic import BaseModel

server = MCPServer("made with the SDK", version="1.0")
reads = 0


class Name(BaseModel):
    value: str


def ask_name() -> Elicit[Name]:
    return Elicit("Who are you?", Name)


@server.tool()
async def add(a: int, b: int) -> int:
    return a + b


@server.tool()
async def work(steps: int, ctx: Context) -> str:
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    await ctx.info("worked")
    return "done"


@server.tool()
async def fail() -> str:
    raise ToolError("it can't be done")


@server.tool()
async def introduce(name: Annotated[ElicitationResult[Name], Resolve(ask_name)]) -> str:
    return f"Hello, {name.data.value}" if name.action == "accept" else f"Nobody: {name.action}"


@server.resource("notes://all")
def notes() -> str:
    global reads
    reads += 1
    return f"milk, read {reads} times"


@server.resource("notes://{name}/text")
def note(name: str) -> str:
    return f"the note {name}"


@server.prompt()
def review(language: str) -> str:
    return f"Review this {language} program."


@server.completion()
async def complete(
    ref: types.PromptReference | types.ResourceTemplateReference,
    argument: types.CompletionArgument,
    context: types.CompletionContext | None,
) -> types.Completion:
    return types.Completion(values=[name for name in ("python", "perl", "ruby") if name.startswith(argument.value)])


@server.tool()
async def announce(ctx: Context) -> str:
    if ctx.protocol_version == "2026-07-28":
        await ctx.notify_tools_changed()
        await ctx.notify_resource_updated("notes://all")
    else:
        await ctx.session.send_tool_list_changed()
        await ctx.session.send_resource_updated("notes://all")
    return "announced"


if __name__ == "__main__":
    if "--port" in sys.argv:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[-1]))
    else:
        server.run()
