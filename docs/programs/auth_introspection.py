import os

from dovetail import Context, Server
from dovetail.auth import Auth, Introspection

URL = "https://notes.example.com/mcp"
verifier = Introspection(
    "https://login.example.com/introspect",
    client_id="notes",
    client_secret=os.environ["NOTES_SECRET"],
    audience=URL,
    issuer="https://login.example.com",
)
server = Server("notes", version="1.0.0", auth=Auth(verifier, public_url=URL))


@server.tool
async def whoami(ctx: Context) -> str:
    """Tell who is calling."""
    return "anonymous" if ctx.principal is None else ctx.principal.name


if __name__ == "__main__":
    server.run(transport="http", allowed_hosts=["notes.example.com"])
