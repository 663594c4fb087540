"""What all backends share: a store that is asked until it answers, and values that another version wrote."""

import itertools
from typing import Any

import pytest

from dovetail.errors import ProtocolError
from dovetail.state.base import Codec, StoreFull, StoreUnavailable, retry_while_unavailable
from dovetail.state.memory import MemoryState
from http_serving import Stage, serving
from http_wire import unready


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


class RefusingState(MemoryState):
    refusal: Exception | None = None

    async def put(self, key: str, value: bytes, **options: Any) -> int:
        if self.refusal is not None:
            raise self.refusal
        return await super().put(key, value, **options)


@pytest.mark.parametrize("refusal", [StoreFull(), StoreUnavailable()])
async def test_a_client_is_told_to_come_back_later(refusal: ProtocolError) -> None:
    state = RefusingState()
    async with serving(Stage().server, state=state) as app:
        wire = await unready(app)
        state.refusal = refusal
        refused = await wire.notify("notifications/initialized")
    assert (refused.status, "retry-after" in refused.headers) == (503, True)
    assert refused.json["error"]["message"] == refusal.message
    assert "try again later" in refusal.message
