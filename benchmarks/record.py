"""The JSON file of all outcomes that were measured.

It has the newest outcome of every case, so some questions can be asked again without the others. Each case tells when
it was measured and names its run; each run tells on what: commit, machine, settings, and every installed package.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Measured, Settings
from benchmarks.processes import ROOT
from benchmarks.report import Outcome

Json = dict[str, Any]


@dataclass
class Record:
    """What is known of each case, by its key."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    run_of: dict[str, str] = field(default_factory=dict)  # case -> run
    runs: dict[str, Json] = field(default_factory=dict)

    def add(self, outcome: Outcome, name: str, run: Json) -> None:
        """Keep an outcome of a run, in the place of an older one."""
        outcome.made = now()
        self.outcomes[outcome.case.key] = outcome
        self.run_of[outcome.case.key] = name
        self.runs[name] = run

    def in_order(self, cases: Sequence[Case]) -> list[Outcome]:
        return [self.outcomes[case.key] for case in cases if case.key in self.outcomes]

    def as_json(self, cases: Sequence[Case]) -> Json:
        """Cases in the order of the given ones, and only the runs that they name."""
        listed = [(outcome, self.run_of[outcome.case.key]) for outcome in self.in_order(cases)]
        return {
            "runs": {name: run for name, run in self.runs.items() if name in {used for _, used in listed}},
            "cases": [_case_json(outcome, name) for outcome, name in listed],
        }

    def write(self, file: Path, cases: Sequence[Case]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.as_json(cases), indent=1, ensure_ascii=False) + "\n")


def read(file: Path, cases: Sequence[Case]) -> Record:
    """What a file has of these cases; nothing if there is no file."""
    if not file.exists():
        return Record()
    known = {case.key: case for case in cases}
    try:
        found = json.loads(file.read_text())
        kept = [one for one in found["cases"] if one["key"] in known]
        outcomes = {one["key"]: _outcome(known[one["key"]], one) for one in kept}
        return Record(outcomes, {one["key"]: one["run"] for one in kept}, dict(found["runs"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        advice = "move it away, or name another folder with --out"
        raise SystemExit(f"{file} is not a record of the benchmarks: {advice}") from None


def run_on(settings: Settings, versions: Mapping[str, list[str]]) -> Json:
    """On what a run is made."""
    return {
        "commit": _commit(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "settings": asdict(settings),
        "versions": dict(versions),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _case_json(outcome: Outcome, run: str) -> Json:
    case = outcome.case
    return {
        "key": case.key,
        "title": case.title,
        "unit": case.unit,
        "more_is_better": case.more_is_better,
        "subject": case.subject,
        "made": outcome.made,
        "run": run,
        "contenders": {name: _contender_json(outcome, name) for name in case.contenders},
    }


def _contender_json(outcome: Outcome, name: str) -> Json:
    if name not in outcome.rounds:
        return {"not_measured": outcome.reasons.get(name, "left out")}
    known = {
        "median": outcome.median(name),
        "cpu_us": outcome.cpu_us(name),
        "ratio": outcome.ratio(name),
        "target": outcome.case.targets.get(name),
        "met": outcome.met(name),
        "rounds": [list(one) for one in outcome.rounds[name]],
    }
    return {key: value for key, value in known.items() if value is not None}


def _outcome(case: Case, found: Json) -> Outcome:
    contenders = {name: one for name, one in found["contenders"].items() if name in case.contenders}
    rounds = {name: [Measured(*each) for each in one["rounds"]] for name, one in contenders.items() if "rounds" in one}
    reasons = {name: one["not_measured"] for name, one in contenders.items() if name not in rounds}
    return Outcome(case, rounds, reasons, found["made"])


def _commit() -> str:
    """The commit of the checkout, and whether the sources were changed since; empty without git."""
    words = ("git", "-C", ROOT, "describe", "--always", "--abbrev=12", "--match=", "--dirty")
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
