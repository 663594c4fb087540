"""The command task: the state of a call that goes on in the background, its questions and its result."""

import shlex
from typing import TYPE_CHECKING, Any

import click

from dovetail import cli
from dovetail.cli import output as terminal
from dovetail.cli import shared_options as options
from dovetail.cli.commands import json_option, output_option
from dovetail.cli.shared_options import InteractionOptions, ServerCommand, ServerTarget

if TYPE_CHECKING:
    from dovetail.client import CallToolResult, ToolTask

EXAMPLES = """
\b
Examples:
  dovetail task http://127.0.0.1:8000/mcp ID                       its state now
  dovetail task http://127.0.0.1:8000/mcp ID --wait -o film.mp4    its result, when it has one
"""
MAX_WIDTH = 10_000  # of an id: it is of no use without its end


@click.command("task", cls=ServerCommand, epilog=EXAMPLES)
@options.server_options
@click.argument("id", metavar="ID")
@click.option("--wait", "-w", is_flag=True, help="Wait until it ends, answer what it asks, and print its result.")
@click.option("--cancel", is_flag=True, help="Cancel it.")
@output_option
@json_option
@options.interaction_options
async def command(
    server: ServerTarget, id: str, wait: bool, cancel: bool, interaction: InteractionOptions, **how: Any
) -> None:
    """Show the state of the task ID at the server at TARGET. With Ctrl-C the waiting ends; the task goes on."""
    async with server.started() as running, cli.connect.interactive_client(running, interaction) as (client, progress):
        task = client.task(id)
        if cancel:
            await task.cancel()
        if wait:
            result = await follow(task, progress)
            progress.clear()
            cli.commands.show_call(result, **how)
        else:
            await task.refresh()
            show_state(task, as_json=how["as_json"])


async def follow(task: "ToolTask", progress: terminal.ProgressBar) -> "CallToolResult":
    """The result of a task, whose messages are shown until then."""
    async for update in task:
        if task.id is not None:
            progress.say(update.message or update.status)
    return await task.wait(raise_on_error=False)


def show_started(task: "ToolTask", server: ServerTarget, *, as_json: bool) -> None:
    if as_json:
        show_state(task, as_json=True)
    else:
        revision = server.options["protocol_version"]
        words = shlex.join(["dovetail", "task", server.shown, task.id or "", "--wait"])
        words += f" --revision {revision}" if revision else ""  # in others the id is unknown
        terminal.out(terminal.one_line(task.id or "", MAX_WIDTH))
        terminal.err(f"{terminal.one_line(words, MAX_WIDTH)} waits for its result", dim=True)


def show_state(task: "ToolTask", *, as_json: bool) -> None:
    if as_json:
        parts = {"taskId": task.id, "status": task.status, "statusMessage": task.message}
        terminal.out_json({name: value for name, value in parts.items() if value is not None})
    else:
        terminal.out(terminal.one_line(" ".join(filter(None, [task.status, task.message]))))
