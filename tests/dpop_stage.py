"""A client's key for tests: the method and the URL of a request go in, its headers with a fresh DPoP proof come out."""

import base64
import hashlib
import json
import secrets
import time
from typing import Any

from joserfc import jwk, jws

NEW = jws.JWSRegistry(algorithms=["ES256"], strict_check_header=False)


class Prover:
    """Holds a key, and proves it anew for every request."""

    def __init__(self) -> None:
        self._key = jwk.ECKey.generate_key("P-256")

    @property
    def bound(self) -> dict[str, Any]:
        """The claim of a token that is good for this key only."""
        return {"cnf": {"jkt": self._key.thumbprint()}}

    def headers(self, method: str, url: str, token: str, **changed: Any) -> dict[str, str]:
        """Of one request; `changed` are words of the proof, as a `nonce`."""
        digest = hashlib.sha256(token.encode()).digest()
        ath = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        said = {"jti": secrets.token_urlsafe(12), "htm": method, "htu": url, "iat": time.time(), "ath": ath, **changed}
        heading = {"typ": "dpop+jwt", "alg": "ES256", "jwk": self._key.as_dict(private=False)}
        proof = jws.serialize_compact(heading, json.dumps(said).encode(), self._key, registry=NEW)
        return {"authorization": f"DPoP {token}", "dpop": proof}
