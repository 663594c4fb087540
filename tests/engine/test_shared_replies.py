"""Questions to clients over HTTP: the mailboxes lie in a state backend, where any worker may put the answer."""

import asyncio
import json
from typing import Any

import pytest

from dovetail.engine import client_requests
from dovetail.engine.client_requests import GivenUp, Reply, SharedReplies
from dovetail.errors import Busy, QuestionFailed
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import Envelope
from dovetail.state.memory import MemoryState
from http_serving import Clock, PausingState, settle


def message(**members: Any) -> Envelope:
    decoded = jsonrpc.decode(json.dumps({"jsonrpc": "2.0", **members}).encode())
    assert isinstance(decoded, Envelope)
    return decoded


async def nowhere(_message: bytes) -> None: ...


# ── questions and answers ──


@pytest.fixture(params=[MemoryState, PausingState])
def state(request: pytest.FixtureRequest) -> MemoryState:
    return request.param()


async def test_an_answer_reaches_whoever_asked(state: MemoryState) -> None:
    asker, other = SharedReplies(state), SharedReplies(state)  # in two workers
    async with asker.open("s", 5, nowhere) as box:
        waiting = asyncio.create_task(box.news())
        await settle()
        await other.answered("s", message(id=box.id, result={"a": 1}))
        assert await waiting == Reply(True, b'{"a": 1}')
    assert state.held == 0
    assert not state._topics._by_name


async def test_progress_is_a_sign_of_life(state: MemoryState) -> None:
    asker = SharedReplies(state)
    async with asker.open("s", 5, nowhere) as box:
        await asker.progressed("s", box.id)
        assert await box.news() is None
        await asker.answered("s", message(id=box.id, error={"code": 1, "message": "no"}))
        reply = await box.news()
        assert reply is not None
        assert not reply.is_result


async def test_the_first_answer_counts(state: MemoryState) -> None:
    asker = SharedReplies(state)
    async with asker.open("s", 5, nowhere) as box:
        answers = (asker.answered("s", message(id=box.id, result={"n": n})) for n in range(5))
        await asyncio.gather(*answers)
        first = await box.news()
        assert first == Reply(True, b'{"n": 0}')
        await asker.answered("s", message(id=box.id, result={"n": 9}))
    await asker.answered("s", message(id=box.id, result={"n": 9}))
    assert state.held == 0


@pytest.mark.rule("EL-10")
async def test_answers_that_nobody_asked_for_change_nothing(state: MemoryState) -> None:
    asker = SharedReplies(state)
    async with asker.open("s", 5, nowhere) as box:
        strangers = [("t", box.id), ("s", box.id + "0"), ("s", "dovetail-" + "0" * 16), ("s", 1), ("s", "x" * 9999)]
        strangers += [("s", f"../t/{box.id}"), ("", box.id), ("s", box.id.upper())]
        for session, id in strangers:
            await asker.answered(session, message(id=id, result={}))
            await asker.progressed(session, id)
        await asker.answered("s", message(error={"code": 1, "message": "m"}))
        await asker.progressed("s", None)
        waiting = asyncio.create_task(box.news())
        await settle(50)
        assert not waiting.done()
        assert state.held == 1
        waiting.cancel()


