"""The `dovetail` command: the words of a command line come in, one of its commands is run.

A command is a module of this folder with a `command` in it; it is loaded when it is asked for, and not to be named.
"""

from typing import Any

import click
from click.shell_completion import CompletionItem

from dovetail import __version__, cli
from dovetail.cli.streams import TAKES_NO_MORE, give_up, prepare

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
        prepare()
        try:
            return super().main(*args, **options)
        except OSError as failure:  # of words that click itself writes, such as those of --help
            if failure.errno not in TAKES_NO_MORE:
                raise
            give_up(failure)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # who presses Tab is still typing
            _refuse_what_is_no_text(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as wrong:
            wrong.message = cli.exits.in_red(wrong.message)  # type: ignore[misc]  # click reads it when it is shown
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(cli.exits.INTERRUPTED) from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(cli, name).command
        if ctx.resilient_parsing:  # somebody presses Tab
            cli.tab.teach(command)
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
        """Of names from the table alone: who presses Tab waits for it."""
        found = [CompletionItem(name, help=words) for name, words in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _refuse_what_is_no_text(ctx: click.Context, args: list[str]) -> None:
    for number, word in enumerate(args, 1):
        if any("\ud800" <= sign <= "\udfff" for sign in word):  # so Python keeps bytes that it can't read
            raise click.UsageError(f"word {number} of the command line is no text in UTF-8", ctx)


@click.group(cls=Commands, context_settings=SETTINGS, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="dovetail", message="%(prog)s %(version)s")
def main() -> None:
    """Plain Python functions, served to every MCP client."""
