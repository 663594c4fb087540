"""`dovetail list`: a server comes in; the tools, resources, templates and prompts that it offers go out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dovetail import cli
from dovetail.cli.exits import finish
from dovetail.cli.reaching import ServerAt, ServerCommand, on_server
from dovetail.cli.terminal import out_json, tell
from dovetail.errors import METHOD_NOT_FOUND, ServerError

if TYPE_CHECKING:
    from dovetail.client import Client

MAX_PAGES = 1_000
WORDS = {  # for what came instead
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}

EXAMPLES = """
\b
Examples:
  dovetail list server.py                   all that the server in server.py offers
  dovetail list server.py tools -v          its tools, with their schemas
  dovetail list server.py --json
  dovetail list http://127.0.0.1:8000/mcp resources
  dovetail list mcp.json:shop               of a server that an mcp.json names
  dovetail list -- python server.py         of a server that any command starts
"""


class Listed(NamedTuple):
    """One kind of thing that servers list."""

    capability: str
    method: str
    key: str  # in the answer


class AllPages(NamedTuple):
    """All pages of one kind."""

    definitions: list[Mapping[str, Any]]  # as they came
    malformed: list[str]  # what is none, in words


KINDS = {
    "tools": Listed("tools", "tools/list", "tools"),
    "resources": Listed("resources", "resources/list", "resources"),
    "templates": Listed("resources", "resources/templates/list", "resourceTemplates"),
    "prompts": Listed("prompts", "prompts/list", "prompts"),
}


@click.command("list", cls=ServerCommand, epilog=EXAMPLES)
@on_server
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@click.option("--verbose", "-v", is_flag=True, help="Show whole descriptions, and schemas.")
@click.option("--json", "as_document", is_flag=True, help="Print the definitions as JSON, as they came.")
def command(server: ServerAt, kind: str | None, verbose: bool, as_document: bool) -> None:
    """List what the server at TARGET offers: a URL, a Python program, mcp.json:name, or a command after `--`."""
    with server.starting():
        finish(_list(server, [kind] if kind else list(KINDS), verbose, as_document))


async def _list(server: ServerAt, kinds: Sequence[str], verbose: bool, as_document: bool) -> None:
    async with server.connect() as client:
        found = {kind: await _told(client, KINDS[kind]) for kind in kinds}
    if as_document:
        out_json({KINDS[kind].key: listed for kind, listed in found.items()})
        return
    cli.catalogue.show(found, verbose=verbose)
    if not any(found.values()):
        tell(f"{server.shown} offers no {kinds[0]}" if len(kinds) == 1 else f"{server.shown} offers nothing")


async def _told(client: "Client", listed: Listed) -> list[Mapping[str, Any]]:
    found = await definitions(client, listed)
    if found.malformed:
        more = f" (and {len(found.malformed) - 1} more)" if len(found.malformed) > 1 else ""
        tell(f"{listed.method}: {found.malformed[0]}; it is left out{more}", fg="yellow")
    return found.definitions


async def definitions(client: "Client", listed: Listed) -> AllPages:
    """None if the server does not have that. If there is no end of them it is told, whoever asked."""
    found = AllPages([], [])
    if listed.capability not in client.capabilities:
        return found
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        try:
            page = await client.request(listed.method, {} if cursor is None else {"cursor": cursor})
        except ServerError as refusal:
            if refusal.code != METHOD_NOT_FOUND:
                raise
            return found
        _sort(page.get(listed.key), found)
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            return found
    tell(f"{listed.method} has no end: what comes after {MAX_PAGES} pages is left out", fg="yellow")
    return found


def _sort(items: Any, found: AllPages) -> None:
    if not isinstance(items, list):
        found.malformed.append(f"{WORDS[type(items)]} in the place of the list")
        return
    for item in items:
        if isinstance(item, dict):
            found.definitions.append(item)
        else:
            number = len(found.definitions) + len(found.malformed) + 1
            found.malformed.append(f"{WORDS[type(item)]} in the place of definition {number}")
