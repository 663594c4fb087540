"""A server of whose requests an audit can be kept."""

from typing import Any

from dovetail import Server, ToolError


def offering(**options: Any) -> Server:
    server = Server("audited", declare=["completions"], **options)
    server.add_tool(add)
    server.add_tool(fails)
    server.add_prompt(lambda topic="": f"About {topic}", name="write")
    server.add_resource("note://{id}", lambda id: "text", name="note")
    server.add_resource("note://one", lambda: "text", name="one")
    return server


async def add(a: int, b: int, password: str = "") -> int:
    return a + b


async def fails(how: str = "") -> str:
    if how == "crash":
        raise ValueError("boom")
    raise ToolError("no")
