"""The programs around: the hosts on this machine with the servers that they start, and the program to be served."""

import asyncio
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dovetail
from dovetail import cli
from dovetail.cli.examining.notes import OK, PROBLEM, WARNING, HealthNote
from dovetail.cli.installing.edits import ServerSection
from dovetail.cli.installing.files import CantUse, read
from dovetail.cli.installing.hosts import HOSTS, PROJECT, USER, Host, file_of
from dovetail.cli.reaching import program_command
from dovetail.cli.terminal import ELLIPSIS, in_line
from dovetail.cli.whereabouts import in_list
from dovetail.errors import DovetailError

MAX_ENTRIES = 100
SECONDS = 30.0


def hosts() -> Iterator[HealthNote]:
    found = False
    for host in HOSTS.values():
        for scope in (USER, PROJECT):
            path = file_of(host, scope) if scope == USER or host.project is not None else None
            if path is not None and path.exists():
                found = True
                yield from _host(host, path)
    if not found:
        yield HealthNote(OK, "Hosts", "none that `dovetail install` knows has a configuration here")


def _host(host: Host, path: Path) -> Iterator[HealthNote]:
    subject, place = host.title, in_line(str(path), 300)
    try:
        text = read(path).text
        servers = ServerSection(text, host.section)
        entries = {name: servers.entry(name) for name in servers.names[:MAX_ENTRIES]}
    except CantUse as failure:
        yield HealthNote(WARNING, subject, in_line(str(failure)), "see who may read the file")
        return
    except ValueError as failure:  # also what is no JSON
        yield HealthNote(PROBLEM, subject, f"{place}: {in_line(str(failure))}", "correct the file; the host ignores it")
        return
    lacking = [(name, words) for name, entry in entries.items() if (words := _lacks(entry))]
    for name, words in lacking:
        fix = "correct its entry; `dovetail install` writes whole paths"
        yield HealthNote(WARNING, subject, f"{in_line(name, 100)} in {place}: {words}", fix)
    if not lacking:
        yield HealthNote(OK, subject, f"{place}, {len(entries)} {'server' if len(entries) == 1 else 'servers'}")


def _lacks(entry: Any) -> str | None:
    """What of an entry is not there; the rest of its words is nobody's business."""
    if not isinstance(entry, Mapping) or not isinstance(command := entry.get("command"), str):
        return None
    if shutil.which(command) is None:
        return f"there is no program {in_line(command, 200)}"
    words = entry.get("args")
    for word in words if isinstance(words, list) else []:
        if isinstance(word, str) and word.endswith(".py") and Path(word).is_absolute() and not Path(word).exists():
            return f"there is no file {in_line(word, 200)}"
    return None


def target(given: str) -> Iterator[HealthNote]:
    """Reached as clients do it: a program is started."""
    subject = in_line(_public(given), 100)
    try:
        tools, name = asyncio.run(_looked_at(given))
    except (DovetailError, TimeoutError, OSError) as failure:
        words = in_line(str(failure).replace(given, _public(given))) or "no answer in time"
        fix = "start the server, or correct the URL" if "://" in given else "what it wrote to stderr says why"
        yield HealthNote(PROBLEM, subject, words, fix)
        return
    if tools:
        yield HealthNote(OK, subject, f"{name} answers and has {tools} {'tool' if tools == 1 else 'tools'}")
    else:
        yield HealthNote(WARNING, subject, f"{name} answers, but has no tools", "decorate a function with @server.tool")


def _public(given: str) -> str:
    """Of a URL only what is no secret: neither a password nor a key in its query."""
    if "://" not in given:
        return given
    scheme, _, rest = given.partition("://")
    _, sign, shown = re.split("[?#]", rest, maxsplit=1)[0].rpartition("@")
    return f"{scheme}://{ELLIPSIS if sign else ''}{sign}{shown}"


async def _looked_at(given: str) -> tuple[int, str]:
    where, options = _place(given)
    async with asyncio.timeout(SECONDS), dovetail.Client(where, **options) as client:
        tools = await client.list_tools() if "tools" in client.capabilities else []
        return len(tools), in_line(client.server_info.name if client.server_info else "it", 100)


def _place(given: str) -> tuple[str | list[str], Mapping[str, Any]]:
    """A URL or a command, and what a file says besides."""
    if "://" in given:
        return given, {}
    if (found := in_list(given)) is None:
        return program_command(given), {}
    listed = cli.listed.listed_server(*found)
    return listed.target, listed.options
