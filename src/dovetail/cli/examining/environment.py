"""What Dovetail runs in: Python, the packages, the command on the PATH, the variables that are set for it."""

import difflib
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from dovetail import __version__
from dovetail.cli.examining.notes import OK, PROBLEM, WARNING, HealthNote
from dovetail.cli.terminal import in_line
from dovetail.errors import SetupError
from dovetail.transports.options import KINDS, read_option

OLDEST_PYTHON = (3, 11)
NEEDED = (
    "msgspec",
    "jsonschema-rs",
    "httptools",
    "click",
    "cryptography",
    *(("uvloop",) if os.name == "posix" else ()),
)
EXTRAS = {
    "aiohttp": ("client", "clients of URLs, and tokens"),
    "joserfc": ("auth", "signed tokens"),
    "redis": ("redis", "sessions in Redis"),
    "watchfiles": ("watch", "quicker news of changed files"),
}
PREFIX = "DOVETAIL_"
OTHERS = ("TRANSPORT", "CONSOLE", "CONSOLE_REMOTE", "LOG_LEVEL", "SECRET", "TOKEN", "CLIENT_TOKEN", "API_KEYS")
KNOWN = {name.upper() for name in (*KINDS, *OTHERS)}


def python() -> Iterator[HealthNote]:
    words = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform(terse=True)}"
    if sys.version_info < OLDEST_PYTHON:
        needed = ".".join(map(str, OLDEST_PYTHON))
        yield HealthNote(PROBLEM, "Python", words, f"Dovetail needs Python {needed} or newer")
    else:
        yield HealthNote(OK, "Python", words)


def packages() -> Iterator[HealthNote]:
    yield HealthNote(OK, "Dovetail", f"{__version__}, in {Path(__file__).parents[2]}")
    for name in NEEDED:
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
