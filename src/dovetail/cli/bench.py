"""`dovetail bench`: a load test of a server, with calls per second and latencies."""

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
from dovetail.cli.shared_options import ServerCommand, ServerTarget, call_arguments, server_options
from dovetail.errors import DovetailError
from dovetail.transports.http.origin import is_loopback

if TYPE_CHECKING:
    from dovetail.cli.given_arguments import GivenArguments
    from dovetail.client import Client

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

SendRequest = Callable[["Client"], Awaitable[object]]

EXAMPLES = """
\b
Examples:
  dovetail bench http://127.0.0.1:8000/mcp --seconds 1
  dovetail bench http://127.0.0.1:8000/mcp --tool add --args '{"a": 2, "b": 3}' --seconds 1 --clients 4
  dovetail bench server.py --seconds 1 --json

Without --tool, a tool is called that is marked read-only and needs no arguments, or else tools are listed. The load is
made by one process, which needs about as much CPU as a quick server does.
"""


class Measurement:
    """Latencies of successful calls, at most `sample_size` of them, and errors."""

    def __init__(self, sample_size: int = 200_000) -> None:
        self.calls, self.slowest, self._sample_size = 0, 0.0, sample_size
        self.times: list[float] = []  # milliseconds; sorted by `close`
        self.errors: Counter[str] = Counter()
        self.seconds = 0.0

    def add(self, milliseconds: float) -> None:
        self.calls += 1
        self.slowest = max(self.slowest, milliseconds)
        if len(self.times) < self._sample_size:
            self.times.append(milliseconds)
        elif (index := randrange(self.calls)) < self._sample_size:  # reservoir sampling
            self.times[index] = milliseconds

    def add_error(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {terminal.one_line(str(error), 200)}"
        self.errors[text if text in self.errors or len(self.errors) < 100 else "others"] += 1

    def close(self, seconds: float) -> None:
        self.seconds = seconds
        self.times.sort()

    @property
    def rate(self) -> float:
        return self.calls / self.seconds if self.seconds else 0.0

    def percentiles(self) -> dict[str, float]:
        """Percentiles in milliseconds; empty if no call succeeded."""
        if not self.times:
            return {}
        last = len(self.times) - 1
        return {name: self.times[round(part * last)] for name, part in PERCENTILES.items()} | {"max": self.slowest}


async def _load(server: ServerTarget, first: "Client", send: SendRequest, count: int, seconds: float) -> Measurement:
    """Send `count` requests at a time: over a connection each to a URL, over one connection to a program."""
    async with AsyncExitStack() as stack:
        clients = [first] * count
        if server.is_url:
            others = [cli.connect.connected(server) for _ in range(count - 1)]
            clients = [first, *[await stack.enter_async_context(each) for each in others]]
        await _measure(clients, send, min(max(seconds / 10, 0.2), 1.0))  # to warm up
        return await _measure(clients, send, seconds)


async def _measure(clients: Sequence["Client"], send: SendRequest, seconds: float) -> Measurement:
    found = Measurement()
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(_send_until(began + seconds, client, send, found))
    found.close(time.perf_counter() - began)
    return found


async def _send_until(deadline: float, client: "Client", send: SendRequest, found: Measurement) -> None:
    clock = time.perf_counter
    while (began := clock()) < deadline:
        try:
            await send(client)
        except (DovetailError, TimeoutError) as failure:
            found.add_error(failure)
            await asyncio.sleep(0.01)  # without a server, requests fail at once
        else:
            found.add((clock() - began) * 1e3)


@click.command("bench", cls=ServerCommand, epilog=EXAMPLES)
@server_options
@click.option("--tool", metavar="NAME", help="Call this tool.")
@click.option("--args", "document", metavar="JSON", help="The arguments of each call, as JSON, @file, or - for stdin.")
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
@call_arguments
async def command(
    server: ServerTarget,
    tool: str | None,
    given: "GivenArguments",
    seconds: float,
    clients: int,
    yes: bool,
    as_json: bool,
) -> None:
    """Load the server at TARGET with calls, and tell how many it answers and how quickly."""
    if given.document is not None and tool is None:
        raise click.UsageError("--args: only with --tool")
    shown = terminal.one_line(server.shown, 200)
    if server.is_url and not yes and not is_loopback(urlsplit(str(server.address)).hostname or ""):
        raise terminal.CommandExit(f"{shown} is another machine; --yes loads it all the same", terminal.DECLINED)
    async with cli.connect.connected(server) as first:
        cli.connect.require_capability(first, "tools", server)
        label, send = await _choose_request(first, tool, given.document or {}, yes)
        await send(first)  # so that a request that always fails ends the command with its error
        revision = first.protocol_version
        terminal.err(f"{label} of {shown}, {revision}, {clients} in flight", dim=True)
        found = await _load(server, first, send, clients, seconds)
    if as_json:
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
        terminal.out_json(document)
    else:
        _show(found)
    if found.errors or not found.calls:
        raise click.exceptions.Exit(terminal.FAILED)


async def _choose_request(
    client: "Client", tool: str | None, arguments: Mapping[str, Any], yes: bool
) -> tuple[str, SendRequest]:
    """A call of the tool or of a harmless one, else `tools/list`; with its name."""
    tools = await client.list_tools()
    read_only = [each for each in tools if each.annotations is not None and each.annotations.read_only_hint]
    harmless = (each for each in read_only if not each.input_schema.get("required"))
    chosen = cli.connect.find_by_name(tool, tools, "tool") if tool else next(harmless, None)
    if chosen is None:
        return "tools/list", lambda client: client.request("tools/list", {})
    name = chosen.name
    if chosen.annotations is not None and chosen.annotations.destructive_hint and not yes:
        raise terminal.CommandExit(f"{name} is marked destructive; --yes calls it all the same", terminal.DECLINED)
    return terminal.one_line(name, 100), lambda client: client.call_tool(name, arguments)


def _show(found: Measurement) -> None:
    count = sum(found.errors.values())
    rate = terminal.styled(f"{found.rate:,.0f} calls/s", bold=True)
    errors = terminal.styled(f"{count:,} errors", fg="red" if count else None)
    terminal.out(f"{rate}   {found.calls:,} calls in {found.seconds:.1f} s   {errors}")
    if latency := found.percentiles():
        terminal.out("   ".join(f"{name} {terminal.format_milliseconds(value)}" for name, value in latency.items()))
    for error, times in found.errors.most_common(5):
        terminal.err(f"{times:,} x {error}", fg="red")
