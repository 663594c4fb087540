"""What all backends share: a store that is asked until it answers, and values that another version wrote."""

import pytest

from dovetail.state.base import Codec, StoreTrouble, until_answered


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


@pytest.mark.parametrize("silent", [0, 1, 5])
async def test_it_is_asked_until_it_answers(silent: int) -> None:
    assert await until_answered(Store(silent).ask, lambda: True, pause=0) == silent + 1


async def test_it_is_asked_as_long_as_the_answer_is_wanted() -> None:
    store = Store(100)
    with pytest.raises(StoreTrouble):
        await until_answered(store.ask, lambda: store.asked < 3, pause=0)
    assert store.asked == 3


async def test_another_failure_is_an_answer() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await until_answered(fail, lambda: True, pause=0)


@pytest.mark.parametrize("data", [b"", b"\x02\x01", b"\x01", b"\x01\xa1x", b"\x01\x01\x01"])
def test_what_another_version_wrote_is_not_there(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    codec: Codec[int] = Codec(int, "number")
    assert codec.decode(codec.encode(7)) == 7
    assert codec.decode(data) is None
    assert "holds a number that this version can't read" in caplog.text
