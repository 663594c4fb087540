"""Rate limits in fixed windows: a call is counted, or told by `RateExceeded` when its next window begins.

The windows are the seconds, minutes, hours or days of the clock; in each no more than `count` calls are let through.
Workers that share a state count together. While the store is in trouble, or has no room for a caller, each worker
counts on by itself.
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

from dovetail.engine.request_context import RequestContext
from dovetail.errors import RateLimited
from dovetail.protocol.results import Result
from dovetail.registry.registration import Per, Rate
from dovetail.state.base import StateBackend, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.dispatch import Step
    from dovetail.engine.engine import Engine

ANONYMOUS = "anonymous"  # the caller of whom nothing is known; there may be many
IPV6_NETWORK = 64  # bits of an address that name its network; its owner is free to choose the others
IPV6_LINE = 56  # bits that name a customer's line, which has many networks as a rule
PAUSE = 5.0  # seconds from one try to reach a store that is in trouble to the next

# What counts towards the server's limit: the requests that may run a user's function.
COUNTED = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})

T = TypeVar("T")
log = logging.getLogger("dovetail")


@functools.lru_cache(maxsize=10_000)
def network_of(address: str, bits: int = IPV6_NETWORK) -> str | None:
    """The network that counts as one caller: an IPv4 address, or a whole IPv6 network. None if it is no address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, bits), strict=False))


def caller_of(owner: str | None, address: str | None, bits: int = IPV6_NETWORK) -> str:
    """The holder of a share: a principal, or else a network; those of whom neither is known are one."""
    if owner is not None:
        return f"principal {owner}"
    return ANONYMOUS if address is None else f"address {network_of(address, bits) or address}"


class RateExceeded(msgspec.Struct, frozen=True):
    """A call that comes too early for one of the rates."""

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
    calls: int = 0  # that were let through, as far as this worker knows

    def too_soon(self, now: float) -> RateExceeded:
        return RateExceeded(self.rate, max(0.001, (self.number + 1) * self.rate.seconds - now))


WHO: dict[Per, Callable[[RequestContext], str]] = {
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
        """`state` is what other workers share, if any do. Beyond `max_callers` the one silent longest is forgotten."""
        self._subject = subject
        self._rates = sorted(rates, key=lambda rate: rate.seconds)
        self._windows: OrderedDict[tuple[int, str], Window] = OrderedDict()  # by rate and caller, the last at the end
        self._state = state
        self._clock = clock or (time.monotonic if state is None else time.time)
        self._is_away = False  # the store is in trouble
        self._ask_again = 0.0  # and is left in peace until then
        self._max_callers = max_callers
        self._rounds: OrderedDict[str, None] = OrderedDict()  # states that calls have gone on with

    def _window(self, place: int, context: RequestContext, now: float) -> Window:
        rate = self._rates[place]
        caller, number = WHO[rate.per](context), int(now // rate.seconds)
        window = self._windows.get((place, caller))
        if window is None or not window.number - 1 <= number <= window.number:  # a clock may be set back a little
            # callers may have long names, and secret ones
            key = f"rate/{self._subject}/{rate.unit}/{rate.per}/{_digest(caller)}/{number}"
            window = self._windows[place, caller] = Window(rate, number, key)
            if len(self._windows) > self._max_callers * len(self._rates):
                self._windows.popitem(last=False)
        self._windows.move_to_end((place, caller))
        return window

    async def refusal(self, context: RequestContext) -> RateExceeded | None:
        """Count a call, or say why not."""
        now = self._clock()
        windows = [self._window(place, context, now) for place in range(len(self._rates))]
        for window in windows:
            if window.calls >= window.rate.count:  # a caller that does not give up costs the store nothing
                return window.too_soon(now)
        if self._state is not None:
            return await self._count_together(self._state, windows, now)
        for window in windows:
            window.calls += 1
        return None

    async def _count_together(self, state: StateBackend, windows: list[Window], now: float) -> RateExceeded | None:
        """One rate after the other, the shortest first; where one refuses, those before it get the call back."""
        for position, window in enumerate(windows):
            ttl = window.rate.seconds + 2 * PAUSE
            number = await self._ask(state.add, window.key, 1, ttl)
            window.calls = max(window.calls + 1, number or 0)
            if window.calls > window.rate.count:
                for earlier in windows[:position]:
                    earlier.calls -= 1
                    await self._ask(state.add, earlier.key, -1, ttl)
                return window.too_soon(now)
        return None

    async def _ask(self, question: Callable[..., Awaitable[T]], *arguments: Any) -> T | None:
        """What the store says; None if it is in trouble, or takes no more."""
        if self._is_away:
            if self._clock() < self._ask_again:
                return None
            self._ask_again = self._clock() + PAUSE  # other calls do not wait for this one
        answer, trouble = None, None
        try:
            answer = await question(*arguments)
        except StoreFull as full:  # it has answered
            log.debug("a rate is counted by this worker for itself: %s", full)
        except StoreUnavailable as failure:
            trouble = failure
            self._ask_again = self._clock() + PAUSE
        if (trouble is not None) != self._is_away:
            self._is_away = trouble is not None
            log.warning("rates are counted by %s", f"this worker for itself: {trouble}" if trouble else "all again")
        return answer

    async def goes_on(self, request_state: str) -> bool:
        """Whether a call that was counted goes on with this state: each state does so once."""
        key = f"rate/round/{_digest(request_state)}"
        if self._state is not None:
            is_first = await self._ask(self._state.claim, key, b"", 86_400.0)
            if is_first is not None:
                return is_first
        if key in self._rounds:
            return False
        self._rounds[key] = None
        if len(self._rounds) > self._max_callers:
            self._rounds.popitem(last=False)
        return True


def counted(engine: "Engine", inner: "Step") -> "Step":
    """The server's own limit, around everything else that a request goes through."""

    async def step(context: RequestContext) -> Result:
        limiter = engine.book.rates
        if limiter is not None and context.request.method in COUNTED:
            refusal = await limiter.refusal(context)
            if refusal is not None:
                raise RateLimited(refusal.words("This server", "request"), retry_after=refusal.retry_after)
        return await inner(context)

    return step
