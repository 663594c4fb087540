from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from dovetail import Server

server = Server("shop", version="1.0.0")
mcp = server.asgi()


@server.tool
def price(article: str) -> float:
    """Tell what an article costs."""
    return {"hat": 9.5, "coat": 80.0}[article]


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]


async def site(scope: Scope, receive: Receive, send: Send) -> None:
    """What you have already; in Django this is `get_asgi_application()`."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"open"})


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    for_us = scope["type"] == "lifespan" or scope["path"] in ("/mcp", "/mcp/")
    await (mcp if for_us else site)(scope, receive, send)


if __name__ == "__main__":
    uvicorn.run(app)
