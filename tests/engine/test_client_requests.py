"""Requests to clients up to 2025-11-25: the table of those that wait, the way back of a pipe, and slots meanwhile."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from asking_stage import AskingStage, answer_to, progress_on, refusal_of
from dovetail import Context, Elicit, InputRequired, Server
from dovetail.engine import client_requests
from dovetail.engine.client_requests import MAX_AT_ONCE, MAX_OPEN, MAX_VISITS, Elicitations, PendingRequests, Reply
from dovetail.engine.concurrency import Limit
from dovetail.engine.connection import Call
from dovetail.engine.exchange import NO_WAY_BACK
from dovetail.errors import AnswerTimeout, Busy, QuestionFailed
from dovetail.protocol import jsonrpc
from far_state import FarState
from http_serving import settle
from http_wire import text_of
from wire import CLIENT, MODERN, Wire

HANDSHAKE = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
LEGACY = "2025-11-25"
GOOD = Reply(True, b'{"roots":[]}')


class Asked:
    """A client that is asked by a table: what was sent to it, and what goes wrong with that."""

    def __init__(self, state: Any = None, **options: Any) -> None:
        self.table = PendingRequests(state, **options)
        self.sent: list[Any] = []
        self.trouble: Callable[[bytes], Any] | None = None

    async def send(self, message: bytes) -> None:
        if self.trouble is not None:
            await self.trouble(message)
        self.sent.append(json.loads(message))

    def ask(self, params: bytes = b"{}", timeout: float = 5.0, **options: Any) -> "asyncio.Task[Any]":
        async def asking() -> Any:
            async with self.table.open("c", timeout, self.send, **options) as request:
                return json.loads(bytes(await request.result("roots/list", params, timeout)))

        return asyncio.create_task(asking())

    async def asked(self) -> str:
        """The id of the newest question."""
        await settle()
        return self.sent[-1]["id"]

    @property
    def methods(self) -> list[str]:
        return [each["method"] for each in self.sent]

    def reason(self) -> str:
        """Why the only question was called off."""
        question, called_off = self.sent
        assert called_off["method"] == "notifications/cancelled"
        assert called_off["params"]["requestId"] == question["id"]
        return called_off["params"]["reason"]


class LoopClock:
    """Moves the time of the loop that runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._real, self._skew = self._loop.time, 0.0
        self._loop.time = lambda: self._real() + self._skew  # type: ignore[method-assign]

    async def pass_by(self, seconds: float) -> None:
        self._skew += seconds
        await settle()


# ── one request ──


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {"_meta": {"progressToken": "ID"}}),
        ({"message": "é"}, {"message": "é", "_meta": {"progressToken": "ID"}}),
        ({"_meta": {"a": 1}}, {"_meta": {"a": 1, "progressToken": "ID"}}),
        ({"_meta": {"progressToken": "mine"}}, {"_meta": {"progressToken": "mine"}}),
        ({"_meta": {"progressToken": 0}}, {"_meta": {"progressToken": 0}}),
    ],
)
@pytest.mark.rule("PROG-1", "BASE-3")
async def test_a_question_and_its_answer(params: Any, expected: Any) -> None:
    client = Asked()
    asking = client.ask(json.dumps(params).encode())
    id = await client.asked()
    message = json.loads(json.dumps({"id": "ID", "params": expected}).replace("ID", id))
    assert client.sent == [{"jsonrpc": "2.0", "method": "roots/list", **message}]
    assert client.table.take("c", id, GOOD)
    assert await asking == {"roots": []}
    assert client.table.waiting == 0


