"""Keys of a client: signed assertions (RFC 7523) and DPoP proofs (RFC 9449)."""

import hashlib
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.auth.jose import OWN_ALGORITHM, SigningKey, private_key
from dovetail.client.transports.base import ServerUrl
from dovetail.protocol.pagination import encode_base64url


class ClientKey:
    """A private key for client authentication; its `repr` shows nothing."""

    def __init__(self, key: str | bytes | Mapping[str, Any], *, key_id: str | None = None, who: str = "OAuth") -> None:
        self._key = private_key(key, who)
        self._id = key_id or self._key.kid

    def __repr__(self) -> str:
        return "ClientKey()"

    def assertion(self, client_id: str, audience: str, supported: Sequence[str] | None) -> str:
        """A signed assertion of the client id, for one authorization server and one minute."""
        algorithms = self._key.algorithms
        usable = [name for name in algorithms if supported is None or name in supported]
        now = int(time.time())
        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": audience,
            "iat": now,
            "exp": now + 60,
            "jti": secrets.token_urlsafe(16),
        }
        header = {"typ": "JWT", "alg": next(iter(usable), algorithms[0])}
        return self._key.sign({**header, **({} if self._id is None else {"kid": self._id})}, claims)


_NONCE = re.compile(r"[!#-\[\]-~]{1,512}")


class DpopProofs:
    """DPoP proofs by one key, with the latest nonce of each origin."""

    def __init__(self, jwk: Mapping[str, str] | None = None) -> None:
        self.key = SigningKey(jwk or SigningKey.new().jwk)
        self._nonces: dict[tuple[str, str, int], str] = {}

    def header(self, method: str, url: str, token: str | None = None) -> dict[str, str]:
        nonce, public = self._nonces.get(ServerUrl.parse(url).origin), self.key.public
        claims = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": url.partition("#")[0].partition("?")[0],
            "iat": int(time.time()),
            **({} if token is None else {"ath": encode_base64url(hashlib.sha256(token.encode()).digest())}),
            **({} if nonce is None else {"nonce": nonce}),
        }
        jwk = {name: public[name] for name in ("kty", "crv", "x", "y")}
        return {"DPoP": self.key.key.sign({"typ": "dpop+jwt", "alg": OWN_ALGORITHM, "jwk": jwk}, claims)}

    def remember_nonce(self, url: str, nonce: str | None) -> bool:
        """Store the nonce of a response; True if it is valid, so that the request should be sent again with it."""
        if nonce is None or not _NONCE.fullmatch(nonce):
            return False
        self._nonces[ServerUrl.parse(url).origin] = nonce
        return True
