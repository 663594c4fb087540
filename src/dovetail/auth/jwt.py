"""Signed tokens (RFC 9068): a token comes in, and whoever it stands for comes out, or nobody.

Everything that costs nothing is looked at first. A token for somebody else, or of somebody else, makes no request and
no signature is checked for it; in the end nothing counts unless all of it holds.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dovetail.auth.claims import comparable_url, in_time, meant_for, principal_of
from dovetail.auth.fetch import Fetch, make_fetch, names_this_machine
from dovetail.auth.jose import (
    ASYMMETRIC,
    SYMMETRIC,
    SignedToken,
    TokenKey,
    pem_key,
    read_keys,
    read_token,
    secret_key,
)
from dovetail.auth.jwks import FixedKeys, KeySource, RemoteKeys, may_hold_keys
from dovetail.auth.principal import Principal
from dovetail.errors import SetupError

LEEWAY = 60.0  # seconds that clocks may differ
MAX_LEEWAY = 600.0
MAX_KID = 256  # characters
MAX_JWKS = 256 * 1024  # bytes
TYPES = frozenset(("at+jwt", "application/at+jwt", "jwt", "application/jwt"))  # an ID token may say that it is one


class Jwt:
    """Takes the tokens of one issuer.

    Jwt("https://login.example.com", audience="https://notes.example.com/mcp")
    """

    def __init__(
        self,
        issuer: str,
        audience: str | Sequence[str],
        *,
        jwks_uri: str | None = None,
        jwks: Mapping[str, Any] | None = None,
        public_key: str | bytes | None = None,
        secret: str | bytes | None = None,
        algorithms: Sequence[str] | None = None,
        leeway: float = LEEWAY,
        scope_claim: str | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        """`issuer`: as tokens have it, byte for byte. `audience`: what they are for, that is the URL of this server.

        Keys: at `jwks_uri`, in `jwks`, the one `public_key` (PEM), or a shared `secret`; if none is given, where the
        metadata of the issuer says. `algorithms`: that may have signed; else all that work with two keys.
        `scope_claim`: where the scopes are, if not in `scope` or `scp`.
        """
        self.issuer = _checked_issuer(issuer)
        self._audiences = _checked_audiences(audience)
        self._algorithms = _checked_algorithms(algorithms, secret is not None)
        if not 0 <= leeway <= MAX_LEEWAY:
            raise SetupError(f"Jwt: leeway={leeway!r} is not possible; it is 0 to {MAX_LEEWAY:g} seconds")
        self._leeway = leeway
        self._scope_claim = scope_claim
        self._keys = self._key_source(
            fetch, {"jwks_uri": jwks_uri, "jwks": jwks, "public_key": public_key, "secret": secret}
        )

    def __repr__(self) -> str:
        return f"Jwt({self.issuer!r})"

    async def verify(self, token: str) -> Principal | None:
        """Raises VerifierTrouble if the keys can't be had."""
        parts = read_token(token)
        if parts is None or not self._says_right(parts):
            return None
        principal = principal_of(parts.claims, self.issuer, self._scope_claim)
        if principal is None or not await self._is_signed(parts):
            return None
        return principal

    def _says_right(self, token: SignedToken) -> bool:
        header, claims = token.header, token.claims
        return (
            header.get("alg") in self._algorithms
            and _is_access_token(header.get("typ"))
            and claims.get("iss") == self.issuer
            and meant_for(claims, self._audiences)
            and in_time(claims, time.time(), self._leeway, needs_end=True)
        )

    async def _is_signed(self, token: SignedToken) -> bool:
        kid, algorithm = token.header.get("kid"), token.header["alg"]
        if kid is not None and not (isinstance(kid, str) and len(kid) <= MAX_KID):
            return False
        keys = await self._keys.find(kid, algorithm)
        return any(key.signed(token, algorithm) for key in keys)

    def _key_source(self, fetch: Fetch | None, given: dict[str, Any]) -> KeySource:
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise SetupError(f"Jwt: keys come from one place, not from {' and '.join(named)}; give one of them")
        if not named or named == ["jwks_uri"]:
            return self._remote_keys(given["jwks_uri"], fetch)
        read = _WRITTEN[named[0]]
        return FixedKeys(read(given[named[0]], self._algorithms))

    def _remote_keys(self, jwks_uri: str | None, fetch: Fetch | None) -> RemoteKeys:
        where = self.issuer if jwks_uri is None else jwks_uri
        if not may_hold_keys(where, where):
            raise SetupError(f"Jwt: {where!r} is not https; keys that somebody changed on the way would let anybody in")
        if fetch is None:
            fetch = make_fetch(allow_private=True, allow_loopback=names_this_machine(where), max_bytes=MAX_JWKS)
        return RemoteKeys(fetch, issuer=self.issuer, jwks_uri=jwks_uri, algorithms=self._algorithms)


def _is_access_token(typ: object) -> bool:
    """Some issuers say nothing, or no more than that it is a token."""
    return typ is None or (isinstance(typ, str) and typ.lower() in TYPES)


def _checked_issuer(issuer: object) -> str:
    if not isinstance(issuer, str) or not issuer:
        raise SetupError('Jwt: name the issuer as its tokens do, such as Jwt("https://login.example.com", …)')
    return issuer


def _checked_audiences(audience: object) -> frozenset[str]:
    named = [audience] if isinstance(audience, str) else audience
    if not isinstance(named, Collection) or not named or not all(isinstance(each, str) and each for each in named):
        raise SetupError("Jwt: audience= is what tokens for this server name; without it, tokens for others would do")
    return frozenset(comparable_url(each) for each in named)


def _checked_algorithms(algorithms: Sequence[str] | None, shared: bool) -> tuple[str, ...]:
    """With a shared secret only those that need one, else only the others: so that no public key is ever a secret."""
    possible = SYMMETRIC if shared else ASYMMETRIC
    wanted = possible if algorithms is None else (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
    wrong = [name for name in wanted if name not in possible]
    if wrong or not wanted:
        keys = "a shared secret" if shared else "public keys"
        raise SetupError(f"Jwt: algorithms={wrong or wanted!r} is not possible with {keys}; use {', '.join(possible)}")
    return wanted


def _written_keys(jwks: object, algorithms: Sequence[str]) -> tuple[TokenKey, ...]:
    try:
        keys = read_keys(jwks, algorithms)
    except ValueError as problem:
        raise SetupError(f"Jwt: jwks=: {problem}") from None
    if not keys:
        raise SetupError("Jwt: jwks= holds no public key that may be used: strong, for signatures, of these algorithms")
    return keys


_WRITTEN: dict[str, Callable[[Any, Sequence[str]], Sequence[TokenKey]]] = {  # how keys are read that are written down
    "jwks": _written_keys,
    "public_key": lambda pem, algorithms: [pem_key(pem, algorithms)],
    "secret": lambda secret, algorithms: [secret_key(secret, algorithms)],
}
