"""`/callback`: users come back from an identity provider, and go on to the client with a code of ours.

The way there begins after the consent: a record in the store, named by `state`, holds the consent until the user is
back. It counts only for the browser that has consented, and once.
"""

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from urllib.parse import urlsplit

import msgspec

from dovetail.auth.fetch import plain
from dovetail.authserver.auth_store import AttemptLimit, Sealed
from dovetail.authserver.authorize import (
    CONSENT_LIMIT,
    CONSENT_TIMEOUT,
    OLD_PAGE,
    ConsentCookie,
    ConsentRequest,
    client_url,
    consent_cookie_name,
    error_page,
    read_cookie,
    redirect,
    set_cookie,
)
from dovetail.authserver.oauth_http import OAuthError, address_of, parse_fields
from dovetail.authserver.sign_in import SignIn
from dovetail.authserver.tokens import CODE_LIFETIME, Grant, TokenIssuer
from dovetail.authserver.upstream import Upstream
from dovetail.errors import ProtocolError
from dovetail.transports.http.routes import RouteRequest, RouteResponse

# Of one network, behind which may be a whole company; each is a record in the store for ten minutes.
BEGIN_LIMIT = AttemptLimit("sign-ins", "sign-ins", 900.0, each=300, for_all=10_000)
REDEEM_LEASE = 30.0  # seconds
IN_PROGRESS = "This sign-in is being finished, perhaps in another tab. If it is not, reload this page in half a minute."
ANOTHER_USER = "You have signed in as another user than the one who allowed this program. Begin again in your program."

log = logging.getLogger("dovetail.authserver")


class PendingSignIn(Sealed, frozen=True, kw_only=True, tag="sign-in"):
    """A user who is at the provider."""

    consent: ConsentRequest
    nonce: str  # of the id token
    verifier: str  # of PKCE
    allowed_by: str  # the user whose consent was remembered; empty after an answer on the page


