"""The commands call, read, prompt, complete and list: a request to a server, and its result on stdout."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dovetail import cli
from dovetail.cli import output as terminal
from dovetail.cli import shared_options as options
from dovetail.cli.shared_options import InteractionOptions, ServerCommand, ServerTarget
from dovetail.errors import INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, URL_ELICITATION_REQUIRED, ServerError

if TYPE_CHECKING:
    from dovetail.cli.given_arguments import GivenArguments
    from dovetail.client import CallToolResult, Client
    from dovetail.protocol.types import ToolDefinition

MAX_PAGES = 1_000  # of a list

json_option = click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
output_option = click.option(
    "--output", "-o", metavar="PATH", help="Save what is no text: to a file, or into a folder."
)

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
@options.server_options
@click.argument("tool", metavar="TOOL")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--args", "document", metavar="JSON", help="All arguments, as JSON, @file, or - for stdin; sent unchecked."
)
@click.option("--yes", "-y", is_flag=True, help="Call a tool that is marked destructive without asking.")
@click.option("--background", is_flag=True, help="Do not wait for a call that becomes a task: print its id.")
@output_option
@json_option
@options.interaction_options
@options.call_arguments
async def call(
    server: ServerTarget, tool: str, given: "GivenArguments", interaction: InteractionOptions, yes: bool,
    background: bool, **how: Any,
) -> None:  # fmt: skip
    """Call TOOL of the server at TARGET: a URL, a Python program, mcp.json:name, or a command after `--`.

    Progress is shown as a bar, and what the server asks is asked here.
    """
    if background and not server.is_url:
        raise click.UsageError("--background: only for a URL; the tasks of a program end with it")
    async with server.started() as running, cli.connect.interactive_client(running, interaction) as (client, progress):
        cli.connect.require_capability(client, "tools", server)
        definition = cli.connect.find_by_name(tool, await _known_tools(client, tool), "tool")
        arguments = given.typed(definition.input_schema, tool)
        if not yes:
            await _confirm_destructive(definition, arguments, is_quiet=interaction.is_quiet)
        try:
            task = await client.start_tool(tool, arguments, progress_handler=progress.show)
            if background and task.id is not None:
                cli.task.show_started(task, server, as_json=how["as_json"])
                return
            async with task.or_cancel():
                result = await cli.task.follow(task, progress)
        except ServerError as refusal:
            if refusal.code != URL_ELICITATION_REQUIRED:
                raise
            raise terminal.CommandExit(str(refusal), hint=_pages_to_open(refusal.data)) from None
        progress.clear()
        show_call(result, **how)


async def _known_tools(client: "Client", wanted: str) -> "list[ToolDefinition]":
    """The tools of the list, and if the wanted one is none of them, also those that a tool search finds."""
    tools = list(await client.list_tools())
    by_name = {tool.name: tool for tool in tools}
    search = by_name.get("search_tools")
    if wanted in by_name or "call_tool" not in by_name or search is None or not search.hints.read_only:
        return tools
    found = await client.call_tool("search_tools", {"query": wanted, "limit": 20}, raise_on_error=False)
    return tools + cli.connect.read_found_tools(found.structured)


async def _confirm_destructive(tool: "ToolDefinition", arguments: dict[str, Any], *, is_quiet: bool) -> None:
    """Ask before a tool that is annotated as destructive is called; without that annotation, only print a remark."""
    name = terminal.one_line(tool.name)
    if tool.annotations is None or not tool.annotations.destructive_hint:
        if tool.hints.destructive and not is_quiet:
            terminal.err(f"{name} does not say whether it is destructive", dim=True)
        return
    if not terminal.is_interactive():
        message = f"{name} is marked destructive, and there is no terminal to ask for a yes"
        raise terminal.CommandExit(message, terminal.DECLINED, "--yes calls it all the same")
    how = "these arguments:" if arguments else "no arguments."
    terminal.err(f"{name} is marked destructive. It would be called with {how}", fg="yellow")
    shown = {key: terminal.one_line(terminal.to_json(value, indent=False), 300) for key, value in arguments.items()}
    for line in terminal.align([(terminal.one_line(key), text) for key, text in shown.items()]):
        terminal.err(f"  {line}", fg="yellow")
    if not await cli.ask.confirm("Call it?"):
        raise terminal.CommandExit(f"{name} was not called", terminal.DECLINED)


def _pages_to_open(data: Any) -> str:
    """The pages of a URL-elicitation error of 2025-11-25, as advice."""
    listed = data.get("elicitations") if isinstance(data, dict) else None
    pages = [str(page.get("url")) for page in listed if isinstance(page, dict)] if isinstance(listed, list) else []
    return "\n".join(["Open this first, and call it again:", *(terminal.one_line(page, 2_000) for page in pages)])


def show_call(result: "CallToolResult", output: str | None, as_json: bool) -> None:
    if as_json:
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
        message = result.text or "The tool failed and did not say why"
        raise terminal.CommandExit("the tool failed" if as_json else message)


READ_EXAMPLES = """
\b
Examples:
  dovetail read server.py notes://all --json
  dovetail read server.py logo://small --output logo.png
  dovetail read server.py logo://small > logo.png
  dovetail read http://127.0.0.1:8000/mcp notes://all
