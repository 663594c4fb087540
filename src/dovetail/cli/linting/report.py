"""Findings come in; lines for a person, or a document for a machine, go out."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from dovetail.cli.linting.linter import Catalogue, tokens
from dovetail.cli.linting.names import text_of
from dovetail.cli.linting.rules import ERROR, LEVELS, NOTE, RULES, WARNING, Finding, at_least
from dovetail.cli.terminal import aligned, in_line, styled

MAX_PLACES = 10  # that are shown of each rule
MAX_RULES = 10  # and places of each, where it is told in short
MAX_BRIEF_PLACES = 3
MAX_COSTS = 5  # tools whose cost is shown
COLOURS = {ERROR: "red", WARNING: "yellow", NOTE: "blue"}
PLURALS = {ERROR: "errors", WARNING: "warnings", NOTE: "notes"}


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
    shown = ", ".join(in_line(_place(finding), 60) for finding in found[:MAX_BRIEF_PLACES])
    return shown + (f" and {len(found) - MAX_BRIEF_PLACES} more" if len(found) > MAX_BRIEF_PLACES else "")


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
