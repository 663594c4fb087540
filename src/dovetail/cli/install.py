"""`dovetail install`: a server is added to a host, by the host's own command or in its configuration file."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import mkstemp
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from dovetail import cli
from dovetail.cli import hosts
from dovetail.cli.options import COMMAND_WORDS, ServerCommand, parse_pairs
from dovetail.cli.output import DECLINED, CommandExit, err, is_interactive, one_line, out, run_async, sanitize, styled
from dovetail.cli.target import target_problem

PLAIN_STEMS = ("server", "main", "app", "mcp", "__init__", "__main__")  # they say nothing about the server
URL, PROGRAM, COMMAND, REMOVAL = "a URL", "a Python program", "a command after --", "--remove"
FITTING = {  # options of each
    URL: ("--header", "--transport"),
    PROGRAM: ("--env", "--uv"),
    COMMAND: ("--env",),
    REMOVAL: ("--name", "--scope"),
}
WAYS = "give a Python program, a URL, or a command after --"
HIDDEN = "***"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_REFERENCE = re.compile(r"\$\{?(?:[a-z]+:)?[A-Za-z_][\w-]*\}?")  # to a value that stands elsewhere

EXAMPLES = """
\b
Examples:
  dovetail install server.py --host claude-desktop --yes
  dovetail install server.py --host cursor --scope project --dry-run
  dovetail install server.py:server --host vscode --name weather --env UNITS=metric --yes
  dovetail install https://example.com/mcp --host gemini --dry-run
  dovetail install --host claude-code --name everything --yes -- npx -y @modelcontextprotocol/server-everything
  dovetail install --host cursor --name weather --remove --yes

