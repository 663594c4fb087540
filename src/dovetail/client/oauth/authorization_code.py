"""`OAuth`: the user signs in with a browser (authorization code with PKCE, RFC 7636).

During a sign-in an HTTP server listens on a free port of this machine, and accepts a redirect with the right `state`.
"""

import asyncio
import base64
import hashlib
import hmac
import html
import inspect
import logging
import secrets
import sys
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, Unpack
from urllib.parse import parse_qsl, urlencode, urlsplit

from dovetail.auth.fetch import is_loopback_host, plain, shown
from dovetail.client.handlers import call_maybe_async
from dovetail.client.oauth.metadata import S256, AuthorizationServer, authorization_url, register
from dovetail.client.oauth.provider import PerLoopLock, TokenRequest, TokenSource, TokenSourceOptions
from dovetail.client.oauth.storage import RegisteredClient, TokenSet
from dovetail.client.transports.base import cancel_and_wait
from dovetail.errors import DovetailError, NotSignedIn, SetupError

log = logging.getLogger("dovetail.client")

MAX_URL_CHARS = 32 * 1024
RedirectHandler = Callable[[str], str | Awaitable[str]]


def query_parameters(url: str) -> dict[str, str] | None:
    """The parameters of a query; None if they are malformed, or one of them is repeated."""
    try:
        pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        return None
    found = dict(pairs)
    return found if len(found) == len(pairs) else None


def read_authorization_code(url: str, auth_server: AuthorizationServer, state: str) -> str:
    """The code in the URL of a redirect; its state is checked first (RFC 6749, 4.1.2; RFC 9207, 2.4)."""
    found = query_parameters(url) if len(url) <= MAX_URL_CHARS else None
    if found is None or not hmac.compare_digest(found.get("state", "").encode(), state.encode()):
        raise NotSignedIn("The browser returned from another sign-in: its state is not ours")
    issuer = found.get("iss")
    if issuer is None and auth_server.metadata.authorization_response_iss_parameter_supported:
        raise NotSignedIn("The browser returned without the name of the issuer, which should have been there")
    if issuer is not None and issuer != auth_server.issuer:
        raise NotSignedIn(f"The browser was sent to {shown(auth_server.issuer)}, but returned from {shown(issuer)}")
    if "error" in found:
        words = ": ".join(filter(None, (plain(found["error"]), plain(found.get("error_description", "")))))
        raise NotSignedIn(f"{shown(auth_server.issuer)} did not let you in: {words}")
    if not found.get("code"):
        raise NotSignedIn("The browser returned without a code")
    return found["code"]


LOOPBACK = "127.0.0.1"
CALLBACK_PATH = "/callback"
MAX_HEAD_BYTES = 16 * 1024
CLOSE_TIMEOUT = 0.5  # seconds

