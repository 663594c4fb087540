"""Time limits that stand still while questions are open."""

import asyncio

import pytest

from dovetail.client.patience import Patience, TimeLimit


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


# ── limits that begin again ──


async def beginning_again(most: float, steps: int, pause: float = 0.03) -> TimeLimit:
    """Seconds are few here: 0.05 for each silence. The limit that was reached."""
    patience = Patience()
    kept: list[TimeLimit] = []

    async def request() -> None:
        async with asyncio.timeout(0.05) as timeout:
            with patience.counting(timeout) as limit:
                kept.append(limit)
                await asyncio.sleep(60)

    task = asyncio.create_task(request())
    for _ in range(steps):
        await asyncio.sleep(pause)
        kept[0].extend(0.05, most)
    with pytest.raises(TimeoutError):
        await task
    return kept[0]


async def test_a_limit_that_begins_again_and_then_does_not() -> None:
    limit = await beginning_again(most=60, steps=4)
    assert (limit.is_extended, limit.is_last) == (True, False)


async def test_a_limit_that_has_a_last_moment() -> None:
    limit = await beginning_again(most=0.1, steps=20)
    assert (limit.is_extended, limit.is_last) == (True, True)


async def test_a_limit_that_is_held_begins_again_and_its_last_moment_waits() -> None:
    patience, clock = Patience(), asyncio.get_running_loop().time
    async with asyncio.timeout(0.5) as timeout:
        with patience.counting(timeout) as limit:
            last = clock() + 0.6
            with patience.standing_still():
                await asyncio.sleep(0.2)
                limit.extend(0.5, 0.6)
                assert timeout.when() is None
            assert timeout.when() == pytest.approx(clock() + 0.5, abs=0.1)
            limit.extend(0.5, 0.6)
            assert timeout.when() == pytest.approx(clock() + 0.5, abs=0.1)  # else it would be 0.4
            limit.extend(0.55, 0.6)
            assert timeout.when() == pytest.approx(last + 0.2, abs=0.1)
    limit.extend(9, 9)  # it is over


async def test_a_limit_that_is_none_stays_none() -> None:
    async with asyncio.timeout(None) as timeout:
        with Patience().counting(timeout) as limit:
            limit.extend(1)
            await asyncio.sleep(0)
            assert timeout.when() is None
