"""The `dovetail` command: its group, and what Tab offers.

A command is loaded when it is called, and not for `--help` of the group. For Tab nothing is imported or started, so the
names of tools are not offered.
"""

import os
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from dovetail import __version__, cli
from dovetail.cli.output import INTERRUPTED, prepare_streams, styled, writing_result

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

COMMANDS = {
    "run": "Serve a server, over stdio or HTTP.",
    "dev": "Serve it while you work on it: restart on every change, with the console.",
    "new": "Begin a project.",
    "install": "Add a server to Claude, Cursor, VS Code or Gemini.",
    "list": "List what a server offers.",
    "call": "Call a tool.",
    "read": "Read a resource.",
    "prompt": "Get a prompt.",
    "complete": "Ask for completions of an argument.",
    "inspect": "Tell what a server is and can do.",
    "lint": "Find what clients and models will stumble over.",
    "bench": "Load a server, and tell how fast it is.",
    "doctor": "Look at this machine, and say what to fix.",
}

IN_ONE_MODULE = ("call", "read", "prompt", "complete", "list")
MOST_OFFERED = 200  # by Tab

EXAMPLES = """
\b
Examples:
  dovetail run                           the bundled reference server
  dovetail list server.py                what the server in server.py offers
  dovetail call server.py add a=2 b=3    call a tool of it
  dovetail call https://example.com/mcp add a=2 b=3
  dovetail call get-sum a=2 b=3 -- npx -y @modelcontextprotocol/server-everything

\b
Exit codes:
  0 fine   1 it failed   2 the command line is wrong   3 no connection
  4 no answer in time   5 declined   130 interrupted   141 nobody reads on
"""


class Commands(click.Group):
    """Knows its commands by name and one line each."""

    def main(self, *args: Any, **options: Any) -> Any:
        prepare_streams()
        return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with writing_result():  # of --help and --version
            return super().make_context(*args, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # of Tab, where a word is still typed
            _refuse_what_is_no_text(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as wrong:
            wrong.message = styled(wrong.message, sys.stderr, fg="red")  # type: ignore[misc]  # click shows it
            raise
        except BrokenPipeError:  # of the help of a command
            with writing_result():
                raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = _command(name)
        if ctx.resilient_parsing:  # of Tab
            _offer(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            import difflib  # slow to load, and seldom needed

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else "`dovetail --help` lists the commands"
            raise click.UsageError(f"there is no command {name}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Of names from the table alone, so that Tab is quick."""
        found = [CompletionItem(name, help=words) for name, words in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _command(name: str) -> click.Command:
    found: click.Command
    if name in IN_ONE_MODULE:
        found = getattr(cli.commands, "list_" if name == "list" else name)
    else:
        found = getattr(cli, name).command
    return found


def _refuse_what_is_no_text(ctx: click.Context, args: list[str]) -> None:
    for number, word in enumerate(args, 1):
        if any("\ud800" <= sign <= "\udfff" for sign in word):  # so Python keeps bytes that it can't read
            raise click.UsageError(f"word {number} of the command line is no text in UTF-8", ctx)


@click.group(cls=Commands, context_settings=SETTINGS, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="dovetail", message="%(prog)s %(version)s")
def main() -> None:
    """Plain Python functions, served to every MCP client."""


# ── what Tab offers ──


class ProgramWord(click.ParamType[Any]):
    """A word for a program. Only what Tab offers for it differs from any other word."""

    name = "text"
    endings: tuple[str, ...] = (".py",)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Files of the folder; where there are none, what the shell itself finds, which leads into folders."""
        return _files(incomplete, self.endings) or [CompletionItem(incomplete, type="file")]


class ServerWord(ProgramWord):
    """The same for a server, which may also be in an `mcp.json`."""

    endings = (".py", ".json")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _servers(incomplete) if ".json:" in incomplete else super().shell_complete(ctx, param, incomplete)


def _offer(command: click.Command) -> None:
    """Let Tab know what the words of this command are."""
    target = ServerWord() if isinstance(command, cli.options.ServerCommand) else ProgramWord()
    offered = {"target": target, "output": click.Path(), "roots": click.Path(file_okay=False)}
    for param in command.params:
        param.type = offered.get(param.name or "", param.type)


def _files(incomplete: str, endings: tuple[str, ...]) -> list[CompletionItem]:
    folder, begun = os.path.split(incomplete)
    try:
        with os.scandir(folder or ".") as found:
            names = [each.name for each in found if each.name.startswith(begun) and each.name.endswith(endings)]
    except OSError:
        return []
    shown = [name for name in names if begun or name[0] not in "._"]  # `__init__.py` and hidden ones if asked for
    return [CompletionItem(os.path.join(folder, name)) for name in sorted(shown)[:MOST_OFFERED]]


def _servers(incomplete: str) -> list[CompletionItem]:
    """Of `mcp.json:we`, those that the file names, if it has no comments. Bash ends a word at the colon."""
    import json  # late: of all commands Tab alone needs it

    place, _, begun = incomplete.partition(".json:")
    try:
        with open(f"{place}.json", encoding="utf-8") as file:
            found = json.load(file)
        names = list(found.get("mcpServers") or found.get("servers") or ())
    except (OSError, ValueError, AttributeError, TypeError):
        return []
    shown = [name for name in names[:MOST_OFFERED] if name.startswith(begun) and name.isprintable()]
    return [CompletionItem(f"{place}.json:{name}") for name in shown]
