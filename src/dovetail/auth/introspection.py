"""Tokens that only their issuer can read (RFC 7662): a token comes in, its issuer is asked, and a principal comes out.

An answer is kept for a few seconds, under a digest of the token. While the issuer can't be asked, nobody knows: that
is VerifierTrouble, and neither a yes nor a no.
"""

import base64
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus, urlencode

from dovetail.auth.claims import comparable, in_time, meant_for, principal_of, read_object
from dovetail.auth.fetch import Fetch, FetchFailed, FetchRequest, make_fetch, names_this_machine, shown
from dovetail.auth.jwks import may_hold_keys
from dovetail.auth.principal import Principal
from dovetail.auth.verifier import MAX_TOKEN, VerifierTrouble
from dovetail.errors import SetupError

CACHE_SECONDS = 30.0
MAX_KEPT = 1024  # answers
MAX_AT_ONCE = 64  # questions; whoever sends nonsense must not make us a nuisance to the issuer
LEEWAY = 60.0
OK = 200
_TOKEN = re.compile(r"[!-~]+")


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
        self._audiences = frozenset(comparable(each) for each in audiences)
        self._scope_claim = scope_claim
        self._fetch = fetch or make_fetch(allow_private=True, allow_loopback=names_this_machine(endpoint))
        self._kept = _Answers(cache_seconds, time.monotonic)
        self._asking = 0

    def __repr__(self) -> str:
        return f"Introspection({shown(self._endpoint)!r})"

    async def verify(self, token: str) -> Principal | None:
        """Raises VerifierTrouble if the issuer does not say whether the token is good."""
        if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        claims = self._kept.get(digest)
        if claims is None:
            claims = await self._ask(token)
            self._kept.keep(digest, claims)
        return self._judge(claims)

    def _judge(self, claims: dict[str, Any]) -> Principal | None:
        if claims.get("active") is not True or not in_time(claims, time.time(), LEEWAY, needs_end=False):
            return None
        if self._audiences and not meant_for(claims, self._audiences):
            return None
        issuer = claims.get("iss", self.issuer)
        if not isinstance(issuer, str | None) or (self.issuer is not None and issuer != self.issuer):
            return None
        return principal_of(claims, issuer, self._scope_claim)

    async def _ask(self, token: str) -> dict[str, Any]:
        if self._asking >= MAX_AT_ONCE:
            raise VerifierTrouble(f"{self!r}: too many tokens to ask about at once")
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        self._asking += 1
        try:
            fetched = await self._fetch(
                FetchRequest(url=self._endpoint, method="POST", headers=self._headers, body=form)
            )
        except FetchFailed as failure:
            raise VerifierTrouble(f"{self!r}: {failure}") from None
        except Exception as failure:  # of a fetch that somebody else wrote
            raise VerifierTrouble(f"{self!r}: the fetch failed with {type(failure).__name__}") from failure
        finally:
            self._asking -= 1
        answer = read_object(fetched.body) if fetched.status == OK else None
        if answer is None or not isinstance(answer.get("active"), bool):
            raise VerifierTrouble(f"{self!r}: no answer that can be used, with the status {fetched.status}")
        return {name: value for name, value in answer.items() if value is not None}


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
