"""An issuer of tokens for tests: keys, tokens and proofs of any making, and a real server on loopback."""

import base64
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from joserfc.jwa import JWS_ALGORITHMS
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

ISSUER = "https://login.example.com"
AUDIENCE = "https://notes.example.com/mcp"
DAY = 24 * 3600  # tokens that are made when tests are collected must be good when they run
MODELS = {model.name: model for model in JWS_ALGORITHMS}

RSA = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
OTHER_RSA = RSAKey.generate_key(2048, {"kid": "rsa-2", "use": "sig"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})

KEYS = {"RS256": RSA, "PS256": RSA, "ES256": EC, "EdDSA": ED, "Ed25519": ED}


def claims(**changes: Any) -> dict[str, Any]:
    """Those of a good token; a change to `...` takes one away."""
    now = int(time.time())
    good = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "client_id": "editor", "scope": "notes:read notes:write",
        "iat": now, "exp": now + DAY, "jti": "1",
    }  # fmt: skip
    return {name: value for name, value in (good | changes).items() if value is not ...}


def encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def craft(header: Mapping[str, Any] | bytes, payload: Mapping[str, Any] | bytes, sign: Callable[[bytes], bytes]) -> str:
    """A token of any making."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    message = ".".join(map(encode, parts))
    return f"{message}.{encode(sign(message.encode()))}"


def signer(algorithm: str, key: Any) -> Callable[[bytes], bytes]:
    return lambda message: MODELS[algorithm].sign(message, key)


def token(
    payload: Mapping[str, Any] | bytes | None = None, *, algorithm: str = "RS256", key: Any = None, **header: Any
) -> str:
    """A token as the issuer makes them, if nothing else is asked for; a header of `...` is left out."""
    key = key or KEYS[algorithm]
    whole = {"alg": algorithm, "typ": "at+jwt", "kid": key.kid} | header
    return craft(
        {name: value for name, value in whole.items() if value is not ...},
        claims() if payload is None else payload,
        signer(algorithm, key),
    )


def jwks(*keys: Any) -> dict[str, Any]:
    return {"keys": [key.as_dict(private=False) for key in keys or (RSA, EC, ED)]}


def secret(text: bytes) -> Any:
    return OctKey.import_key(text)


class Site:
    """What a server on loopback answers: by path a status and a body, or a function of the request."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.asked: list[str] = []
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.origin = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        self.requests.append(request)
        self.bodies.append(await request.read())
        page = self.pages.get(request.path, (404, b"nothing here"))
        if callable(page):
            page = await page(request)
        if isinstance(page, web.StreamResponse):
            return page
        status, body = page if isinstance(page, tuple) else (200, page)
        return web.Response(status=status, body=body if isinstance(body, bytes) else json.dumps(body).encode())


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    served = Site()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", served.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    served.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield served
    finally:
        await runner.cleanup()


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Prover:
    """A client that holds a key, and proves it anew for every request, as DPoP wants it."""

    def __init__(self) -> None:
        self._key = ECKey.generate_key("P-256")

    @property
    def bound(self) -> dict[str, Any]:
        """The claim of a token that is good for this key only."""
        return {"cnf": {"jkt": self._key.thumbprint()}}

    def headers(self, method: str, url: str, token: str, **changed: Any) -> dict[str, str]:
        """Of one request; `changed` are words of the proof, as a `nonce`."""
        words = {"jti": encode(os.urandom(12)), "htm": method, "htu": url, "iat": time.time()}
        ath = encode(hashlib.sha256(token.encode()).digest())
        heading = {"typ": "dpop+jwt", "alg": "ES256", "jwk": self._key.as_dict(private=False)}
        proof = craft(heading, {**words, "ath": ath, **changed}, signer("ES256", self._key))
        return {"authorization": f"DPoP {token}", "dpop": proof}
