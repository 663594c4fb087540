"""Progress: what the gate lets through, and what a client hears of reports."""

import asyncio
import math
import time
from enum import IntEnum
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Context, Server, ToolError
from dovetail.engine.progress import AT_ONCE, SPACING, ProgressGate, Update
from wire import MODERN, Wire


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


EVERY = pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-11-25", MODERN])


def new_server() -> Server:
    server = Server("progress", version="1.0.0")

    @server.resource("a://nested")
    async def nested(ctx: Context) -> str:
        await ctx.report_progress(1)  # below what its caller has told
        await ctx.report_progress(50)
        return ""

    @server.tool
    async def steps(ctx: Context, values: list[Any], pause: float = 0, fail: bool = False) -> str:
        for value in values:
            await ctx.report_progress(value, 100, f"at {value}")
            await asyncio.sleep(pause)
        if fail:
            raise ToolError("in the middle")
        return "done"

    @server.tool
    def in_a_thread(ctx: Context, values: list[Any]) -> str:
        for value in values:
            ctx.report_progress(value)
        return "done"

    @server.tool(thread=False)
    def on_the_loop(ctx: Context, values: list[Any]) -> str:
        for value in values:
            ctx.report_progress(value)
        return "done"

    @server.tool
    async def nests(ctx: Context) -> str:
        await ctx.report_progress(10)
        await ctx.read_resource("a://nested")
        await ctx.report_progress(20)
        return "done"

    @server.tool
    async def leaves_a_task(ctx: Context) -> str:
        async def late() -> None:
            await asyncio.sleep(0.02)
            await ctx.report_progress(2)
            await ctx.info("late")

        server.late = asyncio.create_task(late())  # type: ignore[attr-defined]
        await ctx.report_progress(1)
        return "done"

    return server


async def run(wire: Wire, name: str, token: Any = "t", **arguments: Any) -> list[dict[str, Any]]:
    meta = {} if token is None else {"progressToken": token}
    before = len(wire.seen)
    answer = await wire.exchange(wire.request("tools/call", {"name": name, "arguments": arguments, "_meta": meta}))
    assert "result" in answer
    await wire.quiet(0.03)
    return [message["params"] for message in wire.seen[before:] if "method" in message]


@pytest.mark.rule("PROG-1", "PROG-2", "PROG-4", "PROG-5")
@EVERY
async def test_reports_carry_token_total_and_message(version: str) -> None:
    async with Wire(new_server(), version) as wire:
        sent = await run(wire, "steps", values=[0, 0.5, 2])
        assert [each["progress"] for each in sent] == [0, 0.5, 2]
        assert {each["progressToken"] for each in sent} == {"t"}
        assert {each["total"] for each in sent} == {100}
        assert ("message" in sent[0]) is (version != "2024-11-05")


@pytest.mark.rule("PROG-1", "PROG-2")
@pytest.mark.parametrize("token", [0, "", -5, 2**70, "0", "é"])
async def test_every_string_and_integer_is_a_token(token: Any) -> None:
    for version in ("2025-06-18", MODERN):
        async with Wire(new_server(), version) as wire:
            sent = await run(wire, "steps", token, values=[1])
            assert [(type(each["progressToken"]), each["progressToken"]) for each in sent] == [(type(token), token)]


async def test_without_a_token_there_is_silence() -> None:
    async with Wire(new_server(), "2025-06-18") as wire:
        for name in ("steps", "in_a_thread", "on_the_loop"):
            assert await run(wire, name, None, values=[1, 2]) == []


@pytest.mark.parametrize("token", [True, 1.5, [], {}, None])
async def test_other_tokens_are_refused(token: Any) -> None:
    async with Wire(new_server(), MODERN) as wire:
        params = {"name": "steps", "arguments": {"values": []}, "_meta": {"progressToken": token}}
        assert (await wire.refusal("tools/call", params))["code"] == -32602


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


async def test_the_latest_report_goes_out_while_the_call_goes_on() -> None:
    server = new_server()
    release = asyncio.Event()

    @server.tool
    async def waits(ctx: Context) -> str:
        for value in range(100):
            await ctx.report_progress(value)
        await release.wait()
        return "done"

    async with Wire(server, MODERN) as wire:
        wire.send(wire.request("tools/call", {"name": "waits", "_meta": {"progressToken": 1}}))
        while (await wire.receive())["params"]["progress"] != 99:
            pass
        release.set()
        assert "result" in await wire.receive()


@pytest.mark.rule("PROG-6")
async def test_nothing_comes_after_the_answer() -> None:
    async with Wire(new_server(), "2025-11-25") as wire:
        assert [each["progress"] for each in await run(wire, "leaves_a_task")] == [1]
        await wire.server.late
        await wire.quiet(0.05)
