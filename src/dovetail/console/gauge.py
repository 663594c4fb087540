"""Measures what a server is asked: requests pass by as through any middleware, and figures go out.

Its size is fixed, however many requests there are: counters, and for each of two seconds a histogram whose bins grow
by a tenth, so that a percentile is never off by more than that.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from dovetail.engine.dispatch import CallNext
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import Result, ToolResult

FINEST = 0.01  # milliseconds: the upper end of the first bin
GROWTH = math.log(1.1)
BINS = 200  # the last one holds what takes longer than half an hour
MAX_METHODS = 50
OTHER = "other"  # methods, if there are more
UNENDING = frozenset({"subscriptions/listen"})  # counted, but neither running nor slow
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Histogram:
    """How long the requests took that ended in one second."""

    def __init__(self) -> None:
        self.count = 0
        self._bins = [0] * BINS

    def add(self, milliseconds: float) -> None:
        place = 0 if milliseconds <= FINEST else math.ceil(math.log(milliseconds / FINEST) / GROWTH)
        self._bins[min(place, BINS - 1)] += 1
        self.count += 1

    def percentiles(self) -> dict[str, float] | None:
        """In milliseconds; None if there was nothing."""
        if not self.count:
            return None
        return {name: self._at(math.ceil(part * self.count)) for name, part in PERCENTILES.items()}

    def _at(self, rank: int) -> float:
        seen = 0
        for place, count in enumerate(self._bins):
            seen += count
            if seen >= rank:
                return round(FINEST * math.exp(place * GROWTH), 3)
        raise AssertionError("a rank is never above the count")


class Gauge:
    """Lives on one event loop, as the server does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._began = clock()
        self._requests = self._errors = self._running = 0
        self._methods: dict[str, int] = {}
        self._second = int(self._began)
        self._now, self._before = Histogram(), Histogram()

    async def measure(self, request: Request, call_next: CallNext) -> Result:
        """A middleware."""
        self._count(request.method)
        if request.method in UNENDING:
            return await call_next(request)
        began = self.clock()
        self._running += 1
        try:
            result = await call_next(request)
            self._errors += isinstance(result, ToolResult) and result.is_error
            return result
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._errors += 1
            raise
        finally:
            self._running -= 1
            self._turn()
            self._now.add((self.clock() - began) * 1000)

    def _count(self, method: str) -> None:
        self._requests += 1
        name = method if method in self._methods or len(self._methods) < MAX_METHODS else OTHER
        self._methods[name] = self._methods.get(name, 0) + 1

    def _turn(self) -> None:
        """To the second that it is."""
        second = int(self.clock())
        if second == self._second:
            return
        self._before = self._now if second == self._second + 1 else Histogram()
        self._now, self._second = Histogram(), second

    def figures(self) -> dict[str, Any]:
        """The whole of it; rate and latency of the last second that is over."""
        self._turn()
        return {
            "uptime": round(self.clock() - self._began, 3),
            "requests": self._requests,
            "errors": self._errors,
            "running": self._running,
            "rate": self._before.count,
            "latency": self._before.percentiles(),
            "methods": dict(self._methods),
        }
