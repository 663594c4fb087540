"""A protected server, its verifier and its people; and what those are told who are not let in."""

import asyncio
import re
from typing import Any

from dovetail import Context, Server
from dovetail.auth import Auth, Principal
from http_wire import Exchange

METADATA = "http://localhost:8000/.well-known/oauth-protected-resource/mcp"
ISSUER = "https://login.example.com"
PEOPLE = {
    "ann-token": Principal(subject="ann", scopes=frozenset({"notes:read", "notes:write"})),
    "ann-other": Principal(subject="ann", scopes=frozenset({"notes:read"})),
    "bob-token": Principal(subject="bob", scopes=frozenset({"notes:read", "notes:write"})),
    "low-token": Principal(subject="low", scopes=frozenset({"other"})),
}


class Register:
    """A verifier that counts, and does what a test wants."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def verify(self, token: str) -> Principal | None:
        self.asked.append(token)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return PEOPLE.get(token)


def notes(register: Any = None, **options: Any) -> Server:
    options = {"authorization_servers": [ISSUER], "scopes": ["notes:read"], **options}
    server = Server("notes", version="1.0.0", auth=Auth(register or Register(), **options))

    @server.tool
    async def whoami(ctx: Context) -> str:
        return "nobody" if ctx.principal is None else ctx.principal.name

    @server.tool(scopes=["notes:write", "notes:admin"])
    async def wipe() -> str:
        return "wiped"

    return server


def bearer(token: str = "ann-token") -> dict[str, str | None]:
    return {"authorization": f"Bearer {token}"}


def challenge_of(answer: Exchange) -> dict[str, str]:
    header = answer.headers["www-authenticate"]
    assert header.startswith("Bearer ")
    return dict(re.findall(r'(\w+)="([^"]*)"', header))
