"""Tokens of the identity provider, one record for each grant: sealed in the store, refreshed once for a fleet."""

import asyncio
from functools import partial

from dovetail.authserver.auth_store import Sealed
from dovetail.authserver.identity_provider import IdentityProvider, TokenAnswer
from dovetail.authserver.oauth_http import OAuthError
from dovetail.authserver.tokens import TokenIssuer
from dovetail.state.base import StoreUnavailable

EARLY = 60.0  # seconds before its end at which an access token is refreshed
LEASE = 20.0  # seconds in which a worker refreshes a token; a fetch ends before
POLL_INTERVAL = 0.05  # seconds
POLLS = 2 * int(LEASE / POLL_INTERVAL)


class UpstreamTokens(Sealed, frozen=True, kw_only=True, tag="upstream"):
    access_token: str
    refresh_token: str | None
    fresh_until: float | None  # shortly before it expires; None: it does not expire
    number: int = 0  # of the refresh that they came by


class Upstream:
    """The upstream tokens of all grants."""

    def __init__(self, provider: IdentityProvider, tokens: TokenIssuer) -> None:
        self.provider = provider
        self._issuer, self._store, self._keyring = tokens, tokens.store, tokens.keyring
        self._running: dict[str, asyncio.Task[UpstreamTokens]] = {}  # refreshes, by grant

    async def put(self, id: str, ends: float, answer: TokenAnswer, seconds: float) -> None:
        """Store the tokens of a new grant for some seconds; `keep` extends that when its code is redeemed."""
        await self._store.put(
            "upstream", id, await self._seal(_tokens(answer, None, ends, self._keyring.now())), seconds
        )

    async def keep(self, id: str, ends: float) -> None:
        await self._store.touch("upstream", id, max(ends - self._keyring.now(), 1.0))

    async def access_token(self, id: str) -> str:
        """The access token of a grant, refreshed if needed. Raises OAuthError."""
        return (await self._fresh(id)).access_token

    async def check(self, id: str) -> None:
        """Check that the provider still knows the user. Raises OAuthError, and ends the grant if it says no."""
        tokens = await self._fresh(id)
        if tokens.fresh_until is None:
            try:
                await self.provider.profile(tokens.access_token)
            except OAuthError as failure:
                await self._end_if_refused(id, tokens.until, failure)
                raise

    async def _fresh(self, id: str) -> UpstreamTokens:
        """The tokens of a grant. If they have expired and can't be refreshed, nobody can ask for the user: it ends."""
        tokens, _ = await self._read(id)
        if _is_fresh(tokens, self._keyring.now()):
            return tokens
        if tokens.refresh_token is None:
            await self._issuer.revoke(id, tokens.until)
            name = self.provider.row.name
            raise OAuthError("invalid_grant", f"The token of {name} has expired and can't be refreshed; sign in again")
        if id not in self._running:  # the calls of this worker wait for one request
            self._running[id] = asyncio.create_task(self._refresh(id))
            self._running[id].add_done_callback(partial(self._done, id))
        return await asyncio.shield(self._running[id])

    def _done(self, id: str, task: "asyncio.Task[UpstreamTokens]") -> None:
        del self._running[id]
        _ = task.cancelled() or task.exception()  # all calls that waited may be gone

    async def _refresh(self, id: str) -> UpstreamTokens:
        """Refresh under a claim; other workers wait until the record has changed, or the claim has expired."""
        for _ in range(POLLS):
            tokens, version = await self._read(id)
            if _is_fresh(tokens, self._keyring.now()):
                return tokens
            claim = f"{id}/{tokens.number}"
            if await self._store.claim("refreshing", claim, LEASE):
                if (await self._read(id))[1] == version:
                    return await self._refresh_now(id, tokens, version, claim)
            else:
                await asyncio.sleep(POLL_INTERVAL)
        raise StoreUnavailable

    async def _refresh_now(self, id: str, tokens: UpstreamTokens, version: int, claim: str) -> UpstreamTokens:
        try:
            answer = await self.provider.refresh(tokens.refresh_token or "")
        except OAuthError as failure:
            await self._end_if_refused(id, tokens.until, failure)
            await self._store.delete("refreshing", claim)  # the next call tries again
            raise
        now = self._keyring.now()
        new = _tokens(answer, tokens, tokens.until, now)
        await self._store.replace("upstream", id, await self._seal(new), max(new.until - now, 1.0), version)
        return new

    async def _end_if_refused(self, id: str, ends: float, failure: OAuthError) -> None:
        if failure.error == "invalid_grant":
            await self._issuer.revoke(id, ends)

    async def _read(self, id: str) -> tuple[UpstreamTokens, int]:
        value, version = await self._store.entry("upstream", id)
        tokens = await self._keyring.open(value.decode(), UpstreamTokens)
        if tokens is None:
            raise OAuthError("invalid_grant", f"The sign-in at {self.provider.row.name} has ended; sign in again")
        return tokens, version

    async def _seal(self, tokens: UpstreamTokens) -> bytes:
        return (await self._keyring.seal(tokens)).encode()


def _tokens(answer: TokenAnswer, before: UpstreamTokens | None, ends: float, now: float) -> UpstreamTokens:
    """A provider that does not rotate refresh tokens gives none again."""
    seconds = answer.seconds
    return UpstreamTokens(
        until=ends,
        access_token=answer.access_token,
        refresh_token=answer.refresh_token or (before.refresh_token if before else None),
        fresh_until=None if seconds is None else now + seconds - min(EARLY, seconds / 2),
        number=before.number + 1 if before else 0,
    )


def _is_fresh(tokens: UpstreamTokens, now: float) -> bool:
    return tokens.fresh_until is None or now < tokens.fresh_until
