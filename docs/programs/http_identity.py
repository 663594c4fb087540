from typing import Any
from collections.abc import MutableMapping

from dovetail import Context, Server

server = Server("desk", version="1.0.0")


@server.tool
async def whoami(ctx: Context) -> str:
    """Tell who is calling."""
    return (ctx.headers or {}).get("x-user", "anonymous")


def caller(scope: MutableMapping[str, Any]) -> str | None:
    """The user that the proxy in front has put into a header; it also removes that header from what comes in."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return headers.get(b"x-user", b"").decode("latin-1") or None


if __name__ == "__main__":
    server.run(transport="http", identify=caller)
