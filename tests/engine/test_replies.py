"""Asking a client and waiting for its answer: `ask` with any mailbox, and those of a pipe."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engine import client_requests
from dovetail.engine.client_requests import GivenUp, PipeReplies, Reply, reply_to
from dovetail.errors import AnswerTimeout, Busy, QuestionFailed
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import Envelope
from http_serving import settle


def message(**members: Any) -> Envelope:
    decoded = jsonrpc.decode(json.dumps({"jsonrpc": "2.0", **members}).encode())
    assert isinstance(decoded, Envelope)
    return decoded


class Client:
    """Where questions go to, and the mailbox that its answers come from; None among them is a sign of life."""

    id = "dovetail-1"

    def __init__(self, *answers: Reply | None) -> None:
        self.sent: list[Any] = []
        self.answers: asyncio.Queue[Reply | None] = asyncio.Queue()
        self.closed = 0
        for each in answers:
            self.answers.put_nowait(each)

    async def send(self, message: bytes) -> None:
        self.sent.append(json.loads(message))

    async def news(self) -> Reply | None:
        return await self.answers.get()

    @asynccontextmanager
    async def opening(self) -> AsyncIterator["Client"]:
        try:
            yield self
        finally:
            self.closed += 1

    async def ask(self, params: bytes = b"{}", timeout: float = 5.0) -> Any:
        async with self.opening() as box:
            return json.loads(bytes(await reply_to(box, "roots/list", params, timeout)))


GOOD = Reply(True, b'{"roots":[]}')


# ── one question ──


async def test_a_question_and_its_answer() -> None:
    client = Client(GOOD)
    assert await client.ask() == {"roots": []}
    assert client.sent == [
        {
            "jsonrpc": "2.0",
            "id": "dovetail-1",
            "method": "roots/list",
            "params": {"_meta": {"progressToken": "dovetail-1"}},
        }
    ]
    assert client.closed == 1


@pytest.mark.parametrize(
    ("params", "sent"),
    [
        ({"message": "é"}, {"message": "é", "_meta": {"progressToken": "dovetail-1"}}),
        ({"_meta": {"a": 1}}, {"_meta": {"a": 1, "progressToken": "dovetail-1"}}),
        ({"_meta": {"progressToken": "mine"}}, {"_meta": {"progressToken": "mine"}}),
        ({"_meta": {"progressToken": 0}}, {"_meta": {"progressToken": 0}}),
    ],
)
@pytest.mark.rule("PROG-1")
async def test_it_carries_a_progress_token(params: Any, sent: Any) -> None:
    client = Client(GOOD)
    await client.ask(json.dumps(params).encode())
    assert client.sent[0]["params"] == sent


@pytest.mark.rule("LIFE-9", "LIFE-10")
async def test_a_client_that_says_nothing() -> None:
    client = Client()
    with pytest.raises(AnswerTimeout, match=r"did not answer roots/list within 0\.03 s") as caught:
        await client.ask(timeout=0.03)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, QuestionFailed)
    assert client.closed == 1
    assert client.sent[1:] == [
        {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": "dovetail-1", "reason": "No answer came in time"},
        }
    ]


@pytest.mark.rule("LIFE-10")
async def test_progress_gives_it_more_time() -> None:
    client = Client()
    asking = asyncio.create_task(client.ask(timeout=0.5))
    for _ in range(4):
        await asyncio.sleep(0.15)
        client.answers.put_nowait(None)
    client.answers.put_nowait(GOOD)
    assert await asking == {"roots": []}
    assert len(client.sent) == 1


def test_progress_gives_a_few_times_the_timeout_at_most() -> None:
    assert client_requests.EXTENSIONS == 3


@pytest.mark.rule("LIFE-10")
async def test_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "EXTENSIONS", 2)
    client = Client()

    async def report() -> None:
        while not client.closed:
            client.answers.put_nowait(None)
            await asyncio.sleep(0.01)

    reporting = asyncio.create_task(report())
    began = asyncio.get_running_loop().time()
    with pytest.raises(AnswerTimeout):
        await client.ask(timeout=0.3)
    assert asyncio.get_running_loop().time() - began >= 0.55
    await reporting
    assert [each["method"] for each in client.sent] == ["roots/list", "notifications/cancelled"]


async def test_a_flood_of_progress_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "EXTENSIONS", 2)
    client = Client()

    async def flood() -> None:
        while not client.closed:
            client.answers.put_nowait(None)
            await asyncio.sleep(0)

    flooding = asyncio.create_task(flood())
    with pytest.raises(AnswerTimeout):
        await client.ask(timeout=0.03)
    await flooding


@pytest.mark.rule("CAN-1")
async def test_whoever_is_cancelled_calls_it_off() -> None:
    client = Client()
    asking = asyncio.create_task(client.ask())
    await settle()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert client.sent[1]["params"] == {"requestId": "dovetail-1", "reason": "The call that asked has ended"}
    assert client.closed == 1


@pytest.mark.parametrize("way", ["hangs", "fails"])
async def test_a_client_that_can_not_be_told_is_not_waited_for(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "CALL_OFF_SECONDS", 0.02)
    client = Client()

    async def send(message: bytes) -> None:
        client.sent.append(json.loads(message))
        if b"cancelled" in message:
            if way == "fails":
                raise OSError("gone")
            await asyncio.Event().wait()

    client.send = send  # type: ignore[method-assign]
    with pytest.raises(AnswerTimeout):
        await client.ask(timeout=0.01)
    asking = asyncio.create_task(client.ask())
    await settle()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert client.closed == 2


async def test_whoever_is_cancelled_while_it_calls_off_does_so_first() -> None:
    client = Client()
    told = asyncio.Event()

    async def send(message: bytes) -> None:
        if b"cancelled" in message:
            told.set()
            await settle()
        client.sent.append(json.loads(message))

    client.send = send  # type: ignore[method-assign]
    asking = asyncio.create_task(client.ask(timeout=0.01))
    await told.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [each["method"] for each in client.sent] == ["roots/list", "notifications/cancelled"]
    assert client.closed == 1


async def test_a_question_that_can_not_be_sent_is_not_called_off() -> None:
    client = Client()

    async def send(message: bytes) -> None:
        client.sent.append(message)
        raise QuestionFailed("There is no way")

    client.send = send  # type: ignore[method-assign]
    with pytest.raises(QuestionFailed, match="There is no way"):
        await client.ask()
    assert len(client.sent) == 1
    assert client.closed == 1


async def test_a_timeout_of_somebody_else_is_not_ours() -> None:
    client = Client()

    async def send(message: bytes) -> None:
        raise TimeoutError("the store is slow")

    client.send = send  # type: ignore[method-assign]
    with pytest.raises(TimeoutError, match="the store is slow") as caught:
        await client.ask()
    assert not isinstance(caught.value, AnswerTimeout)


async def test_who_is_given_up_is_told_in_case_it_comes_back() -> None:
    client = Client()

    async def given_up() -> Reply | None:
        raise GivenUp(client_requests.LEFT)

    client.news = given_up  # type: ignore[method-assign]
    with pytest.raises(QuestionFailed, match="has closed its connection"):
        await client.ask()
    assert client.sent[1]["params"] == {"requestId": "dovetail-1", "reason": client_requests.LEFT}
    assert client.closed == 1


# ── errors of the client ──


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        ({"code": -1, "message": "User said no"}, "User said no", -1),
        ({"code": -32601, "message": "Method not found"}, "it does not know this method: Method not found", -32601),
        ({"code": -32602, "message": ""}, "it did not take the question as it was put", -32602),
        ({"code": -32603, "message": "boom"}, "something went wrong inside it: boom", -32603),
        ({"code": 7, "message": ""}, "it did not say why", 7),
        ({"code": -1, "message": "a\nb\x1b[31mc\u2028d\x00"}, "a b [31mc d", -1),
        ({"code": -1, "message": "x" * 10_000}, "x" * 500 + "…", -1),
        ({"code": 1.5, "message": "half"}, "it did not say why", None),
        ({"code": "no", "message": 4}, "it did not say why", None),
        ({"message": "only words"}, "only words", None),
        ({}, "it did not say why", None),
        ("text", "it did not say why", None),
        ([], "it did not say why", None),
        (None, "it did not say why", None),
    ],
)
@pytest.mark.rule("BASE-8")
async def test_a_refusal_in_words(error: Any, words: str, code: int | None) -> None:
    client = Client(Reply.of(message(id="dovetail-1", error=error)))
    with pytest.raises(QuestionFailed) as caught:
        await client.ask()
    assert str(caught.value) == f"The client could not answer roots/list: {words}"
    assert caught.value.code == code
    assert len(client.sent) == 1


@settings(max_examples=30)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
def test_whatever_the_error_holds_it_is_a_refusal(error: Any) -> None:
    for each in (error, {"code": error, "message": "m"}, {"code": 1, "message": error}):
        with pytest.raises(QuestionFailed) as caught:
            Reply(False, json.dumps(each).encode()).result("ping")
        text = str(caught.value)
        assert len(text) < 700
        assert text.isprintable()


# ── on a pipe ──


async def test_ids_are_never_used_twice() -> None:
    pipe = PipeReplies()
    ids = []
    for _ in range(3):
        async with pipe.open(Client().send) as box:
            ids.append(box.id)
    assert ids == ["dovetail-1", "dovetail-2", "dovetail-3"]


async def test_a_pipe_has_so_many_questions_open() -> None:
    pipe = PipeReplies()
    boxes = [pipe.open(Client().send) for _ in range(client_requests.MAX_OPEN)]
    for each in boxes:
        await each.__aenter__()
    with pytest.raises(Busy, match="100 questions"):
        await pipe.open(Client().send).__aenter__()
    await boxes[0].__aexit__(None, None, None)
    async with pipe.open(Client().send):
        pass
