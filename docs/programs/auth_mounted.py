import uvicorn
from starlette.applications import Starlette

from dovetail import Server
from dovetail.auth import Auth, Jwt

URL = "https://example.com/notes/mcp"
auth = Auth(Jwt("https://login.example.com", audience=URL), public_url=URL, scopes=["notes:read"])
server = Server("notes", version="1.0.0", auth=auth)


@server.tool(scopes=["notes:read"])
async def count() -> int:
    """Count the notes."""
    return 3


app = Starlette()
mcp = server.asgi()
mcp.mount_on(app, "/notes/mcp")
app.mount("/.well-known", server.well_known())

if __name__ == "__main__":
    uvicorn.run(app)
