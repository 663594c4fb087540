"""Tests of the load test: all streams are notified of a change, and the memory that they cost is given back."""

import sys
from pathlib import Path

import pytest
from benchmarks.load import measure, measure_sessions

from dovetail.protocol.session import MAX_CLIENT

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
    figures = await measure(streams, sessions, rounds=20)  # fails unless every stream hears of every change
    assert len(figures.notified_ms) == 20
    early, late = figures.resident[9], figures.resident[-1]  # the first rounds still fill the allocator's pools
    assert late - early <= max(2 * MEBIBYTE, early * 0.05), [size // 1024 for size in figures.resident]
    if MEASURED:
        assert 100 < figures.session_bytes < 5_000
        assert 1_000 < figures.stream_bytes < 100_000


@pytest.mark.skipif(not MEASURED, reason="the system does not tell")
@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param(1_000, marks=pytest.mark.slow),
        pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
async def test_sessions_cost_what_the_docs_promise_whatever_their_clients_say(sessions: int) -> None:
    """The most that a client may say of itself, and the worst: each `[],` would be 25 times as large if decoded."""
    worst = {"experimental": {"x": [[]] * ((MAX_CLIENT - 100) // 4)}}  # on the wire, each with a blank
    each = await measure_sessions(sessions, worst)
    assert MAX_CLIENT < each < (40_000 if sessions <= 2_000 else 25_000)  # of 2,000 the record is kept decoded, too
