"""DPoP proofs for tests, good ones and bad ones; a check of them, and a client that proves its key."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from joserfc import jwk, jws

from dovetail.auth.dpop import DpopCheck
from dovetail.errors import Unauthorized
from dovetail.state.memory import MemoryState
from issuer_stage import encode as b64

NOW = 1_800_000_000.0
URL = "https://notes.example.com/mcp"
TOKEN = "an.access.token"

KEY = jwk.ECKey.generate_key("P-256")
OTHER = jwk.ECKey.generate_key("P-256")
RSA = jwk.RSAKey.generate_key(2048)
EDWARDS = jwk.OKPKey.generate_key("Ed25519")

Change = dict[str, Any]


ATH = b64(hashlib.sha256(TOKEN.encode()).digest())


def public(key: Any) -> dict[str, Any]:
    return dict(key.as_dict(private=False))


def bound(key: Any = KEY) -> dict[str, Any]:
    """The claims of a token that is bound to a key."""
    return {"sub": "ada", "cnf": {"jkt": key.thumbprint()}}


def signed(header: Mapping[str, Any], said: Any, key: Any) -> str:
    registry = jws.JWSRegistry(algorithms=[header["alg"]], strict_check_header=False)
    payload = said if isinstance(said, bytes) else json.dumps(said).encode()
    return jws.serialize_compact(dict(header), payload, key, registry=registry)


def without(changed: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out what is None, so that a table can take a member away."""
    return {name: value for name, value in changed.items() if value is not None}


def proof(header: Change | None = None, said: Change | None = None, *, key: Any = KEY, alg: str = "ES256") -> str:
    """A good one, but for the changes."""
    heading = {"typ": "dpop+jwt", "alg": alg, "jwk": public(key)} | (header or {})
    words = {"jti": b64(os.urandom(12)), "htm": "POST", "htu": URL, "iat": int(NOW), "ath": ATH} | (said or {})
    return signed(without(heading), without(words), key)


def forged(header: Any, said: Any = None, signature: bytes = b"x" * 64) -> str:
    """Any header whatsoever, which no library would sign."""
    heading = header if isinstance(header, bytes) else json.dumps(header).encode()
    return ".".join(map(b64, (heading, json.dumps(said or {}).encode(), signature)))


def remembering() -> Callable[[str, float], Any]:
    state = MemoryState()
    return lambda key, seconds: state.claim(key, b"", seconds)


def checker(claim: Callable[[str, float], Any] | None = None, **options: Any) -> DpopCheck:
    return DpopCheck(claim or remembering(), **{"clock": lambda: NOW} | options)


async def check(text: str, check: DpopCheck | None = None, **changed: Any) -> None:
    request = {"method": "POST", "url": URL, "token": TOKEN, "claims": bound(), "caller": "somebody"} | changed
    await (check or checker()).check(text, **request)


async def refused(text: str, error: str = "invalid_dpop_proof", **changed: Any) -> Unauthorized:
    with pytest.raises(Unauthorized) as caught:
        await check(text, **changed)
    assert caught.value.error == error, caught.value.message
    assert caught.value.http_status == 401
    assert TOKEN not in caught.value.message
    assert "joserfc" not in repr(caught.value)
    return caught.value


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
        ath = b64(hashlib.sha256(token.encode()).digest())
        said = {"htm": method, "htu": url, "iat": time.time(), "ath": ath, **changed}
        return {"authorization": f"DPoP {token}", "dpop": proof(said=said, key=self._key)}
