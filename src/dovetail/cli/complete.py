"""`dovetail complete`: a server and an argument of a prompt, tool or template come in; suggestions go out."""

import click

from dovetail import cli
from dovetail.cli.exits import finish
from dovetail.cli.reaching import ServerAt, ServerCommand, on_server
from dovetail.cli.terminal import in_line, out, out_json, tell

EXAMPLES = """
\b
Examples:
  dovetail complete server.py prompt:greet name A
  dovetail complete server.py tool:add a 1 --json
  dovetail complete server.py 'notes://{shop}/{day}' day --with shop=Rome
  dovetail complete http://127.0.0.1:8000/mcp prompt:greet name A
"""


@click.command("complete", cls=ServerCommand, epilog=EXAMPLES)
@on_server
@click.argument("of", metavar="prompt:NAME|tool:NAME|URI-TEMPLATE")
@click.argument("argument")
@click.argument("value", default="")
@click.option("--with", "context", multiple=True, metavar="KEY=VALUE", help="An argument that is filled in already.")
@click.option("--json", "as_document", is_flag=True, help="Print the whole result as JSON.")
def command(server: ServerAt, of: str, argument: str, value: str, context: tuple[str, ...], as_document: bool) -> None:
    """Ask the server at TARGET what an ARGUMENT that begins with VALUE could be."""
    with server.starting():
        filled_in = cli.arguments.GivenArguments.read(context).texts() or None
        if "{" not in of and ":" not in of:
            raise click.UsageError(f"{of}: write prompt:{of} or tool:{of}, or a template such as notes://{{name}}")
        finish(_complete(server, of, argument, value, filled_in, as_document))


async def _complete(
    server: ServerAt, of: str, argument: str, value: str, filled_in: dict[str, str] | None, as_document: bool
) -> None:
    prompt, tool = (of.removeprefix(kind) if of.startswith(kind) else None for kind in ("prompt:", "tool:"))
    resource = None if prompt or tool else of
    async with server.connect() as client:
        cli.talking.require(client, "completions", server.shown)
        found = await client.complete(
            prompt=prompt, resource=resource, tool=tool, argument=argument, value=value, context=filled_in
        )
    if as_document:
        out_json({"completion": found})
        return
    for suggestion in found.values:
        out(in_line(suggestion, 2_000))
    if not found.values:
        tell("no suggestions", dim=True)
    if found.has_more or (found.total or 0) > len(found.values):
        tell(f"… of {found.total}" if found.total else "… and more", dim=True)
