"""`dovetail doctor`: checks of this machine, its hosts and a server, each with what to do about it."""

import asyncio
import difflib
import importlib.metadata
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import click

import dovetail
from dovetail import __version__, cli
from dovetail.cli.hosts import HOSTS, PROJECT, USER, ConfigFile, Host, UnusableFile, files_of
from dovetail.cli.output import ELLIPSIS, FAILED, aligned, in_line, out, out_json, plain, styled
from dovetail.cli.target import in_list, stdio_command
from dovetail.errors import DovetailError, SetupError
from dovetail.state.urls import open_state
from dovetail.transports.options import KINDS, read_option
from dovetail.transports.sockets import bind

OK, WARNING, PROBLEM = "ok", "warning", "problem"
COLOURS = {OK: "green", WARNING: "yellow", PROBLEM: "red"}
DEFAULT_PORT = 8000
OLDEST_PYTHON = (3, 11)
NEEDED = ("msgspec", "jsonschema-rs", "httptools", "click", "cryptography")
EXTRAS = {
    "aiohttp": ("client", "clients of URLs, and tokens"),
    "joserfc": ("auth", "signed tokens"),
    "redis": ("redis", "sessions in Redis"),
    "watchfiles": ("watch", "quicker news of changed files"),
}
PREFIX = "DOVETAIL_"
OTHERS = ("TRANSPORT", "CONSOLE", "CONSOLE_REMOTE", "LOG_LEVEL", "SECRET", "TOKEN", "CLIENT_TOKEN", "API_KEYS")
KNOWN = {name.upper() for name in (*KINDS, *OTHERS)}
LOOPBACK = "127.0.0.1"
LITTLE_ROOM = 100 * 1024 * 1024  # bytes
STATE_SECONDS = 5.0
TARGET_SECONDS = 30.0

EXAMPLES = """
\b
Examples:
  dovetail doctor
  dovetail doctor server.py --json
  dovetail doctor --port 8080 --state redis://127.0.0.1:6379/0

The exit code is 1 if there is a problem. Values of variables, passwords and the words of other programs are not shown.
"""


class HealthNote(NamedTuple):
    """The result of one check."""

    level: str  # OK, WARNING or PROBLEM
    subject: str
    text: str
    fix: str = ""


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
    yield from python_version()
    yield from packages()
    yield from on_path()
    yield from variables()
    yield from port_in_use(port)
    yield from localhost()
    yield from temporary_files()
    yield from state_store(state)
    yield from hosts()
    if target is not None:
        yield from target_server(target)


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


# ── Python, packages, variables ──


def python_version() -> Iterator[HealthNote]:
    words = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform(terse=True)}"
    if sys.version_info < OLDEST_PYTHON:
        needed = ".".join(map(str, OLDEST_PYTHON))
        yield HealthNote(PROBLEM, "Python", words, f"Dovetail needs Python {needed} or newer")
    else:
        yield HealthNote(OK, "Python", words)


def packages() -> Iterator[HealthNote]:
    yield HealthNote(OK, "Dovetail", f"{__version__}, in {Path(__file__).parents[1]}")
    for name in (*NEEDED, *(("uvloop",) if os.name == "posix" else ())):
        version = _version(name)
        if version is None:
            yield HealthNote(PROBLEM, name, "not installed, but needed", f"pip install {name}")
        else:
            yield HealthNote(OK, name, version)
    for name, (extra, purpose) in EXTRAS.items():
        version = _version(name)
        missing = f"not installed; for {purpose}: pip install 'dovetail-mcp[{extra}]'"
        yield HealthNote(OK, name, version or missing)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def on_path() -> Iterator[HealthNote]:
    """Hosts start `dovetail` by its name, and then get the one that is found first."""
    found, own = shutil.which("dovetail"), Path(sys.executable).parent
    if found is None:
        fix = f"add {own} to PATH, or write the whole path in the settings of hosts"
        yield HealthNote(WARNING, "Command", "dovetail is not on the PATH", fix)
    elif Path(found).resolve().parent not in (own, own.resolve()):
        fix = f"activate the environment at {own.parent}, or write {own / 'dovetail'}"
        yield HealthNote(WARNING, "Command", f"the PATH leads to another dovetail, {found}", fix)
    else:
        yield HealthNote(OK, "Command", found)


def variables(environ: Mapping[str, str] = os.environ) -> Iterator[HealthNote]:
    """Values are never shown: some are secrets, and a URL may hold a password."""
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        yield _variable(in_line(name, 100), environ[name])


def _variable(name: str, value: str) -> HealthNote:
    if name.removeprefix(PREFIX) not in KNOWN:
        near = difflib.get_close_matches(
            name.removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in KNOWN], n=1
        )
        fix = f"did you mean {PREFIX}{near[0]}?" if near else "unset it, if it is not your program's own"
        return HealthNote(WARNING, name, "Dovetail does not know this variable", fix)
    option = name.removeprefix(PREFIX).lower()
    if option in KINDS and value:
        try:
            read_option(value, KINDS[option], name)
        except SetupError as failure:
            return HealthNote(PROBLEM, name, in_line(str(failure).replace(repr(value), "…")), "correct or unset it")
    return HealthNote(OK, name, "set")


# ── the machine ──


