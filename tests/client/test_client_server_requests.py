"""Requests of the server: up to 2025-11-25 as requests, since 2026-07-28 in rounds of a call."""

import asyncio
import json
import logging
from time import monotonic
from typing import Any

import pytest
from msgspec import Raw
from scripted import EVERY, MODERN, ROOTS, AskingServer, elicitation, result, sampling, url_elicitation

from dovetail.client.handlers import run_rounds
from dovetail.errors import BadResponse
from dovetail.protocol import revisions

pytestmark = pytest.mark.usefixtures("tidy")
ANSWERING: dict[str, Any] = {
    "elicitation_handler": lambda question: "Ada", "sampling_handler": lambda request: "Hi.", "roots": ["/x"],
}  # fmt: skip
WHOLE = {"content": [{"type": "text", "text": "done"}]}
CALL = {"name": "t", "arguments": {"a": 1}}
ADA = {"action": "accept", "content": {"name": "Ada"}}
NEWEST = "2025-11-25"
every_handshake = pytest.mark.parametrize("revision", tuple(revisions.HANDSHAKE))


def required(requests: Any = None, state: Any = None) -> dict[str, Any]:
    """A result that asks."""
    parts = {"inputRequests": requests, "requestState": state}
    return {"resultType": "input_required", **{key: value for key, value in parts.items() if value is not None}}


def complete(value: Any = None) -> dict[str, Any]:
    return {"resultType": "complete", **(WHOLE if value is None else value)}


def script(*results: Any) -> Any:
    """One result after the other for all requests; the last one stays."""
    left = list(results)
    return lambda message: left.pop(0) if len(left) > 1 else left[0]


def sent(server: AskingServer, method: str = "tools/call") -> list[dict[str, Any]]:
    """The params of each request, without what is the same in all."""
    return [{k: v for k, v in call["params"].items() if k != "_meta"} for call in server.calls(method)]


async def turn() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def withdraw(server: AskingServer, id: Any) -> None:
    server.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})


