"""Ends that a store has not taken: all of them are written when it is back, in the order in which that is possible."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from dovetail.state import base as patience
from dovetail.transports import late_logs
from dovetail.transports.late_logs import LateLogs
from http_serving import settle, until


class Log:
    """It can't be written so many times."""

    def __init__(self, name: str, failures: int = 0, size: int = 0) -> None:
        self.name = name
        self.failures = failures
        self.size = size
        self.tries = self.weighed = 0

    @property
    def unkept_bytes(self) -> int:
        self.weighed += 1
        return self.size

    def shed_answer(self) -> None:
        self.size = 0

    async def write_end(self) -> bool:
        self.tries += 1
        await asyncio.sleep(0)
        if self.failures < 0:
            raise ValueError("odd")
        return self.tries > self.failures


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(late_logs, "MAX_PAUSE", 0.002)


@pytest.fixture
async def late() -> AsyncIterator[LateLogs]:
    late = LateLogs(60)
    yield late
    await late.stop()


async def test_however_many_there_are_all_are_written(late: LateLogs) -> None:
    logs = [Log(f"{number}", failures=number % 5 == 0) for number in range(1500)]
    for log in logs:
        late.add(log)
    assert all(log.name in late for log in logs)
    await until(lambda: not late._waiting)
    assert all(log.tries == log.failures + 1 for log in logs)
    again = Log("again")
    late.add(again)
    await until(lambda: "again" not in late)


@pytest.mark.parametrize("failures", [100_000, -1])
async def test_one_that_never_can_be_written_holds_up_no_other(late: LateLogs, failures: int) -> None:
    late.add(Log("never", failures))
    logs = [Log(f"{number}", failures=2) for number in range(20)]
    for log in logs:
        late.add(log)
    await until(lambda: len(late._waiting) <= 1)
    assert ("never" in late) is (failures > 0)


async def test_answers_that_wait_are_bounded(late: LateLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_logs, "LATE_BYTES", 100)
    logs = [Log(f"{number}", 1_000_000, size) for number, size in enumerate((60, 60, 30, 200, 10, 1))]
    for log in logs:
        late.add(log)
    assert [log.size for log in logs] == [60, 0, 30, 0, 10, 0]


async def test_an_answer_makes_room_for_the_next(late: LateLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is written, shed, or kept though its end is not."""
    monkeypatch.setattr(late_logs, "LATE_BYTES", 100)
    written, shed, kept = logs = Log("0", 0, 30), Log("1", 1_000_000, 30), Log("2", 1_000_000, 30)
    for log in logs:
        late.add(log)
    kept.size = 0
    late._waiting["1"] = late._waiting["1"]._replace(until=0.0)
    await until(lambda: written.name not in late and min(shed.tries, kept.tries) > 1)
    another = Log("3", 1_000_000, 100)
    late.add(another)
    assert (shed.size, another.size) == (0, 100)


async def test_one_more_costs_the_same_however_many_wait(late: LateLogs) -> None:
    logs = [Log(f"{number}") for number in range(100)]
    for log in logs:
        late.add(log)
    assert max(log.weighed for log in logs) <= 3


async def test_pauses_become_longer_while_the_store_is_away(late: LateLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_logs, "MAX_PAUSE", 60.0)
    log = Log("one", 1_000_000)
    late.add(log)
    await asyncio.sleep(0.3)
    assert 4 <= log.tries <= 10


async def test_it_ends_with_its_worker() -> None:
    others = asyncio.all_tasks()
    late = LateLogs(60)
    late.add(Log("one", 1_000_000))
    await settle()
    await late.stop()
    assert asyncio.all_tasks() <= others