The change is shown before it is made, a copy of the file is kept, and a file that can't be read is left alone.
`--env NAME` without a value takes it from the environment, so that it stands in no history of a shell.
"""


@click.command("install", cls=ServerCommand, epilog=EXAMPLES)
@click.argument("target", required=False)
@click.option(
    "--host", "host_name", type=click.Choice(list(hosts.HOSTS)), required=True, help="The program to add it to."
)
@click.option("--name", metavar="TEXT", help="What the server is called there.  [default: after its file or address]")
@click.option(
    "--scope", type=click.Choice([hosts.USER, hosts.PROJECT]), default=hosts.USER, show_default=True,
    help="For you everywhere, or for whoever works in this folder.",
)  # fmt: skip
@click.option("--env", "-e", multiple=True, metavar="NAME[=VALUE]", help="A variable for the program. Repeat for more.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME:VALUE", help="A header for a URL.")
@click.option("--transport", type=click.Choice([hosts.HTTP, hosts.SSE]), help="How to speak to a URL.  [default: http]")
@click.option("--uv", "with_uv", is_flag=True, help="Start the program by `uv run` in its folder.")
@click.option("--remove", is_flag=True, help="Take the server out again.")
@click.option("--force", is_flag=True, help="Replace another server of that name. What the host keeps with it stays.")
@click.option("--dry-run", is_flag=True, help="Show the change, and change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Change it without asking.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    target: str | None,
    host_name: str,
    name: str | None,
    scope: str,
    remove: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
    **given: Any,
) -> None:
    """Add the server at TARGET to a host: a Python program, a URL, or a command after `--`."""
    host = hosts.HOSTS[host_name]
    if scope == hosts.PROJECT and host.project is None:
        raise click.UsageError(f"{host_name} has no configuration for a project; leave --scope out")
    behind = ctx.meta.get(COMMAND_WORDS, [])
    wanted = ServerSpec("" if behind else target or "", behind, **given)
    if remove:
        wanted.check_options(REMOVAL, {"--force": force, COMMAND: behind})
    called = name or default_name(wanted)
    entry = None if remove else _entry(host, wanted, called, scope)
    try:
        change = _planned(host_name, scope, called, entry)
        if change is not None:
            _show(change, is_result=dry_run)
            if not dry_run:
                _agree(change, may_replace=force, is_confirmed=yes)
                _apply(change)
    except hosts.ConfigFileError as bad:
        raise CommandExit(f"{bad}; nothing was changed", hint=_by_hand(host, called, entry)) from None


# ── the server ──


class ServerSpec(NamedTuple):
    """What was typed."""

    target: str = ""
    behind: Sequence[str] = ()  # the words after `--`
    env: Sequence[str] = ()
    headers: Sequence[str] = ()
    transport: str | None = None
    with_uv: bool = False

    @property
    def kind(self) -> str:
        if self.behind:
            return COMMAND
        return URL if "://" in self.target else PROGRAM

    def check(self) -> None:
        if not self.behind and not self.target:
            raise click.UsageError(f"which server? Please {WAYS}")
        self.check_options(self.kind)

    def check_options(self, kind: str, others: Mapping[str, Any] = {}) -> None:
        options = {"--env": self.env, "--header": self.headers, "--transport": self.transport, "--uv": self.with_uv}
        for option, value in {**options, **others}.items():
            if value and option not in FITTING[kind]:
                raise click.UsageError(f"{option} does not go with {kind}, which takes {' and '.join(FITTING[kind])}")


def default_name(wanted: ServerSpec) -> str:
    """After its file, or the folder of one that is called like all others, or after its address."""
    if wanted.kind == COMMAND or not wanted.target:
        raise click.UsageError("--name says what the server is called there")
    if wanted.kind == URL:
        _check_url(wanted.target)
        host = urlsplit(wanted.target).hostname or ""
        is_address = ":" in host or host.replace(".", "").isdigit()
        told = host if is_address else re.sub(r"^(www\.)?(mcp\.)?", "", host).partition(".")[0]
    else:
        place = wanted.target.partition(".py")[0] if ".py" in wanted.target else wanted.target.partition(":")[0]
        path = Path(os.path.abspath(place if ".py" in wanted.target else place.replace(".", "/")))
        told = path.parent.name if path.name in PLAIN_STEMS else path.name
    return re.sub(r"[^A-Za-z0-9]+", "-", told).strip("-").lower()[:64] or "server"


def _entry(host: hosts.Host, wanted: ServerSpec, called: str, scope: str) -> dict[str, Any]:
    wanted.check()
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", called):
        raise click.UsageError(f"--name {called!r}: use letters, digits, - and _, at most 64 of them")
    if wanted.kind == URL:
        _check_url(wanted.target)
        transport = wanted.transport or hosts.HTTP
        if transport not in host.url_keys:
            raise click.UsageError(f"{host.title} starts programs only; add the URL in its settings, under Connectors")
        entry = hosts.url_entry(host, wanted.target, _headers(wanted.headers), transport)
    else:
        entry = hosts.program_entry(host, *_started(wanted, host.here if scope == hosts.PROJECT else None))
    for remark in _remarks(wanted, entry, is_shared=scope == hosts.PROJECT):
        err(remark, fg="yellow")
    return entry


def _check_url(url: str) -> None:
    """The error does not repeat it: it may hold a secret."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or re.search(r"[\s\x00-\x1f\x7f\"<>\\]", url):
        raise click.UsageError("that is no URL; write it as https://example.com/mcp")


def _started(wanted: ServerSpec, here: str | None) -> tuple[list[str], dict[str, str]]:
    """The command and its variables. Hosts start it in a folder of their own choice, so full paths are written.

    `here` stands for the current folder in what is shared with others.
    """
    env = _variables(wanted.env)
    if wanted.kind == COMMAND:
        program = wanted.behind[0] if here else shutil.which(wanted.behind[0]) or wanted.behind[0]
        return [_located(word, here) for word in (program, *wanted.behind[1:])], env
    if missing := target_problem(wanted.target, elsewhere=wanted.with_uv):
        raise click.UsageError(f"{missing}; {WAYS}")
    place, colon, inner = wanted.target.rpartition(":") if ".py:" in wanted.target else (wanted.target, "", "")
    path = Path(os.path.abspath(place)) if place.endswith(".py") else None
    target = wanted.target if path is None else f"{path}{colon}{inner}"
    if wanted.with_uv:
        folder = os.getcwd() if path is None else str(path.parent)
        located = _located(folder, here)
        if path is not None and located != folder:
            target = f"{path.name}{colon}{inner}"
        program = "uv" if here else shutil.which("uv") or "uv"
        return [program, "run", "--directory", located, "dovetail", "run", target], env
    if path is None and PathFinder.find_spec(place.partition(".")[0].partition(":")[0], [os.getcwd()]):
        env = {"PYTHONPATH": os.getcwd(), **env}  # a module that lies here has to be found from anywhere
    return [sys.executable, "-m", "dovetail.cli", "run", target], env


