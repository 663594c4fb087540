"""Decides which progress reports of one call go out, and when.

In: what the tool reports, and the time. Out: an `Update` to send now, or nothing. The first ones go out at once, then
at most fifty a second; of those in between the latest is kept until its time comes or the call ends.
"""

import math

from msgspec import Struct

AT_ONCE = 20
SPACING = 1 / 50  # seconds between two updates, once the first have gone out
LARGEST_INTEGER = 2**63 - 1  # what every JSON reader can be trusted with


class Update(Struct, frozen=True):
    """One `notifications/progress` on its way to the client."""

    progress: int | float
    total: int | float | None = None
    message: str | None = None


class ProgressGate:
    """The progress of one call. Not for several threads at once.

    The caller sends what `report` and `flush` return. `due` tells when a timer should call `flush`; the end of the call
    does so too, whatever the rate, and then calls `close`.
    """

    __slots__ = ("_closed", "_highest", "_kept", "_sent", "_sent_at")

    def __init__(self) -> None:
        self._highest = -math.inf
        self._sent = 0
        self._sent_at = -math.inf
        self._kept: Update | None = None
        self._closed = False

    def report(self, progress: float, total: float | None, message: str | None, now: float) -> Update | None:
        """Return what to send now. A report that does not rise above all earlier ones is dropped."""
        progress = _number("progress", progress)
        if total is not None:
            total = _number("total", total)
        if message is not None and not isinstance(message, str):
            raise ValueError(f"message must be a string or None, not {type(message).__name__}")
        if self._closed or progress <= self._highest:
            return None
        self._highest = progress
        self._kept = Update(progress, total, message)
        return self.flush(now) if self._sent < AT_ONCE or self._may_send(now) else None

    def flush(self, now: float) -> Update | None:
        """Return the latest report that has not gone out yet, however soon after the one before."""
        update = self._kept
        if update is not None:
            self._kept = None
            self._sent += 1
            self._sent_at = now
        return update

    def due(self, now: float) -> float | None:
        """Return in how many seconds the kept report may go out; None if there is none."""
        if self._kept is None:
            return None
        if self._may_send(now):
            return 0.0
        return min(SPACING, SPACING - (now - self._sent_at))  # never longer, even if the clock was set back

    def close(self) -> None:
        """The call is over: nothing goes out any more."""
        self._closed = True
        self._kept = None

    def _may_send(self, now: float) -> bool:
        return self._sent < AT_ONCE or now - self._sent_at >= SPACING


def _number(name: str, value: object) -> int | float:
    """Return a plain number that JSON can hold."""
    if type(value) is int and -LARGEST_INTEGER <= value <= LARGEST_INTEGER:  # nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {type(value).__name__}")
    if isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise ValueError(f"{name} must fit into 64 bits")
        return int(value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value:g}")
    return float(value)
