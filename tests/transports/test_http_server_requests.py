"""Client requests over HTTP: the stream that carries them, the response that counts, and ends without one."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from http_clients import JSON, answered, ask, finished_call, given, identify, leave, methods, reply

from dovetail.engine import server_requests
from dovetail.engine.request_context import NO_CHANNEL
from dovetail.errors import AnswerTimeout, QuestionFailed
from dovetail.state.memory import MEBIBYTE, MemoryState
from dovetail.transports.http import get_stream
from dovetail.transports.http.options import HttpOptions
from http_serving import Clock, PausingState, Serve, endpoint_of, serving, settle, until
from http_wire import HANDSHAKE, HttpWire, post, text_of, unready
from server_requests import AskingStage, answer_to, ask_by, progress_on, refusal_of

JSON_ONLY: dict[str, str | None] = {"accept": JSON}
Long = Callable[[], Any]


@pytest.fixture
async def stage() -> AskingStage:
    return AskingStage()


@pytest.fixture
def long(pass_time: Callable[[float], None]) -> Long:
    """Any question would be given up by then."""

    async def long() -> None:
        for _ in range(7):
            pass_time(HttpOptions().keep_alive)
            await settle(50)

    return long


@pytest.mark.parametrize("state", [MemoryState, PausingState])
@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-6", "SH-11", "SH-12", "SH-14", "SH-20")
async def test_a_tool_asks_on_its_own_stream_and_goes_on(serve: Serve, version: str, state: type[MemoryState]) -> None:
    wire = await HttpWire.session(await serve(state=state()), version)
    stream = await wire.get().started()
    call = ask(wire)
    question = await call.message()
    assert question["method"] == "roots/list"
    assert question["params"] == {"_meta": {"progressToken": question["id"]}}
    assert call.events[-1].id
    roots = {"roots": [{"uri": "file:///é"}]}
    assert await answered(wire, call, question, roots) == [roots]
    assert stream.messages == []
    call = ask(wire, headers=JSON_ONLY)  # who reads JSON only is asked on the stream that it GETs
    assert await answered(wire, call, await stream.message(), {"n": 1}) == [{"n": 1}]
    assert not call.is_stream
    await leave(stream)


async def test_a_client_that_reads_json_only_needs_a_get_stream_and_gets_the_cancellation_on_it(
    clock: Clock, serve: Serve, pass_time: Callable[[float], None]
) -> None:
    wire = await HttpWire.session(await serve(clock=clock))

    async def asked() -> str:
        call = ask(wire, headers=JSON_ONLY, timeout=10)
        await settle(50)
        pass_time(0 if call.ended else 11)
        return text_of((await call.done()).json)

    async def beat(stream: Any) -> None:
        held = len(stream.raw)
        await settle(50)
        pass_time(16)
        await stream.until(lambda: len(stream.raw) > held)

    assert await asked() == f"This needs roots, but {get_stream.JSON_ONLY}"
    stream = await wire.get().started()
    for _ in range(3):  # it is known as long as it lasts
        clock.sleep(30)
        await beat(stream)
    assert "did not answer" in await asked()
    assert methods(stream) == ["roots/list", "notifications/cancelled"]
    clock.sleep(100)  # its process died, and can't say that it is gone
    assert get_stream.JSON_ONLY in await asked()
    await beat(stream)  # or it was only slow
    assert "did not answer" in await asked()
    await leave(stream)
    assert get_stream.JSON_ONLY in await asked()


@pytest.mark.rule("LIFE-6", "EL-11")
async def test_a_client_is_asked_neither_before_initialized_nor_without_a_session(
    stage: AskingStage, serve: Serve
) -> None:
    wire = await unready(await serve())
    assert text_of((await ask(wire).done()).answer) == server_requests.NOT_INITIALIZED
    await wire.notify("notifications/initialized")
    await finished_call(stage, wire)
    assert text_of((await ask(HttpWire(wire.app)).done()).answer) == NO_CHANNEL
    assert [each.principal for each in stage.contexts] == [None] * 3
    wire = HttpWire(await serve(stateless=True), "2025-11-25", headers={"mcp-protocol-version": "2025-11-25"})
    assert text_of((await ask(wire).done()).answer) == get_stream.STATELESS
    await reply(wire, answer_to({"id": "dovetail-1"}, {}))


@pytest.mark.rule("SH-6", "SH-7", "EL-10", "EL-11")
async def test_the_first_valid_response_counts_if_its_sender_was_asked(stage: AskingStage, serve: Serve) -> None:
    """Another session, and another user of the same one, have no say."""
    app = await serve(state=PausingState(), identify=identify, max_body_bytes=MEBIBYTE)
    wire, other = [await HttpWire.session(app, headers={"x-user": user}) for user in ("ann", "bob")]
    call = ask(wire)
    question = await call.message()
    await reply(other, answer_to(question, {"by": "bob"}))
    await reply(other, progress_on(question))
    assert stage.contexts[0].principal.subject == "ann"
    thief = HttpWire(app, "2025-11-25", headers={"x-user": "bob"})
    thief.session_id = wire.session_id
    await reply(thief, answer_to(question, {"by": "bob"}), status=404)
    both = {"jsonrpc": "2.0", "id": question["id"], "result": {}, "error": {"code": 1, "message": "m"}}
    for bad in (both, {"jsonrpc": "2.0", "id": question["id"]}, {"id": question["id"], "result": {}}):
        await reply(wire, bad, status=400)
    await reply(wire, {"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "m"}})
    await reply(wire, answer_to(question, "x" * MEBIBYTE), status=413)
    await settle()
    assert not call.ended
    await asyncio.gather(*(reply(wire, answer_to(question, {"n": n})) for n in range(5)))
    await reply(wire, answer_to(question, {"n": 9}))
    assert given(await call.done())[0]["n"] in range(5)
    await reply(wire, refusal_of(question, 1, "too late"))


@pytest.mark.parametrize("id", ["dovetail-1", "dovetail-0123456789abcdef", 1, "", "x" * 100_000, "server-request/a/b"])
async def test_responses_without_a_request_are_ignored(app: Any, wire: HttpWire, id: Any) -> None:
    before = app._state.held
    await reply(wire, answer_to({"id": id}, {}))
    await reply(wire, refusal_of({"id": id}, 1, "m"))
    await reply(wire, progress_on({"params": {"_meta": {"progressToken": id}}}))
    assert app._state.held == before


@pytest.mark.rule("BASE-11", "SH-5", "SH-12")
async def test_responses_may_come_in_a_batch_and_so_may_calls_that_ask(app: Any) -> None:
    wire = await HttpWire.session(app, "2025-03-26")
    calls = [wire.message("tools/call", {"name": "ask", "arguments": {"times": times}}) for times in (1, 2)]
    batch = wire.raw("POST", json.dumps(calls).encode())
    questions = [await batch.message() for _ in range(3)]
    stranger = {"jsonrpc": "2.0", "id": "dovetail-1", "result": {}}
    await reply(wire, [answer_to(questions[1], {"n": 1}), stranger, progress_on(questions[0])])
    mixed = [answer_to(questions[0], {"n": 0}), wire.message("ping"), answer_to(questions[2], {"n": 2})]
    assert [each["result"] for each in (await post(wire, mixed)).answer] == [{}]
    await batch.done()
    assert [json.loads(text_of(each)) for each in batch.answer] == [[{"n": 0}], [{"n": 1}, {"n": 2}]]


@pytest.mark.rule("LIFE-9", "LIFE-10")
async def test_a_client_request_times_out_but_progress_gives_it_more_time(
    stage: AskingStage, wire: HttpWire, pass_time: Callable[[float], None]
) -> None:
    call = ask(wire, timeout=10)
    question = await call.message()
    for number in range(4):
        pass_time(6)
        await settle(50)
        await reply(wire, progress_on(question, number))
    assert methods(call) == ["roots/list"]
    pass_time(11)
    called_off = await call.message()
    assert (called_off["method"], called_off["params"]["requestId"]) == ("notifications/cancelled", question["id"])
    assert "did not answer roots/list within 10 s" in text_of((await call.done()).answer)
    assert isinstance(stage.failures[0], AnswerTimeout)
    await reply(wire, answer_to(question, {}))


@pytest.mark.parametrize("way", ["cancel", "delete", "answer", "drain"])
@pytest.mark.rule("CAN-1", "CAN-2", "CAN-4", "SH-30")
async def test_a_client_request_may_end_at_any_moment(way: str) -> None:
    """What was asked is called off before the call ends; an answer that fails the call leaves one question less."""
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
            if way == "delete":
                await reply(wire, {"jsonrpc": "2.0", "id": "dovetail-1", "result": {}}, status=404)
            messages = call.messages if call.is_stream else []
            asked = {each["id"] for each in messages if each.get("method") == "roots/list"}
            called_off = {each["params"]["requestId"] for each in messages if each.get("method", "")[:1] == "n"}
            assert len(asked - called_off) == (way == "answer"), (turns, messages)
            assert not endpoint_of(app).messages.pending_requests.count


async def test_a_client_that_disconnected_before_there_was_a_stream_is_not_waited_for(
    stage: AskingStage, app: Any
) -> None:
    wire = await HttpWire.session(app, "2025-06-18")
    call = wire.start_call("work")
    await stage.entered.wait()
    [running] = endpoint_of(app).calls.by_id.values()
    await call.cut()
    with pytest.raises(QuestionFailed, match="has closed its connection and has no GET stream open"):
        await ask_by(running.context.channel, "roots/list", 5)
    stream = await wire.get().started()
    asking = asyncio.create_task(ask_by(running.context.channel, "roots/list", 5))
    await reply(wire, answer_to(await stream.message(), {}))
    await asking
    stage.go.set()
    await leave(stream)


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("LIFE-9", "SH-15")
async def test_a_client_that_does_not_reconnect_is_given_up(
    stage: AskingStage, serve: Serve, long: Long, version: str
) -> None:
    app = await serve(state=PausingState())
    wire = await HttpWire.session(app, version)
    call = ask(wire, times=3, timeout=600)
    questions = [await call.message() for _ in range(3)]
    place = call.events[-1].id
    await call.cut()
    await long()
    await until(lambda: bool(stage.failures) and not endpoint_of(app).calls.by_id)
    assert [str(each) for each in stage.failures] == [server_requests.CLIENT_DISCONNECTED]
    rest = await wire.get(place).done()  # a client that resumes too late learns that no call waits
    assert {each["params"]["requestId"] for each in rest.messages[:-1]} == {each["id"] for each in questions}
    assert text_of(rest.answer) == server_requests.CLIENT_DISCONNECTED


@pytest.mark.parametrize("beside", [False, True])
async def test_a_connected_client_may_take_its_time_and_one_that_disconnects_for_good_is_given_up(
    stage: AskingStage, wire: HttpWire, long: Long, beside: bool
) -> None:
    """Also one that only had a stream beside the call."""
    call = ask(wire, timeout=6000)
    await call.message()
    await long()
    assert not call.ended
    await call.cut()
    streams = [await wire.get(None if beside else call.events[-1].id).started() for _ in range(2)]
    await streams[0].done()
    await long()
    assert not stage.failures
    await streams[1].cut()
    await long()
    await until(lambda: [str(each) for each in stage.failures] == [server_requests.CLIENT_DISCONNECTED])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.rule("SH-15")
async def test_a_server_that_stops_waits_for_no_response_and_asks_again_after_a_new_start(
    stage: AskingStage, serve: Serve, left: bool
) -> None:
    app = await serve(state=PausingState())
    wire = await HttpWire.session(app)
    call = ask(wire, times=3, timeout=600)
    questions = [await call.message() for _ in range(3)]
    working = await wire.start_call("work").started()
    [running] = [each for each in endpoint_of(app).calls.by_id.values() if each.context.request.params.name == "work"]
    if left:
        await call.cut()
    draining = asyncio.create_task(app.drain(60))
    await asyncio.sleep(0)
    await reply(wire, answer_to(questions[0], {}), status=503)
    with pytest.raises(QuestionFailed, match="shutting down"):
        await ask_by(running.context.channel, "roots/list", 600)
    stage.go.set()
    await asyncio.wait_for(draining, 5)
    assert [str(each) for each in stage.failures] == [server_requests.SERVER_STOPPING]
    assert text_of((await working.done()).answer) == "done"
    if not left:
        await call.done()
        assert {each["params"]["requestId"] for each in call.messages[3:-1]} == {each["id"] for each in questions}
        assert text_of(call.answer) == server_requests.SERVER_STOPPING
    await app.start()
    await finished_call(stage, await HttpWire.session(app))
