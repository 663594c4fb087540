"""Tokens for one MCP server: obtained, refreshed and renewed once for all requests that wait for them.

A token that the server refuses though it is new is not asked for again and again.
"""

import asyncio
import base64
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, NamedTuple, TypedDict, Unpack
from urllib.parse import quote_plus
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from dovetail.auth.fetch import Fetched, plain, shown
from dovetail.auth.jose import require_library
from dovetail.client.auth import AUTHORIZATION, AuthChallenge, OutgoingRequest, is_token
from dovetail.client.oauth.dpop import ClientKey, DpopProofs
from dovetail.client.oauth.metadata import (
    BASIC,
    OFFLINE_ACCESS,
    POST,
    PRIVATE_KEY_JWT,
    PUBLIC,
    AuthorizationServer,
    ChallengeParams,
    ErrorResponse,
    OAuthHttp,
    TokenResponse,
    decode_as,
    discover,
    read_challenge_params,
    read_error,
)
from dovetail.client.oauth.storage import MemoryTokens, RegisteredClient, TokenSet, TokenStore
from dovetail.errors import NotSignedIn
from dovetail.protocol.scopes import checked_scopes, read_scopes
from dovetail.registry.options import checked_options

log = logging.getLogger("dovetail.client")


class PerLoopLock:
    """A lock for objects that outlive an event loop: each loop has one of its own."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def current(self) -> asyncio.Lock:
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
BUSY_STATUSES = frozenset({408, 425, 429})  # says nothing about the request
TRANSIENT_ERRORS = frozenset(
    {"", "server_error", "temporarily_unavailable"}
)  # nor does this; without a word it was a gateway


class TokenRefused(NotSignedIn):
    """The endpoint itself said no; `error` is the word that OAuth has for it."""

    def __init__(self, message: str, error: str) -> None:
        super().__init__(message)
        self.error = error


class TokenEndpoint(NamedTuple):
    """All that is needed to ask one authorization server for tokens for one MCP server."""

    http: OAuthHttp
    auth_server: AuthorizationServer
    key: ClientKey | None = None
    proofs: DpopProofs | None = None

    async def request_tokens(
        self, client: RegisteredClient, form: Mapping[str, str], scopes: tuple[str, ...]
    ) -> TokenSet:
        """`scopes`: what they were asked for, whether the form says so or not."""
        response = await self.post(client, {**form, "resource": self.auth_server.resource})
        return self._tokens(response, client, scopes)

    async def post(self, client: RegisteredClient, form: Mapping[str, str], url: str | None = None) -> TokenResponse:
        url = url or self.auth_server.metadata.token_endpoint
        proof, more = self._authenticate(client)
        for _ in range(2):
            proven = {} if self.proofs is None else self.proofs.header("POST", url)
            response = await self.http.post_form(url, {**form, **more}, {**proof, **proven})
            fresh = self.proofs is not None and self.proofs.remember_nonce(url, response.headers.get("dpop-nonce"))
            if response.status < 400 or not fresh or read_error(response)[0] != "use_dpop_nonce":
                break
        return _read_token_response(response, url)

    def _authenticate(self, client: RegisteredClient) -> tuple[dict[str, str], dict[str, str]]:
        """Headers and fields that say who is asking, and prove it."""
        if client.method == BASIC:
            pair = f"{quote_plus(client.id)}:{quote_plus(client.secret or '')}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}, {}
        if client.method == POST:
            return {}, {"client_id": client.id, "client_secret": client.secret or ""}
        if client.method == PRIVATE_KEY_JWT and self.key is not None:
            supported = self.auth_server.metadata.token_endpoint_auth_signing_alg_values_supported
            assertion = self.key.assertion(client.id, self.auth_server.issuer, supported)
            signed = {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}
            return {}, {"client_id": client.id, **signed}
        return {}, {"client_id": client.id}

    def _tokens(self, response: TokenResponse, client: RegisteredClient, scopes: tuple[str, ...]) -> TokenSet:
        token_request = "Bearer" if self.proofs is None else "DPoP"
        if response.token_type.lower() != token_request.lower():
            raise NotSignedIn(f"{shown(self.auth_server.issuer)} gave a token that is not of the type {token_request}")
        if not is_token(response.access_token):
            raise NotSignedIn(f"{shown(self.auth_server.issuer)} gave a token that no header can carry")
        return TokenSet(
            access_token=response.access_token,
            token_type=token_request,
            issuer=self.auth_server.issuer,
            client=client,
            requested=scopes,
            granted=scopes if response.scope is None else tuple(sorted(read_scopes(response.scope))),
            expires_at=_expires_at(response.expires_in),
            refresh_token=response.refresh_token or None,
            proof_key=None if self.proofs is None else self.proofs.key.jwk,
        )


def auth_method_for(auth_server: AuthorizationServer, *, secret: bool, key: bool) -> str:
    """How a program with these proves who it is, as far as the authorization server takes it."""
    if key:
        return PRIVATE_KEY_JWT
    if not secret:
        return PUBLIC
    supported = auth_server.metadata.token_endpoint_auth_methods_supported or (BASIC,)
    return next((each for each in (BASIC, POST) if each in supported), BASIC)


def _read_token_response(response: Fetched, url: str) -> TokenResponse:
    if response.status >= 500 or response.status in BUSY_STATUSES:
        raise NotSignedIn(f"{shown(url)} answered {response.status}; try again later")
    if response.status != 200 or decode_as(response.body, ErrorResponse) is not None:  # some servers refuse with 200
        error, words = read_error(response)
        if error in TRANSIENT_ERRORS:
            raise NotSignedIn(f"{shown(url)} gave no token: {words}; try again later")
        raise TokenRefused(f"{shown(url)} gave no token: {words}", error)
    found = decode_as(response.body, TokenResponse)
    if found is None:
        raise NotSignedIn(f"{shown(url)} answered with something that holds no token")
    return found


def _expires_at(seconds: float | str | None) -> float | None:
    try:
        lifetime = min(float(seconds or 0), 366 * 86_400.0)
    except ValueError:
        raise NotSignedIn(f"The token ends after {plain(str(seconds))!r} seconds, which is no number") from None
    if not lifetime > 0:
        return None
    return time.time() + lifetime - min(30.0, lifetime / 10)  # a little before its end


class TokenRequest(NamedTuple):
    """One try to get tokens."""

    endpoint: TokenEndpoint
    scopes: tuple[str, ...]
    client: RegisteredClient | None  # as this program is known there already, if it is

    @property
    def scope_field(self) -> dict[str, str]:
        return {"scope": " ".join(self.scopes)} if self.scopes else {}


class TokenSourceOptions(TypedDict, total=False):
    """What all ways to get tokens take."""

    private_key: str | bytes | Mapping[str, Any] | None  # PEM or JWK, by which a program proves who it is
    key_id: str | None
    scopes: Iterable[str]  # to ask for, besides what the server names
    issuer: str | None  # the only authorization server that may be asked
    tokens: TokenStore | None  # where they are kept
    dpop: bool  # bind tokens to a key


class TokenSource(ABC):
    """A way to get tokens, the same for every server; `OAuth`, `ClientCredentials` and the like.

    `key` is one by which a program proves who it is to the token endpoint.
    """

    interactive = False  # a person has to do something

    def __init__(self, **options: Unpack[TokenSourceOptions]) -> None:
        name = type(self).__name__
        checked_options(options, TokenSourceOptions.__optional_keys__, name, {})
        self.issuer = options.get("issuer")
        self.scopes = checked_scopes(options.get("scopes", ()), name)
        self.dpop = options.get("dpop", False)
        if self.dpop:
            require_library(f"{name}: dpop=True")
        key = options.get("private_key")
        self.key = None if key is None else ClientKey(key, key_id=options.get("key_id"), who=name)
        tokens = options.get("tokens")
        self.store: TokenStore = MemoryTokens() if tokens is None else tokens
        self.first_issuer = self.issuer  # else the one that a server named first
        self._servers: dict[str, ServerTokens] = {}

    def for_server(self, url: str) -> "ServerTokens":
        """Of all clients of one server: they share its tokens."""
        if url not in self._servers:
            self._servers[url] = ServerTokens(url, self)
        return self._servers[url]

    @property
    @abstractmethod
    def who(self) -> str:
        """Whose tokens these are, in the key of a store."""

    @property
    @abstractmethod
    def bound_to_issuer(self) -> bool:
        """Whether the user's own credentials belong to one issuer, and must not be shown to another."""

    @abstractmethod
    def with_secret(self, client: RegisteredClient) -> RegisteredClient:
        """As it was kept, with the secrets that only the user keeps."""

    @abstractmethod
    async def obtain(self, token_request: TokenRequest) -> TokenSet:
        """Raises NotSignedIn."""


