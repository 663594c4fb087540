"""What every verifier is: a token comes in, and whoever it stands for comes out, or nobody."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from dovetail.auth.principal import Principal

MAX_TOKEN = 16 * 1024  # characters


class VerifierTrouble(Exception):
    """Nobody knows now whether a token is good: what has to be asked does not answer. Becomes a 503."""


class Verifier(Protocol):
    """None means "not one of mine, or not good any more"; the caller learns no more than that.

    It may have `issuer`, which clients are sent to, `resource`, the URL that its tokens are made for, and
    `believed_seconds`, after which it wants to be asked again. `binds_keys = False`: none of its tokens needs DPoP. One
    that has something to remember may have `for_app(state)`: each app that starts calls it with its state backend, and
    then asks the verifier that it gives, which may have an async `leave()` for the end of the app.
    """

    async def verify(self, token: str) -> Principal | None: ...


class Found(NamedTuple):
    """Whoever a token stands for, and for how many seconds that need not be asked again."""

    principal: Principal
    believed_seconds: float


VerifyFunction = Callable[[str], Awaitable[Principal | None] | Principal | None]
