"""A store that has no room for a while: what is let through meanwhile counts as soon as there is room."""

import asyncio
from typing import Any, cast

import pytest

from dovetail.engine.rates import Limiter, SharedCounts
from dovetail.registry.options import parse_rates
from dovetail.state.base import NoRoom
from dovetail.state.memory import MemoryState

DAY = 86_400.0


class Caller:
    owner = "ann"
    address = None


class FullAtTimes(MemoryState):
    is_full = False
    meanwhile: Any = None  # called while somebody waits for an answer

    async def add(self, key: str, amount: int, ttl: float) -> int:
        if self.meanwhile is not None:
            self.meanwhile()
        if self.is_full:
            raise NoRoom("full")
        return await super().add(key, amount, ttl)


class Stage:
    def __init__(self, rates: str | list[str], workers: int = 1) -> None:
        self.now = 1_000 * DAY
        self.state = FullAtTimes()
        self.limiters = [
            Limiter("server", parse_rates(rates, "x"), SharedCounts(self.state, self.clock), self.clock)
            for _ in range(workers)
        ]

    def clock(self) -> float:
        return self.now

    async def let_through(self, calls: int, worker: int = 0) -> int:
        asked = (self.limiters[worker].refusal(cast("Any", Caller())) for _ in range(calls))
        return sum(each is None for each in await asyncio.gather(*asked))


@pytest.mark.parametrize("rates", ["5/day per principal", ["5/day per principal", "100/hour per principal"]])
async def test_a_rate_is_not_given_twice_when_room_appears(rates: str | list[str]) -> None:
    stage = Stage(rates)
    stage.state.is_full = True
    assert await stage.let_through(4) == 4
    stage.state.is_full = False
    assert await stage.let_through(20) == 1


async def test_what_a_worker_has_let_through_counts_for_the_others_then() -> None:
    stage = Stage("5/day per principal", workers=2)
    stage.state.is_full = True
    assert await stage.let_through(3) == 3
    stage.state.is_full = False
    assert await stage.let_through(1) == 1
    assert await stage.let_through(20, worker=1) == 1


async def test_it_is_forgotten_with_its_window() -> None:
    stage = Stage("5/day per principal")
    stage.state.is_full = True
    assert await stage.let_through(4) == 4
    stage.state.is_full = False
    stage.now += 2 * DAY
    assert await stage.let_through(20) == 5


async def test_a_call_counts_although_its_window_ends_meanwhile() -> None:
    stage = Stage("5/day per principal")
    (limiter,) = stage.limiters
    (meter,) = limiter._meters
    exchange = cast("Any", Caller())
    stage.state.is_full = True
    assert await stage.let_through(4) == 4
    stage.state.meanwhile = lambda: meter.tally(exchange, stage.now + DAY)
    assert await stage.let_through(1) == 1
    assert meter.tally(exchange, stage.now + DAY).earlier == 5
