"""The programs that may ask for tokens: an id comes in, and what is known of the program goes out.

There are those that the operator wrote down, those that registered themselves, and those whose id is the URL of a
document that they publish.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.auth.signing import check_public_keys
from dovetail.authserver.cimd import LAST, PublishedClients
from dovetail.authserver.client_metadata import bad_metadata
from dovetail.authserver.client_record import CODE, CREDENTIALS, GRANTS, OAuthClient, is_url
from dovetail.authserver.marks import Marks
from dovetail.authserver.redirects import why_not_registrable
from dovetail.errors import SetupError
from dovetail.protocol.scopes import checked_scopes
from dovetail.state.base import Codec

NEW_SECONDS = 86_400.0  # that a registration lives before its first use: nobody fills the store with them
KEPT_SECONDS = 90 * 86_400.0  # and after the last
MAX_ID = 2000  # characters
MAX_RECORD = 4 * 1024  # bytes: a day's registrations have to fit into the memory of a small server

_codec: Codec[OAuthClient] = Codec(OAuthClient, "registered program")


class KnownClients:
    """Finds programs by their id."""

    def __init__(
        self, marks: Marks, static: Mapping[str, OAuthClient], published: PublishedClients | None, *, registration: bool
    ) -> None:
        self._marks = marks
        self._static = static
        self._published = published
        self._registration = registration

    async def find(self, id: str, network: str) -> OAuthClient | None:
        """May raise OAuthRefusal, with what is wrong with a document."""
        if len(id) > MAX_ID:
            return None
        if id in self._static:
            return self._static[id]
        if is_url(id):
            return None if self._published is None else await self._published.find(id, network)
        found = await self._marks.get("client", id) if self._registration else None
        return None if found is None else _codec.decode(found)

    async def add(self, client: OAuthClient) -> None:
        """Raises OAuthRefusal if it has more to say than a program needs."""
        raw = _codec.encode(client)
        if len(raw) > MAX_RECORD:
            raise bad_metadata(f"What is kept of the metadata has more than {MAX_RECORD} bytes")
        await self._marks.put("client", client.id, raw, NEW_SECONDS)

    async def is_new(self, client: OAuthClient) -> bool:
        """It has introduced itself, and no user has let it in yet: it may be anybody's."""
        if client.id in self._static:
            return False
        if is_url(client.id):
            return not await self._marks.holds(LAST, client.id)
        return await self._marks.left("client", client.id) <= NEW_SECONDS

    async def used(self, client: OAuthClient) -> None:
        """It lives on."""
        if client.id not in self._static and not is_url(client.id):
            await self._marks.keep("client", client.id, KEPT_SECONDS)


def proves_secret(client: OAuthClient, given: str) -> bool:
    digest = f"sha256:{hashlib.sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return client.secret is not None and hmac.compare_digest(client.secret, digest)


def checked_clients(given: Iterable[Any], scopes: Mapping[str, str]) -> dict[str, OAuthClient]:
    """What the operator wrote down, by id. Raises SetupError, with the client and the fix."""
    found: dict[str, OAuthClient] = {}
    for client in given:
        if not isinstance(client, OAuthClient):
            raise SetupError(f'AuthServer: clients holds {client!r}; write OAuthClient(id="ci", secret="...")')
        wrong = _wrong(client, scopes)
        if client.id in found:
            wrong = "there are two of this id"
        if wrong is not None:
            raise SetupError(f"AuthServer: client {client.id!r}: {wrong}")
        found[client.id] = client
    return found


def _wrong(client: OAuthClient, scopes: Mapping[str, str]) -> str | None:
    if not client.id or len(client.id) > MAX_ID or not client.id.isprintable() or is_url(client.id):
        return "an id is a short text, and no URL"
    for grant in client.grant_types:
        if grant not in GRANTS:
            return f"grant type {grant!r} is not known; there are {', '.join(GRANTS)}"
    if CODE in client.grant_types and not client.redirect_uris:
        return f'it needs redirect_uris=["https://..."], or grant_types=["{CREDENTIALS}"]'
    for uri in client.redirect_uris:
        if (why := why_not_registrable(uri)) is not None:
            return f"{uri!r}: {why}"
    if client.jwks is not None and (why := check_public_keys(client.jwks)) is not None:
        return why
    if CREDENTIALS in client.grant_types and client.is_public:
        return "who acts for itself must prove who it is; give it a secret or jwks"
    unknown = checked_scopes(client.scopes or (), f"AuthServer, client {client.id!r}") - scopes.keys()
    return f"the scopes {', '.join(sorted(unknown))} are not among the server's" if unknown else None
