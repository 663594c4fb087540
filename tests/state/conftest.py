"""What the tests of all backends share: a clock that stands still; assertions of the contract explain themselves."""

import pytest

pytest.register_assert_rewrite("contract")

from contract import Clock, Elapse  # noqa: E402


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def elapse(clock: Clock) -> Elapse:
    async def elapse(seconds: float) -> None:
        clock.now += seconds

    return elapse
