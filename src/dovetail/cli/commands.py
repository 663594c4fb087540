"""The commands call, read, prompt, complete and list: one request to a server, and its result on stdout."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dovetail import cli
from dovetail.cli import output as terminal
from dovetail.cli.options import InteractionOptions, ServerCommand, ServerTarget, interaction_options, server_options
from dovetail.errors import INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, URL_ELICITATION_REQUIRED, ServerError

if TYPE_CHECKING:
    from dovetail.cli.arguments import GivenArguments
    from dovetail.client import CallToolResult, Client
    from dovetail.protocol.types import ResourceContents, ToolDefinition

MAX_PAGES = 1_000

as_document = click.option("--json", "as_document", is_flag=True, help="Print the whole result as JSON.")
output = click.option("--output", "-o", metavar="PATH", help="Save what is no text: to a file, or into a folder.")


def _given(words: Sequence[str], whole: str | None = None) -> "GivenArguments":
    """Read before an event loop runs: while one waits for stdin, no signal would get through."""
    with terminal.interrupt_on_signals():
        return cli.arguments.GivenArguments.from_words(words, whole)


# ── call ──


CALL_EXAMPLES = """
\b
Examples:
  dovetail call server.py add a=2 b=3
  dovetail call server.py add --args '{"a": 2, "b": 3}' --json
  dovetail call server.py search words=red words=blue limit:=5 where.shop=Rome
  dovetail call server.py book --answer nights=3
  dovetail call server.py forget note=old --yes
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


@click.command("call", cls=ServerCommand, epilog=CALL_EXAMPLES)
@server_options
@click.argument("tool", metavar="TOOL")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--args", "whole", metavar="JSON", help="All arguments, as JSON, @file, or - for stdin; sent unchecked.")
@click.option("--yes", "-y", is_flag=True, help="Call a tool that is marked destructive without asking.")
@output
@as_document
@interaction_options
def call(
    server: ServerTarget,
    tool: str,
    arguments: tuple[str, ...],
    whole: str | None,
    interaction: InteractionOptions,
    **how: Any,
) -> None:
    """Call TOOL of the server at TARGET: a URL, a Python program, mcp.json:name, or a command after `--`.

    Progress is shown as a bar, and what the server asks is asked here.
    """
    terminal.run_async(_call(server, tool, _given(arguments, whole), interaction, **how))


async def _call(
    server: ServerTarget,
    name: str,
    given: "GivenArguments",
    interaction: InteractionOptions,
    yes: bool,
    output: str | None,
    as_document: bool,
) -> None:
    async with server.started() as running, cli.connect.interactive_client(running, interaction) as talk:
        cli.connect.require_capability(talk.client, "tools", server)
        tool = cli.connect.find_by_name(name, await talk.client.list_tools(), "tool")
        arguments = given.typed(tool.input_schema, name)
        if not yes:
            await _ask_before(tool, arguments, is_quiet=interaction.is_quiet)
        try:
            result = await talk.client.call_tool(name, arguments, progress_handler=talk.line.show, raise_on_error=False)
        except ServerError as refusal:
            if refusal.code != URL_ELICITATION_REQUIRED:
                raise
            raise terminal.CommandExit(str(refusal), hint=_pages_to_open(refusal.data)) from None
        talk.line.clear()
        _show_call(result, output, as_document)


async def _ask_before(tool: "ToolDefinition", arguments: dict[str, Any], *, is_quiet: bool) -> None:
    """A tool that its server calls destructive runs only after a yes. One that says nothing may be so, too."""
    name = terminal.one_line(tool.name)
    if tool.annotations is None or not tool.annotations.destructive_hint:
        if tool.hints.destructive and not is_quiet:
            terminal.err(f"{name} does not say whether it is destructive", dim=True)
        return
    if not terminal.is_interactive():
        words = f"{name} is marked destructive, and nobody is here to agree"
        raise terminal.CommandExit(words, terminal.DECLINED, "--yes calls it all the same")
    words = "these arguments:" if arguments else "no arguments."
    terminal.err(f"{name} is marked destructive. It would be called with {words}", fg="yellow")
    shown = {key: terminal.one_line(terminal.as_json(value, indent=False), 300) for key, value in arguments.items()}
    for line in terminal.align([(terminal.one_line(key), text) for key, text in shown.items()]):
        terminal.err(f"  {line}", fg="yellow")
    if not await cli.ask.confirm("Call it?"):
        raise terminal.CommandExit(f"{name} was not called", terminal.DECLINED)


