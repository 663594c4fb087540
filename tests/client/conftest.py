"""What the tests of the links over HTTP share: no waiting, and nothing left behind."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from dovetail.client import backoff


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are tried again at once."""
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "SHORTEST_SECONDS", 0.001)
    monkeypatch.setattr(backoff, "LONGEST_RETRY_SECONDS", 0.05)


@pytest.fixture
async def tidy() -> AsyncIterator[None]:
    """No task is left behind; what is left of sockets makes a warning, and warnings are errors."""
    yield
    for _ in range(20):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left
    gc.collect()
