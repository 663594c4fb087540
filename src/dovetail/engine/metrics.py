"""Metrics: counters, gauges and histograms of all workers of a process group, in memory that they share.

Each worker writes to a slab of its own, without locks; the supervisor makes all of them before it forks. A worker that
replaces another one takes over its slab and counts on from there, so that no counter falls, however a worker ends. A
reader adds up all slabs. A process without a supervisor has one that is its own. Only the event loop records metrics.
"""

import mmap
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator
from inspect import iscoroutinefunction
from operator import add
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from dovetail import errors
from dovetail.engine import audit
from dovetail.engine.request_context import RequestContext
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import Result, ToolResult
from dovetail.state.base import StateBackend, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.dispatch import Layer
    from dovetail.engine.engine import Engine
    from dovetail.engine.mounts import Mount

Cells: TypeAlias = "memoryview[float]"
Key = tuple[str, ...]  # the name of a family, and its labels
Values = dict[str, dict[tuple[str, ...], list[float]]]  # by family, then by labels: its cells, summed over the workers

SLAB_BYTES = 8 * 1024 * 1024  # of address space: memory is taken as it is used
# Of a process, also where another server forks it; Windows has neither forks nor these flags.
PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
HEADER = 1  # cell of a slab before its series: how many cells are used
MAX_LABEL = 200  # characters
FAILURES = frozenset({"tool_error", "error", "refused"})  # of the outcomes
OTHER = "_OTHER"  # the label for names that are not the server's own
ERROR_TYPES = {None: ""} | {code: str(code) for name, code in vars(errors).items() if name.isupper() and code < 0}
# Seconds: those of the conventions, and three shorter ones, because most tools of a fast server end sooner.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Family(msgspec.Struct, frozen=True):
    """One metric with all its series. The names of OpenTelemetry's conventions are spelled as Prometheus has them."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
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
SESSIONS = Family("dovetail_sessions", "gauge", "Open HTTP sessions, by the workers that opened them.")
STREAMS = Family("dovetail_streams", "gauge", "Open streams: GET, HTTP+SSE, subscriptions/listen.")
HTTP_REFUSALS = Family("dovetail_http_refusals_total", "counter", "Refused HTTP requests, by status.", ("status",))
REFUSALS = Family("dovetail_refused_calls_total", "counter", "Calls that a limit refused.", (TOOL, "reason"))
QUEUE_TIME = Family("dovetail_queue_duration_seconds", "histogram", "Time until calls had their slots.", (TOOL,))
SLOTS = Family("dovetail_slots", "gauge", "Calls that may run at once, by limit.", ("limit",))
SLOTS_IN_USE = Family("dovetail_slots_in_use", "gauge", "Calls that hold a slot, by limit.", ("limit",))
SLOTS_WAITING = Family("dovetail_slots_waiting", "gauge", "Calls that wait for a slot, by limit.", ("limit",))
STUCK_CALLS = Family("dovetail_stuck_calls_total", "counter", "Calls that did not give their thread back.", (TOOL,))
LOOP_LAG = Family("dovetail_event_loop_lag_seconds", "histogram", "How late the event loop was, measured each second.")
BLOCKED_LOOPS = Family("dovetail_event_loop_blocked_total", "counter", "Calls that blocked the event loop.", (TOOL,))
QUESTIONS = Family(
    "dovetail_questions_total", "counter", "Questions to clients: asked, answered, timed_out.", ("outcome",)
)
REPLAYS = Family("dovetail_replays_total", "counter", "Rounds of calls that ran again with answers.", (METHOD,))
TASKS = Family("dovetail_tasks", "gauge", "Open tasks by status.", ("status",))
TASKS_ENDED = Family("dovetail_tasks_ended_total", "counter", "Tasks that have ended, by status.", ("status",))
MOUNT_DURATION = Family(
    "dovetail_mount_duration_seconds", "histogram", "Duration of requests to mounted servers.", ("mount", "outcome")
)
CACHE = Family("dovetail_result_cache_requests_total", "counter", "Calls of cached tools: hit, miss.", (TOOL, "result"))
STORE_DURATION = Family(
    "dovetail_state_store_duration_seconds", "histogram", "Duration of operations of a shared state store.",
    ("operation", "outcome"),
)  # fmt: skip
STORE_OUTAGES = Family("dovetail_state_store_outages_total", "counter", "Outages of the state store that workers saw.")
WORKERS = Family("dovetail_workers", "gauge", "Workers that serve.")
RESTARTS = Family("dovetail_worker_restarts_total", "counter", "Workers that ended and were replaced.")
BUILD = Family(
    "dovetail_build_info", "gauge", "What runs here; always 1.", ("dovetail_version", "server_name", "server_version")
)
UNRECORDED = Family("dovetail_metrics_unrecorded_total", "counter", "Values of series for which there was no room.")
FAMILIES = {each.name: each for each in list(globals().values()) if isinstance(each, Family)}


def _doubles(buffer: mmap.mmap | bytes | bytearray) -> Cells:
    return memoryview(buffer).cast("d")


class Slab:
    """The memory of one worker: series after series, each with its key, which is read once."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.cells = _doubles(memory)
        self.series: dict[Key, Cells] = {}
        self._position = HEADER

    def read(self) -> dict[Key, Cells]:
        """All series. Each begins with the length of its key in bytes."""
        cells, used = self.cells, int(self.cells[0])
        while self._position < used:
            size = int(cells[self._position])
            first = self._position + 1 + -(-size // 8)
            name, *labels = cells[self._position + 1 : first].tobytes()[:size].decode().split("\n")
            self._position = first + FAMILIES[name].cells
            self.series[(name, *labels)] = cells[first : self._position]
        return self.series

    def add(self, key: Key) -> "Cells | None":
        """Add a series; None if there is no room. Its length is counted last: others read no half of it."""
        text = "\n".join(key).encode()
        cells, begin, count, width = self.cells, self._position, FAMILIES[key[0]].cells, -(-len(text) // 8)
        first = begin + 1 + width
        if first + count > len(cells):
            return None
        cells[begin] = len(text)
        cells[begin + 1 : first] = _doubles(text.ljust(8 * width, b"\0"))
        cells[0] = self._position = first + count
        found = self.series[key] = cells[first : first + count]
        return found


class Metrics:
    """The metrics of a process group, as one of its workers sees them."""

    def __init__(self) -> None:
        self.on_update: list[Callable[[], None]] = []  # they set the gauges of this worker
        self.on_failure: Callable[[Engine, Request, str, str, float, Any], None] | None = None  # for the console
        self._slabs = [Slab(mmap.mmap(-1, SLAB_BYTES, **PRIVATE))]
        self.take_slab(0)

    def share(self, workers: int) -> None:
        """Begin anew, with slabs for so many workers, which will be forked; the first one is the parent's."""
        self._slabs = [Slab(mmap.mmap(-1, SLAB_BYTES)) for _ in range(workers + 1)]
        self.take_slab(0)

    def take_slab(self, number: int) -> None:
        """Write to this slab from now on: in a worker to that of its number, from 1 on."""
        self._slab = self._slabs[number]
        self.series = self._slab.read()  # by the name of the family and its labels
        self.good_calls: dict[tuple[str, str], Cells] = {}  # by tool and revision: the series without an error
        self._unrecorded = self.cells(UNRECORDED)
        self.add(RESTARTS, by=0)  # a counter that begins with 1 has not risen, for Prometheus

    def release_slab(self, number: int) -> None:
        """Its worker has ended, and is replaced: its counters stay, its gauges are zero."""
        self.add(RESTARTS)
        for key, cells in self._slabs[number].read().items():
            if FAMILIES[key[0]].kind == "gauge":
                cells[0] = 0.0

    # ── recording ──

    def cells(self, family: Family, *labels: str) -> Cells:
        """The cells of a series, made at its first use. What is written to them without room for them is lost."""
        if (found := self.series.get((family.name, *labels))) is not None:
            return found
        key = family.name, *(_label(each) for each in labels)
        if (found := self.series.get(key) or self._slab.add(key)) is not None:
            return found
        self._unrecorded[0] += 1
        return _doubles(bytearray(8 * family.cells))

    def add(self, family: Family, *labels: str, by: float = 1.0) -> None:
        self.cells(family, *labels)[0] += by

    def set(self, family: Family, *labels: str, value: float) -> None:
        self.cells(family, *labels)[0] = value

    def observe(self, family: Family, *labels: str, seconds: float) -> None:
        cells = self.cells(family, *labels)
        cells[bisect_left(BUCKETS, seconds)] += 1
        cells[-1] += seconds

    # ── reading ──

    def update(self) -> None:
        """Called about once a second, and before a scrape."""
        for each in tuple(self.on_update):
            each()

    def read(self) -> Values:
        """All series of all workers, summed; the gauges are as the last update has set them."""
        values: Values = {name: {} for name in FAMILIES}
        for slab in self._slabs:
            for (name, *labels), cells in slab.read().items():
                series, key = values[name], tuple(labels)
                series[key] = [*map(add, series[key], cells)] if key in series else [*cells]
        return values


def _label(text: str) -> str:
    """A label as it can stand in a key, which newlines divide."""
    return text.encode("utf-8", "replace").decode().replace("\n", " ")[:MAX_LABEL]


# ── requests ──


def tool_of(engine: "Engine", request: Request) -> str:
    """The label for the tool of a request, empty for other requests."""
    if request.method != "tools/call":
        return ""
    name: str = request.params.name
    is_known = engine.tools.get(name) is not None or (engine.search is not None and name in engine.search.tools)
    return name if is_known else OTHER


def measured(engine: "Engine", inner: "Layer") -> "Layer":
    """A layer that counts and times each request."""
    metrics, clock, family = watch(engine), time.perf_counter, OPERATIONS.name

    def record(request: Request, began: float, answer: Any, outcome: str, code: int | None = None) -> None:
        seconds, tool = clock() - began, tool_of(engine, request)
        error = outcome if outcome == "tool_error" else ERROR_TYPES.get(code, OTHER)  # of an author's own codes
        key = (family, request.method, request.revision.name, tool, outcome, error)
        cells = metrics.series.get(key) or metrics.cells(OPERATIONS, *key[1:])
        cells[bisect_left(BUCKETS, seconds)] += 1
        cells[-1] += seconds
        if outcome == "ok" and tool and key in metrics.series:  # else there is no room, which each call counts
            metrics.good_calls[tool, request.revision.name] = cells
        if metrics.on_failure is not None and outcome in FAILURES:
            metrics.on_failure(engine, request, tool, outcome, seconds, answer)

    async def layer(context: RequestContext) -> Result:
        request, began = context.request, clock()
        try:
            result = await inner(context)
        except BaseException as failure:
            record(request, began, failure, *audit.failure_outcome(failure, request))
            raise
        if type(result) is not ToolResult or result.is_error:
            record(request, began, result, audit.result_outcome(result))
        elif cells := metrics.good_calls.get((request.params.name, request.revision.name)):
            seconds = clock() - began  # as `record` does, for the most frequent outcome
            cells[bisect_left(BUCKETS, seconds)] += 1
            cells[-1] += seconds
        else:
            record(request, began, result, "ok")
        return result

    return layer


def watch(engine: "Engine") -> Metrics:
    """The metrics of a server; recorded from now on, also by what is mounted."""
    if (metrics := engine.metrics) is None:
        metrics = engine.metrics = Metrics()
        engine.observe("metrics", measured)
    for each in _with_mounted(engine):
        each.metrics = metrics
    return metrics


async def forwarded(metrics: Metrics, mount: "Mount", request: Request, answer: Awaitable[Result]) -> Result:
    """The answer of a mounted server."""
    began, outcome = time.perf_counter(), "ok"
    try:
        result = await answer
        outcome = audit.result_outcome(result)
        return result
    except BaseException as failure:
        outcome, _ = audit.failure_outcome(failure, request)
        raise
    finally:
        name = mount.whole_prefix[:-1] or mount.child.info.name
        metrics.observe(MOUNT_DURATION, name, outcome, seconds=time.perf_counter() - began)


def tool_label(engine: "Engine", name: str) -> str:
    """A tool of this server, as it is named at the root, if no transform has renamed it."""
    return name if engine.mount is None else engine.mount.whole_prefix + name


# ── what happens within requests ──


async def queued(metrics: Metrics, engine: "Engine", name: str, waiting: Awaitable[None]) -> None:
    """Wait for the slots of a call."""
    tool, began = tool_label(engine, name), time.perf_counter()
    try:
        await waiting
    except errors.Busy:
        metrics.add(REFUSALS, tool, "busy")
        raise
    metrics.observe(QUEUE_TIME, tool, seconds=time.perf_counter() - began)


async def asked(metrics: Metrics, exchange: Awaitable[Raw]) -> Raw:
    """The answer to a question for which the call waits."""
    metrics.add(QUESTIONS, "asked")
    try:
        answer = await exchange
    except errors.AnswerTimeout:
        metrics.add(QUESTIONS, "timed_out")
        raise
    metrics.add(QUESTIONS, "answered")
    return answer


def count_stuck(engine: "Engine", label: str) -> None:
    """Count a thread that does not come back from the function of this label."""
    if (metrics := engine.metrics) is not None:
        kind, _, name = label.partition(" ")
        metrics.add(STUCK_CALLS, tool_label(engine, name) if kind == "tool" else OTHER)


STORE_CALLS = [name for name, each in vars(StateBackend).items() if iscoroutinefunction(each)]
STORE_FAILURES: dict[type[Exception], str] = {StoreUnavailable: "unavailable", StoreFull: "full"}


class MeasuredState:
    """A state backend whose calls are timed."""

    def __init__(self, state: "StateBackend", metrics: Metrics) -> None:
        self._measured = state
        for name in STORE_CALLS:
            setattr(self, name, _timed(metrics, name, getattr(state, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._measured, name)


def _timed(metrics: Metrics, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def timed(*arguments: Any, **options: Any) -> Any:
        began, outcome = time.perf_counter(), "ok"
        try:
            return await call(*arguments, **options)
        except Exception as failure:
            outcome = STORE_FAILURES.get(type(failure), "ok")
            raise
        finally:
            metrics.observe(STORE_DURATION, name, outcome, seconds=time.perf_counter() - began)

    return timed


# ── gauges ──


def set_gauges(engine: "Engine", metrics: Metrics) -> None:
    """Set the gauges of a server and of what is mounted."""
    limits = {"server": engine.limit} | ({} if engine.tasks is None else {"tasks": engine.tasks.limit})
    for name, limit in limits.items():
        metrics.set(SLOTS, name, value=limit.slots)
        metrics.set(SLOTS_IN_USE, name, value=limit.running)
        metrics.set(SLOTS_WAITING, name, value=limit.waiting)
    if tasks := [each.tasks for each in _with_mounted(engine) if each.tasks is not None]:
        asking = [bool(run.questions) for each in tasks for run in tuple(each.runs.values()) if run.is_detached]
        metrics.set(TASKS, "input_required", value=sum(asking))
        metrics.set(TASKS, "working", value=len(asking) - sum(asking))


def _with_mounted(engine: "Engine") -> "Iterator[Engine]":
    yield engine
    for child in engine.mounted_engines():
        yield from _with_mounted(child)