def port_in_use(number: int) -> Iterator[HealthNote]:
    subject = f"Port {number}"
    try:
        sockets = bind(LOOPBACK, number)
    except SetupError:
        fix = "end the program that has it, or choose another with --port; 0 is any"
        yield HealthNote(WARNING, subject, "in use, or not allowed", fix)
        return
    for each in sockets:
        each.close()
    yield HealthNote(OK, subject, "free")


def localhost() -> Iterator[HealthNote]:
    try:
        found = sorted({str(each[4][0]) for each in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)})
    except OSError:
        yield HealthNote(PROBLEM, "localhost", "not known", f"add the line `{LOOPBACK} localhost` to the hosts file")
        return
    words = ", ".join(found)
    if any(not (each == "::1" or each.startswith("127.")) for each in found):
        yield HealthNote(PROBLEM, "localhost", f"means {words}", f"it has to mean {LOOPBACK} in the hosts file")
    elif LOOPBACK not in found:
        yield HealthNote(WARNING, "localhost", f"means {words}", f"give clients {LOOPBACK}, where servers listen")
    else:
        yield HealthNote(OK, "localhost", words)


def temporary_files() -> Iterator[HealthNote]:
    """Where several workers share their sessions."""
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile(prefix="dovetail-") as file:
            file.write(b"x")
        free = shutil.disk_usage(folder).free
    except OSError as failure:
        fix = "set TMPDIR to a folder that you can write to"
        yield HealthNote(PROBLEM, "Temporary files", f"can't be written: {failure.strerror}", fix)
        return
    if free < LITTLE_ROOM:
        yield HealthNote(WARNING, "Temporary files", f"only {free // 2**20} MiB are free in {folder}", "make room")
    else:
        yield HealthNote(OK, "Temporary files", folder)


def state_store(url: str | None) -> Iterator[HealthNote]:
    if not url:
        yield HealthNote(OK, "State", "in the process, or shared by its workers; none is set")
        return
    scheme = in_line(url.partition(":")[0], 20)
    try:
        missing = _missing_folder(url)
        if missing is None:
            asyncio.run(_check_state(url))
    except TimeoutError:
        yield HealthNote(PROBLEM, "State", f"{scheme}: no answer within {STATE_SECONDS:g} s", _advice(scheme))
    except SetupError as failure:
        yield HealthNote(PROBLEM, "State", in_line(str(failure)), "correct --state or DOVETAIL_STATE")
    except (DovetailError, OSError) as failure:
        yield HealthNote(PROBLEM, "State", f"{scheme}: {in_line(str(failure))}", _advice(scheme))
    else:
        if missing:
            yield HealthNote(PROBLEM, "State", f"there is no folder {in_line(missing)}", "make it, or name another")
        else:
            yield HealthNote(OK, "State", f"{scheme}: answers, and takes what is written")


async def _check_state(url: str) -> None:
    backend = open_state(url, "doctor")
    try:
        async with asyncio.timeout(STATE_SECONDS):
            await backend.check()
    finally:
        with suppress(DovetailError, OSError):
            await backend.close()


def _missing_folder(url: str) -> str | None:
    if not url.lower().startswith("sqlite:"):
        return None
    path = unquote(url.partition(":")[2].partition("?")[0])
    folder = Path("/" + path.lstrip("/") if path.startswith("//") else path).parent
    return None if folder.is_dir() else str(folder)


def _advice(scheme: str) -> str:
    if scheme.startswith("sqlite"):
        return "see that the file and its folder can be written"
    return "see that the store runs, that the host and the password are right, and that it has room (INFO memory)"


# ── hosts and the target ──


def hosts() -> Iterator[HealthNote]:
    found = False
    for host in HOSTS.values():
        for scope in (USER, PROJECT):
            for path in files_of(host, scope) if scope == USER or host.project is not None else ():
                if path.exists():
                    found = True
                    yield from _host(host, path)
    if not found:
        yield HealthNote(OK, "Hosts", "none that `dovetail install` knows has a configuration here")


def _host(host: Host, path: Path) -> Iterator[HealthNote]:
    subject, place = host.title, in_line(str(path), 300)
    try:
        servers = ConfigFile.read(path, host.section).servers
    except UnusableFile as failure:
        fix = "correct the file; the host ignores it" if failure.is_broken else "see who may read the file"
        yield HealthNote(PROBLEM if failure.is_broken else WARNING, subject, in_line(str(failure)), fix)
        return
    lacking = [(name, words) for name, entry in servers.items() if (words := _lacks(entry))]
    for name, words in lacking[:100]:
        fix = "correct its entry; `dovetail install` writes whole paths"
        yield HealthNote(WARNING, subject, f"{in_line(name, 100)} in {place}: {words}", fix)
    if not lacking:
        yield HealthNote(OK, subject, f"{place}, {len(servers)} {'server' if len(servers) == 1 else 'servers'}")


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


def target_server(given: str) -> Iterator[HealthNote]:
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
    async with asyncio.timeout(TARGET_SECONDS), dovetail.Client(where, **options) as client:
        tools = await client.list_tools() if "tools" in client.capabilities else []
        return len(tools), in_line(client.server_info.name if client.server_info else "it", 100)


def _place(given: str) -> tuple[str | list[str], Mapping[str, Any]]:
    """A URL or a command, and what a file says besides."""
    if "://" in given:
        return given, {}
    if (found := in_list(given)) is None:
        return stdio_command(given), {}
    listed = cli.connect.listed_server(*found)
    return listed.target, listed.options
