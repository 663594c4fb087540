"""DPoP on the resource server (RFC 9449): proofs that a caller has the key that its token is bound to.

A token whose `cnf.jkt` names a key is valid only with a proof that this key has signed a moment ago, for this request
and token, and that was not used before. Used proofs are stored by `claim`: in the state of a fleet, or in `UsedProofs`.
All callers share that store, so the proofs of each caller are limited.
"""

import hashlib
import hmac
import math
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from dovetail.auth.jose import PRIVATE_MEMBERS, PUBLIC_MEMBERS, SignedToken, TokenKey, read_keys, read_token
from dovetail.errors import INTERNAL_ERROR, ProtocolError, RateLimited, Unauthorized
from dovetail.protocol.pagination import encode_base64url

Clock = Callable[[], float]
Claim = Callable[[str, float], Awaitable[bool]]  # stores a key for some seconds; False if it was stored already

LEEWAY = 300.0  # seconds that a proof may be old, or ahead
CLOCK_MARGIN = 60.0  # seconds by which the clocks of a fleet may differ
MAX_PROOF_LIFETIME = 2 * LEEWAY + CLOCK_MARGIN  # seconds that a used proof has to be stored
MAX_PROOF = 8192  # characters; one with an RSA key of 4096 bits has some 2,500
MAX_JTI = 256  # characters
TYPE = "dpop+jwt"

_KEYS = {  # by algorithm: the kind of key and its curve
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "Ed25519": ("OKP", "Ed25519"),
    "EdDSA": ("OKP", "Ed25519"),
    "PS256": ("RSA", None),
    "RS256": ("RSA", None),
}
ALGORITHMS = tuple(_KEYS)  # none with a shared secret: a server that can verify such a proof could forge it
_PORTS = {"https": 443, "http": 80}
_VISIBLE = re.compile(r"[!-~]+", re.ASCII)  # urlsplit silently drops some other characters
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})", re.ASCII)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Proof(msgspec.Struct, frozen=True):
    """The claims of a proof, under the names of RFC 9449."""

    jti: str
    htm: str
    htu: str
    iat: float
    ath: str | None = None
    nonce: str | None = None


class SignedProof(NamedTuple):
    """A proof whose signature is not verified yet, and the public key that it carries."""

    token: SignedToken
    algorithm: str
    key: tuple[tuple[str, str], ...]

    @property
    def thumbprint(self) -> str:
        """The thumbprint of the key (RFC 7638)."""
        return encode_base64url(hashlib.sha256(msgspec.json.encode(dict(self.key))).digest())

    def verified(self) -> Proof:
        """The claims, if the signature is valid. Raises Unauthorized."""
        key = _import_key(self.algorithm, self.key)
        if key is None or not key.verifies(self.token, self.algorithm):
            raise _refusal("The signature of the DPoP proof is not good, or its key is not")
        try:
            return msgspec.convert(self.token.claims, Proof)
        except ValueError:
            raise _refusal("The DPoP proof lacks one of jti, htm, htu and iat, or they are of the wrong type") from None


def read_proof(text: str) -> SignedProof:
    """Parse a proof, without its signature. Raises Unauthorized."""
    token = read_token(text) if len(text) <= MAX_PROOF else None
    if token is None:
        raise _refusal("The DPoP header is not one signed proof of a reasonable size")
    typ, algorithm = token.header.get("typ"), token.header.get("alg")
    if not isinstance(typ, str) or typ.lower() != TYPE:
        raise _refusal(f"The DPoP proof is not of the type {TYPE}")
    if not isinstance(algorithm, str) or algorithm not in _KEYS:
        raise _refusal(f"The DPoP proof has to be signed with one of: {', '.join(ALGORITHMS)}")
    return SignedProof(token, algorithm, _public_key(token.header.get("jwk"), algorithm))


