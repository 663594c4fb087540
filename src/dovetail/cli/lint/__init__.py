"""`dovetail lint`: checks the definitions of a server for what clients refuse and models misread."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import dovetail
from dovetail import cli
from dovetail import schema as lazy_schema
from dovetail.cli.commands import KINDS, fetch_definitions
from dovetail.cli.given_arguments import as_object, get_text
from dovetail.cli.lint import rules
from dovetail.cli.lint.schemas import check_schemas
from dovetail.cli.lint.skills import check_skills
from dovetail.cli.output import FAILED, align, err, one_line, out, out_json, styled
from dovetail.cli.shared_options import ServerCommand, ServerTarget, server_options
from dovetail.cli.target import is_openapi
from dovetail.errors import SetupError
from dovetail.protocol import types
from dovetail.protocol.revisions import BY_NAME

if TYPE_CHECKING:
    from dovetail.client import Client
    from dovetail.openapi import OpenApi

NEVER = "never"
TOOL_TOKENS = 1_000  # estimated; a definition with more is reported
MAX_SHOWN = 10  # findings of a rule, and rules that `inspect` shows
COLOURS = {rules.ERROR: "red", rules.WARNING: "yellow", rules.NOTE: "blue"}

EXAMPLES = """
\b
Examples:
  dovetail lint server.py
  dovetail lint server.py --fail-on warning        for CI
  dovetail lint server.py --ignore parameter-description,hint-destructive:delete_note
  dovetail lint http://127.0.0.1:8000/mcp --select schema --json
  dovetail lint server.py --portable               how schemas="portable" would change it
  dovetail lint openapi.yaml                       the tools that an OpenAPI document makes
  dovetail lint skills/                            a folder of skills
  dovetail lint --rules                            what is looked for

It ends with 1 if something at or above --fail-on is found. Tokens are an estimate: a quarter of the bytes.
"""


class Catalog(NamedTuple):
    """The definitions of a server, as the server sent them."""

    tools: Sequence[rules.Definition] = ()
    resources: Sequence[rules.Definition] = ()
    templates: Sequence[rules.Definition] = ()
    prompts: Sequence[rules.Definition] = ()
    malformed: Sequence[tuple[str, str]] = ()  # the kind of the list, and a description
    server: str = ""
    skills: Sequence[rules.Finding] = ()  # what was found in them
    objects_only: bool = False  # structured output is an object in the negotiated revision


def _show_rules(ctx: click.Context, _option: click.Parameter, is_given: bool) -> None:
    if is_given:
        out("\n".join(align([(rule.level, name, rule.why) for name, rule in rules.RULES.items()])))
        ctx.exit()


def _choices(_ctx: click.Context, option: click.Parameter, given: Iterable[str]) -> list[rules.RuleChoice]:
    words = [word.strip() for each in given for word in each.split(",") if word.strip()]
    try:
        return [rules.RuleChoice.parse(word) for word in words]
    except KeyError as missing:
        unknown = missing.args[0]
        near = "".join(f"; did you mean {rule}?" for rule in get_close_matches(unknown, rules.RULES, 1))
        raise click.UsageError(f"--{option.name}: there is no rule {unknown}{near or ';'} --rules lists them") from None


@click.command("lint", cls=ServerCommand, epilog=EXAMPLES)
@server_options
@click.option(
    "--fail-on", type=click.Choice([*rules.LEVELS, NEVER]), default=rules.ERROR, show_default=True,
    help="End with 1 if there is one of these, or worse.",
)  # fmt: skip
@click.option("--select", multiple=True, callback=_choices, metavar="RULE", help="Only these rules, or groups of them.")
@click.option(
    "--ignore", multiple=True, callback=_choices, metavar="RULE[:NAME]",
    help="All but these, or not for the tool NAME. Repeat, or use commas.",
)  # fmt: skip
@click.option("--portable", is_flag=True, help="Show what the portable dialect changes, and check the tools in it.")
@click.option("--rules", is_flag=True, is_eager=True, expose_value=False, callback=_show_rules, help="List the rules.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
async def command(
    server: ServerTarget, fail_on: str, select: list[rules.RuleChoice], ignore: list[rules.RuleChoice], portable: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Find what clients and models will stumble over in what the server at TARGET offers."""
    api = _load_api(server.shown) if is_openapi(server.shown) else None
    if api is None:
        async with server.started() as running, cli.connect.connected(running) as client:
            catalog = await fetch_catalog(client)
    else:
        async with dovetail.Client(api) as client:
            catalog = await fetch_catalog(client)
    before, changes = catalog, dict[str, list[str]]()
    if portable:
        catalog, changes = portable_catalog(catalog)
    selected = select or [rules.RuleChoice(rules.RULES)]
    candidates = [found for found in check_catalog(catalog) if rules.is_chosen(found, selected)]
    findings = [found for found in candidates if not rules.is_chosen(found, ignore)]
    if as_json:
        more = {**({"changes": changes} if portable else {}), **(api_report(api) if api else {})}
        out_json(report(catalog, findings) | more)
    else:
        for line in api_lines(api, catalog) if api else ():
            out(line)
        for name, changed in changes.items():
            out("\n".join([styled(one_line(name, 120), bold=True), *(f"  {one_line(line, 300)}" for line in changed)]))
        for line in report_lines(findings):
            out(line)
        if portable:
            err(f"as it is: {token_summary(before)}", dim=True)
        err(token_summary(catalog), dim=True)
        err(summary(findings), bold=True)
    if fail_on != NEVER and rules.at_least(fail_on, findings):
        raise click.exceptions.Exit(FAILED)


