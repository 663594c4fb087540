import os

from dovetail import Context, Server
from dovetail.authserver import AuthServer, SignIn

ORIGIN = "http://127.0.0.1:8000"
sign_in = SignIn.github(os.environ["GITHUB_CLIENT_ID"], os.environ["GITHUB_CLIENT_SECRET"])
auth_server = AuthServer(ORIGIN, resource=f"{ORIGIN}/mcp", sign_in=sign_in, scopes={"notes:read": "Read your notes"})
server = Server("notes", version="1.0.0", auth=auth_server)


@server.tool(scopes=["notes:read"])
async def whoami(ctx: Context) -> str:
    """Tell who is calling."""
    assert ctx.principal is not None  # only a principal has scopes
    return f"{ctx.principal.claims.get('name')} is {ctx.principal.subject}"


if __name__ == "__main__":
    server.run(transport="http")
