"""What a session is told beside its calls, on the stream that its client GETs."""

import json
from typing import Any

import pytest
from http_clients import TOOLS, ask, finished_call, leave, note, reply

from asking_stage import AskingStage, answer_to
from dovetail.errors import QuestionFailed
from dovetail.state.memory import MemoryState
from dovetail.transports import get_stream
from http_serving import PausingState, Serve, settle
from http_wire import HANDSHAKE, HttpWire


@pytest.fixture
async def stage() -> AskingStage:
    return AskingStage()


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-17", "SH-20", "EL-18")
async def test_a_message_goes_on_one_stream(stage: AskingStage, app: Any, version: str) -> None:
    wire, other = await HttpWire.session(app, version), await HttpWire.session(app, version)
    streams = [await each.get().started() for each in (wire, other)]
    call = ask(wire)
    question = await call.message()
    back = stage.contexts[-1].back
    await back.tell(note("during"))
    assert (await call.message())["params"]["data"] == "during"
    await reply(wire, answer_to(question, {}))
    await call.done()
    await back.tell(note("after"))
    assert (await streams[0].message())["params"]["data"] == "after"
    with pytest.raises(QuestionFailed, match="the call is over"):
        back.pending("roots/list", 5)
    await settle()
    assert len(streams[0].messages) == 1
    assert streams[1].messages == []
    await leave(*streams)


async def test_messages_wait_for_the_first_stream_and_for_the_next(stage: AskingStage, serve: Serve) -> None:
    wire = await HttpWire.session(await serve(state=PausingState()))
    back = await finished_call(stage, wire)
    for number in range(4):
        await back.tell(note(number))
        if number % 2 == 0:
            stage.change_tools()
            await settle()
        stream = wire.get()
        heard = [await stream.message() for _ in range(2 - number % 2)]
        assert [each["params"]["data"] for each in heard if "params" in each] == [number]
        await settle()
        assert len(stream.messages) == len(heard)
        await leave(stream)


@pytest.mark.rule("SH-21", "SH-22", "SH-23")
async def test_coming_back_gives_what_was_missed_of_both_once(stage: AskingStage, wire: HttpWire) -> None:
    back = await finished_call(stage, wire)
    stream = await wire.get().started()
    for number in range(4):
        stage.change_tools()
        assert (await stream.message())["method"] == TOOLS
        await back.tell(note(number))
        assert (await stream.message())["params"]["data"] == number
    await leave(stream)
    primed = await wire.get(stream.events[-1].id).started()
    await leave(primed)
    events = [event for event in stream.events if event.data] + primed.events[:1]
    assert len({event.id for event in events}) == 9
    assert all(event.id.startswith("changes.") for event in events)
    for place, event in enumerate(events):
        again = wire.get(event.id)
        wanted = [json.loads(each.data).get("params", {}).get("data") for each in events[place + 1 : 8]]
        await settle()
        heard = [each.get("params", {}).get("data") for each in again.messages]
        assert [each for each in heard if each is not None] == [each for each in wanted if each is not None]
        assert heard.count(None) == min(1, wanted.count(None))  # changes are told once, however many there were
        await leave(again)


async def test_only_so_many_messages_are_kept(stage: AskingStage, wire: HttpWire) -> None:
    back = await finished_call(stage, wire)
    for number in range(get_stream.KEEP_MESSAGES + 50):
        await back.tell(note(number))
    stream = await wire.get().started()
    await stream.until(lambda: len(stream.messages) >= get_stream.KEEP_MESSAGES)
    await settle()
    assert [each["params"]["data"] for each in stream.messages] == list(range(50, get_stream.KEEP_MESSAGES + 50))
    await leave(stream)


async def test_and_fewer_of_large_ones(stage: AskingStage, app: Any, wire: HttpWire) -> None:
    back = await finished_call(stage, wire)
    before = app._state.log_bytes
    for _ in range(20):
        await back.tell(note("x" * (get_stream.KEEP_BYTES // 4)))
    assert app._state.log_bytes - before <= get_stream.KEEP_BYTES
    await back.tell(note("x" * (get_stream.KEEP_BYTES * 2)))
    assert app._state.log_bytes - before <= get_stream.KEEP_BYTES * 3


async def test_messages_end_with_their_session(stage: AskingStage, app: Any, wire: HttpWire) -> None:
    back = await finished_call(stage, wire)
    await back.tell(note("kept"))
    stream = wire.get()
    await stream.message()
    await wire.delete()
    await stream.done()
    await back.tell(note("for nobody"))
    assert app._state.held == 2  # the log of the call, and for a while that its session was ended


async def test_places_of_before_there_were_messages_and_beyond_the_log_are_some_too(
    stage: AskingStage, wire: HttpWire
) -> None:
    """The log may have expired meanwhile, and another one begun."""
    back = await finished_call(stage, wire)
    await back.tell(note("new"))
    for place in ("changes.0", "changes.0-99"):
        again = wire.get(place)
        assert (await again.message())["params"]["data"] == "new"
        assert again.events[-1].id == "changes.0-1"
        await leave(again)


async def test_messages_that_can_not_be_kept_hurt_nobody(
    stage: AskingStage, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    wire = await HttpWire.session(await serve(state=MemoryState(max_log_bytes=10000)))
    await (await finished_call(stage, wire)).tell(note("x" * 20_000))
    assert "kept" in caplog.text
