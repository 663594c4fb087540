"""A store that is asked until it answers."""

import pytest

from dovetail.state import patience
from dovetail.state.base import StoreTrouble
from dovetail.state.patience import until_answered


class Store:
    """Does not answer so many times."""

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.asked = 0

    async def ask(self) -> int:
        self.asked += 1
        if self.asked <= self.silent:
            raise StoreTrouble
        return self.asked


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "AGAIN_SECONDS", 0)


@pytest.mark.parametrize("silent", [0, 1, 5])
async def test_it_is_asked_until_it_answers(silent: int) -> None:
    assert await until_answered(Store(silent).ask, lambda: True) == silent + 1


async def test_it_is_asked_as_long_as_somebody_wants_to_know() -> None:
    store = Store(100)
    with pytest.raises(StoreTrouble):
        await until_answered(store.ask, lambda: store.asked < 3)
    assert store.asked == 3


async def test_another_failure_is_an_answer() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await until_answered(fail, lambda: True)
