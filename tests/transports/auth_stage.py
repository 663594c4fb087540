"""A protected server, its verifier and its users; an authenticator alone; and the challenges of refusals."""

import asyncio
import re
from time import monotonic
from typing import Any

from dovetail import Context, Server
from dovetail.auth import Auth, Principal
from dovetail.errors import ProtocolError
from dovetail.state.memory import MemoryState
from dovetail.transports.http.authenticate import Authenticator, TokenLimits
from dovetail.transports.http.in_flight import InFlight
from dovetail.transports.http.proxies import TrustedProxies
from dovetail.transports.http.request import HttpRequest
from dovetail.transports.http.well_known import ResourceUrls
from http_wire import HttpExchange, HttpWire

METADATA = "http://localhost:8000/.well-known/oauth-protected-resource/mcp"
ISSUER = "https://login.example.com"
PEOPLE = {
    "ann-token": Principal(subject="ann", scopes=frozenset({"notes:read", "notes:write"})),
    "admin-token": Principal(subject="ann", scopes=frozenset({"notes:read", "notes:write", "notes:admin"})),
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
        self.people = dict(PEOPLE)

    async def verify(self, token: str) -> Principal | None:
        self.asked.append(token)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return self.people.get(token)


def notes(register: Any = None, *, audit: Any = False, page_size: int | None = None, **options: Any) -> Server:
    """`options` are those of Auth."""
    auth = Auth(register or Register(), **{"authorization_servers": [ISSUER], "scopes": ["notes:read"], **options})
    server = Server("notes", version="1.0.0", auth=auth, audit=audit, page_size=page_size)
    needed = ["notes:write", "notes:admin"]

    @server.tool
    async def whoami(ctx: Context) -> str:
        return "nobody" if ctx.principal is None else ctx.principal.name

    server.add_tool(lambda: "wiped", name="wipe", scopes=needed)
    server.add_resource("notes://all", lambda: "all of it", name="all", scopes=needed)
    server.add_prompt(lambda: "Tidy up.", name="tidy", scopes=needed)
    return server


def bearer(token: str = "ann-token") -> dict[str, str | None]:
    return {"authorization": f"Bearer {token}"}


def challenge_of(answer: HttpExchange) -> dict[str, str]:
    header = answer.headers["www-authenticate"]
    assert header.startswith("Bearer ")
    return dict(re.findall(r'(\w+)="([^"]*)"', header))


class ProtectedApp:
    """A handler behind an `Authenticator`, as an ASGI app: a GET stays open, the response to all others is a 204."""

    def __init__(self, auth: Any, *, clock: Any = monotonic, **limits: Any) -> None:
        engine = Server("protected", auth=auth).engine
        proxies = TrustedProxies()
        urls, in_flight = ResourceUrls(None, "/mcp", proxies), InFlight(10, 1000, None)
        assert engine.options.auth is not None
        authenticator = Authenticator(
            engine.options.auth, urls, in_flight, MemoryState(), engine, TokenLimits(**limits), clock
        )
        self._handler = authenticator.protect(self._handle)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = HttpRequest.from_scope(scope, receive, send, scope["path"])
        try:
            await self._handler(request)
        except ProtocolError as failure:
            await request.refuse(failure)

    async def _handle(self, request: HttpRequest) -> None:
        if request.method == "GET":
            over = asyncio.Event()
            await request.while_authorized(self._hold_open(request, over), over.set)
        else:
            await request.response.empty(204)

    async def _hold_open(self, request: HttpRequest, over: asyncio.Event) -> None:
        await request.response.open()
        await over.wait()
        await request.response.close()

    def post(self, token: str = "ann-token") -> HttpExchange:
        return HttpWire(self, headers=bearer(token)).raw("POST")

    async def status(self, token: str = "ann-token") -> int:
        return (await self.post(token).done()).status

    async def stream(self) -> HttpExchange:
        return await HttpWire(self, headers=bearer()).raw("GET").started()
