"""`/authorize`: the consent page, which ends in a redirect to the client with a code or an error.

If the client or its redirect URI is unknown, the user sees an error page. Other errors are redirected to the client if
the operator registered it or it is on the user's own machine.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from html import escape
from typing import ClassVar
from urllib.parse import urlencode, urlsplit

import msgspec

from dovetail.auth.fetch import is_loopback_url
from dovetail.authserver.auth_store import AttemptLimit, Sealed
from dovetail.authserver.clients import CODE, REFRESH, ClientDirectory, OAuthClient, is_url
from dovetail.authserver.oauth_http import OAuthError, address_of, digest, form_fields, is_registered, parse_fields
from dovetail.authserver.passwords import Passwords
from dovetail.authserver.sign_in import SignIn
from dovetail.authserver.tokens import Grant, TokenIssuer
from dovetail.errors import ProtocolError
from dovetail.transports.http.routes import RouteRequest, RouteResponse

CONSENT_TIMEOUT = 600.0  # seconds for the user to answer
SIGN_IN_LIFETIME = 3600.0  # seconds
# A consent is stored for long: no account may fill the store with them.
CONSENT_LIMIT = AttemptLimit("consents", "consents of this user", 3600.0, each=60, for_all=100_000)
OLD_PAGE = "This page is too old, was answered before, or belongs to another browser. Begin again in your program."

SIGN_IN_COOKIE = "__Host-dovetail-user"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
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
    may_be_remembered: bool


class ConsentCookie(Sealed, frozen=True, kw_only=True, tag="browser"):
    """Binds a consent request to the browser that shows it, and remembers a consent if users sign in elsewhere."""

    nonce: str
    client: str
    user: str = ""  # who has consented, to the rest
    redirect_uri: str = ""
    scopes: tuple[str, ...] = ()

    def remembers(self, consent: ConsentRequest) -> bool:
        is_same = bool(self.user) and self.redirect_uri == consent.redirect_uri
        return consent.may_be_remembered and is_same and {*consent.scopes} <= {*self.scopes}


class SignInCookie(Sealed, frozen=True, kw_only=True, tag="user"):
    """The user who has signed in at this browser, until the password changes."""

    user: str
    fingerprint: str


class Authorization(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The endpoint `/authorize`. Subclasses know how users sign in."""

    answers: ClassVar[tuple[str, ...]] = ("allow",)  # that `allowed` takes

    clients: ClientDirectory
    tokens: TokenIssuer
    users: Passwords | SignIn

    async def sign_in_html(self, request: RouteRequest, redirect_uri: str) -> str:
        """What the form of the consent page says about the sign-in."""
        raise NotImplementedError

    async def allowed(self, request: RouteRequest, consent: ConsentRequest, form: Mapping[str, str]) -> RouteResponse:
        """The response to a user who has allowed."""
        raise NotImplementedError

    async def page(self, request: RouteRequest) -> RouteResponse:
        try:
            return await (self._post(request) if request.method == "POST" else self._get(request))
        except (OAuthError, ProtocolError) as failure:
            return error_page(OAuthError.from_failure(failure))

    async def _get(self, request: RouteRequest) -> RouteResponse:
        fields = parse_fields(request.scope.get("query_string", b""))
        client, redirect_uri = await self._client_and_redirect_uri(fields, address_of(request))
        state = fields.get("state")
        try:
            scopes, challenge = self._check(client, fields)
        except OAuthError as refusal:
            if client.is_self_registered and not is_loopback(redirect_uri):
                raise  # or this server would be an open redirector (RFC 9700, 4.11.2)
            return self.redirect(redirect_uri, state, error=refusal.error, error_description=refusal.description)
        known = await self.cookie(request, client.id)
        consent = ConsentRequest(
            until=self.tokens.keyring.now() + CONSENT_TIMEOUT, id=secrets.token_urlsafe(16),
            nonce=known.nonce if known else secrets.token_urlsafe(16), client=client.id, name=client.name,
            redirect_uri=redirect_uri, state=state, challenge=challenge, scopes=sorted(scopes),
            has_refresh=REFRESH in client.grant_types,
            # Others can imitate a program on the user's machine. One that no operator has checked may give our code to
            # another server, which sent the browser on to here: then the page is all that tells the user.
            may_be_remembered=not (client.is_self_registered or is_loopback(redirect_uri))
            and self.may_remember(redirect_uri),
        )  # fmt: skip
        return await self.ask(request, consent, known)

    async def ask(self, request: RouteRequest, consent: ConsentRequest, known: ConsentCookie | None) -> RouteResponse:
        """Show the consent page. `known` is the cookie that the browser has of this client."""
        headers = {}
        if known is None or not known.user:  # a consent that is remembered stays
            until = consent.until + CONSENT_TIMEOUT  # for the way to a provider and back
            cookie = ConsentCookie(until=until, nonce=consent.nonce, client=consent.client)
            headers = await self.cookie_headers(cookie)
        return await self.consent_page(consent, await self.sign_in_html(request, consent.redirect_uri), headers)

    async def _client_and_redirect_uri(self, fields: Mapping[str, str], address: str) -> tuple[OAuthClient, str]:
        id, redirect_uri = fields.get("client_id"), fields.get("redirect_uri")
        client = None if id is None else await self.clients.find(id, address)
        if client is None:
            raise OAuthError("invalid_client", "The program that sent you here is not known.")
        if redirect_uri is None or not is_registered(redirect_uri, client.redirect_uris):
            raise OAuthError("invalid_request", "The program wants you to go somewhere that it has not registered.")
        return client, redirect_uri

    def _check(self, client: OAuthClient, fields: Mapping[str, str]) -> tuple[frozenset[str], str]:
        """The checked scopes and the challenge of a request."""
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

    async def consent_page(
        self, consent: ConsentRequest, sign_in: str, headers: dict[str, str], problem: str | None = None
    ) -> RouteResponse:
        client, uri = consent.client, consent.redirect_uri
        name = escape(consent.name or (urlsplit(client).netloc if is_url(client) else "") or client)
        words = (self.tokens.resource.scopes[scope] or scope for scope in consent.scopes)
        scopes = "".join(f"<li>{escape(each)}</li>" for each in words)
        local = ": a program on this computer. Go on only if you have just started it yourself."
        days = round(self.tokens.refresh_seconds / 86_400, 1)
        body = f"""<h1>Allow {name} to act for you?</h1>
{f'<p class="wrong" role="alert">{escape(problem)}</p>' if problem else ""}
{f"<p>It wants to:</p><ul>{scopes}</ul>" if scopes else ""}
<p>Then your browser goes to <strong>{escape(urlsplit(uri).netloc)}</strong>{local if is_loopback(uri) else "."}</p>
{f"<p>It may stay connected for {days:g} days.</p>" if consent.has_refresh and days else ""}
<form method="post" action="{escape(urlsplit(self.tokens.url("authorize")).path)}">
<input type="hidden" name="form" value="{escape(await self.tokens.keyring.seal(consent))}">
{sign_in}
<button name="answer" value="allow">Allow</button><button name="answer" value="deny" formnovalidate>Deny</button>
</form>
<p class="small">The program calls itself “{name}”; that was not checked.
Its id is {escape(client)}. The answer goes to {escape(uri)}.</p>"""
        return html_response("Allow access?", body, 403 if problem else 200, headers)

    async def _post(self, request: RouteRequest) -> RouteResponse:
        form = await form_fields(request)
        consent = await self.tokens.keyring.open(form.get("form"), ConsentRequest)
        if consent is None or await self.cookie(request, consent.client, consent.nonce) is None:
            raise old_page()  # without the cookie, another site has sent the form (CSRF)
        if form.get("answer") == "deny":
            error, description = "access_denied", "The user said no"
            return self.redirect(consent.redirect_uri, consent.state, error=error, error_description=description)
        if form.get("answer") not in self.answers:
            raise old_page()
        return await self.allowed(request, consent, form)

    async def grant(
        self, consent: ConsentRequest, user: str, scopes: list[str], profile: dict[str, str] | None = None
    ) -> Grant:
        """The grant of a consent, which is used up by this. Raises OAuthError."""
        fingerprint, store = await self.users.fingerprint(user), self.tokens.store
        await CONSENT_LIMIT.take(store, user)
        if fingerprint is None or not await store.claim("answered", consent.id, 2 * CONSENT_TIMEOUT):
            raise old_page()
        ends = self.tokens.keyring.now() + self.tokens.refresh_seconds
        return Grant(
            id=secrets.token_urlsafe(16), client=consent.client, user=user, fingerprint=fingerprint, scopes=scopes,
            ends=ends, profile=profile or {},
        )  # fmt: skip

    async def send_code(self, consent: ConsentRequest, grant: Grant, headers: Mapping[str, str]) -> RouteResponse:
        code = await self.tokens.code(grant, consent.redirect_uri, consent.challenge)
        return self.redirect(consent.redirect_uri, consent.state, headers, code=code)

    def redirect(
        self, redirect_uri: str, state: str | None, headers: Mapping[str, str] | None = None, **parameters: str
    ) -> RouteResponse:
        """Redirect to the client."""
        if not self.may_remember(redirect_uri):
            headers = set_cookie(SIGN_IN_COOKIE, "", 0)
        return redirect(self.client_url(redirect_uri, state, **parameters), headers)

    def client_url(self, redirect_uri: str, state: str | None, **parameters: str) -> str:
        """The URL that leads to the client, with the issuer (RFC 9207)."""
        given = {**parameters, **({} if state is None else {"state": state}), "iss": self.tokens.issuer}
        return redirect_uri + ("&" if "?" in redirect_uri else "?") + urlencode(given)

    def may_remember(self, redirect_uri: str) -> bool:
        """Whether to remember a user in a cookie; not for a program on this host, which would get the cookie, too."""
        issuer = self.tokens.issuer
        return not is_loopback_url(issuer) and urlsplit(redirect_uri).hostname != urlsplit(issuer).hostname

    async def cookie(self, request: RouteRequest, client: str, nonce: str | None = None) -> ConsentCookie | None:
        """The cookie of a client, with the nonce of a consent request; None in another browser."""
        found = await self.tokens.keyring.open(read_cookie(request, self.cookie_name(client)), ConsentCookie)
        if found is None or found.client != client or (nonce and not secrets.compare_digest(found.nonce, nonce)):
            return None
        return found

    async def cookie_headers(self, cookie: ConsentCookie) -> dict[str, str]:
        keyring = self.tokens.keyring
        return set_cookie(self.cookie_name(cookie.client), await keyring.seal(cookie), cookie.until - keyring.now())

    def cookie_name(self, client: str) -> str:
        """There is a cookie for each client, so that two consent pages can be open at a time; and for each of the
        authorization servers of a host, which share its cookies.
        """
        return f"__Host-dovetail-asked-{digest(f'{self.tokens.issuer} {client}')[:16]}"


