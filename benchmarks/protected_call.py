"""The cost of authentication: the CPU of an HTTP call with a token that is known, beside an open one.

A token is new once, and then comes with every request for as long as it is good: that is what counts, and what an
API key or a signed token costs then. How long it takes to verify one for the first time is not in it.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from joserfc import jwk, jwt

from benchmarks.case import Case, Measured, Round, Settings
from benchmarks.http_call import ARGUMENTS, check_sum
from benchmarks.http_contender import NO_ERRORS, HttpServer, Offer, Post, call, serving
from benchmarks.wrk import looking

OPEN, API_KEY, JWT = "open", "api key", "jwt"
MOST = 1.15  # times the CPU of an open call
CONNECTIONS = 32
KEY = "bench-api-key-0123456789abcdef"
ISSUER, AUDIENCE = "https://login.example.com", "https://bench.example.com/mcp"


@dataclass(frozen=True)
class ProtectedOffer(Offer):
    """What a server is started with, and the requests that it then takes."""

    auth: str = OPEN

    @property
    def environment(self) -> dict[str, str]:
        names = {"BENCH_KEY": KEY, "BENCH_ISSUER": ISSUER, "BENCH_AUDIENCE": AUDIENCE, "BENCH_JWKS": self._jwks}
        return {**super().environment, **names, "BENCH_AUTH": self.auth}

    @property
    def post(self) -> Post:
        plain = call(self.tool, ARGUMENTS)
        if self.auth == OPEN:
            return plain
        token = self._token if self.auth == JWT else KEY
        return replace(plain, headers={**plain.headers, "authorization": f"Bearer {token}"})

    @cached_property
    def _signer(self) -> jwk.ECKey:
        return jwk.ECKey.generate_key("P-256", {"kid": "bench"})

    @property
    def _jwks(self) -> str:
        return json.dumps({"keys": [self._signer.as_dict(private=False)]})

    @property
    def _token(self) -> str:
        now = int(time.time())
        who = {"sub": "bench", "client_id": "wrk", "scope": "add"}
        claims = {"iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 24 * 3600, **who}
        return jwt.encode({"alg": "ES256", "typ": "at+jwt", "kid": "bench"}, claims, self._signer)


@contextmanager
def _protected(auth: str, settings: Settings) -> Iterator[Round]:
    offer = ProtectedOffer(auth=auth)
    post = offer.post
    with serving("dovetail", offer, "protected") as server:
        check_sum(server.ask(post))
        server.load(post.lua + looking(NO_ERRORS), settings.seconds, CONNECTIONS)  # also warms it up
        yield lambda: _cpu(server, post, settings)


def _cpu(server: HttpServer, post: Post, settings: Settings) -> Measured:
    cpu_us = server.load(post.lua, settings.seconds, CONNECTIONS).cpu_us
    assert cpu_us is not None
    return Measured(cpu_us, cpu_us)


def _case(key: str, title: str, auth: str) -> Case:
    return Case(key, title, "µs", False, (OPEN, auth), _protected, {OPEN: MOST}, subject=auth)


CASES = [
    _case("auth-key", "CPU of an HTTP call with a known API key", API_KEY),
    _case("auth-jwt", "CPU of an HTTP call with a known JWT", JWT),
]
