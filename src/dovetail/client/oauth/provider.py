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
from dovetail.client.auth import AUTHORIZATION, Challenged, Sending, is_token
from dovetail.client.oauth.dpop import ClientKey, DpopProofs
from dovetail.client.oauth.metadata import (
    BASIC,
    OFFLINE_ACCESS,
    POST,
    PUBLIC,
    SIGNED,
    OAuthProblem,
    OAuthWeb,
    Provider,
    TokenAnswer,
    Told,
    discover,
    problem_in,
    read_as,
    read_told,
)
from dovetail.client.oauth.storage import MemoryTokens, RegisteredClient, TokenSet, TokenStore
from dovetail.errors import NotSignedIn
from dovetail.protocol.scopes import checked_scopes, read_scopes
from dovetail.registry.registration import checked_options

log = logging.getLogger("dovetail.client")


class LoopLock:
    """A lock for objects that outlive an event loop: each loop has one of its own."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def here(self) -> asyncio.Lock:
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
BUSY = frozenset({408, 425, 429})  # says nothing about the request
LATER = frozenset({"", "server_error", "temporarily_unavailable"})  # nor does this; without a word it was a gateway


class TokenRefused(NotSignedIn):
    """The endpoint itself said no; `error` is the word that OAuth has for it."""

    def __init__(self, message: str, error: str) -> None:
        super().__init__(message)
        self.error = error


class TokenEndpoint(NamedTuple):
    """All that is needed to ask one authorization server for tokens for one MCP server."""

    web: OAuthWeb
    provider: Provider
    key: ClientKey | None = None
    proving: DpopProofs | None = None

    async def ask(self, client: RegisteredClient, form: Mapping[str, str], scopes: tuple[str, ...]) -> TokenSet:
        """`scopes`: what they were asked for, whether the form says so or not."""
        answer = await self.answer(client, {**form, "resource": self.provider.resource})
        return self._tokens(answer, client, scopes)

    async def answer(self, client: RegisteredClient, form: Mapping[str, str], url: str | None = None) -> TokenAnswer:
        url = url or self.provider.metadata.token_endpoint
        proof, more = self._identified(client)
        for _ in range(2):
            proven = {} if self.proving is None else self.proving.header("POST", url)
            answer = await self.web.post_form(url, {**form, **more}, {**proof, **proven})
            fresh = self.proving is not None and self.proving.learn(url, answer.headers.get("dpop-nonce"))
            if answer.status < 400 or not fresh or problem_in(answer)[0] != "use_dpop_nonce":
                break
        return _read_answer(answer, url)

    def _identified(self, client: RegisteredClient) -> tuple[dict[str, str], dict[str, str]]:
        """Headers and fields that say who is asking, and prove it."""
        if client.method == BASIC:
            pair = f"{quote_plus(client.id)}:{quote_plus(client.secret or '')}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}, {}
        if client.method == POST:
            return {}, {"client_id": client.id, "client_secret": client.secret or ""}
        if client.method == SIGNED and self.key is not None:
            supported = self.provider.metadata.token_endpoint_auth_signing_alg_values_supported
            assertion = self.key.assertion(client.id, self.provider.issuer, supported)
            signed = {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}
            return {}, {"client_id": client.id, **signed}
        return {}, {"client_id": client.id}

    def _tokens(self, answer: TokenAnswer, client: RegisteredClient, scopes: tuple[str, ...]) -> TokenSet:
        wanted = "Bearer" if self.proving is None else "DPoP"
        if answer.token_type.lower() != wanted.lower():
            raise NotSignedIn(f"{shown(self.provider.issuer)} gave a token that is not of the type {wanted}")
        if not is_token(answer.access_token):
            raise NotSignedIn(f"{shown(self.provider.issuer)} gave a token that no header can carry")
        return TokenSet(
            access_token=answer.access_token,
            token_type=wanted,
            issuer=self.provider.issuer,
            client=client,
            requested=scopes,
            granted=scopes if answer.scope is None else tuple(sorted(read_scopes(answer.scope))),
            expires_at=_expiry(answer.expires_in),
            refresh_token=answer.refresh_token or None,
            proof_key=None if self.proving is None else self.proving.key.jwk,
        )


def method_for(provider: Provider, *, secret: bool, key: bool) -> str:
    """How a program with these proves who it is, as far as the authorization server takes it."""
    if key:
        return SIGNED
    if not secret:
        return PUBLIC
    supported = provider.metadata.token_endpoint_auth_methods_supported or (BASIC,)
    return next((each for each in (BASIC, POST) if each in supported), BASIC)


def _read_answer(answer: Fetched, url: str) -> TokenAnswer:
    if answer.status >= 500 or answer.status in BUSY:
        raise NotSignedIn(f"{shown(url)} answered {answer.status}; try again later")
    if answer.status != 200 or read_as(answer.body, OAuthProblem) is not None:  # some servers refuse with 200
        error, words = problem_in(answer)
        if error in LATER:
            raise NotSignedIn(f"{shown(url)} gave no token: {words}; try again later")
        raise TokenRefused(f"{shown(url)} gave no token: {words}", error)
    found = read_as(answer.body, TokenAnswer)
    if found is None:
        raise NotSignedIn(f"{shown(url)} answered with something that holds no token")
    return found


def _expiry(seconds: float | str | None) -> float | None:
    try:
        lasts = min(float(seconds or 0), 366 * 86_400.0)
    except ValueError:
        raise NotSignedIn(f"The token ends after {plain(str(seconds))!r} seconds, which is no number") from None
    if not lasts > 0:
        return None
    return time.time() + lasts - min(30.0, lasts / 10)  # a little before its end


class TokenRequest(NamedTuple):
    """One try to get tokens."""

    endpoint: TokenEndpoint
    scopes: tuple[str, ...]
    client: RegisteredClient | None  # as this program is known there already, if it is

    @property
    def scope_field(self) -> dict[str, str]:
        return {"scope": " ".join(self.scopes)} if self.scopes else {}


class SourceOptions(TypedDict, total=False):
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

    def __init__(self, **options: Unpack[SourceOptions]) -> None:
        name = type(self).__name__
        checked_options(options, SourceOptions.__optional_keys__, name, {})
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
    def completed(self, client: RegisteredClient) -> RegisteredClient:
        """As it was kept, with the secrets that only the user keeps."""

    @abstractmethod
    async def obtain(self, wanted: TokenRequest) -> TokenSet:
        """Raises NotSignedIn."""


SOON = 60.0  # seconds in which nothing is tried twice that did not help
FORGOTTEN = frozenset({"invalid_client", "unauthorized_client"})  # the program is not known any more


class ServerTokens:
    """Credentials for one server, from one source."""

    discovery_seconds = 20.0

    def __init__(self, url: str, source: TokenSource) -> None:
        self._url = url
        self._source = source
        self._key = f"{url} {source.who}"
        self._issuer = source.issuer  # as the user says, else as the server said first
        self._lock = LoopLock()  # of whoever does something for a token
        self._is_loaded = False
        self._tokens: TokenSet | None = None
        self._client: RegisteredClient | None = None  # as the issuer knew it a moment ago
        self._web: OAuthWeb | None = None
        self._provider: Provider | None = None
        self._proving: DpopProofs | None = None
        self._tried: dict[str, float] = {}  # when something was last done
        self._stepped: set[frozenset[str]] = set()  # scopes that are not asked for again
        self._obtained: deque[float] = deque(maxlen=5 if source.interactive else 30)  # when, within a minute
        self._failures = 0  # so often nothing came of it
        self._why = ""  # the last time

    @property
    def identity(self) -> str:
        """Changes with the token: clients that share it must not keep what was said to another one."""
        return "" if self._tokens is None else self._tokens.authorization

    # ── a request goes out ──

    async def headers(self, request: Sending) -> Mapping[str, str]:
        if not self._is_loaded:
            async with self._turn(request):
                await self._load()
        tokens = self._tokens
        if tokens is not None and self._provider is not None and tokens.is_over(time.time()):
            async with self._turn(request):
                if self._tokens is tokens:
                    await self._renew(request, self._provider, tokens)
        tokens = self._tokens
        if tokens is None:
            return {}
        proof = {}
        if self._proving is not None:
            proof = self._proving.header(request.method, request.url, tokens.access_token)
        # Even if the token is over: without one, somebody who is known could be taken for a stranger.
        return {AUTHORIZATION: tokens.authorization, **proof}

    @asynccontextmanager
    async def _turn(self, request: Sending) -> AsyncIterator[None]:
        """Inside, only we do something for a token. Who waits for that may be waiting for a person."""
        lock = self._lock.here()
        with self._paused(request):
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _paused(self, request: Sending) -> AbstractContextManager[None]:
        """Time limits are for machines."""
        return request.waiting() if self._source.interactive else nullcontext()

    async def _renew(self, request: Sending, provider: Provider, tokens: TokenSet) -> None:
        """Before the server has to ask for it, where nobody has to do anything for it. It need not succeed."""
        try:
            if tokens.refresh_token:
                await self._refresh(provider, tokens)
            elif not self._source.interactive:
                await self._obtain(request, provider, tokens.requested)
        except NotSignedIn as failure:
            log.info("the token is not renewed yet: %s", failure)

    # ── and is refused ──

    async def refused(self, request: Sending, challenged: Challenged) -> bool:
        told = read_told(challenged.challenges, ("dpop", "bearer") if self._source.dpop else ("bearer", "dpop"))
        if self._proving is not None and challenged.sent:
            learned = self._proving.learn(request.url, challenged.nonce)
            if told.error == "use_dpop_nonce":
                return learned
        if challenged.status == 403 and told.error != "insufficient_scope":
            return False
        failures = self._failures
        async with self._turn(request):
            if self._failures > failures:
                raise NotSignedIn(self._why)  # which is what we have waited for
            if self._tokens is not None and self._tokens.authorization != challenged.sent.get(AUTHORIZATION):
                return True  # somebody else has seen to it
            try:
                return await self._get_in(request, challenged, told)
            except NotSignedIn as failure:
                self._failures += 1
                self._why = str(failure)
                raise

    async def _get_in(self, request: Sending, challenged: Challenged, told: Told) -> bool:
        tokens = self._tokens
        if challenged.status == 403 and tokens is not None:
            return await self._step_up(request, challenged, told, tokens)
        provider = await self._discover(told, challenged.inside)
        tokens = self._tokens
        is_new = tokens is not None and not tokens.is_over(time.time())
        if tokens is not None and tokens.refresh_token and not (is_new and self._recently("refresh")):
            if await self._refresh(provider, tokens):
                return True
        elif await self._take_over(provider, tokens):
            return True
        if self._source.interactive and not request.attended:
            return False
        if self._tokens is not None and is_new and self._recently("sign in"):
            raise NotSignedIn(
                f"{shown(self._url)} refuses the token that {shown(provider.issuer)} has just given for it; "
                "whoever runs the server should know why"
            )
        await self._obtain(request, provider, self._scopes(provider, told, tokens))
        return True

    async def _step_up(self, request: Sending, challenged: Challenged, told: Told, tokens: TokenSet) -> bool:
        """More scopes, unless they are there, or were asked for before."""
        union = frozenset(tokens.requested).union(tokens.granted, told.scopes)
        if told.scopes <= set(tokens.granted) or union in self._stepped:
            return False
        if self._source.interactive and not request.attended:
            return False
        provider = self._provider or await self._discover(told, challenged.inside)
        await self._obtain(request, provider, tuple(sorted(union)))
        self._stepped.add(union)
        return True

    # ── what is known ──

    async def _load(self) -> None:
        if not self._is_loaded:
            kept = await self._kept(self._known_issuer)
            if kept is not None:
                self._use(kept)
                self._remember(kept.issuer)
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
            if self._proving is None or self._proving.key.jwk != jwk:
                self._proving = DpopProofs(jwk)

    async def _kept(self, issuer: str | None) -> TokenSet | None:
        """What the store has of this issuer, or of any."""
        kept = await self._source.store.load(self._key)
        is_ours = kept is not None and issuer in (None, kept.issuer)
        return kept if kept is not None and is_ours and (kept.token_type == "DPoP") == self._source.dpop else None

    async def _take_over(self, provider: Provider, tokens: TokenSet | None) -> bool:
        """What another process has got meanwhile."""
        kept = await self._kept(provider.issuer)
        is_known = tokens is not None and kept is not None and kept.access_token == tokens.access_token
        if kept is None or is_known or kept.is_over(time.time()):
            return False
        self._use(kept)
        return True

    async def _keep(self, tokens: TokenSet) -> None:
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

    async def _discover(self, told: Told, inside: bool) -> Provider:
        only = self._source.issuer
        web = OAuthWeb(self._url, inside=inside)
        issuer_web = web if only is None else OAuthWeb(self._url, inside=True)  # the user has written it down
        try:
            async with asyncio.timeout(self.discovery_seconds):
                provider = await discover(
                    web, self._url, told.resource_metadata, only=only, before=self._known_issuer, issuer_web=issuer_web
                )
        except TimeoutError:
            raise NotSignedIn(f"{shown(self._url)}: where its tokens come from was not to be found in time") from None
        before = self._known_issuer  # by now; another server may have been quicker
        if before is not None and before != provider.issuer:
            if self._source.bound_to_issuer:
                raise NotSignedIn(
                    f"{shown(self._url)} takes tokens of {shown(provider.issuer)}; what this program has is for "
                    f"{shown(before)}, and is not shown to others"
                )
            self._tokens = self._client = None
            self._tried.clear()
            self._stepped.clear()
        self._remember(provider.issuer)
        self._provider, self._web = provider, issuer_web
        return provider

    def _endpoint(self, provider: Provider) -> TokenEndpoint:
        if self._source.dpop and self._proving is None:
            self._proving = DpopProofs()
        assert self._web is not None
        return TokenEndpoint(self._web, provider, self._source.key, self._proving)

    async def _refresh(self, provider: Provider, tokens: TokenSet) -> bool:
        """Whoever stops waiting meanwhile must not lose what came of it: the old refresh token is used up."""
        task = asyncio.create_task(self._context(provider, tokens))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=3.0)
            task.cancel()
            raise

    async def _context(self, provider: Provider, tokens: TokenSet) -> bool:
        """Whether there is a good token now. One that can't be refreshed is forgotten."""
        async with self._alone():
            if await self._take_over(provider, tokens):
                return True
            kept = await self._kept(provider.issuer)
            if kept is not None and kept.refresh_token:
                tokens = kept  # another process may have used up ours
                self._use(kept)
            client = self._source.completed(tokens.client)
            form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token or ""}
            try:
                fresh = await self._endpoint(provider).ask(client, form, tokens.granted)
            except TokenRefused as refused:
                log.info("a sign-in has ended: %s", refused)
                self._tokens = None
                self._client = None if refused.error in FORGOTTEN else client
                await self._save(None)
                return False
            self._tried["refresh"] = time.monotonic()
            rotated = fresh.refresh_token or tokens.refresh_token  # what is left out stays as it was
            await self._keep(replace(fresh, refresh_token=rotated, requested=tokens.requested))
            return True

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Without others who use the same refresh token, if the store can see to that."""
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self._source.store.exclusive(self._key))
            except NotSignedIn as failure:
                log.warning("other programs may use the same tokens: %s", failure)
            yield

    async def _obtain(self, request: Sending, provider: Provider, scopes: tuple[str, ...]) -> None:
        now = time.monotonic()
        if len(self._obtained) == self._obtained.maxlen and now - self._obtained[0] < SOON:
            raise NotSignedIn(
                f"{shown(self._url)} has wanted {len(self._obtained)} new tokens within {SOON:g} s, which is too often"
            )
        self._obtained.append(now)
        wanted = TokenRequest(self._endpoint(provider), scopes, self._client)
        try:
            with self._paused(request):
                tokens = await self._source.obtain(wanted)
        except NotSignedIn:
            self._client = None  # which may be why
            raise
        self._tried["sign in"] = time.monotonic()
        self._tried.pop("refresh", None)
        await self._keep(tokens)

    def _scopes(self, provider: Provider, told: Told, tokens: TokenSet | None) -> tuple[str, ...]:
        """What the challenge names, else what the server does; with what the user wants, and had before."""
        named = told.scopes or self._source.scopes or read_scopes(list(provider.scopes or ()))
        wanted = named | self._source.scopes | frozenset(() if tokens is None else tokens.requested)
        offered = provider.metadata.scopes_supported or ()
        if wanted and self._source.interactive and OFFLINE_ACCESS in offered:
            wanted |= {OFFLINE_ACCESS}
        return tuple(sorted(wanted))

    def _recently(self, what: str) -> bool:
        return time.monotonic() - self._tried.get(what, -SOON) < SOON
