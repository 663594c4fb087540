"""Questions of a server of the handshake era: requests of its own, at any time, that want an answer each."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

import pytest
from asking_server import (
    EVERY,
    MODERN,
    ROOTS,
    SAMPLING,
    WHOLE,
    elicitation,
    sampling,
    url_elicitation,
)
from scripted_link import result
from served_http import Scripted, Visit, handshake, until
from thinking import NEWEST, every_handshake, turn

from dovetail import Client
from dovetail.errors import ProtocolError, SetupError

pytestmark = pytest.mark.usefixtures("tidy")


# ── what is declared, and what is answered ──


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


async def test_a_revision_that_was_agreed_on_below_the_proposed_one(connect: Any) -> None:
    client, server = connect("2025-06-18", protocol_version=None, elicitation_handler=lambda question: True)
    server.modern = False
    async with client:
        assert client.protocol_version == "2025-06-18"
        assert server.sent[0]["params"]["capabilities"] == {"elicitation": {"form": {}, "url": {}}}
        server.ask(url_elicitation())
        assert (await server.answer())["error"]["code"] == -32602


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


async def test_a_handler_may_refuse_in_its_own_words(connect: Any) -> None:
    def refuse(request: Any) -> str:
        raise ProtocolError("Too expensive", code=-1)

    client, server = connect(NEWEST, sampling_handler=refuse)
    async with client:
        server.ask(sampling())
        assert (await server.answer())["error"] == {"code": -1, "message": "Too expensive"}


async def test_a_handler_whose_dialogue_was_closed(connect: Any) -> None:
    async def handler(question: Any) -> Any:
        dialogue: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        dialogue.cancel()
        return await dialogue

    client, server = connect(NEWEST, elicitation_handler=handler)
    async with client:
        server.ask(elicitation())
        assert (await server.answer())["error"]["code"] == -32603


async def test_a_modern_server_does_not_ask_like_this(connect: Any) -> None:
    client, server = connect(MODERN, elicitation_handler=lambda question: "Ada")
    async with client:
        server.ask(elicitation())
        assert (await server.answer())["error"]["code"] == -32601


async def test_a_server_that_asks_before_it_is_known(connect: Any) -> None:
    client, server = connect(NEWEST, roots=[])
    greet = server._react

    def impatient(message: dict[str, Any]) -> list[dict[str, Any]]:
        if message.get("method") == "initialize":
            server.ask(ROOTS)
        return greet(message)

    server._answer = impatient
    async with client:
        assert (await server.answer())["error"]["code"] == -32601


# ── roots that change, and URLs that were visited ──


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


async def test_roots_that_were_never_declared(connect: Any) -> None:
    client, server = connect(NEWEST)
    async with client:
        with pytest.raises(SetupError, match=r"begin with Client\(…, roots=\[\]\)"):
            await client.set_roots(["/b"])
    quiet, server = connect(NEWEST, roots=[], capabilities={"roots": {}})
    async with quiet:
        await quiet.set_roots(["/b"])
    assert "notifications/roots/list_changed" not in server.methods()


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


# ── hostile servers ──


@pytest.mark.parametrize("size", [100, 10_000])
async def test_a_flood_of_questions(connect: Any, size: int) -> None:
    client, server = connect(NEWEST, sampling_handler=lambda request: "Hi.")
    async with client:
        for number in range(size):
            server.ask(sampling(), number)
        await server.answer(size)
        assert len({answer["id"] for answer in server.answers()}) == size


async def test_a_huge_question(connect: Any) -> None:
    client, server = connect(NEWEST, sampling_handler=lambda request: str(len(request.messages)))
    async with client:
        server.ask(sampling(messages=SAMPLING["messages"] * 20_000))
        assert (await server.answer())["result"]["content"]["text"] == "20000"


# ── over HTTP ──


class AsksOverHttp:
    """A session in which a call goes on until its question is answered, which comes on one of the two streams."""

    def __init__(self, *, aside: bool) -> None:
        self.aside = aside
        self.streams: list[Visit] = []
        self.call: Visit | None = None
        self.answers: list[Visit] = []

    def __call__(self, visit: Visit) -> Awaitable[None] | None:
        if visit.verb == "GET":
            visit.stream()
            self.streams.append(visit)
            return visit.gone()
        if visit.method == "tools/call":
            self.call = visit
            visit.stream()
            (self.streams[0] if self.aside else visit).event({"jsonrpc": "2.0", "id": "q", **elicitation()})
            return visit.gone()
        if visit.method is None and visit.verb == "POST":
            self.answers.append(visit)
            visit.answer(202)
            assert self.call is not None
            self.call.event(result(self.call.message, WHOLE))
            self.call.finish()
        else:
            handshake(visit, Mcp_Session_Id="s1")
        return None


@pytest.mark.parametrize("aside", [False, True], ids=["on the stream of the call", "on the stream of the session"])
async def test_questions_over_http(aside: bool) -> None:
    behave = AsksOverHttp(aside=aside)
    async with (
        Scripted(behave) as server,
        Client(server.url, protocol_version=NEWEST, elicitation_handler=lambda question: "Ada") as client,
    ):
        await until(lambda: behave.streams)
        assert (await client.call_tool("t")).text == "done"
    (answer,) = behave.answers
    content = {"action": "accept", "content": {"name": "Ada"}}
    assert answer.message == {"jsonrpc": "2.0", "id": "q", "result": content}
    assert (answer.headers["mcp-session-id"], answer.headers["mcp-protocol-version"]) == ("s1", NEWEST)
