"""A small server, and the names in its lists."""

from typing import Any

from dovetail import Server


def new_server(count: int = 0, **options: Any) -> Server:
    server = Server("core", version="1.0.0", **options)
    for number in range(count):
        server.add_tool(lambda: "", name=f"t{number}")
    return server


def names(result: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in result["tools"]]
