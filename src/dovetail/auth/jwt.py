"""Verifier of signed tokens (RFC 9068): `Jwt`, and the keys of its issuer.

Claims are checked first: a token of another issuer, or for another server, costs no request and no signature.

Keys are fetched again when they are old, and when a token names an unknown key, but at most every `REFRESH_COOLDOWN`
seconds. While the issuer does not respond, the old keys stay valid for a while.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from dovetail.auth import jose
from dovetail.auth.fetch import Fetch, FetchFailed, FetchRequest, is_loopback_url, make_fetch, shown
from dovetail.auth.principal import (
    Principal,
    VerifierUnavailable,
    has_audience,
    is_in_lifetime,
    normalized_url,
    to_principal,
)
from dovetail.errors import SetupError

LEEWAY = 60.0  # seconds that clocks may differ
MAX_LEEWAY = 600.0  # seconds
REFRESH_AFTER = 600.0  # seconds after which keys are fetched again
EXPIRE_AFTER = 3600.0  # seconds after which they are not used any more
REFRESH_COOLDOWN = 30.0  # seconds between two requests for keys, if the first succeeded
RETRY_DELAY = 5.0  # seconds between two requests for keys, if the first failed
MAX_CANDIDATES = 8  # keys that are tried for one token
Clock = Callable[[], float]
TYPES = frozenset(("at+jwt", "application/at+jwt", "jwt", "application/jwt"))


class RemoteKeys:
    """Keys that the issuer publishes, at `jwks_uri` or at the URL in its metadata."""

    def __init__(
        self, fetch: Fetch, issuer: str, jwks_uri: str | None, algorithms: Sequence[str], clock: Clock = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._algorithms = algorithms
        self._clock = clock
        self._keys: tuple[jose.TokenKey, ...] = ()
        self._fetched_at = float("-inf")
        self._attempted_at = float("-inf")
        self._failure: str | None = None  # of the last request
        self._request: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> Sequence[jose.TokenKey]:
        found = self._matching(kid, algorithm)
        if found and self._clock() - self._fetched_at < REFRESH_AFTER:
            return found
        request = self._refresh_task()
        if request is not None and not found:
            await asyncio.shield(request)  # other tokens wait for it, too, when this caller disconnects
            found = self._matching(kid, algorithm)
        if not found and self._failure is not None:
            raise VerifierUnavailable(f"the keys of {shown(self._issuer)} can't be had: {self._failure}")
        return found

    def _matching(self, kid: str | None, algorithm: str) -> Sequence[jose.TokenKey]:
        has_expired = self._clock() - self._fetched_at >= EXPIRE_AFTER
        return () if has_expired else _matching(self._keys, kid, algorithm)

    def _refresh_task(self) -> "asyncio.Task[None] | None":
        """The running request, or a new one if it is time for one."""
        if self._request is not None and not self._request.done():
            return self._request
        now, delay = self._clock(), REFRESH_COOLDOWN if self._failure is None else RETRY_DELAY
        if now - self._attempted_at < delay:
            return None
        self._attempted_at = now
        self._request = asyncio.create_task(self._refresh())
        return self._request

    async def _refresh(self) -> None:
        try:
            url = self._jwks_uri or await discover(self._issuer, self._fetch)
            keys = jose.read_keys(await _fetch_object(url, self._fetch), self._algorithms)
            if not keys:
                raise ValueError("none of them may be used here")
        except (FetchFailed, ValueError) as failure:
            self._failure = str(failure)
        except Exception as failure:  # of the author's own fetch
            self._failure = f"the fetch failed with {type(failure).__name__}"
        else:
            self._keys, self._fetched_at, self._failure = keys, self._clock(), None


async def discover(issuer: str, fetch: Fetch) -> str:
    """The `jwks_uri` in the metadata of an issuer (RFC 8414, OpenID Connect). Raises ValueError."""
    problem = "it has no metadata"
    for url in metadata_urls(issuer):
        document = await _fetch_object(url, fetch)
        if document is None:
            continue
        jwks_uri = document.get("jwks_uri")
        if document.get("issuer") != issuer:  # byte for byte
            problem = f"the metadata at {shown(url)} is of another issuer"
        elif isinstance(jwks_uri, str) and is_secure_url(jwks_uri, issuer):
            return jwks_uri
        else:
            problem = f"the metadata at {shown(url)} names no https URL of keys"
    raise ValueError(problem)


def is_secure_url(url: str, issuer: str) -> bool:
    """Whether a URL is https; or http on this machine, if the issuer is on it, too."""
    if is_loopback_url(url):
        return is_loopback_url(issuer) and url.lower().startswith(("http://", "https://"))
    return url.lower().startswith("https://")


def metadata_urls(issuer: str) -> list[str]:
    """Possible URLs of the metadata of an issuer, in the order in which they have to be tried."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    inserted = [f"{origin}/.well-known/{name}{path}" for name in ("oauth-authorization-server", "openid-configuration")]
    return [*inserted, f"{origin}{path}/.well-known/openid-configuration"] if path else inserted