class PasswordSignIn(Authorization, frozen=True, eq=False, kw_only=True):
    """Users sign in on the consent page."""

    answers = ("allow", "other")
    users: Passwords

    async def sign_in_html(self, request: RouteRequest, redirect_uri: str) -> str:
        user = await self._signed_in(request, redirect_uri)
        return SIGN_IN_FIELDS if user is None else SIGNED_IN.format(escape(user))

    async def _signed_in(self, request: RouteRequest, redirect_uri: str) -> str | None:
        if not self.may_remember(redirect_uri):
            return None
        known = await self.tokens.keyring.open(read_cookie(request, SIGN_IN_COOKIE), SignInCookie)
        return (
            known.user if known is not None and await self.users.fingerprint(known.user) == known.fingerprint else None
        )

    async def allowed(self, request: RouteRequest, consent: ConsentRequest, form: Mapping[str, str]) -> RouteResponse:
        if form["answer"] == "other":
            return await self.consent_page(consent, SIGN_IN_FIELDS, set_cookie(SIGN_IN_COOKIE, "", 0))
        headers: dict[str, str] = {}
        user = await self._signed_in(request, consent.redirect_uri)
        if user is None:
            user, password = form.get("name", ""), form.get("password", "")
            if not await self.users.sign_in(self.tokens.store, user, password, address_of(request)):
                return await self.consent_page(consent, SIGN_IN_FIELDS, {}, "Name or password is wrong.")
            headers = await self._sign_in_headers(user, consent.redirect_uri)
        return await self.send_code(consent, await self.grant(consent, user, consent.scopes), headers)

    async def _sign_in_headers(self, user: str, redirect_uri: str) -> dict[str, str]:
        keyring, fingerprint = self.tokens.keyring, await self.users.fingerprint(user)
        if fingerprint is None or not self.may_remember(redirect_uri):
            return {}
        signed_in = SignInCookie(until=keyring.now() + SIGN_IN_LIFETIME, user=user, fingerprint=fingerprint)
        return set_cookie(SIGN_IN_COOKIE, await keyring.seal(signed_in), SIGN_IN_LIFETIME)


