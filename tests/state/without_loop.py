"""Time and calls without an event loop: a clock that stands still, and calls that end at once."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The outcome of a call that never suspends."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        call.close()
    raise AssertionError("the call suspended")
