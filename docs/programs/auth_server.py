import json
import os
from pathlib import Path

from dovetail import Context, Server
from dovetail.auth import Auth
from dovetail.authserver import AuthServer, OAuthClient, Passwords

ORIGIN = "http://127.0.0.1:8000"
nightly = OAuthClient(
    id="nightly",
    secret=os.environ["NIGHTLY_SECRET"],
    grant_types=("client_credentials",),
    scopes=frozenset({"notes:read"}),
)
reports = OAuthClient(
    id="reports",
    jwks=json.loads(Path(__file__).with_name("auth_reports_keys.json").read_text()),
    grant_types=("client_credentials",),
    scopes=frozenset({"notes:read"}),
)
auth_server = AuthServer(
    ORIGIN,
    resource=f"{ORIGIN}/mcp",
    sign_in=Passwords(Path(__file__).with_name("auth_users.json")),
    scopes={"notes:read": "Read your notes", "notes:write": "Change your notes"},
    clients=[nightly, reports],
)
server = Server("notes", version="1.0.0", auth=Auth(auth_server, scopes=["notes:read"]))


@server.tool
async def whoami(ctx: Context) -> str:
    """Tell who is calling."""
    return "anonymous" if ctx.principal is None else ctx.principal.name


@server.tool(scopes=["notes:write"])
async def write(text: str) -> str:
    """Write a note: clients that have only asked for reading come back for more."""
    return "Written."


if __name__ == "__main__":
    server.run(transport="http")
