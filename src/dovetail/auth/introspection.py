"""Introspection (RFC 7662): verifier of tokens that only their issuer can read.

The transport believes an answer for a few seconds; here nothing of it is kept. While the issuer can't be asked, it is
not known whether a token is good: that is VerifierUnavailable, and neither a yes nor a no.
"""

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus, urlencode

from dovetail.auth.fetch import SECONDS, Fetch, FetchFailed, FetchRequest, make_fetch, names_this_machine, shown
from dovetail.auth.jose import read_object
from dovetail.auth.jwt import may_hold_keys
from dovetail.auth.principal import (
    MAX_TOKEN,
    Principal,
    VerifierUnavailable,
    comparable_url,
    in_time,
    meant_for,
    principal_of,
)
from dovetail.errors import SetupError

MAX_AT_ONCE = 32  # questions of each queue: a caller who sends nonsense must not make us a nuisance to the issuer
ASK_SECONDS = SECONDS + 3.5  # for one question and the wait before it; a transport has patience for 10
LEEWAY = 60.0
_TOKEN = re.compile(r"[!-~]+")
# What issuers say of an access token: the type of RFC 7662, and what some of them call the use or the kind. Whatever
# else stands there is refused: `refresh_token`, `ID`, and `N_A`, which is no access token (RFC 8693, 2.2.1); and a type
# that is not known may want more than to be presented (RFC 6749, 7.1).
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
        """`client_id` and `client_secret`: what this server is to the issuer. `audience`: what tokens must be for; give
        it unless the issuer answers "inactive" to tokens for others. `cache_seconds`: for which a transport believes an
        answer, a minute at most: then it is noticed what was taken back.
        """
        if not may_hold_keys(endpoint, endpoint):
            raise SetupError(f"Introspection: {endpoint!r} is no https URL; tokens must not travel in the open")
        if not client_id or not client_secret:
            raise SetupError("Introspection: the issuer answers only to those it knows; give client_id, client_secret")
        if cache_seconds < 0:
            raise SetupError(f"Introspection: cache_seconds={cache_seconds!r} is not possible; it is 0 or more")
        self.issuer = issuer
        self.believed_seconds = cache_seconds
        self._endpoint = endpoint
        self._headers = _headers(client_id, client_secret)
        audiences = [audience] if isinstance(audience, str) else audience or ()
        self._audiences = frozenset(map(comparable_url, audiences))
        self._scope_claim = scope_claim
        self._fetch = fetch or make_fetch(allow_private=True, allow_loopback=names_this_machine(endpoint))
        # Digests of tokens that were good, the last at the end. They have a queue of their own: a flood of nonsense
        # does not stand before them when they are asked about again.
        self._good: dict[bytes, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[bool, asyncio.Semaphore] = {}  # of that loop, by whether a token was good before
        self._told_of: str | None = None  # the kind of token that was refused first

    def __repr__(self) -> str:
        return f"Introspection({shown(self._endpoint)!r})"

    async def verify(self, token: str) -> Principal | None:
        """Raises VerifierUnavailable if the issuer does not say whether the token is good."""
        if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        principal = self._judge(await self._ask(token, was_good=digest in self._good))
        self._good.pop(digest, None)
        if principal is not None:
            self._good[digest] = None
            if len(self._good) > 4096:
                del self._good[next(iter(self._good))]
        return principal

    def _judge(self, claims: dict[str, Any]) -> Principal | None:
        if claims.get("active") is not True or not in_time(claims, time.time(), LEEWAY, needs_end=False):
            return None
        if not self._is_access(claims):
            return None
        if self._audiences and not meant_for(claims, self._audiences):
            return None
        issuer = claims.get("iss", self.issuer)
        if not isinstance(issuer, str | None) or (self.issuer is not None and issuer != self.issuer):
            return None
        return principal_of(claims, issuer, self._scope_claim)

    def _is_access(self, claims: dict[str, Any]) -> bool:
        for name in _KIND:
            kind = str(claims.get(name, "access"))
            if kind.lower() not in _ACCESS:
                if self._told_of is None:  # once, for anybody can cause it; an issuer with words of its own needs it
                    self._told_of = kind[:60]
                    log.warning("%r: a token was refused, for its %s is %r", self, name, self._told_of)
                return False
        return True

    async def _ask(self, token: str, *, was_good: bool) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._queues = loop, {each: asyncio.Semaphore(MAX_AT_ONCE) for each in (True, False)}
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        request = FetchRequest(url=self._endpoint, method="POST", headers=self._headers, body=form)
        try:
            async with asyncio.timeout(ASK_SECONDS), self._queues[was_good]:
                fetched = await self._fetch(request)
        except FetchFailed as failure:
            raise VerifierUnavailable(f"{self!r}: {failure}") from None
        except TimeoutError:
            raise VerifierUnavailable(f"{self!r}: no answer within {ASK_SECONDS:g} s") from None
        except Exception as failure:  # of a fetch that is not ours
            raise VerifierUnavailable(f"{self!r}: the fetch failed with {type(failure).__name__}") from failure
        answer = read_object(fetched.body) if fetched.status == 200 else None
        if answer is None or not isinstance(answer.get("active"), bool):
            raise VerifierUnavailable(f"{self!r}: no answer that can be used, with the status {fetched.status}")
        return {name: value for name, value in answer.items() if value is not None}


def _headers(client_id: str, client_secret: str) -> Mapping[str, str]:
    """RFC 6749, 2.3.1: both are encoded as in a form first."""
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()
    return {
        "Authorization": f"Basic {base64.b64encode(pair).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