def _located(word: str, here: str | None) -> str:
    """A file or a folder that lies here has to be found from anywhere; what is shared, on any machine."""
    path = Path(os.path.abspath(word))
    if here and (path.is_file() or (os.path.isabs(word) and path.is_dir())) and path.is_relative_to(Path.cwd()):
        inside = path.relative_to(Path.cwd())
        return here if inside == Path() else f"{here}/{inside.as_posix()}"
    return str(path) if path.is_file() else word


def _variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, is_set, value = each.partition("=")
        if not name.strip() or not (is_set or name in os.environ):
            raise click.UsageError(f"--env {name}: there is no such variable here; write it as NAME=VALUE")
        found[name.strip()] = value if is_set else os.environ[name]
    return found


def _headers(given: Sequence[str]) -> dict[str, str]:
    if any(map(_CONTROL.search, given)):
        raise click.UsageError("--header: write it as NAME:VALUE, in one line")  # the value may be secret
    return parse_pairs(given, ":", "--header")


def _remarks(wanted: ServerSpec, entry: Mapping[str, Any], *, is_shared: bool) -> Iterator[str]:
    """Before the yes; `is_shared` if it is in a file for all who work in this folder."""
    if is_shared and mask_secrets(entry) != entry:
        yield "Whoever gets this folder gets the hidden values too, which may be secrets."
    place = next(filter(os.path.isabs, [entry.get("command", ""), *entry.get("args", ())]), None)
    if is_shared and place is not None:
        better = "; --uv starts it wherever this folder is" if wanted.kind == PROGRAM and not wanted.with_uv else ""
        yield f"Others who get this folder have no {one_line(place)}{better}."


# ── the change ──


class PlannedChange(NamedTuple):
    """What is to be done, and where."""

    host: hosts.Host
    file: hosts.ConfigFile | None  # None if it can't be read, and the host's own command is used
    path: Path
    scope: str
    name: str
    entry: dict[str, Any] | None  # None to remove it
    command: list[str] | None  # of the host; None if the file is written

    @property
    def is_there(self) -> bool:
        return self.file is not None and self.name in self.file.servers


def _planned(host_name: str, scope: str, name: str, entry: dict[str, Any] | None) -> PlannedChange | None:
    """None if there is nothing to do."""
    host = hosts.HOSTS[host_name]
    path = hosts.config_path(host, scope)
    remover = hosts.remove_command(host_name, scope, name)
    own = remover if entry is None else hosts.add_command(host_name, scope, name, entry)
    try:
        file = hosts.ConfigFile.read(path, host.section)
    except hosts.ConfigFileError:
        if own is None:
            raise
        return PlannedChange(host, None, path, scope, name, entry, own)  # the host can read it
    old = file.servers.get(name)
    if entry is None and name not in file.servers:
        known = f"; it has {one_line(', '.join(list(file.servers)[:20]))}" if file.servers else ""
        err(f"{path} has no server called {one_line(name)}{known}")
        return None
    if entry is not None and isinstance(old, Mapping):  # what the host or its user has put there stays
        entry = {**entry, **{key: value for key, value in old.items() if key not in hosts.OWN_KEYS}}
        if entry == old:
            err(f"{host.title} has {name} already, just like this: {path}")
            return None
    if own is None or (entry is not None and name in file.servers):  # hosts refuse to replace a server
        if file.content is not None and not os.access(path, os.W_OK):
            raise hosts.ConfigFileError(f"{path} is read-only")
        own = None
    return PlannedChange(host, file, path, scope, name, entry, own)


def _show(change: PlannedChange, *, is_result: bool) -> None:
    """What changes in the file. It is the result of a dry run; else it is told before the question."""
    say, stream = (out, sys.stdout) if is_result else (err, sys.stderr)
    quoted = json.dumps(one_line(change.name, 100), ensure_ascii=False)
    say(f"{change.path}, {json.dumps(change.host.section)}:")
    if change.is_there:
        say(styled(f"- {quoted}: …", stream, fg="red"))  # what is in it may be secret
    if change.entry is not None:
        lines = json.dumps(mask_secrets(change.entry), indent=2, ensure_ascii=False).split("\n")
        for line in (f"{quoted}: {lines[0]}", *lines[1:]):
            say(styled(sanitize(f"+ {line}"), stream, fg="green"))
    if change.command is not None:
        say(f"by {_shown(change.command)}")


