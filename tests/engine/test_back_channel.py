"""The way back to the client of a pipe: questions go out beside answers, and answers come in beside requests."""

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest

from asking_stage import AskingStage, answer_to, progress_on, refusal_of
from dovetail.engine import client_requests
from dovetail.engine.exchange import NO_WAY_BACK
from dovetail.engine.pipe_call import Call
from dovetail.errors import AnswerTimeout, QuestionFailed
from dovetail.protocol import jsonrpc
from http_serving import settle
from http_stage import text_of
from wire import CLIENT, MODERN, Wire

HANDSHAKE = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
TOLD = jsonrpc.notification("notifications/message", b'{"level":"info","data":"hello"}')


class AskedWire(Wire):
    """A client that is asked something."""

    def call(self, name: str = "ask", id: Any = 1, **arguments: Any) -> None:
        self.send(self.request("tools/call", {"name": name, "arguments": arguments}, id))

    async def question(self, **arguments: Any) -> Any:
        self.call(**arguments)
        return await self.receive()

    async def text(self) -> str:
        return text_of(await self.receive())


# ── questions and answers ──


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("BASE-1", "BASE-3")
async def test_a_tool_asks_and_goes_on(version: str) -> None:
    async with AskedWire(AskingStage().server, version) as wire:
        question = await wire.question()
        assert question == {
            "jsonrpc": "2.0",
            "id": "dovetail-1",
            "method": "roots/list",
            "params": {"_meta": {"progressToken": "dovetail-1"}},
        }
        wire.send(answer_to(question, {"roots": [{"uri": "file:///é"}]}))
        assert json.loads(await wire.text()) == [{"roots": [{"uri": "file:///é"}]}]


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_form(version: str) -> None:
    async with AskedWire(AskingStage().server, version, capabilities={"elicitation": {}}) as wire:
        question = await wire.question(method="elicitation/create")
        assert question["params"]["message"] == "How many?"
        wire.send(answer_to(question, {"action": "accept", "content": {"n": 1}}))
        assert json.loads(await wire.text()) == [{"action": "accept", "content": {"n": 1}}]


@pytest.mark.rule("BASE-4")
async def test_questions_at_once_are_answered_in_any_order() -> None:
    async with AskedWire(AskingStage().server, "2025-11-25") as wire:
        wire.call(times=3, id=1)
        wire.call(times=2, id=2)
        questions = [await wire.receive() for _ in range(5)]
        assert [each["id"] for each in questions] == [f"dovetail-{n}" for n in range(1, 6)]
        for each in reversed(questions):
            wire.send(answer_to(each, {"asked": each["id"]}))
        answers = {answer["id"]: json.loads(text_of(answer)) for answer in [await wire.receive(), await wire.receive()]}
        assert [each["asked"] for each in answers[1]] == ["dovetail-1", "dovetail-2", "dovetail-3"]
        assert [each["asked"] for each in answers[2]] == ["dovetail-4", "dovetail-5"]


async def test_the_clients_own_ids_are_others() -> None:
    """A request of the client may have the id of one of ours."""
    async with AskedWire(AskingStage().server, "2025-11-25") as wire:
        question = await wire.question(id="dovetail-1")
        assert question["id"] == "dovetail-1"
        wire.send(wire.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, "dovetail-2"))
        assert (await wire.receive())["id"] == "dovetail-2"
        wire.send(answer_to(question, {}))
        assert (await wire.receive())["id"] == "dovetail-1"


async def test_an_error_is_told_in_words() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, "2025-11-25") as wire:
        wire.send(refusal_of(await wire.question(), -1, "User rejected\nit"))
        assert await wire.text() == "The client could not answer roots/list: User rejected it"
        [failure] = stage.failures
        assert isinstance(failure, QuestionFailed)
        assert failure.code == -1


@pytest.mark.rule("CAN-4")
async def test_answers_that_nobody_waits_for_are_ignored() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, "2025-11-25") as wire:
        for id in ("dovetail-1", "dovetail-9", 1, 0, "", "x" * 10_000):
            wire.send({"jsonrpc": "2.0", "id": id, "result": {}})
            wire.send({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "m"}})
        wire.send({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "m"}})
        question = await wire.question()
        wire.send({"jsonrpc": "2.0", "error": {"code": 1, "message": "m"}})
        wire.send(answer_to(question, {"n": 1}))
        wire.send(answer_to(question, {"n": 2}))
        wire.send(refusal_of(question, 3, "three"))
        assert json.loads(await wire.text()) == [{"n": 1}]
        wire.send(answer_to(question, {"n": 4}))
        await wire.quiet()


