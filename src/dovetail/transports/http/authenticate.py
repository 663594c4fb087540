"""Authentication of requests: a bearer or DPoP token becomes a principal, or the request is refused.

Every request is checked, also in a session. The outcome for a token is cached by a digest of it, never by the token.
The token of a stream is checked again while the stream is open.
"""

import asyncio
import logging
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from dovetail import auth as lazy_auth
from dovetail.auth.principal import Principal
from dovetail.errors import INTERNAL_ERROR, ProtocolError, Unauthorized
from dovetail.state.base import StateBackend
from dovetail.transports.http.asgi import RawHeaders, Scope
from dovetail.transports.http.in_flight import InFlight
from dovetail.transports.http.request import HttpRequest, RequestHandler
from dovetail.transports.http.well_known import ResourceUrls

if TYPE_CHECKING:
    from dovetail.auth.principal import Verification
    from dovetail.auth.settings import Auth
    from dovetail.engine.engine import Engine

NEEDS_TOKEN = "This server needs a token: send it in the header `Authorization: {} <token>`"
INVALID_TOKEN = "The token is not good, or not any more"
IN_QUERY = "A token in the URL can be read in logs: send it in the header `Authorization: Bearer <token>`"
MALFORMED = "The Authorization header is malformed: send `Bearer <token>`, the token without blanks"
VERIFY_FAILED = {500: "Internal error", 503: "This token can't be verified at the moment; try again later"}
FIRST_STEPS = (None, "use_dpop_nonce")  # not audited: a client's normal first request, without token or nonce
# Claims that give no rights: a verifier may give others for the same token.
VOLATILE_CLAIMS = frozenset({"exp", "expires_in", "iat", "nbf", "jti", "auth_time"})
DPOP = b"dpop"
_TOKEN = re.compile(rb"[!-~]+")

log = logging.getLogger("dovetail")


class TokenLimits(msgspec.Struct, frozen=True):
    """Limits of the token cache and of verifiers; times in seconds."""

    cache_ttl: float = 60.0  # of a good token
    expired_ttl: float = 1.0  # of a token that has expired, but whose verifier allows for clocks that differ
    refusal_ttl: float = 3.0  # of a bad token
    max_cached: int = 10_000  # good tokens, and as many bad ones
    verify_timeout: float = 10.0
    max_verifying: int = 1000  # tokens at the same time; and as many more that were good before
    recheck_delay: float = 1.0  # at least, between two checks of the token of a stream
    retry_delay: float = 5.0  # between them while the verifier is unavailable …
    max_tries: int = 12  # … and how often it is tried


class Verified(msgspec.Struct, frozen=True):
    principal: Principal | None  # None: the token is bad
    valid_until: float  # in the cache, by the monotonic clock
    is_sufficient: bool = False  # the request needs no other check


EXPIRED = Verified(None, -math.inf)  # replaces an outcome that must not be cached: claims are personal data


class PresentedToken(NamedTuple):
    digest: bytes
    scheme: bytes  # in lower case
    token: str

    def __repr__(self) -> str:
        return "PresentedToken(…)"  # no log shows the token


