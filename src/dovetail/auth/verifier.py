"""What every verifier is: a token comes in, and whoever it stands for comes out, or nobody."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from dovetail.auth.principal import Principal

MAX_TOKEN = 16 * 1024  # characters


class VerifierTrouble(Exception):
    """Nobody knows now whether a token is good: what has to be asked does not answer. Becomes a 503."""


class Verifier(Protocol):
    """None means "not one of mine, or not good any more"; the caller learns no more than that.

    It may have `issuer`, which clients are sent to, and `believed_seconds`, after which it wants to be asked again.
    """

    async def verify(self, token: str) -> Principal | None: ...


VerifyFunction = Callable[[str], Awaitable[Principal | None] | Principal | None]
