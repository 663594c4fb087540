"""What Tab offers: the beginning of a word comes in; the programs and servers that it could mean go out.

Nothing is imported or started for it, so the names of tools are not offered: who presses Tab waits for it.
"""

import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from dovetail.cli.installing.edits import ServerSection
from dovetail.cli.reaching import ServerCommand
from dovetail.cli.whereabouts import LIST, in_list

PROGRAM = ".py"
MOST = 200
MAX_BYTES = 1024 * 1024  # of a list of servers


class ProgramWord(click.ParamType[Any]):
    """A word for a program. Only what Tab offers for it differs from any other word."""

    name = "text"
    endings: tuple[str, ...] = (PROGRAM,)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Files of the folder; where there are none, what the shell itself finds, which leads into folders."""
        return files(incomplete, self.endings) or [CompletionItem(incomplete, type="file")]


class ServerWord(ProgramWord):
    """The same for a server, which may also be in an `mcp.json`."""

    endings = (PROGRAM, LIST)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return servers(incomplete) if f"{LIST}:" in incomplete else super().shell_complete(ctx, param, incomplete)


OFFERED: dict[str, click.ParamType[Any]] = {  # by the names of parameters, whichever command they belong to
    "target": ProgramWord(),
    "output": click.Path(),
    "roots": click.Path(file_okay=False),
}
OFFERED_BY_TALKERS = OFFERED | {"target": ServerWord()}


def teach(command: click.Command) -> None:
    """Let Tab know what the words of this command are."""
    offered = OFFERED_BY_TALKERS if isinstance(command, ServerCommand) else OFFERED
    for param in command.params:
        param.type = offered.get(param.name or "", param.type)


def files(incomplete: str, endings: tuple[str, ...]) -> list[CompletionItem]:
    folder, begun = os.path.split(incomplete)
    try:
        with os.scandir(folder or ".") as found:
            names = [each.name for each in found if each.name.startswith(begun) and each.name.endswith(endings)]
    except OSError:
        return []
    shown = [name for name in names if begun or name[0] not in "._"]  # `__init__.py` and hidden ones if asked for
    return [CompletionItem(os.path.join(folder, name)) for name in sorted(shown)[:MOST]]


def servers(incomplete: str) -> list[CompletionItem]:
    """Of `mcp.json:we`, those that the file names. Bash takes the colon for the end of a word, and never asks."""
    path, begun = in_list(incomplete) or (incomplete, "")
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_BYTES)
        names = ServerSection(text, "mcpServers").names or ServerSection(text, "servers").names
    except (OSError, ValueError):
        return []
    return [CompletionItem(f"{path}:{name}") for name in names[:MOST] if name.startswith(begun) and name.isprintable()]
