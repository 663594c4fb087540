"""Requests of a server's, up to 2025-11-25."""

import asyncio
import logging
from typing import Any

import pytest
from client_stages import (
    EVERY,
    MODERN,
    NEWEST,
    ROOTS,
    WHOLE,
    AskingServer,
    Thinking,
    elicitation,
    every_handshake,
    result,
    sampling,
    turn,
    url_elicitation,
    withdraw,
)

from dovetail import Client

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.mark.parametrize("revision", EVERY)
async def test_the_server_is_told_what_it_may_ask(connect: Any, revision: str) -> None:
    client, server = connect(revision, elicitation_handler=lambda question: None, capabilities={"experimental": {}})
    async with client:
        params = server.sent[0]["params"]
        told = params.get("capabilities") or params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    expected: dict[str, Any] = {"experimental": {}}
    if revision >= "2025-06-18":
        expected["elicitation"] = {} if revision == "2025-06-18" else {"form": {}, "url": {}}
    assert told == expected


@every_handshake
async def test_questions_are_answered(connect: Any, revision: str) -> None:
    client, server = connect(
        revision, elicitation_handler=lambda question: "Ada", sampling_handler=lambda request: "Hi.", roots=["/x"]
    )
    async with client:
        server.ask(sampling(), 1)
        sample = await server.answer(1)
        server.ask(ROOTS, "two")
        roots = await server.answer(2)
        server.ask(elicitation(), 3)
        elicited = await server.answer(3)
    assert (sample["id"], sample["result"]["content"]) == (1, {"type": "text", "text": "Hi."})
    assert (roots["id"], roots["result"]) == ("two", {"roots": [{"uri": "file:///x"}]})
    if revision < "2025-06-18":
        assert elicited["error"] == {"code": -32601, "message": "Method not found: elicitation/create"}
    else:
        assert elicited["result"] == {"action": "accept", "content": {"name": "Ada"}}


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ({"method": "tasks/get"}, -32601),
        (sampling(), -32601),
        (ROOTS, -32601),
        (url_elicitation(elicitationId="e"), -32602),
        ({"method": "elicitation/create"}, -32602),
        ({"method": "elicitation/create", "params": {"message": "x", "mode": "other"}}, -32602),
    ],
)
async def test_questions_are_refused(connect: Any, question: dict[str, Any], code: int) -> None:
    capabilities = {"elicitation": {"form": {}}}
    client, server = connect(NEWEST, elicitation_handler=lambda question: "Ada", capabilities=capabilities)
    async with client:
        server.ask(question)
        assert (await server.answer())["error"]["code"] == code


@pytest.mark.parametrize(
    "handler",
    [
        lambda question: 1 / 0,
        lambda question: {"name": object()},
        lambda question: object(),
    ],
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
    assert [record.getMessage() for record in caplog.records] == ["the handler of a question failed"]
    assert caplog.records[0].exc_info


@pytest.mark.parametrize("revision", EVERY)
async def test_roots_may_change(connect: Any, revision: str) -> None:
    client, server = connect(revision, roots=[])
    await client.set_roots(["/a"])
    async with client:
        await client.set_roots(["/b"])
        told = server.methods().count("notifications/roots/list_changed")
        assert told == (0 if revision == MODERN else 1)
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
    silent, server = connect(NEWEST)
    async with silent:
        server.say({"jsonrpc": "2.0", "method": method, "params": {"elicitationId": "e1"}})
        await turn()


@pytest.mark.parametrize("size", [100, 10_000])
async def test_a_flood_of_questions(connect: Any, size: int) -> None:
    client, server = connect(NEWEST, sampling_handler=lambda request: "Hi.")
    async with client:
        for number in range(size):
            server.ask(sampling(), number)
        await server.answer(size)
        assert len({answer["id"] for answer in server.answers()}) == size


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


class AsksDuringCall:
    """A server whose one call goes on for as long as its question is open, and then a little."""

    def __init__(self, connect: Any, handler: Any, **options: Any) -> None:
        self.client: Client
        self.server: AskingServer
        self.client, self.server = connect(NEWEST, self.behave, elicitation_handler=handler, **options)

    def behave(self, message: dict[str, Any]) -> None:
        if message["method"] == "tools/call":
            self.server.ask(elicitation())

    def finish(self) -> None:
        self.server.say(result(self.server.calls()[0], WHOLE))


async def test_time_stands_still_while_somebody_thinks(connect: Any) -> None:
    async def think(question: Any) -> str:
        await asyncio.sleep(0.4)
        return "Ada"

    talk = AsksDuringCall(connect, think, timeout=0.3)
    async with talk.client:
        call = asyncio.create_task(talk.client.call_tool("t"))
        await talk.server.answer()
        talk.finish()
        assert (await call).text == "done"
