"""Questions of a server of the handshake era: requests of its own, at any time, that want an answer each."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

import pytest
from asking_server import (
    EVERY,
    HANDSHAKES,
    MODERN,
    ROOTS,
    SAMPLING,
    WHOLE,
    AskingServer,
    elicitation,
    sampling,
    url_elicitation,
)
from scripted_link import result
from served_http import Scripted, Visit, handshake, until

from dovetail import Client
from dovetail.client import open_questions
from dovetail.errors import ProtocolError, SetupError

every_handshake = pytest.mark.parametrize("revision", HANDSHAKES)
NEWEST = "2025-11-25"

pytestmark = pytest.mark.usefixtures("tidy")


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


# ── several at once ──


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


async def test_there_is_an_end_to_how_much_is_asked_at_once(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_questions, "MAX_OPEN", 3)
    thinking = Thinking()
    client, server = connect(NEWEST, elicitation_handler=thinking)
    async with client:
        for number in range(5):
            server.ask(elicitation(), number)
        refusals = [await server.answer(count) for count in (1, 2)]
        assert [(message["id"], message["error"]["code"]) for message in refusals] == [(3, -32603), (4, -32603)]
        assert "Too many questions" in refusals[0]["error"]["message"]
        thinking.go_on.set()
        assert {(await server.answer(count))["id"] for count in (3, 4, 5)} == {0, 1, 2}
        server.ask(elicitation(), 6)
        assert "result" in await server.answer(6)


async def test_those_that_do_not_stop_count_as_well(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_questions, "MAX_OPEN", 2)
    release = asyncio.Event()

    async def stubborn(question: Any) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "Ada"

    client, server = connect(NEWEST, elicitation_handler=stubborn)
    async with client:
        for number in range(3):
            server.ask(elicitation(), number)
            await turn()
            withdraw(server, number)
            await turn()
        assert [(answer["id"], answer["error"]["code"]) for answer in server.answers()] == [(2, -32603)]
        release.set()
        await turn()
    assert len(server.answers()) == 1  # what was taken back is not answered, even by those who do not listen


async def test_one_id_is_answered_once(connect: Any) -> None:
    thinking = Thinking()
    client, server = connect(NEWEST, elicitation_handler=thinking)
    async with client:
        server.ask(elicitation())
        server.ask(elicitation())
        await thinking.begun.wait()
        thinking.go_on.set()
        await server.answer()
        await turn()
        assert len(server.answers()) == 1


# ── taken back ──


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


async def test_a_question_that_is_taken_back_before_anybody_saw_it(connect: Any) -> None:
    seen: list[Any] = []
    client, server = connect(NEWEST, elicitation_handler=seen.append)
    async with client:
        server.ask(elicitation(), 7)
        withdraw(server, 7)
        await turn()
    assert (seen, server.answers()) == ([], [])


@pytest.mark.parametrize("how", ["close", "die"])
async def test_the_end_of_the_conversation_stops_the_handlers(connect: Any, how: str) -> None:
    thinking = Thinking()
    client, server = connect(NEWEST, elicitation_handler=thinking)
    async with client:
        server.ask(elicitation())
        await asyncio.wait_for(thinking.begun.wait(), 5)
        if how == "die":
            server.die()
            await asyncio.wait_for(thinking.stopped.wait(), 5)
    assert thinking.stopped.is_set()
    assert server.answers() == []


async def test_the_end_of_a_session_stops_the_handlers(connect: Any) -> None:
    thinking = Thinking()
    client, server = connect(NEWEST, elicitation_handler=thinking)
    async with client:
        server.ask(elicitation())
        await asyncio.wait_for(thinking.begun.wait(), 5)
        server._receiver.session_ended("the server restarted")
        await asyncio.wait_for(thinking.stopped.wait(), 5)
    assert server.answers() == []


async def test_a_handler_may_close_its_client(connect: Any) -> None:
    closed = asyncio.Event()

    async def handler(question: Any) -> None:
        await client.close()
        closed.set()

    client, server = connect(NEWEST, elicitation_handler=handler)
    async with client:
        server.ask(elicitation())
        await asyncio.wait_for(closed.wait(), 5)
    assert server.closed == 1
    assert server.answers() == []


# ── time ──


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


async def test_time_goes_on_afterwards(connect: Any) -> None:
    talk = AsksDuringCall(connect, lambda question: "Ada", timeout=0.05)
    async with talk.client:
        with pytest.raises(TimeoutError, match=r"tools/call: no answer within 0\.05 s"):
            await talk.client.call_tool("t")
    assert talk.server.methods()[-1] == "notifications/cancelled"


async def test_requests_that_a_handler_makes_have_their_time(connect: Any) -> None:
    failures: list[str] = []

    async def handler(question: Any) -> str:
        try:
            await talk.client.list_tools()
        except TimeoutError as failure:
            failures.append(str(failure))
        return "Ada"

    talk = AsksDuringCall(connect, handler, timeout=0.05)
    async with talk.client:
        call = asyncio.create_task(talk.client.call_tool("t", timeout=None))
        await talk.server.answer()
        talk.finish()
        await call
    assert failures == ["tools/list: no answer within 0.05 s"]


async def test_a_call_that_is_over_before_its_question(connect: Any) -> None:
    thinking = Thinking()
    talk = AsksDuringCall(connect, thinking, timeout=5)
    async with talk.client:
        call = asyncio.create_task(talk.client.call_tool("t"))
        await thinking.begun.wait()
        talk.finish()
        await call
        thinking.go_on.set()
        assert "result" in await talk.server.answer()


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
