"""What a program raised comes in; it goes out as Python would tell it, without the steps that are not the program's."""

import os
from collections.abc import Iterator
from pathlib import Path
from traceback import TracebackException

import dovetail

OURS = (str(Path(dovetail.__file__).parent), str(Path(os.__file__).parent / "importlib"), "<frozen ")
MOST_STEPS = 12


def as_told(failure: BaseException) -> str:
    told = TracebackException.from_exception(failure)
    for each in _all(told):
        theirs = [step for step in each.stack if not step.filename.startswith(OURS)]
        each.stack[:] = theirs[-MOST_STEPS:]
    return "".join(told.format()).rstrip()


def _all(told: TracebackException) -> Iterator[TracebackException]:
    """With those that led to it."""
    yield told
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            yield from _all(other)
