"""The stream that a session GETs, as a client follows it."""

import asyncio
import logging
from typing import Any

import pytest
from served_http import Scripted, Visit, handshake, next_of, until
from session_script import TOOLS_CHANGED, VERSION, Announcing, answer, log_message, text, updated

from dovetail import Client
from dovetail.client import requests
from dovetail.engine.streams import Change

pytestmark = pytest.mark.usefixtures("brisk", "tidy")


async def test_the_stream_is_opened_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    behave = Announcing()
    async with (
        Scripted(behave) as server,
        Client(server.url, log_handler=lambda message: heard.append(message.data)) as client,
    ):
        for number in range(1, 8):
            await until(lambda: len(behave.streams) == number)  # noqa: B023
            stream = behave.streams[-1]
            assert stream.headers.get("last-event-id") == (None if number == 1 else f"g-{number - 1}")
            if number > 1:
                stream.event(log_message(number - 1), id=f"g-{number - 1}")  # a replay of what has come already
            stream.event(log_message(number), id=f"g-{number}", retry=1)
            await until(lambda: len(heard) == number)  # noqa: B023
            stream.cut() if number % 2 else stream.finish()
        assert heard == [1, 2, 3, 4, 5, 6, 7]
        await client.ping()
        assert behave.session == 1


@pytest.mark.parametrize("status", [405, 404, 400, 401])
async def test_a_server_without_a_stream(status: int, caplog: pytest.LogCaptureFixture) -> None:
    behave = Announcing()
    behave.refuse_stream = status
    async with Scripted(behave) as server, Client(server.url) as client:
        async with client.listen(tools=True):
            await client.ping()
        assert server.said().count("GET") == 1
    assert bool([record for record in caplog.records if record.levelno >= logging.WARNING]) == (
        status not in (404, 405)
    )
    assert behave.session == 1


async def test_a_stream_that_is_none(caplog: pytest.LogCaptureFixture) -> None:
    def behave(visit: Visit) -> None:
        if visit.verb == "GET":
            visit.answer(200, b"<html>", "text/html")
        else:
            handshake(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        await client._channel._link.attend()
        await until(lambda: "the server answered 200 OK with text/html" in caplog.text)
        assert server.said().count("GET") == 1


async def test_a_server_that_is_away_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    behave = Announcing()
    async with Scripted(behave) as server, Client(server.url) as client, client.listen(tools=True) as changes:
        behave.refuse_stream = 503
        behave.streams[0].event(log_message(0), id="g", retry=1)
        await asyncio.sleep(0.02)
        behave.streams[0].cut()
        await until(lambda: server.said().count("GET") > 3)
        behave.refuse_stream = None
        await until(lambda: len(behave.streams) == 2)
        behave.streams[-1].event(TOOLS_CHANGED, id="h")
        assert await next_of(changes) == Change("tools")


@pytest.mark.parametrize("status", [400, 401, 410])
async def test_a_stream_that_was_there_is_never_given_up(status: int) -> None:
    """Not even if the server refuses it for a while, or does not know the last event any more."""
    behave = Announcing()
    async with Scripted(behave) as server, Client(server.url) as client, client.listen(tools=True) as changes:
        behave.refuse_stream = status
        behave.streams[0].event(log_message(0), id="g")
        await asyncio.sleep(0.02)
        behave.streams[0].cut()
        await until(lambda: server.said().count("GET") > 3)
        behave.refuse_stream = None
        assert await next_of(changes) == Change("tools")
        assert [visit.headers.get("last-event-id") for visit in server.visits if visit.verb == "GET"][:3] == [
            None, "g", None,
        ]  # fmt: skip


async def test_a_listener_is_heard_from_the_first_moment() -> None:
    behave = Announcing()
    async with (
        Scripted(behave) as server,
        Client(server.url) as client,
        client.listen(tools=True, uris=["n://1"]) as changes,
    ):
        behave.streams[0].event(updated("n://1"))
        assert await next_of(changes) == Change("updated", "n://1")


async def test_what_may_have_been_missed_is_told() -> None:
    """Without event ids nothing is replayed."""
    behave = Announcing()
    async with (
        Scripted(behave) as server,
        Client(server.url) as client,
        client.listen(tools=True, uris=["n://1"]) as changes,
    ):
        behave.streams[0].cut()
        assert {await next_of(changes), await next_of(changes)} == {Change("tools"), Change("updated", "n://1")}
        assert len(behave.streams) == 2


async def test_a_huge_event_does_not_end_the_hearing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(requests, "MAX_MESSAGE_BYTES", 50_000)
    behave = Announcing()
    async with Scripted(behave) as server, Client(server.url) as client, client.listen(tools=True) as changes:
        behave.streams[0].event("x" * 60_000, id="big")
        await until(lambda: len(behave.streams) == 2)
        assert "last-event-id" not in behave.streams[1].headers
        assert await next_of(changes) == Change("tools")
        assert "longer than 50000 bytes" in caplog.text


async def test_tools_are_listed_again_before_approval_if_nobody_hears_of_changes() -> None:
    behave = Announcing()
    behave.refuse_stream = 405

    async with Scripted(behave) as server, Client(server.url, approve=lambda *_: True) as client:
        await client._channel._link.attend()
        assert not client._hears_of_changed_tools()
    behave = Announcing()
    async with Scripted(behave) as server, Client(server.url, approve=lambda *_: True) as client:
        await client._channel._link.attend()
        assert client._hears_of_changed_tools()
        behave.streams[0].cut()
        await until(lambda: not client._hears_of_changed_tools())


@pytest.mark.parametrize("on", ["GET", "POST"])
async def test_an_answer_that_comes_on_another_stream(on: str) -> None:
    """Then nothing more is expected on its own, however long the server keeps that open."""
    elsewhere: list[Visit] = []

    async def behave(visit: Visit) -> None:
        if visit.verb == on and (visit.verb == "GET" or visit.method == "slow"):
            elsewhere.append(visit)
            visit.stream()
            await visit.gone()
        elif visit.method == "tools/call":
            visit.stream()
            visit.event(TOOLS_CHANGED)
            elsewhere[0].event(answer(visit, text("called")))
            await visit.gone()
        elif not handshake(visit):
            visit.result({})

    async with Scripted(behave) as server, Client(server.url, protocol_version=VERSION) as client:
        slow = asyncio.create_task(client.request("slow"))
        await until(lambda: elsewhere)
        for _ in range(5):
            assert (await client.call_tool("any")).text == "called"
        link: Any = client._channel._link
        await until(lambda: len(link._newer._posts) == (on == "POST"))
        for visit in server.visits:
            if visit.method == "tools/call":
                await asyncio.wait_for(visit.gone(), 5)
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
