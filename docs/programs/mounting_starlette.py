import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from dovetail import Server

server = Server("shop", version="1.0.0")


@server.tool
def price(article: str) -> float:
    """Tell what an article costs."""
    return {"hat": 9.5, "coat": 80.0}[article]


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("open")


app = Starlette(routes=[Route("/", home)])
mcp = server.asgi()
mcp.mount_on(app, "/mcp")

if __name__ == "__main__":
    uvicorn.run(app)
