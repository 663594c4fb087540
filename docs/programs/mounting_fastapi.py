import uvicorn
from fastapi import FastAPI

from dovetail import Server

server = Server("shop", version="1.0.0")
app = FastAPI()


@server.tool
def price(article: str) -> float:
    """Tell what an article costs."""
    return {"hat": 9.5, "coat": 80.0}[article]


@app.get("/")
def home() -> dict[str, str]:
    return {"shop": "open"}


mcp = server.asgi()
mcp.mount_on(app, "/mcp")

if __name__ == "__main__":
    uvicorn.run(app)
