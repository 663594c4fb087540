"""Findings come in; lines for a person, or a document for a machine, go out."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from dovetail.cli.linting.linter import Catalogue, tokens
from dovetail.cli.linting.names import text_of
from dovetail.cli.linting.rules import ERROR, LEVELS, NOTE, RULES, WARNING, Finding
from dovetail.cli.terminal import in_line, styled

MAX_PLACES = 10  # that are shown of each rule
MAX_COSTS = 5  # tools whose cost is shown
COLOURS = {ERROR: "red", WARNING: "yellow", NOTE: "blue"}
PLURALS = {ERROR: "errors", WARNING: "warnings", NOTE: "notes"}


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """Each rule once, with its places."""
    grouped: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        grouped[finding.rule].append(finding)
    lines = []
    for rule, found in grouped.items():
        told = RULES[rule]
        level = styled(told.level, fg=COLOURS[told.level], bold=True)
        lines.append(f"{level} {styled(rule, bold=True)}: {told.why}")
        lines += [f"  {_place(finding)}" for finding in found[:MAX_PLACES]]
        if len(found) > MAX_PLACES:
            lines.append(f"  … and {len(found) - MAX_PLACES} more")
        lines.append(styled(f"  fix: {told.fix}", dim=True))
    return lines


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


def document(catalogue: Catalogue, findings: Sequence[Finding]) -> dict[str, Any]:
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


def table_of_rules() -> list[list[str]]:
    return [[told.level, rule, told.why] for rule, told in RULES.items()]
