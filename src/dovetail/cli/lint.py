"""`dovetail lint`: a server comes in; what clients refuse and models stumble over in its definitions goes out."""

from collections.abc import Iterable
from difflib import get_close_matches

import click

from dovetail.cli.exits import FAILED, finish
from dovetail.cli.linting.gathering import catalogue_of
from dovetail.cli.linting.linter import Catalogue, lint
from dovetail.cli.linting.report import cost, document, lines_of, summary, table_of_rules
from dovetail.cli.linting.rules import ERROR, LEVELS, RULES, Finding, RuleChoice, at_least, is_chosen
from dovetail.cli.reaching import ServerAt, ServerCommand, on_server
from dovetail.cli.terminal import aligned, out, out_json, tell

NEVER = "never"

EXAMPLES = """
\b
Examples:
  dovetail lint server.py
  dovetail lint server.py --fail-on warning        for CI
  dovetail lint server.py --ignore parameter-description,hint
  dovetail lint server.py --ignore hint-destructive:delete_note
  dovetail lint http://127.0.0.1:8000/mcp --select schema --json
  dovetail lint -- npx -y @modelcontextprotocol/server-everything
  dovetail lint --rules                            what is looked for

It ends with 1 if something at or above --fail-on is found. Tokens are an estimate: a quarter of the bytes.
"""


def _show_rules(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        for line in aligned(table_of_rules()):
            out(line)
        ctx.exit()


def _choices(_ctx: click.Context, option: click.Parameter, given: Iterable[str]) -> list[RuleChoice]:
    words = [word.strip() for each in given for word in each.split(",") if word.strip()]
    try:
        return [RuleChoice.of(word) for word in words]
    except KeyError as missing:
        unknown = missing.args[0]
        meant = "".join(f"; did you mean {rule}?" for rule in get_close_matches(unknown, RULES, 1))
        raise click.UsageError(
            f"--{option.name}: there is no rule {unknown}{meant or ';'} --rules lists them"
        ) from None


@click.command("lint", cls=ServerCommand, epilog=EXAMPLES)
@on_server
@click.option(
    "--fail-on", type=click.Choice([*LEVELS, NEVER]), default=ERROR, show_default=True,
    help="End with 1 if there is one of these, or worse.",
)  # fmt: skip
@click.option("--select", multiple=True, callback=_choices, metavar="RULE", help="Only these rules, or groups of them.")
@click.option(
    "--ignore", multiple=True, callback=_choices, metavar="RULE[:NAME]",
    help="All but these, or not for the tool NAME. Repeat, or use commas.",
)  # fmt: skip
@click.option("--rules", is_flag=True, is_eager=True, expose_value=False, callback=_show_rules, help="List the rules.")
@click.option("--json", "as_document", is_flag=True, help="Print the findings as JSON.")
def command(
    server: ServerAt, fail_on: str, select: list[RuleChoice], ignore: list[RuleChoice], as_document: bool
) -> None:
    """Find what clients and models will stumble over in what the server at TARGET offers."""
    with server.starting():
        catalogue = finish(_gathered(server))
    wanted = select or [RuleChoice(RULES)]
    findings = [found for found in lint(catalogue) if is_chosen(found, wanted) and not is_chosen(found, ignore)]
    if as_document:
        out_json(document(catalogue, findings))
    else:
        _show(catalogue, findings)
    if fail_on != NEVER and at_least(fail_on, findings):
        raise click.exceptions.Exit(FAILED)


async def _gathered(server: ServerAt) -> Catalogue:
    async with server.connect() as client:
        return await catalogue_of(client)


def _show(catalogue: Catalogue, findings: list[Finding]) -> None:
    for line in lines_of(findings):
        out(line)
    tell(cost(catalogue), dim=True)
    tell(summary(findings), bold=True)
