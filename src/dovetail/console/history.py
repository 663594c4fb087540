"""The last hour of a server for the console: a point every ten seconds, and the last calls that failed."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from operator import add, sub
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Raw

from dovetail.engine import audit
from dovetail.engine.dispatch import Layer
from dovetail.engine.engine import Engine
from dovetail.engine.metrics import BUCKETS, FAMILIES, OPERATIONS, OTHER, Metrics, Values
from dovetail.engine.request_context import RequestContext
from dovetail.errors import ProtocolError, ToolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import Result, ToolResult

SPAN = 10.0  # seconds that a point is about
SLACK = 0.5  # seconds that a tick may be early
MAX_POINTS = 360
MAX_TOOLS = 50  # of a point: the busiest; the others are one row
MAX_FAILURES = 100
MAX_MESSAGE = 300  # characters
LONG_LIVED = frozenset({"subscriptions/listen"})  # counted, but not slow
ERRORS = frozenset({"tool_error", "error", "refused"})
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
ALL = ""  # the row of all requests
GAUGES: dict[str, str] = {}

T = TypeVar("T")
Row = list[float]  # requests, errors, and how many of them ended in each bucket of time
EMPTY: Row = [0.0] * (len(BUCKETS) + 3)


class Recent(Generic[T]):
    """The last ones of many."""

    def __init__(self, most: int) -> None:
        self._items: deque[T] = deque(maxlen=most)
        self.added = 0

    def add(self, item: T) -> None:
        self._items.append(item)
        self.added += 1

    def since(self, added: int) -> list[T]:
        """Those that came after so many."""
        return list(self._items)[max(0, len(self._items) - (self.added - added)) :]


class Reading(NamedTuple):
    clock: float
    rows: dict[str, Row]  # by tool


class History:
    """What the pages of a server show of the time before they were opened. The numbers are those of all workers."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.metrics = metrics
        self.points: Recent[Raw] = Recent(MAX_POINTS)
        self.failures: Recent[dict[str, Any]] = Recent(MAX_FAILURES)
        self.methods: dict[str, float] = {}  # requests since the start
        self._clock = clock
        self._readings: deque[Reading] = deque()  # of the last ten seconds, and one before
        self._next_point = 0.0
        metrics.on_read(self.tick)

    def tick(self) -> None:
        """Add a point, if it is time."""
        if (now := self._clock()) < self._next_point - SLACK:
            return
        self._next_point = now + SPAN  # also because a reading ticks
        is_first = not self._readings  # a worker that replaces another one finds its numbers: they are from before
        self._read()
        if not is_first:
            self.points.add(self._latest)

    def now(self) -> Raw:
        """The point of the last ten seconds; read once a second, however many pages ask."""
        if not self._readings or self._clock() - self._readings[-1].clock > SLACK:
            self._read()
        return self._latest

    def _read(self) -> None:
        values, clock = self.metrics.read(), self._clock()
        operations = values[OPERATIONS.name]
        self.methods = {}
        for labels, cells in operations.items():
            self.methods[labels[0]] = self.methods.get(labels[0], 0) + sum(cells[:-1])
        readings = self._readings
        readings.append(Reading(clock, rows_of(operations)))
        while len(readings) > 2 and readings[1].clock <= clock - SPAN + SLACK:
            readings.popleft()
        self._latest = Raw(jsonrpc.encode(point_between(readings[0], readings[-1], values)))

    def failures_layer(self, engine: Engine, inner: Layer) -> Layer:
        """Record each request that fails, with what its client is shown."""

        def record(request: Request, began: float, outcome: str, message: str) -> None:
            name = request.params.name if request.method == "tools/call" else ALL
            self.failures.add({
                "time": round(time.time(), 3),
                "method": request.method,
                "tool": name if name == ALL or engine.tools.get(name) is not None else OTHER,
                "outcome": outcome,
                "message": jsonrpc.sendable(engine.redactor.text(message[: 4 * MAX_MESSAGE])[:MAX_MESSAGE]),
                "duration": round((time.perf_counter() - began) * 1000, 3),
                "id": jsonrpc.sendable(str(request.id)[:MAX_MESSAGE]),
            })  # fmt: skip

        async def layer(context: RequestContext) -> Result:
            request, began = context.request, time.perf_counter()
            try:
                result = await inner(context)
            except BaseException as failure:
                outcome, _ = audit.failure_outcome(failure, request)
                if outcome in ERRORS:
                    is_shown = isinstance(failure, (ProtocolError, ToolError))
                    record(request, began, outcome, str(failure) if is_shown else "Internal error")
                raise
            if type(result) is ToolResult and result.is_error:
                record(request, began, "tool_error", "\n".join(_texts(result)))
            return result

        return layer


def _texts(result: ToolResult) -> Iterator[str]:
    return (text for each in result.content if isinstance(text := getattr(each, "text", None), str))


def rows_of(operations: dict[tuple[str, ...], list[float]]) -> dict[str, Row]:
    """A row for each tool, and one for all requests."""
    rows: dict[str, Row] = {ALL: EMPTY}
    for (method, _, tool, outcome, _), cells in operations.items():
        calls, times = sum(cells[:-1]), EMPTY[2:] if method in LONG_LIVED else cells[:-1]
        row = [calls, calls if outcome in ERRORS else 0.0, *times]
        for key in {ALL, tool}:
            rows[key] = [*map(add, rows.get(key, EMPTY), row)]
    return rows


def point_between(before: Reading, after: Reading, values: Values) -> dict[str, Any]:
    """What happened between two readings."""
    rows = {key: [*map(sub, row, before.rows.get(key, EMPTY))] for key, row in after.rows.items()}
    everything = rows.pop(ALL)
    busiest = sorted((key for key, row in rows.items() if row[0]), key=lambda key: (key == OTHER, -rows[key][0]))
    shown = {key: rows[key] for key in busiest[:MAX_TOOLS]}
    for key in busiest[MAX_TOOLS:]:
        shown[OTHER] = [*map(add, shown.get(OTHER, EMPTY), rows[key])]
    return {
        "time": round(time.time(), 3),
        "seconds": round(max(after.clock - before.clock, 1.0), 3),
        "requests": everything[0],
        "errors": everything[1],
        **{name: percentile(everything[2:], part) for name, part in PERCENTILES.items()},
        "tools": {
            key: [row[0], row[1], percentile(row[2:], 0.5), percentile(row[2:], 0.99)] for key, row in shown.items()
        },
    }


def percentile(buckets: Row, part: float) -> float | None:
    """In milliseconds, as if the times in a bucket were spread evenly; None without any."""
    wanted, lower = part * sum(buckets), 0.0
    for count, upper in zip(buckets, chain(BUCKETS, BUCKETS[-1:]), strict=True):
        if count and wanted <= count:
            return round(1000 * (lower + (upper - lower) * wanted / count), 3)
        wanted, lower = wanted - count, upper
    return None