def _load_api(path: str) -> "OpenApi":
    try:
        return dovetail.OpenApi(path, base_url="http://localhost")  # nothing is called
    except SetupError as failure:
        raise click.ClickException(str(failure)) from None


def api_report(api: "OpenApi") -> dict[str, Any]:
    """The operations of an OpenAPI document by their tools, and what was cut or left out."""
    return {"operations": {each.name: f"{each.method} {each.path}" for each in api.operations}, "report": api.report}


def api_lines(api: "OpenApi", catalog: Catalog) -> list[str]:
    tokens = {get_text(tool, "name"): f"about {estimate_tokens(tool)} tokens" for tool in catalog.tools}
    rows = [(name, one_line(place, 80), tokens.get(name, "")) for name, place in api_report(api)["operations"].items()]
    return [*align(rows), *(one_line(line, 200) for line in str(api.report).split("\n")), ""]


async def fetch_catalog(client: "Client") -> Catalog:
    found = {kind: await fetch_definitions(client, listed) for kind, listed in KINDS.items()}
    return Catalog(
        **{kind: each.valid for kind, each in found.items()},
        malformed=[(kind, problem) for kind, each in found.items() for problem in each.malformed],
        skills=await check_skills(client),
        server=client.server_info.name if client.server_info else "",
        objects_only=not BY_NAME[client.protocol_version].any_structured_output,
    )


def portable_catalog(catalog: Catalog) -> tuple[Catalog, dict[str, list[str]]]:
    """The tools as `schemas="portable"` shows them, and what it changes, by their names."""
    tools, changes = [], {}
    for tool in catalog.tools:
        schema, changed, note = lazy_schema.portable.portable(as_object(tool.get("inputSchema")))
        described = "\n\n".join(filter(None, (get_text(tool, "description"), note)))
        tools.append({**tool, "inputSchema": schema, "description": described})
        changes[get_text(tool, "name") or "?"] = changed
    return catalog._replace(tools=tools), {name: lines for name, lines in changes.items() if lines}


def check_catalog(catalog: Catalog) -> list[rules.Finding]:
    """The findings without duplicates, the worst first, then in the order of the rules."""
    order = {rule: number for number, rule in enumerate(rules.RULES)}
    found = dict.fromkeys(_findings(catalog))
    return sorted(found, key=lambda finding: (-rules.LEVELS.index(finding.level), order[finding.rule]))