class ProviderSignIn(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The way of a user to the provider and back."""

    redirect_uri: str  # of the endpoint `/callback`
    sign_in: SignIn
    tokens: TokenIssuer
    upstream: Upstream

    @property
    def provider_name(self) -> str:
        return self.sign_in.provider.row.name

    async def fingerprint(self, _: str) -> str:
        return self.sign_in.fingerprint

    async def begin(self, request: RouteRequest, consent: ConsentRequest, allowed_by: str = "") -> RouteResponse:
        """Redirect the browser to the provider."""
        store, keyring = self.tokens.store, self.tokens.keyring
        try:
            await BEGIN_LIMIT.take(store, address_of(request))
            state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
            url = await self.sign_in.provider.authorization_url(self.redirect_uri, state, nonce, verifier)
            pending = PendingSignIn(
                until=keyring.now() + CONSENT_TIMEOUT, consent=consent, nonce=nonce, verifier=verifier,
                allowed_by=allowed_by,
            )  # fmt: skip
            await store.put("sign-in", state, (await keyring.seal(pending)).encode(), CONSENT_TIMEOUT)
        except (OAuthError, ProtocolError) as failure:
            return self._failure_page(consent, OAuthError.from_failure(failure))
        return redirect(url)

    async def callback(self, request: RouteRequest) -> RouteResponse:
        """The endpoint `/callback`."""
        try:
            fields = parse_fields(request.scope.get("query_string", b""))
            pending, cookie = await self._pending(request, fields.get("state", ""))
            # A provider that gets a code twice revokes what it has given for it.
            if not await self.tokens.store.claim("redeeming", fields["state"], REDEEM_LEASE):
                raise OAuthError("invalid_request", IN_PROGRESS, status=409)
        except (OAuthError, ProtocolError) as failure:
            return error_page(OAuthError.from_failure(failure))
        try:
            return await self._finish(pending, cookie, fields)
        except (OAuthError, ProtocolError) as failure:
            with suppress(ProtocolError):
                await self.tokens.store.delete("redeeming", fields["state"])
            return self._failure_page(pending.consent, OAuthError.from_failure(failure))

    async def _pending(self, request: RouteRequest, state: str) -> tuple[PendingSignIn, ConsentCookie]:
        """The sign-in of this state and browser. Raises OAuthError."""
        store, keyring = self.tokens.store, self.tokens.keyring
        found = await store.get("sign-in", state) if state else None
        pending = await keyring.open((found or b"").decode(), PendingSignIn)
        if pending is not None:
            consent = pending.consent
            known = await keyring.open(
                read_cookie(request, consent_cookie_name(self.tokens.issuer, consent.client)), ConsentCookie
            )
            if known and secrets.compare_digest(known.nonce, consent.nonce) and known.client == consent.client:
                return pending, known
        raise OAuthError("invalid_request", OLD_PAGE, status=403)

    async def _finish(self, pending: PendingSignIn, cookie: ConsentCookie, fields: Mapping[str, str]) -> RouteResponse:
        consent, store, provider = pending.consent, self.tokens.store, self.sign_in.provider
        await provider.check_response_issuer(fields.get("iss"))
        if fields.get("error") == "access_denied":
            await store.delete("sign-in", fields["state"])
            log.info("%s says access_denied: %s", self.provider_name, plain(fields.get("error_description", "")))
            return redirect(self._client_url(consent, "access_denied", "The user or the provider said no"))
        if "error" in fields or "code" not in fields:
            raise provider.refusal(fields.get("error", "no code"))
        answer, claims = await provider.redeem(fields["code"], self.redirect_uri, pending.verifier, pending.nonce)
        identity = provider.identity(claims)
        if pending.allowed_by not in ("", identity.subject):
            forget = set_cookie(consent_cookie_name(self.tokens.issuer, consent.client), "", 0)
            raise OAuthError("access_denied", ANOTHER_USER, status=403, headers=forget)
        scopes = await self.sign_in.granted(identity, consent.scopes)
        await CONSENT_LIMIT.take(store, identity.subject)
        grant = Grant(
            id=secrets.token_urlsafe(16), client=consent.client, user=identity.subject, scopes=scopes,
            fingerprint=self.sign_in.fingerprint, profile=identity.profile,
            ends=self.tokens.keyring.now() + self.tokens.refresh_seconds,
        )  # fmt: skip
        await self.upstream.put(grant.id, grant.ends, answer, 2 * CODE_LIFETIME)
        if not await store.claim("answered", consent.id, 2 * CONSENT_TIMEOUT):
            raise OAuthError("invalid_request", OLD_PAGE)
        await store.delete("sign-in", fields["state"])
        code = await self.tokens.code(grant, consent.redirect_uri, consent.challenge)
        headers = await self._remember(cookie, consent, identity.subject)
        return redirect(client_url(self.tokens.issuer, consent.redirect_uri, consent.state, code=code), headers)

    async def _remember(self, cookie: ConsentCookie, consent: ConsentRequest, user: str) -> dict[str, str]:
        """The cookie that remembers a consent, if it may be."""
        uri, keyring = consent.redirect_uri, self.tokens.keyring
        if not consent.may_be_remembered:
            return {}
        before = cookie.scopes if cookie.user == user and cookie.redirect_uri == uri else ()
        remembered = msgspec.structs.replace(
            cookie, until=keyring.now() + self.tokens.refresh_seconds, user=user, redirect_uri=uri,
            scopes=tuple(sorted({*before, *consent.scopes})),
        )  # fmt: skip
        name = consent_cookie_name(self.tokens.issuer, consent.client)
        return set_cookie(name, await keyring.seal(remembered), self.tokens.refresh_seconds)

    def _client_url(self, consent: ConsentRequest, error: str, description: str) -> str:
        return client_url(
            self.tokens.issuer, consent.redirect_uri, consent.state, error=error, error_description=description
        )

    def _failure_page(self, consent: ConsentRequest, failure: OAuthError) -> RouteResponse:
        """Why this can't go on, and a link to the client, which the user has allowed."""
        name = consent.name or urlsplit(consent.redirect_uri).netloc
        error = "access_denied" if failure.error == "invalid_grant" else failure.error  # that is for token endpoints
        url = self._client_url(consent, error, failure.description)
        link = (
            "" if failure.description == OLD_PAGE else f'<p><a href="{escape(url)}">Go back to {escape(name)}</a></p>'
        )
        return error_page(failure, link)
