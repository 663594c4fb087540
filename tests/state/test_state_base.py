"""What all backends share: a store that is asked until it answers, and values that another version wrote."""

import itertools

import pytest

from dovetail.state.base import Codec, StoreUnavailable, retry_while_unavailable


@pytest.mark.parametrize("silent", [0, 1, 5])
@pytest.mark.parametrize("failure", [None, ValueError("no")], ids=["answers", "fails"])
async def test_a_store_is_asked_until_it_answers_or_the_answer_is_not_wanted(
    silent: int, failure: Exception | None
) -> None:
    outcomes: list[Exception | None] = [*itertools.repeat(StoreUnavailable(), silent), failure]

    async def ask() -> str:
        if outcome := outcomes.pop(0):
            raise outcome
        return "answer"

    if failure is None:
        assert await retry_while_unavailable(ask, lambda: True, retry_delay=0) == "answer"
    else:
        with pytest.raises(StoreUnavailable if silent else ValueError):
            await retry_while_unavailable(ask, lambda: len(outcomes) != 1, retry_delay=0)
    assert len(outcomes) == (1 if failure and silent else 0)


@pytest.mark.parametrize("data", [b"", b"\x02\x01", b"\x01", b"\x01\xa1x", b"\x01\x01\x01"])
def test_what_another_version_wrote_is_not_there(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    codec: Codec[int] = Codec(int, "number")
    assert codec.decode(codec.encode(7)) == 7
    assert codec.decode(data) is None
    assert "holds a number that this version can't read" in caplog.text