class Authenticator:
    """Authenticates requests, as long as the app runs on one event loop."""

    def __init__(
        self,
        auth: "Auth",
        urls: ResourceUrls,
        in_flight: InFlight,
        state: StateBackend,
        engine: "Engine",
        limits: TokenLimits | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._auth = auth
        self._limits = limits or TokenLimits()
        self._clock = clock
        self._audit = engine.audit
        self._urls = urls
        self._in_flight = in_flight
        # The memory of one process is limited to what sessions need: used proofs would fill it.
        claim = (lambda key, seconds: state.claim(key, b"", seconds)) if state.shared else None
        self._dpop = auth.dpop_check(claim, lambda: engine.secrets)
        self._schemes = (b"bearer",) if self._dpop is None else (b"bearer", DPOP)
        self._digest = partial(blake2b, digest_size=16, key=secrets.token_bytes(32))
        self._valid: OrderedDict[bytes, Verified] = OrderedDict()
        self._invalid: OrderedDict[bytes, Verified] = OrderedDict()  # apart, so that guesses evict no good ones
        self._verifying: dict[bytes, asyncio.Task[Verified | int]] = {}
        self._next_warning = -math.inf

    def protect(self, handler: RequestHandler) -> RequestHandler:
        """A handler that requires a token, and hides it from the given one. A cached token costs no coroutine."""
        good, digested, watch, clock = self._valid, self._digest, self.watch, self._clock

        def authenticate(request: HttpRequest) -> Awaitable[None]:
            scope = request.scope
            request.response.challenger = partial(self._challenge, scope, request.route)
            raw = request.headers.raw
            header = raw.pop(b"authorization", b"")
            raw.pop(DPOP, None)
            request.watch_token = partial(watch, header)
            digest = digested(header).digest()
            known = good.get(digest)
            if known is None or not known.is_sufficient or known.valid_until <= clock() or scope.get("query_string"):
                return self._verify_and_serve(request, handler, header)
            good.move_to_end(digest)
            request.principal = known.principal
            return handler(request)

        return authenticate

    async def _verify_and_serve(self, request: HttpRequest, handler: RequestHandler, header: bytes) -> None:
        try:
            await self._verify_request(request, header)
        except Unauthorized as refusal:
            if self._audit is not None and refusal.error not in FIRST_STEPS:
                path = request.scope["path"]  # without the query, which may hold a token
                principal, address = request.principal, self._urls.proxies.address_of(request.scope)
                self._audit.record_refusal(
                    refusal, method=request.method, name=path, principal=principal, address=address
                )
            raise
        self._in_flight.refuse_if_closing()  # a drain may have begun meanwhile
        await handler(request)

    async def _verify_request(self, request: HttpRequest, header: bytes) -> None:
        if b"access_token" in unquote_to_bytes(request.scope.get("query_string") or b"").lower():
            raise Unauthorized(IN_QUERY, error="invalid_request", http_status=400)
        presented = self._presented(header)
        verified = await self._verified(presented)
        principal = request.principal = verified.principal
        if principal is None:
            raise Unauthorized(INVALID_TOKEN, error="invalid_token")
        if verified.is_sufficient:
            return
        claims, dpop = principal.claims, self._dpop
        if dpop is not None and presented.scheme == DPOP:  # each request needs a proof of its own
            proof, token = dpop.proof_header(request.scope["headers"]), presented.token
            url, method = self._urls.target(request.scope, request.route), request.method
            await dpop.check(proof, method=method, url=url, token=token, claims=claims, caller=principal.key)
        elif dpop is not None:
            dpop.check_bearer(claims)
        if not principal.scopes >= self._auth.scopes:
            raise Unauthorized.for_scopes(self._auth.scopes)

    def _challenge(self, scope: Scope, route: str, refusal: Unauthorized) -> RawHeaders:
        nonce = None if self._dpop is None or refusal.http_status != 401 else self._dpop.nonce
        nonce_header = [] if nonce is None else [(b"dpop-nonce", nonce.encode())]
        return self._auth.challenges(refusal, self._urls.metadata(scope, route)) + nonce_header

    def _presented(self, header: bytes) -> PresentedToken:
        """The token that a request presents. Raises Unauthorized if the header holds no token that could be valid."""
        scheme, _, rest = header.strip(b" \t").partition(b" ")
        token, scheme = rest.strip(b" \t"), scheme.lower()
        if scheme not in self._schemes or not token:
            raise Unauthorized(NEEDS_TOKEN.format("DPoP" if self._auth.dpop == "required" else "Bearer"))
        if not _TOKEN.fullmatch(token):
            raise Unauthorized(MALFORMED, error="invalid_request", http_status=400)
        header = scheme.title() + b" " + token  # in the usual spelling, which `authenticate` finds in the cache
        digest = self._digest(header).digest()
        return PresentedToken(digest, scheme, token.decode("ascii"))

    async def _verified(self, presented: PresentedToken) -> Verified:
        """Verify a token once for all requests that wait. Raises ProtocolError if the verifiers fail."""
        digest = presented.digest
        known = self._valid.get(digest) or self._invalid.get(digest)
        if known is not None and known.valid_until > self._clock():
            return known
        verifying = self._verifying.get(digest)
        if verifying is None:
            limit = self._limits.max_verifying * (2 if digest in self._valid else 1)
            if len(self._verifying) >= limit:
                raise ProtocolError(VERIFY_FAILED[503], code=INTERNAL_ERROR, http_status=503)
            verifying = self._verifying[digest] = asyncio.get_running_loop().create_task(self._verify(presented))
            verifying.add_done_callback(lambda _: self._verifying.pop(digest, None))
        outcome = await asyncio.shield(verifying)
        if isinstance(outcome, int):
            raise ProtocolError(VERIFY_FAILED[outcome], code=INTERNAL_ERROR, http_status=outcome)
        return outcome

    async def _verify(self, presented: PresentedToken) -> Verified | int:
        """Call the verifiers; a status if they fail. Their exceptions are not logged: these may hold the token."""
        seconds = self._limits.verify_timeout
        try:
            async with asyncio.timeout(seconds):
                found = await self._auth.verification(presented.token)
            return self._cache(presented, found)
        except (lazy_auth.VerifierUnavailable, TimeoutError) as failure:
            words = str(failure).replace(presented.token, "[redacted]") or f"no answer within {seconds:g} s"
            if (now := self._clock()) >= self._next_warning:  # any client can cause it
                self._next_warning = now + 10.0
                log.warning("a token can't be verified at the moment: %s", words)
            return 503
        except Exception as failure:
            safe = Exception(type(failure).__name__).with_traceback(failure.__traceback__)
            log.error("a verifier failed", exc_info=safe)
            return 500

    def _cache(self, presented: PresentedToken, found: "Verification | None") -> Verified:
        limits, now, digest = self._limits, self._clock(), presented.digest
        if found is None:
            cache, other, verified = self._invalid, self._valid, Verified(None, now + limits.refusal_ttl)
        else:
            principal, ttl = found
            left = _seconds_left(principal)
            seconds = min(left, limits.cache_ttl, ttl) if left > 0 else limits.expired_ttl
            verified = Verified(principal, now + seconds, self._is_sufficient(presented, principal))
            cache, other = self._valid, self._invalid
        other.pop(digest, None)
        cache[digest] = verified if verified.valid_until > now else EXPIRED
        cache.move_to_end(digest)
        if len(cache) > limits.max_cached:
            cache.popitem(last=False)
        return verified

    def _is_sufficient(self, presented: PresentedToken, principal: Principal) -> bool:
        """Whether the token alone is enough, for this request and later ones: it is not bound to a key."""
        if presented.scheme == DPOP or not principal.scopes >= self._auth.scopes:
            return False
        try:
            if self._dpop is not None:
                self._dpop.check_bearer(principal.claims)
        except Unauthorized:
            return False
        return True

    async def watch(self, header: bytes, request: HttpRequest, end: Callable[[], object]) -> None:
        """End a stream when its token becomes bad or gives other rights. Retries while verifiers are unavailable."""
        presented, opened_by = self._presented(header), request.principal
        limits, rights, failures = self._limits, _rights(opened_by), 0
        try:
            while failures < limits.max_tries:
                try:
                    now = await self._verified(presented)
                except ProtocolError:
                    failures += 1
                    pause = min(limits.retry_delay, _seconds_left(opened_by))
                    if pause <= 0:
                        break
                else:
                    failures = 0
                    if now.principal is None or _rights(now.principal) != rights:
                        break
                    pause = max(
                        now.valid_until - self._clock(), min(limits.recheck_delay, _seconds_left(now.principal))
                    )
                await asyncio.sleep(pause)
        finally:  # even after a failure: no stream stays open unwatched
            end()


def _seconds_left(principal: Principal | None) -> float:
    return math.inf if principal is None or principal.expires_at is None else principal.expires_at - time.time()


def _rights(principal: Principal | None) -> object:
    """Everything that may decide what a caller may do; `authorize` can read any claim."""
    if principal is None:
        return None
    lasting = {name: value for name, value in principal.claims.items() if name not in VOLATILE_CLAIMS}
    return principal.key, principal.scopes, lasting