"""


@click.command("read", cls=ServerCommand, epilog=READ_EXAMPLES)
@options.server_options
@click.argument("uri", metavar="URI")
@click.option("--output", "-o", metavar="PATH", help="Save it: to a file, or into a folder.")
@json_option
@options.interaction_options
async def read(
    server: ServerTarget, uri: str, interaction: InteractionOptions, output: str | None, as_json: bool
) -> None:
    """Read the resource URI of the server at TARGET.

    What is piped into a file or a program is just what came, bytes or text.
    """
    async with server.started() as running, cli.connect.interactive_client(running, interaction) as (client, progress):
        cli.connect.require_capability(client, "resources", server)
        try:
            contents = await client.read_resource(uri)
        except ServerError as refusal:
            if refusal.code not in (RESOURCE_NOT_FOUND, INVALID_PARAMS):  # the code depends on the revision
                raise
            hint = "`dovetail list` shows which resources there are"
            raise terminal.CommandExit(str(refusal), hint=hint) from None
        progress.clear()
        if as_json:
            terminal.out_json({"contents": contents})
        else:
            cli.show.show(map(cli.show.resource_piece, contents), output, exact=True)


PROMPT_EXAMPLES = """
\b
Examples:
  dovetail prompt server.py greet name=Ada --json
  dovetail prompt server.py greet name=@notes.txt
  dovetail prompt http://127.0.0.1:8000/mcp greet name=Ada
"""


@click.command("prompt", cls=ServerCommand, epilog=PROMPT_EXAMPLES)
@options.server_options
@click.argument("name", metavar="NAME")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@output_option
@json_option
@options.interaction_options
@options.call_arguments
async def prompt(
    server: ServerTarget,
    name: str,
    given: "GivenArguments",
    interaction: InteractionOptions,
    output: Any,
    as_json: bool,
) -> None:
    """Get the prompt NAME of the server at TARGET. All arguments are text; KEY=@FILE takes that of a file."""
    async with server.started() as running, cli.connect.interactive_client(running, interaction) as (client, progress):
        cli.connect.require_capability(client, "prompts", server)
        definition = cli.connect.find_by_name(name, await client.list_prompts(), "prompt")
        allowed = {argument.name: argument.required for argument in definition.arguments or ()}
        result = await client.get_prompt(name, given.texts(allowed, name))
        progress.clear()
        if as_json:
            description = {"description": result.description} if result.description is not None else {}
            terminal.out_json({**description, "messages": result.messages})
            return
        for number, message in enumerate(result.messages):
            terminal.out(("\n" if number else "") + terminal.styled(f"{message.role}:", bold=True))
            piece = cli.show.content_piece(message.content)
            cli.show.show([piece], output if isinstance(piece, cli.show.Binary) else None)


COMPLETE_EXAMPLES = """
\b
Examples:
  dovetail complete server.py prompt:greet name A
  dovetail complete server.py tool:add a 1 --json
  dovetail complete server.py 'notes://{shop}/{day}' day --with shop=Rome
  dovetail complete http://127.0.0.1:8000/mcp prompt:greet name A
