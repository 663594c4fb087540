"""Tokens and where they are kept: what a sign-in came to goes in under a name, and comes out again for the next one."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from dovetail.auth.principal import Confidential


class RegisteredClient(Confidential, frozen=True, omit_defaults=True):
    """Who this program is to one authorization server."""

    harmless = ("id",)

    id: str
    secret: str | None = None
    method: str = "none"  # how it proves that to the token endpoint
    redirect_uri: str | None = None  # that it was registered with
    secret_expires_at: float | None = None  # seconds since 1970

    def is_over(self, now: float) -> bool:
        return self.secret_expires_at is not None and now >= self.secret_expires_at


class TokenSet(Confidential, frozen=True, kw_only=True, omit_defaults=True):
    """What one sign-in came to."""

    harmless = ("token_type", "issuer")

    access_token: str
    token_type: str  # "Bearer" or "DPoP"
    issuer: str
    client: RegisteredClient
    requested: tuple[str, ...] = ()  # scopes
    granted: tuple[str, ...] = ()
    expires_at: float | None = None  # seconds since 1970, a little before its end
    refresh_token: str | None = None
    proof_key: dict[str, str] | None = None  # that it is bound to

    @property
    def authorization(self) -> str:
        return f"{self.token_type} {self.access_token}"

    def is_over(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


class TokenStore(Protocol):
    """Where tokens are kept. A key names a server and a client, so that each user of an app needs a store."""

    async def load(self, key: str) -> TokenSet | None: ...

    async def save(self, key: str, tokens: TokenSet | None) -> None:
        """None takes them away. Others may be saving something else at the same time."""

    def exclusive(self, key: str) -> AbstractAsyncContextManager[None]:
        """Inside, nobody else uses what is kept under this key: a refresh token is good for one use only."""
        ...


class MemoryTokens:
    """Kept for as long as this object lives."""

    def __init__(self) -> None:
        self._kept: dict[str, TokenSet] = {}

    def __repr__(self) -> str:
        return f"MemoryTokens({len(self._kept)})"

    async def load(self, key: str) -> TokenSet | None:
        return self._kept.get(key)

    async def save(self, key: str, tokens: TokenSet | None) -> None:
        if tokens is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = tokens

    @asynccontextmanager
    async def exclusive(self, key: str) -> AsyncIterator[None]:  # noqa: ARG002
        yield  # there is one user for each key, which does one thing at a time
