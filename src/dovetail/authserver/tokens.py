"""Tokens: grants of users, `/token`, `/revoke`, and the verification of access tokens (RFC 9068).

Codes and refresh tokens hold their grant, sealed, and can be used once. The store has one small record of each grant
with the number of its next use: the code is 0, the first refresh token 1, and so on. If a number is used twice, one of
the two was stolen: so the grant is revoked with all its tokens. Every change is one write of that record, so a client
that got no response can repeat its request within the grace period.
"""

import hashlib
import hmac
import logging
import math
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from dovetail.auth.principal import Principal, VerifierUnavailable, normalized_url, to_principal
from dovetail.auth.settings import OFFLINE_ACCESS
from dovetail.authserver.auth_store import AuthStore, Keyring, Sealed
from dovetail.authserver.clients import CODE, CREDENTIALS, REFRESH, ClientDirectory, OAuthClient
from dovetail.authserver.oauth_http import PUBLIC_HEADERS, OAuthError, digest, form_fields, json_response
from dovetail.authserver.passwords import Passwords
from dovetail.authserver.sign_in import SignIn
from dovetail.errors import ProtocolError
from dovetail.protocol.pagination import encode_base64url
from dovetail.state.base import StoreFull, StoreUnavailable
from dovetail.transports.http.routes import RouteRequest, RouteResponse

if TYPE_CHECKING:
    from dovetail.authserver.upstream import Upstream

CODE_LIFETIME = 60.0  # seconds
REUSE_GRACE = 10.0  # seconds in which a refresh token may be used again: clients do that in parallel calls
CLOCK_MARGIN = 300.0  # seconds that a record outlives its tokens: clocks differ
MAX_WRITES = 5  # of a record, if other requests write it at the same time
TYPE = "at+jwt"
GRANT = "grant"  # the claim that names the grant, so that its tokens end with it

_VERIFIER = re.compile(r"[A-Za-z0-9\-._~]{43,128}")  # RFC 7636, 4.1

Form = Mapping[str, str]
TokenResponse = dict[str, object]
log = logging.getLogger("dovetail.authserver")


class ProtectedResource(msgspec.Struct, frozen=True, eq=False):
    """The one resource that tokens are issued for."""

    url: str
    scopes: Mapping[str, str]  # with descriptions

    def check(self, resource: str | None) -> None:
        """Check the parameter `resource` (RFC 8707), which may be missing."""
        if resource is not None and normalized_url(resource) != normalized_url(self.url):
            raise OAuthError("invalid_target", "No tokens are made here for this resource")

    def requested_scopes(self, given: str | None, limit: Collection[str] | None) -> frozenset[str]:
        """The scopes in a parameter `scope`; all that are possible, if it is missing."""
        possible = frozenset(self.scopes if limit is None else limit)
        if given is None:
            return possible
        scopes = frozenset(given.split(" ")) - {"", OFFLINE_ACCESS}  # refresh tokens depend on the grant types
        if not scopes <= possible:
            raise OAuthError("invalid_scope", "A scope is not known here, or this program may not have it")
        return scopes


