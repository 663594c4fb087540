"""Who shares a state shows that it lives; whoever waits for one that does not is told so, soon and only then."""

import asyncio

import pytest

from dovetail.engine import member
from dovetail.engine.member import Member, Vigil
from far_state import FarState


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "LEASE_SECONDS", 0.2)
    monkeypatch.setattr(member, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(member, "CERTAIN_SECONDS", 0.3)


async def until_lost(vigil: Vigil) -> None:
    async with asyncio.timeout(5):
        while not await vigil.is_lost():  # noqa: ASYNC110  # time is what it waits for
            await asyncio.sleep(0.01)


async def killed(state: FarState) -> str:
    """A worker that has lived for a moment, and did not say good-bye."""
    worker = Member(state)
    worker.start()
    await asyncio.sleep(0.05)
    assert worker._renewing is not None
    worker._renewing.cancel()
    return worker.id


async def test_one_that_lives_is_never_lost(soon: None) -> None:
    state = FarState()
    worker, other = Member(state), Member(state)
    worker.start()
    await asyncio.sleep(0.05)
    vigil = Vigil(other, worker.id, state)
    for _ in range(50):
        assert not await vigil.is_lost()
        await asyncio.sleep(0.01)
    await worker.stop()
    assert not await other.lives(worker.id)


async def test_one_that_is_gone_is_lost_after_a_moment(soon: None) -> None:
    state = FarState()
    gone = await killed(state)
    vigil = Vigil(Member(state), gone, state)
    assert not await vigil.is_lost()
    await asyncio.sleep(0.25)
    assert not await vigil.is_lost()  # its lease has just gone
    await until_lost(vigil)


async def test_the_moment_does_not_begin_anew_for_the_next_who_waits(soon: None) -> None:
    """Else a caller whose second and third worker die too would wait for ever."""
    state = FarState()
    gone = await killed(state)
    await until_lost(Vigil(Member(state), gone, state))
    assert await Vigil(Member(state), gone, state).is_lost()


async def test_after_an_outage_it_begins_anew(soon: None) -> None:
    state = FarState()
    gone = await killed(state)
    vigil = Vigil(Member(state), gone, state)
    await until_lost(vigil)
    state.outages += 1
    assert not await vigil.is_lost()
    await until_lost(vigil)


async def test_one_that_comes_back_is_not_missed_any_more(soon: None) -> None:
    state = FarState()
    stalled = Member(state)
    vigil = Vigil(Member(state), stalled.id, state)
    assert not await vigil.is_lost()  # missed from now on
    await asyncio.sleep(0.2)
    stalled.start()
    await asyncio.sleep(0.05)
    assert stalled._renewing is not None
    stalled._renewing.cancel()
    await asyncio.sleep(0.25)
    assert not await vigil.is_lost()  # missed anew, not since long ago
