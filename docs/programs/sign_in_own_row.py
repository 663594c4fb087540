import os
from collections.abc import Mapping
from typing import Any

from dovetail import Context, Server
from dovetail.authserver import AuthServer, Provider, SignIn

FORGE = Provider(
    name="Forge",  # for people
    key="forge",  # begins the subject of each user: it has to stay
    authorization_endpoint="https://forge.example.com/oauth/authorize",
    token_endpoint="https://forge.example.com/oauth/token",
    userinfo_endpoint="https://forge.example.com/api/me",
    scopes=("profile",),
    subject=("account_id",),  # never changes, and is never given to another user
    username="login",
    verified="email_confirmed",  # or no e-mail address counts
)


def only_staff(claims: Mapping[str, Any]) -> bool | str:
    """Let in, or say why not."""
    return claims.get("kind") == "staff" or "Only people who work here may read the notes."


ORIGIN = "https://notes.example.com"
sign_in = SignIn(FORGE, os.environ["FORGE_CLIENT_ID"], os.environ["FORGE_CLIENT_SECRET"], allow=only_staff)
auth_server = AuthServer(ORIGIN, resource=f"{ORIGIN}/mcp", sign_in=sign_in)
server = Server("notes", version="1.0.0", auth=auth_server)


@server.tool
async def whoami(ctx: Context) -> str:
    """Tell who is calling."""
    return "anonymous" if ctx.principal is None else ctx.principal.name


if __name__ == "__main__":
    server.run(transport="http")
