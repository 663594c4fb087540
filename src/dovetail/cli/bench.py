"""`dovetail bench`: calls to a server for some seconds; how many it answers, and how quickly."""

import asyncio
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

from dovetail import cli
from dovetail.cli.options import ServerCommand, ServerTarget, on_server
from dovetail.cli.output import (
    DECLINED,
    FAILED,
    CommandExit,
    ProgressLine,
    aligned,
    finish,
    in_line,
    out,
    out_json,
    styled,
    tell,
)
from dovetail.errors import DovetailError
from dovetail.transports.origin import is_loopback

if TYPE_CHECKING:
    from dovetail.client import Client
    from dovetail.protocol.types import ToolDefinition

MAX_SECONDS, MAX_CLIENTS = 3_600.0, 1_000
BAR_WIDTH = 40
MAX_MESSAGES = 100  # different ones of errors that are counted, and
MAX_SHOWN = 5  # that are shown
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
ROWS = 12  # of the plot
STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # where its rows begin, and the same times ten

Ask = Callable[["Client"], Awaitable[object]]

EXAMPLES = """
\b
Examples:
  dovetail bench http://127.0.0.1:8000/mcp --seconds 1
  dovetail bench http://127.0.0.1:8000/mcp --tool add --args '{"a": 2, "b": 3}' --seconds 1 --clients 4
  dovetail bench server.py --seconds 1 --json

Without --tool, a tool is called that is marked read-only and needs no arguments, or else tools are listed. The load is
made by one process, which needs about as much CPU as a quick server does.
"""


class RepeatedRequest(NamedTuple):
    """What is asked of the server, again and again."""

    label: str
    ask: Ask


# ── the load ──


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
        self.errors[words if words in self.errors or len(self.errors) < MAX_MESSAGES else "others"] += 1


def _borders(least: float, most: float) -> list[float]:
    """Round numbers of milliseconds, at most one more than there are rows."""
    every = [round(step * 10.0**power, 6) for power in range(-4, 8) for step in STEPS]
    first = max((at for at, border in enumerate(every) if border <= least), default=0)
    last = min((at for at, border in enumerate(every) if border > most), default=len(every) - 1)
    thinned = every[first : last + 1]
    while len(thinned) > ROWS + 1:
        thinned = [*thinned[:-1:2], thinned[-1]]
    return thinned


async def _load(server: ServerTarget, first: "Client", ask: Ask, callers: int, seconds: float) -> Measurement:
    """Ask as often as possible. Each caller has a connection of its own to a URL; a program has one for all."""
    async with AsyncExitStack() as stack:
        clients = [first] * callers
        if server.is_url:
            others = [cli.connect.connected(server) for _ in range(callers - 1)]
            clients = [first, *[await stack.enter_async_context(each) for each in others]]
        await _phase(clients, ask, min(max(seconds / 10, 0.2), 1.0), None)
        line = ProgressLine()
        try:
            return await _phase(clients, ask, seconds, line)
        finally:
            line.clear()


async def _phase(clients: Sequence["Client"], ask: Ask, seconds: float, line: ProgressLine | None) -> Measurement:
    found = Measurement()
    began = time.perf_counter()
    end = began + seconds
    watching = asyncio.ensure_future(_show_progress(found, line, seconds)) if line is not None else None
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


async def _show_progress(found: Measurement, line: ProgressLine, seconds: float) -> None:
    began = time.perf_counter()
    while True:
        await asyncio.sleep(0.1)
        line.show(min(time.perf_counter() - began, seconds), seconds, f"{len(found.times):,} calls")


# ── the command ──


