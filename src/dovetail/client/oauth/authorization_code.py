"""`OAuth`: a person signs in with a browser (authorization code with PKCE, RFC 7636)."""

import base64
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from dovetail.auth.fetch import is_loopback_host
from dovetail.client.handlers import outcome_of
from dovetail.client.oauth.callback import OpenBrowser, RedirectListener, code_in, show_and_open
from dovetail.client.oauth.discovery import S256, authorization_url, register
from dovetail.client.oauth.metadata import shown
from dovetail.client.oauth.provider import LoopLock, TokenRequest, TokenSource, method_for
from dovetail.client.oauth.storage import RegisteredClient, TokenSet, TokenStore
from dovetail.errors import DovetailError, NotSignedIn, SetupError

log = logging.getLogger("dovetail.client")

MAX_URL = 16 * 1024  # of the page to sign in at
RedirectHandler = Callable[[str], str | Awaitable[str]]


class OAuth(TokenSource):
    """Signing in as a person.

    async with Client("https://notes.example.com/mcp", auth=OAuth()) as client: ...

    The browser opens when the server first asks for a token. `client_id` and `client_secret` (or `private_key`, as PEM
    or JWK): those of a program that is known there; `client_metadata_url`: of a program whose metadata are published;
    without them it registers itself as `client_name`. `scopes`: what to ask for besides what the server names.
    `issuer`: the only authorization server that may be asked. `tokens`: where they are kept.

    `open_browser` gets the URL to open. An app with pages of its own gives `redirect_uri`, and a `redirect_handler`
    that gets the URL to send the user to, and returns the URL that they came back to. `dpop`: bind tokens to a key.
    """

    interactive = True

    def __init__(
        self,
        *,
        client_id: str | None = None,
        client_secret: str | None = None,
        private_key: str | bytes | Mapping[str, Any] | None = None,
        client_metadata_url: str | None = None,
        client_name: str = "Dovetail",
        scopes: Iterable[str] = (),
        issuer: str | None = None,
        tokens: TokenStore | None = None,
        open_browser: OpenBrowser = show_and_open,
        redirect_uri: str | None = None,
        redirect_handler: RedirectHandler | None = None,
        sign_in_seconds: float = 300.0,
        dpop: bool = False,
    ) -> None:
        if client_id is None and (client_secret is not None or private_key is not None):
            raise SetupError("OAuth: client_secret= and private_key= belong to a client_id=; give that too")
        if redirect_handler is not None and redirect_uri is None:
            raise SetupError("OAuth: redirect_handler= needs the redirect_uri= that the browser is sent back to")
        if redirect_uri is not None:
            _check_redirect(redirect_uri, handled=redirect_handler is not None)
        if client_metadata_url is not None and not _is_document(client_metadata_url):
            raise SetupError("OAuth: client_metadata_url= must be https and have a path")
        super().__init__(private_key=private_key, scopes=scopes, issuer=issuer, tokens=tokens, dpop=dpop)
        self._id, self._secret = client_id, client_secret
        self._document = client_metadata_url
        self._name = client_name
        self._open_browser = open_browser
        self._redirect_uri = redirect_uri
        self._redirect_handler = redirect_handler
        self._seconds = sign_in_seconds
        self._browser = LoopLock()  # of the one sign-in that goes on

    def __repr__(self) -> str:
        return f"OAuth({'' if self._id is None else f'client_id={self._id!r}'})"

    @property
    def who(self) -> str:
        return f"OAuth {self._id or self._document or 'registered'}"

    @property
    def bound_to_issuer(self) -> bool:
        return self._secret is not None or self.key is not None

    def completed(self, client: RegisteredClient) -> RegisteredClient:
        if self._id is None or client.id != self._id:
            return client
        return RegisteredClient(client.id, self._secret, client.method, client.redirect_uri)

    async def obtain(self, wanted: TokenRequest) -> TokenSet:
        page = authorization_url(wanted.endpoint.provider, is_local=wanted.endpoint.web.is_local)
        async with self._browser.here(), AsyncExitStack() as open_here:
            listener = None
            if self._redirect_handler is None:
                listener = await self._listener(open_here, wanted.client)
            redirect_uri = self._redirect_uri if listener is None else listener.uri
            assert redirect_uri is not None
            client = await self._client(wanted, redirect_uri)
            question = SignInQuestion(client, redirect_uri, secrets.token_urlsafe(32), secrets.token_urlsafe(48))
            url = question.url(page, wanted)
            if listener is None:
                came = await self._handled(url)
            else:
                came = await listener.visit(url, question.state, self._open_browser, self._seconds)
        return await _redeemed(wanted, question, code_in(came, wanted.endpoint.provider, question.state))

    async def _listener(self, open_here: AsyncExitStack, known: RegisteredClient | None) -> RedirectListener:
        """Where this program was registered with, if that is free; only its name for this machine may be given."""
        before = None if known is None else known.redirect_uri
        if self._redirect_uri is None and before is not None and before.startswith("http://"):
            try:
                return await open_here.enter_async_context(RedirectListener.opened(before))
            except NotSignedIn:
                pass  # it registers again, with another port
        return await open_here.enter_async_context(RedirectListener.opened(self._redirect_uri))

    async def _client(self, wanted: TokenRequest, redirect_uri: str) -> RegisteredClient:
        provider = wanted.endpoint.provider
        if self._id is not None:
            method = method_for(provider, secret=self._secret is not None, key=self.key is not None)
            return RegisteredClient(self._id, self._secret, method)
        if self._document is not None and provider.metadata.client_id_metadata_document_supported:
            return RegisteredClient(self._document)
        known = wanted.client
        if known is not None and known.redirect_uri == redirect_uri and not known.is_over(time.time()):
            return known
        native = is_loopback_host(urlsplit(redirect_uri).hostname or "")
        return await register(wanted.endpoint.web, provider, self._name, redirect_uri, native=native)

    async def _handled(self, url: str) -> str:
        assert self._redirect_handler is not None
        try:
            came = await outcome_of(self._redirect_handler, url)
        except DovetailError:
            raise
        except Exception:
            log.exception("redirect_handler= failed")
            raise NotSignedIn("redirect_handler= failed; the log says why") from None
        if not isinstance(came, str):
            raise SetupError("OAuth: redirect_handler must return the URL that the browser came back to")
        return came


