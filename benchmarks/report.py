"""From rounds to a verdict: what was measured goes in; medians, ratios, a table and a JSON file come out."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.case import CannotMeasure, Case, Measured, Settings


@dataclass
class Outcome:
    """One case and what each contender gave, round by round."""

    case: Case
    rounds: dict[str, list[Measured]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # of contenders that could not be measured

    def fail(self, contender: str, error: Exception) -> None:
        """This contender is out of the case; a part of its rounds would only mislead."""
        self.rounds.pop(contender, None)
        known = isinstance(error, CannotMeasure)
        self.reasons[contender] = str(error) if known else f"{type(error).__name__}: {error}"

    def median(self, contender: str) -> float | None:
        return _median([measured.value for measured in self.rounds.get(contender, [])])

    def cpu_us(self, contender: str) -> float | None:
        return _median([one.cpu_us for one in self.rounds.get(contender, []) if one.cpu_us is not None])

    def spread(self, contender: str) -> float | None:
        """The widest distance between two rounds, as a part of the median."""
        values = [measured.value for measured in self.rounds.get(contender, [])]
        middle = _median(values)
        return (max(values) - min(values)) / middle if middle else None

    def ratio(self, contender: str, subject: str | None = None) -> float | None:
        """The median of the ratios within each round: what slows a whole round down is not in it."""
        above = self.rounds.get(subject or self.case.subject, [])
        pairs = zip(above, self.rounds.get(contender, []), strict=False)
        return _median([one.value / other.value for one, other in pairs if other.value])

    def met(self, contender: str) -> bool | None:
        """Whether the target against a contender is reached; None if there is none, or no figures."""
        target, ratio = self.case.targets.get(contender), self.ratio(contender)
        if target is None or ratio is None:
            return None
        return ratio >= target if self.case.more_is_better else ratio <= target


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


# ── the table ──

LEGEND = """±: half the distance between the best round and the worst. CPU/call: of the server's process.
ratio: Dovetail's value by this one's, the median over rounds; asgi: the same for server.asgi() under plain uvicorn."""
COLUMNS = ("", "median", "±", "CPU/call", "ratio", "asgi", "target", "")


def table(outcomes: Sequence[Outcome]) -> str:
    """A block for each case: a row for each contender, with the subject's value by its own, and what that shall be."""
    rows = [row for outcome in outcomes for row in [(outcome.case.title,), *_rows(outcome), ()]]
    widths = [max(len(row[at]) for row in [COLUMNS, *rows] if len(row) == len(COLUMNS)) for at in range(len(COLUMNS))]
    lines = [_line(COLUMNS, widths)]
    lines += [_line(row, widths) if len(row) == len(COLUMNS) else "".join(row) for row in rows]
    return "\n".join([*lines, LEGEND])


def _rows(outcome: Outcome) -> list[tuple[str, ...]]:
    return [_row(outcome, name) for name in outcome.case.contenders if name in outcome.rounds] + [
        ("", f"  {name}: not measured: {reason}") for name, reason in outcome.reasons.items()
    ]


def _row(outcome: Outcome, name: str) -> tuple[str, ...]:
    case, cpu, spread = outcome.case, outcome.cpu_us(name), outcome.spread(name)
    variant = f"{case.subject}-asgi"
    target, met = case.targets.get(name), outcome.met(name)
    return (
        f"  {name}",
        f"{_figure(outcome.median(name))} {case.unit}",
        "" if spread is None else f"{spread / 2:.0%}",
        "" if cpu is None else f"{_figure(cpu)} µs",
        "" if name == case.subject else _figure(outcome.ratio(name)),
        "" if name == variant or variant not in outcome.rounds else _figure(outcome.ratio(name, variant)),
        "" if target is None else f"{'≥' if case.more_is_better else '≤'} {target:g}",
        {True: "met", False: "MISSED", None: ""}[met],
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()


def _figure(value: float | None) -> str:
    """Three digits that count, and no more than a reader needs."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# ── the file ──


def record(outcomes: Sequence[Outcome], settings: Settings, versions: Mapping[str, list[str]]) -> dict[str, Any]:
    """All that was measured, and on what."""
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "python": platform.python_version(),
        },
        "settings": {"seconds": settings.seconds, "rounds": settings.rounds, "quick": settings.quick},
        "versions": dict(versions),
        "cases": [_case_record(outcome) for outcome in outcomes],
    }


def write(recorded: Mapping[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")


def _case_record(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "key": case.key,
        "title": case.title,
        "unit": case.unit,
        "more_is_better": case.more_is_better,
        "subject": case.subject,
        "contenders": {name: _contender_record(outcome, name) for name in case.contenders},
    }


def _contender_record(outcome: Outcome, name: str) -> dict[str, Any]:
    if name not in outcome.rounds:
        return {"not_measured": outcome.reasons.get(name, "left out")}
    measured = outcome.rounds[name]
    known = {
        "median": outcome.median(name),
        "cpu_us": outcome.cpu_us(name),
        "ratio": outcome.ratio(name),
        "target": outcome.case.targets.get(name),
        "met": outcome.met(name),
        "values": [one.value for one in measured],
    }
    return {key: value for key, value in known.items() if value is not None}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
