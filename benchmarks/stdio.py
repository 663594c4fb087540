"""The rate of calls on stdio, with one call and with 32 calls in flight.

The floor is a process that answers every line with a fixed one, as long as Dovetail's answer. Pipes between two cores
cost far more than its two lines of Python: with one call in flight the figures are mostly about waking up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.case import Case, Measured, Round, Settings
from benchmarks.contenders import python_of
from benchmarks.http_contender import HANDSHAKE, MODERN
from benchmarks.pipe import IDS, Pipe, Ring, add_call, check_calls, check_sum, opened, pace
from benchmarks.processes import LOAD_CORE, cpu_seconds, on_core

SERVERS = Path(__file__).parent / "servers"
PROGRAMS = {"floor": "echo"}  # others are named like their contender
# In noisy trials the peers' least CPU for a call was 8 to 23 % lower with it, so they get the benefit of the doubt.
# Where they start or are weighed they run as their users run them.
FASTEST = {"mcp": ["uvloop"], "fastmcp": ["uvloop"]}
WARM_UP = 0.3  # seconds


def command(contender: str) -> list[str | Path]:
    """What runs a contender on stdin and stdout, as its users run it."""
    return [python_of(contender), SERVERS / f"{PROGRAMS.get(contender, contender)}_stdio.py"]


@contextmanager
def opening(in_flight: int, revision: str, traced: bool, contender: str, settings: Settings) -> Iterator[Round]:
    python, program = command(contender)
    tracer = [SERVERS / "traced.py"] if traced else []
    with opened([python, *tracer, program, *FASTEST.get(contender, [])]) as pipe:
        _check(pipe, contender, in_flight, revision)
        ring = Ring([add_call(number, revision) for number in IDS], in_flight)
        pace(pipe, ring, in_flight, min(WARM_UP, settings.seconds))
        yield partial(one_round, pipe, ring, in_flight, settings.seconds)


def _check(pipe: Pipe, contender: str, in_flight: int, revision: str) -> None:
    if contender == "floor":  # knows one answer only
        check_sum(pipe.ask(add_call(IDS[0], revision)), IDS[0])
        return
    if revision == HANDSHAKE:
        pipe.greet()
    check_calls(pipe, revision, in_flight)


def one_round(pipe: Pipe, ring: Ring, in_flight: int, seconds: float) -> Measured:
    before = cpu_seconds(pipe.pid)
    with on_core(LOAD_CORE):
        answers, took = pace(pipe, ring, in_flight, seconds)
    cpu = cpu_seconds(pipe.pid) - before
    return Measured(answers / took, cpu / answers * 1e6)


def _case(
    key: str, in_flight: int, revision: str, targets: dict[str, float], *others: str, traced: bool = False
) -> Case:
    title = f"stdio, {in_flight} {'call' if in_flight == 1 else 'calls'} in flight, {revision}"
    title += ", traces sampled out" if traced else ""
    opened = partial(opening, in_flight, revision, traced)
    return Case(key, title, "calls/s", True, ("dovetail", "mcp", "fastmcp", *others), opened, targets)


AT_32 = {"mcp": 40.0, "fastmcp": 60.0}
CASES = (
    _case("stdio-1", 1, MODERN, {"mcp": 5.0, "fastmcp": 8.0, "floor": 0.7}, "floor"),
    _case("stdio-32", 32, MODERN, AT_32),
    _case("stdio-32-session", 32, HANDSHAKE, AT_32),
    _case("stdio-32-traced", 32, MODERN, {}, traced=True),
)
