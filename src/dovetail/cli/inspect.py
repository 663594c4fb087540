"""`dovetail inspect`: what a server is, speaks and offers, and how quickly it answers.

Each revision is tried on a connection of its own, so a program is started once for each, and every try is bounded.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from dovetail import cli
from dovetail.cli.commands import KINDS
from dovetail.cli.lint import Catalogue, brief, catalogue_of, cost, findings_of, report, summary
from dovetail.cli.lint.rules import Finding
from dovetail.cli.options import ServerCommand, ServerTarget, on_server
from dovetail.cli.output import aligned, finish, in_line, out, out_json, plain, styled
from dovetail.cli.show import hints_of
from dovetail.errors import DovetailError
from dovetail.protocol.revisions import BY_NAME, SUPPORTED

if TYPE_CHECKING:
    from dovetail.client import Client

PROBE_SECONDS = 10.0  # for each try of a revision or a transport
ANSWERS = 5  # that are timed
LONGEST_INSTRUCTIONS = 5_000
MAX_LINES = 12  # of them that are shown
SINGULARS = {"tools": "tool", "resources": "resource", "templates": "template", "prompts": "prompt"}

EXAMPLES = """
\b
Examples:
  dovetail inspect server.py
  dovetail inspect server.py --json
  dovetail inspect http://127.0.0.1:8000/mcp
  dovetail inspect -- npx -y @modelcontextprotocol/server-everything

Every revision of MCP is tried, so a program is started several times.
"""


class Probe(NamedTuple):
    """One try."""

    speaks: bool
    seconds: float
    why: str = ""  # it does not


class Inspection(NamedTuple):
    """All that was found out."""

    about: Mapping[str, Any]  # the server's own words about itself
    instructions: str | None
    revision: str  # that the newest client and it agree on
    revisions: Mapping[str, Probe]
    transports: Mapping[str, Probe]  # of a URL
    capabilities: Mapping[str, Any]
    catalogue: Catalogue
    pages: Mapping[str, int]
    findings: Sequence[Finding]
    ready: float  # seconds until it could be asked
    answer: float | None  # seconds that an answer takes, in the middle

    @property
    def counts(self) -> dict[str, int]:
        return {kind: len(getattr(self.catalogue, kind)) for kind in KINDS}

    @property
    def extensions(self) -> list[str]:
        """What it has beyond the core, by name."""
        named = self.capabilities.get("extensions")
        found = [str(name) for name in named] if isinstance(named, Mapping) else []
        return found + [name for name in ("tasks",) if name in self.capabilities]

    @property
    def hints(self) -> dict[str, int]:
        """Of how many tools each has to be assumed, and how many give none."""
        found = [hints_of(tool) for tool in self.catalogue.tools]
        silent = ["not annotated" for _, is_said in found if not is_said]
        return dict(Counter([word for words, _ in found for word in words] + silent))

    def document(self) -> dict[str, Any]:
        return {
            "server": self.about,
            "instructions": self.instructions,
            "revision": self.revision,
            "revisions": {name: probe._asdict() for name, probe in self.revisions.items()},
            "transports": {name: probe._asdict() for name, probe in self.transports.items()},
            "capabilities": self.capabilities,
            "extensions": self.extensions,
            "counts": self.counts,
            "hints": self.hints,
            "pages": self.pages,
            "seconds": {"ready": self.ready, "answer": self.answer},
            "lint": report(self.catalogue, self.findings),
        }


@click.command("inspect", cls=ServerCommand, epilog=EXAMPLES)
@on_server
@click.option("--json", "as_document", is_flag=True, help="Print all of it as JSON.")
def command(server: ServerTarget, as_document: bool) -> None:
    """Tell what the server at TARGET is, speaks and offers, and what `dovetail lint` makes of it."""
    found = finish(_inspect(server))
    if as_document:
        out_json(found.document())
        return
    _show(found)


async def _inspect(server: ServerTarget) -> Inspection:
    requests: Counter[str] = Counter()
    async with cli.connect.connected(server, transcript=_counting(requests)) as client:
        catalogue = await catalogue_of(client)
        pages = {kind: requests[listed.method] for kind, listed in KINDS.items()}
        answer = await _answer_seconds(client)
        info, capabilities = client.server_info, client.capabilities
        instructions, revision = client.instructions, client.protocol_version
    revisions = {name: await _try(server, protocol_version=name) for name in SUPPORTED}
    return Inspection(
        about={} if info is None else msgspec.to_builtins(info),
        instructions=instructions,
        revision=revision,
        revisions=revisions,
        transports={name: await _try(server, transport=name) for name in ("http", "sse")} if server.is_url else {},
        capabilities=capabilities,
        catalogue=catalogue,
        pages=pages,
        findings=findings_of(catalogue),
        ready=revisions[revision].seconds,
        answer=answer,
    )


def _counting(requests: "Counter[str]") -> Any:
    """A transcript that counts what is asked, by method."""

    def seen(direction: str, message: bytes) -> None:
        if direction == "sent":
            with suppress(msgspec.DecodeError):
                requests[msgspec.json.decode(message, type=_Sent).method] += 1

    return seen


class _Sent(msgspec.Struct):
    method: str = ""


async def _answer_seconds(client: "Client") -> float | None:
    """Of the request that costs a server least."""
    method = "ping" if BY_NAME[client.protocol_version].handshake else "server/discover"
    times = []
    for _ in range(ANSWERS):
        begin = time.perf_counter()
        try:
            await client.request(method)
        except (DovetailError, TimeoutError):  # there is more to find out
            return None
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


async def _try(server: ServerTarget, **pinned: Any) -> Probe:
    begin = time.perf_counter()
    limit = min(PROBE_SECONDS, server.options["timeout"])
    plain = {"protocol_version": None, "transport": server.options["transport"], "timeout": limit}
    try:
        async with asyncio.timeout(limit + 1), cli.connect.connected(server, **{**plain, **pinned}):
            return Probe(True, time.perf_counter() - begin)
    except (DovetailError, TimeoutError) as failure:
        return Probe(False, time.perf_counter() - begin, str(failure) or "no answer in time")


# ── the report ──


def _show(found: Inspection) -> None:
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
        ("Costs", cost(found.catalogue) if found.catalogue.tools else ""),
        ("Lint", summary(found.findings)),
        *(("", line) for line in brief(found.findings)),
        ("", "`dovetail lint` says why, and how to mend it" if found.findings else ""),
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


def _tried(probes: Mapping[str, Probe], where: str = "") -> str:
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


def _offers(found: Inspection) -> str:
    shown = []
    for kind, count in found.counts.items():
        pages = f" on {found.pages[kind]} pages" if found.pages[kind] > 1 else ""
        shown.append(f"{count} {SINGULARS[kind] if count == 1 else kind}{pages}")
    return ", ".join(shown)


def _times(found: Inspection) -> str:
    ready = f"ready after {_milliseconds(found.ready)}"
    return ready if found.answer is None else f"{ready}, then in {_milliseconds(found.answer)}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1_000:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
