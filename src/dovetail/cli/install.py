"""`dovetail install`: a server and a host come in; the host's configuration names the server, after a yes."""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from dovetail.cli.exits import DECLINED, Ending, finish
from dovetail.cli.installing import files, remarks
from dovetail.cli.installing.changes import difference, snippet
from dovetail.cli.installing.edits import ServerSection, merged
from dovetail.cli.installing.hosts import HOSTS, HTTP, PROJECT, SSE, USER, Host, config_folder, entry_for, files_of
from dovetail.cli.installing.jsonc import NotJson
from dovetail.cli.installing.servers import Given, server_from, usual_name
from dovetail.cli.installing.veil import veiled
from dovetail.cli.keyboard import confirm
from dovetail.cli.reaching import COMMAND_WORDS, ServerCommand
from dovetail.cli.terminal import can_ask, in_line, out, plain, styled, tell

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_NAMED = 20
COLOURS = {"+": "green", "-": "red"}

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


class Wish(NamedTuple):
    """What is to be done, and where."""

    host: Host
    path: Path
    scope: str
    name: str
    entry: dict[str, Any] | None  # None to remove it
    may_replace: bool
    is_confirmed: bool
    is_trial: bool


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
    target: str | None,
    host_name: str,
    name: str | None,
    scope: str,
    env: tuple[str, ...],
    headers: tuple[str, ...],
    transport: str | None,
    with_uv: bool,
    remove: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Add the server at TARGET to a host: a Python program, a URL, or a command after `--`."""
    host = HOSTS[host_name]
    if scope == PROJECT and host.project is None:
        raise click.UsageError(f"{host_name} has no configuration for a project; leave --scope out")
    behind = ctx.meta.get(COMMAND_WORDS, [])
    given = Given("" if behind else target or "", behind, env, headers, transport, with_uv)
    called = name or usual_name(given.target, behind)
    if remove:
        _check_removal(given, name, force)
    else:
        _check_name(host, called)
    entry = None if remove else _entry(host, given, scope)
    wish = Wish(host, _path(host, scope), scope, called, entry, force, yes, dry_run)
    try:
        _fulfil(wish)
    except NotJson as bad:
        raise _refusal(wish, f"{wish.path} is broken at {bad}; nothing was changed") from None
    except ValueError as bad:  # it has another shape
        raise _refusal(wish, f"{wish.path} was not changed: {bad}") from None
    except files.CantUse as bad:
        raise _refusal(wish, str(bad)) from None


# ── what is asked for ──


def _entry(host: Host, given: Given, scope: str) -> dict[str, Any]:
    server = server_from(given, host.here if scope == PROJECT else None)
    if server.url is not None and server.transport not in host.url_keys:
        raise click.UsageError(f"{host.title} starts programs only; add the URL in its settings, under Connectors")
    entry = entry_for(host, server)
    for remark in remarks.on_entry(host, given, entry, is_shared=scope == PROJECT):
        tell(remark, fg="yellow")
    return entry


def _check_removal(given: Given, name: str | None, force: bool) -> None:
    if unused := [*given.options, *(["--force"] if force else [])]:
        raise click.UsageError(f"{unused[0]} does not go with --remove, which takes --name, --scope and --host")
    if not (name or given.target or given.behind):
        raise click.UsageError("which server? --name says what it is called there")


def _check_name(host: Host, name: str) -> None:
    if not NAME.fullmatch(name):
        raise click.UsageError(f"--name {name!r}: use letters, digits, - and _, at most 64 of them")
    if name in host.reserved:
        raise click.UsageError(f"{host.title} keeps the name {name} for itself; choose another with --name")


def _path(host: Host, scope: str) -> Path:
    path, *others = files_of(host, scope)
    if others:
        named = "".join(f"\n  {each}" for each in (path, *others))
        raise Ending(f"{host.title} has several configurations here; nothing was changed:{named}",
                     hint="Remove the app whose file is not in use, or add the server by hand.")  # fmt: skip
    if host.package and scope == USER and not path.is_relative_to(config_folder()):
        tell(f"{host.title} is a packaged app here, and reads {path}")
    return path


# ── doing it ──


def _fulfil(wish: Wish) -> None:
    file = files.read(wish.path)
    servers = ServerSection(file.text, wish.host.section)
    old = servers.entry(wish.name)
    is_there = wish.name in servers.names
    if wish.entry is None and not is_there:
        tell(f"{wish.path} has no server called {in_line(wish.name)}{_known(servers.names)}")
        return
    new = None if wish.entry is None else merged(old, wish.entry)
    if new is not None and old == new:
        tell(f"{wish.host.title} has {wish.name} already, just like this: {wish.path}")
        return
    files.refuse_read_only(file)
    edited = servers.without_entry(wish.name) if wish.entry is None else servers.with_entry(wish.name, wish.entry)
    _show(wish, difference(str(wish.path), servers.section, servers.outline, wish.name, old, new))
    for remark in remarks.on_replacing(old, new) if is_there and new is not None else ():
        tell(remark)
    if edited.lost_comments:
        tell(f"Comments in it that go: {edited.lost_comments}")
    if not wish.is_trial:
        _agree(wish, is_replacing=is_there and new is not None)
        _do(wish, file, edited.text)


def _known(names: list[str]) -> str:
    """For who has mistyped one."""
    return f"; it has {in_line(', '.join(names[:MAX_NAMED]))}" if names else ""


def _show(wish: Wish, lines: list[str]) -> None:
    """The change is the result of a trial; else it is told before the question."""
    say = out if wish.is_trial else tell
    for line in lines:
        say(styled(plain(line), sys.stdout if wish.is_trial else sys.stderr, fg=COLOURS.get(line[:1])))


def _do(wish: Wish, file: files.ConfigFile, text: str) -> None:
    is_secret = veiled(wish.entry) != wish.entry
    is_user = wish.scope == USER
    backup = files.write(
        file, text, is_private=is_user or is_secret, backups=None if is_user else files.backup_folder()
    )
    kept = f"; as it was: {backup.name if is_user else backup}" if backup else ""
    tell(f"{in_line(wish.name)} {'is out of' if wish.entry is None else 'is in'} {wish.path}{kept}", fg="green")
    if is_user and is_secret and files.is_for_others(file.path):
        tell(
            f"Others on this machine can read there what is hidden here: chmod 600 {wish.path} changes that",
            fg="yellow",
        )
    tell(wish.host.then if wish.entry is not None else f"{wish.host.title} may have to be started again to forget it.")


def _agree(wish: Wish, *, is_replacing: bool) -> None:
    what = "Replace that server" if is_replacing else "Change the file"
    if is_replacing and not wish.may_replace and (wish.is_confirmed or not can_ask()):
        raise Ending(
            f"{wish.path} has another server called {wish.name}; nothing was changed",
            DECLINED,
            "--force replaces it, --name gives this one another name",
        )
    if wish.is_confirmed:
        return
    if not can_ask():
        raise Ending("nobody is here to say yes; nothing was changed", DECLINED, "--yes changes it without asking")
    if not finish(confirm(f"{what}?")):
        raise Ending("nothing was changed", DECLINED)


def _refusal(wish: Wish, words: str) -> Ending:
    """With what a person can paste."""
    if wish.entry is None:
        return Ending(words)
    return Ending(words, hint=f"To add it by hand:\n{snippet(wish.host.section, wish.name, wish.entry)}")
