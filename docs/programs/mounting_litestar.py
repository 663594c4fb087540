import uvicorn
from litestar import Litestar, asgi, get

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


app = Litestar([home, asgi("/mcp", is_mount=True, copy_scope=True)(mcp)])

if __name__ == "__main__":
    uvicorn.run(app)
