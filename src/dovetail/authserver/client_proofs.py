"""Which program is asking: a form and its headers come in, the program goes out, or a refusal."""

import base64
import time
from collections.abc import Callable, Mapping
from typing import TypeGuard
from urllib.parse import unquote_plus

from dovetail.auth.signing import read_assertion, unproven_subject
from dovetail.authserver.allowances import Allowance
from dovetail.authserver.cimd import keep_document
from dovetail.authserver.client_record import OAuthClient, is_url
from dovetail.authserver.clients import KnownClients, proves_secret
from dovetail.authserver.marks import Marks
from dovetail.authserver.networks import caller_of
from dovetail.authserver.refusals import OAuthRefusal
from dovetail.transports.routes import PageRequest

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LONGEST_ASSERTION = 3600.0  # seconds that one may be good for
LEEWAY = 60.0  # seconds that clocks may differ
MAX_JTI = 256  # characters
MAX_BASIC = 4096
# Each assertion is remembered, and anybody can register and sign without end; those that users know are not counted.
OF_NEW_CLIENTS = Allowance("assertions", "signed assertions", 3600.0, per_network=30, per_customer=60, for_all=500)


class ClientProofs:
    """Checks secrets and signed assertions. `audiences`: whom an assertion may be made for."""

    def __init__(
        self, clients: KnownClients, marks: Marks, audiences: frozenset[str], clock: Callable[[], float] = time.time
    ) -> None:
        self._clients = clients
        self._marks = marks
        self._audiences = audiences
        self._clock = clock

    async def client(self, request: PageRequest, form: Mapping[str, str]) -> OAuthClient:
        """Raises OAuthRefusal unless the program is known, and has proved to be it if it can."""
        basic = _basic(request)
        assertion = form.get("client_assertion")
        if sum(each is not None for each in (basic, assertion, form.get("client_secret"))) > 1:
            raise OAuthRefusal("invalid_request", "Prove who you are in one way, not in several")
        id, secret = basic or (form.get("client_id"), form.get("client_secret"))
        if assertion is not None:
            id = unproven_subject(assertion)
        if form.get("client_id", id) != id:
            raise OAuthRefusal("invalid_request", "There are two different client_id")
        client = None if not id else await self._clients.find(id, caller_of(request))
        if client is None:
            raise _unknown(request)
        if client.jwks is not None:
            proved = await self._signed(client, form, assertion, caller_of(request))
        elif client.secret is not None:
            proved = secret is not None and proves_secret(client, secret)
        else:
            proved = secret is None and assertion is None
        if not proved:
            raise _unknown(request)
        return client

    async def used(self, client: OAuthClient) -> None:
        """A user has let it in, so it is remembered for longer. That it only came here is no reason: anybody can."""
        await self._clients.used(client)
        if is_url(client.id):
            await keep_document(self._marks, client.id)

    async def _signed(self, client: OAuthClient, form: Mapping[str, str], assertion: str | None, network: str) -> bool:
        """RFC 7523, 3: by the program itself, for us, now, and never seen before."""
        if assertion is None or client.jwks is None or form.get("client_assertion_type") != ASSERTION_TYPE:
            return False
        claims = read_assertion(assertion, client.jwks)
        if claims is None or claims.get("iss") != client.id or claims.get("sub") != client.id:
            return False
        audience, now = claims.get("aud"), self._clock()
        named = audience if isinstance(audience, list) else [audience]  # whoever else is named could come here with it
        ends, id = claims.get("exp"), claims.get("jti")
        if len(named) != 1 or not isinstance(named[0], str) or named[0] not in self._audiences:
            return False
        if not _is_number(ends) or not now - LEEWAY < ends <= now + LONGEST_ASSERTION:
            return False
        begins = claims.get("nbf", 0)
        if not _is_number(begins) or begins > now + LEEWAY or not isinstance(id, str) or not 0 < len(id) <= MAX_JTI:
            return False
        if await self._clients.is_new(client):
            await OF_NEW_CLIENTS.take(self._marks, network)
        return await self._marks.claim("assertion", f"{client.id} {id}", ends - now + 2 * LEEWAY)


def _basic(request: PageRequest) -> tuple[str, str] | None:
    """RFC 6749, 2.3.1: both parts are form-encoded before they are joined."""
    header = request.headers.get("authorization")
    if header is None:
        return None
    scheme, _, text = header.partition(" ")
    try:
        raw = base64.b64decode(text.strip(), validate=True).decode() if len(text) <= MAX_BASIC else ""
    except ValueError:
        raw = ""
    id, colon, secret = raw.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise _unknown(request)
    return unquote_plus(id), unquote_plus(secret)


def _unknown(request: PageRequest) -> OAuthRefusal:
    headers = {"www-authenticate": 'Basic realm="token"'} if "authorization" in request.headers else None
    text = "The program is not known, or did not prove who it is"
    return OAuthRefusal("invalid_client", text, status=401, headers=headers)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
