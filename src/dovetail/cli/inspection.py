"""A server comes in; what it is, speaks and offers, and how quickly, goes out.

Each revision is tried on a connection of its own, so a program is started once for each, and every try is bounded.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from dovetail.cli.catalogue import hints_of
from dovetail.cli.linting import report
from dovetail.cli.linting.gathering import catalogue_of
from dovetail.cli.linting.linter import Catalogue, lint
from dovetail.cli.linting.rules import Finding
from dovetail.cli.list import KINDS
from dovetail.cli.reaching import ServerAt
from dovetail.client import Client
from dovetail.errors import DovetailError
from dovetail.protocol.revisions import BY_NAME, SUPPORTED

PROBE_SECONDS = 10.0  # for each try of a revision or a transport
ANSWERS = 5  # that are timed
TRANSPORTS = ("http", "sse")


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
            "lint": report.document(self.catalogue, self.findings),
        }


async def inspection_of(server: ServerAt) -> Inspection:
    requests: Counter[str] = Counter()
    async with server.connect(transcript=_counting(requests)) as client:
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
        transports={name: await _try(server, transport=name) for name in TRANSPORTS} if server.is_url else {},
        capabilities=capabilities,
        catalogue=catalogue,
        pages=pages,
        findings=lint(catalogue),
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


async def _answer_seconds(client: Client) -> float | None:
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


async def _try(server: ServerAt, **pinned: Any) -> Probe:
    begin = time.perf_counter()
    limit = min(PROBE_SECONDS, server.options["timeout"])
    plain = {"protocol_version": None, "transport": server.options["transport"], "timeout": limit}
    try:
        async with asyncio.timeout(limit + 1), server.connect(**{**plain, **pinned}):
            return Probe(True, time.perf_counter() - begin)
    except (DovetailError, TimeoutError) as failure:
        return Probe(False, time.perf_counter() - begin, str(failure) or "no answer in time")
