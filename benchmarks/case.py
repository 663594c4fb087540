"""The record of a benchmark: one question, put to several contenders in alternation."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple


class Measured(NamedTuple):
    """What one round of one contender gave."""

    value: float  # in the case's unit
    cpu_us: float | None = None  # CPU of the server process per call, where there are calls


Round = Callable[[], Measured]


@dataclass(frozen=True)
class Settings:
    """How long and how often."""

    seconds: float = 1.0  # of load in a round; a slow contender takes longer
    rounds: int = 5
    quick: bool = False  # a smoke test: the figures mean nothing


class CannotMeasure(Exception):
    """A contender can't be measured here; the report shows the reason."""


@dataclass(frozen=True)
class Case:
    """One question."""

    key: str  # "http-async"
    title: str  # "HTTP call, async tool, 2026-07-28"
    unit: str  # "calls/s", "ms", "MB", "µs"
    more_is_better: bool
    contenders: tuple[str, ...]
    open: Callable[[str, Settings], AbstractContextManager[Round]]
    """Starts a contender, checks that its output is right, and yields what measures one round of it."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """contender -> the ratio that is to be reached: at least this if more is better, else at most."""
    subject: str = "dovetail"
    """Whose value is divided by the others'."""
