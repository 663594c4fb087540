"""`dovetail install`: a server is added to a host, by the host's own command or in its configuration file."""

import json
import os
import re
import shutil
import stat
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
from dovetail.cli.hosts import (
    HOSTS,
    HTTP,
    OWN_KEYS,
    PROJECT,
    SSE,
    USER,
    AddedServer,
    ConfigFile,
    Host,
    UnusableFile,
    add_command,
    config_folder,
    entry_for,
    expanded_in,
    files_of,
    remove_command,
)
from dovetail.cli.options import COMMAND_WORDS, ServerCommand
from dovetail.cli.output import DECLINED, CommandExit, can_ask, finish, in_line, out, plain, styled, tell
from dovetail.cli.target import what_is_missing

LAUNCHERS = ("npx", "bunx", "bun", "node", "deno", "uvx", "uv", "pipx", "python", "py", "docker", "podman")
SUBCOMMANDS = ("run", "x")  # of launchers
PLAIN_STEMS = ("server", "main", "app", "mcp", "__init__", "__main__")  # they say nothing about the server
URL, PROGRAM, COMMAND = "a URL", "a Python program", "a command after --"
FITTING = {URL: ("--header", "--transport"), PROGRAM: ("--env", "--uv"), COMMAND: ("--env",)}  # options of each
WAYS = "give a Python program, a URL, or a command after --"
HIDDEN = "***"
HOST_SECONDS = 60.0  # for the command of a host
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


class PlannedChange(NamedTuple):
    """What is to be done, and where."""

    host: Host
    file: ConfigFile | None  # None if it can't be read, and the host's own command is used
    path: Path
    scope: str
    name: str
    entry: dict[str, Any] | None  # None to remove it
    commands: Sequence[list[str]]  # of the host; none if the file is written


@click.command("install", cls=ServerCommand, epilog=EXAMPLES)
@click.argument("target", required=False)
@click.option("--host", "host_name", type=click.Choice(list(HOSTS)), required=True, help="The program to add it to.")
@click.option("--name", metavar="TEXT", help="What the server is called there.  [default: after its file or address]")
@click.option(
    "--scope", type=click.Choice([USER, PROJECT]), default=USER, show_default=True,
    help="For you everywhere, or for whoever works in this folder.",
)  # fmt: skip
@click.option("--env", "-e", multiple=True, metavar="NAME[=VALUE]", help="A variable for the program. Repeat for more.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME:VALUE", help="A header for a URL.")
@click.option("--transport", type=click.Choice([HTTP, SSE]), help="How to speak to a URL.  [default: http]")
@click.option("--uv", "with_uv", is_flag=True, help="Start the program by `uv run` in its folder.")
@click.option("--remove", is_flag=True, help="Take the server out again.")
@click.option(
    "--force", is_flag=True, help="Replace another server of the same name. What the host keeps with it stays."
)
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
    host = HOSTS[host_name]
    if scope == PROJECT and host.project is None:
        raise click.UsageError(f"{host_name} has no configuration for a project; leave --scope out")
    behind = ctx.meta.get(COMMAND_WORDS, [])
    wanted = WantedServer("" if behind else target or "", behind, **given)
    called = name or usual_name(wanted.target, behind)
    if remove:
        _check_removal(wanted, name, force)
    else:
        _check_name(host, called)
    entry = None if remove else _entry(host, wanted, scope)
    path = _path(host, scope)
    try:
        change = _planned(host_name, path, scope, called, entry)
        if change is not None:
            _show(change, is_result=dry_run)
            if not dry_run:
                _agree(change, may_replace=force, is_confirmed=yes)
                _apply(change)
    except UnusableFile as bad:
        hint = None if entry is None else f"To add it by hand:\n{_snippet(host.section, called, entry)}"
        raise CommandExit(f"{bad}; nothing was changed", hint=hint) from None


# ── the change ──


def _entry(host: Host, wanted: "WantedServer", scope: str) -> dict[str, Any]:
    server = added_server(wanted, host.here if scope == PROJECT else None)
    if server.url is not None and server.transport not in host.url_keys:
        raise click.UsageError(f"{host.title} starts programs only; add the URL in its settings, under Connectors")
    entry = entry_for(host, server)
    for remark in _remarks(host, wanted, entry, is_shared=scope == PROJECT):
        tell(remark, fg="yellow")
    return entry


