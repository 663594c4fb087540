"""Tokens: grants of users, `/token` and `/revoke`, and the verifier of the access tokens (RFC 9068) made here.

Codes and refresh tokens carry sealed what they stand for, and are good once. The store holds one small record of each
grant: which use is next, the code being 0, the first refresh token 1, and so on. A number that was used already is a
copy, and it is not known which of the two is the thief's: so the grant ends, with every token that was made of it.
Every change is one write of that record: it was done or it was not, and a client that can't know asks again within the
time of grace.
"""

import hashlib
import hmac
import logging
import math
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from dovetail.auth.principal import Principal, VerifierUnavailable, comparable_url, principal_of
from dovetail.auth.settings import OFFLINE_ACCESS
from dovetail.authserver.clients import CODE, CREDENTIALS, REFRESH, ClientDirectory, OAuthClient
from dovetail.authserver.endpoints import PUBLIC, OAuthError, digest, form_fields, json_answer
from dovetail.authserver.storage import AuthStore, Keyring, Sealed
from dovetail.authserver.users import Users
from dovetail.errors import ProtocolError
from dovetail.protocol.pagination import encode_base64url
from dovetail.state.base import StoreFull, StoreUnavailable
from dovetail.transports.http.routes import PageRequest, PageResponse

CODE_SECONDS = 60.0
GRACE_SECONDS = 10.0  # in which a refresh token may be used again: clients that call in parallel do that
MARGIN = 300.0  # seconds that a record outlives what it is about: clocks differ
TYPE = "at+jwt"
GRANT = "grant"  # the claim that names the grant, so that its tokens end with it

_VERIFIER = re.compile(r"[A-Za-z0-9\-._~]{43,128}")  # RFC 7636, 4.1

Form = Mapping[str, str]
Answer = dict[str, object]
log = logging.getLogger("dovetail.authserver")


class Target:
    """The one resource that tokens are made for, and its scopes."""

    def __init__(self, resource: str, scopes: Mapping[str, str]) -> None:
        self.resource = resource
        self.scopes = scopes
        self._same = comparable_url(resource)

    def check_resource(self, given: str | None) -> None:
        """RFC 8707. None is fine: there is only one."""
        if given is not None and comparable_url(given) != self._same:
            raise OAuthError("invalid_target", "No tokens are made here for this resource")

    def wanted(self, given: str | None, limit: Collection[str] | None) -> frozenset[str]:
        """The scopes that are asked for; all that are possible, if none is named."""
        possible = frozenset(self.scopes if limit is None else limit)
        if given is None:
            return possible
        scopes = frozenset(given.split(" ")) - {"", OFFLINE_ACCESS}  # the grant types say if there are refresh tokens
        if not scopes <= possible:
            raise OAuthError("invalid_scope", "A scope is not known here, or this program may not have it")
        return scopes


