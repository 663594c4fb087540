"""One call of a tool: its name and arguments come in as words; the result is shown, and how it ended goes out."""

from typing import Any

from msgspec import to_builtins

from dovetail.cli import showing
from dovetail.cli.arguments import GivenArguments
from dovetail.cli.catalogue import hints_of
from dovetail.cli.exits import DECLINED, FAILED, Ending
from dovetail.cli.keyboard import ask, confirm
from dovetail.cli.meanwhile import Meanwhile
from dovetail.cli.reaching import ServerAt
from dovetail.cli.talking import Talk, named, require, talking
from dovetail.cli.terminal import aligned, as_json, can_ask, in_line, out_json, plain, tell
from dovetail.client import CallResult, ElicitQuestion
from dovetail.client.transports.url import page_url
from dovetail.errors import URL_ELICITATION_REQUIRED, ServerError
from dovetail.protocol.types import ToolDefinition

LONGEST_VALUE = 300  # columns of an argument that are shown before a yes


async def call_tool(
    server: ServerAt,
    name: str,
    given: GivenArguments,
    meanwhile: Meanwhile,
    *,
    is_confirmed: bool,
    output: str | None,
    as_document: bool,
) -> None:
    async with talking(server, meanwhile) as talk:
        require(talk.client, "tools", server.shown)
        tool = named(name, await talk.client.list_tools(), "tool")
        arguments = given.typed(tool.input_schema, name)
        if not is_confirmed:
            await _ask_before(tool, arguments, is_quiet=meanwhile.is_quiet)
        result = await _result(talk, tool, arguments)
        talk.line.clear()
        _show(result, output, as_document)


async def _ask_before(tool: ToolDefinition, arguments: dict[str, Any], *, is_quiet: bool) -> None:
    """A tool that its server calls destructive runs only after a yes. One that says nothing may be so, too."""
    if tool.annotations is None or not tool.annotations.destructive_hint:
        if tool.hints.destructive and not is_quiet:
            told = "does not say whether it is" if hints_of(to_builtins(tool))[1] else "is not annotated: it may be"
            tell(f"{in_line(tool.name)} {told} destructive", dim=True)
        return
    if not can_ask():
        raise Ending(
            f"{tool.name} is marked destructive, and nobody is here to agree", DECLINED, "--yes calls it all the same"
        )
    words = "these arguments:" if arguments else "no arguments."
    tell(f"{in_line(tool.name)} is marked destructive. It would be called with {words}", fg="yellow")
    for line in aligned([(in_line(name), _shortened(value)) for name, value in arguments.items()]):
        tell(f"  {line}", fg="yellow")
    if not await confirm("Call it?"):
        raise Ending(f"{tool.name} was not called", DECLINED)


def _shortened(value: Any) -> str:
    whole = as_json(value, indent=False)
    shown = in_line(whole, LONGEST_VALUE)
    return shown if shown == whole else f"{shown} ({len(whole):,} characters)"


async def _result(talk: Talk, tool: ToolDefinition, arguments: dict[str, Any]) -> CallResult:
    try:
        return await _once(talk, tool, arguments)
    except ServerError as refusal:
        if refusal.code != URL_ELICITATION_REQUIRED or not await _visited(talk, refusal):
            raise
    return await _once(talk, tool, arguments)


async def _once(talk: Talk, tool: ToolDefinition, arguments: dict[str, Any]) -> CallResult:
    return await talk.client.call_tool(tool.name, arguments, progress_handler=talk.line.show, raise_on_error=False)


async def _visited(talk: Talk, refusal: ServerError) -> bool:
    """Whether the person has been at all the pages that a server of 2025-11-25 wants to be opened first."""
    listed = refusal.data.get("elicitations") if isinstance(refusal.data, dict) else None
    pages = [page for page in listed if isinstance(page, dict)] if isinstance(listed, list) else []
    for page in pages:
        url, message = page.get("url"), page.get("message")
        if not isinstance(url, str) or (url := page_url(url)) is None:
            return False
        question = ElicitQuestion(message=str(message or "open a page first"), mode="url", url=url)
        if (await talk.respondent.elicit(question)).action != "accept":
            return False
    with talk.line.held():
        return bool(pages) and await ask("Press Enter when you are done there: ") is not None


def _show(result: CallResult, output: str | None, as_document: bool) -> None:
    if as_document:
        out_json(_document(result))
    elif not result.is_error:
        showing.show(showing.pieces_of_result(result), output)
    if result.is_error:
        words = result.text or "The tool failed and did not say why"
        raise Ending("the tool failed" if as_document else plain(words), FAILED)


def _document(result: CallResult) -> dict[str, Any]:
    """As it came over the wire."""
    document: dict[str, Any] = {"content": result.content}
    if result.structured is not None:
        document["structuredContent"] = result.structured
    if result.is_error:
        document["isError"] = True
    if result.meta:
        document["_meta"] = result.meta
    return document
