"""`dovetail inspect`: a server comes in; what it is, speaks and offers goes out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dovetail import cli
from dovetail.cli.exits import finish
from dovetail.cli.linting import report
from dovetail.cli.reaching import ServerAt, ServerCommand, on_server
from dovetail.cli.terminal import aligned, in_line, out, out_json, plain, styled

if TYPE_CHECKING:
    from dovetail.cli.inspection import Inspection, Probe

EXAMPLES = """
\b
Examples:
  dovetail inspect server.py
  dovetail inspect server.py --json
  dovetail inspect http://127.0.0.1:8000/mcp
  dovetail inspect -- npx -y @modelcontextprotocol/server-everything

Every revision of MCP is tried, so a program is started several times.
"""
LONGEST_INSTRUCTIONS = 5_000
MAX_LINES = 12  # of them that are shown
WHERE_MORE = "`dovetail lint` says why, and how to mend it"
SINGULARS = {"tools": "tool", "resources": "resource", "templates": "template", "prompts": "prompt"}


@click.command("inspect", cls=ServerCommand, epilog=EXAMPLES)
@on_server
@click.option("--json", "as_document", is_flag=True, help="Print all of it as JSON.")
def command(server: ServerAt, as_document: bool) -> None:
    """Tell what the server at TARGET is, speaks and offers, and what `dovetail lint` makes of it."""
    with server.starting():
        found = finish(cli.inspection.inspection_of(server))
    if as_document:
        out_json(found.document())
        return
    _show(found)


def _show(found: "Inspection") -> None:
    about = found.about
    name = in_line(str(about.get("title") or about.get("name") or "It does not say who it is"), 200)
    out(styled(" ".join(filter(None, (name, in_line(str(about.get("version", "")), 100)))), bold=True))
    rows = [
        ("Speaks", _tried(found.revisions)),
        ("Transports", _tried(found.transports, " at this address")),
        ("Capabilities", _capabilities(found.capabilities)),
        ("Extensions", in_line(", ".join(found.extensions))),
        ("Offers", _offers(found)),
        ("Hints", ", ".join(f"{count} {word}" for word, count in found.hints.items())),
        ("Answers", _times(found)),
        ("Costs", report.cost(found.catalogue) if found.catalogue.tools else ""),
        ("Lint", report.summary(found.findings)),
        *(("", line) for line in report.brief(found.findings)),
        ("", WHERE_MORE if found.findings else ""),
    ]
    for line in aligned([(styled(label, fg="cyan"), text) for label, text in rows if text]):
        out(line)
    _show_instructions(found.instructions or "")


def _show_instructions(text: str) -> None:
    lines = plain(text[:LONGEST_INSTRUCTIONS]).splitlines()
    if lines:
        out(styled("Instructions", fg="cyan"))
    for line in lines[:MAX_LINES]:
        out(f"  {line}".rstrip())
    if len(lines) > MAX_LINES or len(text) > LONGEST_INSTRUCTIONS:
        out("  … --json has all of them")


def _tried(probes: Mapping[str, "Probe"], where: str = "") -> str:
    if not probes:
        return ""
    spoken = ", ".join(name for name, probe in probes.items() if probe.speaks) or "none that is known here"
    silent = ", ".join(name for name, probe in probes.items() if not probe.speaks)
    return f"{spoken}; not {silent}{where}" if silent else spoken


def _capabilities(said: Mapping[str, Any]) -> str:
    """Each with what it says of itself: `resources (subscribe, listChanged)`."""
    shown = []
    for name, details in said.items():
        if name == "extensions":
            continue
        on = [str(key) for key, value in details.items() if value] if isinstance(details, Mapping) else []
        shown.append(f"{name} ({', '.join(on)})" if on else name)
    return in_line(", ".join(shown)) or "none"


def _offers(found: "Inspection") -> str:
    shown = []
    for kind, count in found.counts.items():
        pages = f" on {found.pages[kind]} pages" if found.pages[kind] > 1 else ""
        shown.append(f"{count} {SINGULARS[kind] if count == 1 else kind}{pages}")
    return ", ".join(shown)


def _times(found: "Inspection") -> str:
    ready = f"ready after {_milliseconds(found.ready)}"
    return ready if found.answer is None else f"{ready}, then in {_milliseconds(found.answer)}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1_000:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
