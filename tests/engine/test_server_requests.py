"""Requests to clients up to 2025-11-25: pending requests, the channel of a connection, URL elicitations and slots."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail import Context, Elicit, InputRequired, Server
from dovetail.engine import server_requests
from dovetail.engine.connection import Call
from dovetail.engine.request_context import NO_CHANNEL
from dovetail.engine.server_requests import (
    MAX_REQUESTS_PER_CALL,
    MAX_REQUESTS_PER_CLIENT,
    MAX_URL_ELICITATIONS,
    ClientResponse,
    PendingRequests,
    UrlElicitations,
)
from dovetail.errors import AnswerTimeout, Busy, QuestionFailed
from dovetail.protocol import jsonrpc
from dovetail.state.base import StoreUnavailable
from http_serving import settle, until
from http_wire import text_of
from remote_state import RemoteState
from server_requests import AskingStage, answer_to, progress_on
from wire import CLIENT, MODERN, Wire

LEGACY = "2025-11-25"
GOOD = ClientResponse(True, b'{"roots":[]}')


class Asked:
    """A client with pending requests: what was sent to it, and how sending fails."""

    def __init__(self, state: Any = None, **options: Any) -> None:
        self.table = PendingRequests(state, **options)
        self.sent: list[Any] = []
        self.fail_to_send: Callable[[bytes], Any] | None = None

    async def send(self, message: bytes) -> None:
        if self.fail_to_send is not None:
            await self.fail_to_send(message)
        self.sent.append(json.loads(message))

    def ask(self, params: bytes = b"{}", timeout: float = 5.0, **options: Any) -> "asyncio.Task[Any]":
        async def asking() -> Any:
            async with self.table.open("c", timeout, self.send, **options) as request:
                return json.loads(bytes(await request.result("roots/list", params, timeout)))

        return asyncio.create_task(asking())

    async def asked(self) -> str:
        """The id of the newest request."""
        await settle()
        return self.sent[-1]["id"]

    def reason(self) -> str:
        """Why the only request was cancelled."""
        request, notification = self.sent
        assert notification["method"] == "notifications/cancelled"
        assert notification["params"]["requestId"] == request["id"]
        return notification["params"]["reason"]


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
async def test_a_request_and_its_response(params: Any, expected: Any) -> None:
    client = Asked()
    asking = client.ask(json.dumps(params).encode())
    id = await client.asked()
    message = json.loads(json.dumps({"id": "ID", "params": expected}).replace("ID", id))
    assert client.sent == [{"jsonrpc": "2.0", "method": "roots/list", **message}]
    assert client.table.deliver("c", id, GOOD)
    assert await asking == {"roots": []}
    assert client.table.count == 0


@pytest.mark.rule("LIFE-9", "LIFE-10")
async def test_progress_gives_more_time_but_not_for_ever() -> None:
    clock, client = LoopClock(), Asked()
    asking = client.ask(timeout=10)
    id = await client.asked()
    for _ in range(4):  # until 26
        await clock.pass_by(6.5)
        assert client.table.deliver("c", id)
        await settle()
        assert not asking.done()
    await clock.pass_by(3.9)
    assert not asking.done()
    await clock.pass_by(0.2)  # three times the timeout
    with pytest.raises(AnswerTimeout, match="did not answer roots/list within 10 s") as caught:
        await asking
    assert isinstance(caught.value, (TimeoutError, QuestionFailed))
    assert client.reason() == "No answer came in time"
    assert client.table.count == 0


@pytest.mark.parametrize("way", ["hangs", "fails"])
async def test_a_cancellation_that_can_not_be_sent_is_not_waited_for(way: str) -> None:
    client = Asked(cancel_timeout=0.01)

    async def fail_to_send(message: bytes) -> None:
        if b"cancelled" in message:
            if way == "fails":
                raise OSError("gone")
            await asyncio.Event().wait()

    client.fail_to_send = fail_to_send
    with pytest.raises(AnswerTimeout):
        await client.ask(timeout=0.001)
    asking = client.ask()
    await client.asked()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [each["method"] for each in client.sent] == ["roots/list"] * 2


@pytest.mark.parametrize("failure", [QuestionFailed("There is no way"), TimeoutError("the store is slow")])
async def test_a_request_that_can_not_be_sent_is_not_cancelled(failure: Exception) -> None:
    client = Asked()

    async def fail_to_send(_message: bytes) -> None:
        raise failure

    client.fail_to_send = fail_to_send
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
async def test_the_error_of_a_client_in_words(error: Any, words: str, code: int | None) -> None:
    client = Asked()
    asking = client.ask()
    message = jsonrpc.decode(json.dumps({"jsonrpc": "2.0", "id": await client.asked(), "error": error}).encode())
    assert client.table.deliver("c", message.id, ClientResponse.from_envelope(message))
    with pytest.raises(QuestionFailed) as caught:
        await asking
    assert str(caught.value) == f"The client could not answer roots/list: {words}"
    assert caught.value.code == code
    assert len(client.sent) == 1


# ── all pending requests ──


async def test_so_many_are_pending_for_one_client_and_for_all() -> None:
    table, send = PendingRequests(max_requests=MAX_REQUESTS_PER_CLIENT + 1), Asked().send
    async with AsyncExitStack() as stack:
        requests = [await stack.enter_async_context(table.open("c", 5, send)) for _ in range(MAX_REQUESTS_PER_CLIENT)]
        assert len({each.id for each in requests}) == MAX_REQUESTS_PER_CLIENT
        with pytest.raises(Busy, match="100 questions"):
            await stack.enter_async_context(table.open("c", 5, send))
        async with table.open("d", 5, send):
            with pytest.raises(Busy, match="too many clients"):
                await stack.enter_async_context(table.open("e", 5, send))
    assert table.count == 0
    async with table.open("c", 5, send):
        assert table.count == 1


async def test_pending_requests_fail_when_the_server_stops() -> None:
    client = Asked()
    answered, late = client.ask(), client.ask()
    await settle()
    client.table.deliver("c", client.sent[0]["id"], GOOD)
    client.table.close()
    assert await answered == {"roots": []}  # it came before
    with pytest.raises(QuestionFailed, match="shutting down"):
        await late
    assert client.sent[2]["params"]["requestId"] == client.sent[1]["id"]
    with pytest.raises(QuestionFailed, match="shutting down"):
        await client.ask()


class Reachable:
    """Whether a client is reachable, check after check; the last word stays."""

    checks = 0

    def __init__(self, *words: bool) -> None:
        self.words = words

    async def __call__(self) -> bool:
        self.checks += 1
        return self.words[min(self.checks, len(self.words)) - 1]


@pytest.mark.parametrize("state", [None, RemoteState()], ids=["here", "shared"])
async def test_a_client_that_is_unreachable_for_some_checks_is_given_up(state: Any) -> None:
    reachable = Reachable(True, False, False, False, True, False)
    client = Asked(state, check_interval=0.001)
    with pytest.raises(QuestionFailed, match="has closed its connection"):
        await client.ask(is_reachable=reachable)
    assert reachable.checks == 5 + 4
    assert client.reason() == server_requests.CLIENT_DISCONNECTED


async def test_progress_shows_that_the_client_is_reachable() -> None:
    clock, client, reachable = LoopClock(), Asked(check_interval=10), Reachable(False)
    asking = client.ask(timeout=1000, is_reachable=reachable)
    id = await client.asked()
    for _ in range(3):
        for _ in range(3):
            await clock.pass_by(10.1)
        client.table.deliver("c", id)
        await settle()
    assert reachable.checks == 9
    client.table.deliver("c", id, GOOD)
    assert await asking == {"roots": []}


# ── workers that share a state ──


async def test_a_response_reaches_the_worker_that_sent_the_request() -> None:
    state = RemoteState()
    client, other = Asked(state), PendingRequests(state)
    asking = client.ask()
    id = await client.asked()
    assert await other.is_pending("c", id)
    await other.deliver_anywhere("c", id)  # progress
    await settle()
    assert not asking.done()
    await asyncio.gather(
        *(other.deliver_anywhere("c", id, ClientResponse(True, b"%d" % number)) for number in range(5))
    )
    assert await asking == 0  # the first one counts
    assert not await other.is_pending("c", id)
    await other.deliver_anywhere("c", id, GOOD)
    assert state.held == 0
    assert not state._topics.names


@pytest.mark.parametrize("state", [None, RemoteState()], ids=["here", "shared"])
@pytest.mark.rule("EL-10", "CAN-4")
async def test_responses_to_no_request_change_nothing(state: Any) -> None:
    client, other = Asked(state), PendingRequests(state)
    asking = client.ask()
    id = await client.asked()
    strangers: list[tuple[str, Any]] = [("d", id), ("c", id + "0"), ("c", "dovetail-" + "0" * 16), ("c", 1)]
    strangers += [("c", "x" * 9999), ("c", f"../d/{id}"), ("", id), ("c", id.upper()), ("c", None)]
    for table in (client.table, other):
        for stranger in strangers:
            await table.deliver_anywhere(*stranger, GOOD)
            await table.deliver_anywhere(*stranger)
    await settle(50)
    assert not asking.done()
    assert state is None or state.held == 1
    assert await client.table.is_pending("c", id)
    assert not await client.table.is_pending("d", id)
    client.table.deliver("c", id, GOOD)
    await asking


async def test_a_response_that_was_not_published_is_found_at_the_next_check() -> None:
    state = RemoteState()
    client, other = Asked(state, check_interval=0.01), PendingRequests(state)
    asking = client.ask()
    id = await client.asked()
    travel, this, troubles = state.travel, asyncio.current_task(), [1]

    async def in_trouble(name: str) -> None:
        if name == "get" and troubles and asyncio.current_task() is not this:
            troubles.pop()
            raise StoreUnavailable
        await travel(name)

    state.travel = in_trouble  # type: ignore[method-assign]
    await other.deliver_anywhere("c", id, GOOD)
    assert await asyncio.wait_for(asking, 5) == {"roots": []}
    assert troubles == []


# ── on a pipe ──


class AskedWire(Wire):
    """A client that is asked something, and answers when the test says so."""

    def __init__(self, server: Server, version: str | None = LEGACY) -> None:
        super().__init__(server, version, capabilities={"elicitation": {}})

    def call(self, name: str = "ask", id: Any = 1, **arguments: Any) -> None:
        self.send(self.request("tools/call", {"name": name, "arguments": arguments}, id))

    def cancel(self, id: int) -> None:
        self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})

    async def asked(self, method: str = "elicitation/create") -> dict[str, Any]:
        message: dict[str, Any] = await self.receive()
        assert message.get("method") == method, message
        return message

    def answer(self, *questions: dict[str, Any]) -> None:
        for each in questions:
            self.send(answer_to(each, {"action": "accept", "content": {"value": "Ada"}}))

    async def text(self) -> str:
        return text_of(await self.receive())

    def running(self, tool: str = "asks") -> tuple[int, int, int]:
        """Of the server and waiting there, and of the tool."""
        engine = self.server.engine
        slots = engine.call_limits.for_tool(engine.tools.get(tool)).slots
        return engine.limit.running, engine.limit.waiting, 0 if slots is None else slots.running


@pytest.mark.parametrize("version", ["2024-11-05", LEGACY])
@pytest.mark.rule("BASE-1", "BASE-3")
async def test_a_tool_asks_and_goes_on(version: str) -> None:
    async with AskedWire(AskingStage().server, version) as wire:
        wire.call()
        question = await wire.asked("roots/list")
        wire.send(progress_on(question))
        wire.send(answer_to(question, {"roots": [{"uri": "file:///é"}]}))
        assert json.loads(await wire.text()) == [{"roots": [{"uri": "file:///é"}]}]
        wire.send(answer_to(question, {}))
        await wire.quiet(0.01)


@pytest.mark.parametrize("way", ["cancel", "cancel_calls"])
@pytest.mark.rule("CAN-1", "CAN-2", "STDIO-6")
async def test_a_cancelled_call_cancels_its_requests_and_can_make_no_more(way: str) -> None:
    stage = AskingStage()
    async with AskedWire(stage.server) as wire:
        wire.call(times=2)
        questions = {(await wire.asked("roots/list"))["id"] for _ in range(2)}
        wire.call("defy", 2)
        await until(lambda: len(stage.contexts) == 2)
        if way == "cancel_calls":
            wire.connection.cancel_calls()
        else:
            wire.cancel(1)
            wire.cancel(2)
        cancelled = [(await wire.asked("notifications/cancelled"))["params"] for _ in range(2)]
        assert {each["requestId"] for each in cancelled} == questions
        assert {each["reason"] for each in cancelled} == {"The call that asked has ended"}
        await stage.cancelled.wait()
        await settle()
        assert [str(each) for each in stage.failures] == [server_requests.CALL_ENDED]


@pytest.mark.rule("LIFE-6", "STDIO-4")
async def test_who_can_be_asked() -> None:
    async with AskedWire(AskingStage().server, None) as wire:
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}
        await wire.ask("initialize", params)
        wire.call()
        assert await wire.text() == server_requests.NOT_INITIALIZED
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        wire.call(id=2)
        await wire.asked("roots/list")
    async with AskedWire(AskingStage().server, MODERN) as wire:
        wire.call()
        assert await wire.text() == NO_CHANNEL


async def test_when_the_connection_closes_its_pending_requests_fail_at_once() -> None:
    stage = AskingStage()
    wire = AskedWire(stage.server)
    wire.grace = 5
    async with asyncio.timeout(4):
        async with wire:
            wire.call(id=1)
            wire.call(id=2)
            wire.send(answer_to(await wire.receive(), {"n": 1}))
            await wire.receive()
        lines = [json.loads(wire.lines.get_nowait()) for _ in range(wire.lines.qsize())]
        texts = [text_of(each) for each in lines if "result" in each]
        assert texts == ['[{"n": 1}]', server_requests.CONNECTION_CLOSED]  # the answer came before the end


# ── URL elicitations ──


@pytest.mark.rule("EL-18")
async def test_each_client_that_was_asked_with_an_id_is_notified_once() -> None:
    elicitations, notified = UrlElicitations(), list[str]()

    async def register(session: str, id: str) -> None:
        async def notify(_message: bytes) -> None:
            notified.append(session)

        await elicitations.register(session, id, SimpleNamespace(notify=notify))  # type: ignore[arg-type]

    for session, id in zip("abc", ("same", "other", "same"), strict=True):
        await register(session, id)
    for number in range(3 * MAX_URL_ELICITATIONS):
        await register("flood", str(number))
    assert await elicitations.complete("same") is True
    assert sorted(notified) == ["a", "c"]
    assert await elicitations.complete("same") is False
    assert await elicitations.complete("0") is False
    assert await elicitations.complete(str(3 * MAX_URL_ELICITATIONS - 1)) is True
    for session in ("b", "flood"):
        elicitations.forget_session(session)
    assert await elicitations.complete("other") is False
    assert vars(elicitations) == vars(UrlElicitations())


@pytest.mark.parametrize("way", ["close", "cancel_calls"])
async def test_url_elicitations_are_forgotten_with_their_connection(way: str) -> None:
    stage = AskingStage()
    elicitations = stage.server.engine.elicitations
    async with AskedWire(stage.server) as wire, AskedWire(stage.server) as other:
        for each, id in ((wire, "gone"), (other, "there")):
            await elicitations.register(each.connection.record.id, id, Call(each.connection))
        if way == "cancel_calls":
            wire.connection.cancel_calls()
        else:
            await wire.connection.close()
        assert not await elicitations.complete("gone")
        assert await elicitations.complete("there")
        await other.asked("notifications/elicitation/complete")


# ── slots, which others have while a client is asked ──


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


@pytest.mark.rule("BASE-4")
async def test_a_client_is_asked_some_of_them_at_a_time_and_answers_in_any_order() -> None:
    async with AskedWire(serving(max_concurrency=1, max_queue=0, per_tool=1)) as users:
        users.call("asks", times=MAX_REQUESTS_PER_CALL + 2)
        questions = [await users.asked() for _ in range(MAX_REQUESTS_PER_CALL)][::-1]
        await settle()
        assert users.lines.empty()
        assert users.running() == (0, 0, 0)
        users.answer(questions.pop())
        questions.append(await users.asked())
        users.answer(*questions)
        users.answer(await users.asked())
        assert await users.text() == " ".join(["Ada"] * (MAX_REQUESTS_PER_CALL + 2))
        assert users.running() == (0, 0, 0)


@pytest.mark.parametrize("tool", ["asks", "asks_in_thread"])
@pytest.mark.parametrize("options", [{"max_concurrency": 2}, {"per_tool": 2}], ids=["server", "tool"])
async def test_calls_that_wait_for_their_users_refuse_no_others(tool: str, options: dict[str, int]) -> None:
    async with AskedWire(serving(max_queue=0, max_threads=1, **options)) as users:
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
    go = asyncio.Event()

    @server.tool(timeout=None)
    async def block() -> str:
        await go.wait()
        return "went on"

    async with AskedWire(server) as users:
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
        go.set()
        assert await users.text() == "went on"
        if end == "go":
            assert await users.text() == "Ada"
        assert users.running() == (0, 0, 0)


@pytest.mark.parametrize("number", [1, MAX_REQUESTS_PER_CALL + 8])
async def test_questions_that_outlive_their_function_are_cancelled_before_its_response(number: int) -> None:
    server = serving(max_concurrency=1, max_queue=0)
    left: set[asyncio.Task[Any]] = set()

    @server.tool(max_concurrency=1)
    async def leaves(ctx: Context) -> str:
        left.update(asyncio.create_task(ctx.elicit("Name?", str)) for _ in range(number))
        await asyncio.sleep(0)
        return "left"

    async with AskedWire(server) as users:
        for id in (1, 2):
            users.call("leaves", id)
            for method in ("elicitation/create", "notifications/cancelled"):
                for _ in range(min(number, MAX_REQUESTS_PER_CALL)):
                    await users.asked(method)
            assert await users.text() == "left"
            outcomes = await asyncio.gather(*left, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, QuestionFailed}
            assert users.running("leaves") == (0, 0, 0)


@pytest.mark.parametrize("result", [{"a": 1}, 5, "x", [1], None])
async def test_a_function_that_asks_by_itself_holds_no_slot_meanwhile(result: Any) -> None:
    server = serving(max_concurrency=1, max_queue=0)

    @server.tool
    async def by_hand(ctx: Context) -> Any:
        if not ctx.input_responses:
            return InputRequired({"one": Elicit("A?", str), "two": Elicit("B?", str)})
        return f"{dict(ctx.input_responses)} {server.engine.limit.running}"

    async with AskedWire(server) as users:
        users.call("by_hand", 1)
        questions = [await users.asked(), await users.asked()]
        users.call("quick", 2)
        assert await users.text() == "quick"
        for question in questions:
            users.send(answer_to(question, result))
        good = f"{ {'one': result, 'two': result} } 1"
        bad = "The client's answer to one can't be used: it must be an object"
        assert await users.text() == (good if isinstance(result, dict) else bad)
        assert server.engine.limit.running == 0