# --- what users have allowed


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a user allowed a client. `ends`: no refresh goes beyond it."""

    id: str
    client: str
    user: str
    mark: str  # of the user's password then: with another password it can't be renewed
    scopes: list[str]
    ends: float


class AuthorizationCode(Sealed, frozen=True, kw_only=True, tag="code"):
    """Bound to where it was sent, and to who can show the verifier."""

    grant: Grant
    redirect: str  # a digest
    challenge: str


class RefreshToken(Sealed, frozen=True, kw_only=True, tag="refresh"):
    """The `number`th use of a grant."""

    grant: Grant
    number: int


class GrantRecord(msgspec.Struct, frozen=True, array_like=True):
    """How far a grant is. One that is revoked is so for good: nothing is ever written over it."""

    next: int = 0
    taken_at: float = 0.0  # when the number before `next` was first used
    is_revoked: bool = False

    def may_repeat(self, number: int, now: float) -> bool:
        """Several calls of a client met the end of a token together, or it did not hear the answer. Never a code."""
        return 0 < number == self.next - 1 and abs(now - self.taken_at) <= GRACE_SECONDS


class TokenIssuer(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Makes codes, refresh tokens and access tokens, reads those that were made here, and takes them back."""

    issuer: str
    target: Target
    store: AuthStore
    keyring: Keyring
    access_seconds: float
    refresh_seconds: float

    async def code(self, grant: Grant, redirect_uri: str, challenge: str) -> str:
        until, redirect = self.keyring.now() + CODE_SECONDS, digest(redirect_uri)
        code = AuthorizationCode(until=until, grant=grant, redirect=redirect, challenge=challenge)
        return await self.keyring.seal(code)

    async def read_code(self, text: str, client: str, redirect_uri: str | None, verifier: str) -> Grant:
        """It is not used yet: that is the use 0. Raises OAuthRefusal."""
        code = await self.keyring.open(text, AuthorizationCode)
        if code is None or code.grant.client != client:
            raise _bad_grant("The code is not valid, or not any more")
        if redirect_uri is not None and not hmac.compare_digest(digest(redirect_uri), code.redirect):
            raise _bad_grant("The redirect_uri is not the one that the code was sent to")
        if not proves_challenge(verifier, code.challenge):
            raise _bad_grant("The code_verifier does not fit the code_challenge")
        return code.grant

    async def refresh_token(self, grant: Grant, number: int) -> str:
        return await self.keyring.seal(RefreshToken(until=grant.ends, grant=grant, number=number))

    async def revoke(self, id: str, until: float, *, is_of_one_token: bool = False) -> None:
        """Another write at the same time finds another version. The revocation is known as long as anything may live
        that was made of the grant: `until`, which may be later than what is made today, or if it is of more than one
        token, as long as those. A client that acts for itself has one.
        """
        kept = max(until - self.keyring.now() + MARGIN, 0.0 if is_of_one_token else self._kept)
        await self.store.put("grant", id, msgspec.msgpack.encode(GrantRecord(is_revoked=True)), kept)

    @property
    def _kept(self) -> float:
        """Seconds after which nothing lives that was made of a grant."""
        return max(self.refresh_seconds, self.access_seconds) + CODE_SECONDS + MARGIN

    async def is_revoked(self, id: str) -> bool:
        return (await self._record(id))[0].is_revoked

    async def use(self, grant: Grant, number: int, tries: int = 5) -> None:
        """Raises OAuthRefusal unless it is the turn of this number, or was just now. Each write of another request,
        which takes one of the `tries`, has brought the grant further.
        """
        for _ in range(tries):
            record, version = await self._record(grant.id)
            now = self.keyring.now()
            if record.is_revoked:
                raise _bad_grant("This was taken back")
            if number != record.next:
                if record.may_repeat(number, now):
                    return
                await self._end_for_reuse(grant)
            taken = msgspec.msgpack.encode(GrantRecord(number + 1, now))
            if await self.store.replace("grant", grant.id, taken, self._kept, version):
                return
        raise StoreUnavailable

    async def _record(self, id: str) -> tuple[GrantRecord, int]:
        """With its version; a new one, with version 0, if there is none."""
        value, version = await self.store.entry("grant", id)
        return (msgspec.msgpack.decode(value, type=GrantRecord) if value else GrantRecord()), version

    async def _end_for_reuse(self, grant: Grant) -> NoReturn:
        """Also if the store has forgotten how far the grant is: it may have been revoked."""
        await self.revoke(grant.id, grant.ends)
        log.warning("client %.100r used a code or a refresh token twice; all of that grant is revoked", grant.client)
        raise _bad_grant("This was used before, so everything that was made of it is revoked")

    async def access_token(self, client: str, subject: str, scopes: Iterable[str], grant: str | None = None) -> str:
        """Of a client that acts for itself, the subject is the client."""
        now = self.keyring.now()
        claims = {
            "iss": self.issuer,
            "sub": subject,
            "aud": self.target.resource,
            "client_id": client,
            "scope": " ".join(sorted(scopes)),
            "iat": int(now),
            "exp": math.ceil(now + int(self.access_seconds)),  # no sooner than `expires_in` tells the client
            "jti": secrets.token_urlsafe(12),
            GRANT: grant or secrets.token_urlsafe(16),
        }
        return (await self.keyring.signing()).sign(claims, TYPE)

    async def read_access_token(self, token: str) -> dict[str, Any] | None:
        """The claims, if it is one of ours, for this resource, and not over; whether it was revoked is not asked."""
        claims = (await self.keyring.signing()).read(token, TYPE)
        if claims is None or claims.get("iss") != self.issuer or claims.get("aud") != self.target.resource:
            return None
        ends = claims.get("exp")
        return claims if isinstance(ends, int) and self.keyring.now() < ends else None

    async def jwks(self, _: PageRequest) -> PageResponse:
        """The public key, for servers that verify the tokens elsewhere."""
        return PageResponse({"keys": [(await self.keyring.signing()).public]}, 200, PUBLIC)

    async def verify(self, token: str) -> Principal | None:
        """Raises VerifierUnavailable if the store does not answer."""
        try:
            claims = await self.read_access_token(token)
            if claims is None or await self.is_revoked(claims[GRANT]):
                return None
        except ProtocolError:
            raise VerifierUnavailable from None
        return principal_of(claims, self.issuer)


