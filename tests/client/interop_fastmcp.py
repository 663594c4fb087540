"""A FastMCP server with one of everything; run as a program, it serves stdio, or HTTP with `--port N`."""

import sys

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from mcp_types import Completion

server = FastMCP("made with FastMCP", version="1.0", cache_ttl=60)
reads = 0


@server.tool
async def add(a: int, b: int) -> int:
    return a + b


@server.tool
async def work(steps: int, ctx: Context) -> str:
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    await ctx.info("worked")
    return "done"


@server.tool
async def fail() -> str:
    raise ToolError("it can't be done")


@server.tool
async def introduce(ctx: Context) -> str:
    answer = await ctx.elicit("Who are you?", response_type=str)
    return f"Hello, {answer.data}" if answer.action == "accept" else f"Nobody: {answer.action}"


@server.resource("notes://all")
def notes() -> str:
    global reads
    reads += 1
    return f"milk, read {reads} times"


@server.resource("notes://{name}/text")
def note(name: str) -> str:
    return f"the note {name}"


@server.prompt
def review(language: str) -> str:
    return f"Review this {language} program."


@server.completion
async def complete(ref, argument, context) -> Completion:  # type: ignore[no-untyped-def]
    return Completion(values=[name for name in ("python", "perl", "ruby") if name.startswith(argument.value)])


if __name__ == "__main__":
    if "--port" in sys.argv:
        server.run("http", show_banner=False, log_level="ERROR", host="127.0.0.1", port=int(sys.argv[-1]), path="/mcp")
    else:
        server.run(show_banner=False, log_level="ERROR")
