"""`dovetail bench`: calls to a server for some seconds; how many it answers, and how quickly."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from random import randrange
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from dovetail import cli
from dovetail.cli import output as terminal
from dovetail.cli.options import ServerCommand, ServerTarget, server_options
from dovetail.errors import DovetailError
from dovetail.transports.http.origin import is_loopback

if TYPE_CHECKING:
    from dovetail.client import Client
    from dovetail.protocol.types import ToolDefinition

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

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


# ── the load ──


class Measurement:
    """What came of it. Only calls that were answered well have a time; of very many, a fair sample is kept."""

    def __init__(self, room: int = 200_000) -> None:
        self.calls, self.slowest, self._room = 0, 0.0, room
        self.times: list[float] = []  # milliseconds; sorted when it is over
        self.errors: Counter[str] = Counter()
        self.seconds = 0.0

    def add(self, milliseconds: float) -> None:
        self.calls += 1
        self.slowest = max(self.slowest, milliseconds)
        if len(self.times) < self._room:
            self.times.append(milliseconds)
        elif (place := randrange(self.calls)) < self._room:  # each call is kept with the same chance
            self.times[place] = milliseconds

    def close(self, seconds: float) -> None:
        self.seconds = seconds
        self.times.sort()

    @property
    def rate(self) -> float:
        return self.calls / self.seconds if self.seconds else 0.0

    def percentiles(self) -> dict[str, float]:
        """In milliseconds; empty if nothing was answered."""
        if not self.times:
            return {}
        last = len(self.times) - 1
        return {name: self.times[round(part * last)] for name, part in PERCENTILES.items()} | {"max": self.slowest}

    def note(self, failure: Exception) -> None:
        words = f"{type(failure).__name__}: {terminal.one_line(str(failure), 200)}"
        self.errors[words if words in self.errors or len(self.errors) < 100 else "others"] += 1


async def _load(server: ServerTarget, first: "Client", ask: Ask, callers: int, seconds: float) -> Measurement:
    """Ask as often as possible. Each caller has a connection of its own to a URL; a program has one for all."""
    async with AsyncExitStack() as stack:
        clients = [first] * callers
        if server.is_url:
            others = [cli.connect.connected(server) for _ in range(callers - 1)]
            clients = [first, *[await stack.enter_async_context(each) for each in others]]
        await _phase(clients, ask, min(max(seconds / 10, 0.2), 1.0))  # to warm up
        return await _phase(clients, ask, seconds)


async def _phase(clients: Sequence["Client"], ask: Ask, seconds: float) -> Measurement:
    found = Measurement()
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(_call_until(began + seconds, client, ask, found))
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
            found.add((clock() - began) * 1e3)


# ── the command ──


@click.command("bench", cls=ServerCommand, epilog=EXAMPLES)
@server_options
@click.option("--tool", metavar="NAME", help="Call this tool.")
@click.option("--args", "given", metavar="JSON", help="The arguments of each call, as JSON, @file, or - for stdin.")
@click.option(
    "--seconds", type=click.FloatRange(0, 3_600, min_open=True), default=5.0, metavar="NUMBER",
    help="How long, after a short warm-up.  [default: 5]",
)  # fmt: skip
@click.option(
    "--clients", type=click.IntRange(1, 1_000), default=8, metavar="NUMBER",
    help="Calls in flight: connections to a URL, or calls at once to a program.  [default: 8]",
)  # fmt: skip
@click.option("--yes", "-y", is_flag=True, help="Load a server on another machine, or a tool marked destructive.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(
    server: ServerTarget,
    tool: str | None,
    given: str | None,
    seconds: float,
    clients: int,
    yes: bool,
    as_json: bool,
) -> None:
    """Load the server at TARGET with calls, and tell how many it answers and how quickly."""
    if given is not None and tool is None:
        raise click.UsageError("--args: only with --tool")
    arguments = {} if given is None else cli.arguments.json_object(given, "--args")
    if server.is_url and not yes and not is_loopback(urlsplit(str(server.address)).hostname or ""):
        raise terminal.CommandExit(
            f"{terminal.one_line(server.shown, 200)} is another machine; --yes loads it all the same", terminal.DECLINED
        )
    document, found = terminal.run_async(_bench(server, tool, arguments, seconds, clients, yes))
    if as_json:
        terminal.out_json(document)
    else:
        _show(found)
    if found.errors or not found.calls:
        raise click.exceptions.Exit(terminal.FAILED)


async def _bench(
    server: ServerTarget, tool: str | None, arguments: Mapping[str, Any], seconds: float, clients: int, yes: bool
) -> tuple[dict[str, Any], Measurement]:
    async with cli.connect.connected(server) as first:
        cli.connect.require_capability(first, "tools", server)
        label, ask = await _asked(first, tool, arguments, yes)
        await ask(first)  # what can't be done at all is told as an error, and not ten thousand times
        revision = first.protocol_version
        terminal.err(f"{label} of {terminal.one_line(server.shown, 200)}, {revision}, {clients} in flight", dim=True)
        found = await _load(server, first, ask, clients, seconds)
    document = {
        "target": server.shown,
        "asked": label,
        "revision": revision,
        "clients": clients,
        "seconds": round(found.seconds, 3),
        "calls": found.calls,
        "callsPerSecond": round(found.rate, 1),
        "errors": sum(found.errors.values()),
        "complaints": dict(found.errors.most_common(5)),
        "latencyMs": {name: round(value, 4) for name, value in found.percentiles().items()},
    }
    return document, found


async def _asked(client: "Client", tool: str | None, arguments: Mapping[str, Any], yes: bool) -> tuple[str, Ask]:
    """What is asked of the server, again and again, and what it is called."""
    tools = await client.list_tools()
    chosen = cli.connect.find_by_name(tool, tools, "tool") if tool else _harmless(tools)
    if chosen is None:
        return "tools/list", lambda client: client.request("tools/list", {})
    said, name = chosen.annotations, chosen.name
    if said is not None and said.destructive_hint and not yes:
        raise terminal.CommandExit(f"{name} is marked destructive; --yes calls it all the same", terminal.DECLINED)
    return terminal.one_line(name, 100), lambda client: client.call_tool(name, arguments)


def _harmless(tools: list["ToolDefinition"]) -> "ToolDefinition | None":
    said = [each for each in tools if each.annotations is not None and each.annotations.read_only_hint]
    return next((each for each in said if not each.input_schema.get("required")), None)


# ── the report ──


def _show(found: Measurement) -> None:
    errors = sum(found.errors.values())
    rate = terminal.styled(f"{found.rate:,.0f} calls/s", bold=True)
    told = terminal.styled(f"{errors:,} errors", fg="red" if errors else None)
    terminal.out(f"{rate}   {found.calls:,} calls in {found.seconds:.1f} s   {told}")
    if latency := found.percentiles():
        terminal.out("   ".join(f"{name} {terminal.milliseconds(value)}" for name, value in latency.items()))
    for words, count in found.errors.most_common(5):
        terminal.err(f"{count:,} x {words}", fg="red")
