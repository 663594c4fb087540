"""A backend with one of everything, in process, on stdio or over HTTP."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from dovetail import (
    Audio,
    Context,
    Elicit,
    ElicitUrl,
    InputRequired,
    ProtocolError,
    ResourceLink,
    Server,
    ToolError,
    ToolResult,
    UrlElicitationRequired,
)


class Point(msgspec.Struct):
    x: int
    y: int


class Address(msgspec.Struct):
    city: str
    colours: list[str] = []


def make_backend(**options: Any) -> Server:
    server = Server("backend", version="1.0.0", **options)

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    def point(x: int, y: int) -> Point:
        return Point(x, y)

    @server.tool
    def sound() -> Audio:
        return Audio(b"RIFF", "audio/wav")

    @server.tool
    def link() -> ResourceLink:
        return ResourceLink("notes://all", "all")

    @server.tool
    def marked() -> ToolResult:
        return ToolResult(content=["x"], meta={"example.com/mark": 1})

    @server.tool
    def fail() -> str:
        raise ToolError("The cupboard is bare.")

    @server.tool
    def pid() -> int:
        return os.getpid()

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half")
        await ctx.info("working", "engine")
        return "done"

    @server.tool
    async def sleep(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "asleep")
        await asyncio.sleep(60)
        return "rested"

    @server.tool
    def crash() -> str:
        os._exit(3)

    @server.tool
    def siblings() -> int:
        """How many processes of this program the parent of this one has."""
        command = Path("/proc/self/cmdline").read_bytes()
        children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
        return sum(Path(f"/proc/{each}/cmdline").read_bytes() == command for each in children)

    @server.tool
    def reject() -> str:
        raise ProtocolError("refused", code=-32600)

    @server.tool
    async def meta(ctx: Context) -> dict[str, Any]:
        return {"meta": {key: value for key, value in ctx.meta.items() if not key.startswith("io.modelcontext")}}

    @server.tool
    async def seen(ctx: Context) -> dict[str, Any]:
        """What the backend knows about its caller."""
        headers = {} if ctx.headers is None else dict(ctx.headers.items())
        return {"capabilities": dict(ctx.client.capabilities), "headers": headers, "session": ctx.session_id}

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Your name?", str)
        return f"{answer.action} {answer.data}"

    @server.tool
    async def ask_rich(ctx: Context) -> str:
        answer = await ctx.elicit(
            "Colours?",
            schema={
                "type": "object",
                "properties": {"colours": {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}}},
            },
        )
        return f"{answer.action} {answer.data}"

    @server.tool
    async def twice(ctx: Context) -> str:
        first = await ctx.elicit("First?", int)
        second = await ctx.elicit(f"Second, after {first.data}?", int)
        return f"{first.data} {second.data}"

    @server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("Sign in", "https://example.com/in")).action

    @server.tool
    async def sign_in(ctx: Context) -> str:
        raise UrlElicitationRequired(ElicitUrl("Sign in", "https://example.com/in"))

    @server.tool
    async def by_hand(ctx: Context) -> str | InputRequired:
        if ctx.request_state != {"n": 1}:
            return InputRequired({"who": Elicit("Who?", str)}, state={"n": 1})
        return f"{ctx.input_responses['who']['content']}"

    @server.tool
    async def sample(ctx: Context) -> str:
        return (await ctx.sample("Hello?", max_tokens=10)).text

    @server.tool
    async def roots(ctx: Context) -> str:
        return ", ".join(root.uri for root in await ctx.list_roots())

    @server.tool
    async def grow(ctx: Context) -> str:
        server.add_tool(lambda: "new", name="grown")
        return "ok"

    @server.tool
    async def update(ctx: Context) -> str:
        await ctx.notify_resource_updated("notes://all")
        return "ok"

    @server.resource("notes://all", mime_type="text/plain")
    def all_notes() -> str:
        return "milk"

    @server.resource("notes://{id}")
    def one_note(id: str) -> bytes:
        return id.encode()

    @server.prompt
    def review(code: str) -> str:
        return f"Review {code}"

    @server.completion(prompt="review", argument="code")
    def codes(value: str, arguments: dict[str, str]) -> list[str]:
        return [value + "1", *arguments.values()]

    @server.completion(resource="notes://{id}", argument="id")
    def ids(value: str) -> list[str]:
        return [value + "2"]

    return server


if __name__ == "__main__":
    make_backend().run(*sys.argv[1:])
