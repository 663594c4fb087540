"""`dovetail install`: a server and a host come in; the host's configuration names the server, after a yes."""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from dovetail.cli.exits import DECLINED, Ending, finish
from dovetail.cli.installing.changes import difference, snippet
from dovetail.cli.installing.edits import CantEdit, entry_in, names_in, with_entry, without_entry
from dovetail.cli.installing.files import CantUse, read, write
from dovetail.cli.installing.hosts import HOSTS, HTTP, PROJECT, SSE, USER, Host, entry_for, file_of
from dovetail.cli.installing.jsonc import NotJson
from dovetail.cli.installing.servers import server_from, usual_name
from dovetail.cli.keyboard import confirm
from dovetail.cli.reaching import COMMAND_WORDS, ServerCommand
from dovetail.cli.terminal import can_ask, in_line, out, plain, styled, tell

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_NAMED = 20
COLOURS = {"+": "green", "-": "red", "@": "cyan"}

EXAMPLES = """
\b
Examples:
  dovetail install server.py --host claude-desktop --yes
  dovetail install server.py --host cursor --scope project --dry-run
  dovetail install server.py:server --host vscode --name weather --env UNITS=metric --yes
  dovetail install https://example.com/mcp --host gemini --dry-run
  dovetail install --host claude-code --name everything --yes -- npx -y @modelcontextprotocol/server-everything
  dovetail install --host cursor --name weather --remove --yes

The change is shown before it is made, a copy of the file is kept beside it, and a file that can't be read is left
alone. `--env NAME` without a value takes it from the environment, so that it stands in no history of a shell.
"""


class Wish(NamedTuple):
    """What is to be done, and where."""

    host: Host
    path: Path
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
@click.option("--transport", type=click.Choice([HTTP, SSE]), default=HTTP, show_default=True, help="Of a URL.")
@click.option("--uv", "with_uv", is_flag=True, help="Start the program by `uv run` in its folder.")
@click.option("--remove", is_flag=True, help="Take the server out again.")
@click.option("--force", is_flag=True, help="Replace another server of the same name.")
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
    transport: str,
    with_uv: bool,
    remove: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Add the server at TARGET to a host: a Python program, a URL, or a command after `--`."""
    host = HOSTS[host_name]
    behind = ctx.meta.get(COMMAND_WORDS, [])
    name = name or usual_name("" if behind else target or "", behind)
    if not NAME.fullmatch(name):
        raise click.UsageError(f"--name {name!r}: use letters, digits, - and _, at most 64 of them")
    if name in host.reserved:
        raise click.UsageError(f"{host.title} keeps the name {name} for itself; choose another with --name")
    entry = None
    if not remove:
        server = server_from(target, behind, env, headers, transport, with_uv)
        if server.url is not None and transport not in host.url_keys:
            raise click.UsageError(f"{host.title} starts programs only; add the URL in its settings, under Connectors")
        entry = entry_for(host, server)
        if scope == PROJECT and (server.env or server.headers):
            tell("Whoever gets this folder gets the values of these variables and headers too.", fg="yellow")
    wish = Wish(host, _path(host, host_name, scope), name, entry, force, yes, dry_run)
    try:
        _fulfil(wish)
    except NotJson as bad:
        raise _refusal(wish, f"{wish.path} is broken at {bad}; nothing was changed") from None
    except (CantEdit, ValueError) as bad:
        raise _refusal(wish, f"{wish.path} was not changed: {bad}") from None
    except CantUse as bad:
        raise _refusal(wish, str(bad)) from None


def _path(host: Host, host_name: str, scope: str) -> Path:
    if scope == PROJECT and host.project is None:
        raise click.UsageError(f"{host_name} has no configuration for a project; leave --scope out")
    return file_of(host, scope)


def _fulfil(wish: Wish) -> None:
    file = read(wish.path)
    section = wish.host.section
    names = names_in(file.text, section)
    is_there = wish.name in names
    if wish.entry is None and not is_there:
        tell(f"{wish.path} has no server called {wish.name}{_known(names)}")
        return
    if wish.entry is not None and entry_in(file.text, section, wish.name) == wish.entry:
        tell(f"{wish.host.title} has {wish.name} already, just like this: {wish.path}")
        return
    if wish.entry is None:
        text = without_entry(file.text, section, wish.name)
    else:
        text = with_entry(file.text, section, wish.name, wish.entry)
    _show(wish, file.text, text)
    if wish.is_trial:
        return
    _agree(wish, is_replacing=is_there and wish.entry is not None)
    backup = write(file, text, has_secrets=bool(wish.entry and wish.entry.keys() & {"env", "headers"}))
    done = "is out of" if wish.entry is None else "is in"
    tell(f"{wish.name} {done} {wish.path}" + (f"; as it was: {backup.name}" if backup else ""), fg="green")
    if wish.host.then:
        tell(wish.host.then)


def _known(names: list[str]) -> str:
    """For who has mistyped one."""
    return f"; it has {in_line(', '.join(names[:MAX_NAMED]))}" if names else ""


def _show(wish: Wish, before: str, after: str) -> None:
    """The change is the result of a trial; else it is told before the question."""
    say = out if wish.is_trial else tell
    lines = difference(before, after, str(wish.path))
    for line in lines:
        say(styled(plain(line), sys.stdout if wish.is_trial else sys.stderr, fg=COLOURS.get(line[:1])))
    if not lines:
        say(f"{wish.path}: only values that are not shown here change")


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
