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


METHOD, TOOL = "mcp_method_name", "gen_ai_tool_name"
OPERATIONS = Family(
    "mcp_server_operation_duration_seconds", "histogram", "Duration of requests.",
    (METHOD, "mcp_protocol_version", TOOL, "outcome", "error_type"),
)  # fmt: skip
SESSION_DURATION = Family(
    "mcp_server_session_duration_seconds", "histogram", "Duration of the HTTP sessions that have ended."
)
SESSIONS = Family("dovetail_sessions", "gauge", "Open HTTP sessions, by the workers that opened them.")
STREAMS = Family("dovetail_streams", "gauge", "Open streams: GET, HTTP+SSE, subscriptions/listen.")
RESUMED = Family("dovetail_resumed_streams_total", "counter", "Streams that clients resumed by Last-Event-ID.")
HTTP_REFUSALS = Family(
    "dovetail_http_refusals_total", "counter", "HTTP requests refused before any handler, by status.", ("status",)
)
REFUSALS = Family(
    "dovetail_refused_calls_total", "counter", "Calls refused by a limit of the tool, or of the server without a tool.",
    (TOOL, "reason"),
)  # fmt: skip
QUEUE_TIME = Family(
    "dovetail_queue_duration_seconds", "histogram", "Time until a call had its slots; calls that get them at once "
    "count only where their tool has limits of its own.", (TOOL,),
)  # fmt: skip
SLOTS = Family("dovetail_slots", "gauge", "Calls that may run at once, by limit.", ("limit",))
SLOTS_IN_USE = Family("dovetail_slots_in_use", "gauge", "Calls that hold a slot, by limit.", ("limit",))
SLOTS_WAITING = Family("dovetail_slots_waiting", "gauge", "Calls that wait for a slot, by limit.", ("limit",))
THREADS = Family("dovetail_threads", "gauge", "Functions that may run in threads at once.")
THREADS_IN_USE = Family("dovetail_threads_in_use", "gauge", "Functions that run in threads.")
STUCK_THREADS = Family("dovetail_threads_stuck", "gauge", "Threads that still run a function whose call has ended.")
STUCK_CALLS = Family("dovetail_stuck_calls_total", "counter", "Calls that did not give their thread back.", (TOOL,))
LOOP_LAG = Family("dovetail_event_loop_lag_seconds", "histogram", "How late the event loop was, measured each second.")
BLOCKED_LOOPS = Family("dovetail_event_loop_blocked_total", "counter", "Calls that blocked the event loop.", (TOOL,))
QUESTIONS = Family(
    "dovetail_questions_total", "counter", "Questions to clients: asked, answered, timed_out, failed.",
    (METHOD, "outcome"),
)  # fmt: skip
REPLAYS = Family("dovetail_replays_total", "counter", "Rounds of calls that ran again with answers.", (METHOD,))
TASKS = Family("dovetail_tasks", "gauge", "Open tasks by status.", ("status",))
TASKS_ENDED = Family("dovetail_tasks_ended_total", "counter", "Tasks that have ended, by status.", ("status",))
MOUNT_DURATION = Family(
    "dovetail_mount_duration_seconds", "histogram", "Duration of requests to mounted servers.", ("mount", "outcome")
)
MOUNT_STATES = Family("dovetail_mount_workers", "gauge", "Workers by what they know of a backend.", ("mount", "state"))
CACHE = Family("dovetail_result_cache_requests_total", "counter", "Calls of cached tools: hit, miss.", (TOOL, "result"))
STORE_DURATION = Family(
    "dovetail_state_store_duration_seconds", "histogram", "Duration of operations of a shared state store.",
    ("operation", "outcome"),
)  # fmt: skip
STORE_OUTAGES = Family("dovetail_state_store_outages_total", "counter", "Outages of the state store that workers saw.")
STORE_DOWN = Family("dovetail_state_store_down", "gauge", "Workers that can't reach the state store, or find it full.")
WORKERS = Family("dovetail_workers", "gauge", "Workers that serve.")
RESTARTS = Family("dovetail_worker_restarts_total", "counter", "Workers that ended and were replaced.")
BUILD = Family(
    "dovetail_build_info", "gauge", "What runs here; always 1.",
    ("dovetail_version", "python_version", "server_name", "server_version"),
)  # fmt: skip
UNRECORDED = Family("dovetail_metrics_unrecorded_total", "counter", "Values of series for which there was no room.")
FAMILIES = {each.name: each for each in list(globals().values()) if isinstance(each, Family)}


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
