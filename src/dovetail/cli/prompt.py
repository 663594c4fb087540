"""`dovetail prompt`: a server, the name of a prompt and its arguments come in; its messages go out."""

from typing import TYPE_CHECKING, Any

import click

from dovetail import cli
from dovetail.cli.exits import finish
from dovetail.cli.meanwhile import Meanwhile, with_meanwhile
from dovetail.cli.reaching import ServerAt, ServerCommand, lacking, on_server
from dovetail.cli.terminal import out, out_json, styled

if TYPE_CHECKING:
    from dovetail.cli.arguments import GivenArguments
    from dovetail.protocol.types import Message

EXAMPLES = """
\b
Examples:
  dovetail prompt server.py greet name=Ada
  dovetail prompt server.py greet name=Ada --json
  dovetail prompt server.py greet name=@notes.txt
  dovetail prompt http://127.0.0.1:8000/mcp greet name=Ada
"""


@click.command("prompt", cls=ServerCommand, epilog=EXAMPLES)
@on_server
@click.argument("name", required=False, metavar="NAME")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--output", "-o", metavar="PATH", help="Save what is no text: to a file, or into a folder.")
@click.option("--json", "as_document", is_flag=True, help="Print the whole result as JSON.")
@with_meanwhile
def command(
    server: ServerAt, name: str | None, arguments: tuple[str, ...], meanwhile: Meanwhile, **manner: Any
) -> None:
    """Get the prompt NAME of the server at TARGET. All arguments are text; KEY=@FILE takes that of a file."""
    if name is None:
        raise lacking(click.get_current_context(), "name a prompt; `dovetail list` shows which there are")
    with server.starting():
        given = cli.arguments.GivenArguments.read(arguments)
        finish(_prompt(server, name, given, meanwhile, **manner))


async def _prompt(
    server: ServerAt,
    name: str,
    given: "GivenArguments",
    meanwhile: Meanwhile,
    output: str | None,
    as_document: bool,
) -> None:
    last = cli.talking.LastResult()
    async with cli.talking.talking(server, meanwhile, transcript=last.hear if as_document else None) as talk:
        cli.talking.require(talk.client, "prompts", server.shown)
        prompt = cli.talking.named(name, await talk.client.list_prompts(), "prompt")
        allowed = {argument.name: argument.required for argument in prompt.arguments or ()}
        result = await talk.client.get_prompt(name, given.texts(allowed, name))
        talk.line.clear()
        if as_document:
            described = {"description": result.description} if result.description is not None else {}
            out_json({**described, "messages": result.messages, **last.meta})
            return
        for number, message in enumerate(result.messages):
            _show(message, output, is_first=number == 0)


def _show(message: "Message", output: str | None, *, is_first: bool) -> None:
    if not is_first:
        out()
    out(styled(f"{message.role}:", bold=True))
    piece = cli.showing.piece_of(message.content)
    cli.showing.show([piece], output if isinstance(piece, cli.showing.Binary) else None)