"""


@click.command("complete", cls=ServerCommand, epilog=COMPLETE_EXAMPLES)
@options.server_options
@click.argument("reference", metavar="prompt:NAME|tool:NAME|URI-TEMPLATE")
@click.argument("argument")
@click.argument("value", default="")
@click.option("--with", "arguments", multiple=True, metavar="KEY=VALUE", help="An argument that is filled in already.")
@json_option
@options.call_arguments
async def complete(
    server: ServerTarget, reference: str, argument: str, value: str, given: "GivenArguments", as_json: bool
) -> None:
    """Ask the server at TARGET what an ARGUMENT that begins with VALUE could be."""
    kind, colon, name = reference.partition(":")
    if not colon and "{" not in reference:
        ways = f"write prompt:{reference} or tool:{reference}, or a template such as notes://{{name}}"
        raise click.UsageError(f"{reference}: {ways}")
    owner: dict[str, Any] = {kind: name} if kind in ("prompt", "tool") else {"resource": reference}
    async with server.started() as running, cli.connect.connected(running) as client:
        cli.connect.require_capability(client, "completions", server)
        found = await client.complete(argument=argument, value=value, context=given.texts() or None, **owner)
    if as_json:
        terminal.out_json({"completion": found})
        return
    for suggestion in found.values:
        terminal.out(terminal.one_line(suggestion, 2_000))
    if not found.values:
        terminal.err("no suggestions", dim=True)
    if found.has_more or (found.total or 0) > len(found.values):
        terminal.err(f"… of {found.total}" if found.total else "… and more", dim=True)


LIST_EXAMPLES = """
\b
Examples:
  dovetail list server.py tools -v          its tools, with their schemas
  dovetail list server.py --json
  dovetail list mcp.json:shop               of a server that an mcp.json names
  dovetail list -- python server.py         of a server that any command starts
"""


class ListMethod(NamedTuple):
    """A method that lists definitions."""

    capability: str
    method: str
    key: str  # in the result


class Definitions(NamedTuple):
    """What a list method returned on all pages."""

    valid: list[Mapping[str, Any]]
    malformed: list[str]  # a description of each item that is no object


KINDS = {
    "tools": ListMethod("tools", "tools/list", "tools"),
    "resources": ListMethod("resources", "resources/list", "resources"),
    "templates": ListMethod("resources", "resources/templates/list", "resourceTemplates"),
    "prompts": ListMethod("prompts", "prompts/list", "prompts"),
}


@click.command("list", cls=ServerCommand, epilog=LIST_EXAMPLES)
@options.server_options
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@click.option("--verbose", "-v", is_flag=True, help="Show whole descriptions, and schemas.")
@click.option("--json", "as_json", is_flag=True, help="Print the definitions as JSON, as they came.")
async def list_(server: ServerTarget, kind: str | None, verbose: bool, as_json: bool) -> None:
    """List what the server at TARGET offers: a URL, a Python program, mcp.json:name, or a command after `--`."""
    found = {}
    async with server.started() as running, cli.connect.connected(running) as client:
        for each in [kind] if kind else KINDS:
            found[each], malformed = await fetch_definitions(client, KINDS[each])
            if malformed:
                more = f" (and {len(malformed) - 1} more)" if len(malformed) > 1 else ""
                terminal.err(f"{KINDS[each].method}: {malformed[0]}; it is left out{more}", fg="yellow")
    if as_json:
        terminal.out_json({KINDS[each].key: listed for each, listed in found.items()})
        return
    cli.show.show_definitions(found, verbose=verbose)
    if not any(found.values()):
        terminal.err(f"{server.shown} offers {f'no {kind}' if kind else 'nothing'}")


async def fetch_definitions(client: "Client", listed: ListMethod) -> Definitions:
    """The definitions of all pages; none without the capability. An endless list is cut, with a line on stderr."""
    found = Definitions([], [])
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
        _add_page(page.get(listed.key), found)
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            return found
    terminal.err(f"{listed.method} has no end: what comes after {MAX_PAGES} pages is left out", fg="yellow")
    return found


def _add_page(items: Any, found: Definitions) -> None:
    json_type = cli.given_arguments.json_type
    if not isinstance(items, list):
        found.malformed.append(f"{json_type(items)} in the place of the list")
        return
    for item in items:
        if isinstance(item, dict):
            found.valid.append(item)
        else:
            number = len(found.valid) + len(found.malformed) + 1
            found.malformed.append(f"{json_type(item)} in the place of definition {number}")
