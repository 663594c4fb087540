"""Time limits that stand still while questions are open."""

import asyncio

import pytest

from dovetail.client.patience import Patience


async def limited(patience: Patience, seconds: float | None, done: asyncio.Event) -> None:
    async with asyncio.timeout(seconds) as limit:
        with patience.counting(limit):
            await done.wait()


async def test_without_questions_a_limit_is_a_limit() -> None:
    done = asyncio.Event()
    with pytest.raises(TimeoutError):
        await limited(Patience(), 0.01, done)
    done.set()
    await limited(Patience(), 5, done)


async def test_questions_that_overlap_hold_it_until_the_last_is_answered() -> None:
    patience, done = Patience(), asyncio.Event()
    request = asyncio.create_task(limited(patience, 0.05, done))
    await asyncio.sleep(0)
    first, second = patience.standing_still(), patience.standing_still()
    first.__enter__()
    second.__enter__()
    await asyncio.sleep(0.1)
    first.__exit__(None, None, None)
    await asyncio.sleep(0.1)
    assert not request.done()
    second.__exit__(None, None, None)
    with pytest.raises(TimeoutError):
        await request


async def test_the_time_before_a_question_counts() -> None:
    patience, clock = Patience(), asyncio.get_running_loop().time
    request = asyncio.create_task(limited(patience, 0.5, asyncio.Event()))
    await asyncio.sleep(0.4)
    with patience.standing_still():
        await asyncio.sleep(0.05)
    begun = clock()
    with pytest.raises(TimeoutError):
        await request
    assert clock() - begun < 0.4  # not the whole of it once more


async def test_a_request_that_is_made_because_of_a_question_has_its_time() -> None:
    patience = Patience()
    with patience.standing_still(), pytest.raises(TimeoutError):
        await limited(patience, 0.01, asyncio.Event())


async def test_a_request_that_ends_or_has_no_limit() -> None:
    patience, done = Patience(), asyncio.Event()
    requests = [asyncio.create_task(limited(patience, seconds, done)) for seconds in (5, None)]
    await asyncio.sleep(0)
    with patience.standing_still():
        done.set()
        await asyncio.gather(*requests)


async def test_a_limit_that_is_reached_at_any_moment() -> None:
    patience = Patience()
    request = asyncio.create_task(limited(patience, 0.01, asyncio.Event()))
    await asyncio.sleep(0)
    while not request.done():
        with patience.standing_still():
            pass
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await request
