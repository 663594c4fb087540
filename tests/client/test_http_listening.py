"""`client.listen()` over HTTP since 2026-07-28: a request that is made again whenever its stream breaks or ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from served_http import DISCOVERED, Scripted, Visit, next_of, until

from dovetail import Client
from dovetail.client import backoff
from dovetail.client.listening import Listening
from dovetail.engine.streams import Change
from dovetail.errors import ConnectionLost, NotSignedIn, ServerError
from dovetail.protocol.methods import ListenFilter

pytestmark = pytest.mark.usefixtures("brisk", "tidy")

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ALL = {"toolsListChanged": True, "resourceSubscriptions": ["n://1", "n://2"]}
ALL_CHANGED = [Change("tools"), Change("updated", "n://1"), Change("updated", "n://2")]


async def all_of(listening: Listening) -> list[Change]:
    return [await next_of(listening) for _ in ALL_CHANGED]


async def is_quiet(listening: Listening) -> bool:
    try:
        await asyncio.wait_for(anext(listening), 0.05)
    except TimeoutError:
        return True
    return False


class Listened:
    """A modern server; `streams` has one visit for each listen request, already acknowledged."""

    def __init__(self, honoured: Any = None) -> None:
        self.honoured = honoured or ALL
        self.streams: list[Visit] = []
        self.refusal: Callable[[Visit], None] | None = None
        self.left = 0
        self.ends_at_once = False

    async def __call__(self, visit: Visit) -> None:
        if visit.method == "server/discover":
            visit.result(DISCOVERED)
        elif visit.method != "subscriptions/listen":
            visit.error(-32601, 404)
        elif self.refusal is not None:
            self.refusal(visit)
        else:
            self.streams.append(visit)
            visit.stream()
            self.say(visit, "subscriptions/acknowledged", notifications=self.honoured)
            if self.ends_at_once:
                self.end(visit)
            await visit.gone()
            self.left += 1

    def say(self, visit: Visit, what: str, **params: Any) -> None:
        meta = {SUBSCRIPTION: visit.message["id"]}
        visit.event({"jsonrpc": "2.0", "method": f"notifications/{what}", "params": {**params, "_meta": meta}})

    def end(self, visit: Visit) -> None:
        """As a server does that is about to stop."""
        visit.event({"jsonrpc": "2.0", "id": visit.message["id"], "result": {"resultType": "complete"}})
        visit.finish()


def listen(client: Client) -> Any:
    return client.listen(tools=True, uris=["n://1", "n://2"])


async def test_changes_come_until_one_leaves() -> None:
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client:
        async with listen(client) as changes:
            stream = behave.streams[0]
            assert stream.message["params"]["notifications"] == ALL
            assert stream.headers["mcp-method"] == "subscriptions/listen"
            behave.say(stream, "resources/updated", uri="n://1")
            assert await next_of(changes) == Change("updated", "n://1")
            behave.say(stream, "tools/list_changed")
            assert await next_of(changes) == Change("tools")
        await until(lambda: behave.left)
        assert server.said() == ["POST server/discover", "POST subscriptions/listen"]  # and no cancellation


async def test_several_at_once() -> None:
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client:
        async with listen(client) as first, listen(client) as second:
            behave.say(behave.streams[1], "tools/list_changed")
            assert await next_of(second) == Change("tools")
            assert await is_quiet(first)
        await until(lambda: behave.left == 2)


@pytest.mark.parametrize("cut", [True, False])
async def test_a_stream_that_breaks_is_opened_again(cut: bool) -> None:
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client, listen(client) as changes:
        for number in range(1, 7):
            stream = behave.streams[-1]
            stream.cut() if cut else stream.finish()
            assert await all_of(changes) == ALL_CHANGED
            assert len(behave.streams) == number + 1
            assert await is_quiet(changes) if number == 6 else True
        behave.say(behave.streams[-1], "tools/list_changed")
        assert await next_of(changes) == Change("tools")
        ids = [stream.message["id"] for stream in behave.streams]
        assert len(set(ids)) == len(ids)
        assert server.said().count("POST server/discover") == 1


PASSING: dict[str, Callable[[Visit], None]] = {
    "no connection": lambda visit: visit.cut(),
    "busy": lambda visit: visit.answer(503),
    "draining": lambda visit: visit.error(-32603, 503, "draining", id=False),
    "a failure": lambda visit: visit.answer(500),
    "a stream without acknowledgement": lambda visit: (visit.stream(), visit.end())[0],
}


@pytest.mark.parametrize("refusal", PASSING.values(), ids=PASSING.keys())
async def test_a_server_that_is_away_for_a_while(refusal: Callable[[Visit], None]) -> None:
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client, listen(client) as changes:
        behave.refusal = refusal
        behave.streams[0].cut()
        await until(lambda: server.said().count("POST subscriptions/listen") > 4)
        assert await is_quiet(changes)
        behave.refusal = None
        assert await next_of(changes) == Change("tools")


async def test_what_is_honoured_may_be_less_afterwards() -> None:
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client, listen(client) as changes:
        behave.honoured = {"resourceSubscriptions": ["n://2"]}
        behave.streams[0].cut()
        assert await all_of(changes) == ALL_CHANGED
        assert changes.honoured == ListenFilter(resource_subscriptions=["n://2"])


@pytest.mark.parametrize("cut", [True, False])
async def test_a_server_that_does_not_want_it_any_more(cut: bool) -> None:
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client, listen(client) as changes:
        behave.refusal = lambda visit: visit.answer(401)
        behave.streams[0].cut() if cut else behave.end(behave.streams[0])
        with pytest.raises(NotSignedIn, match="401 Unauthorized"):
            await next_of(changes)
        assert server.said().count("POST subscriptions/listen") == 2


ENDS: dict[str, Callable[[Listened, Visit], None]] = {
    "by its result": lambda behave, stream: behave.end(stream),
    "by a cancellation": lambda behave, stream: behave.say(stream, "cancelled", requestId=stream.message["id"]),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_the_server_may_end_it_and_is_asked_again(end: Callable[[Listened, Visit], None]) -> None:
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client:
        async with listen(client) as changes:
            for number in range(1, 4):
                stream = behave.streams[-1]
                behave.say(stream, "tools/list_changed")
                assert await next_of(changes) == Change("tools")
                end(behave, stream)
                assert await all_of(changes) == ALL_CHANGED
                assert await is_quiet(changes)  # it is told once
                assert len(behave.streams) == number + 1
                await until(lambda ended=number: behave.left == ended)
        await until(lambda: behave.left == 4)
        assert "POST notifications/cancelled" not in server.said()


async def test_a_server_that_ends_it_at_once_is_asked_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 60.0)
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client, listen(client) as changes:
        behave.ends_at_once = True
        behave.end(behave.streams[0])
        await asyncio.sleep(0.4)
        assert 3 < len(behave.streams) < 9  # after 10, 20, 40, 80, 160 milliseconds
        assert await all_of(changes) == ALL_CHANGED


async def test_after_a_while_it_is_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 60.0)
    monkeypatch.setattr(backoff, "LONG_SECONDS", 0.0)
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client, listen(client):
        behave.ends_at_once = True
        behave.end(behave.streams[0])
        await until(lambda: len(behave.streams) > 12)  # else after 41 seconds


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [(lambda visit: visit.error(-32601, 404), ServerError), (lambda visit: visit.cut(), ConnectionLost)],
)
async def test_the_first_time_it_has_to_work(refusal: Callable[[Visit], None], kind: type[Exception]) -> None:
    behave = Listened()
    behave.refusal = refusal
    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(kind):
            async with listen(client):
                pass
        assert server.said().count("POST subscriptions/listen") == 1


async def test_leaving_while_the_server_is_away() -> None:
    behave = Listened()
    async with Scripted(behave) as server, Client(server.url) as client:
        async with listen(client):
            behave.refusal = lambda visit: visit.answer(503)
            behave.streams[0].cut()
            await until(lambda: server.said().count("POST subscriptions/listen") > 2)
        seen = len(server.visits)
        await asyncio.sleep(0.1)
        assert len(server.visits) == seen


async def test_closing_the_client_ends_it() -> None:
    behave = Listened()
    async with Scripted(behave) as server:
        client = Client(server.url)
        await client.__aenter__()
        async with listen(client) as changes:
            await client.close()
            with pytest.raises(ConnectionLost, match="the client was closed"):
                await next_of(changes)
        await until(lambda: behave.left)
