"""A clock that only moves when a test says so."""

import pytest

from dovetail.client import caching


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    @classmethod
    def of_caches(cls, monkeypatch: pytest.MonkeyPatch) -> "Clock":
        clock = cls()
        monkeypatch.setattr(caching, "monotonic", clock)
        return clock
