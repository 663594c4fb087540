"""`dovetail install`: adds a server to a host, by the host's own command or in its configuration file."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from dovetail import cli
from dovetail.cli import hosts
from dovetail.cli.files import FileChanged, replace_file
from dovetail.cli.output import DECLINED, CommandExit, err, is_interactive, one_line, out, run_async, sanitize, styled
from dovetail.cli.shared_options import COMMAND_WORDS, ServerCommand, parse_pairs
from dovetail.cli.target import target_problem

GENERIC_STEMS = ("server", "main", "app", "mcp", "__init__", "__main__")
URL, PROGRAM, COMMAND, REMOVAL = "a URL", "a Python program", "a command after --", "--remove"
ALLOWED_OPTIONS = {
    URL: ("--header", "--transport"),
    PROGRAM: ("--env", "--uv"),
    COMMAND: ("--env",),
    REMOVAL: ("--name", "--scope"),
}
WAYS = "give a Python program, a URL, or a command after --"
HIDDEN = "***"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_REFERENCE = re.compile(r"\$\{?(?:[a-z]+:)?[A-Za-z_][\w-]*\}?")  # to a value of the environment

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
    help="For you everywhere, or for all who work in this folder.",
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
    command_words = ctx.meta.get(COMMAND_WORDS, [])
    spec = ServerSpec("" if command_words else target or "", command_words, **given)
    if remove:
        spec.check_options(REMOVAL, {"--force": force, COMMAND: command_words})
    server_name = name or default_name(spec)
    entry = None if remove else _entry(host, spec, server_name, scope)
    try:
        change = _plan(host_name, scope, server_name, entry)
        if change is not None:
            _show(change, is_result=dry_run)
            if not dry_run:
                _confirm(change, may_replace=force, is_confirmed=yes)
                _apply(change)
    except hosts.ConfigFileError as bad:
        raise CommandExit(f"{bad}; nothing was changed", hint=_by_hand(host, server_name, entry)) from None


class ServerSpec(NamedTuple):
    """The server as the user described it."""

    target: str = ""
    command: Sequence[str] = ()  # the words after `--`
    env: Sequence[str] = ()
    headers: Sequence[str] = ()
    transport: str | None = None
    with_uv: bool = False

    @property
    def kind(self) -> str:
        if self.command:
            return COMMAND
        return URL if "://" in self.target else PROGRAM

    def check_options(self, kind: str, others: Mapping[str, Any] = {}) -> None:
        options = {"--env": self.env, "--header": self.headers, "--transport": self.transport, "--uv": self.with_uv}
        allowed = ALLOWED_OPTIONS[kind]
        for option, value in {**options, **others}.items():
            if value and option not in allowed:
                raise click.UsageError(f"{option} does not go with {kind}, which takes {' and '.join(allowed)}")


def default_name(spec: ServerSpec) -> str:
    """The name of its file, of the folder if the file has a generic name, or of the host in its URL."""
    if spec.kind == COMMAND or not spec.target:
        raise click.UsageError("--name says what the server is called there")
    if spec.kind == URL:
        _check_url(spec.target)
        host = urlsplit(spec.target).hostname or ""
        is_address = ":" in host or host.replace(".", "").isdigit()
        name = host if is_address else re.sub(r"^(www\.)?(mcp\.)?", "", host).partition(".")[0]
    else:
        is_file = ".py" in spec.target
        source = spec.target.partition(".py" if is_file else ":")[0]
        path = Path(os.path.abspath(source if is_file else source.replace(".", "/")))
        name = path.parent.name if path.name in GENERIC_STEMS else path.name
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:64] or "server"


def _entry(host: hosts.Host, spec: ServerSpec, name: str, scope: str) -> dict[str, Any]:
    if not spec.command and not spec.target:
        raise click.UsageError(f"which server? Please {WAYS}")
    spec.check_options(spec.kind)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise click.UsageError(f"--name {name!r}: use letters, digits, - and _, at most 64 of them")
    if spec.kind == URL:
        _check_url(spec.target)
        transport = spec.transport or hosts.HTTP
        if transport not in host.url_keys:
            raise click.UsageError(f"{host.title} starts programs only; add the URL in its settings, under Connectors")
        entry = hosts.url_entry(host, spec.target, _headers(spec.headers), transport)
    else:
        entry = hosts.program_entry(host, *_launch(spec, host.project_folder if scope == hosts.PROJECT else None))
    if scope == hosts.PROJECT:
        _warn_of_sharing(spec, entry)
    return entry


def _check_url(url: str) -> None:
    """Check a URL. The error does not repeat it: it may hold a secret."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or re.search(r"[\s\x00-\x1f\x7f\"<>\\]", url):
        raise click.UsageError("that is no URL; write it as https://example.com/mcp")


