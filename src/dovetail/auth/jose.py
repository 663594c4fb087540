"""JOSE by way of joserfc: signed tokens (JWS), public keys (JWK) and our own signatures.

A token can't choose its algorithm: a key knows which ones it is for, and the verifier which ones it accepts. Header
members with keys or URLs of keys (`jku`, `jwk`, `x5u`, `x5c`) are ignored. joserfc is loaded by the first key.
"""

import json
import re
import warnings
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dovetail.auth.principal import MAX_TOKEN
from dovetail.errors import SetupError
from dovetail.protocol.pagination import decode_base64url

if TYPE_CHECKING:
    from joserfc.jwk import Key

MAX_KEYS = 100  # of one set
RSA_BITS = range(2048, 8193)  # smaller keys can be broken, larger ones take long
MIN_SECRET = 32  # bytes

OWN_ALGORITHM = "ES256"
ASSERTIONS = ("ES256", "RS256", "PS256")  # algorithms for clients of our authorization server
ASYMMETRIC = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)  # fmt: skip
_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}  # a secret is at least as long as the digest: RFC 7518, 3.2
SYMMETRIC = tuple(_SECRET_BYTES)
_KINDS = ("RSA", "EC", "OKP")
_EDDSA_CURVES = ("Ed25519", "Ed448")  # other OKP curves can't sign
PRIVATE_MEMBERS = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))  # of a JWK
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
PUBLIC_MEMBERS = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}  # of a JWK


class SignedToken(NamedTuple):
    """The parts of a token whose signature is not verified."""

    header: dict[str, Any]
    claims: dict[str, Any]
    message: bytes  # that is signed
    signature: bytes

    def __repr__(self) -> str:
        return "SignedToken()"  # the parts are the token, which is secret


