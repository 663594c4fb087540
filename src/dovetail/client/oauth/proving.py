"""DPoP on the client (RFC 9449): requests come in, and the header that proves the key of their token goes out."""

import re
from collections.abc import Mapping

from dovetail.client.address import ServerAddress
from dovetail.client.oauth.keys import ProofKey, nonce_in

HEADER = "DPoP"
_NONCE = re.compile(r"[!#-\[\]-~]{1,512}")


class Proving:
    """One key, and the latest nonce of each origin."""

    def __init__(self, jwk: Mapping[str, str] | None = None) -> None:
        self.key = ProofKey(jwk)
        self._nonces: dict[tuple[str, str, int], str] = {}

    def header(self, method: str, url: str, token: str | None = None) -> dict[str, str]:
        return {HEADER: self.key.proof(method, url, token=token, nonce=self._nonces.get(ServerAddress.of(url).origin))}

    def learn(self, url: str, nonce: str | None, sent: Mapping[str, str]) -> bool:
        """Whether it is another one than that of the request, so that the request may succeed with it."""
        if nonce is None or not _NONCE.fullmatch(nonce):
            return False
        self._nonces[ServerAddress.of(url).origin] = nonce
        return nonce_in(sent.get(HEADER, "")) != nonce
