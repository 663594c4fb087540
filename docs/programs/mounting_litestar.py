from typing import Any

import uvicorn
from litestar import Litestar, asgi, get
from litestar.types import Scope

from dovetail import Server

server = Server("shop", version="1.0.0")
mcp = server.asgi()


@server.tool
def price(article: str) -> float:
    """Tell what an article costs."""
    return {"hat": 9.5, "coat": 80.0}[article]


@get("/")
async def home() -> str:
    return "open"


@asgi("/mcp", is_mount=True, copy_scope=True)
async def mcp_here(scope: Scope, receive: Any, send: Any) -> None:
    await mcp({**scope, "root_path": "/mcp"}, receive, send)  # Litestar cuts off "/mcp" and tells nobody


app = Litestar([home, mcp_here])

if __name__ == "__main__":
    uvicorn.run(app)
