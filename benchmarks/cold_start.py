"""The time from spawn to the response to `initialize` on stdio, beside `python -c pass` from spawn to end.

Files are in the system's cache and bytecode is compiled, as after the first start of the day.
"""

import time
from functools import partial

from benchmarks import spawned
from benchmarks.case import Case
from benchmarks.contenders import python_of
from benchmarks.pipe import INITIALIZE, check_greeting, opened
from benchmarks.processes import running
from benchmarks.stdio import command


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


def started_ms(contender: str) -> float:
    return bare_python_ms(contender) if contender == "python" else greeted_ms(contender)


CASES = (
    Case(
        key="cold-start",
        title="cold start to the answer of `initialize`, stdio",
        unit="ms",
        more_is_better=False,
        contenders=("dovetail", "mcp", "fastmcp", "python"),
        targets={"mcp": 0.15, "fastmcp": 0.10, "python": 8.5},
        open=partial(spawned.opening, started_ms),
    ),
)
