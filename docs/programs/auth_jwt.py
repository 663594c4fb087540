from dovetail import Context, Server
from dovetail.auth import Auth, Jwt

URL = "https://notes.example.com/mcp"  # what clients are given, and what tokens are made for
auth = Auth(Jwt("https://login.example.com", audience=URL), public_url=URL, scopes=["notes:read"])
server = Server("notes", version="1.0.0", auth=auth)


@server.tool
async def whoami(ctx: Context) -> dict[str, str | None]:
    """Tell who is calling, and by which program."""
    caller = ctx.principal
    return {} if caller is None else {"user": caller.subject, "program": caller.client}


if __name__ == "__main__":
    server.run(transport="http", allowed_hosts=["notes.example.com"])
