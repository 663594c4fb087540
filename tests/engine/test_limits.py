"""Concurrency limits, also under cancellation."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.limits import Limit
from dovetail.errors import Busy, ServerBusy, SetupError, ToolBusy


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


# ── Limit ──


def test_a_free_slot_is_taken_without_a_turn_of_the_loop() -> None:
    limit = Limit(1, 0, subject="tool 'x'")
    with pytest.raises(StopIteration):
        limit.acquire().send(None)
    assert (limit.running, limit.waiting) == (1, 0)
    limit.release()
    assert limit.running == 0


async def test_others_wait_in_order() -> None:
    limit = Limit(2, 100, subject="tool 'x'")
    order: list[int] = []
    running = 0

    async def call(number: int) -> None:
        nonlocal running
        async with limit:
            running += 1
            assert running <= 2
            order.append(number)
            await turns(number % 4)
            running -= 1

    await asyncio.gather(*(call(number) for number in range(40)))
    assert order == list(range(40))
    assert (limit.running, limit.waiting) == (0, 0)


async def test_a_newcomer_never_overtakes_one_who_was_given_the_slot() -> None:
    limit = Limit(1, 10, subject="tool 'x'")
    await limit.acquire()
    first = asyncio.create_task(limit.acquire())
    await turns()
    limit.release()  # now it belongs to `first`, which has not run yet
    second = asyncio.create_task(limit.acquire())
    await turns()
    assert first.done()
    assert not second.done()
    limit.release()
    await second
    limit.release()


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


async def test_the_slot_is_given_back_when_the_call_fails() -> None:
    limit = Limit(1, 0, subject="tool 'x'")
    with pytest.raises(ValueError, match="oh"):
        async with limit:
            raise ValueError("oh")
    assert limit.running == 0


async def test_cancelling_the_one_who_was_just_given_the_slot_passes_it_on() -> None:
    limit = Limit(1, 10, subject="tool 'x'")
    await limit.acquire()
    first, second = (asyncio.create_task(limit.acquire()) for _ in range(2))
    await turns()
    limit.release()
    first.cancel()
    await asyncio.wait_for(second, 5)
    assert first.cancelled()
    assert (limit.running, limit.waiting) == (1, 0)


async def test_a_waiter_cancelled_in_the_same_turn_is_passed_over() -> None:
    limit = Limit(1, 10, subject="tool 'x'")
    await limit.acquire()
    first, second = (asyncio.create_task(limit.acquire()) for _ in range(2))
    await turns()
    first.cancel()
    limit.release()
    await asyncio.wait_for(second, 5)
    assert (limit.running, limit.waiting) == (1, 0)


@pytest.mark.parametrize("seed", range(10))
async def test_random_cancellations_neither_lose_nor_leak_a_slot(seed: int) -> None:
    chance = random.Random(seed)
    limit = Limit(3, 1000, subject="tool 'x'")
    running = 0

    async def call() -> None:
        nonlocal running
        async with limit:
            running += 1
            assert running <= 3
            try:
                await turns(chance.randrange(4))
            finally:
                running -= 1

    tasks: list[asyncio.Task[None]] = []
    for _ in range(400):
        tasks.append(asyncio.create_task(call()))
        if chance.random() < 0.4:
            chance.choice(tasks).cancel()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert (limit.running, limit.waiting) == (0, 0)


# ── slots that are given back for a while ──


async def test_a_slot_is_taken_again_in_line_however_long_it_is() -> None:
    limit = Limit(1, 1, subject="tool 'x'")
    await limit.acquire()
    waiting = asyncio.create_task(limit.acquire())
    await turns()
    again = asyncio.create_task(limit.reclaim())
    await turns()
    assert (limit.running, limit.waiting) == (1, 2)
    limit.release()
    await waiting
    await turns()
    assert not again.done()
    limit.release()
    await again
    assert (limit.running, limit.waiting) == (1, 0)


def test_a_free_slot_is_taken_again_without_a_turn_of_the_loop() -> None:
    limit = Limit(1, 0, subject="tool 'x'")
    with pytest.raises(StopIteration):
        limit.reclaim().send(None)
    assert limit.running == 1


@pytest.mark.parametrize("given_first", [True, False])
async def test_who_is_cancelled_while_taking_its_slot_again_has_it(given_first: bool) -> None:
    limit = Limit(1, 10, subject="tool 'x'")
    await limit.acquire()
    again = asyncio.create_task(limit.reclaim())
    await turns()
    if given_first:
        limit.release()
    again.cancel()
    await asyncio.wait([again])
    assert again.cancelled()
    assert limit.running == (1 if given_first else 2)


async def test_nobody_gets_a_slot_while_too_many_are_taken() -> None:
    limit = Limit(1, 10, subject="tool 'x'")
    await limit.acquire()
    limit.overdraw()
    waiting = asyncio.create_task(limit.acquire())
    await turns()
    assert (limit.running, limit.waiting) == (2, 1)
    limit.release()
    await turns()
    assert not waiting.done()
    limit.release()
    await waiting
    limit.release()
    assert (limit.running, limit.waiting) == (0, 0)


class Calls:
    """Calls that enter, give their slots back, take them again, are cancelled and end, as they are told."""

    def __init__(self, slots: int) -> None:
        self.limit = Limit(slots, 5, subject="tool 'x'")
        self.slots = slots
        self.holding = 0
        self.away = 0  # calls whose slots others have
        self.waits: list[asyncio.Task[None]] = []
        self.overdrawn = 0  # since the last look
        self.before = 0

    def enter(self, _: int) -> None:
        self.waits.append(asyncio.create_task(self._acquire()))

    async def _acquire(self) -> None:
        try:
            await self.limit.acquire()
        except Busy:
            return
        self.holding += 1

    def lend(self, _: int) -> None:
        if self.holding:
            self.holding -= 1
            self.away += 1
            self.limit.release()

    def take_again(self, _: int) -> None:
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

    def leave(self, _: int) -> None:
        if self.holding:
            self.holding -= 1
            self.limit.release()

    async def look(self) -> None:
        await turns()
        self.waits = [task for task in self.waits if not task.done()]
        assert self.limit.running == self.holding
        assert self.limit.waiting == len(self.waits)
        assert self.holding <= max(self.slots, self.before + self.overdrawn)
        assert not self.waits or self.holding >= self.slots, "somebody waits for a slot that is free"
        self.before, self.overdrawn = self.holding, 0


MOVES = ("enter", "enter", "lend", "take_again", "cancel", "leave", "look", "look")


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 9)), max_size=60))
def test_slots_that_are_given_back_for_a_while_are_neither_lost_nor_doubled(slots: int, moves: Any) -> None:
    async def play() -> None:
        calls = Calls(slots)
        for move, number in moves:
            if move == "look":
                await calls.look()
            else:
                getattr(calls, move)(number)
        await calls.look()
        while calls.holding or calls.away:
            calls.take_again(0)
            calls.leave(0)
            await calls.look()
        assert (calls.limit.running, calls.limit.waiting) == (0, 0)

    asyncio.run(play())


@pytest.mark.parametrize(("slots", "queue"), [(0, 1), (-1, 1), (1, -1)])
def test_sizes_that_make_no_sense_are_refused(slots: int, queue: int) -> None:
    with pytest.raises(SetupError, match="tool 'x' can't have"):
        Limit(slots, queue, subject="tool 'x'")
