"""Tokens for one MCP server: obtained and refreshed once for all requests that wait for them."""

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
    OFFLINE_ACCESS,
    PRIVATE_KEY_JWT,
    PUBLIC,
    SECRET_BASIC,
    SECRET_POST,
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
from dovetail.client.oauth.storage import MemoryTokens, RegisteredClient, Scopes, TokenSet, TokenStore
from dovetail.errors import NotSignedIn
from dovetail.protocol.scopes import checked_scopes, read_scopes
from dovetail.registry.registration import checked_options

log = logging.getLogger("dovetail.client")


class PerLoopLock:
    """A lock for objects that outlive an event loop: each loop has its own."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def current(self) -> asyncio.Lock:
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
BUSY_STATUSES = frozenset({408, 425, 429})
TRANSIENT_ERRORS = frozenset({"", "server_error", "temporarily_unavailable"})  # without a code: of a gateway


class TokenRefused(NotSignedIn):
    """The token endpoint refused; `error` is OAuth's error code."""

    def __init__(self, message: str, error: str) -> None:
        super().__init__(message)
        self.error = error


class TokenEndpoint(NamedTuple):
    """The token endpoint for one MCP server, with the keys of this client."""

    http: OAuthHttp
    auth_server: AuthorizationServer
    key: ClientKey | None = None
    proofs: DpopProofs | None = None

    async def request_tokens(self, client: RegisteredClient, form: Mapping[str, str], scopes: Scopes) -> TokenSet:
        """Request tokens. `scopes` are those of the tokens, whether the form repeats them or not."""
        issuer, token_type = self.auth_server.issuer, "Bearer" if self.proofs is None else "DPoP"
        response = await self.post(client, {**form, "resource": self.auth_server.resource})
        if response.token_type.lower() != token_type.lower():
            raise NotSignedIn(f"{shown(issuer)} gave a token that is not of the type {token_type}")
        if not is_token(response.access_token):
            raise NotSignedIn(f"{shown(issuer)} gave a token that no header can carry")
        return TokenSet(
            access_token=response.access_token,
            token_type=token_type,
            issuer=issuer,
            client=client,
            requested=scopes,
            granted=scopes if response.scope is None else tuple(sorted(read_scopes(response.scope))),
            expires_at=_expires_at(response.expires_in),
            refresh_token=response.refresh_token or None,
            proof_key=None if self.proofs is None else self.proofs.key.jwk,
        )

    async def post(self, client: RegisteredClient, form: Mapping[str, str], url: str | None = None) -> TokenResponse:
        url = url or self.auth_server.metadata.token_endpoint
        headers, fields = self._authenticate(client)
        for _ in range(2):
            proof = {} if self.proofs is None else self.proofs.header("POST", url)
            response = await self.http.post_form(url, {**form, **fields}, {**headers, **proof})
            has_nonce = self.proofs is not None and self.proofs.remember_nonce(url, response.headers.get("dpop-nonce"))
            if response.status < 400 or not has_nonce or read_error(response)[0] != "use_dpop_nonce":
                break
        return _read_token_response(response, url)

    def _authenticate(self, client: RegisteredClient) -> tuple[dict[str, str], dict[str, str]]:
        """Headers and form fields that authenticate the client."""
        if client.method == SECRET_BASIC:
            pair = f"{quote_plus(client.id)}:{quote_plus(client.secret or '')}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}, {}
        if client.method == SECRET_POST:
            return {}, {"client_id": client.id, "client_secret": client.secret or ""}
        if client.method == PRIVATE_KEY_JWT and self.key is not None:
            supported = self.auth_server.metadata.token_endpoint_auth_signing_alg_values_supported
            assertion = self.key.assertion(client.id, self.auth_server.issuer, supported)
            signed = {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}
            return {}, {"client_id": client.id, **signed}
        return {}, {"client_id": client.id}


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
    return time.time() + lifetime - min(30.0, lifetime / 10)  # early, so that it does not expire on the way


class TokenRequest(NamedTuple):
    endpoint: TokenEndpoint
    scopes: Scopes
    client: RegisteredClient | None  # from an earlier registration

    @property
    def scope_field(self) -> dict[str, str]:
        return {"scope": " ".join(self.scopes)} if self.scopes else {}


