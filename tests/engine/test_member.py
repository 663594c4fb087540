"""Workers that share a state show that they live; one whose lease is gone is lost, but not right after an outage."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dovetail.engine.member import Member
from dovetail.state.memory import MemoryState
from far_state import FarState
from http_serving import until


class Store(FarState):
    """Its time is the test's."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__(clock=lambda: self.now)


@asynccontextmanager
async def living(state: Store) -> AsyncIterator[Member]:
    worker = Member(state, lease=10, beat=0.001)
    worker.start()
    await until(lambda: worker.trouble is None)
    yield worker
    await worker.stop()


async def test_one_that_lives_is_not_lost_and_one_that_has_stopped_is() -> None:
    state = Store()
    other = Member(state)
    async with living(state) as worker:
        for _ in range(10):
            state.now += 9
            touched = state.calls["touch"]
            await until(lambda touched=touched: state.calls["touch"] > touched + 1)
            assert not await other.is_lost(worker.id)
        assert await other.lives(worker.id)
    assert await other.is_lost(worker.id)
    assert not await other.is_lost(other.id)


async def test_one_that_was_killed_is_lost_when_its_lease_has_expired() -> None:
    state = Store()
    await state.put("worker/killed", b"", ttl=10)
    other = Member(state)
    state.now += 9.9
    assert not await other.is_lost("killed")
    state.now += 0.2
    assert await other.is_lost("killed")


async def test_after_an_outage_a_worker_judges_no_other_for_one_lease() -> None:
    state = Store()
    other = Member(state, lease=0.2)
    assert await other.is_lost("gone")
    state.outages += 1
    assert not await other.is_lost("gone")
    async with asyncio.timeout(5):
        while not await other.is_lost("gone"):  # noqa: ASYNC110  # time is what it waits for
            await asyncio.sleep(0.01)


async def test_trouble_of_the_store_is_known_without_asking_it() -> None:
    state = Store()
    async with living(state) as worker:
        state.break_down()
        await until(lambda: worker.trouble is not None)
        state.now += 11  # the lease is gone meanwhile
        state.trouble = None
        await until(lambda: worker.trouble is None)
        assert await Member(state).lives(worker.id)


async def test_where_no_process_shares_the_state_all_others_are_lost() -> None:
    alone = Member(MemoryState())
    alone.start()
    assert await alone.is_lost("gone")
    assert not await alone.is_lost(alone.id)
    await alone.stop()