def _pages_to_open(data: Any) -> str:
    """What a server of 2025-11-25 wants to be opened first."""
    listed = data.get("elicitations") if isinstance(data, dict) else None
    pages = [str(page.get("url")) for page in listed if isinstance(page, dict)] if isinstance(listed, list) else []
    return "\n".join(["Open this first, and call it again:", *(terminal.one_line(page, 2_000) for page in pages)])


def _show_call(result: "CallToolResult", output: str | None, as_document: bool) -> None:
    if as_document:
        parts = {
            "structuredContent": result.structured,
            "isError": result.is_error or None,
            "_meta": result.meta or None,
        }
        present = {name: value for name, value in parts.items() if value is not None}
        terminal.out_json({"content": result.content} | present)
    elif not result.is_error:
        is_whole = output is not None or not sys.stdout.isatty()
        cli.show.show(cli.show.result_pieces(result, is_whole=is_whole), output)
    if result.is_error:
        words = result.text or "The tool failed and did not say why"
        raise terminal.CommandExit("the tool failed" if as_document else terminal.sanitize(words))


# ── read ──


READ_EXAMPLES = """
\b
Examples:
  dovetail read server.py notes://all --json
  dovetail read server.py logo://small --output logo.png
  dovetail read server.py logo://small > logo.png
  dovetail read http://127.0.0.1:8000/mcp notes://all
"""


@click.command("read", cls=ServerCommand, epilog=READ_EXAMPLES)
@server_options
@click.argument("uri", metavar="URI")
@click.option("--output", "-o", metavar="PATH", help="Save it: to a file, or into a folder.")
@as_document
@interaction_options
def read(server: ServerTarget, uri: str, interaction: InteractionOptions, **how: Any) -> None:
    """Read the resource URI of the server at TARGET.

    What is piped into a file or a program is just what came, bytes or text.
    """
    terminal.run_async(_read(server, uri, interaction, **how))


async def _read(
    server: ServerTarget, uri: str, interaction: InteractionOptions, output: str | None, as_document: bool
) -> None:
    async with server.started() as running, cli.connect.interactive_client(running, interaction) as talk:
        cli.connect.require_capability(talk.client, "resources", server)
        contents = await _contents(talk.client, uri)
        talk.line.clear()
        if as_document:
            terminal.out_json({"contents": contents})
        else:
            cli.show.show(map(cli.show.resource_piece, contents), output, exact=True)


async def _contents(client: "Client", uri: str) -> list["ResourceContents"]:
    try:
        return await client.read_resource(uri)
    except ServerError as refusal:
        if refusal.code not in (RESOURCE_NOT_FOUND, INVALID_PARAMS):  # by the revision
            raise
        raise terminal.CommandExit(str(refusal), hint="`dovetail list` shows which resources there are") from None


# ── prompt ──


PROMPT_EXAMPLES = """
\b
Examples:
  dovetail prompt server.py greet name=Ada --json
  dovetail prompt server.py greet name=@notes.txt
  dovetail prompt http://127.0.0.1:8000/mcp greet name=Ada
"""


@click.command("prompt", cls=ServerCommand, epilog=PROMPT_EXAMPLES)
@server_options
@click.argument("name", metavar="NAME")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@output
@as_document
@interaction_options
def prompt(
    server: ServerTarget, name: str, arguments: tuple[str, ...], interaction: InteractionOptions, **how: Any
) -> None:
    """Get the prompt NAME of the server at TARGET. All arguments are text; KEY=@FILE takes that of a file."""
    terminal.run_async(_prompt(server, name, _given(arguments), interaction, **how))


async def _prompt(
    server: ServerTarget,
    name: str,
    given: "GivenArguments",
    interaction: InteractionOptions,
    output: str | None,
    as_document: bool,
) -> None:
    async with server.started() as running, cli.connect.interactive_client(running, interaction) as talk:
        cli.connect.require_capability(talk.client, "prompts", server)
        definition = cli.connect.find_by_name(name, await talk.client.list_prompts(), "prompt")
        allowed = {argument.name: argument.required for argument in definition.arguments or ()}
        result = await talk.client.get_prompt(name, given.texts(allowed, name))
        talk.line.clear()
        if as_document:
            described = {"description": result.description} if result.description is not None else {}
            terminal.out_json({**described, "messages": result.messages})
            return
        for number, message in enumerate(result.messages):
            terminal.out(("\n" if number else "") + terminal.styled(f"{message.role}:", bold=True))
            piece = cli.show.content_piece(message.content)
            cli.show.show([piece], output if isinstance(piece, cli.show.Binary) else None)


# ── complete ──