@pytest.mark.rule("BASE-11")
async def test_answers_may_come_in_a_batch() -> None:
    async with AskedWire(AskingStage().server, "2025-03-26") as wire:
        wire.call(times=2)
        first, second = await wire.receive(), await wire.receive()
        wire.send([answer_to(second, {"n": 2}), progress_on(first), answer_to(first, {"n": 1})])
        assert json.loads(await wire.text()) == [{"n": 1}, {"n": 2}]
        await wire.quiet()


@pytest.mark.rule("BASE-11")
async def test_a_call_in_a_batch_may_ask() -> None:
    async with AskedWire(AskingStage().server, "2025-03-26") as wire:
        requests = [wire.request("tools/call", {"name": "ask", "arguments": {}}, id) for id in (1, 2)]
        wire.send(requests)
        questions = [await wire.receive(), await wire.receive()]
        wire.send([answer_to(questions[0], {"n": 1}), wire.request("ping", id=3)])
        wire.send(answer_to(questions[1], {"n": 2}))
        batches = [await wire.receive(), await wire.receive()]
        assert sorted(each["id"] for batch in batches for each in batch) == [1, 2, 3]


# ── time ──


@pytest.mark.rule("LIFE-9", "LIFE-10")
async def test_a_client_that_does_not_answer_in_time() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, "2025-11-25") as wire:
        question = await wire.question(timeout=0.05)
        called_off = await wire.receive()
        assert called_off["method"] == "notifications/cancelled"
        assert called_off["params"]["requestId"] == question["id"]
        assert await wire.text() == "The client did not answer roots/list within 0.05 s"
        assert isinstance(stage.failures[0], AnswerTimeout)
        wire.send(answer_to(question, {}))
        await wire.quiet()


@pytest.mark.rule("LIFE-10")
async def test_progress_of_the_client_gives_it_more_time() -> None:
    async with AskedWire(AskingStage().server, "2025-11-25") as wire:
        question = await wire.question(timeout=0.5)
        for number in range(4):
            await asyncio.sleep(0.15)
            wire.send(progress_on(question, number))
        wire.send(answer_to(question, {}))
        assert json.loads(await wire.text()) == [{}]


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"progressToken": None, "progress": 1},
        {"progressToken": True, "progress": 1},
        {"progressToken": [1]},
        {"progressToken": "dovetail-2", "progress": 1},
        {"progressToken": 1, "progress": 1},
        [],
    ],
)
@pytest.mark.rule("PROG-2")
async def test_other_progress_is_ignored(params: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "EXTENSIONS", 20)
    async with AskedWire(AskingStage().server, "2025-11-25") as wire:
        began = asyncio.get_running_loop().time()
        question = await wire.question(timeout=0.1)
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/progress"}
        while wire.lines.empty():
            wire.send(message if params is None else {**message, "params": params})
            await asyncio.sleep(0.02)
        assert asyncio.get_running_loop().time() - began < 1.5  # with more time it would be 2.0
        assert (await wire.receive())["params"]["requestId"] == question["id"]


# ── cancellation ──


@pytest.mark.rule("CAN-1", "CAN-2", "STDIO-6")
async def test_a_call_that_is_cancelled_calls_its_questions_off() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, "2025-11-25") as wire:
        wire.call(times=2)
        questions = {(await wire.receive())["id"] for _ in range(2)}
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        called_off = [await wire.receive() for _ in range(2)]
        assert {each["method"] for each in called_off} == {"notifications/cancelled"}
        assert {each["params"]["requestId"] for each in called_off} == questions
        await wire.quiet()
        assert stage.cancelled.is_set()


async def test_a_call_that_was_cancelled_can_ask_no_more() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, "2025-11-25") as wire:
        wire.call("defy")
        await stage.entered.wait()
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await wire.quiet()
        assert [str(each) for each in stage.failures] == [client_requests.CALL_IS_OVER]


async def test_nor_can_one_that_is_over() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, "2025-11-25") as wire:
        wire.send(answer_to(await wire.question(), {}))
        await wire.text()
        with pytest.raises(QuestionFailed, match="the call is over"):
            stage.contexts[0].back.pending("roots/list", 5)


async def test_it_asks_only_so_much_at_once() -> None:
    async with AskedWire(AskingStage().server, "2025-11-25") as wire:
        wire.call(times=client_requests.MAX_OPEN + 1)
        seen = [await wire.receive() for _ in range(client_requests.MAX_OPEN)]
        assert len({each["id"] for each in seen}) == client_requests.MAX_OPEN
        called_off = [await wire.receive() for _ in range(client_requests.MAX_OPEN)]
        assert {each["params"]["requestId"] for each in called_off} == {each["id"] for each in seen}
        answer = await wire.receive()
        assert "100 questions wait" in text_of(answer)


