"""Questions to clients over HTTP: they go on the stream of the call that asks, and answers come by any request."""

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest
from old_client import connected

from asking_stage import AskingStage, answer_to, progress_on, refusal_of
from dovetail.engine import replies
from dovetail.engine.exchange import NO_WAY_BACK
from dovetail.errors import AnswerTimeout, QuestionFailed
from dovetail.protocol import jsonrpc
from dovetail.state.memory import MEBIBYTE, MemoryState
from dovetail.transports import way_back
from http_serving import Clock, PausingState, endpoint_of, serving, sessions_of, settle, until
from http_stage import HANDSHAKE, MODERN, text_of
from http_wire import CLIENT, Exchange, HttpWire

JSON = "application/json"
TOOLS = "notifications/tools/list_changed"


def note(data: Any) -> bytes:
    return jsonrpc.notification("notifications/message", json.dumps({"level": "info", "data": data}).encode())


async def reply(wire: HttpWire, message: Any, status: int = 202) -> None:
    """By a connection of its own."""
    exchange = await wire.raw("POST", json.dumps(message).encode()).done()
    assert exchange.status == status, exchange.raw
    assert status != 202 or exchange.raw == b""


def ask(wire: HttpWire, **arguments: Any) -> Exchange:
    return wire.start_call("ask", arguments, id=arguments.pop("id", None), headers=arguments.pop("headers", None))


async def leave(*streams: Exchange) -> None:
    for stream in streams:
        stream.leave()
        await stream.done()


def given(call: Exchange) -> Any:
    """What the tool was answered."""
    return json.loads(text_of(call.answer))


# ── on the stream of the call ──


@pytest.mark.parametrize("state", [MemoryState, PausingState])
@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-6", "SH-11", "SH-12", "SH-14", "SH-20")
async def test_a_tool_asks_and_goes_on(version: str, state: type[MemoryState]) -> None:
    async with serving(AskingStage().server, state=state()) as app:
        wire = await HttpWire.session(app, version)
        stream = await wire.get().started()
        call = ask(wire)
        question = await call.message()
        assert question["method"] == "roots/list"
        assert question["params"] == {"_meta": {"progressToken": question["id"]}}
        assert call.events[-1].id
        await reply(wire, answer_to(question, {"roots": [{"uri": "file:///é"}]}))
        await call.done()
        assert given(call) == [{"roots": [{"uri": "file:///é"}]}]
        assert stream.messages == []
        await leave(stream)


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*"])
async def test_whoever_reads_streams_is_asked_on_one(accept: str) -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app, accept=accept)
        call = ask(wire, method="elicitation/create")
        question = await call.message()
        assert question["params"]["message"] == "How many?"
        await reply(wire, answer_to(question, {"action": "decline"}))
        await call.done()
        assert given(call) == [{"action": "decline"}]


async def test_questions_at_once_are_answered_in_any_order() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        calls = [ask(wire, times=2) for _ in range(3)]
        questions = [await call.message() for call in calls for _ in range(2)]
        assert len({each["id"] for each in questions}) == 6
        await asyncio.gather(*(reply(wire, answer_to(each, {"of": each["id"]})) for each in reversed(questions)))
        for number, call in enumerate(calls):
            await call.done()
            own = [each["id"] for each in questions[number * 2 : number * 2 + 2]]
            assert [each["of"] for each in given(call)] == own


async def test_nothing_is_left_of_a_question() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        before = app._state.held
        for answered in (True, False):
            call = ask(wire, timeout=5 if answered else 0.02)
            question = await call.message()
            assert app._state.held == before + 2  # the question, and the log of the stream
            if answered:
                await reply(wire, answer_to(question, {}))
            await call.done()
            before += 1  # the log can be asked for
            assert app._state.held == before
        assert not endpoint_of(app)._way_back.replies._open


async def test_an_error_is_told_in_words() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        await reply(wire, refusal_of(await call.message(), -32601, "Method not found"))
        await call.done()
        expected = "The client could not answer roots/list: it does not know this method: Method not found"
        assert text_of(call.answer) == expected
        assert isinstance(stage.failures[0], QuestionFailed)
        assert stage.failures[0].code == -32601


# ── answers that are none ──


