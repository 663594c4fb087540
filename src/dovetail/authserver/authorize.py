"""`/authorize`: a program sends a browser here, a user answers, and the browser goes back with a code or an error.

Where nobody knows whom the request comes from, or where it would lead, the user sees a page and is sent nowhere.
What is wrong otherwise is told to the program; if nobody vouches for it, by a link that the user may follow.
"""

import re
import secrets
from collections.abc import Mapping

import msgspec

from dovetail.auth.fetch import names_this_machine
from dovetail.authserver.client_record import CODE, REFRESH, REGISTERED, OAuthClient, is_url
from dovetail.authserver.clients import KnownClients
from dovetail.authserver.cookies import SIGNED_IN, asked_cookie, cookie, set_cookie
from dovetail.authserver.forms import form_fields, query_fields
from dovetail.authserver.grants import Grant, Grants
from dovetail.authserver.marks import Marks
from dovetail.authserver.networks import caller_of
from dovetail.authserver.pages import Consent, LinkBack, consent_page, refusal_page, shown
from dovetail.authserver.redirects import host_of, is_loopback, is_registered, name_of, with_parameters
from dovetail.authserver.refusals import OAuthRefusal
from dovetail.authserver.seals import Sealed, Seals
from dovetail.authserver.signins import SignIns
from dovetail.authserver.targets import Target
from dovetail.authserver.users import Users
from dovetail.errors import ProtocolError
from dovetail.transports.routes import PageRequest, PageResponse

ANSWER_SECONDS = 600.0  # for which a question may be answered
SIGNED_IN_SECONDS = 3600.0  # then the password is asked for again
KNOWN_SECONDS = 90 * 86_400.0  # for which a browser is one where this user was before
CONSENT_SECONDS = 3600.0
MOST_CONSENTS = 60  # of one user in that time: no account may fill the store, in which each is kept for long
MAX_STATE = 2000  # bytes
DAY = 86_400.0
TITLE = "This can't go on"
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
    """What the cookie says: this browser is being asked about that program."""

    nonce: str
    client: str


class SignedIn(Sealed, frozen=True, kw_only=True, tag="user"):
    """Who has signed in at this browser. The password is asked for again after a while, or when it was changed."""

    user: str
    mark: str
    asked_again: float