class TokenKey:
    """A key that verifies tokens, or signs them if it is private. Its `repr` does not show it."""

    def __init__(self, key: "Key", algorithms: Iterable[str]) -> None:
        """Raises ValueError for a key that can't verify a signature of any of these algorithms."""
        from joserfc.errors import JoseError
        from joserfc.jwa import JWS_ALGORITHMS

        self._key = key
        self._models: dict[str, Any] = {}
        for model in JWS_ALGORITHMS:
            if model.name in ASYMMETRIC + SYMMETRIC and model.name in algorithms:
                with suppress(JoseError):
                    model.check_key(key)
                    key.check_key_op("verify")
                    if model.name != "EdDSA" or getattr(key, "curve_name", None) in _EDDSA_CURVES:
                        self._models[model.name] = model
        if not self._models:
            raise ValueError("no key for these algorithms")
        self.kid = key.kid
        self.is_private: bool = key.is_private
        self.algorithms = tuple(self._models)

    def __repr__(self) -> str:
        return f"TokenKey({', '.join(self._models)})"

    def matches(self, kid: str | None, algorithm: str) -> bool:
        """Whether the key may have signed such a token. A missing key id, of the key or the token, matches any."""
        return algorithm in self._models and (kid is None or self.kid is None or self.kid == kid)

    def verifies(self, token: SignedToken, algorithm: str) -> bool:
        from joserfc.errors import JoseError

        try:
            return bool(self._models[algorithm].verify(token.message, token.signature, self._key))
        except (JoseError, ValueError):
            return False

    def sign(self, header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
        """A token signed with the algorithm `alg` of its header."""
        from joserfc import jws

        registry = jws.JWSRegistry(algorithms=[header["alg"]], strict_check_header=False)
        return jws.serialize_compact(dict(header), msgspec.json.encode(claims), self._key, registry=registry)


def read_token(text: str) -> SignedToken | None:
    """Parse a signed token; None for any other text, and for a token that can't be verified here."""
    if len(text) > MAX_TOKEN or not _COMPACT.fullmatch(text):
        return None
    message = text.rpartition(".")[0]
    try:
        *parts, signature = map(decode_base64url, text.split("."))
    except ValueError:
        return None
    header, claims = map(read_object, parts)
    if header is None or claims is None:
        return None
    if "crit" in header or header.get("b64", True) is not True:
        return None  # it needs an extension that is not supported here
    return SignedToken(header, claims, message.encode(), signature)


def read_keys(document: Any, algorithms: Iterable[str] = ASYMMETRIC) -> tuple[TokenKey, ...]:
    """The usable keys of a set (RFC 7517); others are skipped. Raises ValueError if it is no set."""
    keys = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise ValueError(f"there is no set of at most {MAX_KEYS} keys")
    found = (_read_key(each, algorithms) for each in keys)
    return tuple(key for key in found if key is not None)


def pem_key(pem: str | bytes, algorithms: Iterable[str] = ASYMMETRIC) -> TokenKey:
    """A public key, or the one of a certificate. Raises SetupError."""
    text = pem.encode() if isinstance(pem, str) else pem
    if b"PRIVATE" in text:
        raise SetupError("Jwt: public_key= holds a private key; only who makes tokens needs that one")
    if (key := _import_key(text, algorithms, "Jwt")) is not None:
        return key
    raise SetupError(
        f"Jwt: public_key= is no PEM of a public key for {', '.join(algorithms)}; "
        f"RSA keys have {RSA_BITS.start} to {RSA_BITS.stop - 1} bits"
    )


def private_key(given: str | bytes | Mapping[str, Any], who: str) -> TokenKey:
    """A private key from a PEM or a JWK. Raises SetupError."""
    key = _import_key(given.encode() if isinstance(given, str) else given, ASYMMETRIC, f"{who}: private_key=")
    if key is None or not key.is_private:
        words = "a strong private EC, RSA or Ed25519 key, as PEM without a password or as a JWK"
        raise SetupError(f"{who}: private_key= must be {words}")
    return key


def _import_key(given: bytes | Mapping[str, Any], algorithms: Iterable[str], who: str) -> TokenKey | None:
    """A key of any kind."""
    _, jose_error = require_library(who)
    kinds = (None,) if isinstance(given, Mapping) else _KINDS
    for kind in kinds:
        with suppress(jose_error, ValueError, TypeError, KeyError):
            return TokenKey(strong_key(given if isinstance(given, bytes) else dict(given), kind), algorithms)
    return None


def secret_key(secret: str | bytes, algorithms: Iterable[str] = SYMMETRIC) -> TokenKey:
    """A shared secret as a key. Raises SetupError."""
    joserfc_jwk, _ = require_library("Jwt")
    text = secret.encode() if isinstance(secret, str) else secret
    long_enough = [name for name in algorithms if len(text) >= _SECRET_BYTES.get(name, MIN_SECRET)]
    if not long_enough:
        raise SetupError(f"Jwt: secret= is too short; take {MIN_SECRET} random bytes or more")
    try:
        if b"-----BEGIN" in text:
            raise ValueError
        return TokenKey(joserfc_jwk.import_key(text, "oct"), long_enough)  # joserfc refuses all other public keys
    except ValueError:
        raise SetupError("Jwt: secret= holds a key that others may know; give it as public_key=") from None


def strong_key(given: bytes | dict[str, Any], kind: str | None = None) -> "Key":
    """A key from a PEM or a JWK. Raises ValueError for an RSA key too weak or too slow, joserfc's errors for no key."""
    joserfc_jwk, _ = require_library("Jwt")
    if isinstance(given, dict):
        if given.get("kty") == "RSA":  # before the import: joserfc warns of weak keys, and imports large ones slowly
            _check_strength(_bit_length(given["n"]), _bit_length(given["e"]))
        key: Key = joserfc_jwk.import_key(given, kind)
        return key
    with warnings.catch_warnings():  # affects all threads; but a PEM is imported when a server is made
        warnings.simplefilter("ignore")  # of a weak key, which is refused here
        key = joserfc_jwk.import_key(given, kind)
    if key.key_type == "RSA":
        public: Any = key.public_key
        _check_strength(public.key_size, public.public_numbers().e.bit_length())
    return key


def _bit_length(number: str) -> int:
    return int.from_bytes(urlsafe_b64decode(number + "==")).bit_length()  # a JWK has no padding


def _check_strength(size: int, exponent: int) -> None:
    if size not in RSA_BITS or exponent > 64:
        raise ValueError


def _read_key(jwk: Any, algorithms: Iterable[str]) -> TokenKey | None:
    require_library("Jwt")  # outside of the `try`: it raises SetupError
    if not isinstance(jwk, dict) or jwk.get("kty") not in _KINDS or "d" in jwk:
        return None  # a shared secret or a private key, which must not be in a public set
    try:
        return TokenKey(strong_key(jwk), algorithms)
    except Exception:  # invalid, or not supported here: the others of its set may be good
        return None


def require_library(who: str) -> tuple[Any, type[Exception]]:
    """The module of keys, and the error. Raises SetupError if joserfc is not installed."""
    try:
        from joserfc import jwk
        from joserfc.errors import JoseError
    except ImportError:
        raise SetupError(f'{who} needs joserfc: pip install "dovetail-mcp[auth]"') from None
    return jwk, JoseError


def read_object(data: bytes) -> dict[str, Any] | None:
    """A JSON object of reasonable size without duplicate names, which two parsers could read in two ways."""
    if data.count(b"{") + data.count(b"[") > 512:  # so the depth is limited, too
        return None
    try:
        msgspec.json.decode(data)  # refuses NaN, half surrogate pairs and huge numbers, which `json` accepts
        found = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs) or len(pairs) > 256:
        raise ValueError
    return found


