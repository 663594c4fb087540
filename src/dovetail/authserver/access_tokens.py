"""Access tokens (RFC 9068): who may do what comes in, signed text goes out; and back, into a principal."""

import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

from dovetail.auth.claims import principal_of
from dovetail.auth.principal import Principal
from dovetail.auth.verifier import VerifierTrouble
from dovetail.authserver.grants import Grant, Grants
from dovetail.authserver.keyring import Keyring
from dovetail.authserver.marks import Marks, remembering_in
from dovetail.errors import ProtocolError
from dovetail.state.base import StateBackend

TYPE = "at+jwt"
GRANT = "grant"  # the claim that names the grant, so that its tokens end with it


class AccessTokens:
    """Makes them, and knows its own again."""

    def __init__(
        self, issuer: str, resource: str, seconds: float, keyring: Keyring, clock: Callable[[], float] = time.time
    ) -> None:
        self.issuer = issuer
        self.resource = resource
        self.seconds = seconds
        self._keyring = keyring
        self._clock = clock

    async def issue(self, client: str, subject: str, scopes: Iterable[str], grant: str | None = None) -> str:
        """Of a program that acts for itself, the subject is the program."""
        now = int(self._clock())
        claims = {
            "iss": self.issuer,
            "sub": subject,
            "aud": self.resource,
            "client_id": client,
            "scope": " ".join(sorted(scopes)),
            "iat": now,
            "exp": now + int(self.seconds),
            "jti": secrets.token_urlsafe(12),
            GRANT: grant or Grant.new_id(),
        }
        return (await self._keyring.signing()).sign(claims, TYPE)

    async def read(self, token: str) -> dict[str, Any] | None:
        """The claims, if it is one of ours, for this resource, and not over; whether it was revoked is not asked."""
        claims = (await self._keyring.signing()).read(token, TYPE)
        if claims is None or claims.get("iss") != self.issuer or claims.get("aud") != self.resource:
            return None
        ends = claims.get("exp")
        return claims if isinstance(ends, int) and self._clock() < ends else None


class OwnTokens:
    """A verifier for the servers that this authorization server is mounted in: it asks nobody."""

    binds_keys = False

    def __init__(self, tokens: AccessTokens, grants: Grants, marks: Marks, state: StateBackend | None = None) -> None:
        """`state`: where the app remembers that it is for, if it is for one."""
        self.issuer = tokens.issuer
        self.resource = tokens.resource
        self._tokens = tokens
        self._grants = grants
        self._marks = marks
        self._state = state

    def for_app(self, state: StateBackend) -> "OwnTokens":
        """Called by each app that starts, with where it remembers."""
        self._marks.enter(state)
        return OwnTokens(self._tokens, self._grants, self._marks, state)

    async def leave(self) -> None:
        """Called by that app when it ends."""
        if self._state is not None:
            await self._marks.leave(self._state)

    async def verify(self, token: str) -> Principal | None:
        try:
            with remembering_in(self._state):
                claims = await self._tokens.read(token)
                if claims is None or await self._grants.is_revoked(claims[GRANT]):
                    return None
        except ProtocolError:  # the store does not answer, so nobody knows
            raise VerifierTrouble from None
        return principal_of(claims, self.issuer)
