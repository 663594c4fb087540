"""The stream that a client GETs: questions for who reads JSON only, and what its session is told beside its calls."""

import asyncio
import gc
import json
import weakref

import pytest
from http_asking import JSON, ask, finished_call, leave, note, reply

from asking_stage import AskingStage, answer_to
from dovetail.errors import QuestionFailed
from dovetail.state.memory import MemoryState
from dovetail.transports import server_messages
from http_serving import Clock, PausingState, serving, settle
from http_stage import HANDSHAKE, text_of
from http_wire import HttpWire

TOOLS = "notifications/tools/list_changed"


# ── who reads JSON only ──


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_who_reads_json_only_is_asked_on_the_stream_that_it_gets(version: str) -> None:
    async with serving(AskingStage().server, state=PausingState()) as app:
        wire = await HttpWire.session(app, version)
        stream = await wire.get().started()
        call = ask(wire, headers={"accept": JSON})
        question = await stream.message()
        assert question["method"] == "roots/list"
        await reply(wire, answer_to(question, {"n": 1}))
        await call.done()
        assert json.loads(text_of(call.json)) == [{"n": 1}]
        await leave(stream)


async def test_without_such_a_stream_it_is_told_why() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = await ask(wire, headers={"accept": JSON}).done()
        assert text_of(call.json) == f"This needs roots, but {server_messages.JSON_ONLY}"
        assert app._state.held == 1
        stream = await wire.get().started()
        await leave(stream)
        call = await ask(wire, headers={"accept": JSON}).done()
        assert server_messages.JSON_ONLY in text_of(call.json)


async def test_it_is_called_off_on_that_stream_too() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        call = await ask(wire, headers={"accept": JSON}, timeout=0.03).done()
        assert "did not answer" in text_of(call.json)
        assert [each["method"] for each in stream.messages] == ["roots/list", "notifications/cancelled"]
        await leave(stream)


@pytest.mark.rule("SH-23")
async def test_a_question_on_a_stream_that_breaks_waits_for_the_next() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        call = ask(wire, times=2, headers={"accept": JSON})
        first, second = await stream.message(), await stream.message()
        await leave(stream)
        again = wire.get(stream.events[-2].id)
        assert await again.message() == second
        await settle()
        assert again.messages == [second]
        for each in (first, second):
            await reply(wire, answer_to(each, {}))
        await call.done()
        await leave(again)


async def test_the_stream_is_known_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    async with serving(AskingStage().server, clock=clock, keep_alive=0.02) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        for _ in range(3):
            clock.sleep(0.05)
            held = len(stream.raw)
            await stream.until(lambda held=held: len(stream.raw) > held)
        call = ask(wire, headers={"accept": JSON})
        await reply(wire, answer_to(await stream.message(), {}))
        await call.done()
        clock.sleep(1)  # its process died, and can't say that it is gone
        assert server_messages.JSON_ONLY in text_of((await ask(wire, headers={"accept": JSON}).done()).json)
        held = len(stream.raw)
        await stream.until(lambda: len(stream.raw) > held)  # or it was only slow
        call = ask(wire, headers={"accept": JSON})
        await reply(wire, answer_to(await stream.message(), {}))
        await call.done()
        await leave(stream)


async def test_an_older_stream_does_not_take_the_newer_along() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        older = await wire.get().started()
        newer = await wire.get().started()
        await older.done()
        call = ask(wire, headers={"accept": JSON})
        await reply(wire, answer_to(await newer.message(), {}))
        await call.done()
        await leave(newer)


async def test_a_store_without_room_for_streams() -> None:
    state = MemoryState(max_entries=1)
    async with serving(AskingStage().server, state=state) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        assert stream.status == 200
        call = await ask(wire, headers={"accept": JSON}).done()
        assert "GET stream" in text_of(call.json)
        await leave(stream)


# ── what a session is told beside its calls ──


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-17", "SH-20", "EL-18")
async def test_a_message_goes_on_one_stream(version: str) -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
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


async def test_messages_wait_for_the_first_stream_and_for_the_next() -> None:
    stage = AskingStage()
    async with serving(stage.server, state=PausingState()) as app:
        wire = await HttpWire.session(app)
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


@pytest.mark.rule("SH-20")
async def test_a_newer_stream_goes_on_where_the_older_was() -> None:
    stage = AskingStage()
    async with serving(stage.server, state=PausingState()) as app:
        wire = await HttpWire.session(app)
        back = await finished_call(stage, wire)
        streams = [await wire.get().started()]
        for number in range(5):
            await back.tell(note(number))
            assert (await streams[-1].message())["params"]["data"] == number
            streams.append(await wire.get().started())
            await streams[-2].done()
        await settle(50)
        assert [len(each.messages) for each in streams] == [1] * 5 + [0]
        await leave(streams[-1])


