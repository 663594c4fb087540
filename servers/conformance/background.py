"""Tools whose calls become tasks, as the scenarios of the tasks extension want them."""

import asyncio
from typing import Any

from dovetail import Context, ProtocolError, Server, TaskConfig, ToolError

CONFIRM: dict[str, Any] = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
NAME: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def add_background_tools(server: Server) -> None:
    @server.tool(task=True)
    async def slow_compute(seconds: float, label: str) -> str:
        """Take its time."""
        await asyncio.sleep(seconds)
        return f"{label}: done after {seconds:g} s"

    @server.tool(task=TaskConfig(mode="required"))
    async def failing_job() -> str:
        """Fail, in words that the model can read."""
        await asyncio.sleep(1)
        raise ToolError("This job always fails")

    @server.tool(task=True)
    async def protocol_error_job() -> str:
        """Fail in the protocol."""
        raise ProtocolError("This job can't be served")

    @server.tool(task=True)
    async def confirm_delete(filename: str, ctx: Context) -> str:
        """Ask, then delete."""
        answer = await ctx.elicit(f"Delete {filename}?", schema=CONFIRM)
        return f"{filename}: {answer.action}"

    @server.tool(task=True)
    async def multi_input(ctx: Context) -> str:
        """Ask two things at once."""
        name, sure = await asyncio.gather(ctx.elicit("Your name?", schema=NAME), ctx.elicit("Sure?", schema=CONFIRM))
        return f"{name.action}, {sure.action}"

    @server.tool(task=TaskConfig(mode="required", after=None))
    async def test_tool_with_task(ctx: Context) -> str:
        """Ask first, then go on in the background."""
        answer = await ctx.elicit("What is your name?", schema=NAME)
        await ctx.detach()
        return f"Hello, {answer.data['name']}!" if answer.data else "Hello!"
