"""Answers of the handshake era that are taken up again when their connection breaks, and how soon that is tried."""

import asyncio
import json

import pytest
from served_http import Scripted, Visit, handshake
from session_script import CHANGING, answer, log_message, text

from dovetail import Client
from dovetail.client import backoff, requests
from dovetail.client.http import HttpLink
from dovetail.errors import BadAnswer, ConnectionLost

pytestmark = pytest.mark.usefixtures("brisk", "tidy")


# ── an answer that is taken up again ──


class Resuming:
    """A server that keeps the events of a call, and breaks the connection after each; `cut` says how."""

    def __init__(self, steps: int = 3, *, cut: bool = True, retry: int | None = None, replay_all: bool = False) -> None:
        self.steps, self.cut, self.retry, self.replay_all = steps, cut, retry, replay_all
        self.call: Visit | None = None
        self.resumed: list[str] = []

    def __call__(self, visit: Visit) -> None:
        if visit.method == "tools/call":
            self.call = visit
            visit.stream()
            visit.event(None, id="c-0", retry=self.retry)
            self.leave(visit)
        elif visit.verb == "GET" and "last-event-id" in visit.headers:
            assert "mcp-session-id" in visit.headers
            self.resumed.append(visit.headers["last-event-id"])
            visit.stream()
            self.go_on(visit, int(visit.headers["last-event-id"].removeprefix("c-")) + 1)
            self.leave(visit)
        else:
            handshake(visit, Mcp_Session_Id="s")

    def go_on(self, visit: Visit, number: int) -> None:
        for step in range(1 if self.replay_all else number, number + 1):
            assert self.call is not None
            token = self.call.message["params"]["_meta"]["progressToken"]
            params = {"progressToken": token, "progress": step}
            last = step == self.steps
            notice = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            visit.event(answer(self.call, text("finally")) if last else notice, id=f"c-{step}")

    def leave(self, visit: Visit) -> None:
        visit.cut() if self.cut else visit.end()


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("replay_all", [True, False])
async def test_an_answer_is_taken_up_again_as_often_as_it_takes(cut: bool, replay_all: bool) -> None:
    behave = Resuming(12, cut=cut, retry=2, replay_all=replay_all)
    heard: list[float] = []
    async with Scripted(behave) as server, Client(server.url) as client:
        result = await client.call_tool("any", progress_handler=lambda value, *_: heard.append(value))
        assert result.text == "finally"
        assert heard == list(range(1, 12))  # each once
        assert behave.resumed == [f"c-{number}" for number in range(12)]
        assert server.said().count("POST tools/call") == 1


async def test_a_cut_in_the_middle_of_an_event_loses_nothing() -> None:
    calls: list[Visit] = []

    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            calls.append(visit)
            visit.stream()
            visit.event(None, id="1")
            visit.chunk('id: 2\ndata: {"jsonrpc": "2.0", "id"')
            visit.cut()
        elif "last-event-id" in visit.headers:
            assert visit.headers["last-event-id"] == "1"
            visit.stream()
            visit.event(answer(calls[0], text("whole")), id="2")
            visit.end()
        else:
            handshake(visit)  # it works without a session id, too

    async with Scripted(behave) as server, Client(server.url) as client:
        assert (await client.call_tool("any")).text == "whole"


