"""Questions of the handshake era while others are open: several at once, taken back, and how long they may take."""

import asyncio
from typing import Any

import pytest
from asking_server import (
    WHOLE,
    AskingServer,
    elicitation,
)
from scripted_link import result
from thinking import NEWEST, Thinking, turn, withdraw

from dovetail import Client
from dovetail.client import open_questions

pytestmark = pytest.mark.usefixtures("tidy")


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
        refused = [(answer["id"], answer["error"]["code"]) for answer in server.answers()]
        release.set()  # first, or closing would wait for them
        assert refused == [(2, -32603)]
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
