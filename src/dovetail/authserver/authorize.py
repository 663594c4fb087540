"""`/authorize`: the consent page, which ends in a redirect to the client with a code or an error.

If the client or its redirect URI is unknown, the user sees an error page. Other errors are redirected to the client if
the operator registered it or it is on the user's own machine.
"""

import re
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from dovetail.auth.fetch import is_loopback_url
from dovetail.authserver.clients import CODE, REFRESH, ClientDirectory, OAuthClient, is_url
from dovetail.authserver.endpoints import (
    SIGN_IN_COOKIE,
    ConsentDetails,
    OAuthError,
    address_of,
    consent_cookie_name,
    consent_page,
    cookie,
    error_page,
    form_fields,
    host_of,
    html_response,
    is_loopback,
    is_registered,
    query_fields,
    set_cookie,
    with_parameters,
)
from dovetail.authserver.storage import AttemptLimit, Sealed
from dovetail.authserver.tokens import Grant, TokenIssuer
from dovetail.authserver.users import Users
from dovetail.errors import ProtocolError
from dovetail.transports.http.routes import PageRequest, PageResponse

CONSENT_TIMEOUT = 600.0  # seconds for the user to answer
SIGN_IN_LIFETIME = 3600.0  # seconds
# A consent is stored for long: no account may fill the store with them.
CONSENT_LIMIT = AttemptLimit("consents", "consents of this user", 3600.0, each=60, for_all=100_000)
OLD_PAGE = "This page is too old, was answered before, or belongs to another browser. Begin again in your program."

_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")  # S256 of a verifier


class ConsentRequest(Sealed, frozen=True, kw_only=True, tag="asked"):
    """A request that waits for the user's answer. The form of the consent page holds it; it can be answered once."""

    id: str
    nonce: str  # same as in the cookie
    client: str
    name: str
    redirect_uri: str
    state: str | None
    challenge: str
    scopes: list[str]
    has_refresh: bool  # refresh tokens


class ConsentCookie(Sealed, frozen=True, kw_only=True, tag="browser"):
    """Binds a consent request to the browser that shows it."""

    nonce: str
    client: str


class SignInCookie(Sealed, frozen=True, kw_only=True, tag="user"):
    """The user who has signed in at this browser, until the password changes."""

    user: str
    fingerprint: str


