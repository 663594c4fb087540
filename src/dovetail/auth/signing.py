"""Signed texts of our own, and of programs whose keys we know: claims go in and a JWT comes out, and back.

What is not signed as it should be says nothing at all: then there are no claims. Here, as in `jose`, joserfc is used;
it is loaded by the first key.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.auth.jose import PRIVATE_MEMBERS, UnfitKey, strong_key
from dovetail.errors import SetupError
from dovetail.protocol.pagination import decode_base64url

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHM = "ES256"
ASSERTIONS = ("ES256", "RS256", "PS256")  # what programs may sign with
MAX_JWT = 16 * 1024  # characters
MAX_KEYS = 10  # of one program
ASSERTION_RSA_BITS = range(2048, 4097)  # strangers choose these keys: larger ones take longer

_PUBLIC = {"EC": ("crv", "x", "y"), "RSA": ("n", "e")}


def require_library(who: str) -> None:
    """Raises SetupError if nothing here can work."""
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise SetupError(f'{who} needs joserfc: pip install "dovetail-mcp[auth]"') from None


class SigningKey:
    """A private ES256 key. `jwk` is for whoever keeps it, `public` for everybody."""

    def __init__(self, jwk: Mapping[str, str]) -> None:
        from joserfc.jwk import ECKey

        self._key = ECKey.import_key(dict(jwk))
        self.id: str = self._key.thumbprint()

    @classmethod
    def new(cls) -> "SigningKey":
        from joserfc.jwk import ECKey

        made = ECKey.generate_key("P-256", private=True)
        return cls(_texts(made.as_dict(private=True)))

    @property
    def jwk(self) -> dict[str, str]:
        """With the private part."""
        return _texts(self._key.as_dict(private=True))

    @property
    def public(self) -> dict[str, str]:
        bare = _texts(self._key.as_dict(private=False))
        return {**bare, "kid": self.id, "use": "sig", "alg": ALGORITHM}

    def sign(self, claims: Mapping[str, Any], type: str) -> str:
        from joserfc import jwt

        return jwt.encode({"alg": ALGORITHM, "typ": type, "kid": self.id}, dict(claims), self._key)

    def read(self, token: str, type: str) -> dict[str, Any] | None:
        """The claims of what this key has signed as such a type; None for everything else."""
        return _read(token, self._key, [ALGORITHM], type)


def check_public_keys(jwks: object) -> str | None:
    """What is wrong with the keys of a program, in words; None if they are good."""
    keys = jwks.get("keys") if isinstance(jwks, Mapping) else None
    if not isinstance(keys, list) or not 0 < len(keys) <= MAX_KEYS:
        return f'jwks must be {{"keys": [...]}} with 1 to {MAX_KEYS} keys'
    for key in keys:
        parts = _PUBLIC.get(str(key.get("kty"))) if isinstance(key, dict) else None
        if parts is None or not all(isinstance(key.get(part), str) for part in parts):
            return "jwks holds something that is no public EC or RSA key"
        if PRIVATE_MEMBERS & key.keys():
            return "jwks holds a private key; it is not secret any more, make another"
    return _why_unusable(keys)


def read_assertion(token: str, jwks: Mapping[str, Any]) -> dict[str, Any] | None:
    """The claims of what one of these public keys has signed; None for everything else."""
    for key in _imported(jwks).keys:
        claims = _read(token, key, ASSERTIONS, None)
        if claims is not None:
            return claims
    return None


def unproven_subject(token: str) -> str | None:
    """Who a token says it is of, which anybody may write; only good to find the keys that prove it."""
    parts = token.split(".") if len(token) <= MAX_JWT else []
    if len(parts) != 3:
        return None
    try:
        claims = msgspec.json.decode(decode_base64url(parts[1]))
    except (ValueError, RecursionError):
        return None
    subject = claims.get("sub") if isinstance(claims, dict) else None
    return subject if isinstance(subject, str) else None


def _read(token: str, key: Any, algorithms: Sequence[str], type: str | None) -> dict[str, Any] | None:
    from joserfc import jwt
    from joserfc.errors import JoseError

    if len(token) > MAX_JWT or not token.isascii():
        return None
    try:
        found = jwt.decode(token, key, algorithms=list(algorithms))
    except (JoseError, ValueError, TypeError, KeyError, RecursionError):  # whatever a text made by an enemy sets off
        return None
    if type is not None and found.header.get("typ") != type:
        return None
    claims: object = found.claims
    return claims if isinstance(claims, dict) else None


def _imported(jwks: Mapping[str, Any]) -> "KeySet":
    from joserfc.jwk import KeySet

    return KeySet.import_key_set({"keys": [_bare(key) for key in jwks["keys"]]})


def _bare(key: Mapping[str, Any]) -> dict[str, Any]:
    """Only what makes it up: `use`, `alg` and the like are said by whoever sends it, and checked by nobody else."""
    return {part: key[part] for part in ("kty", *_PUBLIC[key["kty"]])}


def _why_unusable(keys: Sequence[Mapping[str, Any]]) -> str | None:
    from joserfc.errors import JoseError

    try:
        for key in keys:
            strong_key(_bare(key), bits=ASSERTION_RSA_BITS)
    except UnfitKey:
        least, most = ASSERTION_RSA_BITS.start, ASSERTION_RSA_BITS.stop - 1
        return f"an RSA key must have {least} to {most} bits, and a small exponent, such as 65537"
    except (JoseError, ValueError, TypeError, KeyError):
        return "jwks holds a key that can't be read"
    return None


def _texts(jwk: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in jwk.items() if isinstance(value, str)}
