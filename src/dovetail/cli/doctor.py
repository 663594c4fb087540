"""`dovetail doctor`: checks of this machine and the configuration of hosts, with advice."""

import asyncio
import difflib
import importlib.metadata
import logging
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from dovetail import __version__
from dovetail.cli.hosts import HOSTS, PROJECT, USER, ConfigFile, ConfigFileError, Host, config_path
from dovetail.cli.output import FAILED, align, one_line, out, out_json, sanitize, styled
from dovetail.client.config import read_file
from dovetail.engine.options import wants_traces
from dovetail.errors import DovetailError, SetupError
from dovetail.state.base import open_state
from dovetail.transports.http.options import KINDS, SWITCH_VALUES, HttpOptions, checked_token, read_option
from dovetail.transports.http.origin import is_loopback
from dovetail.transports.serve import bind

OK, WARNING, PROBLEM = "ok", "warning", "problem"
COLOURS = {OK: "green", WARNING: "yellow", PROBLEM: "red"}
DEFAULT_PORT = 8000
NEEDED = ("msgspec", "jsonschema-rs", "httptools", "click", "cryptography")
EXTRAS = {
    "aiohttp": ("client", "clients of URLs, and tokens"),
    "joserfc": ("auth", "signed tokens"),
    "redis": ("redis", "sessions in Redis"),
    "watchfiles": ("watch", "quicker news of changed files"),
    "opentelemetry-api": ("otel", "traces"),
    "libcst": ("migrate", "dovetail migrate --write"),
}
PREFIX = "DOVETAIL_"
OTHER_VARIABLES = (
    "TRANSPORT", "NAME", "CONSOLE", "CONSOLE_REMOTE", "LOG_FORMAT", "LOG_LEVEL", "SECRET", "TOKEN", "CLIENT_TOKEN",
    "API_KEYS",
)  # fmt: skip
KNOWN = {name.upper() for name in (*KINDS, *OTHER_VARIABLES)}
LOG_LEVELS = tuple(logging.getLevelNamesMapping())
COLLECTORS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
STATE_TIMEOUT = 5.0  # seconds
COLLECTOR_TIMEOUT = 2.0  # seconds

EXAMPLES = """
\b
Examples:
  dovetail doctor
  dovetail doctor --json
  dovetail doctor --port 8080 --state redis://127.0.0.1:6379/0

The exit code is 1 if there is a problem. Values of variables, passwords and the words of other programs are not shown.
"""


class CheckResult(NamedTuple):
    """The result of one check."""

    level: str  # OK, WARNING or PROBLEM
    subject: str
    text: str
    fix: str = ""


@click.command("doctor", epilog=EXAMPLES)
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="NUMBER",
    help=f"The port to look at.  [default: DOVETAIL_PORT, or {DEFAULT_PORT}]",
)  # fmt: skip
@click.option("--state", metavar="URL", help="The state to look at.  [default: DOVETAIL_STATE]")
@click.option("--json", "as_json", is_flag=True, help="Print the notes as JSON.")
def command(port: int | None, state: str | None, as_json: bool) -> None:
    """Look at this machine, and say what to fix. `dovetail inspect` looks at a server."""
    usual = os.environ.get("DOVETAIL_PORT", "")
    number = int(usual) if usual.isdecimal() and 0 < int(usual) < 65536 else DEFAULT_PORT
    machine = [*check_packages(), *check_path(), *check_variables(), *check_port(port or number)]
    telemetry = [*check_metrics(), *check_traces()]
    results = [*machine, *telemetry, *check_state(state or os.environ.get("DOVETAIL_STATE")), *check_hosts()]
    problems, warnings = (sum(result.level == level for result in results) for level in (PROBLEM, WARNING))
    if as_json:
        out_json({"notes": [result._asdict() for result in results], "problems": problems, "warnings": warnings})
    else:
        _show(results, problems, warnings)
    if problems:
        raise click.exceptions.Exit(FAILED)


