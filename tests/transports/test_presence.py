"""Which stream hears what is said, as workers know of each other: one that is there is heard, whoever has left."""

import asyncio

import pytest

from dovetail.transports import way_back
from dovetail.transports.way_back import Presence
from http_serving import PausingState

OLDER, NEWER = b"older...", b"newer..."


class Shared(PausingState):
    shared = True


def always() -> bool:
    return True


@pytest.fixture
def presence(monkeypatch: pytest.MonkeyPatch) -> Presence:
    monkeypatch.setattr(way_back, "NOBODY_SECONDS", 0.05)
    return Presence(Shared(), 45.0)


async def test_a_stream_that_stays_is_heard_after_a_newer_one_has_left(presence: Presence) -> None:
    for stream in (OLDER, NEWER):
        await presence.enter("s", stream, always)
    await presence.leave("s", NEWER)
    assert not await presence.is_heard("s")
    await presence.stay("s", OLDER)
    assert await presence.is_heard("s")
    assert await presence.is_newest("s", OLDER)


async def test_that_somebody_has_left_is_soon_forgotten(presence: Presence) -> None:
    await presence.enter("s", OLDER, always)
    await presence.leave("s", OLDER)
    assert await presence._state.get("hears/s") is not None
    await asyncio.sleep(0.1)
    assert await presence._state.get("hears/s") is None


async def test_one_that_stays_does_not_take_the_place_of_a_newer_one(presence: Presence) -> None:
    for stream in (OLDER, NEWER):
        await presence.enter("s", stream, always)
    await presence.stay("s", OLDER)
    assert await presence.is_newest("s", NEWER)
    assert not await presence.is_newest("s", OLDER)