def _check_removal(wanted: "WantedServer", name: str | None, force: bool) -> None:
    if unused := [*wanted.options, *(["--force"] if force else [])]:
        raise click.UsageError(f"{unused[0]} does not go with --remove, which takes --name, --scope and --host")
    if not (name or wanted.target or wanted.behind):
        raise click.UsageError("which server? --name says what it is called there")


def _check_name(host: Host, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise click.UsageError(f"--name {name!r}: use letters, digits, - and _, at most 64 of them")
    if name in host.reserved:
        raise click.UsageError(f"{host.title} keeps the name {name} for itself; choose another with --name")


def _path(host: Host, scope: str) -> Path:
    path, *others = files_of(host, scope)
    if others:
        named = "".join(f"\n  {each}" for each in (path, *others))
        raise CommandExit(f"{host.title} has several configurations here; nothing was changed:{named}",
                          hint="Remove the app whose file is not in use, or add the server by hand.")  # fmt: skip
    if host.package and scope == USER and not path.is_relative_to(config_folder()):
        tell(f"{host.title} is a packaged app here, and reads {path}")
    return path


def _planned(host_name: str, path: Path, scope: str, name: str, entry: dict[str, Any] | None) -> PlannedChange | None:
    """None if there is nothing to do."""
    host = HOSTS[host_name]
    removal = remove_command(host_name, scope, name)
    own = removal if entry is None else add_command(host_name, scope, name, entry)
    try:
        file = ConfigFile.read(path, host.section)
    except UnusableFile:
        if own is None:
            raise
        return PlannedChange(host, None, path, scope, name, entry, [own])  # the host can read it
    is_there = name in file.servers
    if entry is None and not is_there:
        known = f"; it has {in_line(', '.join(list(file.servers)[:20]))}" if file.servers else ""
        tell(f"{path} has no server called {in_line(name)}{known}")
        return None
    if entry is not None and is_there and file.servers[name] == (entry := _merged(file.servers[name], entry)):
        tell(f"{host.title} has {name} already, just like this: {path}")
        return None
    if own is None or (is_there and entry is not None):  # hosts refuse to replace a server
        _refuse_read_only(file)
        return PlannedChange(host, file, path, scope, name, entry, [])
    return PlannedChange(host, file, path, scope, name, entry, [own])


def _merged(old: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry, with what the host or its user has put beside the old one."""
    kept = old if isinstance(old, Mapping) else {}
    return {**entry, **{key: value for key, value in kept.items() if key not in OWN_KEYS}}


def _show(change: PlannedChange, *, is_result: bool) -> None:
    """What changes in the file. It is the result of a dry run; else it is told before the question."""
    say, stream = (out, sys.stdout) if is_result else (tell, sys.stderr)
    is_there = change.file is not None and change.name in change.file.servers
    quoted = json.dumps(in_line(change.name, 100), ensure_ascii=False)
    say(f"{change.path}, {json.dumps(change.host.section)}:")
    if is_there:
        say(styled(f"- {quoted}: …", stream, fg="red"))  # what is in it may be secret
    if change.entry is not None:
        lines = json.dumps(masked(change.entry), indent=2, ensure_ascii=False).split("\n")
        for line in (f"{quoted}: {lines[0]}", *lines[1:]):
            say(styled(plain(f"+ {line}"), stream, fg="green"))
    for words in change.commands:
        say(f"by `{os.path.basename(words[0])} {' '.join(words[1:3])}`")
    if is_there and change.file is not None and change.entry is not None:
        for remark in _on_replacing(change.file.servers[change.name], change.entry):
            tell(remark)


def _on_replacing(old: Any, new: Mapping[str, Any]) -> Iterator[str]:
    was = old if isinstance(old, Mapping) else {}
    if kept := [key for key in was if key not in OWN_KEYS]:
        yield f"Kept of what was there: {in_line(', '.join(kept))}"
    names = {key: [was.get(key), new.get(key)] for key in ("env", "headers")}
    lost = [
        f"{key} {name}"
        for key, (before, after) in names.items()
        for name in (before if isinstance(before, Mapping) else ())
        if name not in (after if isinstance(after, Mapping) else ())
    ]
    if lost:
        yield f"Not kept, give it again if it is needed: {in_line(', '.join(lost))}"


def masked(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with `***` for values of variables and headers, and for what we did not write; `${NAME}` is shown."""
    return {key: value if key in OWN_KEYS and key not in ("env", "headers") else _masked(value)
            for key, value in entry.items()}  # fmt: skip


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _masked(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    is_open = value is None or isinstance(value, bool) or (isinstance(value, str) and _REFERENCE.fullmatch(value))
    return value if is_open else HIDDEN


def _snippet(section: str, name: str, entry: Mapping[str, Any]) -> str:
    return json.dumps({section: {name: masked(entry)}}, indent=2, ensure_ascii=False)


def _agree(change: PlannedChange, *, may_replace: bool, is_confirmed: bool) -> None:
    is_replacing = change.entry is not None and change.file is not None and change.name in change.file.servers
    if is_replacing and not may_replace and (is_confirmed or not can_ask()):
        raise CommandExit(
            f"{change.path} has another server called {change.name}; nothing was changed",
            DECLINED,
            "--force replaces it, --name gives this one another name",
        )
    if is_confirmed:
        return
    if not can_ask():
        words = "nobody is here to say yes; nothing was changed"
        raise CommandExit(words, DECLINED, "--yes changes it without asking")
    if not finish(cli.ask.confirm("Replace that server?" if is_replacing else "Change it?")):
        raise CommandExit("nothing was changed", DECLINED)


def _apply(change: PlannedChange) -> None:
    kept = ""
    if change.commands:
        for words in change.commands:
            _run(change, words)
    elif change.file is not None:
        servers = {name: entry for name, entry in change.file.servers.items() if name != change.name or change.entry}
        if change.entry is not None:
            servers[change.name] = change.entry
        has_values = change.entry is not None and masked(change.entry) != change.entry
        backup = write_file(change.file, change.file.text_with(servers), is_private=change.scope == USER or has_values)
        kept = f"; as it was: {backup}" if backup else ""
    place = "is out of" if change.entry is None else "is in"
    tell(f"{in_line(change.name)} {place} {change.path}{kept}", fg="green")
    again = f"{change.host.title} may have to be started again to forget it."
    tell(again if change.entry is None else change.host.then)


def _run(change: PlannedChange, words: list[str]) -> None:
    """The host's own command. Its values are in its words, which other users of this machine may see meanwhile."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=HOST_SECONDS,
            check=False,
        )  # fmt: skip
        why = (done.stderr or done.stdout).strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as failure:
        why = str(failure)
    if why:
        hint = None if change.entry is None else _snippet(change.host.section, change.name, change.entry)
        failed = f"`{os.path.basename(words[0])} {' '.join(words[1:3])}` failed: {plain(why[-2_000:])}"
        raise CommandExit(failed, hint=None if hint is None else f"To add it by hand:\n{hint}")


# ── the file ──


def _refuse_read_only(file: ConfigFile) -> None:
    """Its user has said that it shall stay as it is, even where its folder can be written."""
    if file.content is not None and not os.access(file.path, os.W_OK):
        raise UnusableFile(f"{file.path} is read-only")


def write_file(file: ConfigFile, text: str, *, is_private: bool) -> Path | None:
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
            _copy_mode(place, temporary, is_private)
            if (place.read_bytes() if place.exists() else None) != file.content:
                raise UnusableFile(f"{place} was changed by another program meanwhile")
            backup = None if file.content is None else _backed_up(place, file.content)
            os.replace(temporary, place)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except (OSError, UnicodeEncodeError) as failure:
        raise UnusableFile(f"{place} can't be written: {getattr(failure, 'strerror', None) or failure}") from None
    return backup


def _copy_mode(place: Path, temporary: str, is_private: bool) -> None:
    """Mode and owner of the file that is there; a new one is private, or as usual."""
    if place.exists():
        known = place.stat()
        if hasattr(os, "chown"):
            with suppress(OSError):
                os.chown(temporary, known.st_uid, known.st_gid)
        os.chmod(temporary, stat.S_IMODE(known.st_mode))
    elif not is_private:
        usual = os.umask(0)
        os.umask(usual)
        os.chmod(temporary, 0o666 & ~usual)


def _backed_up(place: Path, content: bytes) -> Path:
    """A private copy, and never over an older one. Beside a project's file it would get into the repository."""
    folder = backup_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09}"
    backup = folder / f"{place.name}.{stamp}"
    with os.fdopen(os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
        copy.write(content)
    return backup


def backup_folder(platform: str = sys.platform) -> Path:
    home = Path.home()
    if platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    return base / "dovetail" / "backups"


# ── the server ──


class WantedServer(NamedTuple):
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

    @property
    def options(self) -> list[str]:
        """Those that were given."""
        rows = (
            ("--env", self.env),
            ("--header", self.headers),
            ("--transport", self.transport),
            ("--uv", self.with_uv),
        )
        return [name for name, value in rows if value]


def added_server(wanted: WantedServer, here: str | None = None) -> AddedServer:
    """`here` stands for the current folder in what is shared with others; without it, full paths are written.

    Hosts start programs in a folder of their own choice, so nothing may depend on the current one.
    """
    if not wanted.behind and not wanted.target:
        raise click.UsageError(f"which server? Please {WAYS}")
    for option in wanted.options:
        if option not in FITTING[wanted.kind]:
            fits = " and ".join(FITTING[wanted.kind])
            raise click.UsageError(f"{option} does not go with {wanted.kind}, which takes {fits}")
    if wanted.kind == URL:
        _check_url(wanted.target)
        return AddedServer(url=wanted.target, headers=_headers(wanted.headers), transport=wanted.transport or HTTP)
    if wanted.kind == PROGRAM:
        return _program(wanted, here)
    program = wanted.behind[0] if here else shutil.which(wanted.behind[0]) or wanted.behind[0]
    return AddedServer([_located(word, here) for word in (program, *wanted.behind[1:])], _variables(wanted.env))


def _check_url(url: str) -> None:
    """The error does not repeat it: it may hold a secret."""
    if not url.lower().startswith(("http://", "https://")):
        raise click.UsageError("a URL begins with https:// or http://")
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host or re.search(r"[\s\x00-\x1f\x7f\"<>\\]", url):
        raise click.UsageError("that is no URL; write it as https://example.com/mcp")


def _program(wanted: WantedServer, here: str | None) -> AddedServer:
    env = _variables(wanted.env)
    place, colon, inner = wanted.target.rpartition(":") if ".py:" in wanted.target else (wanted.target, "", "")
    if not place.endswith(".py"):
        return _module(wanted, env, here)
    path = Path(os.path.abspath(place))
    if not path.is_file():
        raise click.UsageError(f"there is no file {place}; {WAYS}")
    if colon and not _is_dotted(inner):
        raise click.UsageError(f"{wanted.target}: after the colon comes the name of a server in {place}")
    if not wanted.with_uv:
        return AddedServer([sys.executable, "-m", "dovetail.cli", "run", f"{path}{colon}{inner}"], env)
    folder = _located(str(path.parent), here)
    return AddedServer(_by_uv(folder, f"{path if folder == str(path.parent) else path.name}{colon}{inner}", here), env)


def _module(wanted: WantedServer, env: dict[str, str], here: str | None) -> AddedServer:
    module, colon, inner = wanted.target.partition(":")
    if not _is_dotted(module) or (colon and not _is_dotted(inner)):
        raise click.UsageError(f"{wanted.target} is neither a Python program nor a module; {WAYS}")
    if wanted.with_uv:  # which has an environment of its own, and the modules in its folder
        return AddedServer(_by_uv(_located(os.getcwd(), here), wanted.target, here), env)
    if missing := what_is_missing(module):
        raise click.UsageError(f"{missing}; {WAYS}")
    return AddedServer([sys.executable, "-m", "dovetail.cli", "run", wanted.target], _with_import_path(env, module))


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _located(word: str, here: str | None) -> str:
    """A file or a folder that lies here has to be found from anywhere; what is shared, on any machine."""
    is_file = os.path.isfile(word)
    if here and (is_file or (os.path.isabs(word) and os.path.isdir(word))):
        inside = Path(os.path.relpath(word))
        if inside.parts[:1] != (os.pardir,) and not inside.is_absolute():
            return here if inside == Path() else f"{here}/{inside.as_posix()}"
    return os.path.abspath(word) if is_file else word


def _by_uv(folder: str, target: str, here: str | None) -> list[str]:
    program = "uv" if here else shutil.which("uv") or "uv"
    return [program, "run", "--directory", folder, "dovetail", "run", target]


def _with_import_path(env: dict[str, str], module: str) -> dict[str, str]:
    """A module that lies here has to be found from anywhere, after what was asked for."""
    folder = os.getcwd()
    if PathFinder.find_spec(module.partition(".")[0], [folder]) is None:
        return env
    known = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**env, "PYTHONPATH": os.pathsep.join(known if folder in known else [*known, folder])}


def _variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, is_set, value = each.partition("=")
        if not is_set and name in os.environ:
            value = os.environ[name]
        elif not is_set:
            raise click.UsageError(f"--env {name}: there is no such variable here; write it as NAME=VALUE")
        if not name.strip():
            raise click.UsageError("--env: write it as NAME=VALUE")
        found[name.strip()] = value
    return found


def _headers(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, is_set, value = (part.strip() for part in each.partition(":"))
        if not is_set or not name:
            raise click.UsageError("--header: write it as NAME:VALUE")
        if _CONTROL.search(name + value):
            raise click.UsageError(f"--header {in_line(name)}: it has a line break or another control character")
        found[name] = value
    return found


def _remarks(host: Host, wanted: WantedServer, entry: Mapping[str, Any], *, is_shared: bool) -> Iterator[str]:
    """Before the yes; `is_shared` if it is in a file for all who work in this folder."""
    if wanted.kind == COMMAND and not shutil.which(entry["command"]):
        yield f"There is no program {in_line(entry['command'])} here; {host.title} may not find it."
    own = ("type", "command", "args") if wanted.kind == PROGRAM else ("type", "command")  # we have written these
    if places := expanded_in(host, {key: value for key, value in entry.items() if key not in own}):
        yield f"{host.title} reads $… as a variable of its own environment, in: {', '.join(places)}"
    if is_shared and masked(entry) != entry:
        yield "Whoever gets this folder gets the hidden values too, which may be secrets."
    place = next(filter(os.path.isabs, [entry.get("command", ""), *entry.get("args", ())]), None)
    if is_shared and place is not None:
        better = "; --uv starts it wherever this folder is" if wanted.kind == PROGRAM and not wanted.with_uv else ""
        yield f"Others who get this folder have no {in_line(place)}{better}."


def usual_name(target: str, behind: Sequence[str]) -> str:
    """After what says most: the address, the file, or else its folder; of a command, what is launched."""
    if "://" in target:
        told = _host_name(target)
    elif behind:
        words = [word for word in behind if not word.startswith("-")]
        launched = [word for word in words if not _is_launcher(word) and word not in SUBCOMMANDS]
        told = _file_name((launched or words or [""])[0].removesuffix("/"))
    else:
        told = _file_name(target if ".py" in target else target.partition(":")[0].replace(".", "/"))
    return re.sub(r"[^A-Za-z0-9]+", "-", told).strip("-").lower()[:64] or "server"


def _is_launcher(program: str) -> bool:
    """Whether it starts programs of others; `python3.12` is `python`."""
    return Path(program).stem.rstrip("0123456789.") in LAUNCHERS


def _file_name(place: str) -> str:
    path = Path(os.path.abspath(place.partition(".py")[0]))
    name = re.sub(r"(?<=.)[@:].*", "", path.name)  # without a version
    return path.parent.name if name in PLAIN_STEMS else name


def _host_name(url: str) -> str:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    if ":" in host or host.replace(".", "").isdigit():
        return host  # an address of digits
    return host.removeprefix("www.").removeprefix("mcp.").partition(".")[0]
