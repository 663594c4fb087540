"""The tokens of one server: its refusals come in, and headers with a good token go out, or NotSignedIn.

Whatever has to be done for a token, a refresh or a sign-in, is done once, however many requests wait for it. A token
that the server refuses though it is new is not asked for again and again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from math import inf

from msgspec.structs import replace

from dovetail.client.credentials import AUTHORIZATION, Challenged, Sending
from dovetail.client.oauth.discovery import discover
from dovetail.client.oauth.documents import OFFLINE_ACCESS, Provider
from dovetail.client.oauth.loop_lock import LoopLock
from dovetail.client.oauth.proving import Proving
from dovetail.client.oauth.source import TokenErrand, TokenSource
from dovetail.client.oauth.token_endpoint import TokenDoor, TokenRefused
from dovetail.client.oauth.tokens import RegisteredClient, TokenSet
from dovetail.client.oauth.web import OAuthWeb, shown
from dovetail.client.oauth.www_authenticate import Told, read_told
from dovetail.errors import NotSignedIn
from dovetail.protocol.scopes import read_scopes

SOON = 60.0  # seconds in which nothing is tried twice that did not help
MOST_SIGN_INS, MOST_TOKENS = 5, 30  # of a person and of a program, within that time
MAX_STEPS = 100  # to more and more scopes
DISCOVERY_SECONDS = 20.0
FINISH_SECONDS = 3.0  # for a refresh that nobody waits for any more
INSUFFICIENT = "insufficient_scope"
FORGOTTEN = frozenset({"invalid_client", "unauthorized_client"})  # the program is not known any more

log = logging.getLogger("dovetail.client")


class IssuerBinding:
    """Where tokens come from: as the user says, else as a server said first."""

    def __init__(self, issuer: str | None) -> None:
        self.issuer = issuer


class PerServer:
    """The tokens of each server that one `auth=` is used for. What belongs to one issuer does so for all of them."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._binding = IssuerBinding(source.issuer)
        self._servers: dict[str, ServerTokens] = {}

    def at(self, url: str) -> "ServerTokens":
        if url not in self._servers:
            binding = self._binding if self._source.bound_to_issuer else IssuerBinding(self._source.issuer)
            self._servers[url] = ServerTokens(url, self._source, binding)
        return self._servers[url]


class ServerTokens:
    """Credentials for one server, from one source."""

    def __init__(self, url: str, source: TokenSource, binding: IssuerBinding) -> None:
        self._url = url
        self._source = source
        self._key = f"{url} {source.who}"
        self._binding = binding
        self._lock = LoopLock()  # of whoever does something for a token
        self._is_loaded = False
        self._tokens: TokenSet | None = None
        self._client: RegisteredClient | None = None  # as the issuer knew it a moment ago
        self._web: OAuthWeb | None = None
        self._provider: Provider | None = None
        self._proving: Proving | None = None
        self._tried: dict[str, float] = {}  # when something was last done
        self._stepped: dict[frozenset[str], float] = {}  # scopes that are not asked for again, until when
        self._obtained: deque[float] = deque(maxlen=MOST_SIGN_INS if source.interactive else MOST_TOKENS)  # when
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
        with self._patience(request):
            await self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _patience(self, request: Sending) -> AbstractContextManager[None]:
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
            learned = self._proving.learn(request.url, challenged.nonce, challenged.sent)
            if told.error == "use_dpop_nonce":
                return learned
        if challenged.status == 403 and told.error != INSUFFICIENT:
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
        if told.scopes <= set(tokens.granted) or time.monotonic() < self._stepped.get(union, 0.0):
            return False
        if (self._source.interactive and not request.attended) or len(self._stepped) >= MAX_STEPS:
            return False
        provider = self._provider or await self._discover(told, challenged.inside)
        self._stepped[union] = time.monotonic() + SOON  # if nothing comes of it
        await self._obtain(request, provider, tuple(sorted(union)))
        self._stepped[union] = inf
        return True

    # ── what is known ──

    async def _load(self) -> None:
        if not self._is_loaded:
            kept = await self._source.store.load(self._key)
            if kept is not None and self._is_for_us(kept, self._binding.issuer or kept.issuer):
                self._use(kept)
                self._binding.issuer = kept.issuer
            self._is_loaded = True

    def _use(self, tokens: TokenSet) -> None:
        self._tokens, self._client = tokens, tokens.client
        if self._source.dpop:
            jwk = tokens.proof_key
            if self._proving is None or self._proving.key.jwk != jwk:
                self._proving = Proving(jwk)

    def _is_for_us(self, kept: TokenSet, issuer: str) -> bool:
        return kept.issuer == issuer and (kept.token_type == "DPoP") == self._source.dpop

    async def _take_over(self, provider: Provider, tokens: TokenSet | None) -> bool:
        """What another process has got meanwhile."""
        kept = await self._source.store.load(self._key)
        if kept is None or not self._is_for_us(kept, provider.issuer):
            return False
        if (tokens is not None and kept.access_token == tokens.access_token) or kept.is_over(time.time()):
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
        found = discover(
            web, self._url, told.resource_metadata, only=only, before=self._binding.issuer, issuer_web=issuer_web
        )
        try:
            async with asyncio.timeout(DISCOVERY_SECONDS):
                provider = await found
        except TimeoutError:
            words = f"where its tokens come from was not to be found within {DISCOVERY_SECONDS:g} s"
            raise NotSignedIn(f"{shown(self._url)}: {words}") from None
        before = self._binding.issuer  # by now; another server may have been quicker
        if before is not None and before != provider.issuer:
            if self._source.bound_to_issuer:
                raise NotSignedIn(
                    f"{shown(self._url)} takes tokens of {shown(provider.issuer)}; what this program has is for "
                    f"{shown(before)}, and is not shown to others"
                )
            self._tokens = self._client = None
            self._tried.clear()
            self._stepped.clear()
        self._binding.issuer, self._provider, self._web = provider.issuer, provider, issuer_web
        return provider

    def _door(self, provider: Provider) -> TokenDoor:
        if self._source.dpop and self._proving is None:
            self._proving = Proving()
        assert self._web is not None
        return TokenDoor(self._web, provider, self._source.key, self._proving)

    async def _refresh(self, provider: Provider, tokens: TokenSet) -> bool:
        """Whoever stops waiting meanwhile must not lose what came of it: the old refresh token is used up."""
        task = asyncio.create_task(self._exchange(provider, tokens))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=FINISH_SECONDS)
            task.cancel()
            raise

    async def _exchange(self, provider: Provider, tokens: TokenSet) -> bool:
        """Whether there is a good token now. One that can't be refreshed is forgotten."""
        async with self._alone():
            if await self._take_over(provider, tokens):
                return True
            kept = await self._source.store.load(self._key)
            if kept is not None and self._is_for_us(kept, provider.issuer) and kept.refresh_token:
                tokens = kept  # another process may have used up ours
                self._use(kept)
            client = self._source.completed(tokens.client)
            form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token or ""}
            try:
                fresh = await self._door(provider).ask(client, form, tokens.granted)
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
        errand = TokenErrand(self._door(provider), scopes, self._client)
        try:
            with self._patience(request):
                tokens = await self._source.obtain(errand)
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
