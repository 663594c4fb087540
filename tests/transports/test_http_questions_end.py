"""How questions over HTTP end without an answer: cancelled, broken off, given up, or because the server stops."""

import asyncio
import time
from typing import Any

import pytest
from http_asking import JSON, ask, given, leave, reply
from old_client import connected

from asking_stage import AskingStage, answer_to, ask_by, progress_on, refusal_of
from dovetail.engine import client_requests
from dovetail.errors import QuestionFailed
from dovetail.state.memory import MemoryState
from http_serving import Clock, PausingState, endpoint_of, serving, settle, until
from http_stage import HANDSHAKE, text_of
from http_wire import Exchange, HttpWire

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
        assert [str(each) for each in stage.failures] == [client_requests.CALL_IS_OVER]


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
        assert app._state.held == 2  # the log of the stream, and for a while that its session was ended


async def test_it_asks_only_so_much_at_once() -> None:
    async with serving(AskingStage().server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire, times=client_requests.MAX_OPEN + 1)
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
        assert not endpoint_of(app)._messages.replies.waiting


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
            assert not endpoint_of(app)._messages.replies.waiting


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
        back = next(each for each in endpoint_of(app)._calls.here.values() if each.request.params.name == "work")
        waiting = asyncio.create_task(ask_by(back.exchange.back, "roots/list", 5))
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
        [running] = endpoint_of(app)._calls.here.values()
        await call.cut()
        with pytest.raises(QuestionFailed, match="has closed its connection and has no GET stream open"):
            await ask_by(running.exchange.back, "roots/list", 5)
        stream = await wire.get().started()
        asking = asyncio.create_task(ask_by(running.exchange.back, "roots/list", 5))
        await reply(wire, answer_to(await stream.message(), {}))
        await asking
        stage.go.set()
        await leave(stream)


# ── a client that has gone ──

BEAT = 0.05
LONG = BEAT * 7  # any question would be given up by then


async def is_open_for_long(call: Exchange) -> bool:
    await asyncio.sleep(LONG)
    return not call.ended


@pytest.mark.parametrize("state", [MemoryState, PausingState])
@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("LIFE-9", "SH-15")
async def test_a_client_that_does_not_come_back_is_given_up(version: str, state: type[MemoryState]) -> None:
    stage = AskingStage()
    async with serving(stage.server, state=state(), keep_alive=BEAT) as app:
        wire = await HttpWire.session(app, version)
        call = ask(wire, times=3, timeout=600)
        questions = [await call.message() for _ in range(3)]
        place = call.events[-1].id
        await call.cut()
        async with asyncio.timeout(5):
            await until(lambda: bool(stage.failures) and not endpoint_of(app)._calls.here)
        assert [str(each) for each in stage.failures] == [client_requests.LEFT]
        assert not endpoint_of(app)._messages.replies.waiting
        rest = await wire.get(place).done()  # who comes too late is told that nobody waits
        called_off = {each["params"]["requestId"] for each in rest.messages[:-1]}
        assert called_off == {each["id"] for each in questions}
        assert text_of(rest.answer) == client_requests.LEFT


async def test_one_that_comes_back_in_time_goes_on_as_before() -> None:
    stage = AskingStage()
    async with serving(stage.server, keep_alive=BEAT) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        question = await call.message()
        place = call.events[-1].id
        for _ in range(3):  # it may come and go
            await call.cut()
            await asyncio.sleep(BEAT)
            call = await wire.get(place).started()
            assert await is_open_for_long(call)
        await reply(wire, answer_to(question, {"n": 1}))
        await call.done()
        assert given(call) == [{"n": 1}]


async def test_one_that_came_back_and_left_for_good_is_given_up_too() -> None:
    stage = AskingStage()
    async with serving(stage.server, keep_alive=BEAT) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        await call.message()
        await call.cut()
        older = await wire.get(call.events[-1].id).started()
        newer = await wire.get(call.events[-1].id).started()
        await older.done()
        assert await is_open_for_long(newer)
        await newer.cut()
        await until(lambda: bool(stage.failures))
        assert str(stage.failures[0]) == client_requests.LEFT
        await until(lambda: not endpoint_of(app)._calls.here)


async def test_a_stream_beside_the_call_shows_that_it_is_there() -> None:
    stage = AskingStage()
    async with serving(stage.server, keep_alive=BEAT) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        call = ask(wire)
        await call.message()
        await call.cut()
        assert await is_open_for_long(stream)
        assert not stage.failures
        await leave(stream)
        await until(lambda: bool(stage.failures))
        assert str(stage.failures[0]) == client_requests.LEFT


