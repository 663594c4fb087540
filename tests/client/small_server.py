"""A small server with one of everything, and the revisions at which it is met."""

import asyncio
from typing import Any

import msgspec
import pytest

from dovetail.engine.context import Context
from dovetail.errors import ToolError
from dovetail.protocol import revisions
from dovetail.server import Server

EVERY = [revision.name for revision in revisions.ALL]
every_revision = pytest.mark.parametrize("version", EVERY)


class Point(msgspec.Struct):
    x: int
    y: int


def make_server(**options: Any) -> Server:
    server = Server("small", version="1.2.3", instructions="Be kind.", **options)

    @server.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool
    def point(x: int, y: int) -> Point:
        return Point(x, y)

    @server.tool
    def boxed(value: int) -> dict[str, int]:
        """Its own object happens to look like our wrapping."""
        return {"result": value}

    @server.tool
    def greet(name: str) -> str:
        return f"Hello, {name}!"

    @server.tool
    def fail() -> str:
        raise ToolError("The cupboard is bare.")

    @server.tool
    async def work(steps: int, ctx: Context) -> str:
        for step in range(steps):
            await ctx.report_progress(step + 1, steps, f"step {step + 1}")
            await ctx.info(f"did {step + 1}")
        return "done"

    @server.tool
    async def sleep(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    @server.resource("notes://all", mime_type="text/plain")
    def all_notes() -> str:
        return "milk"

    @server.resource("notes://{id}")
    def one_note(id: str) -> bytes:
        return id.encode()

    @server.prompt
    def review(code: str) -> str:
        """Ask for a review."""
        return f"Review {code}"

    @server.completion(prompt="review", argument="code")
    def codes(value: str, arguments: dict[str, str]) -> list[str]:
        return [value + "1", value + "2", *arguments.values()]

    return server


if __name__ == "__main__":
    make_server().run()