@pytest.mark.rule("SH-6")
async def test_the_first_answer_counts() -> None:
    async with serving(AskingStage().server, state=PausingState()) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        question = await call.message()
        await asyncio.gather(*(reply(wire, answer_to(question, {"n": n})) for n in range(5)))
        await reply(wire, answer_to(question, {"n": 9}))
        await call.done()
        assert given(call)[0]["n"] in range(5)
        await reply(wire, refusal_of(question, 1, "too late"))


@pytest.mark.rule("EL-10")
async def test_answers_of_others_are_none() -> None:
    """Another session, and another user of the same one, have no say."""

    def identify(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    async with serving(AskingStage().server, identify=identify) as app:
        wire, other = [await HttpWire.session(app, headers={"x-user": user}) for user in ("ann", "bob")]
        call = ask(wire)
        question = await call.message()
        await reply(other, answer_to(question, {"by": "bob"}))
        await reply(other, progress_on(question))
        thief = HttpWire(app, "2025-11-25", headers={"x-user": "bob"})
        thief.session_id = wire.session_id
        await reply(thief, answer_to(question, {"by": "bob"}), status=404)
        await settle()
        assert not call.ended
        await reply(wire, answer_to(question, {"by": "ann"}))
        await call.done()
        assert given(call) == [{"by": "ann"}]


@pytest.mark.parametrize("id", ["dovetail-1", "dovetail-0123456789abcdef", 1, "", "x" * 100_000, "question/a/b"])
async def test_answers_to_nothing_are_taken_and_forgotten(id: Any) -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        before = app._state.held
        await reply(wire, {"jsonrpc": "2.0", "id": id, "result": {}})
        await reply(wire, {"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "m"}})
        progress = {"progressToken": id, "progress": 1}
        await reply(wire, {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        assert app._state.held == before


async def test_malformed_answers_leave_the_question_open() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        question = await call.message()
        both = {"jsonrpc": "2.0", "id": question["id"], "result": {}, "error": {"code": 1, "message": "m"}}
        for bad in (both, {"jsonrpc": "2.0", "id": question["id"]}, {"id": question["id"], "result": {}}):
            await reply(wire, bad, status=400)
        await reply(wire, {"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "m"}})
        await reply(wire, answer_to(question, {}))
        await call.done()
        assert given(call) == [{}]


@pytest.mark.rule("SH-7")
async def test_an_answer_that_is_too_large_leaves_it_open() -> None:
    async with serving(AskingStage().server, max_body_bytes=1000) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        question = await call.message()
        await reply(wire, answer_to(question, "x" * 2000), status=413)
        await reply(wire, answer_to(question, {"n": 1}))
        await call.done()
        assert given(call) == [{"n": 1}]


async def test_an_answer_that_the_store_has_no_room_for_leaves_it_open() -> None:
    state = MemoryState(max_entry_bytes=MEBIBYTE)
    async with serving(AskingStage().server, state=state) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        question = await call.message()
        await reply(wire, answer_to(question, "x" * MEBIBYTE), status=503)
        await reply(wire, answer_to(question, {"n": 1}))
        await call.done()
        assert given(call) == [{"n": 1}]


@pytest.mark.rule("BASE-11", "SH-5")
async def test_answers_may_come_in_a_batch() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app, "2025-03-26")
        call = ask(wire, times=3)
        questions = [await call.message() for _ in range(3)]
        stranger = {"jsonrpc": "2.0", "id": "dovetail-1", "result": {}}
        await reply(wire, [answer_to(questions[1], {"n": 1}), stranger, progress_on(questions[0])])
        mixed = [answer_to(questions[0], {"n": 0}), wire.message("ping"), answer_to(questions[2], {"n": 2})]
        answer = await wire.raw("POST", json.dumps(mixed).encode()).done()
        assert [each["result"] for each in answer.answer] == [{}]
        await call.done()
        assert given(call) == [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.mark.rule("BASE-11", "SH-12")
async def test_calls_in_a_batch_ask_on_its_stream() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app, "2025-03-26")
        calls = [wire.message("tools/call", {"name": "ask", "arguments": {}}) for _ in range(2)]
        batch = wire.raw("POST", json.dumps(calls).encode())
        questions = [await batch.message() for _ in range(2)]
        await reply(wire, [answer_to(each, {}) for each in questions])
        await batch.done()
        assert [text_of(each) for each in batch.answer] == ["[{}]"] * 2


# ── time ──


@pytest.mark.rule("LIFE-9", "LIFE-10")
async def test_a_client_that_does_not_answer_in_time() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire, timeout=0.05)
        question = await call.message()
        called_off = await call.message()
        assert called_off["method"] == "notifications/cancelled"
        assert called_off["params"]["requestId"] == question["id"]
        await call.done()
        assert text_of(call.answer) == "The client did not answer roots/list within 0.05 s"
        assert isinstance(stage.failures[0], AnswerTimeout)
        await reply(wire, answer_to(question, {}))


@pytest.mark.rule("LIFE-10")
async def test_progress_of_the_client_gives_it_more_time() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire, timeout=0.5)
        question = await call.message()
        for number in range(4):
            await asyncio.sleep(0.15)
            await reply(wire, progress_on(question, number))
        await reply(wire, answer_to(question, {}))
        await call.done()
        assert given(call) == [{}]


# ── cancellation and ends ──


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("CAN-1", "CAN-2")
async def test_a_call_that_is_cancelled_calls_its_questions_off(version: str) -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        call = ask(wire, times=2, id="c")
        questions = {(await call.message())["id"] for _ in range(2)}
        await wire.notify("notifications/cancelled", {"requestId": "c"})
        await call.done()
        called_off = call.messages[2:]
        assert {each["method"] for each in called_off} == {"notifications/cancelled"}
        assert {each["params"]["requestId"] for each in called_off} == questions
        assert stage.cancelled.is_set()


async def test_a_call_that_was_cancelled_can_ask_no_more() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("defy", id="c")
        await stage.entered.wait()
        await wire.notify("notifications/cancelled", {"requestId": "c"})
        await call.done()
        assert call.messages == []
        assert [str(each) for each in stage.failures] == [replies.CALL_IS_OVER]


@pytest.mark.rule("SH-30")
async def test_a_session_that_ends_takes_its_questions_along() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        question = await call.message()
        assert (await wire.delete()).status == 204
        await call.done()
        assert [each["method"] for each in call.messages] == ["roots/list", "notifications/cancelled"]
        assert stage.cancelled.is_set()
        await reply(wire, answer_to(question, {}), status=404)
        assert app._state.held == 1  # the log of the stream


@pytest.mark.rule("SH-15")
async def test_a_server_that_stops_calls_them_off() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        question = await call.message()
        draining = asyncio.create_task(app.drain(0.05))
        await settle()
        await reply(wire, answer_to(question, {}), status=503)
        await draining
        await call.done()
        assert call.messages[1]["params"]["requestId"] == question["id"]
        assert "shutting down" in call.answer["error"]["message"]


async def test_it_asks_only_so_much_at_once() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire, times=replies.MAX_OPEN + 1)
        await call.done()
        assert "100 questions wait" in text_of(call.answer)


async def test_what_a_call_leaves_open_is_called_off_before_its_answer() -> None:
    async with serving(AskingStage().server, state=PausingState()) as app:
        wire = await HttpWire.session(app)
        call = ask(wire, times=3)
        questions = [await call.message() for _ in range(3)]
        await reply(wire, refusal_of(questions[1], -1, "no"))
        await call.done()
        called_off = [each["params"]["requestId"] for each in call.messages[3:-1]]
        assert sorted(called_off) == sorted([questions[0]["id"], questions[2]["id"]])
        assert text_of(call.answer).endswith(": no")
        assert not endpoint_of(app)._way_back.replies._open


@pytest.mark.parametrize("way", ["cancel", "delete", "answer", "drain"])
@pytest.mark.rule("CAN-4")
async def test_every_moment_of_a_question_is_good_for_an_end(way: str) -> None:
    for turns in range(0, 80, 4):
        stage = AskingStage()
        async with serving(stage.server, state=PausingState()) as app:
            wire = await HttpWire.session(app)
            call = ask(wire, times=2, id="c")
            await settle(turns)
            if way == "answer":
                await reply(wire, refusal_of(await call.message(), -1, "no"))
            elif way == "cancel":
                await stage.entered.wait()
                await wire.notify("notifications/cancelled", {"requestId": "c"})
            elif way == "delete":
                await wire.delete()
            else:
                await app.drain(0)
            await call.done()
            messages = call.messages if call.is_stream else []
            asked = {each["id"] for each in messages if each.get("method") == "roots/list"}
            called_off = {each["params"]["requestId"] for each in messages if each.get("method", "")[:1] == "n"}
            assert len(asked - called_off) == (way == "answer"), (turns, messages)
            assert not endpoint_of(app)._way_back.replies._open


# ── a connection that breaks ──


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.rule("SH-15", "SH-23", "SH-24")
async def test_a_question_waits_for_who_comes_back(version: str, seen: bool) -> None:
    stage = AskingStage()
    async with serving(stage.server, state=PausingState()) as app:
        wire = await HttpWire.session(app, version)
        call = ask(wire, times=2)
        first = await call.message()
        id = call.events[-1].id
        second = await call.message() if seen else None
        await call.cut()
        rest = wire.get(id)
        again = await rest.message()
        assert again["id"] != first["id"]
        assert second in (None, again)
        for each in (first, again):
            await reply(wire, answer_to(each, {"to": each["id"]}))
        await rest.done()
        assert [each["to"] for each in given(rest)] == [first["id"], again["id"]]


async def test_one_that_is_asked_while_nobody_is_there_waits_too() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("work")
        primed = (await call.event()).id
        asking = ask(wire)
        await asking.message()
        await call.cut()
        back = next(each for each in endpoint_of(app)._calls.values() if each.request.params.name == "work")
        waiting = asyncio.create_task(back.exchange.back.ask("roots/list", b"{}", 5))
        await settle()
        rest = wire.get(primed)
        question = await rest.message()
        assert question["method"] == "roots/list"
        await reply(wire, answer_to(question, {"n": 1}))
        assert bytes(await waiting) == b'{"n": 1}'
        stage.go.set()
        await rest.done()
        assert text_of(rest.answer) == "done"
        await reply(wire, answer_to(asking.messages[0], {}))
        await asking.done()


async def test_a_client_that_left_before_there_was_a_stream_is_not_waited_for() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, "2025-06-18")
        call = wire.start_call("work")
        await stage.entered.wait()
        [running] = endpoint_of(app)._calls.values()
        await call.cut()
        with pytest.raises(QuestionFailed, match="has closed its connection and has no GET stream open"):
            await running.exchange.back.ask("roots/list", b"{}", 5)
        stream = await wire.get().started()
        asking = asyncio.create_task(running.exchange.back.ask("roots/list", b"{}", 5))
        await reply(wire, answer_to(await stream.message(), {}))
        await asking
        stage.go.set()
        await leave(stream)


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
        assert text_of(call.json) == f"This needs roots, but {way_back.JSON_ONLY}"
        assert app._state.held == 1
        stream = await wire.get().started()
        await leave(stream)
        call = await ask(wire, headers={"accept": JSON}).done()
        assert way_back.JSON_ONLY in text_of(call.json)


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
        assert way_back.JSON_ONLY in text_of((await ask(wire, headers={"accept": JSON}).done()).json)
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
        assert "full" in text_of(call.json)
        await leave(stream)


# ── two workers ──


async def test_any_worker_may_get_the_answer_and_hold_the_stream() -> None:
    state = PausingState()
    one, two = AskingStage(), AskingStage()
    async with serving(one.server, state=state) as here, serving(two.server, state=state) as there:
        wire = await HttpWire.session(here)
        away = HttpWire(there, "2025-11-25")
        away.session_id = wire.session_id
        call = ask(wire)
        question = await call.message()
        await reply(away, progress_on(question))
        await reply(away, answer_to(question, {"by": "two"}))
        await call.done()
        assert given(call) == [{"by": "two"}]
        stream = await away.get().started()
        call = ask(wire, headers={"accept": JSON})
        await reply(wire, answer_to(await stream.message(), {"by": "one"}))
        await call.done()
        assert json.loads(text_of(call.json)) == [{"by": "one"}]
        await leave(stream)


# ── what a session is told beside its calls ──


async def finished_call(stage: AskingStage, wire: HttpWire) -> Any:
    """The way back of a call that is over."""
    call = ask(wire)
    await reply(wire, answer_to(await call.message(), {}))
    await call.done()
    return stage.contexts[-1].back


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
            await back.ask("roots/list", b"{}", 5)
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
        assert again.events[-1].id == "changes.1-1"
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
        assert stream.events[-1].id == "changes.0-1"
        await leave(stream)


async def test_only_so_many_messages_are_kept() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        back = await finished_call(stage, wire)
        for number in range(way_back.KEEP_MESSAGES + 50):
            await back.tell(note(number))
        stream = await wire.get().started()
        await stream.until(lambda: len(stream.messages) >= way_back.KEEP_MESSAGES)
        await settle()
        assert [each["params"]["data"] for each in stream.messages] == list(range(50, way_back.KEEP_MESSAGES + 50))
        await leave(stream)


async def test_and_fewer_of_large_ones() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        back = await finished_call(stage, wire)
        before = app._state.log_bytes
        for _ in range(20):
            await back.tell(note("x" * (way_back.KEEP_BYTES // 4)))
        assert app._state.log_bytes - before <= way_back.KEEP_BYTES
        await back.tell(note("x" * (way_back.KEEP_BYTES * 2)))
        assert app._state.log_bytes - before <= way_back.KEEP_BYTES * 3


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
        assert app._state.held == 1  # the log of the call


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


# ── who can be asked at all ──


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_server_without_sessions_says_why(version: str) -> None:
    async with serving(AskingStage().server, stateless=True) as app:
        wire = HttpWire(app, headers={"mcp-protocol-version": version})
        wire.version = version
        call = await ask(wire).done()
        assert text_of(call.answer) == way_back.STATELESS
        await reply(wire, {"jsonrpc": "2.0", "id": "dovetail-1", "result": {}})


async def test_requests_of_today_have_no_such_way() -> None:
    async with serving(AskingStage().server) as app:
        call = await ask(HttpWire(app)).done()
        assert text_of(call.answer) == NO_WAY_BACK


@pytest.mark.rule("LIFE-6")
async def test_nobody_is_asked_before_it_is_ready() -> None:
    async with serving(AskingStage().server) as app:
        wire = HttpWire(app, "2025-11-25")
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        answer = await wire.raw("POST", json.dumps(hello).encode()).done()
        wire.session_id = answer.headers["mcp-session-id"]
        call = await ask(wire).done()
        assert text_of(call.answer) == replies.NOT_READY
        call = wire.start_call("work", id=5)
        await call.started()
        await wire.notify("notifications/initialized")
        back = endpoint_of(app)._calls[wire.session_id, 5].exchange.back
        asking = asyncio.create_task(back.ask("roots/list", b"{}", 5))  # it is ready by now
        await reply(wire, answer_to(await call.message(), {}))
        await asking
        await wire.notify("notifications/cancelled", {"requestId": 5})
        await call.done()


@pytest.mark.parametrize("version", [*HANDSHAKE, MODERN, "2024-11-05 over SSE"])
@pytest.mark.parametrize("user", [None, "ann"])
@pytest.mark.rule("EL-10", "EL-11")
async def test_a_call_knows_who_is_asking(version: str, user: str | None) -> None:
    stage = AskingStage()
    async with serving(stage.server, identify=lambda _: user) as app:
        if version == MODERN:
            await ask(HttpWire(app)).done()
        elif version in HANDSHAKE:
            await finished_call(stage, await HttpWire.session(app, version))
        else:
            async with connected(app) as client:
                await client.begin("ask")
                assert (await client.stream.message())["method"] == "roots/list"
        assert stage.contexts[0].principal == user


# ── roots ──


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_roots_are_kept_until_they_change(version: str) -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app, version)
        held = await sessions_of(app).find(wire.session_id or "", None)
        assert held is not None
        await held.change(lambda record: record.replace(roots=b'{"roots":[]}'))
        assert (await wire.notify("notifications/roots/list_changed")).status == 202
        await held.reload()
        assert held.record.roots is None
        assert held.record.roots_version == 1


# ── HTTP+SSE ──


@pytest.mark.rule("SSE-6")
async def test_a_client_of_http_and_sse_is_asked_on_its_stream() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app, connected(app) as client:
        await client.begin("ask")
        question = await client.stream.message()
        assert question["id"] == "dovetail-1"
        assert (await client.post(progress_on(question)).done()).status == 202
        assert (await client.post(answer_to(question, {"n": 1})).done()).status == 202
        assert json.loads(text_of(await client.stream.message())) == [{"n": 1}]
        await stage.contexts[0].back.tell(note("after"))
        assert (await client.stream.message())["params"]["data"] == "after"
        assert (await client.post(answer_to(question, {"n": 2})).done()).status == 202


async def test_its_questions_end_with_the_stream() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        async with connected(app) as client:
            await client.begin("ask")
            await client.stream.message()
        await until(lambda: stage.cancelled.is_set() or bool(stage.failures))
