"""Programs that introduce themselves (RFC 7591): their metadata come in, an id goes out, and a secret if wanted."""

import secrets
import time
from collections.abc import Callable

import msgspec

from dovetail.authserver.allowances import Allowance
from dovetail.authserver.client_metadata import ClientMetadata, as_client
from dovetail.authserver.client_record import REGISTERED
from dovetail.authserver.clients import KnownClients
from dovetail.authserver.marks import Marks
from dovetail.authserver.networks import caller_of
from dovetail.authserver.refusals import FOR_ANY_ORIGIN, NOT_KEPT, OAuthRefusal, for_programs
from dovetail.transports.routes import PageRequest, PageResponse

USUAL_METHOD = "client_secret_basic"  # RFC 7591, 2
REGISTRATIONS = Allowance("registrations", "registrations", 3600.0, per_network=30, per_customer=60, for_all=200)
MAX_BYTES = 8 * 1024  # of one; not all of it is kept


class Registration:
    """The endpoint `/register`."""

    def __init__(self, clients: KnownClients, marks: Marks, clock: Callable[[], float] = time.time) -> None:
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
        client = as_client(said, REGISTERED + secrets.token_urlsafe(18), method)
        await REGISTRATIONS.take(self._marks, caller_of(request))
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
