"""Keys of a client: signed assertions (RFC 7523) and DPoP proofs (RFC 9449).

Only this module of the client uses joserfc, and loads it at the first key.
"""

import hashlib
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dovetail.auth.jose import OWN_ALGORITHM, SigningKey
from dovetail.client.transports.url import ServerUrl
from dovetail.errors import SetupError
from dovetail.protocol.pagination import encode_base64url

_KINDS = ("EC", "RSA", "OKP")
_ALGORITHMS = {  # by kind of key and curve: what it can sign with, the usual one first
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA", "Ed25519"),
    ("RSA", None): ("RS256", "PS256", "RS384", "PS384", "RS512", "PS512"),
}


class ClientKey:
    """A private key with which a program proves who it is; shows nothing of itself."""

    def __init__(self, key: str | bytes | Mapping[str, Any], *, key_id: str | None = None, who: str = "OAuth") -> None:
        self._key = _imported(key, who)
        self._id = key_id or getattr(self._key, "kid", None)
        self._algorithms = _ALGORITHMS.get((self._key.key_type, getattr(self._key, "curve_name", None)), ())
        if not self._algorithms or not self._key.is_private:
            raise SetupError(f"{who}: private_key= must be a private EC, RSA or Ed25519 key, as PEM or as a JWK")

    def __repr__(self) -> str:
        return "ClientKey()"

    def assertion(self, client_id: str, audience: str, supported: Sequence[str] | None) -> str:
        """That this is the program `client_id`, for this authorization server only and for a moment."""
        usable = [name for name in self._algorithms if supported is None or name in supported]
        now = int(time.time())
        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": audience,
            "iat": now,
            "exp": now + 60,
            "jti": secrets.token_urlsafe(16),
        }
        header = {"typ": "JWT", "alg": next(iter(usable), self._algorithms[0])}
        return _signed({**header, **({} if self._id is None else {"kid": self._id})}, claims, self._key)


class ProofKey(SigningKey):
    """The key that tokens are bound to, made for them."""

    def proof(self, method: str, url: str, *, token: str | None = None, nonce: str | None = None) -> str:
        """For one request only."""
        public = self.public
        claims = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": url.partition("#")[0].partition("?")[0],
            "iat": int(time.time()),
            **({} if token is None else {"ath": encode_base64url(hashlib.sha256(token.encode()).digest())}),
            **({} if nonce is None else {"nonce": nonce}),
        }
        carried = {name: public[name] for name in ("kty", "crv", "x", "y")}
        return _signed({"typ": "dpop+jwt", "alg": OWN_ALGORITHM, "jwk": carried}, claims, self._key)


def require_keys(what: str) -> None:
    """Raises SetupError if nothing here can work."""
    _joserfc(what)


def _signed(header: Mapping[str, Any], claims: Mapping[str, Any], key: Any) -> str:
    from joserfc import jws

    registry = jws.JWSRegistry(algorithms=[header["alg"]], strict_check_header=False)
    return jws.serialize_compact(dict(header), msgspec.json.encode(claims), key, registry=registry)


def _imported(given: str | bytes | Mapping[str, Any], who: str) -> Any:
    joserfc_jwk, jose_error = _joserfc(f"{who}: private_key=")
    if isinstance(given, Mapping):
        attempts: list[tuple[Any, ...]] = [(dict(given),)]
    else:
        pem = given.encode() if isinstance(given, str) else given
        attempts = [(pem, kind) for kind in _KINDS]
    for attempt in attempts:
        try:
            return joserfc_jwk.import_key(*attempt)
        except (jose_error, ValueError, TypeError, KeyError):
            continue
    raise SetupError(f"{who}: private_key= can't be read; it is the text of a PEM file without a password, or a JWK")


def _joserfc(what: str) -> tuple[Any, type[Exception]]:
    try:
        from joserfc import jwk
        from joserfc.errors import JoseError
    except ImportError:
        raise SetupError(f'{what} needs joserfc: pip install "dovetail-mcp[client,auth]"') from None
    return jwk, JoseError


HEADER = "DPoP"
_NONCE = re.compile(r"[!#-\[\]-~]{1,512}")


class DpopProofs:
    """One key, and the latest nonce of each origin."""

    def __init__(self, jwk: Mapping[str, str] | None = None) -> None:
        self.key = ProofKey(jwk or SigningKey.new().jwk)
        self._nonces: dict[tuple[str, str, int], str] = {}

    def header(self, method: str, url: str, token: str | None = None) -> dict[str, str]:
        return {HEADER: self.key.proof(method, url, token=token, nonce=self._nonces.get(ServerUrl.of(url).origin))}

    def learn(self, url: str, nonce: str | None) -> bool:
        """Whether there is one, so that the request may succeed with it."""
        if nonce is None or not _NONCE.fullmatch(nonce):
            return False
        self._nonces[ServerUrl.of(url).origin] = nonce
        return True
