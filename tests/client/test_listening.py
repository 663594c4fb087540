"""Hearing of changes, with the same program at every revision."""

import asyncio
import json
from typing import Any

import pytest
from scripted_link import ScriptedLink, error, result

from dovetail.client import Client
from dovetail.client.conversation import Conversation
from dovetail.client.listening import ChangeFeed, Listening
from dovetail.engine.streams import Change
from dovetail.errors import ConnectionLost, ServerError
from dovetail.protocol import revisions
from dovetail.protocol.methods import ListenFilter
from dovetail.server import Server

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


async def next_of(listening: Listening) -> Change:
    return await asyncio.wait_for(anext(listening), 5)


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


@every_revision
async def test_every_list(version: str) -> None:
    server = make_server()
    async with (
        Client(server, protocol_version=version) as client,
        client.listen(tools=True, prompts=True, resources=True) as changes,
    ):
        server.remove_tool("a")
        assert await next_of(changes) == Change("tools")
        server.remove_prompt("ask")
        assert await next_of(changes) == Change("prompts")
        server.remove_resource("notes://other")
        assert await next_of(changes) == Change("resources")


@every_revision
async def test_what_is_not_served_is_left_out(version: str) -> None:
    server = make_server(list_changed=False)
    async with (
        Client(server, protocol_version=version) as client,
        client.listen(tools=True, prompts=True, uris=["notes://all", "other://x"]) as changes,
    ):
        assert changes.honoured == ListenFilter(resource_subscriptions=["notes://all"])


@every_revision
async def test_several_listen_at_once_and_leave_at_their_own_time(version: str) -> None:
    server = make_server()
    sent: list[str] = []

    def note(direction: str, message: bytes) -> None:
        if direction == "sent":
            sent.append(json.loads(message)["method"])

    async with Client(server, protocol_version=version, transcript=note) as client:
        async with client.listen(uris=["notes://all"]) as first:
            async with client.listen(uris=["notes://all", "notes://other"]) as second:
                server.notify_resource_updated("notes://all")
                assert await next_of(first) == await next_of(second)
            server.notify_resource_updated("notes://all")
            assert await next_of(first) == Change("updated", "notes://all")
        server.notify_resource_updated("notes://all")
        await asyncio.sleep(0.01)
    if version in revisions.HANDSHAKE:
        assert sent.count("resources/subscribe") == 3
        assert sent.count("resources/unsubscribe") == 2
    else:
        assert sent.count("subscriptions/listen") == sent.count("notifications/cancelled") == 2


@every_revision
async def test_a_listener_does_not_hear_a_neighbour_with_a_longer_name(version: str) -> None:
    server = Server("numbers")
    for uri in ("n://1", "n://10"):
        server.add_resource(uri, lambda: "x", name=uri)
    async with (
        Client(server, protocol_version=version) as client,
        client.listen(uris=["n://1"]) as one,
        client.listen(uris=["n://10"]) as ten,
    ):
        server.notify_resource_updated("n://10")
        assert await next_of(ten) == Change("updated", "n://10")
        assert await is_quiet(one)


@every_revision
async def test_a_change_that_comes_twice_is_told_once(version: str) -> None:
    server = make_server()
    async with Client(server, protocol_version=version) as client, client.listen(tools=True) as changes:
        for name in "bcd":
            server.add_tool(lambda: "x", name=name)
            await asyncio.sleep(0.005)
        assert await next_of(changes) == Change("tools")
        assert await is_quiet(changes)


@every_revision
async def test_closing_the_client_ends_the_listening(version: str) -> None:
    client = Client(make_server(), protocol_version=version)
    await client.__aenter__()
    async with client.listen(tools=True) as changes:
        await client.close()
        with pytest.raises(ConnectionLost, match="the client was closed"):
            await next_of(changes)


async def test_the_server_may_end_it() -> None:
    server = make_server()
    async with Client(server) as client, client.listen(tools=True) as changes:
        server.add_tool(lambda: "b", name="b")
        server.engine.hub.end_all()
        assert [change async for change in changes] == [Change("tools")]


# ── with a server that the test plays ──


async def open_feed(link: ScriptedLink) -> tuple[Conversation, ChangeFeed]:
    feed = ChangeFeed()
    conversation = Conversation(link, feed)  # type: ignore[arg-type]  # it returns what it heard
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


async def test_a_refused_stream() -> None:
    link = ScriptedLink(lambda message: [error(message, -32601)])
    conversation, feed = await open_feed(link)
    with pytest.raises(ServerError):
        await feed.on_stream(conversation, WANTED, {}, 5).__aenter__()
    await conversation.close()


async def test_a_stream_that_is_never_acknowledged() -> None:
    link = ScriptedLink()
    conversation, feed = await open_feed(link)
    with pytest.raises(TimeoutError, match="subscriptions/listen: not acknowledged"):
        await feed.on_stream(conversation, WANTED, {}, 0.02).__aenter__()
    assert link.methods() == ["subscriptions/listen", "notifications/cancelled"]
    await conversation.close()


async def test_a_server_that_is_lost() -> None:
    link = ScriptedLink(acknowledging)
    conversation, feed = await open_feed(link)
    async with feed.on_stream(conversation, WANTED, {}, 5) as changes:
        link.say(notification("tools/list_changed", link.sent[0]["id"]))
        await asyncio.sleep(0.01)
        link.die("it crashed")
        assert await next_of(changes) == Change("tools")  # what came before is still told
        with pytest.raises(ConnectionLost, match="subscriptions/listen: it crashed"):
            await next_of(changes)
    await conversation.close()


async def test_a_part_of_a_resource_counts_as_the_resource() -> None:
    listening = Listening(ListenFilter(resource_subscriptions=["file:///docs/", "n://1"]), None)
    parts = ["file:///docs/", "file:///docs/a.txt", "n://1", "n://1/x"]
    for uri in (*parts, "file:///docs", "file:///docs2/a", "file:///other/b.txt", "n://10", "n://", "n://1#x"):
        listening.offer(Change("updated", uri))
    listening.end()
    assert [change.uri async for change in listening] == parts


async def test_a_flood_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.client.listening.MAX_URIS", 3)
    listening = Listening(ListenFilter(resource_subscriptions=["x:/"]), None)
    for number in range(10):
        listening.offer(Change("updated", f"x:/{number}"))
    listening.end()
    assert len([change async for change in listening]) == 3


async def test_rubbish_is_ignored() -> None:
    link = ScriptedLink(acknowledging)
    conversation, feed = await open_feed(link)
    async with feed.on_stream(conversation, WANTED, {}, 5) as changes:
        for params in ([], 7, {"uri": 7}, {"_meta": 1}, {"notifications": []}):
            for method in ("resources/updated", "subscriptions/acknowledged", "cancelled", "tools/list_changed"):
                link.say({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params})
        assert await is_quiet(changes)
    await conversation.close()
