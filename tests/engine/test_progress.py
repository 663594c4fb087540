"""Progress: what of many reports is sent, and what a client gets of them."""

import math
import time
from collections.abc import Callable, Coroutine
from enum import IntEnum
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Context, Server
from dovetail.engine.progress import MIN_INTERVAL, UNTHROTTLED_REPORTS, ProgressSender
from dovetail.protocol.revisions import LATEST
from wire import MODERN, Wire


class Stage:
    """A call that reports, with a loop whose time the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Any] = []
        self.sent: list[dict[str, Any]] = []
        self.times: list[float] = []
        request = SimpleNamespace(revision=LATEST)
        self._context: Any = SimpleNamespace(before_response=[], request=request, emit=self._emit)
        loop: Any = SimpleNamespace(time=lambda: self.now, call_later=self._call_later, create_task=done)
        self._sender = ProgressSender(self._context, "t", loop)

    async def _emit(self, message: bytes) -> None:
        self.sent.append(msgspec.json.decode(message)["params"])
        self.times.append(self.now)

    def _call_later(self, delay: float, function: Callable[[], None]) -> Any:
        timer = SimpleNamespace(when=self.now + delay, function=function)
        timer.cancel = lambda: self.timers.remove(timer) if timer in self.timers else None
        self.timers.append(timer)
        return timer

    def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        for timer in [each for each in self.timers if each.when <= end]:
            self.timers.remove(timer)
            self.now = timer.when
            timer.function()
        self.now = end

    def report(self, progress: Any, total: Any = None, message: Any = None) -> None:
        done(self._sender.report(progress, total, message))

    def end(self) -> None:
        done(self._context.before_response[0]())

    @property
    def values(self) -> list[float]:
        return [each["progress"] for each in self.sent]


def done(work: Coroutine[Any, Any, None]) -> None:
    """It has nothing to wait for."""
    with pytest.raises(StopIteration):
        work.send(None)


@pytest.fixture
def busy() -> Stage:
    """Has used up what may be sent at once."""
    stage = Stage()
    for number in range(UNTHROTTLED_REPORTS):
        stage.report(number)
    assert stage.values == list(range(UNTHROTTLED_REPORTS))
    stage.sent.clear()
    return stage


@pytest.mark.rule("PROG-7")
def test_later_ones_are_spaced(busy: Stage) -> None:
    busy.report(20, 100, "twenty")
    busy.pass_by(MIN_INTERVAL / 2)
    busy.report(21, 100, "more")
    assert busy.sent == []
    busy.pass_by(MIN_INTERVAL / 2)
    assert busy.sent == [{"progressToken": "t", "progress": 21, "total": 100, "message": "more"}]
    busy.pass_by(MIN_INTERVAL * 1.5)
    busy.report(22)
    assert busy.values == [21, 22]


@pytest.mark.rule("PROG-6")
def test_the_last_is_sent_at_the_end_and_nothing_after_it(busy: Stage) -> None:
    busy.report(30)
    busy.end()
    busy.report(40)
    busy.pass_by(1)
    assert (busy.values, busy.timers) == ([30], [])


@pytest.mark.rule("PROG-4")
def test_numbers_are_plain_when_they_are_sent() -> None:
    stage = Stage()
    stage.report(IntEnum("Step", {"HALF": 5}).HALF, 1e3)  # type: ignore[attr-defined]
    assert stage.sent == [{"progressToken": "t", "progress": 5, "total": 1000.0}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "must be finite, not nan"),
        (-math.inf, "must be finite, not -inf"),
        (True, "must be a number, not bool"),
        ("5", "must be a number, not str"),
        (2**63, "must fit into 64 bits"),
        (-(10**400), "must fit into 64 bits"),
    ],
)
@pytest.mark.parametrize("name", ["progress", "total"])
def test_what_is_no_number_is_refused(name: str, value: Any, reason: str) -> None:
    stage = Stage()
    with pytest.raises(ValueError, match=f"{name} {reason}"):
        stage.report(**{"progress": 1, "total": 2, name: value})
    with pytest.raises(ValueError, match="message must be a string or None, not int"):
        stage.report(1, None, 5)
    stage.report(-5)
    assert stage.values == [-5]  # what was refused left no trace


numbers = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 50)
pauses = st.floats(0, 0.05) | st.just(0.0) | st.floats(0, 1e3) | st.just(MIN_INTERVAL)


@pytest.mark.rule("PROG-3", "PROG-7")
@given(st.lists(st.tuples(numbers, pauses), min_size=1, max_size=120), st.booleans())
def test_what_is_sent_rises_to_the_highest_at_a_bounded_rate(reports: list[tuple[float, float]], rises: bool) -> None:
    stage = Stage()
    values = [number if rises else progress for number, (progress, _) in enumerate(reports)]
    for value, (_, pause) in zip(values, reports, strict=True):
        stage.pass_by(pause)
        stage.report(value)
    times = stage.times[UNTHROTTLED_REPORTS - 1 :]
    stage.end()
    assert all(low < high for low, high in pairwise(stage.values))
    assert stage.values[-1] == max(values)
    assert all(later - earlier > MIN_INTERVAL - 1e-6 for earlier, later in pairwise(times))


def new_server() -> Server:
    server = Server("progress", version="1.0.0")

    @server.tool
    async def steps(ctx: Context, values: list[Any]) -> str:
        for value in values:
            await ctx.report_progress(value, 100, f"at {value}")
        return "done"

    def plain(ctx: Context, values: list[Any]) -> str:
        for value in values:
            ctx.report_progress(value)
        return "done"

    server.add_tool(plain, name="in_a_thread")
    server.add_tool(plain, name="on_the_loop", thread=False)
    return server


async def run(wire: Wire, name: str, token: Any = "t", **arguments: Any) -> list[dict[str, Any]]:
    meta = {} if token is None else {"progressToken": token}
    before = len(wire.seen)
    answer = await wire.exchange(wire.request("tools/call", {"name": name, "arguments": arguments, "_meta": meta}))
    assert "result" in answer
    await wire.quiet(0.03)
    return [message["params"] for message in wire.seen[before:] if "method" in message]


@pytest.mark.rule("PROG-1", "PROG-2", "PROG-4", "PROG-5")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", MODERN])
async def test_reports_carry_token_total_and_message(version: str) -> None:
    async with Wire(new_server(), version) as wire:
        sent = await run(wire, "steps", 0, values=[0, 0.5, 2])
        assert [each["progress"] for each in sent] == [0, 0.5, 2]
        assert {each["progressToken"] for each in sent} == {0}
        assert {each["total"] for each in sent} == {100}
        assert ("message" in sent[0]) is (version != "2024-11-05")


async def test_without_a_token_there_is_silence() -> None:
    async with Wire(new_server(), "2025-06-18") as wire:
        for name in ("steps", "in_a_thread", "on_the_loop"):
            assert await run(wire, name, None, values=[1, 2]) == []


@pytest.mark.rule("PROG-7")
@pytest.mark.parametrize("name", ["steps", "in_a_thread", "on_the_loop"])
async def test_a_flood_is_thinned_and_the_last_report_comes_before_the_answer(name: str) -> None:
    async with Wire(new_server(), MODERN) as wire:
        began = time.monotonic()
        sent = [each["progress"] for each in await run(wire, name, values=list(range(2000)))]
        at_most = 20 + 50 * (time.monotonic() - began) + 2
        assert sent[:20] == list(range(20))
        assert sent[-1] == 1999
        assert len(sent) <= at_most
        assert sent == sorted(set(sent))
