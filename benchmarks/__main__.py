"""Measure Dovetail beside its peers and a bare floor, in one run.

    python -m benchmarks                         every question; half an hour
    python -m benchmarks http_call stdio         some of them, by file or by case
    python -m benchmarks --quick                 does it all work? the figures mean nothing

Each case opens all its contenders, has their output checked, and then measures them in turn, round after round.
Progress goes to stderr, the table to stdout, and the record and the plot into the folder `--out`.
"""

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import plot, report
from benchmarks.case import CannotMeasure, Case, Round, Settings
from benchmarks.contenders import REQUIREMENTS, installed
from benchmarks.report import Outcome

QUESTIONS = (
    "http_call",
    "http_session",
    "streaming",
    "lists",
    "catalogue",
    "stdio",
    "large_results",
    "cold_start",
    "import_time",
    "memory",
    "fan_out",
)
QUICK = Settings(seconds=0.5, rounds=1, quick=True)
OUT = Path(__file__).resolve().parent.parent / "build" / "bench"


def main() -> int:
    given = _arguments()
    settings = QUICK if given.quick else Settings(given.seconds, given.rounds)
    cases = chosen(given.questions, given.contenders)
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does by itself
        signal.signal(number, _leave)
    outcomes: list[Outcome] = []
    stopped = False
    try:
        for case in cases:
            outcomes.append(measured(case, settings))
            report.write(report.record(outcomes, settings, {}), given.out / "results.json")  # a long run may be stopped
    except KeyboardInterrupt:
        stopped = True
    if outcomes:
        _keep(outcomes, settings, given.out)
        print(report.table(outcomes))
    return 130 if stopped else 1 if any(outcome.reasons for outcome in outcomes) else 0


def measured(case: Case, settings: Settings) -> Outcome:
    """Open every contender of a case, then measure them in turn; who fails is out, with the reason."""
    outcome = Outcome(case)
    with ExitStack() as stack:
        rounds = {name: _opened(stack, outcome, name, settings) for name in case.contenders}
        for number in range(settings.rounds):
            standing = [(name, one) for name, one in rounds.items() if one is not None and name not in outcome.reasons]
            first = number % max(1, len(standing))
            for name, one in standing[first:] + standing[:first]:
                _say(f"{case.title}: round {number + 1} of {settings.rounds}, {name}")
                _measure(outcome, name, one)
    return outcome


def _opened(stack: ExitStack, outcome: Outcome, name: str, settings: Settings) -> Round | None:
    _say(f"{outcome.case.title}: starting {name}")
    try:
        return stack.enter_context(outcome.case.open(name, settings))
    except Exception as error:  # a contender that fails must not end the run of the others
        outcome.fail(name, error)
        return None


def _measure(outcome: Outcome, name: str, one: Round) -> None:
    try:
        outcome.rounds.setdefault(name, []).append(one())
    except Exception as error:
        outcome.fail(name, error)


def _keep(outcomes: Sequence[Outcome], settings: Settings, out: Path) -> None:
    measured = {name for outcome in outcomes for name in outcome.rounds}
    versions = {name: installed(name) for name in ("dovetail", *REQUIREMENTS) if name in measured}
    report.write(report.record(outcomes, settings, versions), out / "results.json")
    try:
        plot.draw(out / "results.json")
    except CannotMeasure as error:
        _say(f"no plot: {error}")
    _say(f"written: {out}")


def chosen(questions: Sequence[str], contenders: Sequence[str]) -> list[Case]:
    """The cases that were asked for, by the name of their file or their own; narrowed to some contenders if wished."""
    known = {name: importlib.import_module(f"benchmarks.{name}").CASES for name in QUESTIONS}
    known |= {case.key: [case] for cases in list(known.values()) for case in cases}
    unknown = [name for name in questions if name not in known]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = [case for name in questions or QUESTIONS for case in known[name]]
    if not contenders:
        return chosen
    return [replace(case, contenders=tuple(name for name in case.contenders if name in contenders)) for case in chosen]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks", description="Dovetail beside its peers and a bare floor.")
    parser.add_argument("questions", nargs="*", metavar="question", help=f"some of: {', '.join(QUESTIONS)}")
    parser.add_argument("--rounds", type=int, default=Settings.rounds)
    parser.add_argument("--seconds", type=float, default=Settings.seconds, help="of load in each round")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test")
    parser.add_argument("--contenders", type=lambda text: text.split(","), default=[], help="some only, with commas")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the record and the plot")
    return parser.parse_args()


def _leave(number: int, _frame: object) -> None:
    """Told to end: leave as after Ctrl-C, through every block that ends a process."""
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
