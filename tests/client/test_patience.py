"""Time limits that stand still while questions are open."""

import asyncio

import pytest

from dovetail.client.patience import Patience


async def limited(patience: Patience, seconds: float | None, work: float) -> None:
    async with asyncio.timeout(seconds) as limit:
        with patience.counting(limit):
            await asyncio.sleep(work)


async def test_without_questions_a_limit_is_a_limit() -> None:
    await limited(Patience(), 5, 0)
    with pytest.raises(TimeoutError):
        await limited(Patience(), 0.01, 5)


async def test_questions_that_overlap_hold_it_until_the_last_is_answered() -> None:
    patience = Patience()
    request = asyncio.create_task(limited(patience, 0.05, 0.2))
    await asyncio.sleep(0)
    first, second = patience.standing_still(), patience.standing_still()
    first.__enter__()
    second.__enter__()
    await asyncio.sleep(0.1)
    first.__exit__(None, None, None)
    await asyncio.sleep(0.08)
    assert not request.done()
    second.__exit__(None, None, None)
    await request  # with what was left of its time


async def test_the_time_before_a_question_counts() -> None:
    patience = Patience()
    request = asyncio.create_task(limited(patience, 0.1, 5))
    await asyncio.sleep(0.07)
    with patience.standing_still():
        await asyncio.sleep(0.05)
    begun = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await request
    assert asyncio.get_running_loop().time() - begun < 0.09  # not the whole of it once more


async def test_a_request_that_ends_or_has_no_limit() -> None:
    patience = Patience()
    requests = [asyncio.create_task(limited(patience, seconds, 0.01)) for seconds in (5, None)]
    await asyncio.sleep(0)
    with patience.standing_still():
        await asyncio.gather(*requests)


async def test_a_limit_that_is_reached_at_the_same_moment() -> None:
    patience = Patience()
    request = asyncio.create_task(limited(patience, 0.01, 5))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.01, lambda: None)
    with pytest.raises(TimeoutError):
        while not request.done():
            with patience.standing_still():
                pass
            await asyncio.sleep(0.002)
        await request
