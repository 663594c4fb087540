"""How long to wait before a connection is tried again."""

import random

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
SHORTEST_SECONDS = 0.05  # even if the server says that it may be sooner
LONGEST_RETRY_SECONDS = 300.0  # even if the server says that it should be later
LONG_SECONDS = 0.5  # a connection that lasted so long did not fail: whoever ends one now and then is back at once
_DOUBLINGS = 20


class Backoff:
    """A second, or what the server asks for, doubled with every failure in a row; never in step with other clients."""

    def __init__(self) -> None:
        self.retry: float | None = None  # what the server asks for, in seconds
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def lasted(self, seconds: float) -> None:
        """A connection ended that was open for so long."""
        if seconds > LONG_SECONDS:
            self.succeeded()

    def seconds(self) -> float:
        """Count a failure, and tell how long to wait for the next try."""
        first = FIRST_SECONDS
        if self.retry is not None:
            first = min(max(self.retry, SHORTEST_SECONDS), LONGEST_RETRY_SECONDS)
        pause = min(first * 2.0 ** min(self._failures, _DOUBLINGS), max(LONGEST_SECONDS, first))
        self._failures += 1
        return pause * random.uniform(1.0, 1.25)  # never sooner than the server asks for