# ── grants ──


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The consent of a user for a client."""

    id: str
    client: str
    user: str
    fingerprint: str  # of the user's password, or the provider: another one ends the grant
    scopes: list[str]
    ends: float
    profile: dict[str, str] = {}  # claims of access tokens: name and e-mail address


class AuthorizationCode(Sealed, frozen=True, kw_only=True, tag="code"):
    grant: Grant
    redirect: str  # the digest of the redirect URI
    challenge: str


class RefreshToken(Sealed, frozen=True, kw_only=True, tag="refresh"):
    grant: Grant
    number: int  # of the use that it is for


class GrantRecord(msgspec.Struct, frozen=True, array_like=True):
    """The next use of a grant. A revoked one is never overwritten."""

    next: int = 0
    used_at: float = 0.0  # when the number before `next` was first used
    is_revoked: bool = False

    def may_reuse(self, number: int, now: float) -> bool:
        """Whether a number may be used again: by parallel calls, or by a client that got no response. Never a code."""
        return 0 < number == self.next - 1 and abs(now - self.used_at) <= REUSE_GRACE


class TokenIssuer(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Issues, reads and revokes codes, refresh tokens and access tokens."""

    issuer: str
    resource: ProtectedResource
    store: AuthStore
    keyring: Keyring
    access_seconds: float
    refresh_seconds: float

    def url(self, name: str) -> str:
        """The URL of an endpoint."""
        return f"{self.issuer.rstrip('/')}/{name}"

    async def code(self, grant: Grant, redirect_uri: str, challenge: str) -> str:
        until, redirect = self.keyring.now() + CODE_LIFETIME, digest(redirect_uri)
        code = AuthorizationCode(until=until, grant=grant, redirect=redirect, challenge=challenge)
        return await self.keyring.seal(code)

    async def read_code(self, text: str, client: str, redirect_uri: str | None, verifier: str) -> Grant:
        """The grant of a code, which is not used up by this. Raises OAuthError."""
        code = await self.keyring.open(text, AuthorizationCode)
        if code is None or code.grant.client != client:
            raise _bad_grant("The code is not valid, or not any more")
        if redirect_uri is not None and not hmac.compare_digest(digest(redirect_uri), code.redirect):
            raise _bad_grant("The redirect_uri is not the one that the code was sent to")
        if not matches_challenge(verifier, code.challenge):
            raise _bad_grant("The code_verifier does not fit the code_challenge")
        return code.grant

    async def revoke(self, id: str, until: float, *, is_single_token: bool = False) -> None:
        """The record lives as long as any token of the grant: until its end, or as long as tokens issued today. A grant
        of a client that acts for itself has a single token.
        """
        ttl = max(until - self.keyring.now() + CLOCK_MARGIN, 0.0 if is_single_token else self._record_ttl)
        await self.store.put("grant", id, msgspec.msgpack.encode(GrantRecord(is_revoked=True)), ttl)
        await self.store.delete("upstream", id)

    @property
    def _record_ttl(self) -> float:
        return max(self.refresh_seconds, self.access_seconds) + CODE_LIFETIME + CLOCK_MARGIN

    async def is_revoked(self, id: str) -> bool:
        return (await self._record(id))[0].is_revoked

    async def use(self, grant: Grant, number: int) -> None:
        """Use a number of the grant. Raises OAuthError unless it is next, or was used a moment ago."""
        for _ in range(MAX_WRITES):
            record, version = await self._record(grant.id)
            now = self.keyring.now()
            if record.is_revoked:
                raise _bad_grant("This grant was revoked")
            if number != record.next:
                if record.may_reuse(number, now):
                    return
                await self._revoke_reused(grant)
            used = msgspec.msgpack.encode(GrantRecord(number + 1, now))
            if await self.store.replace("grant", grant.id, used, self._record_ttl, version):
                return
        raise StoreUnavailable

    async def _record(self, id: str) -> tuple[GrantRecord, int]:
        """The record with its version; a new one, with version 0, if there is none."""
        value, version = await self.store.entry("grant", id)
        return (msgspec.msgpack.decode(value, type=GrantRecord) if value else GrantRecord()), version

    async def _revoke_reused(self, grant: Grant) -> NoReturn:
        """Revoke a grant whose token was reused, even if the store has lost the record: it may have been revoked."""
        await self.revoke(grant.id, grant.ends)
        log.warning("client %.100r used a code or a refresh token twice; all of that grant is revoked", grant.client)
        raise _bad_grant("This was used before, so everything that was made of it is revoked")

    async def access_token(self, client: str, subject: str, scopes: Iterable[str], grant: Grant | None = None) -> str:
        """An access token whose subject is a user, or a client that acts for itself."""
        now = self.keyring.now()
        claims = {
            **(grant.profile if grant else {}),
            "iss": self.issuer,
            "sub": subject,
            "aud": self.resource.url,
            "client_id": client,
            "scope": " ".join(sorted(scopes)),
            "iat": int(now),
            "exp": math.ceil(now + int(self.access_seconds)),  # not before `expires_in` of the response
            "jti": secrets.token_urlsafe(12),
            GRANT: grant.id if grant else secrets.token_urlsafe(16),
        }
        return (await self.keyring.signing()).sign(claims, TYPE)

    async def read_access_token(self, token: str) -> dict[str, Any] | None:
        """The claims of a valid token; its revocation is not checked."""
        claims = (await self.keyring.signing()).read(token, TYPE)
        if claims is None or claims.get("iss") != self.issuer or claims.get("aud") != self.resource.url:
            return None
        exp = claims.get("exp")
        return claims if isinstance(exp, int) and self.keyring.now() < exp else None

    async def jwks(self, _: RouteRequest) -> RouteResponse:
        """The endpoint `/jwks`: the public key, for resource servers elsewhere."""
        return RouteResponse({"keys": [(await self.keyring.signing()).public]}, 200, PUBLIC_HEADERS)

    async def verify(self, token: str) -> Principal | None:
        """The principal of a token. Raises VerifierUnavailable if the store is unavailable."""
        try:
            claims = await self.read_access_token(token)
            if claims is None or await self.is_revoked(claims[GRANT]):
                return None
        except ProtocolError:
            raise VerifierUnavailable from None
        return to_principal(claims, self.issuer)


