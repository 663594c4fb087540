"""`dovetail prompt`: a server, the name of a prompt and its arguments come in; its messages go out."""

from typing import TYPE_CHECKING, Any

import click

from dovetail import cli
from dovetail.cli.exits import WRONG_USE, Ending, finish
from dovetail.cli.meanwhile import Meanwhile, with_meanwhile
from dovetail.cli.reaching import ServerAt, ServerCommand, lacking, on_server
from dovetail.cli.terminal import in_line, out, out_json, styled

if TYPE_CHECKING:
    from dovetail.client import Client
    from dovetail.protocol.content import Message

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
        finish(_prompt(server, name, arguments, meanwhile, **manner))


async def _prompt(
    server: ServerAt,
    name: str,
    words: tuple[str, ...],
    meanwhile: Meanwhile,
    output: str | None,
    as_document: bool,
) -> None:
    last = cli.talking.LastResult()
    async with cli.talking.talking(server, meanwhile, transcript=last.hear if as_document else None) as talk:
        cli.talking.require(talk.client, "prompts", server.shown)
        arguments = cli.arguments.text_arguments(words, await _parameters(talk.client, name), name)
        result = await talk.client.get_prompt(name, arguments)
        talk.line.clear()
        if as_document:
            described = {"description": result.description} if result.description is not None else {}
            out_json({**described, "messages": result.messages, **last.meta})
            return
        for number, message in enumerate(result.messages):
            _show(message, output, is_first=number == 0)


async def _parameters(client: "Client", name: str) -> dict[str, bool]:
    """Its arguments, and whether they are needed."""
    prompts = {prompt.name: prompt for prompt in await client.list_prompts()}
    if name not in prompts:
        import difflib  # late: names are mostly right

        near = difflib.get_close_matches(name, prompts, n=1)
        names = ", ".join(in_line(each, 60) for each in list(prompts)[:20])
        hint = (
            f"did you mean {in_line(near[0], 60)}?"
            if near
            else f"it has {names}"
            if prompts
            else "it has no prompts at all"
        )
        raise Ending(f"there is no prompt {name}; {hint}", WRONG_USE)
    return {argument.name: argument.required for argument in prompts[name].arguments or ()}


def _show(message: "Message", output: str | None, *, is_first: bool) -> None:
    if not is_first:
        out()
    out(styled(f"{message.role}:", bold=True))
    piece = cli.showing.piece_of(message.content)
    cli.showing.show([piece], output if isinstance(piece, cli.showing.Binary) else None)
