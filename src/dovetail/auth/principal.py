"""Who is asking: a frozen value that a verifier makes of a token, and that sessions, states and limits are bound to."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.protocol.scopes import checked_scopes


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A user, a program that acts for itself, or a program that acts for a user. What tools see as `ctx.principal`.

    A program that acts for itself has a `client` and no `subject`.
    """

    subject: str | None = None  # the user
    client: str | None = None  # the program, as the authorization server knows it
    issuer: str | None = None  # who says so
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = {}  # all that the token, or the introspection of it, says
    expires_at: float | None = None  # in seconds since 1970; None if it is good until it is taken back
    key: str = ""  # what belongs to this one is marked with: the same for every token of the same user and program

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scopes", checked_scopes(self.scopes, "Principal"))
        if not self.key:
            parts = msgspec.json.encode((self.issuer, self.subject, self.client))
            msgspec.structs.force_setattr(self, "key", hashlib.sha256(parts).hexdigest()[:32])

    @property
    def name(self) -> str:
        """For people who read a log."""
        return self.subject or self.client or "somebody"

    def may(self, *scopes: str) -> bool:
        """Whether it has all of these scopes."""
        return self.scopes.issuperset(scopes)

    def with_scopes(self, scopes: frozenset[str]) -> "Principal":
        return self if scopes == self.scopes else msgspec.structs.replace(self, scopes=scopes)