@pytest.mark.rule("SH-21", "SH-22", "SH-23")
async def test_coming_back_gives_what_was_missed_of_both_once() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
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


async def test_a_place_of_before_there_were_messages_is_one_too() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        stage.change_tools()
        stream = wire.get()
        await stream.message()
        assert stream.events[-1].id == "changes.1"
        await leave(stream)
        back = await finished_call(stage, wire)
        await back.tell(note("new"))
        again = wire.get("changes.1")
        assert (await again.message())["params"]["data"] == "new"
        assert again.events[-1].id.startswith("changes.1-1")
        await leave(again)


@pytest.mark.parametrize("id", ["changes.1-", "changes.-1", "changes.1-x", "changes.1-1-1", "changes.1-" + "1" * 16])
async def test_places_that_are_none(id: str) -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        assert (await wire.get(id).done()).status == 400


async def test_a_stream_of_a_call_has_no_second_number() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        question = await call.message()
        stream = call.events[-1].id.split(".")[0]
        assert (await wire.get(f"{stream}.1-1").done()).status == 400
        assert (await wire.get(f"{stream}.1-1.abc").done()).status == 400
        await reply(wire, answer_to(question, {}))
        await call.done()


async def test_a_place_beyond_the_log_gets_everything() -> None:
    """The log has expired meanwhile, and another one begun."""
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        back = await finished_call(stage, wire)
        await back.tell(note("new"))
        stream = wire.get("changes.0-99")
        assert (await stream.message())["params"]["data"] == "new"
        assert stream.events[-1].id.startswith("changes.0-1")
        await leave(stream)


async def test_only_so_many_messages_are_kept() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        back = await finished_call(stage, wire)
        for number in range(server_messages.KEEP_MESSAGES + 50):
            await back.tell(note(number))
        stream = await wire.get().started()
        await stream.until(lambda: len(stream.messages) >= server_messages.KEEP_MESSAGES)
        await settle()
        assert [each["params"]["data"] for each in stream.messages] == list(
            range(50, server_messages.KEEP_MESSAGES + 50)
        )
        await leave(stream)


async def test_and_fewer_of_large_ones() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        back = await finished_call(stage, wire)
        before = app._state.log_bytes
        for _ in range(20):
            await back.tell(note("x" * (server_messages.KEEP_BYTES // 4)))
        assert app._state.log_bytes - before <= server_messages.KEEP_BYTES
        await back.tell(note("x" * (server_messages.KEEP_BYTES * 2)))
        assert app._state.log_bytes - before <= server_messages.KEEP_BYTES * 3


async def test_messages_end_with_their_session() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        back = await finished_call(stage, wire)
        await back.tell(note("kept"))
        stream = wire.get()
        await stream.message()
        await wire.delete()
        await stream.done()
        await back.tell(note("for nobody"))
        assert app._state.held == 2  # the log of the call, and for a while that its session was ended


async def test_messages_that_can_not_be_kept_hurt_nobody(caplog: pytest.LogCaptureFixture) -> None:
    stage = AskingStage()
    async with serving(stage.server, state=MemoryState(max_log_bytes=10_000)) as app:
        wire = await HttpWire.session(app)
        back = await finished_call(stage, wire)
        await back.tell(note("x" * 20_000))
        assert "can't be kept for its client" in caplog.text


async def test_two_at_the_same_time_never_share_a_number() -> None:
    """Messages and the end of a call come together; each goes somewhere, and once."""
    for turns in range(12):
        stage = AskingStage()
        async with serving(stage.server, state=PausingState()) as app:
            wire = await HttpWire.session(app)
            stream = await wire.get().started()
            call = ask(wire)
            question = await call.message()
            back = stage.contexts[-1].back
            answering = asyncio.create_task(reply(wire, answer_to(question, {})))
            await settle(turns)
            await asyncio.gather(*(back.tell(note(n)) for n in range(3)))
            await answering
            await call.done()
            await settle(100)
            told = [each for each in call.messages + stream.messages if each.get("method", "").endswith("message")]
            assert sorted(each["params"]["data"] for each in told) == [0, 1, 2]
            assert "result" in call.answer
            rest = await wire.get(call.events[0].id).done()
            assert rest.messages == call.messages
            await leave(stream)


async def test_whoever_keeps_the_way_back_keeps_no_request() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        back = await finished_call(stage, wire)
        exchange = stage.contexts.pop()
        exchange.finish.append(part := lambda: None)
        gone = weakref.ref(part)
        del exchange, part
        await settle()
        gc.collect()
        assert gone() is None
        await back.tell(note("still there"))
