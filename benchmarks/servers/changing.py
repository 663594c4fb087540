"""The changes in the servers that notify of changes: a tool comes, goes, and comes again."""

from typing import Any


async def extra() -> str:
    return "here"


class Coming:
    """Adds a tool to a server, or takes it away if it is there."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._present = False

    def change(self) -> None:
        self._present = not self._present
        if self._present:
            self._server.add_tool(extra)
        else:
            self._server.remove_tool("extra")
