"""A concurrency limit that workers share: never more than its slots, none lost, none hoarded, also when workers die."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dovetail.engine import leases
from dovetail.engine.leases import FleetLimit, Leases
from dovetail.errors import Busy, ToolBusy
from far_state import FarState


class Clock:
    """The store's time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Fleet:
    """Some workers around one state, each with its own limit of the same tool."""

    def __init__(self, workers: int, slots: int, queue: int = 100, patience: float | None = None) -> None:
        self.clock = Clock()
        self.state = FarState(clock=self.clock)
        self.leases = [Leases(self.state) for _ in range(workers)]
        self.limits = [FleetLimit(each, "press", slots, queue, patience=patience) for each in self.leases]
        self.running = 0
        self.most = 0
        self.done = [0] * workers

    async def call(self, worker: int, turns: int = 2) -> None:
        async with self.limits[worker]:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
                self.done[worker] += 1
            finally:
                self.running -= 1

    def kill(self, worker: int) -> None:
        """As `kill -9` does: nothing is given back, nothing renewed."""
        dead = self.leases[worker]
        for task in (dead._keeper, *dead._searches):
            if task is not None:
                task.cancel()
        dead._held.clear()

    def taken(self) -> int:
        return sum(key.startswith("slot/") for key in self.state._entries.things)


@asynccontextmanager
async def fleet(workers: int, slots: int, queue: int = 100, patience: float | None = None) -> AsyncIterator[Fleet]:
    made = Fleet(workers, slots, queue, patience)
    yield made
    for each in made.leases:
        await each.close()
    if made.state.trouble is None and made.clock.now == 0:
        assert made.taken() == 0
    assert all(not each._searches for each in made.leases)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(leases, "STAND_BACK", 0.001)


async def turns(number: int = 30) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("workers", "slots"), [(1, 1), (2, 1), (3, 2), (4, 5)])
async def test_never_more_than_its_slots(workers: int, slots: int) -> None:
    async with fleet(workers, slots) as made:
        calls = [made.call(number % workers, number % 5) for number in range(40)]
        await asyncio.wait_for(asyncio.gather(*calls), 10)
        assert made.most <= slots
        assert sum(made.done) == 40
        assert all((limit.running, limit.waiting) == (0, 0) for limit in made.limits)


async def test_a_call_alone_asks_the_store_once() -> None:
    async with fleet(1, 10) as made:
        await made.call(0)
        await made.call(0)
        assert made.state.calls["claim"] == 2


async def test_others_of_the_same_worker_are_served_without_the_store_and_in_order() -> None:
    async with fleet(1, 1) as made:
        order: list[int] = []

        async def call(number: int) -> None:
            async with made.limits[0]:
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(call(number) for number in range(30)))
        assert order == list(range(30))
        assert made.state.calls["claim"] < 5


async def test_no_worker_keeps_a_slot_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "TURN_SECONDS", 0.005)
    monkeypatch.setattr(leases, "STAND_BACK", 0.01)
    async with fleet(3, 1) as made:

        async def busy(worker: int) -> None:
            while min(made.done) < 10:
                await made.call(worker, 5)

        await asyncio.wait_for(asyncio.gather(*(busy(worker) for worker in (0, 0, 0, 0, 1, 1, 2))), 20)
        assert made.most == 1


async def test_a_dead_worker_s_slots_are_free_when_its_leases_expire() -> None:
    async with fleet(2, 2) as made:
        for _ in range(2):
            await made.limits[0].acquire()
        waiting = asyncio.create_task(made.limits[1].acquire())
        await turns()
        made.kill(0)
        made.clock.now += leases.LEASE_SECONDS - 0.1
        await asyncio.sleep(0.1)
        assert not waiting.done()
        made.clock.now += 0.2
        await asyncio.wait_for(waiting, 5)
        made.limits[1].release()


async def test_leases_are_renewed_while_a_call_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.01)
    async with fleet(2, 1) as made:
        await made.limits[0].acquire()
        waiting = asyncio.create_task(made.limits[1].acquire())
        for _ in range(5):
            made.clock.now += leases.LEASE_SECONDS * 0.7
            await asyncio.sleep(0.05)
        assert not waiting.done()
        made.limits[0].release()
        await asyncio.wait_for(waiting, 5)
        made.limits[1].release()


