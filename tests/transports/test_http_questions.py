"""Questions to clients over HTTP: they go on the stream of the call that asks, and answers come by any request."""

import asyncio
import json
from typing import Any

import pytest
from http_asking import ask, finished_call, given, leave, note, reply
from old_client import connected

from asking_stage import AskingStage, answer_to, ask_by, progress_on, refusal_of
from dovetail.engine import client_requests
from dovetail.engine.exchange import NO_WAY_BACK
from dovetail.errors import AnswerTimeout, QuestionFailed
from dovetail.state.memory import MemoryState
from dovetail.transports import server_messages
from http_serving import PausingState, endpoint_of, serving, settle
from http_stage import HANDSHAKE, MODERN, text_of
from http_wire import CLIENT, HttpWire

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
            assert app._state.held == before + 1  # the log of the stream
            if answered:
                await reply(wire, answer_to(question, {}))
            await call.done()
            before += 1  # the log can be asked for
            assert app._state.held == before
        assert not endpoint_of(app)._messages.replies.waiting


async def test_an_error_is_told_in_words() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = ask(wire)
        await reply(wire, refusal_of(await call.message(), -32601, "Method not found"))
        await call.done()
        expected = "The client could not answer roots/list: Method not found"
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


# ── two workers ──


# ── who can be asked at all ──


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_server_without_sessions_says_why(version: str) -> None:
    async with serving(AskingStage().server, stateless=True) as app:
        wire = HttpWire(app, headers={"mcp-protocol-version": version})
        wire.version = version
        call = await ask(wire).done()
        assert text_of(call.answer) == server_messages.STATELESS
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
        assert text_of(call.answer) == client_requests.NOT_READY
        call = wire.start_call("work", id=5)
        await call.started()
        await wire.notify("notifications/initialized")
        exchange = endpoint_of(app)._calls.here[wire.session_id, 5].exchange
        asking = asyncio.create_task(ask_by(exchange.back, "roots/list", 5))  # it is ready by now
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
        principal = stage.contexts[0].principal
        assert (None if principal is None else principal.subject) == user


# ── HTTP+SSE ──


@pytest.mark.rule("SSE-6")
async def test_a_client_of_http_and_sse_is_asked_on_its_stream() -> None:
    stage = AskingStage()
    async with serving(stage.server) as app, connected(app) as client:
        await client.begin("ask")
        question = await client.stream.message()
        assert (await client.post(progress_on(question)).done()).status == 202
        assert (await client.post(answer_to(question, {"n": 1})).done()).status == 202
        assert json.loads(text_of(await client.stream.message())) == [{"n": 1}]
        await stage.contexts[0].back.tell(note("after"))
        assert (await client.stream.message())["params"]["data"] == "after"
        assert (await client.post(answer_to(question, {"n": 2})).done()).status == 202