@pytest.mark.rule("LIFE-9", "LIFE-10")
async def test_progress_gives_more_time_but_not_for_ever() -> None:
    clock, client = LoopClock(), Asked()
    asking = client.ask(timeout=10)
    id = await client.asked()
    for _ in range(4):  # until 26
        await clock.pass_by(6.5)
        assert client.table.take("c", id)
        await settle()
        assert not asking.done()
    await clock.pass_by(3.9)
    assert not asking.done()
    await clock.pass_by(0.2)  # three times the timeout
    with pytest.raises(AnswerTimeout, match="did not answer roots/list within 10 s") as caught:
        await asking
    assert isinstance(caught.value, (TimeoutError, QuestionFailed))
    assert client.reason() == "No answer came in time"
    assert client.table.waiting == 0


@pytest.mark.rule("CAN-1")
async def test_a_call_that_is_cancelled_calls_it_off() -> None:
    client = Asked()
    asking = client.ask()
    await client.asked()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert client.reason() == "The call that asked has ended"
    assert client.table.waiting == 0


@pytest.mark.parametrize("way", ["hangs", "fails"])
async def test_a_client_that_can_not_be_told_is_not_waited_for(way: str) -> None:
    client = Asked(call_off=0.01)

    async def trouble(message: bytes) -> None:
        if b"cancelled" in message:
            if way == "fails":
                raise OSError("gone")
            await asyncio.Event().wait()

    client.trouble = trouble
    with pytest.raises(AnswerTimeout):
        await client.ask(timeout=0.001)
    asking = client.ask()
    await client.asked()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert client.methods == ["roots/list"] * 2


@pytest.mark.parametrize("failure", [QuestionFailed("There is no way"), TimeoutError("the store is slow")])
async def test_a_question_that_can_not_be_sent_is_not_called_off(failure: Exception) -> None:
    client = Asked()

    async def trouble(_message: bytes) -> None:
        raise failure

    client.trouble = trouble
    with pytest.raises(type(failure), match=str(failure)) as caught:
        await client.ask()
    assert not isinstance(caught.value, AnswerTimeout)
    assert client.sent == []


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        ({"code": -1, "message": "User said no"}, "User said no", -1),
        ({"code": -32602, "message": ""}, "error -32602", -32602),
        ({"code": -1, "message": "a\nb\x1b[31mc\u2028d\x00"}, "a b [31mc d", -1),
        ({"code": -1, "message": "x" * 10_000}, "x" * 500 + "…", -1),
        ({"message": "only words"}, "only words", None),
        ({}, "it did not say why", None),
    ],
)
@pytest.mark.rule("BASE-8")
async def test_a_refusal_in_words(error: Any, words: str, code: int | None) -> None:
    client = Asked()
    asking = client.ask()
    message = jsonrpc.decode(json.dumps({"jsonrpc": "2.0", "id": await client.asked(), "error": error}).encode())
    assert isinstance(message, jsonrpc.Envelope)
    assert client.table.take("c", message.id, Reply.of(message))
    with pytest.raises(QuestionFailed) as caught:
        await asking
    assert str(caught.value) == f"The client could not answer roots/list: {words}"
    assert caught.value.code == code
    assert client.methods == ["roots/list"]


# ── all that wait ──


async def test_so_many_wait_for_one_client_and_for_all() -> None:
    table = PendingRequests(most=MAX_OPEN + 1)
    requests = [table.open("c", 5, Asked().send) for _ in range(MAX_OPEN)]
    ids = {(await each.__aenter__()).id for each in requests}
    assert len(ids) == MAX_OPEN
    with pytest.raises(Busy, match="100 questions"):
        await table.open("c", 5, Asked().send).__aenter__()
    async with table.open("d", 5, Asked().send):
        with pytest.raises(Busy, match="too many clients"):
            await table.open("e", 5, Asked().send).__aenter__()
    for each in requests:
        await each.__aexit__(None, None, None)
    assert table.waiting == 0
    async with table.open("c", 5, Asked().send):
        assert table.waiting == 1