class Authorization(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The endpoint `/authorize`."""

    path: str
    clients: ClientDirectory
    users: Users
    tokens: TokenIssuer

    async def page(self, request: PageRequest) -> PageResponse:
        try:
            return await (self._post(request) if request.method == "POST" else self._get(request))
        except (OAuthError, ProtocolError) as failure:
            refusal = OAuthError.from_failure(failure)
            return html_response(error_page(refusal.description), refusal.status, refusal.headers)

    async def _get(self, request: PageRequest) -> PageResponse:
        fields = query_fields(request)
        client, redirect_uri = await self._client_and_redirect_uri(fields, address_of(request))
        state = fields.get("state")
        try:
            scopes, challenge = self._check(client, fields)
        except OAuthError as refusal:
            if client.is_self_registered and not is_loopback(redirect_uri):
                raise  # or this server would be an open redirector (RFC 9700, 4.11.2)
            return self._redirect(redirect_uri, state, error=refusal.error, error_description=refusal.description)
        keyring, cookie_name = self.tokens.keyring, consent_cookie_name(client.id)
        known = await keyring.open(cookie(request, cookie_name), ConsentCookie)
        nonce = known.nonce if known and known.client == client.id else secrets.token_urlsafe(16)
        until = keyring.now() + CONSENT_TIMEOUT
        consent = ConsentRequest(
            until=until, id=secrets.token_urlsafe(16), nonce=nonce, client=client.id, name=client.name,
            redirect_uri=redirect_uri, state=state, challenge=challenge, scopes=sorted(scopes),
            has_refresh=REFRESH in client.grant_types,
        )  # fmt: skip
        sealed = await keyring.seal(ConsentCookie(until=until, nonce=nonce, client=client.id))
        headers = set_cookie(cookie_name, sealed, CONSENT_TIMEOUT)
        return await self._consent_response(consent, await self._signed_in(request, redirect_uri), headers)

    async def _client_and_redirect_uri(self, fields: Mapping[str, str], address: str) -> tuple[OAuthClient, str]:
        id, redirect_uri = fields.get("client_id"), fields.get("redirect_uri")
        client = None if id is None else await self.clients.find(id, address)
        if client is None:
            raise OAuthError("invalid_client", "The program that sent you here is not known.")
        if redirect_uri is None or not is_registered(redirect_uri, client.redirect_uris):
            raise OAuthError("invalid_request", "The program wants you to go somewhere that it has not registered.")
        return client, redirect_uri

    def _check(self, client: OAuthClient, fields: Mapping[str, str]) -> tuple[frozenset[str], str]:
        """The scopes and the challenge."""
        if fields.get("response_type") != "code":
            raise OAuthError("unsupported_response_type", "response_type must be code")
        if CODE not in client.grant_types:
            raise OAuthError("unauthorized_client", "This program may not ask users")
        if fields.get("response_mode", "query") != "query":
            raise OAuthError("invalid_request", "response_mode must be query")
        if len(fields.get("state", "").encode()) > 2000:
            raise OAuthError("invalid_request", "state has more than 2000 bytes")
        challenge = fields.get("code_challenge", "")
        if fields.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(challenge):
            raise OAuthError("invalid_request", "PKCE is needed: code_challenge, with code_challenge_method=S256")
        self.tokens.resource.check(fields.get("resource"))
        return self.tokens.resource.requested_scopes(fields.get("scope"), client.scopes), challenge

    async def _consent_response(
        self, consent: ConsentRequest, user: str | None, headers: dict[str, str], problem: str | None = None
    ) -> PageResponse:
        host = host_of(consent.client) if is_url(consent.client) else ""
        details = ConsentDetails(
            program=consent.name or host or consent.client,
            program_id=consent.client,
            scopes=[self.tokens.resource.scopes[scope] or scope for scope in consent.scopes],
            redirect_uri=consent.redirect_uri,
            days=round(self.tokens.refresh_seconds / 86_400, 1) if consent.has_refresh else None,
            user=user,
            form=await self.tokens.keyring.seal(consent),
        )
        return html_response(consent_page(details, self.path, problem), 403 if problem else 200, headers)

    async def _post(self, request: PageRequest) -> PageResponse:
        form = await form_fields(request)
        consent = await self._consent_request(request, form)
        answer, redirect_uri, state = form.get("answer"), consent.redirect_uri, consent.state
        if answer == "other":
            return await self._consent_response(consent, None, set_cookie(SIGN_IN_COOKIE, "", 0))
        if answer == "deny":
            return self._redirect(redirect_uri, state, error="access_denied", error_description="The user said no")
        if answer != "allow":
            raise OAuthError("invalid_request", OLD_PAGE)
        headers: dict[str, str] = {}
        user = await self._signed_in(request, redirect_uri)
        if user is None:
            user, password = form.get("name", ""), form.get("password", "")
            if not await self.users.sign_in(self.tokens.store, user, password, address_of(request)):
                return await self._consent_response(consent, None, {}, "Name or password is wrong.")
            headers = await self._sign_in_headers(user, redirect_uri)
        if not await self.tokens.store.claim("answered", consent.id, 2 * CONSENT_TIMEOUT):
            raise OAuthError("invalid_request", OLD_PAGE)
        return self._redirect(redirect_uri, state, headers, code=await self._code(consent, user))

    async def _consent_request(self, request: PageRequest, form: Mapping[str, str]) -> ConsentRequest:
        """The request of the form. Its cookie must be there, or another site has sent the form (CSRF)."""
        keyring = self.tokens.keyring
        consent = await keyring.open(form.get("form"), ConsentRequest)
        if consent is not None:
            known = await keyring.open(cookie(request, consent_cookie_name(consent.client)), ConsentCookie)
            if known and secrets.compare_digest(known.nonce, consent.nonce) and known.client == consent.client:
                return consent
        raise OAuthError("invalid_request", OLD_PAGE, status=403)

    async def _code(self, consent: ConsentRequest, user: str) -> str:
        fingerprint = await self.users.fingerprint(user)
        if fingerprint is None:
            raise OAuthError("invalid_request", OLD_PAGE)
        await CONSENT_LIMIT.take(self.tokens.store, user)
        grant = Grant(
            id=secrets.token_urlsafe(16), client=consent.client, user=user, fingerprint=fingerprint,
            scopes=consent.scopes, ends=self.tokens.keyring.now() + self.tokens.refresh_seconds,
        )  # fmt: skip
        return await self.tokens.code(grant, consent.redirect_uri, consent.challenge)

    def _redirect(
        self, redirect_uri: str, state: str | None, headers: Mapping[str, str] | None = None, **parameters: str
    ) -> PageResponse:
        """To the client, with the issuer (RFC 9207)."""
        location = with_parameters(redirect_uri, **parameters, state=state, iss=self.tokens.issuer)
        if not self._may_remember(redirect_uri):
            headers = set_cookie(SIGN_IN_COOKIE, "", 0)
        sent = {"cache-control": "no-store", "referrer-policy": "no-referrer", "location": location}
        return PageResponse(b"", 303, {**sent, **(headers or {})})

    def _may_remember(self, redirect_uri: str) -> bool:
        """Not if the program is on this host: cookies ignore ports, so it would get the cookie and could consent."""
        issuer = self.tokens.issuer
        return not is_loopback_url(issuer) and urlsplit(redirect_uri).hostname != urlsplit(issuer).hostname

    async def _signed_in(self, request: PageRequest, redirect_uri: str) -> str | None:
        if not self._may_remember(redirect_uri):
            return None
        known = await self.tokens.keyring.open(cookie(request, SIGN_IN_COOKIE), SignInCookie)
        return (
            known.user if known is not None and await self.users.fingerprint(known.user) == known.fingerprint else None
        )

    async def _sign_in_headers(self, user: str, redirect_uri: str) -> dict[str, str]:
        keyring, fingerprint = self.tokens.keyring, await self.users.fingerprint(user)
        if fingerprint is None or not self._may_remember(redirect_uri):
            return {}
        signed_in = SignInCookie(until=keyring.now() + SIGN_IN_LIFETIME, user=user, fingerprint=fingerprint)
        return set_cookie(SIGN_IN_COOKIE, await keyring.seal(signed_in), SIGN_IN_LIFETIME)
