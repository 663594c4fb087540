import time
from collections import defaultdict
from typing import Any

from dovetail import ProtocolError, Server

server = Server("vault", version="1.0.0")
seconds: dict[str, float] = defaultdict(float)


@server.middleware
async def measure(request: Any, call_next: Any) -> Any:
    """How much time each method has taken."""
    started = time.perf_counter()
    try:
        return await call_next(request)
    finally:
        seconds[request.method] += time.perf_counter() - started


@server.middleware
async def guard(request: Any, call_next: Any) -> Any:
    """Who is not an admin neither sees nor calls the tools of admins."""
    admin = request.meta.get("example.com/role") == "admin"
    if request.method == "tools/call" and request.params.name.startswith("admin_") and not admin:
        raise ProtocolError(f"Unknown tool: {request.params.name}", code=-32602)
    result = await call_next(request)
    if request.method == "tools/list" and not admin:
        result.items = [tool for tool in result.items if not tool.name.startswith("admin_")]
    return result


@server.tool
def look() -> str:
    """Look through the window."""
    return "Gold."


@server.tool
def admin_open() -> str:
    """Open the vault."""
    return "It is open."


if __name__ == "__main__":
    server.run()