# ── signatures of our own, and of registered clients ──


class SigningKey:
    """A private ES256 key. `jwk` holds the private part, for a store; `public` is for publication."""

    def __init__(self, jwk: Mapping[str, str]) -> None:
        from joserfc.jwk import ECKey

        self.jwk = dict(jwk)
        imported = ECKey.import_key(dict(jwk))
        self.key = TokenKey(imported, [OWN_ALGORITHM])
        self.id: str = imported.thumbprint()

    @classmethod
    def new(cls) -> "SigningKey":
        from joserfc.jwk import ECKey

        generated = ECKey.generate_key("P-256", private=True).as_dict(private=True)
        return cls({name: str(generated[name]) for name in (*PUBLIC_MEMBERS["EC"], "d")})

    @property
    def public(self) -> dict[str, str]:
        return {**_public_part(self.jwk), "kid": self.id, "use": "sig", "alg": OWN_ALGORITHM}

    def sign(self, claims: Mapping[str, Any], type: str) -> str:
        return self.key.sign({"alg": OWN_ALGORITHM, "typ": type, "kid": self.id}, claims)

    def read(self, token: str, type: str) -> dict[str, Any] | None:
        """The claims of a token of this type that this key has signed; None for any other."""
        signed = read_token(token)
        if signed is None or signed.header.get("typ") != type or not _is_signed_by(self.key, signed):
            return None
        return signed.claims


def check_public_keys(jwks: object) -> str | None:
    """The problem with the keys of a client, in words; None if they are valid."""
    keys = jwks.get("keys") if isinstance(jwks, Mapping) else None
    if not isinstance(keys, list) or not 0 < len(keys) <= 10:
        return 'jwks must be {"keys": [...]} with 1 to 10 keys'
    for key in keys:
        if not isinstance(key, dict) or key.get("kty") not in ("EC", "RSA"):
            return "jwks holds something that is no public EC or RSA key"
        if PRIVATE_MEMBERS & key.keys():
            return "jwks holds a private key; it is not secret any more, make another"
        try:
            strong_key(_public_part(key))
        except (require_library("Jwt")[1], ValueError, TypeError, KeyError, AttributeError):
            return "jwks holds a key that can't be read, or an RSA key that is weak, huge, or of a large exponent"
    return None


def read_assertion(token: str, jwks: Mapping[str, Any]) -> dict[str, Any] | None:
    """The claims of an assertion that one of these public keys has signed; None for any other."""
    signed = read_token(token)
    keys = read_keys({"keys": [_public_part(key) for key in jwks["keys"]]}, ASSERTIONS)
    return signed.claims if signed is not None and any(_is_signed_by(key, signed) for key in keys) else None


def unverified_subject(token: str) -> str | None:
    """The claim `sub` without any verification; only to find the keys to verify the token with."""
    signed = read_token(token)
    subject = None if signed is None else signed.claims.get("sub")
    return subject if isinstance(subject, str) else None


def _is_signed_by(key: TokenKey, token: SignedToken) -> bool:
    algorithm = token.header.get("alg")
    return isinstance(algorithm, str) and key.matches(None, algorithm) and key.verifies(token, algorithm)


def _public_part(key: Mapping[str, Any]) -> dict[str, Any]:
    """The public part of a key without `use`, `alg` and the like, which are not trusted."""
    return {name: key[name] for name in PUBLIC_MEMBERS[key["kty"]]}