class TokenSourceOptions(TypedDict, total=False):
    private_key: str | bytes | Mapping[str, Any] | None  # PEM or JWK, for client authentication
    key_id: str | None
    scopes: Iterable[str]  # to request, besides those that the server names
    issuer: str | None  # the only authorization server that is used
    tokens: TokenStore | None
    dpop: bool  # bind tokens to a key


class TokenSource(ABC):
    """A way to get tokens for any server: `OAuth`, `ClientCredentials` and the like."""

    interactive = False  # the user has to sign in

    def __init__(self, client_id: str | None, client_secret: str | None, **options: Unpack[TokenSourceOptions]) -> None:
        self._id, self._secret = client_id, client_secret
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
        self.first_issuer = self.issuer  # else that of the first server
        self._servers: dict[str, ServerTokens] = {}

    def for_server(self, url: str) -> "ServerTokens":
        if url not in self._servers:
            self._servers[url] = ServerTokens(url, self)
        return self._servers[url]

    @property
    @abstractmethod
    def store_name(self) -> str:
        """A part of the key in the token store."""

    @property
    def bound_to_issuer(self) -> bool:
        """Whether the user's secrets belong to one issuer, and must not be sent to another."""
        return self._secret is not None or self.key is not None

    def with_secret(self, client: RegisteredClient) -> RegisteredClient:
        """A stored client with the user's secret, which is not stored."""
        if self._id is None or client.id != self._id:
            return client
        return RegisteredClient(client.id, self._secret, client.method, client.redirect_uri)

    def user_client(self, id: str, auth_server: AuthorizationServer) -> RegisteredClient:
        """The client that the user has registered, with a method of client authentication for its secret or key."""
        method = PUBLIC if self.key is None else PRIVATE_KEY_JWT
        if self._secret is not None and self.key is None:
            supported = auth_server.metadata.token_endpoint_auth_methods_supported or (SECRET_BASIC,)
            method = next((each for each in (SECRET_BASIC, SECRET_POST) if each in supported), SECRET_BASIC)
        return RegisteredClient(id, self._secret, method)

    @abstractmethod
    async def obtain(self, token_request: TokenRequest) -> TokenSet:
        """Obtain tokens. Raises NotSignedIn."""


RETRY_WINDOW = 60.0  # seconds in which a refresh or a sign-in that did not help is not repeated
CLIENT_REJECTED_ERRORS = frozenset({"invalid_client", "unauthorized_client"})


