"""The picture for the README: plot.png and plot.svg beside the results.json that they show.

    python -m benchmarks.plot build/bench/results.json     draws it again

One row for each question, two bars in it: how many times better Dovetail does than each peer, on a log scale.
matplotlib lives in an environment of its own, so `draw` runs this file there.
"""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.case import CannotMeasure
from benchmarks.contenders import python_of
from benchmarks.processes import ROOT

# The case, what it is called in the picture, and what its figure is made of.
QUESTIONS = (
    ("http-async", "HTTP call", "{:,.0f} calls/s"),
    ("http-session", "HTTP call in a session", "{:,.0f} calls/s"),
    ("http-progress", "HTTP call, 10 progress reports", "{:,.0f} calls/s"),
    ("stdio-32", "stdio, 32 calls in flight", "{:,.0f} calls/s"),
    ("list-500", "List of 500 tools", "{:,.0f} lists/s"),
    ("catalog-500", "HTTP call among 500 tools", "{:,.0f} calls/s"),
    ("cold-start", "Start to first answer", "{:,.0f} ms"),
    ("memory-stdio", "Memory after start", "{:,.0f} MB"),
)
PEERS = {"mcp": "mcp", "fastmcp": "FastMCP"}
COLOURS = {"mcp": "#2f6f8f", "fastmcp": "#e0913a"}
PAPER, INK, FAINT, GRID = "#ffffff", "#1f2933", "#6b7785", "#e3e7eb"
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
WIDTH, ROW, FRAME = 9.0, 0.62, 1.9  # inches: the picture, each question, and all around them
BAR = 0.34


class Row(NamedTuple):
    label: str
    figure: str  # Dovetail's own, with its unit
    times: dict[str, float]  # peer -> how many times better Dovetail does


def draw(results: Path) -> None:
    """Make the pictures in the environment that has matplotlib. Raises CannotMeasure."""
    command = [str(python_of("plot")), "-m", "benchmarks.plot", str(results.resolve())]
    outcome = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if outcome.returncode:
        raise CannotMeasure((outcome.stderr.strip().splitlines() or ["matplotlib failed"])[-1])


def rows(recorded: dict[str, Any]) -> list[Row]:
    """What the picture shows, of what was measured."""
    cases = {case["key"]: case for case in recorded["cases"]}
    found = [(label, form, cases[key]) for key, label, form in QUESTIONS if key in cases]
    made = [Row(label, _figure(form, case), _times(case)) for label, form, case in found]
    return [row for row in made if row.times]


def _figure(form: str, case: dict[str, Any]) -> str:
    return form.format(case["contenders"].get(case["subject"], {}).get("median", math.nan))


def _times(case: dict[str, Any]) -> dict[str, float]:
    ratios = {peer: case["contenders"].get(peer, {}).get("ratio") for peer in PEERS}
    return {peer: ratio if case["more_is_better"] else 1 / ratio for peer, ratio in ratios.items() if ratio}


# ── drawing; needs matplotlib ──


def _paint(recorded: dict[str, Any], folder: Path) -> None:
    import matplotlib.pyplot as plt

    shown = rows(recorded)
    if not shown:
        raise SystemExit("nothing that belongs into the picture was measured")
    plt.rcParams |= {
        "font.family": "DejaVu Sans",
        "text.color": INK,
        "svg.fonttype": "path",
        "svg.hashsalt": "dovetail",
    }
    height = FRAME + ROW * len(shown)
    figure, axes = plt.subplots(figsize=(WIDTH, height), facecolor=PAPER)
    figure.subplots_adjust(left=0.315, right=0.965, top=1 - 0.98 / height, bottom=0.87 / height)
    _bars(axes, shown)
    _scale(axes, shown)
    _words(figure, height, recorded)
    for name in ("plot.png", "plot.svg"):
        metadata = {"Date": None} if name.endswith("svg") else None
        figure.savefig(folder / name, dpi=200, facecolor=PAPER, metadata=metadata)


