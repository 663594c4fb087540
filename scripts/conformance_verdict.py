"""The verdict on one run of the conformance suite: a list of problems in words, from the files that it wrote.

The rule is stricter than the suite's own: a WARNING or a SKIPPED check counts as much as a FAILURE, every scenario must
have left its checks behind, every fixture must be listed. What may fail stands in a file, and must fail.
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FINE = frozenset({"SUCCESS", "INFO"})
NEVER_EXCUSED = frozenset({"wire-schema-valid"})  # by a scenario that may fail: no message is ever malformed
KINDS = ("capabilities", "tools", "prompts", "resources", "templates")
OTHER_SIDE = {"server": "client", "client": "server"}
_FOLDER = re.compile(r"(?:server-)?(.+)-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z")
_LISTED = re.compile(r"^ +- ([\w./-]+)(.*)$", re.MULTILINE)


class Check(NamedTuple):
    """One thing that the suite looked at, in one scenario."""

    scenario: str
    id: str
    status: str
    message: str = ""

    @property
    def is_fine(self) -> bool:
        return self.status in FINE

    @property
    def name(self) -> str:
        return f"{self.scenario}:{self.id}"

    @property
    def names(self) -> tuple[str, str]:
        """By which it may be excused: with any status, or with this one alone."""
        return self.name, f"{self.name}:{self.status}"

    def __str__(self) -> str:
        return f"{self.status} {self.name} {self.message}".rstrip()


class Expected(NamedTuple):
    """What may fail on one leg, each with its reason: scenarios and "scenario:check" by name, fixtures by kind."""

    failing: Mapping[str, str]
    absent: Mapping[str, Mapping[str, str]]


def read_expected(path: Path, leg: str) -> Expected:
    failing: dict[str, str] = {}
    absent: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for entry in tomllib.loads(path.read_text())["later"]:
        reason = entry["reason"]
        if leg in entry.get("legs", [leg]):
            failing |= dict.fromkeys([*entry.get("scenarios", []), *entry.get("checks", [])], reason)
        for kind in KINDS:
            absent[kind] |= dict.fromkeys(entry.get(kind, []), reason)
    return Expected(failing, absent)


def read_listing(printed: str, side: str = "server") -> set[str]:
    """The scenarios that `list` printed for servers or for clients; those of the other side may stand beside them."""
    other = OTHER_SIDE[side]
    ours = re.sub(rf"^{other.title()} scenarios.*?(?=^\S|\Z)", "", printed, flags=re.MULTILINE | re.DOTALL)
    return {name for name, note in _LISTED.findall(ours) if f"[{other}]" not in note}


def read_checks(folder: Path) -> dict[str, list[Check]]:
    """The checks of every scenario that got as far as writing them."""
    found: dict[str, list[Check]] = {}
    for path in sorted(folder.rglob("checks.json")):
        scenario = scenario_of(path.parent, folder)
        if scenario is not None:
            found.setdefault(scenario, []).extend(_check(scenario, entry) for entry in json.loads(path.read_text()))
    return found


def scenario_of(path: Path, folder: Path) -> str | None:
    """Whose results lie there, in the folder of a run."""
    named = _FOLDER.fullmatch(path.relative_to(folder).as_posix())
    return None if named is None else named[1]


def _check(scenario: str, entry: Mapping[str, Any]) -> Check:
    return Check(scenario, entry["id"], entry["status"], (entry.get("errorMessage") or "")[:300])


def judge_scenarios(wanted: Collection[str], found: Mapping[str, list[Check]], failing: Mapping[str, str]) -> list[str]:
    """Problems of a leg that should have run the wanted scenarios."""
    missing = [f"MISSING {name}: the suite left no checks" for name in sorted(wanted) if not found.get(name)]
    surprising = [f"UNKNOWN {name}: ran, but is not in the list" for name in sorted(set(found) - set(wanted))]
    checks = [check for name in sorted(found) for check in found[name]]
    bad = [check for check in checks if not check.is_fine]
    unexpected = [str(check) for check in bad if not _is_excused(check, failing)]
    failed = {name for check in bad for name in (check.scenario, *check.names)}
    ran = {name for name in wanted if found.get(name)}
    recovered = [
        f"PASSES {name}, though it is listed as failing ({reason})"
        for name, reason in failing.items()
        if name.partition(":")[0] in ran and name not in failed
    ]
    return missing + surprising + unexpected + recovered


def _is_excused(check: Check, failing: Collection[str]) -> bool:
    if any(name in failing for name in check.names):
        return True
    return check.scenario in failing and check.id not in NEVER_EXCUSED


def count_passing(found: Mapping[str, list[Check]]) -> int:
    """How many scenarios pass strictly."""
    return sum(all(check.is_fine for check in checks) for checks in found.values())


def judge_fixtures(
    wanted: Mapping[str, Iterable[str]], found: Mapping[str, Collection[str]], absent: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Problems of a server that should list the wanted fixtures of each kind."""
    problems = []
    for kind in KINDS:
        listed, later = found.get(kind, ()), absent.get(kind, {})
        problems += [f"MISSING {kind}: {n} is not listed" for n in wanted[kind] if n not in listed and n not in later]
        problems += [f"THERE {kind}: {n} is listed, though it is to come ({later[n]})" for n in later if n in listed]
        problems += [f"UNKNOWN {kind}: {n} is to come, but no fixture" for n in later if n not in wanted[kind]]
    return problems
