import time
from collections import defaultdict

from dovetail import CallNext, ListResult, ProtocolError, Request, Result, Server

server = Server("vault", version="1.0.0")
seconds: dict[str, float] = defaultdict(float)


@server.middleware
async def measure(request: Request, call_next: CallNext) -> Result:
    """How much time each method has taken."""
    started = time.perf_counter()
    try:
        return await call_next(request)
    finally:
        seconds[request.method] += time.perf_counter() - started


@server.middleware
async def guard(request: Request, call_next: CallNext) -> Result:
    """Who is not an admin neither sees nor calls the tools of admins."""
    admin = request.meta.get("example.com/role") == "admin"
    if request.method == "tools/call" and request.params.name.startswith("admin_") and not admin:
        raise ProtocolError(f"Unknown tool: {request.params.name}", code=-32602)
    result = await call_next(request)
    if isinstance(result, ListResult) and result.key == "tools" and not admin:
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
