"""Tokens of the identity provider, one record for each grant: sealed in the store, refreshed once for a fleet."""

import asyncio
from functools import partial

from dovetail.auth.principal import Principal
from dovetail.authserver.auth_store import Sealed
from dovetail.authserver.identity_provider import IdentityProvider, TokenAnswer
from dovetail.authserver.oauth_http import OAuthError
from dovetail.authserver.tokens import CODE_LIFETIME, GRANT, Grant, TokenIssuer
from dovetail.errors import ToolError, Unauthorized
from dovetail.state.base import StoreUnavailable, retry_while_unavailable

EARLY = 60.0  # seconds before its end at which an access token is refreshed
LEASE = 20.0  # seconds in which a worker refreshes a token; a fetch ends before
POLL_INTERVAL = 0.05  # seconds
POLLS = 2 * int(LEASE / POLL_INTERVAL)


class UpstreamTokens(Sealed, frozen=True, kw_only=True, tag="upstream"):
    access_token: str
    refresh_token: str | None
    fresh_until: float | None  # shortly before it expires; None: it does not expire

    def is_fresh(self, now: float) -> bool:
        return self.fresh_until is None or now < self.fresh_until


class Upstream:
    """The upstream tokens of all grants."""

    def __init__(self, provider: IdentityProvider, tokens: TokenIssuer) -> None:
        self.provider = provider
        self._issuer, self._store, self._keyring = tokens, tokens.store, tokens.keyring
        self._running: dict[str, asyncio.Task[UpstreamTokens]] = {}  # refreshes, by grant

    async def close(self) -> None:
        """Wait for the refreshes of this event loop, even if their calls are gone: the provider gives tokens once."""
        running = [task for task in self._running.values() if task.get_loop() is asyncio.get_running_loop()]
        await asyncio.gather(*running, return_exceptions=True)

    async def keep(self, grant: Grant) -> None:
        """Keep the tokens of a new grant, whose code is being redeemed, until its end."""
        await self._store.touch("upstream", grant.id, max(grant.ends - self._keyring.now(), 1.0))

    async def token_of(self, principal: Principal) -> str:
        """The access token for tools that act for a user. Raises Unauthorized if the user has to sign in again."""
        try:
            return await self.access_token(principal.claims[GRANT])
        except OAuthError as failure:
            if failure.error == "invalid_grant":
                raise Unauthorized(failure.description, error="invalid_token") from None
            raise ToolError(failure.description) from None

    async def access_token(self, id: str, *, is_checked: bool = False) -> str:
        """The access token of a grant, refreshed if needed; `is_checked`: one that never expires is tried at the user's
        profile. Raises OAuthError; if the provider says no, the grant ends.
        """
        try:
            tokens = await self._fresh(id)
            if is_checked and tokens.fresh_until is None:
                await self.provider.profile(tokens.access_token)
        except OAuthError as failure:
            if failure.error == "invalid_grant":
                await self._issuer.revoke(id, self._keyring.now())
            raise
        return tokens.access_token

    async def _fresh(self, id: str) -> UpstreamTokens:
        tokens, _ = await self._read(id)
        if tokens.is_fresh(self._keyring.now()):
            return tokens
        if id not in self._running:  # the calls of this worker wait for one request, which outlives each of them
            task = self._running[id] = asyncio.create_task(self._refresh(id))
            task.add_done_callback(lambda _: self._running.pop(id))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # all calls may be gone
        return await asyncio.shield(self._running[id])

    async def _refresh(self, id: str) -> UpstreamTokens:
        """Refresh under a claim; other workers wait until the record has changed, or the claim has expired."""
        for _ in range(POLLS):
            tokens, version = await self._read(id)
            if tokens.is_fresh(self._keyring.now()):
                return tokens
            if tokens.refresh_token is None:  # the provider can't be asked for this user any more
                raise self._ended("The token of {} has expired and can't be refreshed")
            claim = f"{id}/{version}"
            if not await self._store.claim("refreshing", claim, LEASE):
                await asyncio.sleep(POLL_INTERVAL)
            elif (await self._read(id))[1] == version:  # this worker may have been asleep
                try:
                    answer = await self.provider.token(grant_type="refresh_token", refresh_token=tokens.refresh_token)
                except OAuthError:
                    await self._store.delete("refreshing", claim)  # the next call tries again
                    raise
                return await self.put(id, answer, tokens.until, tokens.refresh_token, version)
        raise StoreUnavailable

    async def _read(self, id: str) -> tuple[UpstreamTokens, int]:
        value, version = await self._store.entry("upstream", id)
        tokens = await self._keyring.open(value.decode(), UpstreamTokens)
        if tokens is None:
            raise self._ended("The sign-in at {} has ended")
        return tokens, version

    def _ended(self, text: str) -> OAuthError:
        return OAuthError("invalid_grant", f"{text.format(self.provider.row.name)}; sign in again")

    async def put(
        self, id: str, answer: TokenAnswer, until: float, refresh_token: str | None = None, version: int = 0
    ) -> UpstreamTokens:
        """Store tokens instead of a version; those of a new grant as long as its code is good. A provider that does not
        rotate refresh tokens gives none again.
        """
        now, seconds = self._keyring.now(), answer.seconds
        tokens = UpstreamTokens(
            until=until,
            access_token=answer.access_token,
            refresh_token=answer.refresh_token or refresh_token,
            fresh_until=None if seconds is None else now + seconds - min(EARLY, seconds / 2),
        )
        sealed = (await self._keyring.seal(tokens)).encode()
        ttl = max(until - now, 1.0) if version else 2 * CODE_LIFETIME
        store = partial(self._store.replace, "upstream", id, sealed, ttl, version)
        await retry_while_unavailable(store, lambda: self._keyring.now() < now + LEASE)  # they are given once
        return tokens
