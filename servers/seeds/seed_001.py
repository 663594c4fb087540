"""Seed 001: the message shapes of the pocket specification; calls need a key and have a rate, as it demands.

The key of this example is `dovetail_example_key_of_the_pocket_spec`; a client sends it as `Authorization: Bearer …`.
"""

from typing import Annotated

from dovetail import Field, Server, ToolError
from dovetail.auth import ApiKeys

KEYS = {"reader": "sha256:6dd2067344df2f9ce7f045309bc604e4654e25a274ca71e929e7bab9b974247f"}


async def describe(subject: Annotated[str, Field(description="What to describe", min_length=1)]) -> str:
    """Describe something in one character."""
    if subject == "the ineffable":
        raise ToolError("Words fail.")
    return "…"


async def forget(subject: str) -> None:
    """Say nothing of something."""


def create_server(*, rate_limit: str = "60/minute per principal") -> Server:
    auth = ApiKeys(KEYS)
    server = Server("seed-001", version="1.0.0", profile="pocket", logging=False, auth=auth, rate_limit=rate_limit)
    server.add_tool(describe)
    server.add_tool(forget)
    return server


server = create_server()

if __name__ == "__main__":
    server.run(transport="http")