class Authorization(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The endpoint that people see."""

    issuer: str
    path: str  # of this endpoint
    clients: KnownClients
    target: Target
    users: Users
    sign_ins: SignIns
    grants: Grants
    seals: Seals
    marks: Marks
    refresh_seconds: float

    async def page(self, request: PageRequest) -> PageResponse:
        try:
            return await (self._decide(request) if request.method == "POST" else self._ask(request))
        except OAuthRefusal as refusal:
            return shown(refusal_page(TITLE, refusal.description), refusal.status, refusal.headers)
        except ProtocolError as failure:
            told = OAuthRefusal.of(failure)
            return shown(refusal_page(TITLE, told.description), told.status)

    # ── the question ──

    async def _ask(self, request: PageRequest) -> PageResponse:
        fields = query_fields(request)
        client, redirect_uri = await self._asking(fields, caller_of(request))
        state = fields.get("state")
        try:
            scopes, challenge = self._checked(client, fields)
        except OAuthRefusal as refusal:
            return self._refused(client, redirect_uri, state, refusal)
        browser = await self.seals.open(cookie(request, asked_cookie(client.id)), Browser)
        nonce = browser.nonce if browser and browser.client == client.id else secrets.token_urlsafe(16)
        until = self.seals.now() + ANSWER_SECONDS
        asked = Asked(
            until=until, id=Grant.new_id(), nonce=nonce, client=client.id, name=client.name,
            redirect_uri=redirect_uri, state=state, challenge=challenge, scopes=sorted(scopes),
            stays=REFRESH in client.grant_types,
        )  # fmt: skip
        mark = await self.seals.seal(Browser(until=until, nonce=nonce, client=client.id))
        headers = set_cookie(asked_cookie(client.id), mark, ANSWER_SECONDS)
        return await self._question(asked, await self._signed_in(request, redirect_uri), headers)

    async def _asking(self, fields: Mapping[str, str], network: str) -> tuple[OAuthClient, str]:
        """Who asks, and where the answer goes; without both there is nobody to tell but the user."""
        id, redirect_uri = fields.get("client_id"), fields.get("redirect_uri")
        client = None if id is None else await self.clients.find(id, network)
        if client is None:
            raise OAuthRefusal("invalid_client", "The program that sent you here is not known.")
        if redirect_uri is None or not is_registered(redirect_uri, client.redirect_uris):
            raise OAuthRefusal("invalid_request", "The program wants you to go somewhere that it has not registered.")
        return client, redirect_uri

    def _checked(self, client: OAuthClient, fields: Mapping[str, str]) -> tuple[frozenset[str], str]:
        """The scopes and the challenge; what is wrong is told to the program."""
        if fields.get("response_type") != "code":
            raise OAuthRefusal("unsupported_response_type", "response_type must be code")
        if CODE not in client.grant_types:
            raise OAuthRefusal("unauthorized_client", "This program may not ask users")
        if fields.get("response_mode", "query") != "query":
            raise OAuthRefusal("invalid_request", "response_mode must be query")
        if len(fields.get("state", "").encode()) > MAX_STATE:
            raise OAuthRefusal("invalid_request", f"state has more than {MAX_STATE} bytes")
        challenge = fields.get("code_challenge", "")
        if fields.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(challenge):
            raise OAuthRefusal("invalid_request", "PKCE is needed: code_challenge, with code_challenge_method=S256")
        self.target.check_resource(fields.get("resource"))
        return self.target.wanted(fields.get("scope"), client.scopes), challenge

    def _refused(
        self, client: OAuthClient, redirect_uri: str, state: str | None, refusal: OAuthRefusal
    ) -> PageResponse:
        """RFC 6749, 4.1.2.1, unless anybody could register to send people wherever they like by way of this server
        (RFC 9700, 4.11.2); what leads to their own machine leads to nobody else.
        """
        error, words = refusal.error, refusal.description
        if not _introduced_itself(client) or is_loopback(redirect_uri):
            return self._back(redirect_uri, state, error=error, error_description=words)
        back = None
        if self._keeps_sign_in(redirect_uri):  # else the cookie would have to go, and anybody could make it go
            location = self._location(redirect_uri, state, error=error, error_description=words)
            back = LinkBack(location, host_of(redirect_uri))
        return shown(refusal_page(TITLE, words, back), refusal.status)

    async def _question(
        self, asked: Asked, user: str | None, headers: dict[str, str], wrong: str | None = None
    ) -> PageResponse:
        host = host_of(asked.client) if is_url(asked.client) else ""
        question = Consent(
            program=asked.name or host or asked.client,
            program_id=asked.client,
            scopes=[self.target.scopes[scope] or scope for scope in asked.scopes],
            redirect_uri=asked.redirect_uri,
            redirect_host=host_of(asked.redirect_uri),
            on_this_machine=is_loopback(asked.redirect_uri),
            days=round(self.refresh_seconds / DAY, 1) if asked.stays else None,
            user=user,
            form=await self.seals.seal(asked),
        )
        return shown(*consent_page(question, self.path, wrong=wrong), headers)

    # ── the answer ──

    async def _decide(self, request: PageRequest) -> PageResponse:
        form = await form_fields(request)
        asked = await self._asked(request, form)
        answer = form.get("answer")
        if answer == "other":
            return await self._question(asked, None, set_cookie(SIGNED_IN, "", 0))
        if answer not in ("allow", "deny"):
            raise OAuthRefusal("invalid_request", OLD_PAGE)
        if answer == "deny":
            return self._back(
                asked.redirect_uri, asked.state, error="access_denied", error_description="The user said no"
            )
        headers: dict[str, str] = {}
        user = await self._signed_in(request, asked.redirect_uri)
        if user is None:
            user = await self._sign_in(request, form, asked.redirect_uri)
            if user is None:
                return await self._question(asked, None, {}, wrong="Name or password is wrong.")
            headers = await self._remember(user, asked.redirect_uri)
        if not await self.marks.claim("answered", asked.id, 2 * ANSWER_SECONDS):
            raise OAuthRefusal("invalid_request", OLD_PAGE)
        return self._back(asked.redirect_uri, asked.state, headers, code=await self._code(asked, user))

    async def _asked(self, request: PageRequest, form: Mapping[str, str]) -> Asked:
        """What is answered. The browser must be the one that was asked, or another site has sent the form (CSRF)."""
        asked = await self.seals.open(form.get("form"), Asked)
        if asked is not None:
            browser = await self.seals.open(cookie(request, asked_cookie(asked.client)), Browser)
            if browser and secrets.compare_digest(browser.nonce, asked.nonce) and browser.client == asked.client:
                return asked
        raise OAuthRefusal("invalid_request", OLD_PAGE, status=403)

    async def _code(self, asked: Asked, user: str) -> str:
        mark = await self.users.mark(user)
        if mark is None:
            raise OAuthRefusal("invalid_request", OLD_PAGE)
        if await self.marks.count("consents", user, CONSENT_SECONDS) > MOST_CONSENTS:
            raise OAuthRefusal.too_many("consents of this user", await self.marks.left("consents", user))
        grant = Grant(
            id=Grant.new_id(),
            client=asked.client,
            user=user,
            mark=mark,
            scopes=asked.scopes,
            ends=self.seals.now() + self.refresh_seconds,
        )
        return await self.grants.code(grant, asked.redirect_uri, asked.challenge)

    def _back(
        self, redirect_uri: str, state: str | None, headers: Mapping[str, str] | None = None, **said: str
    ) -> PageResponse:
        """To the program."""
        location = self._location(redirect_uri, state, **said)
        if not self._keeps_sign_in(redirect_uri):
            headers = set_cookie(SIGNED_IN, "", 0)
        return PageResponse(
            b"",
            303,
            {"cache-control": "no-store", "referrer-policy": "no-referrer", **(headers or {}), "location": location},
        )

    def _location(self, redirect_uri: str, state: str | None, **said: str) -> str:
        """Always with who says so (RFC 9207)."""
        return with_parameters(redirect_uri, **said, state=state, iss=self.issuer)

    # ── who is there ──

    def _keeps_sign_in(self, redirect_uri: str) -> bool:
        """Cookies don't know ports: a program at this host would get the user's, and could say yes in their name."""
        return not names_this_machine(self.issuer) and name_of(redirect_uri) != name_of(self.issuer)

    async def _known(self, request: PageRequest, redirect_uri: str) -> SignedIn | None:
        if not self._keeps_sign_in(redirect_uri):
            return None
        return await self.seals.open(cookie(request, SIGNED_IN), SignedIn)

    async def _signed_in(self, request: PageRequest, redirect_uri: str) -> str | None:
        known = await self._known(request, redirect_uri)
        if known is None or self.seals.now() >= known.asked_again:
            return None
        return known.user if await self.users.mark(known.user) == known.mark else None

    async def _sign_in(self, request: PageRequest, form: Mapping[str, str], redirect_uri: str) -> str | None:
        name, password = form.get("name", ""), form.get("password", "")
        known = await self._known(request, redirect_uri)
        was_here = known is not None and known.user == name
        accepted = await self.sign_ins.accepts(name, password, caller_of(request), is_known_browser=was_here)
        return name if accepted else None

    async def _remember(self, user: str, redirect_uri: str) -> dict[str, str]:
        mark = await self.users.mark(user)
        if mark is None or not self._keeps_sign_in(redirect_uri):
            return {}
        now = self.seals.now()
        known = SignedIn(until=now + KNOWN_SECONDS, user=user, mark=mark, asked_again=now + SIGNED_IN_SECONDS)
        return set_cookie(SIGNED_IN, await self.seals.seal(known), KNOWN_SECONDS)


def _introduced_itself(client: OAuthClient) -> bool:
    """Nobody but itself has said where it sends people."""
    return is_url(client.id) or client.id.startswith(REGISTERED)
