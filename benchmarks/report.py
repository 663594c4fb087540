"""The report of a run: medians, ratios and a table, from the rounds that were measured."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.case import CannotMeasure, Case, Measured


@dataclass
class Outcome:
    """One case and what each contender gave, round by round."""

    case: Case
    rounds: dict[str, list[Measured]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # of contenders that could not be measured
    made: str = ""  # when it was finished

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

    def met(self, contender: str, subject: str | None = None) -> bool | None:
        """Whether the target against a contender is reached; None if there is none, or no figures."""
        target, ratio = self.case.targets.get(contender), self.ratio(contender, subject)
        if target is None or ratio is None:
            return None
        return ratio >= target if self.case.more_is_better else ratio <= target


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


# ── the table ──

LEGEND = """
dovetail over HTTP is server.run("http"): Dovetail's own HTTP connection, on uvloop.
dovetail-asgi is server.asgi() under uvicorn, by the very command that runs floor, mcp and fastmcp.
ratio: dovetail's value by this one's, the median over rounds; asgi: the same for dovetail-asgi. The target holds for
ratio; where dovetail-asgi alone does not reach it, that is said too.
±: half the distance between the best round and the worst. CPU/call: of the server's process, all its threads."""
COLUMNS = ("", "median", "±", "CPU/call", "ratio", "asgi", "target", "")
VERDICTS = {True: "met", False: "MISSED", None: ""}


def table(outcomes: Sequence[Outcome]) -> str:
    """A block for each case: a row for each contender, with the subject's value by its own, and what that shall be."""
    rows = [row for outcome in outcomes for row in [(outcome.case.title,), *_rows(outcome), ()]]
    widths = [max(len(row[at]) for row in [COLUMNS, *rows] if len(row) == len(COLUMNS)) for at in range(len(COLUMNS))]
    lines = [_line(COLUMNS, widths)]
    lines += [_line(row, widths) if len(row) == len(COLUMNS) else "".join(row) for row in rows]
    return "\n".join([*lines, LEGEND])


def _rows(outcome: Outcome) -> list[tuple[str, ...]]:
    return [_row(outcome, name) for name in outcome.case.contenders if name in outcome.rounds] + [
        (f"  {name}: not measured: {reason}",) for name, reason in outcome.reasons.items()
    ]


def _row(outcome: Outcome, name: str) -> tuple[str, ...]:
    case, cpu, spread = outcome.case, outcome.cpu_us(name), outcome.spread(name)
    variant = f"{case.subject}-asgi"
    target = case.targets.get(name)
    return (
        f"  {name}",
        f"{_figure(outcome.median(name))} {case.unit}",
        "" if spread is None else f"{spread / 2:.0%}",
        "" if cpu is None else f"{_figure(cpu)} µs",
        "" if name == case.subject else _figure(outcome.ratio(name)),
        "" if name == variant or variant not in outcome.rounds else _figure(outcome.ratio(name, variant)),
        "" if target is None else f"{'≥' if case.more_is_better else '≤'} {target:g}",
        _verdict(outcome, name, variant),
    )


def _verdict(outcome: Outcome, name: str, variant: str) -> str:
    met, also = outcome.met(name), outcome.met(name, variant)
    return VERDICTS[met] + ("; asgi MISSED" if met and also is False else "")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()


def _figure(value: float | None) -> str:
    """Three digits that count, and no more than a reader needs."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
