"""`dovetail call`: a server, the name of a tool and its arguments come in; the result goes out."""

import click

from dovetail import cli
from dovetail.cli.exits import finish
from dovetail.cli.meanwhile import Meanwhile, with_meanwhile
from dovetail.cli.reaching import ServerAt, ServerCommand, lacking, on_server

EXAMPLES = """
\b
Examples:
  dovetail call server.py add a=2 b=3
  dovetail call server.py add --args '{"a": 2, "b": 3}' --json
  dovetail call server.py search words=red words=blue limit:=5 where.shop=Rome
  dovetail call server.py summarise text=@notes.txt
  dovetail call server.py book --answer nights=3
  dovetail call server.py forget note=old --yes
  dovetail call http://127.0.0.1:8000/mcp add a=2 b=3 --header "X-Tenant: acme"
  dovetail call mcp.json:shop add a=2 b=3
  dovetail call add a=2 b=3 -- python server.py

\b
Arguments get the types that the tool asks for:
  a=2            a number, a text or a list of one
  a=1 a=2        a list
  a.b=1          an object: {"b": 1}
  a:='[1, 2]'    JSON, as it is
  a=@file        the text of a file; of stdin with @-
"""


@click.command("call", cls=ServerCommand, epilog=EXAMPLES)
@on_server
@click.argument("tool", required=False, metavar="TOOL")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--args", "whole", metavar="JSON", help="All arguments, as JSON, @file, or - for stdin; sent unchecked.")
@click.option("--yes", "-y", is_flag=True, help="Call a tool that is marked destructive without asking.")
@click.option("--output", "-o", metavar="PATH", help="Save what is no text: to a file, or into a folder.")
@click.option("--json", "as_document", is_flag=True, help="Print the whole result as JSON.")
@with_meanwhile
def command(
    server: ServerAt,
    tool: str | None,
    arguments: tuple[str, ...],
    whole: str | None,
    yes: bool,
    output: str | None,
    as_document: bool,
    meanwhile: Meanwhile,
) -> None:
    """Call TOOL of the server at TARGET: a URL, a Python program, mcp.json:name, or a command after `--`.

    Progress is shown as a bar, and what the server asks is asked here.
    """
    if tool is None:
        raise lacking(click.get_current_context(), "name a tool; `dovetail list` shows which there are")
    with server.starting():
        given = cli.arguments.GivenArguments.read(arguments, whole)
        finish(
            cli.calling.call_tool(
                server,
                tool,
                given,
                meanwhile,
                is_confirmed=yes,
                output=output,
                as_document=as_document,
            )
        )
