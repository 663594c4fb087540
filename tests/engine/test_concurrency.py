"""Concurrency limits of a process and of a fleet, and timeouts, also under cancellation."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Server
from dovetail.engine.concurrency import (
    CallTimeout,
    FleetLimit,
    Limit,
    paused_timeouts,
    with_function_timeout,
    with_timeout,
)
from dovetail.engine.workers import LeaseTimings
from dovetail.errors import Busy, ServerBusy, ToolBusy
from http_serving import until
from remote_state import RemoteState
from wire import MODERN, Wire


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


# ── Limit ──


def test_a_free_slot_is_taken_without_a_turn_of_the_loop() -> None:
    limit = Limit(1, 0, subject="tool 'x'")
    for take in (limit.acquire, limit.reclaim):
        with pytest.raises(StopIteration):
            take().send(None)
        assert (limit.running, limit.waiting, limit.take()) == (1, 0, False)
        limit.release()
        assert limit.running == 0
    assert limit.take()


async def test_others_wait_in_order() -> None:
    limit, order = Limit(2, 100, subject="tool 'x'"), list[int]()

    async def call(number: int) -> None:
        async with limit:
            order.append(number)
            await turns(number % 4)

    await asyncio.gather(*(call(number) for number in range(40)))
    assert order == list(range(40))


@pytest.mark.parametrize("busy", [ServerBusy, ToolBusy])
@pytest.mark.parametrize(("slots", "queue"), [(1, 0), (2, 3)])
async def test_a_full_queue_is_busy(slots: int, queue: int, busy: type[Busy]) -> None:
    limit = Limit(slots, queue, subject="tool 'x'", busy=busy)
    for _ in range(slots):
        await limit.acquire()
    waiting = [asyncio.create_task(limit.acquire()) for _ in range(queue)]
    await turns()
    message = f"tool 'x' is busy: {slots} calls running and {queue} waiting; try again in 1 s."
    with pytest.raises(busy) as caught:
        await limit.acquire()
    assert str(caught.value) == caught.value.message == message
    for _ in range(slots + queue):
        limit.release()
        await turns()
    assert all(task.done() for task in waiting)
    assert limit.running == 0


# ── released slots of one worker ──


class Calls:
    """Calls that start, release their slots, reclaim them, are cancelled and finish, as the test says."""

    def __init__(self, slots: int) -> None:
        self.limit = Limit(slots, 5, subject="tool 'x'")
        self.slots = slots
        self.holding = 0
        self.away = 0  # calls whose slots others have
        self.waits: list[asyncio.Task[None]] = []
        self.overdrawn = 0  # since the last check
        self.before = 0

    def start(self, _: int) -> None:
        self.waits.append(asyncio.create_task(self._acquire()))

    async def _acquire(self) -> None:
        try:
            await self.limit.acquire()
        except Busy:
            return
        self.holding += 1

    def pause(self, _: int) -> None:
        if self.holding:
            self.holding -= 1
            self.away += 1
            self.limit.release()

    def reclaim(self, _: int) -> None:
        if self.away:
            self.away -= 1
            self.waits.append(asyncio.create_task(self._reclaim()))

    async def _reclaim(self) -> None:
        try:
            await self.limit.reclaim()
        except asyncio.CancelledError:
            self.overdrawn += 1
        self.holding += 1

    def cancel(self, number: int) -> None:
        if self.waits:
            self.waits[number % len(self.waits)].cancel()

    def finish(self, _: int) -> None:
        if self.holding:
            self.holding -= 1
            self.limit.release()

    async def check(self) -> None:
        await turns()
        self.waits = [task for task in self.waits if not task.done()]
        assert self.limit.running == self.holding
        assert self.limit.waiting == len(self.waits)
        assert self.holding <= max(self.slots, self.before + self.overdrawn)
        assert not self.waits or self.holding >= self.slots, "a call waits for a slot that is free"
        self.before, self.overdrawn = self.holding, 0


MOVES = ("start", "start", "pause", "reclaim", "cancel", "finish", "check", "check")


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 9)), max_size=60))
async def test_slots_that_are_released_for_a_while_are_neither_lost_nor_doubled(slots: int, moves: Any) -> None:
    calls = Calls(slots)
    for move, number in moves:
        if move == "check":
            await calls.check()
        else:
            getattr(calls, move)(number)
    await calls.check()
    while calls.holding or calls.away:
        calls.reclaim(0)
        calls.finish(0)
        await calls.check()
    assert (calls.limit.running, calls.limit.waiting) == (0, 0)


LEASE = 50.0  # seconds of the store's clock, which stands still unless a test moves it


class Fleet:
    """Some workers around one state, each with its own limit of the same tool."""

    def __init__(self, workers: int, slots: int, queue: int = 100) -> None:
        self.now = 0.0
        self.state = RemoteState(clock=lambda: self.now)
        self.limits = [
            FleetLimit(self.state, "press", slots, queue, None, LeaseTimings(LEASE, 0.02)) for _ in range(workers)
        ]
        self.running = self.most = self.done = 0

    async def __aenter__(self) -> "Fleet":
        return self

    async def __aexit__(self, *_: object) -> None:
        async with asyncio.timeout(20):
            for each in self.limits:
                await each.close()
        assert self.taken() == 0 or self.state.error is not None or self.now > 0

    async def call(self, worker: int, turns: int = 2) -> None:
        """Gives its slot back for a while, as a call does that asks its client."""
        async with self.limits[worker]:
            await self._work(turns)
            self.limits[worker].release()
            await asyncio.sleep(0)
            await self.limits[worker].reclaim()
            await self._work(turns)
            self.done += 1

    async def _work(self, number: int) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await turns(number)
        finally:
            self.running -= 1

    def taken(self) -> int:
        return sum(key.startswith("slot/") for key in self.state._entries.rows)


async def test_a_dead_worker_s_slots_are_free_when_its_leases_expire() -> None:
    async with Fleet(2, 2) as made:
        for _ in range(2):
            await made.state.claim(f"slot/press/{_}", b"of the dead", LEASE)
        waiting = asyncio.create_task(made.limits[1].acquire())
        made.now += LEASE - 0.1
        tried = made.state.calls["claim"]
        await until(lambda: made.state.calls["claim"] > tried + 2)  # both slots, once more
        assert not waiting.done()
        made.now += 0.2
        await waiting
        made.limits[1].release()


async def test_leases_are_renewed_while_a_call_runs() -> None:
    async with Fleet(2, 1) as made:
        await made.limits[0].acquire()
        waiting = asyncio.create_task(made.limits[1].acquire())
        for _ in range(5):
            made.now += LEASE * 0.7
            renewed = made.state.calls["touch"] + 1
            await until(lambda renewed=renewed: made.state.calls["touch"] > renewed)
        assert not waiting.done()
        made.limits[0].release()
        await waiting
        made.limits[1].release()


async def test_a_slot_that_was_lost_is_not_taken_from_the_worker_that_has_it_now(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Fleet(2, 1) as made:
        await made.limits[0].acquire()
        made.now += LEASE + 1  # this worker stood still so long
        await made.limits[1].acquire()
        await until(lambda: "a call still runs although its slot has expired" in caplog.text)
        assert [limit.running for limit in made.limits] == [1, 1]
        made.limits[0].release()
        await asyncio.sleep(0.05)
        assert made.taken() == 1
        made.limits[1].release()
        await made.call(0)


# ── refusals ──


@pytest.mark.parametrize("queue", [0, 2])
async def test_a_full_queue_of_a_fleet_is_busy(queue: int) -> None:
    """One call looks for a slot, so many stand in line behind it; with no queue, none waits at all."""
    async with Fleet(2, 1, queue) as made:
        await made.limits[0].acquire()
        calls = [asyncio.create_task(made.limits[1].acquire()) for _ in range(queue + bool(queue))]
        await until(lambda: made.limits[1].waiting == queue)
        assert not any(call.done() for call in calls)
        with pytest.raises(ToolBusy, match=r"^The tool press is busy: .*; try again in 1 s\.$"):
            await made.limits[1].acquire()
        made.limits[0].release()
        for call in calls:
            await call
            made.limits[1].release()


@pytest.mark.parametrize("is_closed", [False, True])
async def test_an_unavailable_store_refuses_these_calls_and_no_longer_than_it_is(is_closed: bool) -> None:
    async with Fleet(2, 1) as made:
        await made.limits[0].acquire()
        waiting = asyncio.create_task(made.limits[1].acquire())
        await until(lambda: made.state.calls["claim"] > 2)
        made.state.break_down()
        if is_closed:
            await made.state.close()
        for call in (waiting, asyncio.create_task(made.limits[1].acquire())):
            with pytest.raises(Busy, match="unavailable") as caught:
                await call
            assert not isinstance(caught.value, ToolBusy)  # it is not the model's to read
            assert caught.value.http_status == 503
        if not is_closed:
            made.state.error = None
            made.limits[0].release()
            await made.call(1)


# ── slots that are released for a while ──


@pytest.mark.parametrize("is_here", [False, True], ids=["of another worker", "of this one"])
async def test_a_call_that_is_cancelled_on_the_way_back_has_it_nevertheless(is_here: bool) -> None:
    async with Fleet(2, 1) as made:
        holder = made.limits[0 if is_here else 1]
        await holder.acquire()
        back = asyncio.create_task(made.limits[0].reclaim())
        await until(lambda: made.limits[0].waiting == 1 or made.state.calls["claim"] > 2)
        back.cancel()
        await asyncio.wait([back])
        assert made.limits[0].running == 1 + is_here
        made.limits[0].release()
        holder.release()
        await until(lambda: made.limits[0].running == 0)
        await made.call(0)


async def test_without_a_store_a_call_that_is_half_done_goes_on_without_a_slot() -> None:
    async with Fleet(1, 1) as made:
        made.state.break_down()
        await made.limits[0].reclaim()
        assert made.limits[0].running == 1
        made.state.error = None
        made.limits[0].release()
        assert made.limits[0].running == 0
        await made.call(0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("workers", "slots"), [(1, 1), (2, 1), (3, 2), (4, 5)])
async def test_never_more_than_its_slots_and_cancellations_lose_none(workers: int, slots: int, seed: int) -> None:
    chance = random.Random(seed)
    async with Fleet(workers, slots) as made:
        calls = [asyncio.create_task(made.call(chance.randrange(workers), chance.randrange(6))) for _ in range(60)]
        for _ in range(200):
            await asyncio.sleep(0)
            if seed and chance.random() < 0.3:
                chance.choice(calls).cancel()
        await asyncio.wait(calls)
        assert made.most <= slots
        assert seed or made.done == 60
        await until(lambda: all((limit.running, limit.waiting) == (0, 0) for limit in made.limits))
        await until(lambda: made.taken() == 0)
        await asyncio.gather(*(made.call(number % workers) for number in range(6)))


# ── as clients meet it ──


async def test_a_tool_runs_once_in_all_workers() -> None:
    state, go, running, most = RemoteState(), asyncio.Event(), list[int](), list[int]()

    async def press() -> str:
        running.append(1)
        most.append(len(running))
        await go.wait()
        running.pop()
        return "pressed"

    def worker(state: RemoteState | None, **options: Any) -> Wire:
        server = Server("factory", **options)
        server.add_tool(press, max_concurrency=1)
        server.engine.state = state or server.engine.state
        return Wire(server, MODERN)

    async with worker(state) as one, worker(state) as other, worker(state, timeout=0.1) as third:
        for number, wire in enumerate((one, one, other, other)):
            wire.send(wire.request("tools/call", {"name": "press"}, id=number))
        await until(lambda: running == [1])
        refused = await third.ask("tools/call", {"name": "press"})  # which waits no longer than a call may take
        assert "no slot became free within 0.1 s" in refused["content"][0]["text"]
        go.set()
        for wire in (one, one, other, other):
            assert (await wire.receive())["result"]["content"][0]["text"] == "pressed"
    assert most == [1] * 4
    assert not any(key.startswith("slot/") for key in state._entries.rows)
    async with worker(None) as wire:
        tool = wire.server.engine.tools.get("press")
        assert (
            type(wire.server.engine.call_limits.for_tool(tool).slots) is Limit
        )  # without a shared state no store is asked


async def answer(after: float | None = None) -> str:
    if after is not None:
        await asyncio.sleep(after)
    return "answer"


async def timed(work: Coroutine[Any, Any, str], seconds: float) -> str:
    return await with_timeout(work, seconds)


async def test_work_that_never_waits_needs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_timer(*_: object) -> None:
        raise AssertionError("a timer was set")

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", no_timer)
    assert await with_timeout(answer(), 10) == "answer"


@pytest.mark.parametrize("swallows", [False, True])
async def test_work_that_takes_too_long_is_cancelled(swallows: bool) -> None:
    stopped: list[str] = []

    async def slow() -> str:
        try:
            return await answer(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # cleaning up may wait
            stopped.append("stopped")
            if swallows:
                return "anyway"
            raise

    if swallows:
        assert await with_timeout(slow(), 0.01) == "anyway"
    else:
        with pytest.raises(CallTimeout, match=r"Timed out after 0\.01 s") as caught:
            await with_timeout(slow(), 0.01)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.seconds == 0.01
    assert stopped == ["stopped"]
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0.01)  # the task goes on as if nothing had happened


@pytest.mark.parametrize("kind", [TimeoutError, ValueError, StopAsyncIteration])
@pytest.mark.parametrize("waits", [True, False])
async def test_exceptions_of_the_work_pass_through(kind: type[Exception], waits: bool) -> None:
    async def fail() -> None:
        if waits:
            await asyncio.sleep(0)
        raise kind("its own")

    with pytest.raises(kind, match="its own") as caught:
        await with_timeout(fail(), 10)
    assert not isinstance(caught.value, CallTimeout)


@pytest.mark.parametrize("seconds", [30, 0.01])
async def test_a_cancellation_from_outside_stays_one_also_if_it_meets_the_expiry(seconds: float) -> None:
    async def stubborn() -> str:
        try:
            return await answer(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)  # the expiry arrives while the work cleans up after the outer cancellation
            raise

    task = asyncio.create_task(timed(stubborn(), seconds))
    await turns()
    task.cancel("outside")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_function_that_asks_again_and_again_still_times_out() -> None:
    """Only the time that clients take does not count."""

    async def ask_often() -> None:
        while True:
            with paused_timeouts():
                await turns()
            await turns()

    async def ask_without_a_break() -> None:
        loop = asyncio.get_running_loop()
        while True:
            with paused_timeouts():
                await turns()
            until = loop.time() + 0.005
            while loop.time() < until:  # its own time, in which the loop can't turn
                pass

    for function in (ask_often, ask_without_a_break):
        async with asyncio.timeout(10):
            with pytest.raises(CallTimeout):
                await with_function_timeout(function(), 0.02)


async def test_a_function_may_end_while_a_task_of_its_own_asks() -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def ask() -> None:
        with paused_timeouts():
            asked.set()
            await answered.wait()

    async def work() -> asyncio.Task[None]:
        asking = asyncio.create_task(ask())
        await asked.wait()
        return asking

    asking = await with_function_timeout(work(), 10)
    answered.set()
    await asking


def test_closing_the_call_closes_the_work() -> None:
    closed = False

    async def work() -> str:
        nonlocal closed
        try:
            return await answer(60)
        finally:
            closed = True

    async def main() -> None:
        call = timed(work(), 5)
        call.send(None)
        call.close()

    asyncio.run(main())
    assert closed
