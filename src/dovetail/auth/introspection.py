"""Tokens that only their issuer can read (RFC 7662): a token comes in, its issuer is asked, and a principal comes out.

An answer is kept for a few seconds, under a digest of the token. While the issuer can't be asked, nobody knows: that
is VerifierTrouble, and neither a yes nor a no.
"""

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus, urlencode

from dovetail.auth.claims import comparable_url, in_time, meant_for, principal_of, read_object
from dovetail.auth.fetch import (
    SECONDS,
    Fetch,
    Fetched,
    FetchFailed,
    FetchRequest,
    make_fetch,
    names_this_machine,
    shown,
)
from dovetail.auth.jwks import may_hold_keys
from dovetail.auth.principal import Principal
from dovetail.auth.verifier import MAX_TOKEN, VerifierTrouble
from dovetail.errors import SetupError

CACHE_SECONDS = 30.0
MAX_KEPT = 1024  # answers
MAX_AT_ONCE = 32  # questions of each line; whoever sends nonsense must not make us a nuisance to the issuer
MAX_GOOD = 10_000  # tokens that are known to have been good
MAX_WAITING = 1000  # tokens in line
WAIT_SECONDS = 4.0  # that one may stand there; with the question it is less than a transport has patience for
ASK_SECONDS = SECONDS + 0.5  # for one question, also by a fetch that knows no end itself
LEEWAY = 60.0
OK = 200
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
        cache_seconds: float = CACHE_SECONDS,
        scope_claim: str | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        """`client_id` and `client_secret`: what this server is to the issuer. `audience`: what tokens must be for; give
        it unless the issuer answers "inactive" to tokens for others. `cache_seconds`: for which an answer is believed
        here, and then by a transport: what is taken back is noticed after twice that at the latest.
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
        self._audiences = frozenset(comparable_url(each) for each in audiences)
        self._scope_claim = scope_claim
        self._fetch = fetch or make_fetch(allow_private=True, allow_loopback=names_this_machine(endpoint))
        self._kept = _Answers(cache_seconds, time.monotonic)
        self._lines: dict[bool, _Line] = {}  # by whether a token was good when it was asked about before
        self._good: OrderedDict[bytes, None] = OrderedDict()  # digests of those
        self._told_of: str | None = None  # the kind of token that was refused first

    def __repr__(self) -> str:
        return f"Introspection({shown(self._endpoint)!r})"

    async def verify(self, token: str) -> Principal | None:
        """Raises VerifierTrouble if the issuer does not say whether the token is good."""
        if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        claims = self._kept.get(digest)
        if claims is None:
            claims = await self._ask(token, was_good=digest in self._good)
            self._kept.keep(digest, claims)
        principal = self._judge(claims)
        if principal is not None:
            self._good[digest] = None
            self._good.move_to_end(digest)
            if len(self._good) > MAX_GOOD:
                self._good.popitem(last=False)
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
        """Those that were good have a line of their own: whoever sends nonsense does not stand in their way."""
        loop, line = asyncio.get_running_loop(), self._lines.get(was_good)
        if line is None or line.loop is not loop:
            line = self._lines[was_good] = _Line(loop)
        if not await line.wait():
            raise VerifierTrouble(f"{self!r}: too many tokens to ask about at once")
        try:
            fetched = await self._question(token)
        finally:
            line.leave()
        answer = read_object(fetched.body) if fetched.status == OK else None
        if answer is None or not isinstance(answer.get("active"), bool):
            raise VerifierTrouble(f"{self!r}: no answer that can be used, with the status {fetched.status}")
        return {name: value for name, value in answer.items() if value is not None}

    async def _question(self, token: str) -> Fetched:
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        request = FetchRequest(url=self._endpoint, method="POST", headers=self._headers, body=form)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await self._fetch(request)
        except FetchFailed as failure:
            raise VerifierTrouble(f"{self!r}: {failure}") from None
        except TimeoutError:
            raise VerifierTrouble(f"{self!r}: no answer within {ASK_SECONDS:g} s") from None
        except Exception as failure:  # of a fetch that somebody else wrote
            raise VerifierTrouble(f"{self!r}: the fetch failed with {type(failure).__name__}") from failure


class _Line:
    """Tokens that wait until they can be asked about, first come, first served; on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)
        self._waiting = 0

    async def wait(self) -> bool:
        """False if the line is too long, or too slow; else `leave` has to follow."""
        if self._waiting >= MAX_WAITING:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await self._turns.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        self._turns.release()


class _Answers:
    """What issuers said, for a while; the oldest go first."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, dict[str, Any]]] = OrderedDict()

    def get(self, digest: bytes) -> dict[str, Any] | None:
        until, claims = self._kept.get(digest, (0.0, None))
        return claims if self._clock() < until else None

    def keep(self, digest: bytes, claims: dict[str, Any]) -> None:
        if self._seconds:
            self._kept[digest] = (self._clock() + self._seconds, claims)
            self._kept.move_to_end(digest)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)


def _headers(client_id: str, client_secret: str) -> Mapping[str, str]:
    """RFC 6749, 2.3.1: both are encoded as in a form first."""
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()
    return {
        "Authorization": f"Basic {base64.b64encode(pair).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