def _public_key(jwk: Any, algorithm: str) -> tuple[tuple[str, str], ...]:
    """The members of a key that its thumbprint covers; all others are ignored."""
    kind, curve = _KEYS[algorithm]
    if not isinstance(jwk, dict):
        raise _refusal("The DPoP proof carries no key")
    if not PRIVATE_MEMBERS.isdisjoint(jwk):
        raise _refusal("The DPoP proof carries a private key; that key is not to be used any more")
    if jwk.get("kty") != kind or (curve is not None and jwk.get("crv") != curve):
        raise _refusal("The key in the DPoP proof does not fit its algorithm")
    members = PUBLIC_MEMBERS[kind]  # as RFC 7638 sorts them
    if not all(isinstance(jwk.get(name), str) for name in members):
        raise _refusal("The key in the DPoP proof can't be read")
    return tuple((name, jwk[name]) for name in members)


@lru_cache(maxsize=1000)
def _import_key(algorithm: str, key: tuple[tuple[str, str], ...]) -> TokenKey | None:
    return next(iter(read_keys({"keys": [dict(key)]}, (algorithm,))), None)


class UsedProofs:
    """The `claim` of one process. When it is full it refuses new proofs: dropping one would allow its replay."""

    def __init__(self, limit: int = 1_000_000, clock: Clock = time.monotonic) -> None:  # at about 100 bytes each
        self._limit = limit
        self._clock = clock
        self._window = 0
        self._digests: set[bytes] = set()
        self._older: set[bytes] = set()  # of the window before

    async def claim(self, key: str, _: float) -> bool:
        """Store a key for one to two times `MAX_PROOF_LIFETIME`; False if it was stored already."""
        if (window := int(self._clock() // MAX_PROOF_LIFETIME)) != self._window:
            self._older = self._digests if window == self._window + 1 else set()
            self._window, self._digests = window, set()
        digest = hashlib.sha256(key.encode()).digest()[:16]
        if digest in self._digests or digest in self._older:
            return False
        if len(self._digests) + len(self._older) >= self._limit:
            text = "Too many DPoP proofs were used in the last minutes; try again later"
            raise ProtocolError(text, code=INTERNAL_ERROR, http_status=503)
        self._digests.add(digest)
        return True


class DpopNonces(msgspec.Struct, frozen=True, eq=False):
    """Issues nonces without storing any: each is derived from a secret and a window of time.

    Workers with the same secrets accept the same nonces. Each nonce is valid for one to two times `seconds`.
    """

    secrets: Callable[[], Sequence[bytes]]  # called every time: the secrets of a fleet may change
    seconds: float = 150.0
    clock: Clock = time.time

    def issue(self) -> str:
        return _nonce(self.secrets()[0], int(self.clock() // self.seconds))

    def accepts(self, nonce: str) -> bool:
        given, window = nonce.encode("utf-8", "replace"), int(self.clock() // self.seconds)
        valid = [_nonce(secret, each) for secret in self.secrets() for each in (window, window - 1)]
        return any(hmac.compare_digest(given, each.encode()) for each in valid)


class DpopCheck(msgspec.Struct, eq=False):
    """Checks whether a request may use its token: raises Unauthorized, or RateLimited.

    check = DpopCheck(lambda key, seconds: state.claim(key, b"", seconds))
    """

    claim: Claim
    required: bool = False  # every request needs a proof
    nonces: DpopNonces | None = None  # every proof has to hold one of these
    max_per_caller: int = 50_000  # proofs of one caller in a window, by way of one worker
    clock: Clock = time.time
    _window: int = 0
    _used: Counter[str] = msgspec.field(default_factory=Counter)  # proofs in this window, by caller

    @property
    def nonce(self) -> str | None:
        """The `DPoP-Nonce` header of a response with the error `use_dpop_nonce`, and of any other."""
        return None if self.nonces is None else self.nonces.issue()

    @staticmethod
    def proof_header(headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The `DPoP` header of a request, which must have exactly one."""
        found = [value for name, value in headers if name == b"dpop"]
        if len(found) != 1:
            raise _refusal(f"The request has {len(found)} DPoP headers; it needs exactly one")
        return found[0].strip().decode("latin-1")

    def check_bearer(self, claims: Mapping[str, Any]) -> None:
        """Check a token sent as `Bearer`, which must not be bound to a key: a thief could send it like that."""
        if needs_proof(claims):
            raise _refusal("This token is bound to a key; send it as DPoP, with a proof", "invalid_token")
        if self.required:
            raise _refusal("This server takes only tokens that are bound to a key by DPoP", "invalid_token")

    async def check(
        self, proof: str, *, method: str, url: str, token: str, claims: Mapping[str, Any], caller: str
    ) -> None:
        """Check a token sent as `DPoP`. The signature is verified late, and only for the key of the token.

        `caller`: whose proofs are counted together.
        """
        signed = read_proof(proof)
        thumbprint = signed.thumbprint
        if not _is_bound(claims, thumbprint):
            raise _refusal("The token is not bound to the key of the DPoP proof", "invalid_token")
        verified = signed.verified()
        self._check_claims(verified, method=method, url=url, token=token)
        if self.nonces is not None and not self.nonces.accepts(verified.nonce or ""):
            raise _refusal("The DPoP proof has to hold the nonce that this answer carries", "use_dpop_nonce")
        self._check_count(caller)
        id = hashlib.sha256(f"{thumbprint} {verified.jti}".encode("utf-8", "replace")).hexdigest()
        if not await self.claim(f"dpop/{id}", verified.iat + LEEWAY + CLOCK_MARGIN - self.clock()):
            raise _refusal("This DPoP proof was used before")
        self._used[caller] += 1

    def _check_count(self, caller: str, seconds: float = LEEWAY + CLOCK_MARGIN) -> None:
        now = self.clock()
        if (window := int(now // seconds)) != self._window:
            self._window, self._used = window, Counter()
        if self._used[caller] >= self.max_per_caller:
            text = "Too many DPoP proofs of this caller were used in the last minutes; try again later"
            raise RateLimited(text, retry_after=max(1, math.ceil((window + 1) * seconds - now)))

    def _check_claims(self, proof: Proof, *, method: str, url: str, token: str) -> None:
        digest = encode_base64url(hashlib.sha256(token.encode("utf-8", "replace")).digest())
        if proof.htm != method:
            raise _refusal("The DPoP proof is for another method")
        if not same_target(proof.htu, url):
            raise _refusal("The DPoP proof is for another URL")
        if not abs(proof.iat - self.clock()) <= LEEWAY:
            raise _refusal("The DPoP proof is too old, or of the future")
        if not hmac.compare_digest((proof.ath or "").encode(), digest.encode()):
            raise _refusal("The DPoP proof is for another token")
        if not 0 < len(proof.jti) <= MAX_JTI:
            raise _refusal(f"The jti of the DPoP proof has to have 1 to {MAX_JTI} characters")


def needs_proof(claims: Mapping[str, Any]) -> bool:
    """Whether a token is bound to a key."""
    return isinstance(bound := claims.get("cnf"), Mapping) and "jkt" in bound


def same_target(htu: str, url: str) -> bool:
    """Whether both name the same resource; query and fragment do not count (RFC 9449 4.3, RFC 3986 6.2)."""
    wanted = _target(url)
    return wanted is not None and _target(htu) == wanted


def _target(url: str) -> tuple[str, str, int, str] | None:
    """Normalized scheme, host, port and path; None if it is no HTTP URL."""
    if not _VISIBLE.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    default = _PORTS.get(parts.scheme)  # urlsplit gives scheme and host in lower case
    if default is None or not parts.hostname or "@" in parts.netloc:
        return None
    path = _ESCAPED.sub(_normalize_escape, parts.path) or "/"
    return parts.scheme, parts.hostname, default if port is None else port, path


def _normalize_escape(escape: re.Match[str]) -> str:
    """A `%xx` in capitals, or the character itself where it need not be escaped."""
    character = chr(int(escape[1], 16))
    return character if character in _UNRESERVED else escape[0].upper()


def _is_bound(claims: Mapping[str, Any], thumbprint: str) -> bool:
    wanted = claims["cnf"]["jkt"] if needs_proof(claims) else None
    return isinstance(wanted, str) and hmac.compare_digest(wanted.encode("utf-8", "replace"), thumbprint.encode())


def _nonce(secret: bytes, window: int) -> str:
    return encode_base64url(hmac.digest(secret, b"dovetail dpop nonce %d" % window, "sha256")[:16])


def _refusal(message: str, error: str = "invalid_dpop_proof") -> Unauthorized:
    return Unauthorized(message, error=error)
