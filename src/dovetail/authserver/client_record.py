"""One program that may ask for tokens, as it is written down and kept; its secret is only there as a digest."""

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from dovetail.auth.confidential import Confidential
from dovetail.errors import SetupError

CODE = "authorization_code"
REFRESH = "refresh_token"
CREDENTIALS = "client_credentials"
GRANTS = (CODE, REFRESH, CREDENTIALS)
AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")
SHORTEST_SECRET = 16  # characters
REGISTERED = "dcr-"  # what the ids of programs begin with that have registered themselves

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class OAuthClient(Confidential, frozen=True, kw_only=True):
    """A program that the authorization server knows.

    OAuthClient(id="ci", secret="...", grant_types=["client_credentials"], scopes=["notes:read"])
    """

    harmless = ("id",)

    id: str
    name: str = ""  # what people read; the id, if there is none
    redirect_uris: Sequence[str] = ()
    grant_types: Sequence[str] = (CODE, REFRESH)
    scopes: Collection[str] | None = None  # what it may ask for; None: everything
    secret: str | None = None  # or "sha256:" and the digest of it; never kept as it is
    jwks: dict[str, Any] | None = None  # public keys that it signs with (private_key_jwt)

    def __post_init__(self) -> None:
        for name, kind in (("redirect_uris", tuple), ("grant_types", tuple), ("scopes", frozenset)):
            given = getattr(self, name)
            if isinstance(given, str):
                raise SetupError(f"OAuthClient: {name}={given!r} is not possible; write a list")
            if given is not None:
                msgspec.structs.force_setattr(self, name, kind(given))
        if self.secret is not None and not _DIGEST.fullmatch(self.secret):
            if len(self.secret) < SHORTEST_SECRET:
                raise SetupError(f"OAuthClient: a secret has at least {SHORTEST_SECRET} characters")
            digest = hashlib.sha256(self.secret.encode()).hexdigest()
            msgspec.structs.force_setattr(self, "secret", f"sha256:{digest}")

    @property
    def is_public(self) -> bool:
        """It can prove nothing of itself."""
        return self.secret is None and self.jwks is None


def is_url(id: str) -> bool:
    return id.startswith(("https://", "http://"))
