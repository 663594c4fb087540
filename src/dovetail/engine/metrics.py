"""Metrics: counters, gauges and histograms of all workers of a process group, in memory that they share.

Each worker writes to a slab of its own, without locks; the supervisor makes all of them before it forks. A worker that
replaces another one takes over its slab and counts on from there, so that no counter falls, however a worker ends. Who
reads adds up all slabs. Metrics are recorded on the event loop alone.
"""

import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import add
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from dovetail import errors
from dovetail.engine import audit
from dovetail.engine.request_context import RequestContext
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import Result, ToolResult

if TYPE_CHECKING:
    from dovetail.engine.dispatch import Layer
    from dovetail.engine.engine import Engine

Kind = Literal["counter", "gauge", "histogram"]
Cells: TypeAlias = "memoryview[float]"
Values = dict[str, dict[tuple[str, ...], list[float]]]  # by family, then by labels: its cells, summed over the workers

SLAB_BYTES = 8 * 1024 * 1024  # of address space: memory is taken as it is used
HEADER = 2  # cells of a slab before its series: how many cells are used; whether its worker lives
OTHER = "_OTHER"  # the label for names that are not the server's own
ERROR_TYPES = {None: ""} | {code: str(code) for name, code in vars(errors).items() if name.isupper() and code < 0}
# Seconds: those of the conventions, and three shorter ones, because most tools of a fast server end sooner.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Family(msgspec.Struct, frozen=True):
    """One metric with all its series. The names of OpenTelemetry's conventions are spelled as Prometheus has them."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def cells(self) -> int:
        """Of a histogram one for each bucket, one for what is longer, and the sum."""
        return len(BUCKETS) + 2 if self.kind == "histogram" else 1


OPERATIONS = Family(
    "mcp_server_operation_duration_seconds",
    "histogram",
    "Duration of requests.",
    ("mcp_method_name", "mcp_protocol_version", "gen_ai_tool_name", "outcome", "error_type"),
)
LOOP_BLOCKED = Family("dovetail_loop_blocked_total", "counter", "Blocks of the event loop.", ("gen_ai_tool_name",))
THREAD_STUCK = Family("dovetail_thread_stuck_total", "counter", "Threads not given back.", ("gen_ai_tool_name",))
FAMILIES = {each.name: each for each in (OPERATIONS, LOOP_BLOCKED, THREAD_STUCK)}


def _doubles(buffer: mmap.mmap | bytes | bytearray) -> Cells:
    return memoryview(buffer).cast("d")


class Metrics:
    """The metrics of a process group, as one of its workers sees them."""

    def __init__(self, workers: int = 1) -> None:
        self._slabs = [_doubles(mmap.mmap(-1, SLAB_BYTES)) for _ in range(workers + 1)]
        self._slab = self._slabs[0]
        self._series: dict[tuple[str, tuple[str, ...]], Cells] = {}
        self._gauges: list[Callable[[], None]] = []  # each sets some of them
        self._next = HEADER
        self.take_slab(0)

    # ── slabs ──

    def take_slab(self, number: int) -> None:
        """Write to this slab from now on: in a worker to that of its number, from 1 on; the first is the parent's."""
        self._slab = self._slabs[number]
        self._series = dict(self._read(self._slab))
        self._next = int(self._slab[0]) or HEADER
        for (name, _), cells in self._series.items():
            if FAMILIES[name].kind == "gauge":
                cells[0] = 0.0
        self._slab[1] = os.getpid()

    def release_slab(self, number: int) -> None:
        """Its worker has ended: its counters stay, its gauges count no more."""
        self._slabs[number][1] = 0.0

    @staticmethod
    def _read(slab: Cells) -> Iterator[tuple[tuple[str, tuple[str, ...]], Cells]]:
        """All series. Each begins with the length of its key in bytes and the number of its cells."""
        position, used = HEADER, int(slab[0])
        while position < used:
            size, count = int(slab[position]), int(slab[position + 1])
            first = position + 2 + -(-size // 8)
            name, *labels = slab[position + 2 : first].tobytes()[:size].decode().split("\n")
            yield (name, tuple(labels)), slab[first : first + count]
            position = first + count

    def _add_series(self, key: tuple[str, tuple[str, ...]]) -> Cells:
        """A series is added before its length is counted: others read no half of it. Without room it is not shown."""
        name, labels = key
        text = "\n".join((name, *labels)).encode()
        count, width = FAMILIES[name].cells, -(-len(text) // 8)
        first = self._next + 2 + width
        if first + count > len(self._slab):
            return _doubles(bytearray(8 * count))
        self._slab[self._next], self._slab[self._next + 1] = len(text), count
        self._slab[self._next + 2 : first] = _doubles(text.ljust(8 * width, b"\0"))
        self._next = first + count
        self._slab[0] = self._next
        return self._slab[first : first + count]

    # ── recording ──

    def cells(self, family: Family, *labels: str) -> Cells:
        """The cells of a series, made at its first use."""
        key = (family.name, labels)
        if (found := self._series.get(key)) is None:
            found = self._series[key] = self._add_series(key)
        return found

    def add(self, family: Family, *labels: str, by: float = 1.0) -> None:
        self.cells(family, *labels)[0] += by

    def set(self, family: Family, *labels: str, value: float) -> None:
        self.cells(family, *labels)[0] = value

    def observe(self, family: Family, *labels: str, seconds: float) -> None:
        cells = self.cells(family, *labels)
        cells[bisect_left(BUCKETS, seconds)] += 1
        cells[-1] += seconds

    # ── reading ──

    def on_read(self, set_gauges: Callable[[], None]) -> None:
        """Call a function before this worker's metrics are read, and about once a second."""
        self._gauges.append(set_gauges)

    def update(self) -> None:
        for each in self._gauges:
            each()

    def read(self) -> Values:
        """All series of all workers, summed."""
        self.update()
        values: Values = {name: {} for name in FAMILIES}
        for slab in self._slabs:
            for (name, labels), cells in self._read(slab):
                if slab[1] or FAMILIES[name].kind != "gauge":
                    sums = values[name].get(labels, [0.0] * len(cells))
                    values[name][labels] = [*map(add, sums, cells)]
        return values


# ── requests ──


def measured(metrics: Metrics) -> "Callable[[Engine, Layer], Layer]":
    """A layer that counts and times each request."""

    def layer_of(engine: "Engine", inner: "Layer") -> "Layer":
        series: dict[tuple[str, str, str, str, str], Cells] = {}
        clock = time.perf_counter

        def record(request: Request, began: float, outcome: str = "ok", code: int | None = None) -> None:
            seconds, tool = clock() - began, ""
            error = outcome if outcome == "tool_error" else ERROR_TYPES.get(code, OTHER)  # of an author's own codes
            if request.method == "tools/call":
                name = request.params.name
                tool = name if engine.tools.get(name) is not None else OTHER
            key = (request.method, request.revision.name, tool, outcome, error)
            if (cells := series.get(key)) is None:
                cells = series[key] = metrics.cells(OPERATIONS, *key)
            cells[bisect_left(BUCKETS, seconds)] += 1
            cells[-1] += seconds

        async def layer(context: RequestContext) -> Result:
            request, began = context.request, clock()
            try:
                result = await inner(context)
            except BaseException as failure:
                record(request, began, *audit.failure_outcome(failure, request))
                raise
            if type(result) is ToolResult and not result.is_error:
                record(request, began)
            else:
                record(request, began, audit.result_outcome(result))
            return result

        return layer

    return layer_of