async def test_questions_fail_when_no_answers_are_taken_any_more() -> None:
    client = Asked()
    answered, late = client.ask(), client.ask()
    await settle()
    client.table.take("c", client.sent[0]["id"], GOOD)
    client.table.close()
    assert await answered == {"roots": []}  # it came before
    with pytest.raises(QuestionFailed, match="shutting down"):
        await late
    assert client.sent[2]["params"]["requestId"] == client.sent[1]["id"]
    with pytest.raises(QuestionFailed, match="shutting down"):
        await client.ask()


class There:
    """Whether a client is there, beat after beat; the last word stays."""

    def __init__(self, *words: bool) -> None:
        self.words = words
        self.looks = 0

    async def __call__(self) -> bool:
        self.looks += 1
        return self.words[min(self.looks, len(self.words)) - 1]


@pytest.mark.parametrize("state", [None, FarState()], ids=["here", "shared"])
async def test_a_client_that_is_not_there_for_some_beats_is_given_up(state: Any) -> None:
    there = There(True, False, False, False, True, False)
    client = Asked(state, beat=0.001)
    with pytest.raises(QuestionFailed, match="has closed its connection"):
        await client.ask(is_there=there)
    assert there.looks == 5 + 4
    assert client.reason() == client_requests.LEFT


async def test_progress_is_a_sign_that_the_client_is_there() -> None:
    clock, client, there = LoopClock(), Asked(beat=10), There(False)
    asking = client.ask(timeout=1000, is_there=there)
    id = await client.asked()
    for _ in range(3):
        for _ in range(3):
            await clock.pass_by(10.1)
        client.table.take("c", id)
        await settle()
    assert there.looks == 9
    client.table.take("c", id, GOOD)
    assert await asking == {"roots": []}


# ── workers that share a state ──


async def test_an_answer_reaches_the_worker_that_asked() -> None:
    state = FarState()
    client, other = Asked(state), PendingRequests(state)
    asking = client.ask()
    id = await client.asked()
    assert await other.is_open("c", id)
    await other.take_anywhere("c", id)  # progress
    await settle()
    assert not asking.done()
    await asyncio.gather(*(other.take_anywhere("c", id, Reply(True, b"%d" % number)) for number in range(5)))
    assert await asking == 0  # the first one counts
    assert not await other.is_open("c", id)
    await other.take_anywhere("c", id, GOOD)
    assert state.held == 0
    assert not state._topics.names


@pytest.mark.parametrize("state", [None, FarState()], ids=["here", "shared"])
@pytest.mark.rule("EL-10", "CAN-4")
async def test_answers_that_were_not_asked_for_change_nothing(state: Any) -> None:
    client, other = Asked(state), PendingRequests(state)
    asking = client.ask()
    id = await client.asked()
    strangers: list[tuple[str, Any]] = [("d", id), ("c", id + "0"), ("c", "dovetail-" + "0" * 16), ("c", 1)]
    strangers += [("c", "x" * 9999), ("c", f"../d/{id}"), ("", id), ("c", id.upper()), ("c", None)]
    for table in (client.table, other):
        for stranger in strangers:
            await table.take_anywhere(*stranger, GOOD)
            await table.take_anywhere(*stranger)
    await settle(50)
    assert not asking.done()
    assert state is None or state.held == 1
    assert await client.table.is_open("c", id)
    assert not await client.table.is_open("d", id)
    client.table.take("c", id, GOOD)
    await asking


async def test_an_answer_that_was_not_heard_of_is_found_at_the_next_beat() -> None:
    state = FarState()
    client, other = Asked(state, beat=0.01), PendingRequests(state)
    asking = client.ask()
    id = await client.asked()
    get, troubles = state.get, [1]

    async def in_trouble(key: str) -> Any:
        if troubles and asyncio.current_task() is not this:
            troubles.pop()
            state.break_down()
        try:
            return await get(key)
        finally:
            state.trouble = None

    this = asyncio.current_task()
    state.get = in_trouble  # type: ignore[method-assign]
    await other.take_anywhere("c", id, GOOD)
    assert await asyncio.wait_for(asking, 5) == {"roots": []}
    assert troubles == []


