"""Passwords are checked a few at a time, on each event loop, and strangers keep no known user waiting."""

import asyncio

import pytest

from dovetail.authserver import turns
from dovetail.authserver.refusals import OAuthRefusal
from dovetail.authserver.turns import Turns


async def held(ours: Turns, go: asyncio.Event, *, is_known: bool = False) -> None:
    async with ours.turn(is_known=is_known):
        await go.wait()


async def test_strangers_keep_no_known_user_waiting() -> None:
    ours, go = Turns(), asyncio.Event()
    strangers = [asyncio.create_task(held(ours, go)) for _ in range(turns.MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(OAuthRefusal, match="people signing in") as caught:
        await held(ours, go)
    assert caught.value.status == 429
    async with asyncio.timeout(5), ours.turn(is_known=True):
        pass
    go.set()
    await asyncio.gather(*strangers)
    async with asyncio.timeout(5), ours.turn(is_known=False):
        pass


async def test_one_at_a_time_and_a_turn_given_up_goes_to_the_next() -> None:
    ours, go = Turns(), asyncio.Event()
    first, second = (asyncio.create_task(held(ours, go)) for _ in range(2))
    third = asyncio.create_task(held(ours, go))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    go.set()
    async with asyncio.timeout(5):
        await third


def test_each_event_loop_has_its_own() -> None:
    ours = Turns()

    async def crowd() -> None:
        go = asyncio.Event()
        waiting = [asyncio.create_task(held(ours, go)) for _ in range(3)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*waiting)

    for _ in range(3):
        asyncio.run(crowd())
    assert len(ours._lines) <= 1
