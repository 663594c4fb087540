"""Rate limits at work: calls come in, and out comes nothing, or a `TooSoon` that says when to try again.

Time is cut into windows, the seconds, minutes, hours or days of the clock. In each no more than `count` calls are let
through. What was used of the window before counts too, for the part of it that lies less than a whole window back, as
if it had been spread evenly: so nobody gets twice as much around the end of a window, and whoever wants more than is
allowed gets exactly `count` calls in each window, evenly spaced.

Where workers share a state they count together, each call with one trip to the store, and whoever was refused and does
not give up with none. While the store is in trouble each worker counts for itself, and so it does for a caller whose
new window finds no room there.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from dovetail.engine.exchange import Exchange
from dovetail.engine.networks import caller_of
from dovetail.errors import RateLimited
from dovetail.protocol.results import Result
from dovetail.registry.options import Per, Rate
from dovetail.state.base import Entry, NoRoom, StateBackend, StoreTrouble

if TYPE_CHECKING:
    from dovetail.engine.core import Engine
    from dovetail.engine.dispatch import Step

MAX_CALLERS = 10_000  # that one limit keeps in mind; then it forgets whoever was silent longest
PAUSE = 5.0  # seconds from one try to reach a store that is in trouble to the next
TELL_SECONDS = 60.0  # between two lines of the log on a store that is full
ROUND_SECONDS = 86_400.0  # for which it is known that a call has gone on
MOMENT = 0.001  # seconds

# What counts towards the server's limit: whatever may run a user's function.
COUNTED = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})

log = logging.getLogger("dovetail")


class TooSoon(msgspec.Struct, frozen=True):
    """A call that comes too early for one of the rates."""

    rate: Rate
    wait: float  # seconds

    @property
    def retry_after(self) -> int:
        return max(1, math.ceil(self.wait))

    def words(self, subject: str, noun: str) -> str:
        return f"{subject} takes {self.rate.words(noun)}; try again in {self.retry_after} s."


# ── who is counted ──


def _principal(exchange: Exchange) -> str:
    owner = exchange.owner
    return caller_of(owner, exchange.address if owner is None else None)


WHO: dict[Per, Callable[[Exchange], str]] = {
    "all": lambda _: "everybody",
    "principal": _principal,
    "address": lambda exchange: caller_of(None, exchange.address),
}


# ── counting ──


class Tally:
    """The calls of one caller in the window at hand, and what is known of the window before."""

    __slots__ = ("before", "caller", "count", "earlier", "owed", "until", "window")

    def __init__(self, caller: str, window: int) -> None:
        self.caller = caller
        self.count = 0
        self.window = window
        self.turn(window)

    def turn(self, window: int) -> None:
        """Another window has begun."""
        self.earlier = self.count if window == self.window + 1 else 0  # in the window before, by way of this worker
        self.before: int | None = None  # the same by way of all workers; None until somebody has asked
        self.window = window
        self.count = 0  # calls that this worker has let through
        self.owed = 0  # those of them that the store has had no room for
        self.until = 0.0  # when there is no need to ask the store before


class Meter:
    """One rate of one subject: the tallies of its callers."""

    def __init__(self, subject: str, rate: Rate) -> None:
        self.rate = rate
        self._count = rate.count
        self._seconds = rate.seconds
        self._who = WHO[rate.per]
        self._place = f"rate/{subject}/{rate.unit}/{rate.per}"
        self._tallies: OrderedDict[str, Tally] = OrderedDict()  # whoever called last is at the end

    def tally(self, exchange: Exchange, now: float) -> Tally:
        """Of whoever makes the request, in the window at hand."""
        caller = self._who(exchange)
        window = int(now // self._seconds)
        tally = self._tallies.get(caller)
        if tally is None:
            tally = self._tallies[caller] = Tally(caller, window)
            if len(self._tallies) > MAX_CALLERS:
                self._tallies.popitem(last=False)
            return tally
        self._tallies.move_to_end(caller)
        if not tally.window - 1 <= window <= tally.window:  # a clock may be set back a little, or very much
            tally.turn(window)
        return tally

    def wait(self, number: int, window: int, before: int, now: float) -> float:
        """Seconds until the call with this number in its window is in time; 0 or less if it is."""
        if not before and number <= self._count:
            return 0.0
        into = max(0.0, now - window * self._seconds)
        if number > self._count:
            return max(MOMENT, self._seconds - into)
        share = 1 - (self._count - number + 1) / min(before, self._count)
        return max(0.0, share) * self._seconds - into

    def take(self, exchange: Exchange, now: float) -> float:
        """Count a call by this worker alone, if it is in time; the same as `wait`."""
        tally = self.tally(exchange, now)
        wait = self.wait(tally.count + 1, tally.window, tally.earlier, now)
        if wait <= 0:
            tally.count += 1
        return wait

    async def count_in(self, state: StateBackend, tally: Tally, now: float) -> float:
        """Count a call in the store; the same as `wait`, for all workers."""
        window, before = tally.window, tally.before
        adding = self._add_owed(state, tally)
        if before is None:
            entry, number = await asyncio.gather(state.get(self._key(tally.caller, window - 1)), adding)
            before = _number(entry)
            if tally.window == window:
                tally.before = before
        else:
            number = await adding
        return self.wait(number, window, before, now)

    async def _add_owed(self, state: StateBackend, tally: Tally) -> int:
        """Count a call, and those that were let through while there was no room."""
        window, owed, tally.owed = tally.window, tally.owed, 0  # who comes meanwhile must not pay it once more
        try:
            return await self.add(state, tally.caller, window, 1 + owed)
        except BaseException:
            if tally.window == window:
                tally.owed += owed
            raise

    async def add(self, state: StateBackend, caller: str, window: int, calls: int) -> int:
        return await state.add(self._key(caller, window), calls, 2.0 * self._seconds + PAUSE)

    def _key(self, caller: str, window: int) -> str:
        """Callers may have long names, and secret ones."""
        return f"{self._place}/{_digest(caller)}/{window}"


def _number(entry: Entry | None) -> int:
    return int(entry.value[:19]) if entry is not None and entry.value.isdigit() else 0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Away(Exception):
    """The store is in trouble."""


class SharedCounts:
    """The store that all workers count in. While it is in trouble it is asked only now and then."""

    def __init__(self, state: StateBackend, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._is_away = False
        self._ask_again = 0.0
        self._tell_again = -math.inf

    @contextmanager
    def asking(self) -> Iterator[StateBackend]:
        """Raises Away instead of what a store in trouble raises, or at once if that is known."""
        if self._is_away:
            now = self._clock()
            if now < self._ask_again:
                raise Away
            self._ask_again = now + PAUSE  # others do not wait for it meanwhile
        try:
            yield self._state
        except StoreTrouble as trouble:
            self._lost(trouble)
            raise Away from None
        except NoRoom as trouble:  # it has answered, so it is not in trouble
            self._found()
            self.tell_full(trouble)
            raise Away from None
        self._found()

    def tell_full(self, trouble: NoRoom) -> None:
        now = self._clock()
        if now >= self._tell_again:
            self._tell_again = now + TELL_SECONDS
            log.warning("some callers' rates are counted by each worker for itself: %s", trouble)

    def _lost(self, trouble: StoreTrouble) -> None:
        self._ask_again = self._clock() + PAUSE
        if not self._is_away:
            self._is_away = True
            log.warning("rate limits are counted by each worker for itself until the store is back: %s", trouble)

    def _found(self) -> None:
        if self._is_away:
            self._is_away = False
            log.info("rate limits are counted by all workers together again")


class Limiter:
    """The rates of one subject, the server or a tool. A call that one of them refuses counts for none."""

    def __init__(
        self,
        subject: str,
        rates: Sequence[Rate],
        shared: SharedCounts | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._meters = [Meter(subject, rate) for rate in rates]
        self._only = self._meters[0] if len(rates) == 1 else None
        self._shared = shared
        self._clock = clock or (time.monotonic if shared is None else time.time)
        self._rounds: OrderedDict[str, None] = OrderedDict()  # states that calls have gone on with

    async def refusal(self, exchange: Exchange) -> TooSoon | None:
        """Count a call, or say why not."""
        now = self._clock()
        if self._only is not None and self._shared is None:  # the way of most, and quicker
            wait = self._only.take(exchange, now)
            return TooSoon(self._only.rate, wait) if wait > 0 else None
        tallies = [meter.tally(exchange, now) for meter in self._meters]
        if self._shared is not None:
            with suppress(Away):
                return await self._by_all(self._shared, tallies, now)
        return self._by_itself(tallies, now)

    def _by_itself(self, tallies: list[Tally], now: float) -> TooSoon | None:
        for meter, tally in zip(self._meters, tallies, strict=True):
            wait = meter.wait(tally.count + 1, tally.window, tally.earlier, now)
            if wait > 0:
                return TooSoon(meter.rate, wait)
        for tally in tallies:
            tally.count += 1
        return None

    async def _by_all(self, shared: SharedCounts, tallies: list[Tally], now: float) -> TooSoon | None:
        pairs = list(zip(self._meters, tallies, strict=True))
        for meter, tally in pairs:
            if tally.until > now:  # whoever does not give up costs the store nothing
                return TooSoon(meter.rate, tally.until - now)
        windows = [tally.window for tally in tallies]
        with shared.asking() as state:
            counting = [self._in_store(shared, state, meter, tally, now) for meter, tally in pairs]
            counted = [await counting[0]] if len(counting) == 1 else await asyncio.gather(*counting)
        waits = [
            meter.wait(tally.count + 1, tally.window, tally.earlier, now) if wait is None else wait
            for (meter, tally), wait in zip(pairs, counted, strict=True)
        ]
        wait = max(waits)
        for tally, window, own_wait, own in zip(tallies, windows, waits, counted, strict=True):
            if tally.window == window:
                tally.count += wait <= 0
                tally.owed += wait <= 0 and own is None
                tally.until = now + own_wait
            elif tally.window == window + 1:  # another one has begun meanwhile
                tally.earlier += wait <= 0
        if wait <= 0:
            return None
        takes = [(*each, window) for each, window, own in zip(pairs, windows, counted, strict=True) if own is not None]
        with suppress(Away), shared.asking() as state:
            await asyncio.gather(*(meter.add(state, tally.caller, window, -1) for meter, tally, window in takes))
        return TooSoon(self._meters[waits.index(wait)].rate, wait)

    async def _in_store(
        self, shared: SharedCounts, state: StateBackend, meter: Meter, tally: Tally, now: float
    ) -> float | None:
        """As `count_in`; None if there is no room for this caller in this window: then only this rate of theirs is
        counted by each worker for itself.
        """
        try:
            return await meter.count_in(state, tally, now)
        except NoRoom as trouble:
            shared.tell_full(trouble)
            return None

    async def goes_on(self, request_state: str) -> bool:
        """Whether a call that was counted goes on with this state: each state does so once."""
        digest = _digest(request_state)
        if self._shared is not None:
            with suppress(Away), self._shared.asking() as state:
                return await state.claim(f"rate/round/{digest}", b"", ROUND_SECONDS)
        if digest in self._rounds:
            return False
        self._rounds[digest] = None
        if len(self._rounds) > MAX_CALLERS:
            self._rounds.popitem(last=False)
        return True


def counted(engine: "Engine", inner: "Step") -> "Step":
    """The server's own limit, around everything else that a request goes through."""

    async def step(exchange: Exchange) -> Result:
        limiter = engine.book.rates
        if limiter is not None and exchange.request.method in COUNTED:
            refusal = await limiter.refusal(exchange)
            if refusal is not None:
                raise RateLimited(refusal.words("This server", "request"), retry_after=refusal.retry_after)
        return await inner(exchange)

    return step