RETRY_WINDOW = 60.0  # seconds in which nothing is tried twice that did not help
CLIENT_REJECTED_ERRORS = frozenset({"invalid_client", "unauthorized_client"})  # the program is not known any more


class ServerTokens:
    """Credentials for one server, from one source."""

    discovery_timeout = 20.0

    def __init__(self, url: str, source: TokenSource) -> None:
        self._url = url
        self._source = source
        self._key = f"{url} {source.who}"
        self._issuer = source.issuer  # as the user says, else as the server said first
        self._lock = PerLoopLock()  # of whoever does something for a token
        self._is_loaded = False
        self._tokens: TokenSet | None = None
        self._client: RegisteredClient | None = None  # as the issuer knew it a moment ago
        self._http: OAuthHttp | None = None
        self._auth_server: AuthorizationServer | None = None
        self._proofs: DpopProofs | None = None
        self._tried: dict[str, float] = {}  # when something was last done
        self._stepped_up: set[frozenset[str]] = set()  # scopes that are not asked for again
        self._obtained: deque[float] = deque(maxlen=5 if source.interactive else 30)  # when, within a minute
        self._failures = 0  # so often nothing came of it
        self._last_failure = ""  # the last time

    @property
    def identity(self) -> str:
        """Changes with the token: clients that share it must not keep what was said to another one."""
        return "" if self._tokens is None else self._tokens.authorization

    # ── a request goes out ──

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        if not self._is_loaded:
            async with self._locked(request):
                await self._load()
        tokens = self._tokens
        if tokens is not None and self._auth_server is not None and tokens.is_expired(time.time()):
            async with self._locked(request):
                if self._tokens is tokens:
                    await self._renew(request, self._auth_server, tokens)
        tokens = self._tokens
        if tokens is None:
            return {}
        proof = {}
        if self._proofs is not None:
            proof = self._proofs.header(request.method, request.url, tokens.access_token)
        # Even if the token is over: without one, somebody who is known could be taken for a stranger.
        return {AUTHORIZATION: tokens.authorization, **proof}

    @asynccontextmanager
    async def _locked(self, request: OutgoingRequest) -> AsyncIterator[None]:
        """Inside, only we do something for a token. Who waits for that may be waiting for a person."""
        lock = self._lock.current()
        with self._paused(request):
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _paused(self, request: OutgoingRequest) -> AbstractContextManager[None]:
        """Time limits are for machines."""
        return request.pause_timeouts() if self._source.interactive else nullcontext()

    async def _renew(self, request: OutgoingRequest, auth_server: AuthorizationServer, tokens: TokenSet) -> None:
        """Before the server has to ask for it, where nobody has to do anything for it. It need not succeed."""
        try:
            if tokens.refresh_token:
                await self._refresh(auth_server, tokens)
            elif not self._source.interactive:
                await self._obtain(request, auth_server, tokens.requested)
        except NotSignedIn as failure:
            log.info("the token is not renewed yet: %s", failure)

    # ── and is refused ──

    async def refused(self, request: OutgoingRequest, challenge: AuthChallenge) -> bool:
        params = read_challenge_params(
            challenge.challenges, ("dpop", "bearer") if self._source.dpop else ("bearer", "dpop")
        )
        if self._proofs is not None and challenge.sent_headers:
            has_nonce = self._proofs.remember_nonce(request.url, challenge.nonce)
            if params.error == "use_dpop_nonce":
                return has_nonce
        if challenge.status == 403 and params.error != "insufficient_scope":
            return False
        failures = self._failures
        async with self._locked(request):
            if self._failures > failures:
                raise NotSignedIn(self._last_failure)  # which is what we have waited for
            if self._tokens is not None and self._tokens.authorization != challenge.sent_headers.get(AUTHORIZATION):
                return True  # somebody else has seen to it
            try:
                return await self._sign_in(request, challenge, params)
            except NotSignedIn as failure:
                self._failures += 1
                self._last_failure = str(failure)
                raise

    async def _sign_in(self, request: OutgoingRequest, challenge: AuthChallenge, params: ChallengeParams) -> bool:
        tokens = self._tokens
        if challenge.status == 403 and tokens is not None:
            return await self._step_up(request, challenge, params, tokens)
        auth_server = await self._discover(params, challenge.in_private_network)
        tokens = self._tokens
        is_new = tokens is not None and not tokens.is_expired(time.time())
        if tokens is not None and tokens.refresh_token and not (is_new and self._tried_recently("refresh")):
            if await self._refresh(auth_server, tokens):
                return True
        elif await self._adopt_stored(auth_server, tokens):
            return True
        if self._source.interactive and not request.may_sign_in:
            return False
        if self._tokens is not None and is_new and self._tried_recently("sign in"):
            raise NotSignedIn(
                f"{shown(self._url)} refuses the token that {shown(auth_server.issuer)} has just given for it; "
                "whoever runs the server should know why"
            )
        await self._obtain(request, auth_server, self._scopes(auth_server, params, tokens))
        return True

    async def _step_up(
        self, request: OutgoingRequest, challenge: AuthChallenge, params: ChallengeParams, tokens: TokenSet
    ) -> bool:
        """More scopes, unless they are there, or were asked for before."""
        union = frozenset(tokens.requested).union(tokens.granted, params.scopes)
        if params.scopes <= set(tokens.granted) or union in self._stepped_up:
            return False
        if self._source.interactive and not request.may_sign_in:
            return False
        auth_server = self._auth_server or await self._discover(params, challenge.in_private_network)
        await self._obtain(request, auth_server, tuple(sorted(union)))
        self._stepped_up.add(union)
        return True

    # ── what is known ──

    async def _load(self) -> None:
        if not self._is_loaded:
            stored = await self._load_stored(self._known_issuer)
            if stored is not None:
                self._use(stored)
                self._remember(stored.issuer)
            self._is_loaded = True

    @property
    def _known_issuer(self) -> str | None:
        """What belongs to one issuer does so for all servers."""
        return self._source.first_issuer if self._source.bound_to_issuer else self._issuer

    def _remember(self, issuer: str) -> None:
        self._issuer = self._source.first_issuer = issuer

    def _use(self, tokens: TokenSet) -> None:
        self._tokens, self._client = tokens, tokens.client
        if self._source.dpop:
            jwk = tokens.proof_key
            if self._proofs is None or self._proofs.key.jwk != jwk:
                self._proofs = DpopProofs(jwk)

    async def _load_stored(self, issuer: str | None) -> TokenSet | None:
        """What the store has of this issuer, or of any."""
        stored = await self._source.store.load(self._key)
        is_ours = stored is not None and issuer in (None, stored.issuer)
        return stored if stored is not None and is_ours and (stored.token_type == "DPoP") == self._source.dpop else None

    async def _adopt_stored(self, auth_server: AuthorizationServer, tokens: TokenSet | None) -> bool:
        """What another process has got meanwhile."""
        stored = await self._load_stored(auth_server.issuer)
        is_known = tokens is not None and stored is not None and stored.access_token == tokens.access_token
        if stored is None or is_known or stored.is_expired(time.time()):
            return False
        self._use(stored)
        return True

    async def _store(self, tokens: TokenSet) -> None:
        self._use(tokens)
        if self._source.bound_to_issuer:  # its secret is the user's, who keeps it elsewhere
            tokens = replace(tokens, client=replace(tokens.client, secret=None))
        await self._save(tokens)

    async def _save(self, tokens: TokenSet | None) -> None:
        """What can't be kept is good as long as this program runs."""
        try:
            await self._source.store.save(self._key, tokens)
        except NotSignedIn as failure:
            log.warning("you will have to sign in again next time: %s", failure)

    # ── what is done ──

    async def _discover(self, params: ChallengeParams, allow_private: bool) -> AuthorizationServer:
        required_issuer = self._source.issuer
        http = OAuthHttp(self._url, allow_private=allow_private)
        issuer_http = (
            http if required_issuer is None else OAuthHttp(self._url, allow_private=True)
        )  # the user has written it down
        try:
            async with asyncio.timeout(self.discovery_timeout):
                auth_server = await discover(
                    http,
                    self._url,
                    params.resource_metadata,
                    required_issuer=required_issuer,
                    preferred_issuer=self._known_issuer,
                    issuer_http=issuer_http,
                )
        except TimeoutError:
            raise NotSignedIn(f"{shown(self._url)}: where its tokens come from was not to be found in time") from None
        preferred_issuer = self._known_issuer  # by now; another server may have been quicker
        if preferred_issuer is not None and preferred_issuer != auth_server.issuer:
            if self._source.bound_to_issuer:
                raise NotSignedIn(
                    f"{shown(self._url)} takes tokens of {shown(auth_server.issuer)}; what this program has is for "
                    f"{shown(preferred_issuer)}, and is not shown to others"
                )
            self._tokens = self._client = None
            self._tried.clear()
            self._stepped_up.clear()
        self._remember(auth_server.issuer)
        self._auth_server, self._http = auth_server, issuer_http
        return auth_server

    def _endpoint(self, auth_server: AuthorizationServer) -> TokenEndpoint:
        if self._source.dpop and self._proofs is None:
            self._proofs = DpopProofs()
        assert self._http is not None
        return TokenEndpoint(self._http, auth_server, self._source.key, self._proofs)

    async def _refresh(self, auth_server: AuthorizationServer, tokens: TokenSet) -> bool:
        """Whoever stops waiting meanwhile must not lose what came of it: the old refresh token is used up."""
        task = asyncio.create_task(self._refresh_locked(auth_server, tokens))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=3.0)
            task.cancel()
            raise

    async def _refresh_locked(self, auth_server: AuthorizationServer, tokens: TokenSet) -> bool:
        """Whether there is a good token now. One that can't be refreshed is forgotten."""
        async with self._store_lock():
            if await self._adopt_stored(auth_server, tokens):
                return True
            stored = await self._load_stored(auth_server.issuer)
            if stored is not None and stored.refresh_token:
                tokens = stored  # another process may have used up ours
                self._use(stored)
            client = self._source.with_secret(tokens.client)
            form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token or ""}
            try:
                fresh = await self._endpoint(auth_server).request_tokens(client, form, tokens.granted)
            except TokenRefused as refused:
                log.info("a sign-in has ended: %s", refused)
                self._tokens = None
                self._client = None if refused.error in CLIENT_REJECTED_ERRORS else client
                await self._save(None)
                return False
            self._tried["refresh"] = time.monotonic()
            rotated = fresh.refresh_token or tokens.refresh_token  # what is left out stays as it was
            await self._store(replace(fresh, refresh_token=rotated, requested=tokens.requested))
            return True

    @asynccontextmanager
    async def _store_lock(self) -> AsyncIterator[None]:
        """Without others who use the same refresh token, if the store can see to that."""
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self._source.store.exclusive(self._key))
            except NotSignedIn as failure:
                log.warning("other programs may use the same tokens: %s", failure)
            yield

    async def _obtain(
        self, request: OutgoingRequest, auth_server: AuthorizationServer, scopes: tuple[str, ...]
    ) -> None:
        now = time.monotonic()
        if len(self._obtained) == self._obtained.maxlen and now - self._obtained[0] < RETRY_WINDOW:
            often = f"{len(self._obtained)} new tokens within {RETRY_WINDOW:g} s, which is too often"
            raise NotSignedIn(f"{shown(self._url)} has wanted {often}")
        self._obtained.append(now)
        token_request = TokenRequest(self._endpoint(auth_server), scopes, self._client)
        try:
            with self._paused(request):
                tokens = await self._source.obtain(token_request)
        except NotSignedIn:
            self._client = None  # which may be why
            raise
        self._tried["sign in"] = time.monotonic()
        self._tried.pop("refresh", None)
        await self._store(tokens)

    def _scopes(
        self, auth_server: AuthorizationServer, params: ChallengeParams, tokens: TokenSet | None
    ) -> tuple[str, ...]:
        """What the challenge names, else what the server does; with what the user wants, and had before."""
        named = params.scopes or self._source.scopes or read_scopes(list(auth_server.scopes or ()))
        token_request = named | self._source.scopes | frozenset(() if tokens is None else tokens.requested)
        offered = auth_server.metadata.scopes_supported or ()
        if token_request and self._source.interactive and OFFLINE_ACCESS in offered:
            token_request |= {OFFLINE_ACCESS}
        return tuple(sorted(token_request))

    def _tried_recently(self, what: str) -> bool:
        return time.monotonic() - self._tried.get(what, -RETRY_WINDOW) < RETRY_WINDOW
