"""Load for a server: clients and what to ask come in; how long each answer took goes out."""

import asyncio
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

from dovetail.cli.reaching import ServerAt
from dovetail.cli.terminal import ProgressLine, in_line
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from dovetail.client import Client

WARM_UP = (0.2, 1.0)  # seconds, at least and at most; else a tenth of the whole
MAX_COMPLAINTS = 100  # different ones
SHOW_SECONDS = 0.1
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
ROWS = 12
STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # where rows of the plot begin, and the same times ten

Ask = Callable[["Client"], Awaitable[object]]


class Slot(NamedTuple):
    """A row of the plot."""

    begin: float  # milliseconds
    end: float
    calls: int


class Measurement:
    """What came of it. Only calls that were answered well have a time."""

    def __init__(self) -> None:
        self.times = array("d")  # seconds; sorted when it is over
        self.errors: Counter[str] = Counter()
        self.seconds = 0.0

    def close(self, seconds: float) -> None:
        self.seconds = seconds
        self.times = array("d", sorted(self.times))

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds if self.seconds else 0.0

    def percentiles(self) -> dict[str, float]:
        """In milliseconds; empty if nothing was answered."""
        last = len(self.times) - 1
        return {name: self.times[round(part * last)] * 1e3 for name, part in PERCENTILES.items()} if last >= 0 else {}

    def plot(self) -> list[Slot]:
        """From the quickest to the slowest, in steps that grow."""
        if not self.times:
            return []
        borders = _borders(self.times[0] * 1e3, self.times[-1] * 1e3)
        inner = borders[1:-1]  # what is quicker or slower than every row has its place in the outermost
        counts = Counter(bisect_right(inner, each * 1e3) for each in self.times)
        return [Slot(borders[at], borders[at + 1], counts[at]) for at in range(len(borders) - 1)]

    def note(self, failure: Exception) -> None:
        words = f"{type(failure).__name__}: {in_line(str(failure), 200)}"
        self.errors[words if words in self.errors or len(self.errors) < MAX_COMPLAINTS else "others"] += 1


def _borders(least: float, most: float) -> list[float]:
    """Round numbers of milliseconds, at most one more than there are rows."""
    every = [round(step * 10.0**power, 6) for power in range(-4, 8) for step in STEPS]
    first = max((at for at, border in enumerate(every) if border <= least), default=0)
    last = min((at for at, border in enumerate(every) if border > most), default=len(every) - 1)
    thinned = every[first : last + 1]
    while len(thinned) > ROWS + 1:
        thinned = [*thinned[:-1:2], thinned[-1]]
    return thinned


async def load(server: ServerAt, first: "Client", ask: Ask, callers: int, seconds: float) -> Measurement:
    """Ask as often as possible. Each caller has a connection of its own to a URL; a program has one for all."""
    async with AsyncExitStack() as stack:
        clients = [first] * callers
        if server.is_url:
            others = [server.connect() for _ in range(callers - 1)]
            clients = [first, *[await stack.enter_async_context(each) for each in others]]
        await _phase(clients, ask, min(max(seconds / 10, WARM_UP[0]), WARM_UP[1]), None)
        line = ProgressLine()
        try:
            return await _phase(clients, ask, seconds, line)
        finally:
            line.clear()


async def _phase(clients: Sequence["Client"], ask: Ask, seconds: float, line: ProgressLine | None) -> Measurement:
    found = Measurement()
    began = time.perf_counter()
    end = began + seconds
    watching = asyncio.ensure_future(_show(found, line, seconds)) if line is not None else None
    try:
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(_call_until(end, client, ask, found))
    finally:
        if watching is not None:
            watching.cancel()
    found.close(time.perf_counter() - began)
    return found


async def _call_until(end: float, client: "Client", ask: Ask, found: Measurement) -> None:
    clock = time.perf_counter
    while (began := clock()) < end:
        try:
            await ask(client)
        except (DovetailError, TimeoutError) as failure:
            found.note(failure)
            await asyncio.sleep(0.01)  # a server that is gone fails at once
        else:
            found.times.append(clock() - began)


async def _show(found: Measurement, line: ProgressLine, seconds: float) -> None:
    began = time.perf_counter()
    while True:
        await asyncio.sleep(SHOW_SECONDS)
        line.show(min(time.perf_counter() - began, seconds), seconds, f"{len(found.times):,} calls")
