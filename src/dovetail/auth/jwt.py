"""Verifier of signed tokens (RFC 9068): `Jwt`, and the keys of its issuer.

What costs nothing is looked at first. A token for another server, or of another issuer, makes no request, and no
signature is checked for it; in the end nothing counts unless all of it holds.

Keys are asked for again when they are old, and when a token names one that is not known; then at most every
`COOLDOWN` seconds. While the issuer does not answer, the keys that are there stay good for a while.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from dovetail.auth.fetch import Fetch, FetchFailed, FetchRequest, make_fetch, names_this_machine, shown
from dovetail.auth.jose import (
    ASYMMETRIC,
    SYMMETRIC,
    SignedToken,
    TokenKey,
    pem_key,
    read_keys,
    read_object,
    read_token,
    secret_key,
)
from dovetail.auth.principal import Principal, VerifierUnavailable, comparable_url, in_time, meant_for, principal_of
from dovetail.errors import SetupError

LEEWAY = 60.0  # seconds that clocks may differ
MAX_LEEWAY = 600.0
FRESH = 600.0  # seconds after which keys are asked for again
STALE = 3600.0  # seconds after which they don't count any more
COOLDOWN = 30.0  # seconds between two requests, if the first was answered
RETRY = 5.0  # and if it was not
TYPES = frozenset(("at+jwt", "application/at+jwt", "jwt", "application/jwt"))  # an ID token may say that it is one


class RemoteKeys:
    """Keys that the issuer publishes, at `jwks_uri` or where its metadata says."""

    def __init__(
        self,
        fetch: Fetch,
        *,
        issuer: str,
        jwks_uri: str | None,
        algorithms: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._algorithms = algorithms
        self._clock = clock
        self._keys: tuple[TokenKey, ...] = ()
        self._good_at: float | None = None  # when the keys came
        self._asked_at: float | None = None
        self._trouble: str | None = None  # what came of the last request, if it was no keys
        self._request: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> Sequence[TokenKey]:
        age = self._age()
        found = _fitting(self._keys, kid, algorithm) if age < STALE else ()
        if found and age < FRESH:
            return found
        request = self._asking()
        if request is not None and not found:
            await asyncio.shield(request)  # who else waits must not suffer if this one gives up
            found = _fitting(self._keys, kid, algorithm) if self._age() < STALE else ()
        if not found and self._trouble is not None:
            raise VerifierUnavailable(f"the keys of {shown(self._issuer)} can't be had: {self._trouble}")
        return found

    def _age(self) -> float:
        return float("inf") if self._good_at is None else self._clock() - self._good_at

    def _asking(self) -> "asyncio.Task[None] | None":
        """The request that is under way, or a new one if it is time for one."""
        if self._request is not None and not self._request.done():
            return self._request
        now, pause = self._clock(), COOLDOWN if self._trouble is None else RETRY
        if self._asked_at is not None and now - self._asked_at < pause:
            return None
        self._asked_at = now
        self._request = asyncio.create_task(self._refresh())
        return self._request

    async def _refresh(self) -> None:
        try:
            where = self._jwks_uri or await discover(self._issuer, self._fetch)
            keys = read_keys(await _object_at(where, self._fetch), self._algorithms)
            if not keys:
                raise ValueError("none of them may be used here")
        except (FetchFailed, ValueError) as failure:
            self._trouble = str(failure)
        except Exception as failure:  # of a fetch that somebody else wrote
            self._trouble = f"the fetch failed with {type(failure).__name__}"
        else:
            self._keys, self._good_at, self._trouble = keys, self._clock(), None


async def discover(issuer: str, fetch: Fetch) -> str:
    """Where the metadata of an issuer (RFC 8414, OpenID Connect) says that its keys are. Raises ValueError."""
    problem = "it has no metadata"
    for url in metadata_urls(issuer):
        document = await _object_at(url, fetch)
        if document is None:
            continue
        if document.get("issuer") != issuer:  # byte for byte: whoever differs may be somebody else
            problem = f"the metadata at {shown(url)} is of another issuer"
            continue
        where = document.get("jwks_uri")
        if isinstance(where, str) and may_hold_keys(where, issuer):
            return where
        problem = f"the metadata at {shown(url)} names no https URL of keys"
    raise ValueError(problem)


def may_hold_keys(url: str, issuer: str) -> bool:
    """https; or http on this machine, if the issuer is on it too."""
    if names_this_machine(url):
        return names_this_machine(issuer) and url.lower().startswith(("http://", "https://"))
    return url.lower().startswith("https://")


def metadata_urls(issuer: str) -> list[str]:
    """Where the metadata of an issuer may be, in the order in which they have to be tried."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    inserted = [f"{origin}/.well-known/{name}{path}" for name in ("oauth-authorization-server", "openid-configuration")]
    return [*inserted, f"{origin}{path}/.well-known/openid-configuration"] if path else inserted