def _launch(spec: ServerSpec, project: str | None) -> tuple[list[str], dict[str, str]]:
    """The command with full paths, because hosts start it in another folder, and its environment variables.

    `project` stands for the current folder in an entry that is shared with others.
    """
    env = _variables(spec.env)
    if spec.kind == COMMAND:
        program = spec.command[0] if project else shutil.which(spec.command[0]) or spec.command[0]
        return [_portable_path(word, project) for word in (program, *spec.command[1:])], env
    if problem := target_problem(spec.target, elsewhere=spec.with_uv):
        raise click.UsageError(f"{problem}; {WAYS}")
    source, colon, attribute = spec.target.rpartition(":") if ".py:" in spec.target else (spec.target, "", "")
    path = Path(os.path.abspath(source)) if source.endswith(".py") else None
    target = spec.target if path is None else f"{path}{colon}{attribute}"
    if spec.with_uv:
        folder = os.getcwd() if path is None else str(path.parent)
        portable = _portable_path(folder, project)
        if path is not None and portable != folder:
            target = f"{path.name}{colon}{attribute}"
        program = "uv" if project else shutil.which("uv") or "uv"
        return [program, "run", "--directory", portable, "dovetail", "run", target], env
    if path is None and PathFinder.find_spec(source.partition(".")[0].partition(":")[0], [os.getcwd()]):
        env = {"PYTHONPATH": os.getcwd(), **env}  # the module is in the current folder
    return [sys.executable, "-m", "dovetail.cli", "run", target], env


def _portable_path(word: str, project: str | None) -> str:
    """The full path of a file; for a shared entry, relative to the project if it is in the current folder."""
    path = Path(os.path.abspath(word))
    if project and (path.is_file() or (os.path.isabs(word) and path.is_dir())) and path.is_relative_to(Path.cwd()):
        inside = path.relative_to(Path.cwd())
        return project if inside == Path() else f"{project}/{inside.as_posix()}"
    return str(path) if path.is_file() else word


def _variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in given:
        name, is_set, value = pair.partition("=")
        if not name.strip() or not (is_set or name in os.environ):
            raise click.UsageError(f"--env {name}: there is no such variable here; write it as NAME=VALUE")
        found[name.strip()] = value if is_set else os.environ[name]
    return found


def _headers(given: Sequence[str]) -> dict[str, str]:
    if any(map(_CONTROL.search, given)):
        raise click.UsageError("--header: write it as NAME:VALUE, in one line")  # the value may be secret
    return parse_pairs(given, ":", "--header")


def _warn_of_sharing(spec: ServerSpec, entry: Mapping[str, Any]) -> None:
    """Warn of secrets and paths of this machine in a file for all who work in this folder."""
    if mask_secrets(entry) != entry:
        err("All who get this folder get the hidden values too, which may be secrets.", fg="yellow")
    path = next(filter(os.path.isabs, [entry.get("command", ""), *entry.get("args", ())]), None)
    if path is not None:
        advice = "; --uv starts it wherever this folder is" if spec.kind == PROGRAM and not spec.with_uv else ""
        err(f"Others who get this folder have no {one_line(path)}{advice}.", fg="yellow")


class PlannedChange(NamedTuple):
    """A server to add, replace or remove."""

    host: hosts.Host
    file: hosts.ConfigFile | None  # None if only the host can read it
    path: Path
    scope: str
    name: str
    entry: dict[str, Any] | None  # None to remove it
    command: list[str] | None  # of the host; None to write the file

    @property
    def exists(self) -> bool:
        return self.file is not None and self.name in self.file.servers


def _plan(host_name: str, scope: str, name: str, entry: dict[str, Any] | None) -> PlannedChange | None:
    """Plan the change; None if there is nothing to do."""
    host = hosts.HOSTS[host_name]
    path = hosts.config_path(host, scope)
    remover = hosts.remove_command(host_name, scope, name)
    command = remover if entry is None else hosts.add_command(host_name, scope, name, entry)
    try:
        file = hosts.ConfigFile.read(path, host.section)
    except hosts.ConfigFileError:
        if command is None:
            raise
        return PlannedChange(host, None, path, scope, name, entry, command)
    old = file.servers.get(name)
    if entry is None and name not in file.servers:
        known = f"; it has {one_line(', '.join(list(file.servers)[:20]))}" if file.servers else ""
        err(f"{path} has no server called {one_line(name)}{known}")
        return None
    if entry is not None and isinstance(old, Mapping):  # keep what the host or the user has added
        entry = {**entry, **{key: value for key, value in old.items() if key not in hosts.OWN_KEYS}}
        if entry == old:
            err(f"{host.title} has {name} already, just like this: {path}")
            return None
    if command is None or (entry is not None and name in file.servers):  # the commands of hosts don't replace servers
        if file.content is not None and not os.access(path, os.W_OK):
            raise hosts.ConfigFileError(f"{path} is read-only")
        command = None
    return PlannedChange(host, file, path, scope, name, entry, command)