COMPLETE_EXAMPLES = """
\b
Examples:
  dovetail complete server.py prompt:greet name A
  dovetail complete server.py tool:add a 1 --json
  dovetail complete server.py 'notes://{shop}/{day}' day --with shop=Rome
  dovetail complete http://127.0.0.1:8000/mcp prompt:greet name A
"""


@click.command("complete", cls=ServerCommand, epilog=COMPLETE_EXAMPLES)
@server_options
@click.argument("of", metavar="prompt:NAME|tool:NAME|URI-TEMPLATE")
@click.argument("argument")
@click.argument("value", default="")
@click.option("--with", "context", multiple=True, metavar="KEY=VALUE", help="An argument that is filled in already.")
@as_document
def complete(server: ServerTarget, of: str, context: tuple[str, ...], **how: Any) -> None:
    """Ask the server at TARGET what an ARGUMENT that begins with VALUE could be."""
    if "{" not in of and ":" not in of:
        raise click.UsageError(f"{of}: write prompt:{of} or tool:{of}, or a template such as notes://{{name}}")
    terminal.run_async(_complete(server, of, _given(context).texts() or None, **how))


async def _complete(
    server: ServerTarget, of: str, context: dict[str, str] | None, argument: str, value: str, as_document: bool
) -> None:
    kind, _, name = of.partition(":")
    reference: dict[str, Any] = {kind: name} if kind in ("prompt", "tool") else {"resource": of}
    async with server.started() as running, cli.connect.connected(running) as client:
        cli.connect.require_capability(client, "completions", server)
        found = await client.complete(argument=argument, value=value, context=context, **reference)
    if as_document:
        terminal.out_json({"completion": found})
        return
    for suggestion in found.values:
        terminal.out(terminal.one_line(suggestion, 2_000))
    if not found.values:
        terminal.err("no suggestions", dim=True)
    if found.has_more or (found.total or 0) > len(found.values):
        terminal.err(f"… of {found.total}" if found.total else "… and more", dim=True)


# ── list ──


LIST_EXAMPLES = """
\b
Examples:
  dovetail list server.py tools -v          its tools, with their schemas
  dovetail list server.py --json
  dovetail list mcp.json:shop               of a server that an mcp.json names
  dovetail list -- python server.py         of a server that any command starts
"""


class Listed(NamedTuple):
    """One kind of thing that servers list."""

    capability: str
    method: str
    key: str  # in the result


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


@click.command("list", cls=ServerCommand, epilog=LIST_EXAMPLES)
@server_options
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@click.option("--verbose", "-v", is_flag=True, help="Show whole descriptions, and schemas.")
@click.option("--json", "as_document", is_flag=True, help="Print the definitions as JSON, as they came.")
def list_(server: ServerTarget, kind: str | None, verbose: bool, as_document: bool) -> None:
    """List what the server at TARGET offers: a URL, a Python program, mcp.json:name, or a command after `--`."""
    terminal.run_async(_list(server, [kind] if kind else list(KINDS), verbose, as_document))


async def _list(server: ServerTarget, kinds: Sequence[str], verbose: bool, as_document: bool) -> None:
    async with server.started() as running, cli.connect.connected(running) as client:
        found = {kind: await _well_formed(client, KINDS[kind]) for kind in kinds}
    if as_document:
        terminal.out_json({KINDS[kind].key: listed for kind, listed in found.items()})
        return
    cli.show.show_definitions(found, verbose=verbose)
    if not any(found.values()):
        terminal.err(f"{server.shown} offers no {kinds[0]}" if len(kinds) == 1 else f"{server.shown} offers nothing")


async def _well_formed(client: "Client", listed: Listed) -> list[Mapping[str, Any]]:
    found = await definitions(client, listed)
    if found.malformed:
        more = f" (and {len(found.malformed) - 1} more)" if len(found.malformed) > 1 else ""
        terminal.err(f"{listed.method}: {found.malformed[0]}; it is left out{more}", fg="yellow")
    return found.definitions


async def definitions(client: "Client", listed: Listed) -> AllPages:
    """Of all pages; none if the server does not have that. A list without an end is cut, and a line says so."""
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
    terminal.err(f"{listed.method} has no end: what comes after {MAX_PAGES} pages is left out", fg="yellow")
    return found


def _sort(items: Any, found: AllPages) -> None:
    json_type = cli.arguments.json_type
    if not isinstance(items, list):
        found.malformed.append(f"{json_type(items)} in the place of the list")
        return
    for item in items:
        if isinstance(item, dict):
            found.definitions.append(item)
        else:
            number = len(found.definitions) + len(found.malformed) + 1
            found.malformed.append(f"{json_type(item)} in the place of definition {number}")
