"""`dovetail lint`: what clients refuse, and models stumble over, in the definitions of a server."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dovetail import cli
from dovetail.cli.arguments import text_of
from dovetail.cli.commands import KINDS, definitions
from dovetail.cli.lint.rules import (
    ERROR,
    LEVELS,
    NOTE,
    RULES,
    WARNING,
    Definition,
    Finding,
    RuleChoice,
    at_least,
    findings_of_hints,
    findings_of_names,
    findings_of_prompts,
    findings_of_resources,
    findings_of_tool_texts,
    is_chosen,
)
from dovetail.cli.lint.schemas import findings_of_schemas
from dovetail.cli.options import ServerCommand, ServerTarget, on_server
from dovetail.cli.output import FAILED, aligned, finish, in_line, out, out_json, styled, tell
from dovetail.protocol.revisions import BY_NAME

if TYPE_CHECKING:
    from dovetail.client import Client

NEVER = "never"
BYTES_PER_TOKEN = 4  # an estimate: English prose and JSON come to between three and five
MANY_TOOLS, MOST_TOOLS = 40, 128
TOOL_TOKENS, ALL_TOKENS = 1_000, 10_000
MAX_PLACES = 10  # that are shown of each rule
MAX_RULES = 10  # that `inspect` shows
MAX_COSTS = 5  # tools whose cost is shown
COLOURS = {ERROR: "red", WARNING: "yellow", NOTE: "blue"}
PLURALS = {ERROR: "errors", WARNING: "warnings", NOTE: "notes"}

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


class Catalogue(NamedTuple):
    """What a server lists, as it came over the wire."""

    tools: Sequence[Definition] = ()
    resources: Sequence[Definition] = ()
    templates: Sequence[Definition] = ()
    prompts: Sequence[Definition] = ()
    malformed: Sequence[tuple[str, str]] = ()  # what is no definition: the kind that was asked for, and words
    server: str = ""  # its name
    objects_only: bool = False  # it was listed in a revision whose results are objects


def _show_rules(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        for line in aligned([(told.level, rule, told.why) for rule, told in RULES.items()]):
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
    server: ServerTarget, fail_on: str, select: list[RuleChoice], ignore: list[RuleChoice], as_document: bool
) -> None:
    """Find what clients and models will stumble over in what the server at TARGET offers."""
    catalogue = finish(_gathered(server))
    wanted = select or [RuleChoice(RULES)]
    findings = [found for found in findings_of(catalogue) if is_chosen(found, wanted) and not is_chosen(found, ignore)]
    if as_document:
        out_json(report(catalogue, findings))
    else:
        _show(catalogue, findings)
    if fail_on != NEVER and at_least(fail_on, findings):
        raise click.exceptions.Exit(FAILED)


async def _gathered(server: ServerTarget) -> Catalogue:
    async with server.started() as running, cli.connect.connected(running) as client:
        return await catalogue_of(client)


def _show(catalogue: Catalogue, findings: list[Finding]) -> None:
    for line in lines_of(findings):
        out(line)
    tell(cost(catalogue), dim=True)
    tell(summary(findings), bold=True)


async def catalogue_of(client: "Client") -> Catalogue:
    """All that the server of a connected client lists."""
    found = {kind: await definitions(client, listed) for kind, listed in KINDS.items()}
    return Catalogue(
        **{kind: each.definitions for kind, each in found.items()},
        malformed=[(kind, words) for kind, each in found.items() for words in each.malformed],
        server=client.server_info.name if client.server_info else "",
        objects_only=not BY_NAME[client.protocol_version].any_structured_output,
    )


def findings_of(catalogue: Catalogue) -> list[Finding]:
    """All findings, the worst first, and in the order of the table."""
    order = {rule: number for number, rule in enumerate(RULES)}
    found = dict.fromkeys(_findings(catalogue))  # each once
    return sorted(found, key=lambda finding: (-LEVELS.index(finding.level), order[finding.rule]))


def _findings(catalogue: Catalogue) -> Iterator[Finding]:
    yield from (Finding("list-malformed", f"all {kind}", words) for kind, words in catalogue.malformed)
    yield from findings_of_names(catalogue.tools, catalogue.server)
    yield from findings_of_hints(catalogue.tools, catalogue.server)
    for tool in catalogue.tools:
        place = f"tool {text_of(tool, 'name') or '?'}"
        yield from findings_of_schemas(tool, place, catalogue.objects_only)
        yield from findings_of_tool_texts(tool, place)
        if (cost := tokens(tool)) > TOOL_TOKENS:
            yield Finding("tool-tokens", place, f"about {cost} tokens")
    yield from _sizes(catalogue.tools)
    yield from findings_of_resources(catalogue.resources, catalogue.templates)
    yield from findings_of_prompts(catalogue.prompts)


def _sizes(tools: Sequence[Definition]) -> Iterator[Finding]:
    if len(tools) > MOST_TOOLS:
        yield Finding("tool-count-limit", "all tools", f"{len(tools)} tools")
    elif len(tools) > MANY_TOOLS:
        yield Finding("tool-count", "all tools", f"{len(tools)} tools")
    if (cost := sum(map(tokens, tools))) > ALL_TOKENS:
        yield Finding("catalogue-tokens", "all tools", f"about {cost} tokens")


def tokens(tool: Mapping[str, Any]) -> int:
    """About how much of a conversation it takes: what models are shown of it, as JSON, by its bytes."""
    shown = {key: tool[key] for key in ("name", "description", "inputSchema") if key in tool}
    try:
        text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return TOOL_TOKENS + 1  # more than anybody reads
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


# ── the report ──


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """Each rule once, with its places."""
    lines = []
    for rule, found in _by_rule(findings).items():
        told = RULES[rule]
        lines.append(f"{_level(rule)} {styled(rule, bold=True)}: {told.why}")
        lines += [f"  {_place(finding)}" for finding in found[:MAX_PLACES]]
        if len(found) > MAX_PLACES:
            lines.append(f"  … and {len(found) - MAX_PLACES} more")
        lines.append(styled(f"  fix: {told.fix}", dim=True))
    return lines


def brief(findings: Sequence[Finding]) -> list[str]:
    """A line for each rule that is more than a note."""
    grouped = _by_rule(at_least(WARNING, findings))
    rows = [(_level(rule), rule, _places(found)) for rule, found in grouped.items()]
    left_out = [f"… and {len(rows) - MAX_RULES} more rules"] if len(rows) > MAX_RULES else []
    return aligned(rows[:MAX_RULES]) + left_out


def _by_rule(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        grouped[finding.rule].append(finding)
    return grouped


def _level(rule: str) -> str:
    return styled(RULES[rule].level, fg=COLOURS[RULES[rule].level], bold=True)


def _places(found: Sequence[Finding]) -> str:
    shown = ", ".join(in_line(_place(finding), 60) for finding in found[:3])
    return shown + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _place(finding: Finding) -> str:
    where = in_line(finding.place, 120)
    return f"{where}: {in_line(finding.detail, 200)}" if finding.detail else where


def summary(findings: Sequence[Finding]) -> str:
    """`2 errors, 1 warning`."""
    counts = Counter(finding.level for finding in findings)
    shown = [
        f"{counts[level]} {level if counts[level] == 1 else PLURALS[level]}"
        for level in reversed(LEVELS)
        if counts[level]
    ]
    return ", ".join(shown) or "nothing found"


def cost(catalogue: Catalogue) -> str:
    """What the tools take of each conversation, and which take most."""
    costs = sorted(((tokens(tool), text_of(tool, "name")) for tool in catalogue.tools), reverse=True)
    total = f"{len(costs)} tool{'' if len(costs) == 1 else 's'}, about {sum(each for each, _ in costs)} tokens"
    most = ", ".join(f"{in_line(name, 64)} {each}" for each, name in costs[:MAX_COSTS])
    return f"{total}: {most}" + (", …" if len(costs) > MAX_COSTS else "") if costs else "no tools"


def report(catalogue: Catalogue, findings: Sequence[Finding]) -> dict[str, Any]:
    counts = Counter(finding.level for finding in findings)
    costs = {text_of(tool, "name"): tokens(tool) for tool in catalogue.tools}
    return {
        "findings": [
            {
                **finding._asdict(),
                "level": finding.level,
                "why": RULES[finding.rule].why,
                "fix": RULES[finding.rule].fix,
            }
            for finding in findings
        ],
        "counts": {PLURALS[level]: counts[level] for level in reversed(LEVELS)},
        "tokens": {"total": sum(map(tokens, catalogue.tools)), "tools": costs},
    }
