"""The last hour of a server for the console: a point every ten seconds, and the last calls that failed."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from operator import add, sub
from typing import Any

from msgspec import Raw

from dovetail.engine import audit
from dovetail.engine import metrics as families
from dovetail.engine.engine import Engine
from dovetail.engine.metrics import BUCKETS, FAILURES, Metrics, Values
from dovetail.errors import ProtocolError, ToolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import ToolResult

SPAN = 10.0  # seconds that a point is about
SLACK = 0.5  # seconds that a tick may be early
MAX_POINTS = 360
MAX_NAMES = 50  # tools or mounts of a point: the busiest
MAX_FAILURES = 100
MAX_MESSAGE = 300  # characters
LONG_LIVED = frozenset({"subscriptions/listen"})  # counted, but not slow
ALL = ""  # the row of all requests
GAUGES = {  # of a point: the family, and the labels of the one that is shown
    "sessions": (families.SESSIONS, ()),
    "streams": (families.STREAMS, ()),
    "workers": (families.WORKERS, ()),
    "slots": (families.SLOTS, ("server",)),
    "running": (families.SLOTS_IN_USE, ("server",)),
    "waiting": (families.SLOTS_WAITING, ("server",)),
}

Row = list[float]  # requests, errors, and how many of them ended in each bucket of time
EMPTY: Row = [0.0] * (len(BUCKETS) + 3)
Rows = dict[str, dict[str, Row]]  # of tools, mounts and the event loop, by their names
Reading = tuple[float, Rows]  # when it was read
Numbered = deque[tuple[int, Any]]


class History:
    """What the pages of a server show of the time before they were opened. The numbers are those of all workers."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.points: Numbered = deque(maxlen=MAX_POINTS)
        self.failures: Numbered = deque(maxlen=MAX_FAILURES)
        self.last = 0  # number of a point or a failure
        self.methods: dict[str, float] = {}  # requests since the start
        self._metrics = metrics
        self._clock = clock
        self._before: Reading | None = None  # at the end of the last point
        self._tail = Raw(b"null")
        self._next_point = self._next_tail = 0.0
        metrics.on_update.append(self.tick)
        metrics.on_failure = self._add_failure

    def tick(self) -> None:
        """End a point, if it is time."""
        if (now := self._clock()) < self._next_point - SLACK:
            return
        self._next_point = now + SPAN
        is_first = self._before is None  # what a worker finds that replaces another one is from before
        self._before = self._read()
        if not is_first:
            self._add(self.points, self._tail)
        self._next_tail = now  # what is read by now has ended

    def _add(self, items: Numbered, item: Any) -> None:
        self.last += 1
        items.append((self.last, item))

    def tail(self) -> Raw:
        """The point that has not ended; read once a second, however many pages ask."""
        if (now := self._clock()) >= self._next_tail:
            self._next_tail = now + SLACK
            self._read()
        return self._tail

    def _read(self) -> Reading:
        values = self._metrics.read()
        reading = self._clock(), rows_of(values)
        self._tail = Raw(jsonrpc.encode(point_between(self._before or reading, reading, values)))
        self.methods = {}
        for labels, cells in values[families.OPERATIONS.name].items():
            self.methods[labels[0]] = self.methods.get(labels[0], 0) + sum(cells[:-1])
        return reading

    def _add_failure(
        self, engine: Engine, request: Request, tool: str, outcome: str, seconds: float, answer: Any
    ) -> None:
        """With what its client is shown: `answer` is a result or an exception."""
        is_shown = isinstance(answer, (ToolResult, ProtocolError, ToolError))
        message = "\n".join(_texts(answer)) if isinstance(answer, ToolResult) else str(answer)
        self._add(self.failures, {
            "time": round(time.time(), 3),
            "method": request.method,
            "tool": tool,
            "outcome": outcome,
            "message": audit.redacted_label(message, engine.redactor, MAX_MESSAGE) if is_shown else "Internal error",
            "duration": round(seconds * 1000, 3),
            "id": audit.redacted_label(str(request.id), engine.redactor),
        })  # fmt: skip


def since(items: Numbered, number: int) -> list[Any]:
    """The points or failures after that one."""
    return [item for at, item in items if at > number]


def _texts(result: ToolResult) -> Iterator[str]:
    return (text for each in result.content if isinstance(text := getattr(each, "text", None), str))


def rows_of(values: Values) -> Rows:
    tools: dict[str, Row] = {ALL: EMPTY}
    for (method, _, tool, outcome, _), cells in values[families.OPERATIONS.name].items():
        row = _row(cells, outcome)
        for key in {ALL, tool}:
            tools[key] = _sum(tools.get(key, EMPTY), row[:2] + EMPTY[2:] if method in LONG_LIVED else row)
    mounts: dict[str, Row] = {}
    for (mount, outcome), cells in values[families.MOUNT_DURATION.name].items():
        mounts[mount] = _sum(mounts.get(mount, EMPTY), _row(cells, outcome))
    lag = values[families.LOOP_LAG.name].get((), EMPTY[1:])
    return {"tools": tools, "mounts": mounts, "lag": {ALL: _row(lag, "ok")}}


def _row(cells: list[float], outcome: str) -> Row:
    calls = sum(cells[:-1])
    return [calls, calls if outcome in FAILURES else 0.0, *cells[:-1]]


def _sum(one: Row, other: Row) -> Row:
    return [*map(add, one, other)]


def point_between(before: Reading, after: Reading, values: Values) -> dict[str, Any]:
    """What happened between two readings, with gauges as they are."""
    rows = {
        kind: {key: [*map(sub, row, before[1][kind].get(key, EMPTY))] for key, row in each.items()}
        for kind, each in after[1].items()
    }
    everything = rows["tools"].pop(ALL)
    return {
        "time": round(time.time(), 3),
        "seconds": round(after[0] - before[0], 3),
        "all": _sparse(everything),
        "tools": {key: _sparse(row) for key, row in _busiest(rows["tools"]).items()},
        "mounts": {key: _sparse(row) for key, row in _busiest(rows["mounts"]).items()},
        "lag": _sparse(rows["lag"][ALL]),
        "tasks": {labels[0]: cells[0] for labels, cells in values[families.TASKS.name].items()},
        **{name: next(iter(values[family.name].get(labels, ())), None) for name, (family, labels) in GAUGES.items()},
    }


def _busiest(rows: dict[str, Row]) -> dict[str, Row]:
    called = [(key, row) for key, row in rows.items() if row[0]]
    return dict(sorted(called, key=lambda pair: -pair[1][0])[:MAX_NAMES])


def _sparse(row: Row) -> list[Any]:
    """Requests, errors, and the buckets that are not empty, by their numbers."""
    return [int(row[0]), int(row[1]), {index: int(count) for index, count in enumerate(row[2:]) if count}]