OpenBrowser = Callable[[str], Any]
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:1.1rem system-ui,sans-serif;max-width:32rem;margin:20vh auto;padding:0 1rem;color-scheme:light dark}}
</style><h1>{title}</h1><p>{text}</p></html>"""
_HEADERS = (
    "Content-Type: text/html; charset=utf-8",
    "Cache-Control: no-store",
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy: no-referrer",
    "Connection: close",
)


def show_and_open(url: str) -> None:
    """Open the URL and show it too, for a user without a browser on this machine."""
    sys.stderr.write(f"Sign in with your browser; if it does not open by itself, open\n{url}\n")
    sys.stderr.flush()
    webbrowser.open(url)


class RedirectListener:
    """Waits at `uri` for one redirect with the right state."""

    def __init__(self, path: str = CALLBACK_PATH) -> None:
        self._path = path
        self._connections: set[asyncio.Task[None]] = set()
        self._state = ""
        self._redirect: asyncio.Future[str] | None = None
        self.uri = ""

    @classmethod
    @asynccontextmanager
    async def opened(cls, redirect_uri: str | None) -> AsyncIterator["RedirectListener"]:
        """Listen at this URI, or on any free port if it has none. Raises NotSignedIn if the port is in use."""
        parts = urlsplit(redirect_uri or f"http://{LOOPBACK}{CALLBACK_PATH}")
        host = "::1" if parts.hostname == "::1" else LOOPBACK
        listener = cls(parts.path or "/")
        try:
            server = await asyncio.start_server(listener._serve, host, parts.port or 0, limit=MAX_HEAD_BYTES)
        except OSError:
            raise NotSignedIn(f"Port {parts.port} is in use, but the browser has to be sent back there") from None
        port = server.sockets[0].getsockname()[1]
        listener.uri = parts.geturl() if parts.port else f"http://{parts.netloc}:{port}{parts.path}"
        try:
            yield listener
        finally:
            server.close()
            if listener._connections:  # a response may still be written
                await asyncio.wait(listener._connections, timeout=CLOSE_TIMEOUT)
            await cancel_and_wait(*listener._connections)

    async def wait_for_redirect(self, url: str, state: str, open_browser: OpenBrowser, seconds: float) -> str:
        """Wait for the redirect to this listener; returns its URL."""
        redirect: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._redirect, self._state = redirect, state
        opening = asyncio.create_task(_open(open_browser, url, redirect))
        try:
            async with asyncio.timeout(seconds):
                redirect_url = await redirect
            await asyncio.wait([opening], timeout=CLOSE_TIMEOUT)  # a scripted browser may read the last page
            return redirect_url
        except TimeoutError:
            raise NotSignedIn(f"There was no sign-in within {seconds:g} s") from None
        finally:
            await cancel_and_wait(opening)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async with asyncio.timeout(10.0):
                if len(self._connections) <= 20:
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._respond(head.decode("latin-1").partition("\r\n")[0]))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not the user's browser
        finally:
            self._connections.discard(task)
            writer.close()

    def _respond(self, request_line: str) -> bytes:
        method, _, rest = request_line.partition(" ")
        target = rest.partition(" ")[0]
        if method != "GET" or target.partition("?")[0] != self._path or len(target) > MAX_HEAD_BYTES // 2:
            return _page(404, "Nothing here", "This is where a sign-in ends. There is nothing else to see.")
        found = query_parameters(target) or {}
        if self._redirect is None or not hmac.compare_digest(found.get("state", "").encode(), self._state.encode()):
            return _page(400, "Not this one", "This page does not belong to the sign-in that is going on.")
        if not self._redirect.done():
            self._redirect.set_result(f"{self.uri}?{target.partition('?')[2]}")
        title = "Not signed in" if "error" in found else "That is all"
        return _page(200, title, "You can close this page and go back to the program.")


async def _open(open_browser: OpenBrowser, url: str, redirect: "asyncio.Future[str]") -> None:
    """Run a plain function in a thread: with some browsers it blocks."""
    try:
        if inspect.iscoroutinefunction(open_browser):
            await open_browser(url)
        elif inspect.isawaitable(returned := await _run_in_thread(open_browser, url)):
            await returned
    except Exception:
        log.exception("open_browser= failed")
        if not redirect.done():
            redirect.set_exception(NotSignedIn("The page to sign in at could not be opened; the log says why"))


async def _run_in_thread(function: OpenBrowser, url: str) -> Any:
    """Run a function in a daemon thread: the process may exit while the browser is open."""
    done: Future[Any] = Future()

    def run() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(function(url))
        except Exception as failure:
            done.set_exception(failure)

    threading.Thread(target=run, name="dovetail-browser", daemon=True).start()
    return await asyncio.wrap_future(done)


def _page(status: int, title: str, text: str) -> bytes:
    body = _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    phrase = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
    head = "\r\n".join((f"HTTP/1.1 {status} {phrase}", *_HEADERS, f"Content-Length: {len(body)}"))
    return f"{head}\r\n\r\n".encode() + body


class OAuth(TokenSource):
    """Signing in as a user.

    async with Client("https://notes.example.com/mcp", auth=OAuth()) as client: ...

    The browser opens when the server first asks for a token. `client_id` and `client_secret` (or `private_key`, as PEM
    or JWK) are those of a registered program, `client_metadata_url` is that of one with published metadata; without
    them it registers itself as `client_name`. `scopes` are requested besides those that the server names. `issuer` is
    the only authorization server that is used. `tokens` is where tokens are stored.

    `open_browser` gets the URL to open. An app with pages of its own gives `redirect_uri`, and a `redirect_handler`
    that gets the URL to send the user to, and returns the URL that they came back to. `dpop` binds tokens to a key.
    """

    interactive = True

    def __init__(
        self,
        *,
        client_id: str | None = None,
        client_secret: str | None = None,
        client_metadata_url: str | None = None,
        client_name: str = "Dovetail",
        open_browser: OpenBrowser = show_and_open,
        redirect_uri: str | None = None,
        redirect_handler: RedirectHandler | None = None,
        sign_in_seconds: float = 300.0,
        **options: Unpack[TokenSourceOptions],
    ) -> None:
        if client_id is None and (client_secret is not None or options.get("private_key") is not None):
            raise SetupError("OAuth: client_secret= and private_key= belong to a client_id=; give that too")
        if redirect_handler is not None and redirect_uri is None:
            raise SetupError("OAuth: redirect_handler= needs the redirect_uri= that the browser is sent back to")
        if redirect_uri is not None:
            _check_redirect_uri(redirect_uri, handled=redirect_handler is not None)
        document = urlsplit(client_metadata_url or "")
        if client_metadata_url is not None and (document.scheme != "https" or len(document.path) < 2):
            raise SetupError("OAuth: client_metadata_url= must be https and have a path")
        super().__init__(client_id, client_secret, **options)
        self._document = client_metadata_url
        self._name = client_name
        self._open_browser = open_browser
        self._redirect_uri = redirect_uri
        self._redirect_handler = redirect_handler
        self._sign_in_seconds = sign_in_seconds
        self._sign_in_lock = PerLoopLock()  # one sign-in at a time

    def __repr__(self) -> str:
        return f"OAuth({'' if self._id is None else f'client_id={self._id!r}'})"

    @property
    def store_name(self) -> str:
        return f"OAuth {self._id or self._document or 'registered'}"

    async def obtain(self, token_request: TokenRequest) -> TokenSet:
        endpoint = token_request.endpoint
        page = authorization_url(endpoint.auth_server, is_local=endpoint.http.is_local)
        async with self._sign_in_lock.current(), AsyncExitStack() as stack:
            listener = None
            if self._redirect_handler is None:
                listener = await self._listener(stack, token_request.client)
            redirect_uri = self._redirect_uri if listener is None else listener.uri
            assert redirect_uri is not None
            client = await self._client(token_request, redirect_uri)
            request = AuthorizationRequest(client, redirect_uri, secrets.token_urlsafe(32), secrets.token_urlsafe(48))
            url = request.url(page, token_request)
            if listener is None:
                redirect = await self._call_redirect_handler(url)
            else:
                seconds = self._sign_in_seconds
                redirect = await listener.wait_for_redirect(url, request.state, self._open_browser, seconds)
        code = read_authorization_code(redirect, endpoint.auth_server, request.state)
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        form["code_verifier"] = request.verifier
        return await endpoint.request_tokens(client, form, token_request.scopes)

    async def _listener(self, stack: AsyncExitStack, known: RegisteredClient | None) -> RedirectListener:
        """A listener at the URI of the registration, if its port is free."""
        registered = None if known is None else known.redirect_uri
        if self._redirect_uri is None and registered is not None and registered.startswith("http://"):
            try:
                return await stack.enter_async_context(RedirectListener.opened(registered))
            except NotSignedIn:
                pass  # it registers again, with another port
        return await stack.enter_async_context(RedirectListener.opened(self._redirect_uri))

    async def _client(self, token_request: TokenRequest, redirect_uri: str) -> RegisteredClient:
        auth_server = token_request.endpoint.auth_server
        if self._id is not None:
            return self.user_client(self._id, auth_server)
        if self._document is not None and auth_server.metadata.client_id_metadata_document_supported:
            return RegisteredClient(self._document)
        known = token_request.client
        if known is not None and known.redirect_uri == redirect_uri and not known.is_expired(time.time()):
            return known
        native = is_loopback_host(urlsplit(redirect_uri).hostname or "")
        return await register(token_request.endpoint.http, auth_server, self._name, redirect_uri, native=native)

    async def _call_redirect_handler(self, url: str) -> str:
        assert self._redirect_handler is not None
        try:
            redirect = await call_maybe_async(self._redirect_handler, url)
        except DovetailError:
            raise
        except Exception:
            log.exception("redirect_handler= failed")
            raise NotSignedIn("redirect_handler= failed; the log says why") from None
        if not isinstance(redirect, str):
            raise SetupError("OAuth: redirect_handler must return the URL that the browser was sent back to")
        return redirect


class AuthorizationRequest(NamedTuple):
    """A request to the authorization endpoint; the verifier is secret."""

    client: RegisteredClient
    redirect_uri: str
    state: str
    verifier: str

    def __repr__(self) -> str:
        return "AuthorizationRequest()"

    def url(self, page: str, token_request: TokenRequest) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        endpoint = token_request.endpoint
        fields = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.redirect_uri,
            "state": self.state,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": S256,
            "resource": endpoint.auth_server.resource,
            **token_request.scope_field,
            **({} if endpoint.proofs is None else {"dpop_jkt": endpoint.proofs.key.id}),
            **({"prompt": "consent"} if "offline_access" in token_request.scopes else {}),  # OpenID Connect Core, 11
        }
        preset = dict(parse_qsl(urlsplit(page).query, keep_blank_values=True)).keys() & fields.keys()
        url = f"{page}{'&' if '?' in page else '?'}{urlencode(fields)}"
        if preset or len(url) > MAX_URL_CHARS:
            what = f"answers {min(preset)} itself" if preset else f"would need more than {MAX_URL_CHARS} characters"
            raise NotSignedIn(f"{shown(page)}, the page to sign in at, {what}; it is not opened")
        return url


def _check_redirect_uri(uri: str, *, handled: bool) -> None:
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
