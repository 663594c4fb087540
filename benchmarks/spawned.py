"""Measurements of fresh processes: rounds that each give the median of several."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.case import Measured, Round, Settings

SPAWNS = 5  # in a round


@contextmanager
def opening(one: Callable[[str], float], contender: str, settings: Settings) -> Iterator[Round]:
    """`one` starts a process of a contender, and tells its figure."""
    one(contender)  # compiles what has no bytecode yet, and fills the system's cache of files
    spawns = 1 if settings.quick else SPAWNS
    yield lambda: Measured(statistics.median(one(contender) for _ in range(spawns)))
