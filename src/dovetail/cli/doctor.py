"""`dovetail doctor`: this machine is looked at; what is well, what is not and what to do about it goes out."""

import os
from collections.abc import Iterator

import click

from dovetail.cli.examining import environment, machine, programs
from dovetail.cli.examining.notes import OK, PROBLEM, WARNING, HealthNote
from dovetail.cli.exits import FAILED
from dovetail.cli.terminal import aligned, out, out_json, plain, styled

DEFAULT_PORT = 8000
COLOURS = {OK: "green", WARNING: "yellow", PROBLEM: "red"}

EXAMPLES = """
\b
Examples:
  dovetail doctor
  dovetail doctor server.py --json
  dovetail doctor --port 8080 --state redis://127.0.0.1:6379/0

The exit code is 1 if there is a problem. Values of variables, passwords and the words of other programs are not shown.
"""


@click.command("doctor", epilog=EXAMPLES)
@click.argument("target", required=False)
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="NUMBER",
    help=f"The port to look at.  [default: DOVETAIL_PORT, or {DEFAULT_PORT}]",
)  # fmt: skip
@click.option("--state", metavar="URL", help="The state to look at.  [default: DOVETAIL_STATE]")
@click.option("--json", "as_document", is_flag=True, help="Print the notes as JSON.")
def command(target: str | None, port: int | None, state: str | None, as_document: bool) -> None:
    """Look at this machine, and at the server at TARGET if one is given, and say what to fix."""
    notes = list(_notes(target, port or _usual_port(), state or os.environ.get("DOVETAIL_STATE")))
    problems, warnings = (sum(note.level == level for note in notes) for level in (PROBLEM, WARNING))
    if as_document:
        out_json({"notes": [note._asdict() for note in notes], "problems": problems, "warnings": warnings})
    else:
        _show(notes, problems, warnings)
    if problems:
        raise click.exceptions.Exit(FAILED)


def _usual_port() -> int:
    given = os.environ.get("DOVETAIL_PORT", "")
    return int(given) if given.isdecimal() and 0 < int(given) < 65536 else DEFAULT_PORT


def _notes(target: str | None, port: int, state: str | None) -> Iterator[HealthNote]:
    yield from environment.python()
    yield from environment.packages()
    yield from environment.on_path()
    yield from environment.variables()
    yield from machine.port(port)
    yield from machine.localhost()
    yield from machine.temporary_files()
    yield from machine.state(state)
    yield from programs.hosts()
    if target is not None:
        yield from programs.target(target)


def _show(notes: list[HealthNote], problems: int, warnings: int) -> None:
    rows = [(styled(note.level, fg=COLOURS[note.level]), note.subject, plain(note.text)) for note in notes]
    for note, line in zip(notes, aligned(rows), strict=True):
        out(line)
        if note.fix:
            out(f"         {styled('fix:', bold=True)} {plain(note.fix)}")
    counts = ((problems, PROBLEM), (warnings, WARNING))
    words = " and ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count)
    out()
    out(styled(words or "All is well", fg=None if words else "green", bold=True))
