"""The `dovetail` command: a click group that imports a command when it is called."""

import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from dovetail import __version__, cli
from dovetail.cli.output import INTERRUPTED, prepare_streams, styled, writing_stdout

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

COMMANDS = {
    "run": "Serve a server, over stdio or HTTP.",
    "dev": "Serve it while you work on it: restart on every change, with the console.",
    "new": "Begin a project.",
    "migrate": "Move a program from FastMCP or the official SDK.",
    "install": "Add a server to Claude, Cursor, VS Code or Gemini.",
    "pack": "Make a bundle and a server.json of a server, to publish it.",
    "list": "List what a server offers.",
    "call": "Call a tool.",
    "task": "Follow, or cancel, a call that goes on in the background.",
    "read": "Read a resource.",
    "prompt": "Get a prompt.",
    "complete": "Ask for completions of an argument.",
    "inspect": "Tell what a server is and can do.",
    "lint": "Find what clients and models will stumble over.",
    "bench": "Load a server, and tell how fast it is.",
    "doctor": "Look at this machine, and say what to fix.",
}

IN_ONE_MODULE = ("call", "read", "prompt", "complete", "list")

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
  4 no answer in time   5 declined   130 interrupted   141 broken pipe
"""


class FileName(click.ParamType[Any]):
    """A file name that the shell completes."""

    name = "text"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(incomplete, type="file")]


class Commands(click.Group):
    """Commands of the table COMMANDS, imported when they are used."""

    def main(self, *args: Any, **options: Any) -> Any:
        prepare_streams()
        return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with writing_stdout():  # --help and --version
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as wrong:
            wrong.message = styled(wrong.message, sys.stderr, fg="red")  # type: ignore[misc]  # click shows it
            raise
        except BrokenPipeError:  # --help of a command
            with writing_stdout():
                raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command
        if name in IN_ONE_MODULE:
            command = getattr(cli.commands, "list_" if name == "list" else name)
        else:
            command = getattr(cli, name).command
        for param in command.params if ctx.resilient_parsing else ():  # shell completion
            if param.name in ("target", "output", "roots"):
                param.type = FileName()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands from the table alone, without importing them."""
        found = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=Commands, context_settings=SETTINGS, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="dovetail", message="%(prog)s %(version)s")
def main() -> None:
    """Plain Python functions, served to every MCP client."""