def _show(results: list[CheckResult], problems: int, warnings: int) -> None:
    rows = [(styled(each.level, fg=COLOURS[each.level]), each.subject, sanitize(each.text)) for each in results]
    for result, line in zip(results, align(rows), strict=True):
        out(line)
        if result.fix:
            out(f"         {styled('fix:', bold=True)} {sanitize(result.fix)}")
    counts = ((problems, PROBLEM), (warnings, WARNING))
    summary = " and ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count)
    out()
    out(styled(summary or "All is well", fg=None if summary else "green", bold=True))


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_packages(version_of: Callable[[str], str | None] = installed_version) -> Iterator[CheckResult]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield CheckResult(OK, "Python", f"{python} on {platform.platform(terse=True)}")
    yield CheckResult(OK, "Dovetail", f"{__version__}, in {Path(__file__).parents[1]}")
    for name in (*NEEDED, *(("uvloop",) if os.name == "posix" else ())):
        missing = CheckResult(PROBLEM, name, "not installed, but needed", f"pip install {name}")
        yield CheckResult(OK, name, version) if (version := version_of(name)) else missing
    for name, (extra, purpose) in EXTRAS.items():
        missing_extra = f"not installed; for {purpose}: pip install 'dovetail-mcp[{extra}]'"
        yield CheckResult(OK, name, version_of(name) or missing_extra)


def check_path() -> Iterator[CheckResult]:
    """Check the PATH: hosts that start `dovetail` by its name get the first one there."""
    found, own = shutil.which("dovetail"), Path(sys.executable).parent
    if found is None:
        fix = f"add {own} to PATH, or write the whole path in the settings of hosts"
        yield CheckResult(WARNING, "Command", "dovetail is not on the PATH", fix)
    elif Path(found).resolve().parent not in (own, own.resolve()):
        fix = f"activate the environment at {own.parent}, or write {own / 'dovetail'}"
        yield CheckResult(WARNING, "Command", f"the PATH leads to another dovetail, {found}", fix)
    else:
        yield CheckResult(OK, "Command", found)


def check_variables(environ: Mapping[str, str] = os.environ) -> Iterator[CheckResult]:
    """Check the variables; values are never shown: some are secrets, and a URL may hold a password."""
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        yield _check_variable(one_line(name, 100), environ[name])


def _check_variable(name: str, value: str) -> CheckResult:
    if name.removeprefix(PREFIX) not in KNOWN:
        near = difflib.get_close_matches(name.removeprefix(PREFIX), KNOWN, n=1)
        fix = f"did you mean {PREFIX}{near[0]}?" if near else "unset it, if it is not your program's own"
        return CheckResult(WARNING, name, "Dovetail does not know this variable", fix)
    option = name.removeprefix(PREFIX).lower()
    if option in KINDS and value:
        try:
            read_option(value, KINDS[option], name)
            if option == "metrics_token":
                checked_token(value, name)
        except SetupError as failure:
            return CheckResult(PROBLEM, name, one_line(str(failure).replace(repr(value), "…")), "correct or unset it")
    if option == "log_format" and value not in ("", "text", "json"):
        return CheckResult(PROBLEM, name, "it must be text or json", "correct or unset it")
    if option == "log_level" and value.upper() not in ("", *LOG_LEVELS):
        return CheckResult(WARNING, name, f"unknown, INFO is used; known are {', '.join(LOG_LEVELS)}", "correct it")
    return CheckResult(OK, name, "set")


def check_metrics(environ: Mapping[str, str] = os.environ) -> Iterator[CheckResult]:
    is_on = SWITCH_VALUES.get(environ.get("DOVETAIL_METRICS", "").lower(), False)
    host = environ.get("DOVETAIL_HOST") or HttpOptions().host
    if is_on and not environ.get("DOVETAIL_METRICS_TOKEN") and not is_loopback(host):
        text = "on, but without a token: scrapes from other machines and containers are refused"
        yield CheckResult(WARNING, "Metrics", text, "set DOVETAIL_METRICS_TOKEN, and give it to Prometheus")


def check_traces(
    environ: Mapping[str, str] = os.environ, version_of: Callable[[str], str | None] = installed_version
) -> Iterator[CheckResult]:
    """Check what stands between spans and a collector. The values of variables are not shown."""
    if not wants_traces(environ):
        is_disabled = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        why = "since OTEL_SDK_DISABLED is true" if is_disabled else "unless a program says telemetry=True"
        yield CheckResult(OK, "Traces", f"off, {why}")
        return
    if version_of("opentelemetry-api") is None:
        yield CheckResult(WARNING, "Traces", "off: there is no API", "pip install 'dovetail-mcp[otel]'")
    elif version_of("opentelemetry-sdk") is None:
        fix = "pip install opentelemetry-distro opentelemetry-exporter-otlp, and start with opentelemetry-instrument"
        yield CheckResult(WARNING, "Traces", "there is no SDK: nothing is recorded", fix)
    else:
        yield CheckResult(OK, "Traces", "recorded, if opentelemetry-instrument or a program configures the SDK")
    for name in filter(environ.get, COLLECTORS):
        yield _check_collector(name, environ[name])