def _show(change: PlannedChange, *, is_result: bool) -> None:
    """Show the change of the file: the result of a dry run, else a message before the question."""
    say, stream = (out, sys.stdout) if is_result else (err, sys.stderr)
    quoted = json.dumps(one_line(change.name, 100), ensure_ascii=False)
    say(f"{change.path}, {json.dumps(change.host.section)}:")
    if change.exists:
        say(styled(f"- {quoted}: …", stream, fg="red"))  # its content may be secret
    if change.entry is not None:
        lines = json.dumps(mask_secrets(change.entry), indent=2, ensure_ascii=False).split("\n")
        for line in (f"{quoted}: {lines[0]}", *lines[1:]):
            say(styled(sanitize(f"+ {line}"), stream, fg="green"))
    if change.command is not None:
        say(f"by {_brief(change.command)}")


def _brief(command: Sequence[str]) -> str:
    return f"`{os.path.basename(command[0])} {' '.join(command[1:3])}`"


def mask_secrets(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with `***` for values of variables and headers, and of keys of others; `${NAME}` is shown."""
    public = [key for key in hosts.OWN_KEYS if key not in ("env", "headers")]
    return {key: value if key in public else _mask(value) for key, value in entry.items()}


def _mask(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _mask(inner) for name, inner in value.items()}
    is_public = value is None or isinstance(value, bool) or (isinstance(value, str) and _REFERENCE.fullmatch(value))
    return value if is_public else HIDDEN


def _by_hand(host: hosts.Host, name: str, entry: Mapping[str, Any] | None) -> str | None:
    """The entry for the user to paste."""
    if entry is None:
        return None
    return "To add it by hand:\n" + json.dumps(
        {host.section: {name: mask_secrets(entry)}}, indent=2, ensure_ascii=False
    )


def _confirm(change: PlannedChange, *, may_replace: bool, is_confirmed: bool) -> None:
    is_replacing = change.entry is not None and change.exists
    if is_replacing and not may_replace and (is_confirmed or not is_interactive()):
        message = f"{change.path} has another server called {change.name}; nothing was changed"
        raise CommandExit(message, DECLINED, "--force replaces it, --name gives this one another name")
    if is_confirmed:
        return
    if not is_interactive():
        message = "there is no terminal to ask for a yes; nothing was changed"
        raise CommandExit(message, DECLINED, "--yes changes it without asking")
    if not run_async(cli.ask.confirm("Replace that server?" if is_replacing else "Change it?")):
        raise CommandExit("nothing was changed", DECLINED)


def _apply(change: PlannedChange) -> None:
    backup = None
    if change.command is not None:
        _run(change, change.command)
    elif change.file is not None:
        servers = {name: entry for name, entry in change.file.servers.items() if name != change.name or change.entry}
        if change.entry is not None:
            servers[change.name] = change.entry
        has_secrets = change.entry is not None and mask_secrets(change.entry) != change.entry
        is_private = change.scope == hosts.USER or has_secrets
        backup = write_file(change.file, change.file.text_with(servers), is_private=is_private)
    copy = f"; as it was: {backup}" if backup else ""
    done = "is out of" if change.entry is None else "is in"
    err(f"{one_line(change.name)} {done} {change.path}{copy}", fg="green")
    again = f"{change.host.title} may have to be started again to forget it."
    err(again if change.entry is None else change.host.next_step)


def _run(change: PlannedChange, command: list[str]) -> None:
    """Run the host's own command. Other users of this machine may see its arguments while it runs."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
        why = (done.stderr or done.stdout).strip() or f"it exited with {done.returncode}" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as failure:
        why = str(failure)
    if why:
        hint = _by_hand(change.host, change.name, change.entry)
        raise CommandExit(f"{_brief(command)} failed: {sanitize(why[-2_000:])}", hint=hint)


def write_file(file: hosts.ConfigFile, text: str, *, is_private: bool) -> Path | None:
    """Replace the file atomically. Returns the path of the backup, if there was a file."""
    path = file.path
    try:
        content = text.encode()
        backup = None if file.content is None else _back_up(path, file.content)
        replace_file(path, content, file.content, is_private=is_private)
    except FileChanged as changed:
        raise hosts.ConfigFileError(str(changed)) from None
    except (OSError, UnicodeEncodeError) as failure:
        why = getattr(failure, "strerror", None) or failure
        raise hosts.ConfigFileError(f"{path} can't be written: {why}") from None
    return backup


def _back_up(path: Path, content: bytes) -> Path:
    """Make a private copy, not beside the file: there it would get into the repository of a project."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dovetail" / "backups"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    backup = folder / f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09}"
    with os.fdopen(os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
        copy.write(content)
    return backup
