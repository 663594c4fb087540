"""How long from spawn to the answer of `initialize` on stdin and stdout? Beside `python -c pass`, from spawn to end.

Files are in the system's cache and bytecode is compiled, as after the first start of the day.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.bytecode import compile_dovetail
from benchmarks.case import Case, Measured, Round, Settings
from benchmarks.contenders import python_of
from benchmarks.pipe import INITIALIZE, check_greeting, opened
from benchmarks.processes import running
from benchmarks.stdio import command

SPAWNS = 5  # in a round; its figure is their median


def greeted_ms(contender: str) -> float:
    words = command(contender)
    began = time.perf_counter()
    with opened(words) as pipe:
        answer = pipe.ask(INITIALIZE)
        took = time.perf_counter() - began
        check_greeting(answer)
    return took * 1000


def bare_python_ms(contender: str) -> float:
    words = [str(python_of(contender)), "-c", "pass"]
    began = time.perf_counter()
    with running(words) as process:
        process.wait()
        return (time.perf_counter() - began) * 1000


@contextmanager
def opening(contender: str, settings: Settings) -> Iterator[Round]:
    compile_dovetail()
    one = bare_python_ms if contender == "python" else greeted_ms
    one(contender)  # fills the system's cache of files
    spawns = 1 if settings.quick else SPAWNS
    yield lambda: Measured(statistics.median(one(contender) for _ in range(spawns)))


CASES = (
    Case(
        key="cold-start",
        title="cold start to the answer of `initialize`, stdio",
        unit="ms",
        more_is_better=False,
        contenders=("dovetail", "mcp", "fastmcp", "python"),
        targets={"mcp": 0.15, "fastmcp": 0.10, "python": 8.5},
        open=opening,
    ),
)