def _bars(axes: Any, shown: list[Row]) -> None:
    for at, row in enumerate(shown):
        for peer, offset in zip(PEERS, (-BAR / 2, BAR / 2), strict=True):
            times = row.times.get(peer)
            if times is None:
                continue
            axes.barh(at + offset, times - 1, BAR * 0.92, left=1, color=COLOURS[peer], zorder=2)
            axes.annotate(
                _multiple(times), (max(times, 1), at + offset), (5, 0), textcoords="offset points",
                va="center", fontsize=10, fontweight="bold", color=INK, zorder=3,
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
            )  # fmt: skip
        axes.annotate(row.label, (0, at), (-12, 6.5), **_beside(axes), fontsize=11.5, color=INK)
        axes.annotate(row.figure, (0, at), (-12, -8), **_beside(axes), fontsize=9.5, color=FAINT)


def _beside(axes: Any) -> dict[str, Any]:
    return {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "ha": "right", "va": "center"}


def _scale(axes: Any, shown: list[Row]) -> None:
    every = [times for row in shown for times in row.times.values()]
    least, most = min(every), max(every)
    axes.set_xscale("log")
    axes.set_xlim(1 if least >= 1 else least * 0.8, max(most, 10) * 1.9)
    axes.set_ylim(len(shown) - 0.45, -0.6)
    axes.set_xticks([tick for tick in TICKS if least / 2 <= tick <= most * 1.5 or tick == 1], minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}×")
    axes.set_yticks([])
    axes.tick_params(axis="x", colors=FAINT, labelsize=9.5, length=0, pad=6)
    axes.grid(axis="x", color=GRID, linewidth=0.8, zorder=0)
    axes.spines[:].set_visible(False)
    axes.axvline(1, color=FAINT, linewidth=1.5, zorder=3)  # as good as the peer
    axes.set_facecolor(PAPER)


def _words(figure: Any, height: float, recorded: dict[str, Any]) -> None:
    """Title, whom the colours stand for, and where the figures come from."""
    figure.text(0.03, 1 - 0.36 / height, "Dovetail: how many times faster, or smaller", fontsize=15, fontweight="bold")
    at = 0.03
    for peer, name in PEERS.items():
        figure.text(at, 1 - 0.67 / height, "■", fontsize=12, color=COLOURS[peer], va="center")
        text = f"than {name} {_version(recorded, peer)}".rstrip()
        figure.text(at + 0.022, 1 - 0.67 / height, text, fontsize=11, color=INK, va="center")
        at += 0.05 + 0.0108 * len(text)
    cores, python = _of_runs(recorded, lambda run: run["cores"]), _of_runs(recorded, lambda run: run["python"])
    rounds = _of_runs(recorded, lambda run: run["settings"]["rounds"])
    note = (
        'Log scale; under each question Dovetail\'s own figure. Over HTTP: Dovetail by run("http"), peers by uvicorn.\n'
        f"{cores} cores, one worker, Python {python}; medians of {rounds} rounds, each question in one run."
    )
    figure.text(0.03, 0.16 / height, note, fontsize=8.5, color=FAINT, linespacing=1.5)


def _multiple(times: float) -> str:
    return f"{times:,.0f}×" if times >= 9.95 else f"{times:.1f}×"


def _version(recorded: dict[str, Any], peer: str) -> str:
    def version(run: dict[str, Any]) -> str:
        lines = run["versions"].get(peer, [])
        return next((line.split("==")[1] for line in lines if line.startswith(f"{peer}==")), "")

    return _of_runs(recorded, version)


def _of_runs(recorded: dict[str, Any], fact: Callable[[dict[str, Any]], object]) -> str:
    """One fact about the runs; all that differ, where they do."""
    return ", ".join(sorted({str(fact(run)) for run in recorded["runs"].values()} - {""}))


if __name__ == "__main__":
    file = Path(sys.argv[1])
    _paint(json.loads(file.read_text()), file.parent)
