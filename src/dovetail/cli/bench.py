"""`dovetail bench`: a server comes in and is loaded with calls; how many it answers, and how quickly, goes out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

from dovetail import cli
from dovetail.cli.exits import DECLINED, FAILED, Ending, finish
from dovetail.cli.reaching import ServerAt, ServerCommand, on_server
from dovetail.cli.terminal import aligned, in_line, out, out_json, styled, tell
from dovetail.transports.guard import is_loopback

if TYPE_CHECKING:
    from dovetail.cli.loading import Ask, Measurement
    from dovetail.client import Client
    from dovetail.protocol.types import ToolDefinition

MAX_SECONDS, MAX_CLIENTS = 3_600.0, 1_000
BAR_WIDTH = 40
MAX_COMPLAINTS = 5

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
    ask: "Ask"


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
    server: ServerAt,
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
    if server.is_url and not yes and not is_loopback(urlsplit(str(server.target)).hostname or ""):
        raise Ending(f"{in_line(server.shown, 200)} is another machine; --yes loads it all the same", DECLINED)
    with server.starting():
        document, found = finish(_bench(server, tool, arguments, seconds, clients, yes))
    if as_document:
        out_json(document)
    else:
        _show(document, found)
    if found.errors or not found.times:
        raise click.exceptions.Exit(FAILED)


async def _bench(
    server: ServerAt, tool: str | None, arguments: Mapping[str, Any], seconds: float, clients: int, yes: bool
) -> tuple[dict[str, Any], "Measurement"]:
    async with server.connect() as first:
        cli.talking.require(first, "tools", server.shown)
        asked = await _asked(first, tool, arguments, yes)
        await asked.ask(first)  # what can't be done at all is told as an error, and not ten thousand times
        revision = first.protocol_version
        tell(f"{asked.label} of {in_line(server.shown, 200)}, {revision}, {clients} in flight", dim=True)
        found = await cli.loading.load(server, first, asked.ask, clients, seconds)
    return _document(server, asked, revision, clients, found), found


async def _asked(client: "Client", tool: str | None, arguments: Mapping[str, Any], yes: bool) -> RepeatedRequest:
    tools = await client.list_tools()
    chosen = cli.talking.named(tool, tools, "tool") if tool else _harmless(tools)
    if chosen is None:
        return RepeatedRequest("tools/list", lambda client: client.request("tools/list", {}))
    if chosen.annotations is not None and chosen.annotations.destructive_hint and not yes:
        raise Ending(f"{chosen.name} is marked destructive; --yes calls it all the same", DECLINED)
    name = chosen.name
    return RepeatedRequest(in_line(name, 100), lambda client: client.call_tool(name, arguments))


def _harmless(tools: list["ToolDefinition"]) -> "ToolDefinition | None":
    return next((each for each in tools if _is_read_only(each) and not each.input_schema.get("required")), None)


def _is_read_only(tool: "ToolDefinition") -> bool:
    return tool.annotations is not None and tool.annotations.read_only_hint is True


# ── what is told ──


def _document(
    server: ServerAt, asked: RepeatedRequest, revision: str, clients: int, found: "Measurement"
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
        "complaints": dict(found.errors.most_common(MAX_COMPLAINTS)),
        "latencyMs": {name: round(value, 4) for name, value in found.percentiles().items()},
        "distribution": [{"fromMs": each.begin, "toMs": each.end, "calls": each.calls} for each in found.plot()],
    }


def _show(document: Mapping[str, Any], found: "Measurement") -> None:
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
    for words, count in found.errors.most_common(MAX_COMPLAINTS):
        tell(f"{count:,} x {words}", fg="red")


def _plot(found: "Measurement") -> list[str]:
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