async def _object_at(url: str, fetch: Fetch) -> dict[str, Any] | None:
    """None if there is none; the page of an error does not count."""
    fetched = await fetch(FetchRequest(url=url))
    return read_object(fetched.body) if fetched.status == 200 else None


def _fitting(keys: Sequence[TokenKey], kid: str | None, algorithm: str) -> Sequence[TokenKey]:
    return [key for key in keys if key.fits(kid, algorithm)][:8]


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
        if not issuer:
            raise SetupError('Jwt: name the issuer as its tokens do, such as Jwt("https://login.example.com", …)')
        self.issuer = issuer
        self._audiences = _checked_audiences(audience)
        self._algorithms = _checked_algorithms(algorithms, secret is not None)
        if not 0 <= leeway <= MAX_LEEWAY:
            raise SetupError(f"Jwt: leeway={leeway!r} is not possible; it is 0 to {MAX_LEEWAY:g} seconds")
        self._leeway = leeway
        self._scope_claim = scope_claim
        given = {"jwks_uri": jwks_uri, "jwks": jwks, "public_key": public_key, "secret": secret}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise SetupError(f"Jwt: keys come from one place, not from {' and '.join(named)}; give one of them")
        self._keys: Sequence[TokenKey] | RemoteKeys
        if jwks is not None:
            self._keys = _written_keys(jwks, self._algorithms)
        elif public_key is not None:
            self._keys = [pem_key(public_key, self._algorithms)]
        elif secret is not None:
            self._keys = [secret_key(secret, self._algorithms)]
        else:
            self._keys = self._remote_keys(jwks_uri, fetch)

    def __repr__(self) -> str:
        return f"Jwt({self.issuer!r})"

    async def verify(self, token: str) -> Principal | None:
        """Raises VerifierUnavailable if the keys can't be had."""
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
            and str("jwt" if header.get("typ") is None else header["typ"]).lower() in TYPES  # some say nothing
            and claims.get("iss") == self.issuer
            and meant_for(claims, self._audiences)
            and in_time(claims, time.time(), self._leeway, needs_end=True)
        )

    async def _is_signed(self, token: SignedToken) -> bool:
        kid, algorithm = token.header.get("kid"), token.header["alg"]
        if kid is not None and not (isinstance(kid, str) and len(kid) <= 256):
            return False
        if isinstance(self._keys, RemoteKeys):
            keys = await self._keys.find(kid, algorithm)
        else:
            keys = _fitting(self._keys, kid, algorithm)
        return any(key.signed(token, algorithm) for key in keys)

    def _remote_keys(self, jwks_uri: str | None, fetch: Fetch | None) -> RemoteKeys:
        where = self.issuer if jwks_uri is None else jwks_uri
        if not may_hold_keys(where, where):
            raise SetupError(f"Jwt: {where!r} is not https; keys that somebody changed on the way would let anybody in")
        if fetch is None:
            fetch = make_fetch(allow_private=True, allow_loopback=names_this_machine(where), max_bytes=256 * 1024)
        return RemoteKeys(fetch, issuer=self.issuer, jwks_uri=jwks_uri, algorithms=self._algorithms)


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