class ServerTokens:
    """Credentials for one server, from one source."""

    discovery_timeout = 20.0  # seconds

    def __init__(self, url: str, source: TokenSource) -> None:
        self._url = url
        self._source = source
        self._key = f"{url} {source.store_name}"
        self._issuer = source.issuer  # else that of the last discovery
        self._lock = PerLoopLock()  # held while tokens are obtained
        self._is_loaded = False
        self._tokens: TokenSet | None = None
        self._client: RegisteredClient | None = None
        self._http: OAuthHttp | None = None
        self._auth_server: AuthorizationServer | None = None
        self._proofs: DpopProofs | None = None
        self._tried: dict[str, float] = {}  # the time of the last refresh and sign-in
        self._stepped_up: set[frozenset[str]] = set()  # scopes that are not requested again
        self._obtained: deque[float] = deque(maxlen=5 if source.interactive else 30)  # times
        self._failures = 0
        self._last_failure = ""

    @property
    def identity(self) -> str:
        """The identity changes with the token, so that cached responses to another caller are not used."""
        return "" if self._tokens is None else self._tokens.authorization

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
        proofs = self._proofs
        proof = {} if proofs is None else proofs.header(request.method, request.url, tokens.access_token)
        # Also an expired token: without any, a known caller could be served as an anonymous one.
        return {AUTHORIZATION: tokens.authorization, **proof}

    @asynccontextmanager
    async def _locked(self, request: OutgoingRequest) -> AsyncIterator[None]:
        """Hold the lock. The timeouts of requests that wait for it are paused, as another one may wait for the user."""
        lock = self._lock.current()
        with self._paused(request):
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _paused(self, request: OutgoingRequest) -> AbstractContextManager[None]:
        return request.pause_timeouts() if self._source.interactive else nullcontext()

    async def _renew(self, request: OutgoingRequest, auth_server: AuthorizationServer, tokens: TokenSet) -> None:
        """Renew a token before the server refuses it, if that needs no sign-in; a failure is ignored."""
        try:
            if tokens.refresh_token:
                await self._refresh(auth_server, tokens)
            elif not self._source.interactive:
                await self._obtain(request, auth_server, tokens.requested)
        except NotSignedIn as failure:
            log.info("the token is not renewed yet: %s", failure)

    async def refused(self, request: OutgoingRequest, challenge: AuthChallenge) -> bool:
        schemes = ("dpop", "bearer") if self._source.dpop else ("bearer", "dpop")
        params = read_challenge_params(challenge.challenges, schemes)
        if self._proofs is not None and challenge.sent_headers:
            has_nonce = self._proofs.remember_nonce(request.url, challenge.nonce)
            if params.error == "use_dpop_nonce":
                return has_nonce
        if challenge.status == 403 and params.error != "insufficient_scope":
            return False
        failures = self._failures
        async with self._locked(request):
            if self._failures > failures:
                raise NotSignedIn(self._last_failure)  # of the request that held the lock
            if self._tokens is not None and self._tokens.authorization != challenge.sent_headers.get(AUTHORIZATION):
                return True  # another request has got new tokens
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
            given = f"{shown(self._url)} refuses the token that {shown(auth_server.issuer)} has just given for it"
            raise NotSignedIn(f"{given}; its operator should know why")
        await self._obtain(request, auth_server, self._scopes(auth_server, params, tokens))
        return True

    async def _step_up(
        self, request: OutgoingRequest, challenge: AuthChallenge, params: ChallengeParams, tokens: TokenSet
    ) -> bool:
        """Obtain a token with more scopes, unless it has them or they were requested before."""
        union = frozenset(tokens.requested).union(tokens.granted, params.scopes)
        if params.scopes <= set(tokens.granted) or union in self._stepped_up:
            return False
        if self._source.interactive and not request.may_sign_in:
            return False
        auth_server = self._auth_server or await self._discover(params, challenge.in_private_network)
        await self._obtain(request, auth_server, tuple(sorted(union)))
        self._stepped_up.add(union)
        return True

    async def _load(self) -> None:
        if not self._is_loaded:
            stored = await self._load_stored(self._known_issuer)
            if stored is not None:
                self._use(stored)
                self._issuer = self._source.first_issuer = stored.issuer
            self._is_loaded = True

    @property
    def _known_issuer(self) -> str | None:
        """The issuer of the credentials; if they are bound to one, it is the same for all servers."""
        return self._source.first_issuer if self._source.bound_to_issuer else self._issuer

    def _use(self, tokens: TokenSet) -> None:
        self._tokens, self._client = tokens, tokens.client
        jwk = tokens.proof_key
        if self._source.dpop and (self._proofs is None or self._proofs.key.jwk != jwk):
            self._proofs = DpopProofs(jwk)

    async def _load_stored(self, issuer: str | None) -> TokenSet | None:
        """The stored tokens, if they are of this issuer; None stands for any."""
        stored = await self._source.store.load(self._key)
        if stored is None or issuer not in (None, stored.issuer):
            return None
        return stored if (stored.token_type == "DPoP") == self._source.dpop else None

    async def _adopt_stored(self, auth_server: AuthorizationServer, tokens: TokenSet | None) -> bool:
        """Use tokens that another process has obtained meanwhile."""
        stored = await self._load_stored(auth_server.issuer)
        is_known = tokens is not None and stored is not None and stored.access_token == tokens.access_token
        if stored is None or is_known or stored.is_expired(time.time()):
            return False
        self._use(stored)
        return True

    async def _save(self, tokens: TokenSet | None) -> None:
        """Store the tokens. If that fails they are used as long as this program runs."""
        if tokens is not None and self._source.bound_to_issuer:  # the user's own secret is not stored
            tokens = replace(tokens, client=replace(tokens.client, secret=None))
        try:
            await self._source.store.save(self._key, tokens)
        except NotSignedIn as failure:
            log.warning("you will have to sign in again next time: %s", failure)

    async def _discover(self, params: ChallengeParams, allow_private: bool) -> AuthorizationServer:
        required, preferred = self._source.issuer, self._known_issuer
        http = OAuthHttp(self._url, allow_private=allow_private)
        # The user has named the required issuer, so it may be in a private network.
        issuer_http = http if required is None else OAuthHttp(self._url, allow_private=True)
        try:
            async with asyncio.timeout(self.discovery_timeout):
                auth_server = await discover(
                    http, issuer_http, self._url, params.resource_metadata, required=required, preferred=preferred
                )
        except TimeoutError:
            raise NotSignedIn(f"{shown(self._url)}: its authorization server was not found in time") from None
        known = self._known_issuer  # another server may have set it meanwhile
        if known is not None and known != auth_server.issuer:
            if self._source.bound_to_issuer:
                takes = f"{shown(self._url)} takes tokens of {shown(auth_server.issuer)}"
                raise NotSignedIn(f"{takes}; what this program has is for {shown(known)}, and is not shown to others")
            self._tokens = self._client = None
            self._tried.clear()
            self._stepped_up.clear()
        self._issuer = self._source.first_issuer = auth_server.issuer
        self._auth_server, self._http = auth_server, issuer_http
        return auth_server

    def _endpoint(self, auth_server: AuthorizationServer) -> TokenEndpoint:
        if self._source.dpop and self._proofs is None:
            self._proofs = DpopProofs()
        assert self._http is not None
        return TokenEndpoint(self._http, auth_server, self._source.key, self._proofs)

    async def _refresh(self, auth_server: AuthorizationServer, tokens: TokenSet) -> bool:
        """Refresh the tokens. A cancelled request must not lose the new ones: the old refresh token is used up."""
        task = asyncio.create_task(self._refresh_locked(auth_server, tokens))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=3.0)
            task.cancel()
            raise

    async def _refresh_locked(self, auth_server: AuthorizationServer, tokens: TokenSet) -> bool:
        """Refresh the tokens; returns whether there is a valid one now. Tokens that can't be refreshed are dropped."""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._source.store.exclusive(self._key))
            except NotSignedIn as failure:
                log.warning("other programs may use the same tokens: %s", failure)
            if await self._adopt_stored(auth_server, tokens):
                return True
            stored = await self._load_stored(auth_server.issuer)
            if stored is not None and stored.refresh_token:
                tokens = stored  # another process may have used up our refresh token
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
            rotated = fresh.refresh_token or tokens.refresh_token  # not every response has a new one
            fresh = replace(fresh, refresh_token=rotated, requested=tokens.requested)
            self._use(fresh)
            await self._save(fresh)
            return True

    async def _obtain(self, request: OutgoingRequest, auth_server: AuthorizationServer, scopes: Scopes) -> None:
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
            self._client = None  # the registration may be the reason
            raise
        self._tried["sign in"] = time.monotonic()
        self._tried.pop("refresh", None)
        self._use(tokens)
        await self._save(tokens)

    def _scopes(self, auth_server: AuthorizationServer, params: ChallengeParams, tokens: TokenSet | None) -> Scopes:
        """The scopes of the challenge, else the user's, else the metadata's; with the user's and earlier ones."""
        named = params.scopes or self._source.scopes or read_scopes(list(auth_server.scopes or ()))
        scopes = named | self._source.scopes | frozenset(() if tokens is None else tokens.requested)
        offered = auth_server.metadata.scopes_supported or ()
        if scopes and self._source.interactive and OFFLINE_ACCESS in offered:
            scopes |= {OFFLINE_ACCESS}
        return tuple(sorted(scopes))

    def _tried_recently(self, action: str) -> bool:
        return time.monotonic() - self._tried.get(action, -RETRY_WINDOW) < RETRY_WINDOW
