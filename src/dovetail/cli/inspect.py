"""`dovetail inspect`: revisions, capabilities, definitions and latency of a server.

Each revision is tried on a connection of its own, so a program is started once for each.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
import msgspec

from dovetail import cli
from dovetail.cli.commands import KINDS
from dovetail.cli.lint import Catalog, brief_lines, check_catalog, fetch_catalog, report, summary, token_summary
from dovetail.cli.output import align, format_milliseconds, one_line, out, out_json, sanitize, styled
from dovetail.cli.shared_options import ServerCommand, ServerTarget, server_options
from dovetail.cli.show import tool_hints
from dovetail.errors import DovetailError
from dovetail.protocol.revisions import BY_NAME, SUPPORTED

if TYPE_CHECKING:
    from dovetail.client import Client

PROBE_TIMEOUT = 10.0  # seconds, for each revision or transport
MAX_LINES = 12  # of the instructions

EXAMPLES = """
\b
Examples:
  dovetail inspect server.py
  dovetail inspect server.py --json
  dovetail inspect http://127.0.0.1:8000/mcp
  dovetail inspect -- npx -y @modelcontextprotocol/server-everything

Every revision of MCP is tried, so a program is started several times.
"""


@click.command("inspect", cls=ServerCommand, epilog=EXAMPLES)
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
async def command(server: ServerTarget, as_json: bool) -> None:
    """Tell what the server at TARGET is, speaks and offers, and what `dovetail lint` makes of it."""
    async with cli.connect.connected(server) as client:
        catalog = await fetch_catalog(client)
        latency = await _latency(client)
        info, capabilities = client.server_info, client.capabilities
        instructions, revision = client.instructions, client.protocol_version
    revisions = {name: await _probe(server, protocol_version=name) for name in SUPPORTED}
    transports = {name: await _probe(server, transport=name) for name in ("http", "sse")} if server.is_url else {}
    extensions = capabilities.get("extensions")
    document = {
        "server": {} if info is None else msgspec.to_builtins(info),
        "instructions": instructions,
        "revision": revision,  # negotiated by default
        "revisions": revisions,
        "transports": transports,
        "capabilities": capabilities,
        "extensions": [*(extensions if isinstance(extensions, Mapping) else ()), *({"tasks"} & capabilities.keys())],
        "counts": {kind: len(getattr(catalog, kind)) for kind in KINDS},
        "hints": _hints(catalog),
        "seconds": {"ready": revisions[revision]["seconds"], "answer": latency},
        "lint": report(catalog, check_catalog(catalog)),
    }
    if as_json:
        out_json(document)
    else:
        _show(document, catalog)


def _hints(catalog: Catalog) -> dict[str, int]:
    """The number of tools with each hint, and without annotations."""
    found = [tool_hints(tool) for tool in catalog.tools]
    bare = ["not annotated" for _, is_annotated in found if not is_annotated]
    return dict(Counter([hint for hints, _ in found for hint in hints] + bare))


async def _latency(client: "Client") -> float | None:
    """Median seconds of the cheapest request; None if it fails."""
    method = "ping" if BY_NAME[client.protocol_version].handshake else "server/discover"
    times = []
    for _ in range(5):
        began = time.perf_counter()
        try:
            await client.request(method)
        except (DovetailError, TimeoutError):
            return None
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def _probe(server: ServerTarget, **pinned: Any) -> dict[str, Any]:
    """Connect with one revision or transport."""
    began = time.perf_counter()
    limit = min(PROBE_TIMEOUT, server.options["timeout"])
    options = {"protocol_version": None, "transport": server.options["transport"], "timeout": limit}
    why = ""
    try:
        async with asyncio.timeout(limit + 1), cli.connect.connected(server, **{**options, **pinned}):
            pass
    except (DovetailError, TimeoutError) as failure:
        why = str(failure) or "no answer in time"
    return {"speaks": not why, "seconds": time.perf_counter() - began, "why": why}


def _show(found: Mapping[str, Any], catalog: Catalog) -> None:
    about, findings = found["server"], check_catalog(catalog)
    name = one_line(str(about.get("title") or about.get("name") or "It does not say who it is"), 200)
    out(styled(" ".join(filter(None, (name, one_line(str(about.get("version", "")), 100)))), bold=True))
    ready, answer = found["seconds"]["ready"], found["seconds"]["answer"]
    latency = "" if answer is None else f", then in {format_milliseconds(answer * 1e3)}"
    offers = [f"{count} {kind[:-1] if count == 1 else kind}" for kind, count in found["counts"].items()]
    rows = [
        ("Speaks", _probed(found["revisions"])),
        ("Transports", _probed(found["transports"], " at this address")),
        ("Capabilities", _capabilities(found["capabilities"])),
        ("Extensions", one_line(", ".join(map(str, found["extensions"])))),
        ("Offers", ", ".join(offers)),
        ("Hints", ", ".join(f"{count} {word}" for word, count in found["hints"].items())),
        ("Answers", f"ready after {format_milliseconds(ready * 1e3)}{latency}"),
        ("Costs", token_summary(catalog) if catalog.tools else ""),
        ("Lint", summary(findings)),
        *(("", line) for line in brief_lines(findings)),
        ("", "`dovetail lint` says why, and how to mend it" if findings else ""),
    ]
    out("\n".join(align([(styled(label, fg="cyan"), text) for label, text in rows if text])))
    lines = sanitize(found["instructions"] or "").splitlines()
    if lines:
        out(styled("Instructions", fg="cyan"))
    for line in lines[:MAX_LINES]:
        out(f"  {line[:500]}".rstrip())
    if len(lines) > MAX_LINES:
        out("  … --json has all of them")


def _probed(probes: Mapping[str, Mapping[str, Any]], where: str = "") -> str:
    if not probes:
        return ""
    spoken = ", ".join(name for name, probe in probes.items() if probe["speaks"]) or "none that is known here"
    others = ", ".join(name for name, probe in probes.items() if not probe["speaks"])
    return f"{spoken}; not {others}{where}" if others else spoken


def _capabilities(capabilities: Mapping[str, Any]) -> str:
    """The capabilities in a line: `tools, resources (subscribe, listChanged)`."""
    shown = []
    for name, details in capabilities.items():
        on = [str(key) for key, value in details.items() if value] if isinstance(details, Mapping) else []
        if name != "extensions":
            shown.append(f"{name} ({', '.join(on)})" if on else name)
    return one_line(", ".join(shown)) or "none"
