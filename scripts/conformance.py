"""`make conformance`: the official suite against servers/conformance and our client, under a strict rule.

The suite is the one in .cache/node. It prints a line for each leg and all problems at the end; the exit code is 1 if
there are any. What the suite has written stays in build/conformance/<leg>.
"""

import argparse
import collections
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import conformance_client
import conformance_fixtures
import conformance_verdict as verdict
import node_tools
from server_process import NotListening, serving

ROOT = Path(__file__).parent.parent
SERVER = ROOT / "servers" / "conformance"
OUTPUT = ROOT / "build" / "conformance"
FIXTURES = "fixtures"  # the leg that asks the server itself what it lists
NOTHING = "has no such scenario"
SUITE_SECONDS = 400


class Leg(NamedTuple):
    """One run of the suite: which scenarios, how many they are, at which revision (None: each at its own)."""

    name: str
    size: int
    select: tuple[str, ...]
    revision: str | None = None

    @property
    def listing(self) -> tuple[str, ...]:
        """The same selection in the words of `list`, which knows no suites."""
        return self.select if self.select[0] == "--requirements" else self.select[2:]

    def only(self, scenario: str) -> "Leg":
        version = ("--spec-version", self.revision) if self.revision else ()
        return self._replace(size=1, select=("--scenario", scenario, *version))


def _requirements(revision: str, size: int) -> Leg:
    return Leg(f"requirements-{revision}", size, ("--requirements", revision), revision)


def _all_at(revision: str, size: int) -> Leg:
    return Leg(f"all-{revision}", size, ("--suite", "all", "--spec-version", revision), revision)


LEGS = {
    leg.name: leg
    for leg in (
        Leg("all", 65, ("--suite", "all")),
        _requirements("2026-07-28", 50),
        _all_at("2026-07-28", 40),
        _requirements("2025-11-25", 33),
        _all_at("2025-11-25", 33),
        _all_at("2025-06-18", 27),
    )
}
NAMES = [FIXTURES, *LEGS]
CLIENT_NAMES = list(conformance_client.LEGS)


class Result(NamedTuple):
    leg: str
    problems: list[str]
    summary: str
    seconds: float

    def __str__(self) -> str:
        ending = f"{len(self.problems)} PROBLEMS" if self.problems else "as expected"
        return f"{self.leg:<24} {self.summary}, {self.seconds:.1f} s: {ending}"


def run_leg(name: str, *, url: str | None = None, scenario: str | None = None, folder: Path | None = None) -> Result:
    """Run one leg, against a server of its own unless there is a URL; what is written goes into the folder."""
    started = time.monotonic()
    folder = folder or OUTPUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if name in CLIENT_NAMES:
        problems, found = conformance_client.judge(name, folder, run_suite)
        summary = _summary(found)
    elif url is not None:
        problems, summary = _judge(name, url, folder, scenario)
    else:
        problems, summary = _judge_own_server(name, folder, scenario)
    return Result(name, problems, summary, time.monotonic() - started)


def _judge_own_server(name: str, folder: Path, scenario: str | None) -> tuple[list[str], str]:
    try:
        with serving([str(SERVER / "server.py")], folder / "server.log") as served:
            problems, summary = _judge(name, f"{served.origin}/mcp", folder, scenario)
    except NotListening as failure:
        return [str(failure)], "did not run"
    return problems + served.complaints, summary


def _judge(name: str, url: str, folder: Path, scenario: str | None) -> tuple[list[str], str]:
    expected = verdict.read_expected(SERVER / "expected_failures.toml", name)
    if name == FIXTURES:
        wanted = tomllib.loads((SERVER / "fixtures.toml").read_text())
        return conformance_fixtures.problems(url, wanted, expected.absent)
    leg = LEGS[name]
    scenarios = verdict.read_listing(run_suite("list", "--server", *leg.listing, log=folder / "list.log"))
    if scenario is not None:
        leg, scenarios = leg.only(scenario), scenarios & {scenario}
        if not scenarios:
            return [], NOTHING
    run_suite("server", "--url", url, *leg.select, "-o", str(folder), log=folder / "suite.log")
    found = verdict.read_checks(folder)
    problems = verdict.judge_scenarios(scenarios, found, expected.failing)
    if len(scenarios) != leg.size:
        problems.append(f"the suite lists {len(scenarios)} scenarios, not {leg.size}: see {folder / 'list.log'}")
    return problems, _summary(found)


def _summary(found: Mapping[str, list[verdict.Check]]) -> str:
    counts = collections.Counter(check.status for checks in found.values() for check in checks)
    shown = ", ".join(f"{counts[status]} {status}" for status in sorted(counts, reverse=True))
    return f"{verdict.count_passing(found)}/{len(found)} scenarios pass ({shown or 'no checks'})"


def run_suite(*arguments: str, log: Path) -> str:
    """What the suite prints; its exit code says less than its checks do."""
    command = [*node_tools.conformance(), *arguments]
    with log.open("w") as output:
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=SUITE_SECONDS, check=False)
    return log.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the official conformance suite under a strict rule.")
    parser.add_argument(
        "--leg", action="append", choices=[*NAMES, *CLIENT_NAMES], help="only this leg; may be repeated"
    )
    parser.add_argument("--scenario", help="only this scenario of a server, on every leg that has it")
    parser.add_argument("--url", help="test the server that listens there, instead of starting our own")
    options = parser.parse_args()
    try:
        node_tools.install()
    except node_tools.NodeMissing as missing:
        print(f"! {missing}", file=sys.stderr)
        return 1
    every = NAMES if options.url else [*NAMES, *CLIENT_NAMES]
    names = options.leg or (list(LEGS) if options.scenario else every)
    results = []
    # With servers of their own two legs do not disturb each other; a shared one changes its lists while it is tested.
    with ThreadPoolExecutor(1 if options.url else min(2, os.cpu_count() or 1)) as pool:
        for result in pool.map(lambda name: run_leg(name, url=options.url, scenario=options.scenario), names):
            print(result, flush=True)
            results.append(result)
    for result in results:
        for problem in result.problems:
            print(f"{result.leg}: {problem}")
    nothing_ran = all(result.summary == NOTHING for result in results)
    return 1 if nothing_ran or any(result.problems for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