# ── on a pipe ──


class AskedWire(Wire):
    """A client that is asked something."""

    def call(self, name: str = "ask", id: Any = 1, **arguments: Any) -> None:
        self.send(self.request("tools/call", {"name": name, "arguments": arguments}, id))

    async def question(self, **arguments: Any) -> Any:
        self.call(**arguments)
        return await self.receive()

    async def text(self) -> str:
        return text_of(await self.receive())


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("BASE-1", "BASE-3")
async def test_a_tool_asks_and_goes_on(version: str) -> None:
    async with AskedWire(AskingStage().server, version) as wire:
        question = await wire.question()
        assert question["method"] == "roots/list"
        wire.send(progress_on(question))
        wire.send(answer_to(question, {"roots": [{"uri": "file:///é"}]}))
        assert json.loads(await wire.text()) == [{"roots": [{"uri": "file:///é"}]}]
        wire.send(answer_to(question, {}))
        await wire.quiet(0.01)


@pytest.mark.rule("BASE-4")
async def test_questions_at_once_are_answered_in_any_order() -> None:
    async with AskedWire(AskingStage().server, LEGACY) as wire:
        wire.call(times=3, id=1)
        wire.call(times=2, id=2)
        questions = [await wire.receive() for _ in range(5)]
        for number, each in reversed(list(enumerate(questions))):
            wire.send(answer_to(each, {"n": number}))
            wire.send(refusal_of(each, 3, "the first one counts"))
        answers = {answer["id"]: json.loads(text_of(answer)) for answer in [await wire.receive(), await wire.receive()]}
        assert answers == {1: [{"n": 0}, {"n": 1}, {"n": 2}], 2: [{"n": 3}, {"n": 4}]}


@pytest.mark.parametrize("way", ["cancel", "abandon"])
@pytest.mark.rule("CAN-1", "CAN-2", "STDIO-6")
async def test_a_call_that_is_cancelled_on_a_pipe_calls_its_questions_off(way: str) -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, LEGACY) as wire:
        wire.call(times=2)
        questions = {(await wire.receive())["id"] for _ in range(2)}
        if way == "abandon":
            wire.connection.abandon()
        else:
            wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        called_off = [await wire.receive() for _ in range(2)]
        assert {each["method"] for each in called_off} == {"notifications/cancelled"}
        assert {each["params"]["requestId"] for each in called_off} == questions
        await stage.cancelled.wait()


async def test_a_call_that_was_cancelled_can_ask_no_more() -> None:
    stage = AskingStage()
    async with AskedWire(stage.server, LEGACY) as wire:
        wire.call("defy")
        await stage.entered.wait()
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await settle()
        assert [str(each) for each in stage.failures] == [client_requests.CALL_IS_OVER]


@pytest.mark.rule("LIFE-6", "STDIO-4")
async def test_who_can_be_asked() -> None:
    async with AskedWire(AskingStage().server) as wire:
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}
        await wire.ask("initialize", params)
        wire.call()
        assert await wire.text() == client_requests.NOT_READY
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (await wire.question(id=2))["method"] == "roots/list"
    async with AskedWire(AskingStage().server, MODERN) as wire:
        wire.call()
        assert await wire.text() == NO_WAY_BACK


async def test_when_the_connection_closes_its_questions_fail_at_once() -> None:
    stage = AskingStage()
    wire = AskedWire(stage.server, LEGACY)
    wire.grace = 5
    async with asyncio.timeout(4):
        async with wire:
            wire.call(id=1)
            wire.call(id=2)
            wire.send(answer_to(await wire.receive(), {"n": 1}))
            await wire.receive()
        lines = [json.loads(wire.lines.get_nowait()) for _ in range(wire.lines.qsize())]
        texts = [text_of(each) for each in lines if "result" in each]
        assert texts == ['[{"n": 1}]', client_requests.GONE]  # the answer came before the end


