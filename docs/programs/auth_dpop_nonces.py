from dovetail import Context, Server
from dovetail.auth import Auth, Jwt

URL = "https://notes.example.com/mcp"
verifier = Jwt("https://login.example.com", audience=URL)
server = Server("notes", version="1.0.0", auth=Auth(verifier, public_url=URL, dpop="required", dpop_nonces=True))


@server.tool
async def whoami(ctx: Context) -> str:
    """Tell who is calling."""
    return "anonymous" if ctx.principal is None else ctx.principal.name


if __name__ == "__main__":
    server.run(transport="http", allowed_hosts=["notes.example.com"])
