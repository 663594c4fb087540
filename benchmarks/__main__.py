"""The command that measures Dovetail beside its peers and a bare floor, in one run.

    python -m benchmarks                         every question; about 20 minutes on two quiet cores
    python -m benchmarks http_call stdio         some of them, by file or by case; the others stay in the record
    python -m benchmarks --show --publish        measure nothing: the table, and the picture for the README
    python -m benchmarks --quick                 does it all work? the figures mean nothing, and go elsewhere

Each case opens all its contenders, has their output checked, and then measures them in turn, round after round.
Progress goes to stderr, the table to stdout, and the record and the plot into the folder `--out`.
"""

import argparse
import importlib
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import plot, record, report
from benchmarks.case import CannotMeasure, Case, Round, Settings
from benchmarks.contenders import REQUIREMENTS, installed
from benchmarks.processes import ROOT
from benchmarks.record import Record
from benchmarks.report import Outcome

QUESTIONS = (
    "http_call",
    "http_session",
    "streaming",
    "lists",
    "catalog",
    "stdio",
    "large_results",
    "cold_start",
    "import_time",
    "command",
    "memory",
    "fan_out",
    "features",
    "fleet",
    "protected_call",
    "proxy",
    "search",
    "openapi",
)
QUICK = Settings(seconds=0.5, rounds=1, quick=True)
OUT = ROOT / "build" / "bench"
TRIALS = OUT / "trials"  # of runs whose figures must not stand beside the others
PUBLISHED = ROOT / "docs" / "images" / "benchmarks"


def main(published: Path = PUBLISHED) -> int:
    given = _arguments()
    trial = given.quick or bool(given.contenders)
    out = given.out or (TRIALS if trial else OUT)
    every = chosen([], [])
    kept = record.read(out / "results.json", every)
    code = 0
    if not given.show:
        settings = QUICK if given.quick else Settings(given.seconds, given.rounds)
        code = _run(chosen(given.questions, given.contenders), settings, kept, out / "results.json")
    if kept.outcomes:
        print(report.table(kept.in_order(every)))
        if given.quick:
            print("\nA smoke test of one short round: the figures mean nothing.")
        if _draw(out) and given.publish:
            _publish(out, published, trial=trial or any(run["settings"]["quick"] for run in kept.runs.values()))
    return code


def _run(cases: Sequence[Case], settings: Settings, kept: Record, file: Path) -> int:
    """Measure one case after the other; each is in the file as soon as it is done, for a long run may be stopped."""
    for signalled in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does by itself
        signal.signal(signalled, _leave)
    every, name, incomplete = chosen([], []), record.now(), False
    try:
        run = record.run_on(settings, _versions(cases))
        for number, case in enumerate(cases, 1):
            outcome = measured(case, settings, f"{number}/{len(cases)} ")
            kept.add(outcome, name, run)
            kept.write(file, every)
            incomplete |= case.subject in outcome.reasons  # what a peer can't do is in the table, and no failure
    except KeyboardInterrupt:
        _say("stopped; what was done until now is kept")
        return 130
    return 1 if incomplete else 0


def measured(case: Case, settings: Settings, place: str = "") -> Outcome:
    """Open every contender of a case, then measure them in turn; who fails is out, with the reason."""
    outcome, began = Outcome(case), time.monotonic()
    with ExitStack() as stack:
        rounds = {name: _opened(stack, outcome, name, settings, place) for name in case.contenders}
        for number in range(settings.rounds):
            standing = [(name, one) for name, one in rounds.items() if one is not None and name not in outcome.reasons]
            first = number % max(1, len(standing))
            for name, one in standing[first:] + standing[:first]:
                _say(f"{place}{case.title}: round {number + 1} of {settings.rounds}, {name}")
                _measure(outcome, name, one)
    _say(f"{place}{case.title}: done in {time.monotonic() - began:.0f} s")
    return outcome


def _opened(stack: ExitStack, outcome: Outcome, name: str, settings: Settings, place: str) -> Round | None:
    _say(f"{place}{outcome.case.title}: starting {name}")
    try:
        return stack.enter_context(outcome.case.open(name, settings))
    except Exception as error:  # a contender that fails must not end the run of the others
        _fail(outcome, name, error)
        return None


def _measure(outcome: Outcome, name: str, one: Round) -> None:
    try:
        outcome.rounds.setdefault(name, []).append(one())
    except Exception as error:
        _fail(outcome, name, error)


def _fail(outcome: Outcome, name: str, error: Exception) -> None:
    outcome.fail(name, error)
    _say(f"{name} can't be measured: {outcome.reasons[name]}")


def _versions(cases: Sequence[Case]) -> dict[str, list[str]]:
    """What is installed for each contender; makes the environments that are still missing."""
    wanted = {name.removesuffix("-1") for case in cases for name in case.contenders}
    known: dict[str, list[str]] = {}
    for name in ("dovetail", *(name for name in REQUIREMENTS if name in wanted)):
        try:
            known[name] = installed(name)
        except CannotMeasure as error:
            _say(f"{name} can't be installed: {error}")
    return known


def _draw(out: Path) -> bool:
    try:
        plot.draw(out / "results.json")
    except CannotMeasure as error:
        _say(f"no plot: {error}")
        return False
    _say(f"written: {out}")
    return True


def _publish(out: Path, published: Path, *, trial: bool) -> None:
    if trial:
        raise SystemExit("a trial is not for publishing")
    for suffix in (".png", ".svg"):
        shutil.copyfile(out / f"plot{suffix}", published.with_suffix(suffix))
        _say(f"published: {published.with_suffix(suffix)}")


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
    narrowed = [tuple(name for name in case.contenders if name in contenders) for case in chosen]
    return [replace(case, contenders=some) for case, some in zip(chosen, narrowed, strict=True) if some]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks", description="Dovetail beside its peers and a bare floor.")
    parser.add_argument("questions", nargs="*", metavar="question", help=f"some of: {', '.join(QUESTIONS)}")
    parser.add_argument("--rounds", type=int, default=Settings.rounds)
    parser.add_argument("--seconds", type=float, default=Settings.seconds, help="of load in each round")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test")
    parser.add_argument("--contenders", type=lambda text: text.split(","), default=[], help="some only, with commas")
    parser.add_argument("--out", type=Path, help=f"folder for the record and the plot: {OUT}, or {TRIALS} for trials")
    parser.add_argument("--show", action="store_true", help="measure nothing; show and draw what is in the record")
    parser.add_argument("--publish", action="store_true", help="copy the plot to docs/images, for the README")
    given = parser.parse_args()
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("there must be a round, and some time in it")
    return given


def _leave(number: int, _frame: object) -> None:
    """A signal to end: leave as after Ctrl-C, through every block that ends a process."""
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