# ── visits to URLs ──


class Told:
    """A client that may be told something later."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    async def tell(self, message: bytes) -> None:
        self.messages.append(message)


@pytest.mark.rule("EL-18")
async def test_each_client_that_was_asked_with_an_id_is_told_once() -> None:
    visits, clients = Elicitations(), [Told(), Told(), Told()]
    for session, id, client in zip("abc", ("same", "other", "same"), clients, strict=True):
        visits.began(session, id, client)  # type: ignore[arg-type]
    for number in range(3 * MAX_VISITS):
        visits.began("flood", str(number), clients[0])  # type: ignore[arg-type]
    assert await visits.completed("same") is True
    assert [len(client.messages) for client in clients] == [1, 0, 1]
    assert await visits.completed("same") is False
    assert await visits.completed("0") is False
    assert await visits.completed(str(3 * MAX_VISITS - 1)) is True
    for session in ("b", "flood"):
        visits.left(session)
    assert await visits.completed("other") is False
    assert vars(visits) == vars(Elicitations())


@pytest.mark.parametrize("way", ["close", "abandon"])
async def test_visits_are_forgotten_with_their_connection(way: str) -> None:
    stage = AskingStage()
    visits = stage.server.engine.elicitations
    async with AskedWire(stage.server, LEGACY) as wire, AskedWire(stage.server, LEGACY) as other:
        for each, id in ((wire, "gone"), (other, "there")):
            visits.began(each.connection.record.id, id, Call(each.connection))
        if way == "abandon":
            wire.connection.abandon()
        else:
            await wire.connection.close()
        assert not await visits.completed("gone")
        assert await visits.completed("there")
        assert (await other.receive())["method"] == "notifications/elicitation/complete"


# ── slots, which others have while a client is asked ──


class Users(AskedWire):
    """A pipe to a server whose questions are answered when the test says so."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, LEGACY, capabilities={"elicitation": {}})

    def cancel(self, id: int) -> None:
        self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})

    async def asked(self, method: str = "elicitation/create") -> dict[str, Any]:
        message: dict[str, Any] = await self.receive()
        assert message.get("method") == method, message
        return message

    def answer(self, *questions: dict[str, Any]) -> None:
        for each in questions:
            self.send(answer_to(each, {"action": "accept", "content": {"value": "Ada"}}))

    @property
    def limit(self) -> Limit:
        return self.server.engine.limit

    def running(self, tool: str = "asks") -> tuple[int, int, int]:
        """Of the server and waiting there, and of the tool."""
        limit = self.server.engine.book.of(self.server.engine.tools.get(tool)).slots
        return self.limit.running, self.limit.waiting, 0 if limit is None else limit.running


def serving(*, per_tool: int | None = None, **options: Any) -> Server:
    server = Server("live", **options)
    options = {} if per_tool is None else {"max_concurrency": per_tool}

    @server.tool(**options)
    async def asks(ctx: Context, times: int = 1) -> str:
        answers = await asyncio.gather(*(ctx.elicit("Name?", str) for _ in range(times)))
        return " ".join(str(answer.data) for answer in answers)

    @server.tool(**options)
    def asks_in_thread(ctx: Context) -> str:
        return f"{ctx.wait(ctx.elicit('Name?', str)).data}"

    @server.tool
    async def quick() -> str:
        return "quick"

    return server


def blocking(server: Server) -> Callable[[], None]:
    """A tool that holds its slot until the returned function is called."""
    go = asyncio.Event()

    @server.tool(timeout=None)
    async def block() -> str:
        await go.wait()
        return "went on"

    return go.set