def _check_collector(name: str, url: str) -> CheckResult:
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), COLLECTOR_TIMEOUT).close()
    except (OSError, ValueError) as failure:
        why = one_line(getattr(failure, "strerror", None) or "no answer, or no URL")
        return CheckResult(WARNING, name, f"no connection: {why}", "start the collector, or correct or unset it")
    return CheckResult(OK, name, "takes connections")


def check_port(number: int) -> Iterator[CheckResult]:
    subject = f"Port {number}"
    try:
        sockets = bind("127.0.0.1", number)
    except SetupError:
        fix = "end the program that has it, or choose another with --port; 0 is any"
        yield CheckResult(WARNING, subject, "in use, or not allowed", fix)
        return
    for each in sockets:
        each.close()
    yield CheckResult(OK, subject, "free")


def check_state(url: str | None) -> Iterator[CheckResult]:
    if not url:
        yield CheckResult(OK, "State", "in the process, or shared by its workers; none is set")
        return
    scheme = one_line(url.partition(":")[0], 20)
    fix = "see that the store runs and has room, that the host and the password are right, or the file can be written"
    try:
        asyncio.run(_open_and_check(url))
    except TimeoutError:
        yield CheckResult(PROBLEM, "State", f"{scheme}: no answer within {STATE_TIMEOUT:g} s", fix)
    except SetupError as failure:
        yield CheckResult(PROBLEM, "State", one_line(str(failure)), "correct --state or DOVETAIL_STATE")
    except (DovetailError, OSError) as failure:
        yield CheckResult(PROBLEM, "State", f"{scheme}: {one_line(str(failure))}", fix)
    else:
        yield CheckResult(OK, "State", f"{scheme}: answers, and takes what is written")


async def _open_and_check(url: str) -> None:
    backend = open_state(url, "doctor")
    try:
        async with asyncio.timeout(STATE_TIMEOUT):
            await backend.check()
    finally:
        with suppress(DovetailError, OSError):
            await backend.close()


def check_hosts() -> Iterator[CheckResult]:
    scopes = [(host, scope) for host in HOSTS.values() for scope in (USER, PROJECT) if scope == USER or host.project]
    found = [(host, path) for host, scope in scopes if (path := config_path(host, scope)).exists()]
    for host, path in found:
        yield from _check_host(host, path)
    if not found:
        yield CheckResult(OK, "Hosts", "none that `dovetail install` knows has a configuration here")


def _check_host(host: Host, path: Path) -> Iterator[CheckResult]:
    subject, shown = host.title, one_line(str(path), 300)
    try:
        servers = ConfigFile.read(path, host.section).servers
    except ConfigFileError as failure:
        level, fix = PROBLEM, "correct the file, or who may read it"
        if isinstance(failure.__cause__, JSONDecodeError):
            with suppress(SetupError):  # the host can't read it either
                read_file(path)
                level, fix = WARNING, "`dovetail install` writes plain JSON only; comments have to go for it"
        yield CheckResult(level, subject, one_line(str(failure)), fix)
        return
    broken = [(name, problem) for name, entry in servers.items() if (problem := _missing_file(entry))]
    for name, problem in broken[:100]:
        fix = "correct its entry; `dovetail install` writes whole paths"
        yield CheckResult(WARNING, subject, f"{one_line(name, 100)} in {shown}: {problem}", fix)
    if not broken:
        yield CheckResult(OK, subject, f"{shown}, {len(servers)} {'server' if len(servers) == 1 else 'servers'}")


def _missing_file(entry: Any) -> str | None:
    """The program or Python file of an entry, if it does not exist. Other arguments may be secret."""
    if not isinstance(entry, Mapping) or not isinstance(command := entry.get("command"), str):
        return None
    if shutil.which(command) is None:
        return f"there is no program {one_line(command, 200)}"
    arguments = entry.get("args")
    for word in arguments if isinstance(arguments, list) else []:
        if isinstance(word, str) and word.endswith(".py") and Path(word).is_absolute() and not Path(word).exists():
            return f"there is no file {one_line(word, 200)}"
    return None
