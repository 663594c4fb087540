"""Seed 001: the message shapes of the pocket specification."""

from typing import Annotated

from dovetail import Field, Server, ToolError

server = Server("seed-001", version="1.0.0", profile="pocket", logging=False)


@server.tool
async def describe(subject: Annotated[str, Field(description="What to describe", min_length=1)]) -> str:
    """Describe something in one character."""
    if subject == "the ineffable":
        raise ToolError("Words fail.")
    return "…"


if __name__ == "__main__":
    server.run()
