"""Progress: strictly increasing, thinned, the latest kept, silent after the end."""

import math
from enum import IntEnum
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.progress import AT_ONCE, SPACING, ProgressGate, Update


def busy_gate(now: float = 0.0) -> ProgressGate:
    """A gate whose free updates are used up, the last one at `now`."""
    gate = ProgressGate()
    for number in range(AT_ONCE):
        assert gate.report(number, None, None, now) == Update(number)
    return gate


def test_the_first_go_out_at_once_and_the_next_is_kept() -> None:
    gate = busy_gate()
    assert gate.report(20, 100, "twenty", 0.0) is None
    assert gate.due(0.0) == SPACING
    assert gate.flush(0.0) == Update(20, 100, "twenty")
    assert gate.flush(0.0) is None


def test_what_is_sent_carries_total_and_message() -> None:
    assert ProgressGate().report(1, 2.5, "one", 0.0) == Update(progress=1, total=2.5, message="one")


@pytest.mark.rule("PROG-3")
@pytest.mark.parametrize(
    ("reported", "sent"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 1, 1.0, 2], [1, 2]),
        ([5, 3, 4, 6], [5, 6]),
        ([-1, 0, 0.5], [-1, 0, 0.5]),
        ([0, -0.0], [0]),
        ([2**53, 2**53 + 1], [2**53, 2**53 + 1]),
    ],
)
def test_repeats_and_decreases_are_dropped(reported: list[float], sent: list[float]) -> None:
    gate = ProgressGate()
    updates = [gate.report(progress, None, None, 0.0) for progress in reported]
    assert [update.progress for update in updates if update] == sent


def test_a_kept_report_is_replaced_by_a_higher_one_only() -> None:
    gate = busy_gate()
    for progress in (30, 40, 35, 40):
        assert gate.report(progress, None, str(progress), 0.001) is None
    assert gate.flush(1.0) == Update(40, None, "40")


@pytest.mark.rule("PROG-7")
def test_later_ones_are_spaced() -> None:
    gate = busy_gate(now=10.0)
    assert gate.report(100, None, None, 10.01) is None
    assert gate.due(10.01) == pytest.approx(0.01)
    assert gate.report(101, None, None, 10.025) == Update(101)  # the kept 100 is outdated
    assert gate.due(10.025) is None
    assert gate.report(102, None, None, 10.03) is None
    assert gate.due(10.05) == 0.0
    assert gate.flush(10.05) == Update(102)


def test_a_clock_set_back_delays_no_longer_than_the_spacing() -> None:
    gate = busy_gate(now=1000.0)
    gate.report(100, None, None, 5.0)
    assert gate.due(5.0) == SPACING


@pytest.mark.rule("PROG-6")
def test_nothing_goes_out_after_the_end() -> None:
    gate = busy_gate()
    gate.report(30, None, None, 0.0)
    gate.close()
    assert gate.flush(9.0) is None
    assert gate.report(40, None, None, 9.0) is None
    assert gate.due(9.0) is None


@pytest.mark.rule("PROG-4")
def test_numbers_are_plain_when_they_go_out() -> None:
    class Step(IntEnum):
        HALF = 5

    update = ProgressGate().report(Step.HALF, 1e3, None, 0.0)
    assert msgspec.json.encode(update) == b'{"progress":5,"total":1000.0,"message":null}'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "must be finite, not nan"),
        (math.inf, "must be finite, not inf"),
        (-math.inf, "must be finite, not -inf"),
        (True, "must be a number, not bool"),
        ("5", "must be a number, not str"),
        (1j, "must be a number, not complex"),
        (2**63, "must fit into 64 bits"),
        (-(10**400), "must fit into 64 bits"),
    ],
)
@pytest.mark.parametrize("name", ["progress", "total"])
def test_what_is_no_number_is_refused(name: str, value: Any, reason: str) -> None:
    arguments = {"progress": 1, "total": 2, name: value}
    gate = ProgressGate()
    with pytest.raises(ValueError, match=f"{name} {reason}"):
        gate.report(**arguments, message=None, now=0.0)
    assert gate.report(-5, None, None, 0.0) == Update(-5)  # the refused one left no trace


def test_progress_itself_is_required() -> None:
    with pytest.raises(ValueError, match="progress must be a number, not NoneType"):
        ProgressGate().report(None, None, None, 0.0)  # type: ignore[arg-type]


def test_a_message_must_be_text() -> None:
    with pytest.raises(ValueError, match="message must be a string or None, not int"):
        ProgressGate().report(1, None, 5, 0.0)  # type: ignore[arg-type]


# ── properties ──

numbers = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 50)
rising = st.lists(st.integers(1, 9), max_size=200).map(lambda steps: [sum(steps[: n + 1]) for n in range(len(steps))])
pauses = st.floats(0, 0.05) | st.just(0.0) | st.floats(0, 1e6) | st.just(SPACING)


def play(reports: list[tuple[float, float]], timer: bool) -> tuple[list[Update], list[float]]:
    """Feed (progress, pause before it) to a gate as a call would; return what went out, and when (without the end)."""
    gate, now = ProgressGate(), 0.0
    sent: list[Update] = []
    times: list[float] = []
    for progress, pause in reports:
        due = gate.due(now)
        if timer and due is not None and due <= pause and gate.due(now + due) == 0.0:
            update = gate.flush(now + due)
            assert update is not None
            sent.append(update)
            times.append(now + due)
        now += pause
        if (update := gate.report(progress, None, None, now)) is not None:
            sent.append(update)
            times.append(now)
    if (update := gate.flush(now)) is not None:
        sent.append(update)
    gate.close()
    assert gate.report(2**62, None, None, now + 1) is None
    return sent, times


@pytest.mark.rule("PROG-3")
@given(st.lists(st.tuples(numbers, pauses), max_size=120), st.booleans())
def test_what_goes_out_strictly_increases_and_ends_with_the_highest(
    reports: list[tuple[float, float]], timer: bool
) -> None:
    sent, _ = play(reports, timer)
    values = [update.progress for update in sent]
    assert all(low < high for low, high in pairwise(values))
    if reports:
        assert values[-1] == max(progress for progress, _ in reports)


@pytest.mark.rule("PROG-7")
@given(rising, st.data(), st.booleans())
def test_the_rate_is_bounded_for_any_times(values: list[int], data: st.DataObject, timer: bool) -> None:
    reports = [(value, data.draw(pauses)) for value in values]
    _, times = play(reports, timer)
    after = times[AT_ONCE - 1 :]
    assert all(later - earlier >= SPACING for earlier, later in pairwise(after))


@given(rising)
def test_few_reports_all_go_out(values: list[int]) -> None:
    sent, _ = play([(value, 0.0) for value in values[:AT_ONCE]], timer=False)
    assert [update.progress for update in sent] == values[:AT_ONCE]