async def test_a_session_has_so_many_questions_open(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = SharedReplies(MemoryState())
    open = [asker.open("s", 5, nowhere) for _ in range(client_requests.MAX_OPEN)]
    for each in open:
        await each.__aenter__()
    with pytest.raises(Busy, match="100 questions"):
        await asker.open("s", 5, nowhere).__aenter__()
    async with asker.open("t", 5, nowhere):
        monkeypatch.setattr(client_requests, "MAX_SHARED", client_requests.MAX_OPEN + 1)
        with pytest.raises(Busy, match="too many clients"):
            await asker.open("u", 5, nowhere).__aenter__()
    for each in open:
        await each.__aexit__(None, None, None)
    assert not asker._open
    assert not asker._boxes


async def test_a_question_outlives_all_extensions() -> None:
    clock = Clock()
    asker = SharedReplies(MemoryState(clock=clock))
    async with asker.open("s", 5, nowhere) as box:
        clock.sleep(5 * client_requests.EXTENSIONS)
        await asker.answered("s", message(id=box.id, result={}))
        assert await box.news() is not None


async def test_a_question_that_the_store_forgot() -> None:
    clock = Clock()
    asker = SharedReplies(MemoryState(clock=clock))
    async with asker.open("s", 5, nowhere) as box:
        clock.sleep(1000)
        await asker.progressed("s", box.id)
        with pytest.raises(QuestionFailed, match="was lost"):
            await box.news()


async def test_a_store_that_is_closed() -> None:
    state = MemoryState()
    async with SharedReplies(state).open("s", 5, nowhere) as box:
        waiting = asyncio.create_task(box.news())
        await settle()
        await state.close()
        with pytest.raises(QuestionFailed, match="was lost"):
            await waiting


async def test_any_timeout_can_be_kept() -> None:
    async with SharedReplies(MemoryState()).open("s", 1e12, nowhere):
        pass


# ── a client that has gone, a server that stops ──


class Presence:
    """Whether a client is there: what it says, look after look; the last word stays."""

    def __init__(self, *words: bool) -> None:
        self.words = words
        self.looks = 0

    async def __call__(self) -> bool:
        await asyncio.sleep(0)
        self.looks += 1
        return self.words[min(self.looks, len(self.words)) - 1]


async def test_whoever_is_not_there_for_some_beats_is_given_up(state: MemoryState) -> None:
    presence = Presence(True, False, False, False, True, False)
    asker = SharedReplies(state, beat=0.005)
    async with asker.open("s", 5, nowhere, presence) as box:
        with pytest.raises(GivenUp, match="has closed its connection"):
            await box.news()
    assert presence.looks == 5 + client_requests.GIVE_UP_BEATS
    assert state.held == 0
    assert not state._topics._open


async def test_news_counts_as_being_there(state: MemoryState) -> None:
    presence = Presence(False)
    asker = SharedReplies(state, beat=0.05)
    async with asker.open("s", 5, nowhere, presence) as box:
        for _ in range(3):
            await asyncio.sleep(0.1)
            await asker.progressed("s", box.id)
            assert await box.news() is None
        waiting = asyncio.create_task(box.news())
        await asyncio.sleep(0.1)
        await asker.answered("s", message(id=box.id, result={}))
        assert await waiting == Reply(True, b"{}")


async def test_a_beat_never_loses_an_answer(state: MemoryState) -> None:
    """Whenever it comes, before a look, in the middle of it or after."""
    for turns in range(30):
        asker = SharedReplies(state, beat=0.001)
        async with asker.open("s", 5, nowhere, Presence(True)) as box:
            waiting = asyncio.create_task(box.news())
            await asyncio.sleep(0.003)
            await settle(turns)
            await asker.answered("s", message(id=box.id, result={}))
            assert await asyncio.wait_for(waiting, 5) == Reply(True, b"{}")


async def test_questions_fail_at_once_when_no_answers_are_taken(state: MemoryState) -> None:
    asker, other = SharedReplies(state), SharedReplies(state)
    async with (
        asker.open("s", 5, nowhere) as late,
        asker.open("t", 5, nowhere) as answered,
        other.open("s", 5, nowhere) as elsewhere,
    ):
        waiting = [asyncio.create_task(box.news()) for box in (late, elsewhere)]
        await settle()
        await asker.answered("t", message(id=answered.id, result={"n": 1}))
        asker.close()
        with pytest.raises(GivenUp, match="shutting down"):
            await asyncio.wait_for(waiting[0], 5)
        assert await answered.news() == Reply(True, b'{"n": 1}')  # it came before
        with pytest.raises(QuestionFailed, match="shutting down"):
            await asker.open("s", 5, nowhere).__aenter__()
        await settle()
        assert not waiting[1].done()
        waiting[1].cancel()
    assert state.held == 0
    assert not asker._open