async def _fetch_object(url: str, fetch: Fetch) -> dict[str, Any] | None:
    response = await fetch(FetchRequest(url=url))
    return jose.read_object(response.body) if response.status == 200 else None


def _matching(keys: Sequence[jose.TokenKey], kid: str | None, algorithm: str) -> Sequence[jose.TokenKey]:
    return [key for key in keys if key.matches(kid, algorithm)][:MAX_CANDIDATES]


class Jwt:
    """Verifies the tokens of one issuer.

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
        """`issuer`: the claim `iss`, byte for byte. `audience`: the claim `aud`, usually the URL of this server.

        Keys: at `jwks_uri`, in `jwks`, the one `public_key` (PEM), or a shared `secret`; if none is given, at the URL
        in the metadata of the issuer. `algorithms`: of signatures; by default all that have public keys.
        `scope_claim`: the claim with the scopes, if not `scope` or `scp`.
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
        self._keys: Sequence[jose.TokenKey] | RemoteKeys
        if jwks is not None:
            self._keys = _keys_from_jwks(jwks, self._algorithms)
        elif public_key is not None:
            self._keys = [jose.pem_key(public_key, self._algorithms)]
        elif secret is not None:
            self._keys = [jose.secret_key(secret, self._algorithms)]
        else:
            self._keys = self._remote_keys(jwks_uri, fetch)

    def __repr__(self) -> str:
        return f"Jwt({self.issuer!r})"

    async def verify(self, token: str) -> Principal | None:
        """Verify a token. Raises VerifierUnavailable if the keys can't be fetched."""
        parts = jose.read_token(token)
        if parts is None or not self._has_valid_claims(parts):
            return None
        principal = to_principal(parts.claims, self.issuer, self._scope_claim)
        return principal if principal is not None and await self._has_valid_signature(parts) else None

    def _has_valid_claims(self, token: jose.SignedToken) -> bool:
        header, claims = token.header, token.claims
        return (
            header.get("alg") in self._algorithms
            and str("jwt" if header.get("typ") is None else header["typ"]).lower() in TYPES  # some issuers set no `typ`
            and claims.get("iss") == self.issuer
            and has_audience(claims, self._audiences)
            and is_in_lifetime(claims, time.time(), self._leeway, requires_exp=True)
        )

    async def _has_valid_signature(self, token: jose.SignedToken) -> bool:
        kid, algorithm = token.header.get("kid"), token.header["alg"]
        if kid is not None and not (isinstance(kid, str) and len(kid) <= 256):
            return False
        if isinstance(self._keys, RemoteKeys):
            keys = await self._keys.find(kid, algorithm)
        else:
            keys = _matching(self._keys, kid, algorithm)
        return any(key.verifies(token, algorithm) for key in keys)

    def _remote_keys(self, jwks_uri: str | None, fetch: Fetch | None) -> RemoteKeys:
        url = self.issuer if jwks_uri is None else jwks_uri
        if not is_secure_url(url, url):
            raise SetupError(f"Jwt: {url!r} is not https; an attacker in the network could replace the keys")
        if fetch is None:
            fetch = make_fetch(allow_private=True, allow_loopback=is_loopback_url(url), max_bytes=256 * 1024)
        return RemoteKeys(fetch, issuer=self.issuer, jwks_uri=jwks_uri, algorithms=self._algorithms)


def _checked_audiences(audience: object) -> frozenset[str]:
    named = [audience] if isinstance(audience, str) else audience
    if not isinstance(named, Collection) or not named or not all(isinstance(each, str) and each for each in named):
        raise SetupError("Jwt: audience= is what tokens for this server name; without it, tokens for others would do")
    return frozenset(normalized_url(each) for each in named)


def _checked_algorithms(algorithms: Sequence[str] | None, shared: bool) -> tuple[str, ...]:
    """Checked algorithms, all symmetric or all asymmetric, so that a public key is never used as a shared secret."""
    possible = jose.SYMMETRIC if shared else jose.ASYMMETRIC
    wanted = possible if algorithms is None else (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
    wrong = [name for name in wanted if name not in possible]
    if wrong or not wanted:
        keys = "a shared secret" if shared else "public keys"
        raise SetupError(f"Jwt: algorithms={wrong or wanted!r} is not possible with {keys}; use {', '.join(possible)}")
    return wanted


def _keys_from_jwks(jwks: object, algorithms: Sequence[str]) -> tuple[jose.TokenKey, ...]:
    try:
        keys = jose.read_keys(jwks, algorithms)
    except ValueError as problem:
        raise SetupError(f"Jwt: jwks=: {problem}") from None
    if not keys:
        raise SetupError("Jwt: jwks= holds no public key that may be used: strong, for signatures, of these algorithms")
    return keys