def matches_challenge(verifier: str, challenge: str) -> bool:
    """Whether a verifier matches its challenge: PKCE with S256, the only method here."""
    if not _VERIFIER.fullmatch(verifier):
        return False
    computed = encode_base64url(hashlib.sha256(verifier.encode()).digest())
    return hmac.compare_digest(computed.encode(), challenge.encode())


def _bad_grant(description: str) -> OAuthError:
    return OAuthError("invalid_grant", description)


# ── the endpoints ──


class TokenEndpoint(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """`/token` and `/revoke`."""

    clients: ClientDirectory
    issuer: TokenIssuer
    users: Passwords | SignIn
    upstream: "Upstream | None" = None  # of users who sign in at an identity provider

    async def token(self, request: RouteRequest) -> RouteResponse:
        form = await form_fields(request)
        client = await self.clients.authenticate(request, form)
        grant_type = form.get("grant_type", "")
        by_type = {CODE: self._authorization_code, REFRESH: self._refresh_token, CREDENTIALS: self._client_credentials}
        if grant_type not in by_type:
            raise OAuthError("unsupported_grant_type", f"grant_type must be one of {', '.join(by_type)}")
        if grant_type not in client.grant_types:
            raise OAuthError("unauthorized_client", f"This program may not use {grant_type}")
        self.issuer.resource.check(form.get("resource"))
        return json_response(await by_type[grant_type](client, form))

    async def _authorization_code(self, client: OAuthClient, form: Form) -> TokenResponse:
        code, verifier = _required_field(form, "code"), _required_field(form, "code_verifier")
        grant = await self.issuer.read_code(code, client.id, form.get("redirect_uri"), verifier)
        return await self._use(client, grant, frozenset(grant.scopes), number=0)

    async def _refresh_token(self, client: OAuthClient, form: Form) -> TokenResponse:
        token = await self.issuer.keyring.open(_required_field(form, "refresh_token"), RefreshToken)
        if token is None or token.grant.client != client.id:
            raise _bad_grant("The refresh token is not valid, or not any more")
        wanted = self.issuer.resource.requested_scopes(form.get("scope"), frozenset(token.grant.scopes))
        return await self._use(client, token.grant, wanted, token.number)

    async def _client_credentials(self, client: OAuthClient, form: Form) -> TokenResponse:
        scopes = self.issuer.resource.requested_scopes(form.get("scope"), client.scopes)
        return self._token_response(await self.issuer.access_token(client.id, client.id, scopes), sorted(scopes))

    async def _use(self, client: OAuthClient, grant: Grant, wanted: frozenset[str], number: int) -> TokenResponse:
        """The scopes of the grant that are still possible now. The use comes last, so that a failure costs none."""
        if await self.users.fingerprint(grant.user) != grant.fingerprint:
            await self.issuer.revoke(grant.id, grant.ends)
            raise _bad_grant("This user is not known any more, or has a new password")
        if self.upstream is not None:
            await (self.upstream.access_token(grant.id, is_checked=True) if number else self.upstream.keep(grant))
        resource = self.issuer.resource
        scopes = sorted(wanted & resource.requested_scopes(None, client.scopes) & resource.scopes.keys())
        response = self._token_response(await self.issuer.access_token(client.id, grant.user, scopes, grant), scopes)
        if REFRESH in client.grant_types:
            refresh_token = RefreshToken(until=grant.ends, grant=grant, number=number + 1)
            response["refresh_token"] = await self.issuer.keyring.seal(refresh_token)
        await self.issuer.use(grant, number)
        with suppress(StoreUnavailable, StoreFull):  # the next refresh tries again
            await self.clients.extend_ttl(client)
        return response

    def _token_response(self, access: str, scopes: list[str]) -> TokenResponse:
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": int(self.issuer.access_seconds),
            "scope": " ".join(scopes),
        }

    async def revoke(self, request: RouteRequest) -> RouteResponse:
        """Revoke all tokens of a grant (RFC 7009)."""
        form = await form_fields(request)
        client = await self.clients.authenticate(request, form)
        token = _required_field(form, "token")
        refresh = await self.issuer.keyring.open(token, RefreshToken)
        if refresh is not None and refresh.grant.client == client.id:
            await self.issuer.revoke(refresh.grant.id, refresh.grant.ends)
        elif refresh is None:
            claims = await self.issuer.read_access_token(token)
            if claims is not None and claims["client_id"] == client.id:
                acts_for_itself = claims["sub"] == client.id
                await self.issuer.revoke(claims[GRANT], claims["exp"], is_single_token=acts_for_itself)
        return json_response({})


def _required_field(form: Form, name: str) -> str:
    value = form.get(name)
    if value is None:
        raise OAuthError("invalid_request", f"{name} is missing")
    return value
