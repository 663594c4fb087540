"""`listen` in every revision, in process and over HTTP."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from client_stages import ScriptedLink, result
from served_http import DISCOVERED, Scripted, Visit, next_of, until

from dovetail import Client
from dovetail.client.dispatcher import Dispatcher
from dovetail.client.subscriptions import ChangeFeed, Listening
from dovetail.engine.subscriptions import Change
from dovetail.protocol import revisions
from dovetail.protocol.methods import ListenFilter
from dovetail.server import Server

pytestmark = pytest.mark.usefixtures("brisk", "tidy")
EVERY = [revision.name for revision in revisions.ALL]
every_revision = pytest.mark.parametrize("version", EVERY)


def make_server(**options: Any) -> Server:
    server = Server("changing", **options)
    server.add_tool(lambda: "a", name="a")

    @server.resource("notes://all")
    def notes() -> str:
        return "milk"

    @server.resource("notes://other")
    def other() -> str:
        return "tea"

    @server.prompt
    def ask() -> str:
        return "?"

    return server


async def is_quiet(listening: Listening) -> bool:
    try:
        await asyncio.wait_for(anext(listening), 0.03)
    except TimeoutError:
        return True
    return False


@every_revision
async def test_what_was_asked_for_is_heard(version: str) -> None:
    server = make_server()
    async with (
        Client(server, protocol_version=version) as client,
        client.listen(tools=True, uris=["notes://all"]) as changes,
    ):
        assert changes.honoured == ListenFilter(tools_list_changed=True, resource_subscriptions=["notes://all"])
        server.add_tool(lambda: "b", name="b")
        assert await next_of(changes) == Change("tools")
        server.notify_resource_updated("notes://all")
        assert await next_of(changes) == Change("updated", "notes://all")
        server.notify_resource_updated("notes://other")
        server.remove_prompt("ask")
        assert await is_quiet(changes)


async def test_the_server_may_end_it() -> None:
    server = make_server()
    async with Client(server) as client, client.listen(tools=True) as changes:
        server.add_tool(lambda: "b", name="b")
        server.engine.hub.end_all()
        assert [change async for change in changes] == [Change("tools")]


async def open_feed(link: ScriptedLink) -> tuple[Dispatcher, ChangeFeed]:
    feed = ChangeFeed(lambda: None)
    conversation = Dispatcher(link, feed)  # type: ignore[arg-type]  # it returns what it heard
    await conversation.open()
    return conversation, feed


def notification(method: str, subscription: Any, **params: Any) -> dict[str, Any]:
    meta = {"io.modelcontextprotocol/subscriptionId": subscription}
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": {**params, "_meta": meta}}


def acknowledging(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message["method"] != "subscriptions/listen":
        return []
    return [notification("subscriptions/acknowledged", message["id"], notifications={"toolsListChanged": True})]


WANTED = ListenFilter(tools_list_changed=True)


@pytest.mark.rule("SUB-4")
async def test_changes_of_another_subscription_are_not_ours() -> None:
    link = ScriptedLink(acknowledging)
    conversation, feed = await open_feed(link)
    async with feed.on_stream(conversation, WANTED, {}, 5) as changes:
        id = link.sent[0]["id"]
        for other in (str(id), id + 1, None, True, [id]):
            link.say(notification("tools/list_changed", other))
        link.say(notification("prompts/list_changed", id))  # not asked for
        link.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        assert await is_quiet(changes)
        link.say(notification("tools/list_changed", id))
        assert await next_of(changes) == Change("tools")
    await conversation.close()


@pytest.mark.rule("SUB-7", "SUB-8")
@pytest.mark.parametrize("by_result", [True, False])
async def test_both_ways_to_end_a_stream(by_result: bool) -> None:
    link = ScriptedLink(acknowledging)
    conversation, feed = await open_feed(link)
    async with feed.on_stream(conversation, WANTED, {}, 5) as changes:
        if by_result:
            link.say(result(link.sent[0], {"resultType": "complete"}))
        else:
            params = {"requestId": link.sent[0]["id"]}
            link.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert [change async for change in changes] == []
    await conversation.close()


async def test_a_stream_that_is_never_acknowledged() -> None:
    link = ScriptedLink()
    conversation, feed = await open_feed(link)
    with pytest.raises(TimeoutError, match="subscriptions/listen: not acknowledged"):
        await feed.on_stream(conversation, WANTED, {}, 0.02).__aenter__()
    assert link.methods() == ["subscriptions/listen", "notifications/cancelled"]
    await conversation.close()


async def test_a_part_of_a_resource_counts_as_the_resource() -> None:
    listening = Listening(ListenFilter(resource_subscriptions=["file:///docs/", "n://1"]), None)
    parts = ["file:///docs/", "file:///docs/a.txt", "n://1", "n://1/x"]
    for uri in (*parts, "file:///docs", "file:///docs2/a", "file:///other/b.txt", "n://10", "n://", "n://1#x"):
        listening.offer(Change("updated", uri))
    listening.end()
    assert [change.uri async for change in listening] == parts


SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ALL = {"toolsListChanged": True, "resourceSubscriptions": ["n://1", "n://2"]}
ALL_CHANGED = [Change("tools"), Change("updated", "n://1"), Change("updated", "n://2")]


async def all_of(listening: Listening) -> list[Change]:
    return [await next_of(listening) for _ in ALL_CHANGED]


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