async def test_a_client_is_asked_some_of_them_at_a_time() -> None:
    async with Users(serving(max_concurrency=1, max_queue=0, per_tool=1)) as users:
        users.call("asks", times=MAX_AT_ONCE + 2)
        questions = [await users.asked() for _ in range(MAX_AT_ONCE)]
        await settle()
        assert users.lines.empty()
        assert users.running() == (0, 0, 0)
        users.answer(questions.pop())
        questions.append(await users.asked())
        users.answer(*questions)
        users.answer(await users.asked())
        assert await users.text() == " ".join(["Ada"] * (MAX_AT_ONCE + 2))
        assert users.running() == (0, 0, 0)


@pytest.mark.parametrize("tool", ["asks", "asks_in_thread"])
@pytest.mark.parametrize("options", [{"max_concurrency": 2}, {"per_tool": 2}], ids=["server", "tool"])
async def test_calls_that_wait_for_their_users_refuse_no_others(tool: str, options: dict[str, int]) -> None:
    async with Users(serving(max_queue=0, max_threads=1, **options)) as users:
        questions = []
        for number in range(1, 6):
            users.call(tool, number)
            questions.append(await users.asked())
        assert (await users.ask("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"
        users.answer(*questions)
        assert [await users.text() for _ in questions] == ["Ada"] * 5
        assert users.running(tool) == (0, 0, 0)


@pytest.mark.parametrize("end", ["go", "cancel"])
async def test_the_function_goes_on_when_there_is_a_slot_for_it(end: str) -> None:
    clock = LoopClock()
    server = serving(max_concurrency=1, max_queue=0, per_tool=1, timeout=5)
    go = blocking(server)
    async with Users(server) as users:
        users.call("asks", 1)
        question = await users.asked()
        users.call("block", 2)
        await settle()
        users.answer(question)
        await settle()
        assert users.lines.empty()  # neither refused nor served
        assert users.running() == (1, 1, 1)
        await clock.pass_by(60)  # which does not count
        if end == "cancel":
            users.cancel(1)
            await settle()
            assert users.running() == (1, 0, 0)
        go()
        assert await users.text() == "went on"
        if end == "go":
            assert await users.text() == "Ada"
        assert users.running() == (0, 0, 0)


@pytest.mark.parametrize("number", [1, MAX_AT_ONCE + 8])
async def test_questions_that_outlive_their_function_are_called_off_before_its_answer(number: int) -> None:
    server = serving(max_concurrency=1, max_queue=0)
    left: set[asyncio.Task[Any]] = set()

    @server.tool(max_concurrency=1)
    async def leaves(ctx: Context) -> str:
        left.update(asyncio.create_task(ctx.elicit("Name?", str)) for _ in range(number))
        await asyncio.sleep(0)
        return "left"

    async with Users(server) as users:
        for id in (1, 2):
            users.call("leaves", id)
            for method in ("elicitation/create", "notifications/cancelled"):
                for _ in range(min(number, MAX_AT_ONCE)):
                    await users.asked(method)
            assert await users.text() == "left"
            outcomes = await asyncio.gather(*left, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, QuestionFailed}
            assert users.running("leaves") == (0, 0, 0)


# ── functions that ask by themselves ──


@pytest.mark.parametrize("result", [{"a": 1}, 5, "x", [1], None])
async def test_a_function_that_asks_by_itself_holds_no_slot_meanwhile(result: Any) -> None:
    server = serving(max_concurrency=1, max_queue=0)

    @server.tool
    async def by_hand(ctx: Context) -> Any:
        if not ctx.input_responses:
            return InputRequired({"one": Elicit("A?", str), "two": Elicit("B?", str)})
        return f"{dict(ctx.input_responses)} {server.engine.limit.running}"

    async with Users(server) as users:
        users.call("by_hand", 1)
        questions = [await users.asked(), await users.asked()]
        users.call("quick", 2)
        assert await users.text() == "quick"
        for question in questions:
            users.send(answer_to(question, result))
        good = f"{ {'one': result, 'two': result} } 1"
        bad = "The client's answer to one can't be used: it must be an object"
        assert await users.text() == (good if isinstance(result, dict) else bad)
        assert users.limit.running == 0
