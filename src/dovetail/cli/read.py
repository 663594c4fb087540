"""`dovetail read`: a server and a URI come in; the contents of the resource go out."""

import click

from dovetail import cli
from dovetail.cli.exits import finish
from dovetail.cli.meanwhile import Meanwhile, with_meanwhile
from dovetail.cli.reaching import ServerAt, ServerCommand, on_server
from dovetail.cli.terminal import out_json

EXAMPLES = """
\b
Examples:
  dovetail read server.py notes://all
  dovetail read server.py notes://all --json
  dovetail read server.py logo://small --output logo.png
  dovetail read server.py logo://small > logo.png
  dovetail read http://127.0.0.1:8000/mcp notes://all
"""


@click.command("read", cls=ServerCommand, epilog=EXAMPLES)
@on_server
@click.argument("uri")
@click.option("--output", "-o", metavar="PATH", help="Save it: to a file, or into a folder.")
@click.option("--json", "as_document", is_flag=True, help="Print the whole result as JSON.")
@with_meanwhile
def command(server: ServerAt, uri: str, output: str | None, as_document: bool, meanwhile: Meanwhile) -> None:
    """Read the resource URI of the server at TARGET.

    What is piped into a file or a program is just what came, bytes or text.
    """
    with server.starting():
        finish(_read(server, uri, output, as_document, meanwhile))


async def _read(server: ServerAt, uri: str, output: str | None, as_document: bool, meanwhile: Meanwhile) -> None:
    async with cli.talking.talking(server, meanwhile) as talk:
        contents = await talk.client.read_resource(uri)
        talk.line.clear()
        if as_document:
            out_json({"contents": contents})
        else:
            cli.showing.show(map(cli.showing.piece_of_contents, contents), output, exact=True)