class Thinking:
    """A handler that takes its time."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.stopped = asyncio.Event()

    async def __call__(self, question: Any) -> dict[str, Any]:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return {"name": "Ada"}


@every_handshake
async def test_questions_are_answered(connect: Any, revision: str) -> None:
    client, server = connect(revision, **ANSWERING)
    async with client:
        for number, (id, question) in enumerate({1: sampling(), "two": ROOTS, 3: elicitation()}.items(), 1):
            server.ask(question, id)
            await server.answer(number)
    sample, roots, elicited = server.answers()
    assert (sample["id"], sample["result"]["content"]) == (1, {"type": "text", "text": "Hi."})
    assert (roots["id"], roots["result"]) == ("two", {"roots": [{"uri": "file:///x"}]})
    if revision < "2025-06-18":
        assert elicited["error"] == {"code": -32601, "message": "Method not found: elicitation/create"}
    else:
        assert elicited["result"] == {"action": "accept", "content": {"name": "Ada"}}


@pytest.mark.parametrize(
    "handler", [lambda question: 1 / 0, lambda question: {"name": object()}, lambda question: object()]
)
async def test_a_handler_that_fails(connect: Any, handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, server = connect(NEWEST, elicitation_handler=handler)
    with caplog.at_level(logging.ERROR, "dovetail.client"):
        async with client:
            server.ask(elicitation())
            answer = await server.answer()
            server.ask({"method": "ping"}, "p")
            assert (await server.answer(2))["result"] == {}
    assert answer["error"] == {"code": -32603, "message": "The client failed to answer"}
    assert [record.getMessage() for record in caplog.records] == ["the handler of a server request failed"]
    assert caplog.records[0].exc_info


@pytest.mark.parametrize("revision", EVERY)
async def test_roots_may_change(connect: Any, revision: str) -> None:
    client, server = connect(revision, roots=[])
    await client.set_roots(["/a"])
    async with client:
        await client.set_roots(["/b"])
        notifications = server.methods().count("notifications/roots/list_changed")
        assert notifications == (0 if revision == MODERN else 1)
        if revision != MODERN:
            server.ask(ROOTS)
            assert (await server.answer())["result"] == {"roots": [{"uri": "file:///b"}]}
    await client.set_roots(["/c"])


async def test_a_url_that_was_visited(connect: Any) -> None:
    visited: list[str] = []
    client, server = connect(
        NEWEST, elicitation_handler=lambda question: True, elicitation_complete_handler=visited.append
    )
    method = "notifications/elicitation/complete"
    async with client:
        server.ask(url_elicitation(elicitationId="e1"))
        assert (await server.answer())["result"] == {"action": "accept"}
        for params in ({"elicitationId": "e1"}, {"elicitationId": 7}, {}):
            server.say({"jsonrpc": "2.0", "method": method, "params": params})
        await turn()
    assert visited == ["e1"]


async def test_a_flood_of_questions(connect: Any) -> None:
    client, server = connect(NEWEST, sampling_handler=lambda request: "Hi.")
    async with client:
        for number in range(3_000):
            server.ask(sampling(), number)
        await server.answer(3_000)
        assert len({answer["id"] for answer in server.answers()}) == 3_000


async def test_questions_are_answered_side_by_side_and_in_any_order(connect: Any) -> None:
    gates = {"slow": asyncio.Event(), "quick": asyncio.Event()}

    async def handler(question: Any) -> str:
        await gates[question.message].wait()
        return question.message

    client, server = connect(NEWEST, elicitation_handler=handler)
    async with client:
        server.ask(elicitation("slow"), "s")
        server.ask(elicitation("quick"), "q")
        gates["quick"].set()
        assert (await server.answer(1))["id"] == "q"
        gates["slow"].set()
        assert (await server.answer(2))["result"]["content"] == {"name": "slow"}


@pytest.mark.rule("CAN-2")
@pytest.mark.rule("CAN-5")
async def test_what_the_server_takes_back_is_stopped_and_not_answered(connect: Any) -> None:
    thinking = Thinking()
    client, server = connect(NEWEST, elicitation_handler=thinking)
    async with client:
        server.ask(elicitation(), 7)
        await asyncio.wait_for(thinking.begun.wait(), 5)
        for other in ("7", 8, None, [7]):
            withdraw(server, other)
        server.say({"jsonrpc": "2.0", "method": "notifications/cancelled"})
        await turn()
        assert not thinking.stopped.is_set()
        withdraw(server, 7)
        await asyncio.wait_for(thinking.stopped.wait(), 5)
        withdraw(server, 7)
        await turn()
        assert server.answers() == []
        thinking.go_on.set()
        server.ask(elicitation(), 7)  # the id is free again
        assert "result" in await server.answer()


async def test_the_timeout_stands_still_while_the_user_thinks(connect: Any) -> None:
    async def think(question: Any) -> str:
        await asyncio.sleep(0.4)
        return "Ada"

    client, server = connect(NEWEST, lambda message: server.ask(elicitation()), elicitation_handler=think, timeout=0.3)
    async with client:
        call = asyncio.create_task(client.call_tool("t"))
        await server.answer()
        server.say(result(server.calls()[0], WHOLE))
        assert (await call).text == "done"


@pytest.mark.rule("MRTR-17")
async def test_a_call_of_two_rounds(connect: Any) -> None:
    behave = script(
        required({"who": elicitation()}, "s1"), required({"where": elicitation("Where?")}, "s2"), complete()
    )
    client, server = connect(MODERN, behave, elicitation_handler=lambda question: {"name": question.message})
    async with client:
        assert (await client.call_tool("t", {"a": 1})).text == "done"
    first, second = {"content": {"name": "Your name?"}}, {"content": {"name": "Where?"}}
    assert sent(server) == [
        CALL,
        {**CALL, "inputResponses": {"who": {"action": "accept", **first}}, "requestState": "s1"},
        {**CALL, "inputResponses": {"where": {"action": "accept", **second}}, "requestState": "s2"},
    ]
    assert len({call["id"] for call in server.calls()}) == 3
    request_meta, *others = [call["params"]["_meta"] for call in server.calls()]
    assert others == [request_meta, request_meta]
    assert request_meta["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {"form": {}, "url": {}}}


ASKS = {
    "tools/call": (lambda client: client.call_tool("t", {"a": 1}), CALL, {"content": []}),
    "prompts/get": (lambda client: client.get_prompt("p"), {"name": "p"}, {"messages": []}),
    "resources/read": (lambda client: client.read_resource("a://b"), {"uri": "a://b"}, {"contents": []}),
}


@pytest.mark.parametrize("method", ASKS)
async def test_the_three_methods_that_may_ask(connect: Any, method: str) -> None:
    act, params, value = ASKS[method]
    asked = required({"e": elicitation(), "u": url_elicitation(), "s": sampling(), "r": ROOTS}, "state")
    results = script(asked, complete({**value, "ttlMs": 0, "cacheScope": "private"}))
    client, server = connect(MODERN, results, **ANSWERING)
    async with client:
        await act(client)
    again = sent(server, method)[1]
    responses = again.pop("inputResponses")
    assert again == {**params, "requestState": "state"}
    assert list(responses) == ["e", "u", "s", "r"]
    assert (responses["e"], responses["u"]) == (ADA, {"action": "accept"})
    assert responses["s"]["content"]["text"] == "Hi."
    assert responses["r"] == {"roots": [{"uri": "file:///x"}]}


@pytest.mark.parametrize("limit", [0, 1, 5, 32])
async def test_there_is_an_end_to_the_rounds(connect: Any, limit: int) -> None:
    asking = script(required({"who": elicitation()}, "s"))
    client, server = connect(MODERN, asking, elicitation_handler=lambda question: "Ada", max_rounds=limit)
    async with client:
        with pytest.raises(BadResponse, match=f"tools/call: the server still asks for more after {limit} rounds"):
            await client.call_tool("t")
    assert len(server.calls()) == limit + 1


@pytest.mark.rule("MRTR-20")
async def test_a_server_that_only_wants_to_be_asked_again() -> None:
    states = ["0", "1", "2", None, "4"]
    sent: list[Any] = []

    async def send(params: Any) -> Raw:
        sent.append(params)
        if not states:
            return Raw(json.dumps(complete()).encode())
        state = states.pop(0)
        return Raw(json.dumps(required(state=state) if state else required({"who": elicitation()}, "3")).encode())

    async def answered() -> dict[str, Any]:
        return {"action": "accept"}

    begun = monotonic()
    await run_rounds("tools/call", {"name": "t"}, send, lambda *asked: answered, 9, first_delay=0.01, max_delay=0.02)
    assert monotonic() - begun > 0.06  # 10, 20, 20, and after the question 10 ms again
    assert [params.get("requestState") for params in sent] == [None, "0", "1", "2", "3", "4"]
    assert [number for number, params in enumerate(sent) if "inputResponses" in params] == [4]


CANT: dict[str, tuple[Any, str]] = {
    "no handler": ({"a": elicitation(), "b": sampling()}, "asks sampling/createMessage, which needs sampling_handler="),
    "unknown": ({"a": elicitation(), "b": {"method": "ping"}}, "asks ping, which this client does not know"),
    "no tools": ({"a": sampling(toolChoice={})}, "sampling"),
    "malformed": ({"a": elicitation(), "b": {"method": "elicitation/create"}}, "be read: Invalid params: message"),
    "no method": ({"a": {"params": {}}}, "does not fit"),
    "no object": ({"a": 7}, "does not fit"),
    "a list": ([elicitation()], "does not fit"),
    "params of no object": ({"a": {"method": "elicitation/create", "params": []}}, "can't be read"),
    "many": ({str(number): elicitation() for number in range(10_000)}, "more than 100 questions at once"),
    "text": ("who?", "does not fit"),
    "an empty one": ({}, "asks nothing"),
    "nothing at all": (None, "asks nothing"),
}


@pytest.mark.parametrize("case", CANT)
async def test_the_user_is_not_asked_what_can_not_be_answered_as_a_whole(connect: Any, case: str) -> None:
    requests, words = CANT[case]
    asked: list[Any] = []
    state = None if words == "asks nothing" else "s"
    client, server = connect(MODERN, script(required(requests, state)), elicitation_handler=asked.append)
    async with client:
        with pytest.raises(BadResponse, match=words) as caught:
            await client.call_tool("t")
    assert str(caught.value).startswith("tools/call: ")
    assert asked == []
    assert len(server.calls()) == 1  # it is not tried again


async def test_a_handler_that_fails_fails_the_call_and_stops_the_others(connect: Any) -> None:
    thinking = Thinking()

    async def handler(question: Any) -> Any:
        if question.message == "good":
            return await thinking(question)
        await thinking.begun.wait()
        raise ValueError("the dialogue is broken")

    requests = {"a": elicitation("good"), "b": elicitation("bad")}
    client, server = connect(MODERN, script(required(requests)), elicitation_handler=handler)
    async with client:
        with pytest.raises(ValueError, match="the dialogue is broken"):
            await client.call_tool("t")
        assert thinking.stopped.is_set()
    assert len(server.calls()) == 1
