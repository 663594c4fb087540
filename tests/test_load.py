"""Many streams and sessions on one worker: all of them hear of a change, and what they cost comes back."""

import sys
from pathlib import Path

import pytest
from benchmarks.load import measure

MEBIBYTE = 2**20
MEASURED = Path("/proc/self/status").exists()

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the load client raises its limit of open files")


@pytest.mark.parametrize(
    ("streams", "sessions"),
    [
        pytest.param(200, 1_000, marks=pytest.mark.slow),
        pytest.param(2_000, 10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
async def test_streams_and_idle_sessions(streams: int, sessions: int) -> None:
    figures = await measure(streams, sessions, rounds=10)  # fails unless every stream hears of every change
    assert len(figures.heard_ms) == 10
    early, late = figures.resident[2], figures.resident[-1]  # the first rounds still fill the allocator's pools
    assert late - early <= max(2 * MEBIBYTE, early * 0.05), [size // 1024 for size in figures.resident]
    if MEASURED:
        assert 100 < figures.session_bytes < 5_000
        assert 1_000 < figures.stream_bytes < 100_000
