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

from msgspec.structs import replace

from dovetail.auth.fetch import plain
from dovetail.authserver.auth_store import AttemptLimit, Sealed
from dovetail.authserver.authorize import (
    CONSENT_TIMEOUT,
    OLD_PAGE,
    Authorization,
    ConsentCookie,
    ConsentRequest,
    error_page,
    old_page,
    redirect,
    set_cookie,
)
from dovetail.authserver.oauth_http import OAuthError, address_of, parse_fields
from dovetail.authserver.sign_in import SignIn
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


class ProviderSignIn(Authorization, frozen=True, eq=False, kw_only=True):
    """Users sign in at an identity provider, after a consent that may be remembered."""

    users: SignIn
    upstream: Upstream

    async def sign_in_html(self, _request: RouteRequest, _redirect_uri: str) -> str:
        return f"<p>You sign in with <strong>{escape(self.users.provider.row.name)}</strong> first.</p>"

    async def ask(self, request: RouteRequest, consent: ConsentRequest, known: ConsentCookie | None) -> RouteResponse:
        if known is not None and known.remembers(consent):
            return await self._begin(request, consent, known.user)
        return await super().ask(request, consent, known)

    async def allowed(self, request: RouteRequest, consent: ConsentRequest, _form: Mapping[str, str]) -> RouteResponse:
        return await self._begin(request, consent)

    async def _begin(self, request: RouteRequest, consent: ConsentRequest, allowed_by: str = "") -> RouteResponse:
        """Redirect the browser to the provider."""
        keyring = self.tokens.keyring
        try:
            await BEGIN_LIMIT.take(self.tokens.store, address_of(request))
            state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
            url = await self.users.provider.authorization_url(self.tokens.url("callback"), state, nonce, verifier)
            until = keyring.now() + CONSENT_TIMEOUT
            pending = PendingSignIn(until=until, consent=consent, nonce=nonce, verifier=verifier, allowed_by=allowed_by)
            sealed = (await keyring.seal(pending)).encode()
            await self.tokens.store.put("sign-in", state, sealed, CONSENT_TIMEOUT)
        except (OAuthError, ProtocolError) as failure:
            return self._failure_page(consent, OAuthError.from_failure(failure))
        return redirect(url)

    async def callback(self, request: RouteRequest) -> RouteResponse:
        """The endpoint `/callback`."""
        store = self.tokens.store
        try:
            fields = parse_fields(request.scope.get("query_string", b""))
            pending, cookie = await self._pending(request, fields.get("state", ""))
            # A provider that gets a code twice revokes what it has given for it.
            if not await store.claim("redeeming", fields["state"], REDEEM_LEASE):
                raise OAuthError("invalid_request", IN_PROGRESS, status=409)
        except (OAuthError, ProtocolError) as failure:
            return error_page(OAuthError.from_failure(failure))
        try:
            return await self._finish(pending, cookie, fields)
        except (OAuthError, ProtocolError) as failure:
            with suppress(ProtocolError):
                await store.delete("redeeming", fields["state"])
            return self._failure_page(pending.consent, OAuthError.from_failure(failure))

    async def _pending(self, request: RouteRequest, state: str) -> tuple[PendingSignIn, ConsentCookie]:
        """The sign-in of this state and browser. Raises OAuthError."""
        found = await self.tokens.store.get("sign-in", state) if state else None
        pending = await self.tokens.keyring.open((found or b"").decode(), PendingSignIn)
        if pending is not None:
            cookie = await self.cookie(request, pending.consent.client, pending.consent.nonce)
            if cookie is not None:
                return pending, cookie
        raise old_page()

    async def _finish(self, pending: PendingSignIn, cookie: ConsentCookie, fields: Mapping[str, str]) -> RouteResponse:
        consent, store, provider = pending.consent, self.tokens.store, self.users.provider
        await provider.check_response_issuer(fields.get("iss"))
        if fields.get("error") == "access_denied":
            await store.delete("sign-in", fields["state"])
            log.info("%s says access_denied: %s", provider.row.name, plain(fields.get("error_description", "")))
            error, description = "access_denied", "The user or the provider said no"
            return self.redirect(consent.redirect_uri, consent.state, error=error, error_description=description)
        if "error" in fields or "code" not in fields:
            raise provider.refusal(fields.get("error", "no code"))
        redirect_uri = self.tokens.url("callback")
        answer, identity = await provider.redeem(fields["code"], redirect_uri, pending.verifier, pending.nonce)
        user = identity.subject
        if pending.allowed_by not in ("", user):
            forget = set_cookie(self.cookie_name(consent.client), "", 0)
            raise OAuthError("access_denied", ANOTHER_USER, status=403, headers=forget)
        scopes = await self.users.granted(identity, consent.scopes)
        grant = await self.grant(consent, user, scopes, identity.profile)
        await self.upstream.put(grant.id, answer, grant.ends)
        await store.delete("sign-in", fields["state"])
        return await self.send_code(consent, grant, await self._remember(cookie, consent, user))

    async def _remember(self, cookie: ConsentCookie, consent: ConsentRequest, user: str) -> dict[str, str]:
        """The cookie that remembers a consent, if it may be."""
        if not consent.may_be_remembered:
            return {}
        uri, until = consent.redirect_uri, self.tokens.keyring.now() + self.tokens.refresh_seconds
        before = cookie.scopes if cookie.user == user and cookie.redirect_uri == uri else ()
        scopes = tuple(sorted({*before, *consent.scopes}))
        return await self.cookie_headers(replace(cookie, until=until, user=user, redirect_uri=uri, scopes=scopes))

    def _failure_page(self, consent: ConsentRequest, failure: OAuthError) -> RouteResponse:
        """Why this can't go on, and a link to the client, which the user has allowed."""
        name = consent.name or urlsplit(consent.redirect_uri).netloc
        error = "access_denied" if failure.error == "invalid_grant" else failure.error  # that is for token endpoints
        url = self.client_url(consent.redirect_uri, consent.state, error=error, error_description=failure.description)
        link = f'<p><a href="{escape(url)}">Go back to {escape(name)}</a></p>'
        return error_page(failure, "" if failure.description == OLD_PAGE else link)
