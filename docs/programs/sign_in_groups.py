import os
from collections.abc import Mapping
from typing import Any

from dovetail import Server
from dovetail.auth import Auth
from dovetail.authserver import AuthServer, SignIn

ORIGIN = "https://notes.example.com"
TENANT = "0b1f9851-1bf0-433f-aec3-cb9272f093dc"
STAFF, EDITORS = "3c6fa1d2-65a0-4f0c-9d2b-1f8f2b8d8a10", "8e2d7c55-40a5-4a3e-8a4c-5f0e7d1b9c21"  # ids of groups


def scopes_for(claims: Mapping[str, Any]) -> list[str]:
    """What a user may do at most."""
    return ["notes:read", "notes:write"] if EDITORS in claims["groups"] else ["notes:read"]


sign_in = SignIn.entra(
    os.environ["ENTRA_CLIENT_ID"],
    os.environ["ENTRA_CLIENT_SECRET"],
    tenant=TENANT,
    allow={"groups": [STAFF, EDITORS]},
    scopes_for=scopes_for,
)
auth_server = AuthServer(
    ORIGIN,
    resource=f"{ORIGIN}/mcp",
    sign_in=sign_in,
    scopes={"notes:read": "Read your notes", "notes:write": "Change your notes"},
)
server = Server("notes", version="1.0.0", auth=Auth(auth_server, scopes=["notes:read"]))


@server.tool(scopes=["notes:write"])
async def write(text: str) -> str:
    """Write a note: clients that have only asked for reading come back for more."""
    return "Written."


if __name__ == "__main__":
    server.run(transport="http")
