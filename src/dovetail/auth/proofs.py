"""Proofs that somebody has a key (DPoP, RFC 9449 4.2): the text of one comes in, its key and what it says go out.

Who sent it chose the key, so nothing here means that somebody may do something: that is for `dpop` to say.
"""

import hashlib
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from dovetail.auth.jose import PRIVATE_MEMBERS, SignedToken, TokenKey, read_keys, read_token
from dovetail.protocol.pagination import encode_base64url

MAX_PROOF = 8192  # characters; one with an RSA key of 4096 bits has some 2,500
KEPT_KEYS = 1000  # that need not be read again
TYPE = "dpop+jwt"

_EC = ("crv", "kty", "x", "y")
_OKP = ("crv", "kty", "x")
_RSA = ("e", "kty", "n")
_KEYS = {  # by algorithm: members that make up the key, as RFC 7638 sorts them, and what two of them have to be
    "ES256": (_EC, "EC", "P-256"),
    "ES384": (_EC, "EC", "P-384"),
    "Ed25519": (_OKP, "OKP", "Ed25519"),
    "EdDSA": (_OKP, "OKP", "Ed25519"),
    "PS256": (_RSA, "RSA", None),
    "RS256": (_RSA, "RSA", None),
}
ALGORITHMS = tuple(_KEYS)  # none with a shared secret: who can check such a proof could make it


class BadProof(Exception):
    """A text that proves nothing. The message is for whoever sent it."""


class Proof(msgspec.Struct, frozen=True):
    """What a proof says, under the names of RFC 9449."""

    jti: str
    htm: str
    htu: str
    iat: float
    ath: str | None = None
    nonce: str | None = None


class SignedProof(NamedTuple):
    """A proof before its signature was looked at, and the public key that it carries."""

    token: SignedToken
    algorithm: str
    key: tuple[tuple[str, str], ...]

    @property
    def thumbprint(self) -> str:
        """RFC 7638."""
        return encode_base64url(hashlib.sha256(msgspec.json.encode(dict(self.key))).digest())

    def opened(self) -> Proof:
        """What it says, if its key has signed that. Raises BadProof."""
        key = _imported(self.algorithm, self.key)
        if key is None or not key.signed(self.token, self.algorithm):
            raise BadProof("The signature of the DPoP proof is not good, or its key is not")
        try:
            return msgspec.convert(self.token.claims, Proof)
        except ValueError:
            raise BadProof("The DPoP proof lacks one of jti, htm, htu and iat, or they are of the wrong type") from None


def read_proof(text: str) -> SignedProof:
    """Cheap: the signature is not looked at. Raises BadProof."""
    token = read_token(text) if len(text) <= MAX_PROOF else None
    if token is None:
        raise BadProof("The DPoP header is not one signed proof of a reasonable size")
    typ, algorithm = token.header.get("typ"), token.header.get("alg")
    if not isinstance(typ, str) or typ.lower() != TYPE:
        raise BadProof(f"The DPoP proof is not of the type {TYPE}")
    if not isinstance(algorithm, str) or algorithm not in _KEYS:
        raise BadProof(f"The DPoP proof has to be signed with one of: {', '.join(ALGORITHMS)}")
    return SignedProof(token, algorithm, _public_key(token.header.get("jwk"), algorithm))


def _public_key(jwk: Any, algorithm: str) -> tuple[tuple[str, str], ...]:
    """Only what makes it this key: nobody's thumbprint depends on more, and nothing else of it counts."""
    members, kind, curve = _KEYS[algorithm]
    if not isinstance(jwk, dict):
        raise BadProof("The DPoP proof carries no key")
    if not PRIVATE_MEMBERS.isdisjoint(jwk):
        raise BadProof("The DPoP proof carries a private key; that key is not to be used any more")
    if jwk.get("kty") != kind or (curve is not None and jwk.get("crv") != curve):
        raise BadProof("The key in the DPoP proof does not fit its algorithm")
    if not all(isinstance(jwk.get(name), str) for name in members):
        raise BadProof("The key in the DPoP proof can't be read")
    return tuple((name, jwk[name]) for name in members)


@lru_cache(maxsize=KEPT_KEYS)
def _imported(algorithm: str, key: tuple[tuple[str, str], ...]) -> TokenKey | None:
    return next(iter(read_keys({"keys": [dict(key)]}, (algorithm,))), None)