def _shown(words: Sequence[str]) -> str:
    return f"`{os.path.basename(words[0])} {' '.join(words[1:3])}`"


def mask_secrets(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with `***` for values of variables and headers, and for what we did not write; `${NAME}` is shown."""
    return {key: value if key in hosts.OWN_KEYS and key not in ("env", "headers") else _masked(value)
            for key, value in entry.items()}  # fmt: skip


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _masked(inner) for name, inner in value.items()}
    is_open = value is None or isinstance(value, bool) or (isinstance(value, str) and _REFERENCE.fullmatch(value))
    return value if is_open else HIDDEN


def _by_hand(host: hosts.Host, name: str, entry: Mapping[str, Any] | None) -> str | None:
    """What to paste."""
    if entry is None:
        return None
    return "To add it by hand:\n" + json.dumps(
        {host.section: {name: mask_secrets(entry)}}, indent=2, ensure_ascii=False
    )


def _agree(change: PlannedChange, *, may_replace: bool, is_confirmed: bool) -> None:
    is_replacing = change.entry is not None and change.is_there
    if is_replacing and not may_replace and (is_confirmed or not is_interactive()):
        words = f"{change.path} has another server called {change.name}; nothing was changed"
        raise CommandExit(words, DECLINED, "--force replaces it, --name gives this one another name")
    if is_confirmed:
        return
    if not is_interactive():
        words = "nobody is here to say yes; nothing was changed"
        raise CommandExit(words, DECLINED, "--yes changes it without asking")
    if not run_async(cli.ask.confirm("Replace that server?" if is_replacing else "Change it?")):
        raise CommandExit("nothing was changed", DECLINED)


def _apply(change: PlannedChange) -> None:
    kept = ""
    if change.command is not None:
        _run(change, change.command)
    elif change.file is not None:
        servers = {name: entry for name, entry in change.file.servers.items() if name != change.name or change.entry}
        if change.entry is not None:
            servers[change.name] = change.entry
        has_values = change.entry is not None and mask_secrets(change.entry) != change.entry
        backup = write_file(
            change.file, change.file.text_with(servers), is_private=change.scope == hosts.USER or has_values
        )
        kept = f"; as it was: {backup}" if backup else ""
    place = "is out of" if change.entry is None else "is in"
    err(f"{one_line(change.name)} {place} {change.path}{kept}", fg="green")
    again = f"{change.host.title} may have to be started again to forget it."
    err(again if change.entry is None else change.host.then)


def _run(change: PlannedChange, words: list[str]) -> None:
    """The host's own command. Its values are in its words, which other users of this machine may see meanwhile."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
        why = (done.stderr or done.stdout).strip() or f"it exited with {done.returncode}" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as failure:
        why = str(failure)
    if why:
        hint = _by_hand(change.host, change.name, change.entry)
        raise CommandExit(f"{_shown(words)} failed: {sanitize(why[-2_000:])}", hint=hint)


def write_file(file: hosts.ConfigFile, text: str, *, is_private: bool) -> Path | None:
    """Replace the file as a whole, or not at all. Returns where its copy is, if there was a file."""
    place = file.path
    try:
        content = text.encode()
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = mkstemp(prefix=f".{place.name}.", dir=place.parent)
        try:
            with os.fdopen(handle, "wb") as output:
                output.write(content)
                output.flush()
                os.fsync(output.fileno())
            if place.exists():
                shutil.copymode(place, temporary)
            elif not is_private:
                os.chmod(temporary, 0o644)
            if (place.read_bytes() if place.exists() else None) != file.content:
                raise hosts.ConfigFileError(f"{place} was changed by another program meanwhile")
            backup = None if file.content is None else _backed_up(place, file.content)
            os.replace(temporary, place)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except (OSError, UnicodeEncodeError) as failure:
        raise hosts.ConfigFileError(
            f"{place} can't be written: {getattr(failure, 'strerror', None) or failure}"
        ) from None
    return backup


def _backed_up(place: Path, content: bytes) -> Path:
    """A private copy, and never over an older one. Beside a project's file it would get into the repository."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dovetail" / "backups"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    backup = folder / f"{place.name}.{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09}"
    with os.fdopen(os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
        copy.write(content)
    return backup