@pytest.mark.parametrize(
    ("events", "resumed_after"),
    [
        ("id: 1\n\n", "1"),  # it has no data, so it is no event, but its id counts
        ("id: 1\ndata:\n\nid: 2\n\n", "2"),
        ("id: 1\ndata:\n\ndata:\n\n", "1"),
        ("id: 1\ndata:\n\nid: 2\n", "1"),  # it is not complete
    ],
)
async def test_the_id_that_counts(events: str, resumed_after: str) -> None:
    calls: list[Visit] = []

    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            calls.append(visit)
            visit.stream()
            visit.chunk(events)
            visit.end()
        elif "last-event-id" in visit.headers:
            visit.stream()
            visit.event(answer(calls[0], text(visit.headers["last-event-id"])))
            visit.end()
        else:
            handshake(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        assert (await client.call_tool("any")).text == resumed_after


@pytest.mark.parametrize("id", ["id", "id:", "id: \x07"])  # the last is one that no header can carry
async def test_a_server_may_take_its_ids_back(id: str) -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            visit.stream()
            visit.chunk(f"id: 1\ndata:\n\n{id}\n\n")
            visit.end()
        else:
            handshake(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(ConnectionLost, match=r"before the answer came$"):
            await client.call_tool("any")


async def test_without_an_event_id_an_answer_is_lost() -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            visit.stream()
            visit.event(log_message(1))
            visit.cut()
        else:
            handshake(visit, Mcp_Session_Id="s")

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(ConnectionLost, match=r"tools/call: .*broke before the answer came"):
            await client.call_tool("any")
        assert server.said().count("POST tools/call") == 1


async def test_it_is_tried_until_the_request_times_out() -> None:
    tries = 0

    def behave(visit: Visit) -> None:
        nonlocal tries
        if visit.method == "tools/call":
            visit.stream()
            visit.event(None, id="1", retry=1)
            visit.end()
        elif "last-event-id" in visit.headers:
            tries += 1
            (visit.cut, lambda: visit.answer(503), lambda: visit.answer(500), lambda: visit.answer(429))[tries % 4]()
        else:
            handshake(visit, Mcp_Session_Id="s")

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(TimeoutError):
            await client.call_tool("any", timeout=0.7)
        assert tries > 4
        await asyncio.sleep(0.05)
        seen = tries
        await asyncio.sleep(0.1)
        assert tries == seen  # and not any longer


@pytest.mark.parametrize("status", [400, 405, 406])
async def test_a_server_that_can_not_take_it_up(status: int) -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            visit.stream()
            visit.event(None, id="1")
            visit.end()
        elif "last-event-id" in visit.headers:
            visit.answer(status)
        else:
            handshake(visit, Mcp_Session_Id="s")

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(ConnectionLost, match=f"before the answer came, and can't be taken up again: .*{status}"):
            await client.call_tool("any")


async def test_a_huge_event_is_not_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_MESSAGE_BYTES", 50_000)

    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            visit.stream()
            visit.event(None, id="1")
            visit.event("x" * 60_000, id="2")
        else:
            handshake(visit, Mcp_Session_Id="s")

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(BadAnswer, match="tools/call: A server-sent event is longer than 50000 bytes"):
            await client.call_tool("any")


# ── back-off ──


def test_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 1.0)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 30.0)
    monkeypatch.setattr(backoff, "SHORTEST_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "LONGEST_RETRY_SECONDS", 300.0)
    waits = backoff.Backoff()
    for expected in (1, 2, 4, 8, 16, 30, 30, *[30] * 100):
        assert expected <= waits.seconds() <= expected * 1.25
    waits.lasted(0.3)
    assert waits.seconds() >= 30
    waits.lasted(1.0)  # as with workers that are replaced one after the other
    assert waits.seconds() < 1.3
    for retry, least in ((5.0, 5.0), (0.0, 0.05), (60.0, 60.0), (1e9, 300.0)):
        waits.retry = retry
        waits.succeeded()
        assert least <= waits.seconds() <= least * 1.25


async def test_an_unknown_session_stream_is_attended_to_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.client.http.ATTEND_SECONDS", 0.03)

    async def behave(visit: Visit) -> None:
        if visit.verb == "GET":
            await visit.gone()  # no headers, ever
        elif not handshake(visit, capabilities=CHANGING):
            visit.result({})

    async with Scripted(behave) as server, Client(server.url) as client, client.listen(tools=True):
        assert isinstance(client._channel._link._newer, HttpLink)
        await client.ping()
        assert json.loads(server.visits[-1].body)["method"] == "ping"