@pytest.mark.parametrize("accept", [JSON, "text/event-stream"])
async def test_whoever_stays_may_take_its_time(accept: str) -> None:
    async with serving(AskingStage().server, keep_alive=BEAT) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        call = ask(wire, headers={"accept": accept})
        question = await (stream if accept == JSON else call).message()
        await leave(stream)
        assert await is_open_for_long(call)
        await reply(wire, answer_to(question, {}))
        await call.done()
        assert given(call) == [{}]


async def test_progress_is_a_sign_of_life() -> None:
    stage = AskingStage()
    async with serving(stage.server, keep_alive=0.1) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        question = await call.message()
        await call.cut()
        for number in range(8):
            await asyncio.sleep(0.1)
            await reply(wire, progress_on(question, number))
        assert not stage.failures
        await reply(wire, answer_to(question, {}))
        await until(lambda: not endpoint_of(app)._calls.here)
        assert not stage.failures


# ── a server that stops ──


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("state", [MemoryState, PausingState])
@pytest.mark.rule("SH-15")
async def test_a_server_that_stops_waits_for_no_answer(state: type[MemoryState], left: bool) -> None:
    stage = AskingStage()
    async with serving(stage.server, state=state()) as app:
        wire = await HttpWire.session(app)
        call = ask(wire, times=3, timeout=600)
        questions = [await call.message() for _ in range(3)]
        if left:
            await call.cut()
        began = time.monotonic()
        draining = asyncio.create_task(app.drain(60))
        await asyncio.sleep(0)
        await reply(wire, answer_to(questions[0], {}), status=503)
        await draining
        assert time.monotonic() - began < 5
        assert [str(each) for each in stage.failures] == [client_requests.STOPPING]
        if not left:
            await call.done()
            called_off = {each["params"]["requestId"] for each in call.messages[3:-1]}
            assert called_off == {each["id"] for each in questions}
            assert text_of(call.answer) == client_requests.STOPPING


async def test_nothing_more_is_asked_by_a_server_that_stops() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("work")
        await stage.entered.wait()
        [running] = endpoint_of(app)._calls.here.values()
        draining = asyncio.create_task(app.drain(60))
        await settle()
        with pytest.raises(QuestionFailed, match="shutting down"):
            await ask_by(running.exchange.back, "roots/list", 600)
        stage.go.set()
        await draining
        await call.done()
        assert text_of(call.answer) == "done"


async def test_after_a_new_start_it_asks_again() -> None:
    async with serving(AskingStage().server) as app:
        await app.drain(1)
        await app.start()
        wire = await HttpWire.session(app)
        call = ask(wire)
        await reply(wire, answer_to(await call.message(), {}))
        await call.done()
        assert given(call) == [{}]


# ── what is remembered of a session ──


class Told:
    """A client that is told something."""

    async def ask(self, method: str, params: bytes, timeout: float) -> Any: ...

    async def tell(self, message: bytes) -> None: ...


@pytest.mark.parametrize("way", ["delete", "expire", "give way"])
async def test_visits_are_forgotten_with_their_session(way: str) -> None:
    stage, clock = AskingStage(), Clock()
    visits = stage.server.engine.elicitations
    async with serving(stage.server, clock=clock, max_sessions=2, session_timeout=100) as app:
        wire, other = await HttpWire.session(app), await HttpWire.session(app)
        for each in (wire, other):
            visits.began(each.session_id, "page", Told())
        if way == "delete":
            await wire.delete()
        else:
            clock.sleep(90)
            await other.ask("ping")
            clock.sleep(20 if way == "expire" else 1)
            await HttpWire.session(app)
        assert list(visits._visits) == [other.session_id]
    assert list(visits._visits) == [other.session_id]  # the process stops, its sessions do not end


# ── HTTP+SSE ──


async def test_its_questions_end_with_the_stream() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        async with connected(app) as client:
            await client.begin("ask")
            await client.stream.message()
        await until(lambda: stage.cancelled.is_set() or bool(stage.failures))


async def test_they_end_at_once_when_the_server_stops() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app, connected(app) as client:
        await client.begin("ask")
        await client.stream.message()
        began = time.monotonic()
        await app.drain(60)
        assert time.monotonic() - began < 5
        assert text_of(client.heard[-1]) == client_requests.GONE
