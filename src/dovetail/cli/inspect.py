"""`dovetail inspect`: what a server is, speaks and offers, and how quickly it answers.

Each revision is tried on a connection of its own, so a program is started once for each, and every try is bounded.
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
from dovetail.cli.options import ServerCommand, ServerTarget, server_options
from dovetail.cli.output import align, milliseconds, one_line, out, out_json, run_async, sanitize, styled
from dovetail.cli.show import tool_hints
from dovetail.errors import DovetailError
from dovetail.protocol.revisions import BY_NAME, SUPPORTED

if TYPE_CHECKING:
    from dovetail.client import Client

PROBE_TIMEOUT = 10.0  # for each try of a revision or a transport
MAX_LINES = 12  # of instructions that are shown

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
def command(server: ServerTarget, as_json: bool) -> None:
    """Tell what the server at TARGET is, speaks and offers, and what `dovetail lint` makes of it."""
    document, catalog = run_async(_inspect(server))
    if as_json:
        out_json(document)
    else:
        _show(document, catalog)


async def _inspect(server: ServerTarget) -> tuple[dict[str, Any], Catalog]:
    async with cli.connect.connected(server) as client:
        catalog = await fetch_catalog(client)
        answer = await _answer_seconds(client)
        info, capabilities = client.server_info, client.capabilities
        instructions, revision = client.instructions, client.protocol_version
    revisions = {name: await _try(server, protocol_version=name) for name in SUPPORTED}
    transports = {name: await _try(server, transport=name) for name in ("http", "sse")} if server.is_url else {}
    extensions = capabilities.get("extensions")
    document = {
        "server": {} if info is None else msgspec.to_builtins(info),
        "instructions": instructions,
        "revision": revision,  # that the newest client and it agree on
        "revisions": revisions,
        "transports": transports,
        "capabilities": capabilities,
        "extensions": [*(extensions if isinstance(extensions, Mapping) else ()), *({"tasks"} & capabilities.keys())],
        "counts": {kind: len(getattr(catalog, kind)) for kind in KINDS},
        "hints": _hints(catalog),
        "seconds": {"ready": revisions[revision]["seconds"], "answer": answer},
        "lint": report(catalog, check_catalog(catalog)),
    }
    return document, catalog


def _hints(catalog: Catalog) -> dict[str, int]:
    """Of how many tools each has to be assumed, and how many give none."""
    found = [tool_hints(tool) for tool in catalog.tools]
    silent = ["not annotated" for _, is_said in found if not is_said]
    return dict(Counter([word for words, _ in found for word in words] + silent))


async def _answer_seconds(client: "Client") -> float | None:
    """Of the request that costs a server least."""
    method = "ping" if BY_NAME[client.protocol_version].handshake else "server/discover"
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        try:
            await client.request(method)
        except (DovetailError, TimeoutError):  # there is more to find out
            return None
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


async def _try(server: ServerTarget, **pinned: Any) -> dict[str, Any]:
    """Whether it speaks that, the seconds that it took, and why not."""
    begin = time.perf_counter()
    limit = min(PROBE_TIMEOUT, server.options["timeout"])
    sanitize = {"protocol_version": None, "transport": server.options["transport"], "timeout": limit}
    why = ""
    try:
        async with asyncio.timeout(limit + 1), cli.connect.connected(server, **{**sanitize, **pinned}):
            pass
    except (DovetailError, TimeoutError) as failure:
        why = str(failure) or "no answer in time"
    return {"speaks": not why, "seconds": time.perf_counter() - begin, "why": why}


# ── the report ──


def _show(found: Mapping[str, Any], catalog: Catalog) -> None:
    about, findings = found["server"], check_catalog(catalog)
    name = one_line(str(about.get("title") or about.get("name") or "It does not say who it is"), 200)
    out(styled(" ".join(filter(None, (name, one_line(str(about.get("version", "")), 100)))), bold=True))
    offers = [f"{count} {kind[:-1] if count == 1 else kind}" for kind, count in found["counts"].items()]
    rows = [
        ("Speaks", _tried(found["revisions"])),
        ("Transports", _tried(found["transports"], " at this address")),
        ("Capabilities", _capabilities(found["capabilities"])),
        ("Extensions", one_line(", ".join(map(str, found["extensions"])))),
        ("Offers", ", ".join(offers)),
        ("Hints", ", ".join(f"{count} {word}" for word, count in found["hints"].items())),
        ("Answers", _times(**found["seconds"])),
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


def _tried(probes: Mapping[str, Mapping[str, Any]], where: str = "") -> str:
    if not probes:
        return ""
    spoken = ", ".join(name for name, probe in probes.items() if probe["speaks"]) or "none that is known here"
    silent = ", ".join(name for name, probe in probes.items() if not probe["speaks"])
    return f"{spoken}; not {silent}{where}" if silent else spoken


def _capabilities(said: Mapping[str, Any]) -> str:
    """Each with what it says of itself: `resources (subscribe, listChanged)`."""
    shown = []
    for name, details in said.items():
        on = [str(key) for key, value in details.items() if value] if isinstance(details, Mapping) else []
        if name != "extensions":
            shown.append(f"{name} ({', '.join(on)})" if on else name)
    return one_line(", ".join(shown)) or "none"


def _times(ready: float, answer: float | None) -> str:
    told = f"ready after {milliseconds(ready * 1e3)}"
    return told if answer is None else f"{told}, then in {milliseconds(answer * 1e3)}"