async def test_a_slot_that_was_lost_is_not_taken_from_who_has_it_now(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(2, 1) as made:
        await made.limits[0].acquire()
        made.clock.now += leases.LEASE_SECONDS + 1  # this worker stood still so long
        await asyncio.wait_for(made.limits[1].acquire(), 5)
        monkeypatch.setattr(leases, "RENEW_SECONDS", 0.01)
        (lease,) = made.leases[0]._held
        lease.renewed -= leases.LEASE_SECONDS + 1
        await made.leases[0]._renew(lease)
        assert lease.is_lost
        assert "a call runs on although its slot has expired" in caplog.text
        made.limits[0].release()
        await turns()
        assert made.taken() == 1
        made.limits[1].release()


async def test_what_is_not_certainly_ours_is_left_to_expire() -> None:
    async with fleet(1, 1) as made:
        await made.limits[0].acquire()
        (lease,) = made.leases[0]._held
        lease.renewed -= leases.CERTAIN_SECONDS
        made.limits[0].release()
        await turns()
        assert made.state.calls["delete"] == 0
        made.clock.now += leases.LEASE_SECONDS


async def test_a_slot_that_expired_unnoticed_is_claimed_again() -> None:
    async with fleet(1, 1) as made:
        await made.limits[0].acquire()
        made.clock.now += leases.LEASE_SECONDS + 1
        (lease,) = made.leases[0]._held
        await made.leases[0]._renew(lease)
        assert not lease.is_lost
        assert made.taken() == 1
        made.limits[0].release()


# ── refusals ──


@pytest.mark.parametrize("queue", [0, 2])
async def test_a_full_queue_is_busy(queue: int) -> None:
    async with fleet(2, 1, queue) as made:
        await made.limits[0].acquire()
        calls = [asyncio.create_task(made.limits[1].acquire()) for _ in range(queue + 1)]
        await turns()
        assert [call.done() for call in calls] == [False] * queue + [True]
        text = (
            f"The tool press is busy: all 1 slots that the workers share are taken and {queue} calls waiting here; "
            "try again in 1 s."
        )
        assert str(calls[-1].exception()) == text
        with pytest.raises(ToolBusy) as caught:
            await made.limits[1].acquire()
        assert str(caught.value) == text
        made.limits[0].release()
        for call in calls[:-1]:
            await asyncio.wait_for(call, 5)
            made.limits[1].release()


async def test_nobody_waits_longer_than_a_call_may_take() -> None:
    async with fleet(2, 1, patience=0.05) as made:
        await made.limits[0].acquire()
        with pytest.raises(ToolBusy) as caught:
            await made.limits[1].acquire()
        assert str(caught.value) == "The tool press is busy: no slot became free within 0.05 s; try again in 1 s."
        assert made.limits[1].waiting == 0
        made.limits[0].release()
        await made.call(1)


async def test_a_store_in_trouble_refuses_these_calls_and_no_longer_than_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet(2, 1) as made:
        await made.limits[0].acquire()
        waiting = asyncio.create_task(made.limits[1].acquire())
        await turns()
        made.state.break_down()
        for call in (waiting, asyncio.create_task(made.limits[1].acquire())):
            with pytest.raises(Busy) as caught:
                await asyncio.wait_for(call, 5)
            assert not isinstance(caught.value, ToolBusy)  # it is not the model's to read
            assert caught.value.http_status == 503
            assert str(caught.value) == (
                "The tool press can't be called now: its limit is kept in a store that is in trouble; try again later"
            )
        made.state.trouble = None
        made.limits[0].release()
        await made.call(1)
        assert sum(made.done) == 1


async def test_a_store_that_is_closed_ends_the_wait() -> None:
    async with fleet(2, 1) as made:
        await made.limits[0].acquire()
        waiting = asyncio.create_task(made.limits[1].acquire())
        await turns()
        made.state.break_down()
        await made.state.close()
        with pytest.raises(Busy, match="a store that is in trouble"):
            await asyncio.wait_for(waiting, 5)


# ── slots that are lent ──


async def test_a_slot_that_was_given_back_for_a_while_is_taken_again() -> None:
    async with fleet(2, 1, queue=0) as made:
        await made.limits[0].acquire()
        made.limits[0].release()
        await made.limits[1].acquire()
        back = asyncio.create_task(made.limits[0].reclaim())
        await asyncio.sleep(0.05)
        assert not back.done()  # however short the queue is
        made.limits[1].release()
        await asyncio.wait_for(back, 5)
        assert made.limits[0].running == 1
        made.limits[0].release()
        await made.call(1)


async def test_who_is_cancelled_on_the_way_back_has_it_nevertheless() -> None:
    async with fleet(2, 1) as made:
        await made.limits[1].acquire()
        back = asyncio.create_task(made.limits[0].reclaim())
        await turns()
        back.cancel()
        await asyncio.wait([back])
        assert made.limits[0].running == 1
        made.limits[0].release()
        assert made.limits[0].running == 0
        made.limits[1].release()
        await made.call(0)


async def test_in_trouble_a_call_that_is_half_done_goes_on_without_a_slot() -> None:
    async with fleet(1, 1) as made:
        made.state.break_down()
        await asyncio.wait_for(made.limits[0].reclaim(), 5)
        assert made.limits[0].running == 1
        made.state.trouble = None
        made.limits[0].release()
        await made.call(0)
        assert made.limits[0].running == 0


@pytest.mark.parametrize("seed", range(8))
async def test_random_cancellations_neither_lose_nor_leak_a_slot(seed: int) -> None:
    chance = random.Random(seed)
    async with fleet(3, 2) as made:
        calls = [asyncio.create_task(made.call(chance.randrange(3), chance.randrange(6))) for _ in range(60)]
        for _ in range(200):
            await asyncio.sleep(0)
            if chance.random() < 0.3:
                chance.choice(calls).cancel()
        await asyncio.wait(calls, timeout=10)
        assert all(call.done() for call in calls)
        assert made.most <= 2
        await turns(100)
        assert made.taken() == 0
        assert all((limit.running, limit.waiting) == (0, 0) for limit in made.limits)
        await asyncio.wait_for(asyncio.gather(*(made.call(number % 3) for number in range(6))), 5)
