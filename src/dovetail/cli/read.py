"""`dovetail read`: a server and a URI come in; the contents of the resource go out."""

from typing import TYPE_CHECKING

import click

from dovetail import cli
from dovetail.cli.exits import Ending, finish
from dovetail.cli.meanwhile import Meanwhile, with_meanwhile
from dovetail.cli.reaching import ServerAt, ServerCommand, lacking, on_server
from dovetail.cli.terminal import in_line, out_json
from dovetail.errors import INVALID_PARAMS, RESOURCE_NOT_FOUND, DovetailError, ServerError

if TYPE_CHECKING:
    from dovetail.client import Client
    from dovetail.protocol.types import ResourceContents

NOT_FOUND = (RESOURCE_NOT_FOUND, INVALID_PARAMS)  # by the revision

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
@click.argument("uri", required=False, metavar="URI")
@click.option("--output", "-o", metavar="PATH", help="Save it: to a file, or into a folder.")
@click.option("--json", "as_document", is_flag=True, help="Print the whole result as JSON.")
@with_meanwhile
def command(server: ServerAt, uri: str | None, output: str | None, as_document: bool, meanwhile: Meanwhile) -> None:
    """Read the resource URI of the server at TARGET.

    What is piped into a file or a program is just what came, bytes or text.
    """
    if uri is None:
        raise lacking(click.get_current_context(), "name a resource by its URI; `dovetail list` shows which there are")
    with server.starting():
        finish(_read(server, uri, output, as_document, meanwhile))


async def _read(server: ServerAt, uri: str, output: str | None, as_document: bool, meanwhile: Meanwhile) -> None:
    last = cli.talking.LastResult()
    async with cli.talking.talking(server, meanwhile, transcript=last.hear if as_document else None) as talk:
        cli.talking.require(talk.client, "resources", server.shown)
        contents = await _contents(talk.client, uri)
        talk.line.clear()
        if as_document:
            out_json({"contents": contents} | last.meta)
        else:
            cli.showing.show(map(cli.showing.piece_of_contents, contents), output, exact=True)


async def _contents(client: "Client", uri: str) -> list["ResourceContents"]:
    try:
        return await client.read_resource(uri)
    except ServerError as refusal:
        if refusal.code not in NOT_FOUND:
            raise
        raise Ending(str(refusal), hint=await _advice(client, uri)) from None


async def _advice(client: "Client", uri: str) -> str:
    import difflib  # late: URIs are mostly right

    try:
        known = [each.uri for each in await client.list_resources()]
    except DovetailError:
        known = []
    near = difflib.get_close_matches(uri, known, n=1)
    return f"did you mean {in_line(near[0], 200)}?" if near else "`dovetail list` shows which resources there are"