# ── cookies, redirects and pages ──


def old_page() -> OAuthError:
    return OAuthError("invalid_request", OLD_PAGE, status=403)


def redirect(location: str, headers: Mapping[str, str] | None = None) -> RouteResponse:
    sent = {"cache-control": "no-store", "referrer-policy": "no-referrer", "location": location}
    return RouteResponse(b"", 303, {**sent, **(headers or {})})


def set_cookie(name: str, value: str, seconds: float) -> dict[str, str]:
    """A cookie whose prefix `__Host-` makes browsers insist on Secure, on this host and on its whole path."""
    return {"set-cookie": f"{name}={value}; Path=/; Max-Age={int(seconds)}; Secure; HttpOnly; SameSite=Lax"}


def read_cookie(request: RouteRequest, name: str) -> str | None:
    """The value of a cookie; None if there is none, or more than one, because then one may be forged."""
    pairs = [part.strip().partition("=") for line in request.headers.all("cookie") for part in line.split(";")]
    found = [value for key, _, value in pairs if key == name]
    return found[0] if len(found) == 1 else None


def is_loopback(uri: str) -> bool:
    return urlsplit(uri).hostname in LOOPBACK


STYLE = (
    ":root{color-scheme:light dark;background:Canvas;color:CanvasText}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:30rem;margin:3rem auto;padding:0 1rem}"
    "h1{font-size:1.4rem;overflow-wrap:anywhere}li,p{overflow-wrap:anywhere}"
    "label{display:block;margin:.8rem 0}"
    "input{display:block;width:100%;box-sizing:border-box;font:inherit;padding:.4rem}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:1rem .6rem 0 0}"
    ".wrong{color:#a00;color:light-dark(#a00,#fbb)}.small{font-size:.9rem}"
)
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# No form-action: browsers apply it to the redirect to the program, too, and to all redirects after it.
POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; frame-ancestors 'none'"
HTML_HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer a form is sent with `Origin: null`
    "cache-control": "no-store",
}
SIGN_IN_FIELDS = (
    '<label>Name <input name="name" autocomplete="username" autocapitalize="none" required></label>'
    '<label>Password <input name="password" type="password" autocomplete="current-password" required></label>'
)
SIGNED_IN = (
    "<p>You are signed in as <strong>{}</strong>. "
    '<button name="answer" value="other" formnovalidate>Another user</button></p>'
)
ERROR_TITLE, NOT_SIGNED_IN = "This can't go on", "You are not signed in"


def error_page(refusal: OAuthError, link: str = "") -> RouteResponse:
    """A page that says why; `link` leads to the client, and is HTML."""
    title = NOT_SIGNED_IN if link else ERROR_TITLE
    body = f"<h1>{escape(title)}</h1><p>{escape(refusal.description)}</p>{link}"
    return html_response(title, body, refusal.status, refusal.headers)


def html_response(title: str, body: str, status: int, headers: dict[str, str]) -> RouteResponse:
    html = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex">'
        f"<style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )
    return RouteResponse(html, status, {**HTML_HEADERS, **headers}, "text/html")
