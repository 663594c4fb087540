"""Tokens of the identity provider, one record for each grant: sealed in the store, refreshed once for a fleet."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from dovetail.authserver.auth_store import Sealed
from dovetail.authserver.identity_provider import IdentityProvider, TokenAnswer
from dovetail.authserver.oauth_http import OAuthError
from dovetail.authserver.tokens import TokenIssuer
from dovetail.state.base import StoreUnavailable

T = TypeVar("T")
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

    async def access_token(self, id: str) -> str:
        """The access token of a grant, refreshed if needed. Raises OAuthError."""
        tokens = await self._refreshed(id)
        if tokens.is_fresh(self._keyring.now()):
            return tokens.access_token
        await self._issuer.revoke(id, tokens.until)  # or the client would come back with a new token of this grant
        name = self.provider.row.name
        raise OAuthError("invalid_grant", f"The token of {name} has expired and can't be refreshed; sign in again")

    async def check(self, id: str) -> None:
        """Check that the provider still knows the user. Raises OAuthError."""
        tokens = await self._refreshed(id)
        if tokens.fresh_until is None and not self.provider.row.issuer:
            await self._asked(id, tokens.until, self.provider.profile(tokens.access_token))

    async def _refreshed(self, id: str) -> UpstreamTokens:
        """The tokens of a grant: fresh ones, or expired ones that can't be refreshed."""
        tokens, _ = await self._read(id)
        if tokens.refresh_token is None or tokens.is_fresh(self._keyring.now()):
            return tokens
        if id not in self._running:  # the calls of this worker wait for one request, which outlives each of them
            task = self._running[id] = asyncio.create_task(self._refresh(id))
            task.add_done_callback(lambda _: self._running.pop(id))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # all calls may be gone
        return await asyncio.shield(self._running[id])

    async def _refresh(self, id: str) -> UpstreamTokens:
        """Refresh under a claim, for which the other workers wait; then they find fresh tokens."""
        for _ in range(POLLS):
            if await self._store.claim("refreshing", id, LEASE):
                try:
                    tokens, version = await self._read(id)
                    if tokens.is_fresh(self._keyring.now()):
                        return tokens
                    answer = await self._asked(id, tokens.until, self.provider.refresh(tokens.refresh_token or ""))
                    return await self.put(id, answer, tokens.until, tokens.refresh_token, version)
                finally:
                    await self._store.delete("refreshing", id)
            await asyncio.sleep(POLL_INTERVAL)
        raise StoreUnavailable

    async def _asked(self, id: str, until: float, answer: Awaitable[T]) -> T:
        """What the provider answers. If it does not take the token any more, the grant ends."""
        try:
            return await answer
        except OAuthError as failure:
            if failure.error == "invalid_grant":
                await self._issuer.revoke(id, until)
            raise

    async def _read(self, id: str) -> tuple[UpstreamTokens, int]:
        value, version = await self._store.entry("upstream", id)
        tokens = await self._keyring.open(value.decode(), UpstreamTokens)
        if tokens is None:
            raise OAuthError("invalid_grant", f"The sign-in at {self.provider.row.name} has ended; sign in again")
        return tokens, version

    async def put(
        self, id: str, answer: TokenAnswer, until: float, refresh_token: str | None = None, version: int = 0
    ) -> UpstreamTokens:
        """Store the tokens of a new grant, or those that replace a version. A provider that does not rotate refresh
        tokens gives none again.
        """
        now, seconds = self._keyring.now(), answer.seconds
        tokens = UpstreamTokens(
            until=until,
            access_token=answer.access_token,
            refresh_token=answer.refresh_token or refresh_token,
            fresh_until=None if seconds is None else now + seconds - min(EARLY, seconds / 2),
        )
        sealed = (await self._keyring.seal(tokens)).encode()
        await self._store.replace("upstream", id, sealed, max(until - now, 1.0), version)
        return tokens