def _findings(catalog: Catalog) -> Iterator[rules.Finding]:
    yield from (rules.Finding("list-malformed", f"all {kind}", problem) for kind, problem in catalog.malformed)
    yield from rules.check_names(catalog.tools, catalog.server)
    yield from rules.check_hints(catalog.tools, catalog.server)
    for tool in catalog.tools:
        place = f"tool {get_text(tool, 'name') or '?'}"
        yield from check_schemas(tool, place, catalog.objects_only)
        yield from rules.check_tool_texts(tool, place)
        if (tokens := estimate_tokens(tool)) > TOOL_TOKENS:
            yield rules.Finding("tool-tokens", place, f"about {tokens} tokens")
    if (count := len(catalog.tools)) > 40:
        yield rules.Finding("tool-count-limit" if count > 128 else "tool-count", "all tools", f"{count} tools")
    if (tokens := sum(map(estimate_tokens, catalog.tools))) > 10_000:
        yield rules.Finding("catalog-tokens", "all tools", f"about {tokens} tokens")
    yield from rules.check_resources(catalog.resources, catalog.templates)
    yield from rules.check_prompts(catalog.prompts)
    yield from catalog.skills


def estimate_tokens(tool: Mapping[str, Any]) -> int:
    try:
        return types.estimate_tokens(tool)
    except (RecursionError, UnicodeEncodeError):
        return TOOL_TOKENS + 1


def report_lines(findings: Sequence[rules.Finding]) -> list[str]:
    """The report: each rule once, with its findings."""
    lines = []
    for name, found in _by_rule(findings).items():
        rule = rules.RULES[name]
        lines.append(f"{_level(name)} {styled(name, bold=True)}: {rule.why}")
        lines += [f"  {_place(finding)}" for finding in found[:MAX_SHOWN]]
        if len(found) > MAX_SHOWN:
            lines.append(f"  … and {len(found) - MAX_SHOWN} more")
        lines.append(styled(f"  fix: {rule.fix}", dim=True))
    return lines


def brief_lines(findings: Sequence[rules.Finding]) -> list[str]:
    """A line for each rule of level warning or error."""
    grouped = _by_rule(rules.at_least(rules.WARNING, findings))
    rows = [(_level(rule), rule, _places(found)) for rule, found in grouped.items()]
    more = [f"… and {len(rows) - MAX_SHOWN} more rules"] if len(rows) > MAX_SHOWN else []
    return align(rows[:MAX_SHOWN]) + more


def _by_rule(findings: Sequence[rules.Finding]) -> dict[str, list[rules.Finding]]:
    grouped: dict[str, list[rules.Finding]] = defaultdict(list)
    for finding in findings:
        grouped[finding.rule].append(finding)
    return grouped


def _level(rule: str) -> str:
    return styled(rules.RULES[rule].level, fg=COLOURS[rules.RULES[rule].level], bold=True)


def _places(found: Sequence[rules.Finding]) -> str:
    shown = ", ".join(one_line(_place(finding), 60) for finding in found[:3])
    return shown + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _place(finding: rules.Finding) -> str:
    where = one_line(finding.place, 120)
    return f"{where}: {one_line(finding.detail, 200)}" if finding.detail else where


def summary(findings: Sequence[rules.Finding]) -> str:
    """The counts in words: `2 errors, 1 warning`."""
    counts = Counter(finding.level for finding in findings)
    levels = [level for level in reversed(rules.LEVELS) if counts[level]]
    return (
        ", ".join(f"{counts[level]} {level}{'' if counts[level] == 1 else 's'}" for level in levels) or "nothing found"
    )


def token_summary(catalog: Catalog) -> str:
    """The tokens of all tools, and the tools that take most."""
    costs = sorted(((estimate_tokens(tool), get_text(tool, "name")) for tool in catalog.tools), reverse=True)
    total = f"{len(costs)} tool{'' if len(costs) == 1 else 's'}, about {sum(each for each, _ in costs)} tokens"
    most = ", ".join(f"{one_line(name, 64)} {each}" for each, name in costs[:5])
    return f"{total}: {most}" + (", …" if len(costs) > 5 else "") if costs else "no tools"


def report(catalog: Catalog, findings: Sequence[rules.Finding]) -> dict[str, Any]:
    counts = Counter(finding.level for finding in findings)
    costs = {get_text(tool, "name"): estimate_tokens(tool) for tool in catalog.tools}
    explained = [(finding._asdict(), rules.RULES[finding.rule]) for finding in findings]
    return {
        "findings": [{**found, "level": rule.level, "why": rule.why, "fix": rule.fix} for found, rule in explained],
        "counts": {f"{level}s": counts[level] for level in reversed(rules.LEVELS)},
        "tokens": {"total": sum(map(estimate_tokens, catalog.tools)), "tools": costs},
    }