@click.command("bench", cls=ServerCommand, epilog=EXAMPLES)
@on_server
@click.option("--tool", metavar="NAME", help="Call this tool.")
@click.option("--args", "given", metavar="JSON", help="The arguments of each call, as JSON, @file, or - for stdin.")
@click.option(
    "--seconds", type=click.FloatRange(0, MAX_SECONDS, min_open=True), default=5.0, metavar="NUMBER",
    help="How long, after a short warm-up.  [default: 5]",
)  # fmt: skip
@click.option(
    "--clients", type=click.IntRange(1, MAX_CLIENTS), default=8, metavar="NUMBER",
    help="Calls in flight: connections to a URL, or calls at once to a program.  [default: 8]",
)  # fmt: skip
@click.option("--yes", "-y", is_flag=True, help="Load a server on another machine, or a tool marked destructive.")
@click.option("--json", "as_document", is_flag=True, help="Print the figures as JSON.")
def command(
    server: ServerTarget,
    tool: str | None,
    given: str | None,
    seconds: float,
    clients: int,
    yes: bool,
    as_document: bool,
) -> None:
    """Load the server at TARGET with calls, and tell how many it answers and how quickly."""
    if given is not None and tool is None:
        raise click.UsageError("--args: only with --tool")
    arguments = {} if given is None else cli.arguments.json_object(given, "--args")
    if server.is_url and not yes and not is_loopback(urlsplit(str(server.address)).hostname or ""):
        raise CommandExit(f"{in_line(server.shown, 200)} is another machine; --yes loads it all the same", DECLINED)
    document, found = finish(_bench(server, tool, arguments, seconds, clients, yes))
    if as_document:
        out_json(document)
    else:
        _show(document, found)
    if found.errors or not found.times:
        raise click.exceptions.Exit(FAILED)


async def _bench(
    server: ServerTarget, tool: str | None, arguments: Mapping[str, Any], seconds: float, clients: int, yes: bool
) -> tuple[dict[str, Any], Measurement]:
    async with cli.connect.connected(server) as first:
        cli.connect.require(first, "tools", server)
        asked = await _asked(first, tool, arguments, yes)
        await asked.ask(first)  # what can't be done at all is told as an error, and not ten thousand times
        revision = first.protocol_version
        tell(f"{asked.label} of {in_line(server.shown, 200)}, {revision}, {clients} in flight", dim=True)
        found = await _load(server, first, asked.ask, clients, seconds)
    return _document(server, asked, revision, clients, found), found


async def _asked(client: "Client", tool: str | None, arguments: Mapping[str, Any], yes: bool) -> RepeatedRequest:
    tools = await client.list_tools()
    chosen = cli.connect.named(tool, tools, "tool") if tool else _harmless(tools)
    if chosen is None:
        return RepeatedRequest("tools/list", lambda client: client.request("tools/list", {}))
    if chosen.annotations is not None and chosen.annotations.destructive_hint and not yes:
        raise CommandExit(f"{chosen.name} is marked destructive; --yes calls it all the same", DECLINED)
    name = chosen.name
    return RepeatedRequest(in_line(name, 100), lambda client: client.call_tool(name, arguments))


def _harmless(tools: list["ToolDefinition"]) -> "ToolDefinition | None":
    return next((each for each in tools if _is_read_only(each) and not each.input_schema.get("required")), None)


def _is_read_only(tool: "ToolDefinition") -> bool:
    return tool.annotations is not None and tool.annotations.read_only_hint is True


# ── the report ──


def _document(
    server: ServerTarget, asked: RepeatedRequest, revision: str, clients: int, found: Measurement
) -> dict[str, Any]:
    return {
        "target": server.shown,
        "asked": asked.label,
        "revision": revision,
        "clients": clients,
        "seconds": round(found.seconds, 3),
        "calls": len(found.times),
        "callsPerSecond": round(found.rate, 1),
        "errors": sum(found.errors.values()),
        "complaints": dict(found.errors.most_common(MAX_SHOWN)),
        "latencyMs": {name: round(value, 4) for name, value in found.percentiles().items()},
        "distribution": [{"fromMs": each.begin, "toMs": each.end, "calls": each.calls} for each in found.plot()],
    }


def _show(document: Mapping[str, Any], found: Measurement) -> None:
    errors = f"{document['errors']:,} errors"
    out(
        f"{styled(f'{found.rate:,.0f} calls/s', bold=True)}   {len(found.times):,} calls in {found.seconds:.1f} s   "
        + styled(errors, fg="red" if document["errors"] else None)
    )
    if found.times:
        out("   ".join(f"{name} {_milliseconds(value)}" for name, value in found.percentiles().items()))
        out()
        for line in _plot(found):
            out(line)
    for words, count in found.errors.most_common(MAX_SHOWN):
        tell(f"{count:,} x {words}", fg="red")


def _plot(found: Measurement) -> list[str]:
    slots = found.plot()
    most = max(slot.calls for slot in slots)
    rows = []
    for slot in slots:
        length = max(round(slot.calls / most * BAR_WIDTH), 1 if slot.calls else 0)
        label = f"{slot.begin:g} - {slot.end:g} ms"
        rows.append((label, styled("#" * length, fg="cyan"), f"{slot.calls:,}" if slot.calls else "-"))
    return aligned(rows)


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1_000 else f"{value / 1_000:.2f} s"
