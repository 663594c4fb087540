"""Programs that introduce themselves (RFC 7591): their metadata come in, an id goes out, and a secret if wanted."""

import secrets
import time
from collections.abc import Callable

import msgspec

from dovetail.authserver.client_metadata import ClientMetadata, as_client
from dovetail.authserver.clients import Clients
from dovetail.authserver.marks import Marks
from dovetail.authserver.networks import caller_of
from dovetail.authserver.refusals import FOR_ANY_ORIGIN, NOT_KEPT, OAuthRefusal, for_programs
from dovetail.transports.routes import PageRequest, PageResponse

USUAL_METHOD = "client_secret_basic"  # RFC 7591, 2
PER_CALLER = 30  # registrations in an hour
PER_HOUR = 200  # by everybody together
HOUR = 3600.0
MAX_BYTES = 8 * 1024  # of one: a day's registrations have to fit into the memory of a small server
ID_PREFIX = "dcr-"


class Registration:
    """The endpoint `/register`."""

    def __init__(self, clients: Clients, marks: Marks, clock: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._marks = marks
        self._clock = clock
        self.page = for_programs(self._register)

    async def _register(self, request: PageRequest) -> PageResponse:
        body = await request.body()
        if len(body) > MAX_BYTES:
            raise OAuthRefusal("invalid_client_metadata", f"The metadata have more than {MAX_BYTES} bytes", status=413)
        said = ClientMetadata.read(body)
        method = said.token_endpoint_auth_method or USUAL_METHOD
        client = as_client(said, ID_PREFIX + secrets.token_urlsafe(18), method)
        await self._count(caller_of(request))
        secret = secrets.token_urlsafe(32) if method.startswith("client_secret") else None
        client = msgspec.structs.replace(client, secret=secret)  # which keeps a digest
        await self._clients.add(client)
        answer = {
            "client_id": client.id,
            "client_id_issued_at": int(self._clock()),
            "redirect_uris": list(client.redirect_uris),
            "grant_types": list(client.grant_types),
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            **({"client_name": client.name} if client.name else {}),
            **({} if client.jwks is None else {"jwks": client.jwks}),
            **({} if secret is None else {"client_secret": secret, "client_secret_expires_at": 0}),
        }
        return PageResponse(answer, 201, {**NOT_KEPT, **FOR_ANY_ORIGIN})

    async def _count(self, caller: str) -> None:
        for name, most in ((caller, PER_CALLER), ("", PER_HOUR)):
            if await self._marks.count("registrations", name, HOUR) > most:
                raise OAuthRefusal.too_many("registrations", await self._marks.left("registrations", name))