async def test_what_a_call_leaves_open_is_called_off_before_its_answer() -> None:
    async with AskedWire(AskingStage().server, "2025-11-25") as wire:
        wire.call(times=2)
        first, second = await wire.receive(), await wire.receive()
        wire.send(refusal_of(first, -1, "no"))
        called_off = await wire.receive()
        assert called_off["params"]["requestId"] == second["id"]
        assert (await wire.text()).endswith(": no")


# ── who can be asked ──


@pytest.mark.rule("LIFE-6")
async def test_nobody_is_asked_before_it_is_ready() -> None:
    async with AskedWire(AskingStage().server) as wire:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        await wire.ask("initialize", params)
        wire.call()
        assert await wire.text() == client_requests.NOT_READY
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (await wire.question(id=2))["method"] == "roots/list"


@pytest.mark.rule("STDIO-4")
async def test_a_request_of_today_has_no_such_way() -> None:
    async with AskedWire(AskingStage().server, MODERN) as wire:
        wire.call()
        assert await wire.text() == NO_WAY_BACK


# ── telling ──


async def test_what_is_told_goes_out_also_when_the_call_is_over() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, "2025-11-25") as wire:
        question = await wire.question()
        back = stage.contexts[0].back
        await back.tell(TOLD)
        assert (await wire.receive())["params"]["data"] == "hello"
        wire.send(answer_to(question, {}))
        await wire.text()
        await back.tell(TOLD)
        assert (await wire.receive())["params"]["data"] == "hello"
    await back.tell(TOLD)
    assert wire.lines.empty()


async def test_whoever_keeps_the_way_back_keeps_no_request() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, "2025-11-25") as wire:
        wire.send(answer_to(await wire.question(), {}))
        await wire.text()
        exchange = stage.contexts.pop()
        back = exchange.back
        exchange.finish.append(part := lambda: None)
        gone = weakref.ref(part)
        del exchange, part
        await settle()
        gc.collect()
        assert gone() is None
        await back.tell(TOLD)
        await wire.receive()


# ── the end ──


async def test_when_the_connection_closes_its_questions_fail_at_once() -> None:
    stage = AskingStage()
    wire = AskedWire(stage.server, "2025-11-25")
    wire.grace = 5
    async with asyncio.timeout(2):
        async with wire:
            await wire.question()
        assert await wire.text() == client_requests.GONE


async def test_an_answer_that_came_before_the_end_counts() -> None:
    wire = AskedWire(AskingStage().server, "2025-11-25")
    async with wire:
        wire.send(answer_to(await wire.question(), {"n": 1}))
    assert json.loads(await wire.text()) == [{"n": 1}]


async def test_nothing_is_asked_on_a_connection_that_closes() -> None:
    stage = AskingStage()
    wire = AskedWire(stage.server, "2025-11-25")
    wire.grace = 0.05
    async with wire:
        wire.call("defy")
        await stage.entered.wait()
    assert [str(each) for each in stage.failures] == [client_requests.CALL_IS_OVER]
    assert wire.lines.empty()


async def test_abandoning_it_calls_its_questions_off() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, "2025-11-25") as wire:
        await wire.question()
        wire.connection.abandon()
        assert (await wire.receive())["method"] == "notifications/cancelled"
        await wire.quiet()
        assert stage.cancelled.is_set()


@pytest.mark.parametrize("way", ["close", "abandon"])
async def test_its_visits_are_forgotten_with_it(way: str) -> None:
    stage = AskingStage()
    visits = stage.server.engine.elicitations
    async with AskedWire(stage.server, "2025-11-25") as wire, AskedWire(stage.server, "2025-11-25") as other:
        await wire.question()
        back = stage.contexts[0].back
        for each in (wire, other):
            visits.began(each.connection.record.id, "page", back)
        if way == "abandon":
            wire.connection.abandon()
        else:
            await wire.connection.close()
        assert list(visits._visits) == [other.connection.record.id]
    assert not visits._visits


async def test_a_handshake_that_failed_leaves_no_visits() -> None:
    server = AskingStage().server
    async with AskedWire(server, "2025-11-25") as wire:
        server.engine.elicitations.began(wire.connection.record.id, "page", Call(wire.connection))
        wire.connection._drop_session()
        assert not server.engine.elicitations._visits


# ── roots ──


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_roots_are_kept_until_they_change(version: str) -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    async with AskedWire(AskingStage().server, version) as wire:
        await wire.connection.change(lambda record: record.replace(roots=b'{"roots":[]}'))
        assert wire.connection.record.roots_version == 0
        wire.send(changed)
        assert wire.connection.record.roots is None
        assert wire.connection.record.roots_version == 1
        assert await wire.connection.reload()
        wire.send([changed, changed] if version == "2025-03-26" else changed)
        assert wire.connection.record.roots_version > 1


async def test_roots_of_nobody() -> None:
    async with AskedWire(AskingStage().server) as wire:
        wire.send({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
        assert not await wire.connection.reload()
        await wire.quiet(0.01)