class SignInQuestion(NamedTuple):
    """What one browser is sent to ask, and what only we know of it."""

    client: RegisteredClient
    redirect_uri: str
    state: str
    verifier: str

    def __repr__(self) -> str:
        return "SignInQuestion()"

    def url(self, page: str, wanted: TokenRequest) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        endpoint = wanted.endpoint
        fields = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.redirect_uri,
            "state": self.state,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": S256,
            "resource": endpoint.provider.resource,
            **wanted.scope_field,
            **({} if endpoint.proving is None else {"dpop_jkt": endpoint.proving.key.id}),
            **({"prompt": "consent"} if "offline_access" in wanted.scopes else {}),  # OpenID Connect Core, 11
        }
        preset = dict(parse_qsl(urlsplit(page).query, keep_blank_values=True)).keys() & fields.keys()
        url = f"{page}{'&' if '?' in page else '?'}{urlencode(fields)}"
        if preset or len(url) > MAX_URL:
            what = f"answers {min(preset)} itself" if preset else f"would need more than {MAX_URL} characters"
            raise NotSignedIn(f"{shown(page)}, the page to sign in at, {what}; it is not opened")
        return url


async def _redeemed(wanted: TokenRequest, question: SignInQuestion, code: str) -> TokenSet:
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": question.redirect_uri,
        "code_verifier": question.verifier,
    }
    return await wanted.endpoint.ask(question.client, form, wanted.scopes)


def _check_redirect(uri: str, *, handled: bool) -> None:
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise SetupError("OAuth: redirect_uri= is no URL: its host or its port can't be read") from None
    if port == 0:
        raise SetupError("OAuth: redirect_uri= must not have the port 0; leave the port out for any that is free")
    local = parts.scheme == "http" and is_loopback_host(parts.hostname or "") and not parts.query
    if not handled and not local:
        raise SetupError(
            'OAuth: redirect_uri= must be on this machine, such as "http://127.0.0.1:8123/callback"; '
            "for pages of your own, give redirect_handler= too"
        )
    if handled and parts.scheme in ("", "http") and not local:
        raise SetupError("OAuth: redirect_uri= must be https, or on this machine")


def _is_document(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" and len(parts.path) > 1
