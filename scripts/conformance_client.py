"""The client's side of the official suite, which runs our program against its own servers, scenario by scenario.

The program is tests/conformance/client_program.py, beside a list of what it can't do yet; the problems of a leg are
returned in words. The suite does not look at how the program ended, so that is judged here: it fails where it has to
refuse, and only there.
"""

import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import conformance_verdict as verdict

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "conformance" / "client_program.py"
EXPECTED = ROOT / "tests" / "conformance" / "client_expected_failures.toml"
TURN = PROGRAM.with_name("client_turn.py")
PROGRAM_MS = 300_000  # all scenarios are started at once, and wait for their turn


class RunSuite(Protocol):
    def __call__(self, *arguments: str, log: Path) -> str: ...


class ClientLeg(NamedTuple):
    """Which scenarios, and how many they are."""

    size: int
    select: tuple[str, ...]

    @property
    def listing(self) -> tuple[str, ...]:
        return self.select if self.select[0] == "--requirements" else ()


LEGS = {
    "client-all": ClientLeg(48, ("--suite", "all")),
    "client-2026-07-28": ClientLeg(39, ("--requirements", "2026-07-28")),
    "client-2025-11-25": ClientLeg(25, ("--requirements", "2025-11-25")),
}


def judge(name: str, folder: Path, run_suite: RunSuite) -> tuple[list[str], dict[str, list[verdict.Check]]]:
    """Run a leg; what the suite writes goes into the folder."""
    leg = LEGS[name]
    listed = verdict.read_listing(run_suite("list", "--client", *leg.listing, log=folder / "list.log"), "client")
    run_suite("client", *_program(folder), *leg.select, "-o", str(folder), log=folder / "suite.log")
    problems, found = problems_of(listed, folder, name)
    if len(listed) != leg.size:
        problems.append(f"the suite lists {len(listed)} scenarios, not {leg.size}: see {folder / 'list.log'}")
    return problems, found


def judge_scenario(scenario: str, revision: str | None, folder: Path, run_suite: RunSuite) -> list[str]:
    """Run one scenario; those of extensions have no revision."""
    arguments = ("--scenario", scenario, *(("--spec-version", revision) if revision else ()))
    run_suite("client", *_program(folder), *arguments, "-o", str(folder), log=folder / "suite.log")
    return problems_of({scenario}, folder, f"client-{revision or 'all'}")[0]


def _program(folder: Path) -> tuple[str, ...]:
    return "--command", f"{sys.executable} {TURN} {folder} {PROGRAM}", "--timeout", str(PROGRAM_MS)


def problems_of(wanted: Collection[str], folder: Path, leg: str) -> tuple[list[str], dict[str, list[verdict.Check]]]:
    found = verdict.read_checks(folder)
    expected = verdict.read_expected(EXPECTED, leg)
    refuses = set(tomllib.loads(EXPECTED.read_text())["refuses"])
    endings = _judge_endings(_endings(folder), refuses, set(expected.failing))
    return verdict.judge_scenarios(wanted, found, expected.failing) + endings, found


def _endings(folder: Path) -> dict[str, str]:
    """What each program wrote that ended with an exception, by scenario."""
    said = {verdict.scenario_of(path.parent, folder): path.read_text() for path in folder.rglob("stderr.txt")}
    return {name: text for name, text in said.items() if name is not None and "Traceback" in text}


def _judge_endings(failed: Mapping[str, str], refuses: Collection[str], excused: Collection[str]) -> list[str]:
    return [
        f"FAILED {name}: the program ended with {text.strip().splitlines()[-1][:300]}"
        for name, text in sorted(failed.items())
        if name not in refuses and name not in excused
    ]
