"""Rate limits in fixed windows, per caller: of one worker, or of all workers that share a state.

The windows are the seconds, minutes, hours or days of the clock, with at most `count` calls in each. While the store is
unavailable, or has no room for a caller, each worker counts by itself.
"""

import functools
import hashlib
import ipaddress
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dovetail import engine as lazy
from dovetail.engine.request_context import RequestContext
from dovetail.errors import RateLimited
from dovetail.protocol.results import Result
from dovetail.registry.registration import Per, Rate
from dovetail.state.base import StateBackend, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.dispatch import Layer
    from dovetail.engine.engine import Engine

ANONYMOUS = "anonymous"  # all callers without a principal and an address
IPV6_NETWORK_BITS = 64  # of an address that name its network; its owner is free to choose the others
IPV6_SITE_BITS = 56  # that name a customer's site, which has many networks as a rule
STORE_RETRY_DELAY = 5.0  # seconds from one call to a store that is unavailable to the next

# The requests that count towards the server's limit: those that may run an author's function,
# as the methods and notifications of extensions do, which count themselves.
COUNTED = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})

T = TypeVar("T")
log = logging.getLogger("dovetail")


@functools.lru_cache(maxsize=10_000)
def network_of(address: str, bits: int = IPV6_NETWORK_BITS) -> str | None:
    """The network that counts as one caller: an IPv4 address, or a whole IPv6 network. None if it is no address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    ipv4 = parsed if isinstance(parsed, ipaddress.IPv4Address) else parsed.ipv4_mapped
    return str(ipaddress.IPv6Network((parsed, bits), strict=False) if ipv4 is None else ipv4)


def caller_of(owner: str | None, address: str | None, bits: int = IPV6_NETWORK_BITS) -> str:
    """The name under which a caller is counted: its principal, else its network."""
    if owner is not None:
        return f"principal {owner}"
    return ANONYMOUS if address is None else f"address {network_of(address, bits) or address}"


class RateExceeded(msgspec.Struct, frozen=True):
    """The rate that refuses a call, and how long the caller has to wait."""

    rate: Rate
    wait: float  # seconds

    @property
    def retry_after(self) -> int:
        return max(1, math.ceil(self.wait))

    def words(self, subject: str, noun: str) -> str:
        return f"{subject} takes {self.rate.words(noun)}; try again in {self.retry_after} s."


class Window(msgspec.Struct, eq=False):
    """One window of one caller."""

    rate: Rate
    number: int
    key: str  # in the store
    calls: int = 0  # that were allowed, as far as this worker knows

    def exceeded(self, now: float) -> RateExceeded:
        return RateExceeded(self.rate, max(0.001, (self.number + 1) * self.rate.seconds - now))


CALLER_NAMES: dict[Per, Callable[[RequestContext], str]] = {
    "all": lambda _: "everybody",
    "principal": lambda context: caller_of(context.owner, context.address),
    "address": lambda context: caller_of(None, context.address),
}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class RateLimiter:
    """The rates of one subject, the server or a tool. A call that one of them refuses counts for none."""

    def __init__(
        self, subject: str, rates: Sequence[Rate], state: StateBackend | None = None,
        clock: Callable[[], float] | None = None, max_callers: int = 10_000,
    ) -> None:  # fmt: skip
        """`state` is shared with other workers. Beyond `max_callers`, the caller that was idle longest is forgotten."""
        self._subject = subject
        self._rates = sorted(rates, key=lambda rate: rate.seconds)
        self._windows: OrderedDict[tuple[int, str], Window] = OrderedDict()  # by rate and caller; last used at the end
        self._state = state
        self._clock = clock or (time.monotonic if state is None else time.time)
        self._is_store_down = False
        self._retry_at = 0.0  # when it is down
        self._max_callers = max_callers
        self._rounds: OrderedDict[str, None] = OrderedDict()  # digests of request states that calls have sent

    def _window(self, index: int, context: RequestContext, now: float) -> Window:
        rate = self._rates[index]
        caller, number = CALLER_NAMES[rate.per](context), int(now // rate.seconds)
        window = self._windows.get((index, caller))
        if window is None or not window.number - 1 <= number <= window.number:  # a clock may be set back a little
            # a digest, for names of callers may be long, and secret
            key = f"rate/{self._subject}/{rate.unit}/{rate.per}/{_digest(caller)}/{number}"
            window = self._windows[index, caller] = Window(rate, number, key)
            if len(self._windows) > self._max_callers * len(self._rates):
                self._windows.popitem(last=False)
        self._windows.move_to_end((index, caller))
        return window

    async def refusal(self, context: RequestContext) -> RateExceeded | None:
        """Count a call; returns the rate that refuses it, or None."""
        now = self._clock()
        windows = [self._window(index, context, now) for index in range(len(self._rates))]
        for window in windows:
            if window.calls >= window.rate.count:  # a caller that does not give up costs the store nothing
                return window.exceeded(now)
        if self._state is not None:
            return await self._count_in_store(self._state, windows, now)
        for window in windows:
            window.calls += 1
        return None

    async def _count_in_store(self, state: StateBackend, windows: list[Window], now: float) -> RateExceeded | None:
        """Count in one rate after the other, the shortest first; if one refuses, the earlier counts are undone."""
        for position, window in enumerate(windows):
            ttl = window.rate.seconds + 2 * STORE_RETRY_DELAY
            number = await self._call_store(state.add, window.key, 1, ttl)
            window.calls = max(window.calls + 1, number or 0)
            if window.calls > window.rate.count:
                for earlier in windows[:position]:
                    earlier.calls -= 1
                    await self._call_store(state.add, earlier.key, -1, ttl)
                return window.exceeded(now)
        return None

    async def _call_store(self, method: Callable[..., Awaitable[T]], *arguments: Any) -> T | None:
        """Call the store; None if it is unavailable or full."""
        if self._is_store_down:
            if self._clock() < self._retry_at:
                return None
            self._retry_at = self._clock() + STORE_RETRY_DELAY  # other calls do not wait for this one
        result = None
        try:
            result = await method(*arguments)
        except StoreFull as full:  # it has answered
            log.debug("a rate is counted by this worker for itself: %s", full)
        except StoreUnavailable as failure:
            if not self._is_store_down:
                log.warning("rates are counted by this worker for itself: %s", failure)
            self._is_store_down, self._retry_at = True, self._clock() + STORE_RETRY_DELAY
            return None
        if self._is_store_down:
            self._is_store_down = False
            log.warning("rates are counted by all again")
        return result

    async def claim_round(self, request_state: str) -> bool:
        """Whether this is the next round of a call that was counted before: True once for each request state."""
        key = f"rate/round/{_digest(request_state)}"
        if self._state is not None:
            is_first = await self._call_store(self._state.claim, key, b"", 86_400.0)
            if is_first is not None:
                return is_first
        if key in self._rounds:
            return False
        self._rounds[key] = None
        if len(self._rounds) > self._max_callers:
            self._rounds.popitem(last=False)
        return True


def rate_limited(engine: "Engine", inner: "Layer") -> "Layer":
    """Middleware with the rate limit of the server, outside all others."""

    async def step(context: RequestContext) -> Result:
        if context.request.method in COUNTED:
            await count_request(engine, context)
        return await inner(context)

    return step


async def count_request(engine: "Engine", context: RequestContext) -> None:
    """Count a request towards the server's limit. Raises RateLimited."""
    limiter = engine.call_limits.server_rates
    refusal = None if limiter is None else await limiter.refusal(context)
    if refusal is not None:
        if (metrics := engine.metrics) is not None:
            metrics.add(lazy.metrics.REFUSALS, "", "rate_limit")
        raise RateLimited(refusal.words("This server", "request"), retry_after=refusal.retry_after)
