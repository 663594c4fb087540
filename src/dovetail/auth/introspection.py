"""Introspection (RFC 7662): verifier of opaque tokens, which only their issuer can read.

Nothing is cached here; the transport caches a result for a few seconds.
"""

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote_plus, urlencode

from dovetail.auth.fetch import TIMEOUT, Fetch, FetchFailed, FetchRequest, is_loopback_url, make_fetch, shown
from dovetail.auth.jose import read_object
from dovetail.auth.jwt import is_secure_url
from dovetail.auth.principal import (
    MAX_TOKEN,
    Principal,
    VerifierUnavailable,
    has_audience,
    is_in_lifetime,
    normalized_url,
    to_principal,
)
from dovetail.errors import SetupError

MAX_CONCURRENT = 32  # requests of each queue: callers with invalid tokens must not make us flood the issuer
REQUEST_TIMEOUT = TIMEOUT + 3.5  # seconds in the queue and for the response; a transport waits for 10
MAX_GOOD_TOKENS = 4096
LEEWAY = 60.0  # seconds that clocks may differ
_TOKEN = re.compile(r"[!-~]+")
# Values of these claims for access tokens. All others are refused: `refresh_token`, `ID`, and `N_A`, which is no access
# token (RFC 8693, 2.2.1); and a token of an unknown type may need more than to be presented (RFC 6749, 7.1).
_KIND = ("token_type", "token_use", "typ")
_ACCESS = frozenset({
    "bearer", "bearertoken", "dpop", "jwt", "at+jwt", "application/at+jwt", "access", "access_token",
    "urn:ietf:params:oauth:token-type:access_token",
})  # fmt: skip

log = logging.getLogger("dovetail.auth")


class Introspection:
    """Asks the issuer about every token.

    Introspection("https://login.example.com/introspect", client_id="notes", client_secret=os.environ["NOTES_SECRET"])
    """

    def __init__(
        self,
        endpoint: str,
        *,
        client_id: str,
        client_secret: str,
        audience: str | Sequence[str] | None = None,
        issuer: str | None = None,
        cache_seconds: float = 30.0,
        scope_claim: str | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        """`client_id` and `client_secret`: of this server at the issuer. `audience`: of the tokens; give it unless the
        issuer calls tokens for other servers inactive. `cache_seconds`: for which a transport caches a result, a minute
        at most; a revoked token is accepted so long.
        """
        if not is_secure_url(endpoint, endpoint):
            raise SetupError(f"Introspection: {endpoint!r} is no https URL; tokens must not travel in the open")
        if not client_id or not client_secret:
            raise SetupError("Introspection: the issuer answers only to those it knows; give client_id, client_secret")
        if cache_seconds < 0:
            raise SetupError(f"Introspection: cache_seconds={cache_seconds!r} is not possible; it is 0 or more")
        self.issuer = issuer
        self.cache_seconds = cache_seconds
        self._endpoint = endpoint
        pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()  # RFC 6749, 2.3.1
        self._headers = {
            "Authorization": f"Basic {base64.b64encode(pair).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        audiences = [audience] if isinstance(audience, str) else audience or ()
        self._audiences = frozenset(map(normalized_url, audiences))
        self._scope_claim = scope_claim
        self._fetch = fetch or make_fetch(allow_private=True, allow_loopback=is_loopback_url(endpoint))
        # Digests of valid tokens, the latest at the end. They have a queue of their own, so that a flood of invalid
        # tokens does not delay them.
        self._valid: dict[bytes, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[bool, asyncio.Semaphore] = {}  # of that loop, by whether a token was valid before
        self._has_warned = False

    def __repr__(self) -> str:
        return f"Introspection({shown(self._endpoint)!r})"

    async def verify(self, token: str) -> Principal | None:
        """Ask the issuer about a token. Raises VerifierUnavailable if the issuer gives no valid response."""
        if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        principal = self._principal(await self._introspect(token, was_good=digest in self._valid))
        self._valid.pop(digest, None)
        if principal is not None:
            self._valid[digest] = None
            if len(self._valid) > MAX_GOOD_TOKENS:
                del self._valid[next(iter(self._valid))]
        return principal

    def _principal(self, claims: dict[str, Any]) -> Principal | None:
        if claims.get("active") is not True or not is_in_lifetime(claims, time.time(), LEEWAY, requires_exp=False):
            return None
        if not self._is_access_token(claims) or (self._audiences and not has_audience(claims, self._audiences)):
            return None
        issuer = claims.get("iss", self.issuer)
        if not isinstance(issuer, str | None) or (self.issuer is not None and issuer != self.issuer):
            return None
        return to_principal(claims, issuer, self._scope_claim)

    def _is_access_token(self, claims: dict[str, Any]) -> bool:
        for name in _KIND:
            kind = str(claims.get(name, "access"))
            if kind.lower() not in _ACCESS:
                if not self._has_warned:  # once, for any caller can cause it; it helps with an unusual issuer
                    self._has_warned = True
                    log.warning("%r: a token was refused, for its %s is %r", self, name, kind[:60])
                return False
        return True

    async def _introspect(self, token: str, *, was_good: bool) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._queues = loop, {each: asyncio.Semaphore(MAX_CONCURRENT) for each in (True, False)}
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        request = FetchRequest(url=self._endpoint, method="POST", headers=self._headers, body=form)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT), self._queues[was_good]:
                response = await self._fetch(request)
        except FetchFailed as failure:
            raise VerifierUnavailable(f"{self!r}: {failure}") from None
        except TimeoutError:
            raise VerifierUnavailable(f"{self!r}: no answer within {REQUEST_TIMEOUT:g} s") from None
        except Exception as failure:  # of the author's own fetch
            raise VerifierUnavailable(f"{self!r}: the fetch failed with {type(failure).__name__}") from failure
        claims = read_object(response.body) if response.status == 200 else None
        if claims is None or not isinstance(claims.get("active"), bool):
            raise VerifierUnavailable(f"{self!r}: no answer that can be used, with the status {response.status}")
        return {name: value for name, value in claims.items() if value is not None}
