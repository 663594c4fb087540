"""`/authorize`: a client sends a browser here, a user answers, and the browser goes back with a code or an error.

Where the client is not known, or where the request would lead, the user sees a page and is sent nowhere.
What is wrong otherwise is told to the client, if the operator vouches for it or it is on the user's own machine.
"""

import re
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from dovetail.auth.fetch import names_this_machine
from dovetail.authserver.clients import CODE, REFRESH, ClientDirectory, OAuthClient, is_url
from dovetail.authserver.endpoints import (
    SIGNED_IN,
    Consent,
    OAuthError,
    address_of,
    consent_cookie,
    consent_page,
    cookie,
    form_fields,
    host_of,
    is_loopback,
    is_registered,
    query_fields,
    refusal_page,
    set_cookie,
    shown,
    with_parameters,
)
from dovetail.authserver.storage import AttemptLimit, Sealed
from dovetail.authserver.tokens import Grant, TokenIssuer
from dovetail.authserver.users import Users
from dovetail.errors import ProtocolError
from dovetail.transports.http.routes import PageRequest, PageResponse

ANSWER_SECONDS = 600.0  # for which a question may be answered
SIGNED_IN_SECONDS = 3600.0  # then the password is asked for again
# A consent is kept for long: no account may fill the store with them.
CONSENTS = AttemptLimit("consents", "consents of this user", 3600.0, each=60, for_all=100_000)
OLD_PAGE = "This page is too old, was answered before, or belongs to another browser. Begin again in your program."

_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")  # S256 of a verifier


class Asked(Sealed, frozen=True, kw_only=True, tag="asked"):
    """A question that a user is being asked: the form carries it, and only one answer to it counts."""

    id: str
    nonce: str  # the cookie has the same
    client: str
    name: str
    redirect_uri: str
    state: str | None
    challenge: str
    scopes: list[str]
    stays: bool  # with refresh tokens


class Browser(Sealed, frozen=True, kw_only=True, tag="browser"):
    """What the cookie says: this browser is being asked about that client."""

    nonce: str
    client: str


class SignedIn(Sealed, frozen=True, kw_only=True, tag="user"):
    """Who has signed in at this browser. The password is asked for again after a while, or when it was changed."""

    user: str
    mark: str