def proves_challenge(verifier: str, challenge: str) -> bool:
    """S256, the only method here."""
    if not _VERIFIER.fullmatch(verifier):
        return False
    found = encode_base64url(hashlib.sha256(verifier.encode()).digest())
    return hmac.compare_digest(found.encode(), challenge.encode())


def _bad_grant(description: str) -> OAuthError:
    return OAuthError("invalid_grant", description)


# --- the endpoints


class TokenEndpoint(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """`/token` and `/revoke`, which only clients see."""

    clients: ClientDirectory
    issuer: TokenIssuer
    users: Users

    async def token(self, request: PageRequest) -> PageResponse:
        form = await form_fields(request)
        client = await self.clients.authenticated(request, form)
        grant_type = form.get("grant_type", "")
        by_type = {CODE: self._authorization_code, REFRESH: self._refresh_token, CREDENTIALS: self._client_credentials}
        if grant_type not in by_type:
            raise OAuthError("unsupported_grant_type", f"grant_type must be one of {', '.join(by_type)}")
        if grant_type not in client.grant_types:
            raise OAuthError("unauthorized_client", f"This program may not use {grant_type}")
        self.issuer.target.check_resource(form.get("resource"))
        return json_answer(await by_type[grant_type](client, form))

    async def _authorization_code(self, client: OAuthClient, form: Form) -> Answer:
        code, verifier = _needed(form, "code"), _needed(form, "code_verifier")
        grant = await self.issuer.read_code(code, client.id, form.get("redirect_uri"), verifier)
        return await self._use(client, grant, frozenset(grant.scopes), number=0)

    async def _refresh_token(self, client: OAuthClient, form: Form) -> Answer:
        token = await self.issuer.keyring.open(_needed(form, "refresh_token"), RefreshToken)
        if token is None or token.grant.client != client.id:
            raise _bad_grant("The refresh token is not valid, or not any more")
        wanted = self.issuer.target.wanted(form.get("scope"), frozenset(token.grant.scopes))
        return await self._use(client, token.grant, wanted, token.number)

    async def _client_credentials(self, client: OAuthClient, form: Form) -> Answer:
        scopes = self.issuer.target.wanted(form.get("scope"), client.scopes)
        return self._answer(await self.issuer.access_token(client.id, client.id, scopes), sorted(scopes))

    async def _use(self, client: OAuthClient, grant: Grant, wanted: frozenset[str], number: int) -> Answer:
        """What the user allowed then, and is still possible now. The use comes last: what fails before costs none."""
        if await self.users.mark(grant.user) != grant.mark:
            await self.issuer.revoke(grant.id, grant.ends)
            raise _bad_grant("This user is not known any more, or has a new password")
        scopes = sorted(wanted & self.issuer.target.wanted(None, client.scopes) & self.issuer.target.scopes.keys())
        answer = self._answer(await self.issuer.access_token(client.id, grant.user, scopes, grant.id), scopes)
        if REFRESH in client.grant_types:
            answer["refresh_token"] = await self.issuer.refresh_token(grant, number + 1)
        await self.issuer.use(grant, number)
        with suppress(StoreUnavailable, StoreFull):  # its next refresh does the same
            await self.clients.used(client)
        return answer

    def _answer(self, access: str, scopes: list[str]) -> Answer:
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": int(self.issuer.access_seconds),
            "scope": " ".join(scopes),
        }

    async def revoke(self, request: PageRequest) -> PageResponse:
        """RFC 7009: the token is no good any more. What was made of the same grant ends with it."""
        form = await form_fields(request)
        client = await self.clients.authenticated(request, form)
        token = _needed(form, "token")
        refresh = await self.issuer.keyring.open(token, RefreshToken)
        if refresh is not None and refresh.grant.client == client.id:
            await self.issuer.revoke(refresh.grant.id, refresh.grant.ends)
        elif refresh is None:
            claims = await self.issuer.read_access_token(token)
            if claims is not None and claims["client_id"] == client.id:
                acts_for_itself = claims["sub"] == client.id
                await self.issuer.revoke(claims[GRANT], claims["exp"], is_of_one_token=acts_for_itself)
        return json_answer({})


def _needed(form: Form, name: str) -> str:
    value = form.get(name)
    if value is None:
        raise OAuthError("invalid_request", f"{name} is missing")
    return value