class Authorization(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The endpoint that people see."""

    path: str  # of this endpoint
    clients: ClientDirectory
    users: Users
    tokens: TokenIssuer

    async def page(self, request: PageRequest) -> PageResponse:
        try:
            return await (self._decide(request) if request.method == "POST" else self._ask(request))
        except (OAuthError, ProtocolError) as failure:
            refusal = OAuthError.of(failure)
            return shown(refusal_page(refusal.description), refusal.status, refusal.headers)

    async def _ask(self, request: PageRequest) -> PageResponse:
        fields = query_fields(request)
        client, redirect_uri = await self._asking(fields, address_of(request))
        state = fields.get("state")
        try:
            scopes, challenge = self._checked(client, fields)
        except OAuthError as refusal:
            if client.introduced_itself and not is_loopback(redirect_uri):
                raise  # who can register a redirect URI must not send people there by way of us (RFC 9700, 4.11.2)
            return self._back(redirect_uri, state, error=refusal.error, error_description=refusal.description)
        browser = await self.tokens.keyring.open(cookie(request, consent_cookie(client.id)), Browser)
        nonce = browser.nonce if browser and browser.client == client.id else secrets.token_urlsafe(16)
        until = self.tokens.keyring.now() + ANSWER_SECONDS
        asked = Asked(
            until=until, id=secrets.token_urlsafe(16), nonce=nonce, client=client.id, name=client.name,
            redirect_uri=redirect_uri, state=state, challenge=challenge, scopes=sorted(scopes),
            stays=REFRESH in client.grant_types,
        )  # fmt: skip
        mark = await self.tokens.keyring.seal(Browser(until=until, nonce=nonce, client=client.id))
        headers = set_cookie(consent_cookie(client.id), mark, ANSWER_SECONDS)
        return await self._question(asked, await self._signed_in(request, redirect_uri), headers)

    async def _asking(self, fields: Mapping[str, str], address: str) -> tuple[OAuthClient, str]:
        """Who asks, and where the answer goes; without both only the user can be told."""
        id, redirect_uri = fields.get("client_id"), fields.get("redirect_uri")
        client = None if id is None else await self.clients.find(id, address)
        if client is None:
            raise OAuthError("invalid_client", "The program that sent you here is not known.")
        if redirect_uri is None or not is_registered(redirect_uri, client.redirect_uris):
            raise OAuthError("invalid_request", "The program wants you to go somewhere that it has not registered.")
        return client, redirect_uri

    def _checked(self, client: OAuthClient, fields: Mapping[str, str]) -> tuple[frozenset[str], str]:
        """The scopes and the challenge; what is wrong is told to the program."""
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
        self.tokens.target.check_resource(fields.get("resource"))
        return self.tokens.target.wanted(fields.get("scope"), client.scopes), challenge

    async def _question(
        self, asked: Asked, user: str | None, headers: dict[str, str], wrong: str | None = None
    ) -> PageResponse:
        host = host_of(asked.client) if is_url(asked.client) else ""
        question = Consent(
            program=asked.name or host or asked.client,
            program_id=asked.client,
            scopes=[self.tokens.target.scopes[scope] or scope for scope in asked.scopes],
            redirect_uri=asked.redirect_uri,
            days=round(self.tokens.refresh_seconds / 86_400, 1) if asked.stays else None,
            user=user,
            form=await self.tokens.keyring.seal(asked),
        )
        return shown(*consent_page(question, self.path, wrong=wrong), headers)

    async def _decide(self, request: PageRequest) -> PageResponse:
        form = await form_fields(request)
        asked = await self._asked(request, form)
        answer = form.get("answer")
        if answer == "other":
            return await self._question(asked, None, set_cookie(SIGNED_IN, "", 0))
        if answer not in ("allow", "deny"):
            raise OAuthError("invalid_request", OLD_PAGE)
        if answer == "deny":
            return self._back(
                asked.redirect_uri, asked.state, error="access_denied", error_description="The user said no"
            )
        headers: dict[str, str] = {}
        user = await self._signed_in(request, asked.redirect_uri)
        if user is None:
            user, password = form.get("name", ""), form.get("password", "")
            if not await self.users.sign_in(self.tokens.store, user, password, address_of(request)):
                return await self._question(asked, None, {}, wrong="Name or password is wrong.")
            headers = await self._remember(user, asked.redirect_uri)
        if not await self.tokens.store.claim("answered", asked.id, 2 * ANSWER_SECONDS):
            raise OAuthError("invalid_request", OLD_PAGE)
        return self._back(asked.redirect_uri, asked.state, headers, code=await self._code(asked, user))

    async def _asked(self, request: PageRequest, form: Mapping[str, str]) -> Asked:
        """What is answered. The browser must be the one that was asked, or another site has sent the form (CSRF)."""
        asked = await self.tokens.keyring.open(form.get("form"), Asked)
        if asked is not None:
            browser = await self.tokens.keyring.open(cookie(request, consent_cookie(asked.client)), Browser)
            if browser and secrets.compare_digest(browser.nonce, asked.nonce) and browser.client == asked.client:
                return asked
        raise OAuthError("invalid_request", OLD_PAGE, status=403)

    async def _code(self, asked: Asked, user: str) -> str:
        mark = await self.users.mark(user)
        if mark is None:
            raise OAuthError("invalid_request", OLD_PAGE)
        await CONSENTS.take(self.tokens.store, user)
        id, ends = secrets.token_urlsafe(16), self.tokens.keyring.now() + self.tokens.refresh_seconds
        grant = Grant(id=id, client=asked.client, user=user, mark=mark, scopes=asked.scopes, ends=ends)
        return await self.tokens.code(grant, asked.redirect_uri, asked.challenge)

    def _back(
        self, redirect_uri: str, state: str | None, headers: Mapping[str, str] | None = None, **said: str
    ) -> PageResponse:
        """To the client, always with who says so (RFC 9207)."""
        location = with_parameters(redirect_uri, **said, state=state, iss=self.tokens.issuer)
        if not self._keeps_sign_in(redirect_uri):
            headers = set_cookie(SIGNED_IN, "", 0)
        told = {"cache-control": "no-store", "referrer-policy": "no-referrer", "location": location}
        return PageResponse(b"", 303, {**told, **(headers or {})})

    def _keeps_sign_in(self, redirect_uri: str) -> bool:
        """Cookies don't know ports: a program at this host would get the user's, and could say yes in their name."""
        issuer = self.tokens.issuer
        return not names_this_machine(issuer) and urlsplit(redirect_uri).hostname != urlsplit(issuer).hostname

    async def _signed_in(self, request: PageRequest, redirect_uri: str) -> str | None:
        if not self._keeps_sign_in(redirect_uri):
            return None
        known = await self.tokens.keyring.open(cookie(request, SIGNED_IN), SignedIn)
        return known.user if known is not None and await self.users.mark(known.user) == known.mark else None

    async def _remember(self, user: str, redirect_uri: str) -> dict[str, str]:
        mark = await self.users.mark(user)
        if mark is None or not self._keeps_sign_in(redirect_uri):
            return {}
        known = SignedIn(until=self.tokens.keyring.now() + SIGNED_IN_SECONDS, user=user, mark=mark)
        return set_cookie(SIGNED_IN, await self.tokens.keyring.seal(known), SIGNED_IN_SECONDS)
