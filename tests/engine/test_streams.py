"""Subscriptions in both eras: what is told to whom, in which order, and when it ends."""

import asyncio
import threading
from typing import Any

import pytest

from dovetail import Server
from dovetail.engine.handlers import MAX_LISTENED
from dovetail.engine.streams import Change, Hub, Subscription, changes_made
from dovetail.protocol.session import MAX_SUBSCRIPTIONS
from wire import MODERN, Wire

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ACK = "notifications/subscriptions/acknowledged"


def new_server(**options: Any) -> Server:
    server = Server("streams", version="1.0.0", **options)
    server.add_tool(lambda: "", name="t")
    server.add_prompt(lambda: "", name="p")
    for uri in ("a://1", "a://2"):
        server.add_resource(uri, lambda: "", name="r")

    @server.resource("n://{id}")
    async def one(id: str) -> str:
        return id

    return server


async def listen(wire: Wire, id: Any, **notifications: Any) -> dict[str, Any]:
    """Begin to listen; gives back what is honoured."""
    wire.send(wire.request("subscriptions/listen", {"notifications": notifications}, id=id))
    ack = await wire.receive()
    assert ack["method"] == ACK
    assert mark(ack) == id
    assert type(mark(ack)) is type(id)
    return ack["params"]["notifications"]


def mark(message: dict[str, Any]) -> Any:
    return message["params"]["_meta"][SUBSCRIPTION]


# ── subscriptions/listen ──


@pytest.mark.rule("SUB-1", "SUB-2", "SUB-3", "SUB-4", "SUB-12")
async def test_the_acknowledgement_comes_first_and_says_what_is_honoured() -> None:
    async with Wire(new_server(), MODERN) as wire:
        asked = {
            "toolsListChanged": True,
            "promptsListChanged": False,
            "resourceSubscriptions": ["a://1", "x://", "a://1"],
        }
        assert await listen(wire, "l", **asked) == {"toolsListChanged": True, "resourceSubscriptions": ["a://1"]}
        assert await listen(wire, 0) == {}
        assert await listen(wire, "m", unknownKind=True, resourceSubscriptions=["n://7"]) == {
            "resourceSubscriptions": ["n://7"]
        }
        wire.server.engine.hub.end_all()


async def test_what_is_not_offered_is_not_honoured() -> None:
    bare = Server("bare", version="1.0.0")
    everything = {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["a://1"],
    }
    async with Wire(bare, MODERN) as wire:
        assert await listen(wire, 1, **everything) == {}
        bare.engine.hub.end_all()
    async with Wire(new_server(list_changed=False), MODERN) as wire:
        assert await listen(wire, 1, **everything) == {"resourceSubscriptions": ["a://1"]}
        wire.server.engine.hub.end_all()


@pytest.mark.rule("SUB-1", "SUB-4", "SUB-6", "TOOL-5")
async def test_several_listens_hear_what_they_asked_for() -> None:
    server = new_server()
    async with Wire(server, MODERN) as wire:
        await listen(wire, 1, toolsListChanged=True)
        await listen(wire, "1", toolsListChanged=True, resourceSubscriptions=["a://1"])
        server.add_tool(lambda: "", name="u")
        heard = [await wire.receive(), await wire.receive()]
        assert {(type(mark(each)), mark(each)) for each in heard} == {(int, 1), (str, "1")}
        assert {each["method"] for each in heard} == {"notifications/tools/list_changed"}
        server.notify_resource_updated("a://1")
        update = await wire.receive()
        assert (update["method"], update["params"]["uri"]) == ("notifications/resources/updated", "a://1")
        assert mark(update) == "1"
        server.notify_resource_updated("a://2")
        server.add_prompt(lambda: "", name="q")
        server.add_resource("a://3", lambda: "", name="r")
        await wire.quiet()
        server.engine.hub.end_all()


@pytest.mark.rule("SUB-7")
async def test_the_end_of_the_server_is_the_result() -> None:
    server = new_server()
    async with Wire(server, MODERN) as wire:
        await listen(wire, "l", toolsListChanged=True)
        server.add_tool(lambda: "", name="u")
        server.engine.hub.end_all()
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"  # what was pending is told
        answer = await wire.receive()
        assert answer["id"] == "l"
        assert answer["result"]["resultType"] == "complete"
        assert answer["result"]["_meta"][SUBSCRIPTION] == "l"
        server.add_tool(lambda: "", name="v")
        await wire.quiet()


@pytest.mark.rule("CAN-2", "STDIO-6")
async def test_a_cancelled_listen_is_silent() -> None:
    server = new_server()
    async with Wire(server, MODERN) as wire:
        await listen(wire, 1, toolsListChanged=True, resourceSubscriptions=["a://1"])
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        server.add_tool(lambda: "", name="u")
        await wire.quiet()
        assert not server.engine.hub._subscriptions
        assert not server.engine.hub._wanted


async def test_a_listen_needs_a_filter_and_its_own_era() -> None:
    async with Wire(new_server(), MODERN) as wire:
        for params in ({}, {"notifications": None}, {"notifications": {"toolsListChanged": "yes"}}):
            assert (await wire.refusal("subscriptions/listen", params))["code"] == -32602
    async with Wire(new_server(), "2025-11-25") as wire:
        assert (await wire.refusal("subscriptions/listen", {"notifications": {}}))["code"] == -32601


async def test_too_many_uris_are_cut() -> None:
    async with Wire(new_server(), MODERN) as wire:
        honoured = await listen(wire, 1, resourceSubscriptions=[f"n://{number}" for number in range(MAX_LISTENED + 5)])
        assert len(honoured["resourceSubscriptions"]) == MAX_LISTENED
        wire.server.engine.hub.end_all()


# ── resources/subscribe ──


@pytest.mark.rule("RES-4")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_session_hears_of_what_it_subscribed_to(version: str) -> None:
    server = new_server()
    async with Wire(server, version) as wire:
        server.notify_resource_updated("a://1")
        await wire.quiet(0.02)
        assert await wire.ask("resources/subscribe", {"uri": "a://1"}) == {}
        assert await wire.ask("resources/subscribe", {"uri": "a://1"}) == {}
        assert await wire.ask("resources/subscribe", {"uri": "n://5"}) == {}
        server.notify_resource_updated("a://2")
        server.notify_resource_updated("a://1")
        server.notify_resource_updated("a://1")  # told once
        server.notify_resource_updated("n://5")
        for uri in ("a://1", "n://5"):
            message = await wire.receive()
            assert message == {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
        assert await wire.ask("resources/unsubscribe", {"uri": "a://1"}) == {}
        assert await wire.ask("resources/unsubscribe", {"uri": "never://"}) == {}
        server.notify_resource_updated("a://1")
        await wire.quiet(0.02)
        assert (await wire.refusal("resources/subscribe", {"uri": "x://"}))["code"] == -32002
        assert (await wire.refusal("resources/subscribe", {}))["code"] == -32602


async def test_a_subscription_before_the_session_operates_counts() -> None:
    server = new_server()
    async with Wire(server) as wire:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "w", "version": "1"}}
        await wire.ask("initialize", hello)
        await wire.ask("resources/subscribe", {"uri": "a://1"})
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        server.notify_resource_updated("a://1")
        assert (await wire.receive())["params"] == {"uri": "a://1"}
        await wire.quiet(0.02)


async def test_both_eras_on_one_pipe() -> None:
    server = new_server()
    async with Wire(server, "2025-11-25") as wire:
        await wire.ask("resources/subscribe", {"uri": "a://1"})
        filter = {"notifications": {"resourceSubscriptions": ["a://1"]}}
        wire.send(Wire(server, MODERN).request("subscriptions/listen", filter, id="l"))
        assert (await wire.receive())["method"] == ACK
        server.notify_resource_updated("a://1")
        params = [(await wire.receive())["params"] for _ in range(2)]
        assert sorted(SUBSCRIPTION in each.get("_meta", {}) for each in params) == [False, True]
        server.engine.hub.end_all()


async def test_the_number_of_subscriptions_is_bounded() -> None:
    server = new_server()
    async with Wire(server, "2025-11-25") as wire:
        record = wire.connection.record
        full = record.replace(subscriptions=frozenset(f"n://{n}" for n in range(MAX_SUBSCRIPTIONS)))
        await wire.connection.change(lambda _: full)
        assert (await wire.refusal("resources/subscribe", {"uri": "a://1"}))["code"] == -32602


async def test_a_closed_connection_leaves_nothing_behind() -> None:
    server = new_server()
    async with Wire(server, "2025-11-25") as wire:
        await wire.ask("resources/subscribe", {"uri": "a://1"})
    assert not server.engine.hub._subscriptions
    assert not server.engine.hub._wanted


# ── the hub itself ──


async def test_a_change_waits_once_for_a_slow_reader() -> None:
    hub = Hub()
    subscription = hub.subscribe(["tools"], ["a://1"])
    for _ in range(1000):
        hub.publish(Change("tools"))
        hub.publish(Change("updated", "a://1"))
        hub.publish(Change("prompts"))
    subscription.remove_uri("a://1")
    subscription.end()
    hub.publish(Change("tools"))
    assert [change async for change in subscription] == [Change("tools")]


async def test_changes_come_from_any_thread() -> None:
    hub = Hub()
    subscription = hub.subscribe(["tools"])
    threading.Thread(target=hub.publish, args=(Change("tools"),)).start()
    assert await asyncio.wait_for(anext(subscription), 5) == Change("tools")


async def test_the_first_and_the_last_who_want_a_uri_are_told_of() -> None:
    told: list[tuple[str, bool]] = []
    hub = Hub(lambda uri, wanted: told.append((uri, wanted)))
    one, two = hub.subscribe([], ["a"]), hub.subscribe([], ["a", "b"])
    one.add_uri("a")
    one.end()
    one.end()
    assert told == [("a", True), ("b", True)]
    two.remove_uri("a")
    two.remove_uri("a")
    hub.end_all()
    assert told == [("a", True), ("b", True), ("a", False), ("b", False)]


def test_a_loop_that_died_is_no_listener() -> None:
    """It was closed without a word, and what it left behind must not break what comes after."""
    server = Server("revenant", version="1.0.0")
    loop = asyncio.new_event_loop()

    async def listen() -> None:
        subscription = server.engine.hub.subscribe(["tools"])
        waiting = asyncio.ensure_future(subscription.__anext__())
        await asyncio.sleep(0)
        waiting.cancel()

    loop.run_until_complete(listen())
    loop.close()
    server.add_tool(lambda: "x", name="later")
    assert not server.engine.hub._subscriptions


# ── what several workers may find ──


FOUND = Change("updated", "test://one", "cause")


async def test_finds_are_heard_here_unless_somebody_passes_them_on() -> None:
    hub = Hub()
    one = hub.subscribe((), ["test://one"])
    log = hub.everything()
    hub.publish(FOUND)
    assert await anext(one) == Change("updated", "test://one")
    assert await anext(log) == FOUND


async def test_whoever_takes_finds_gets_them_alone_as_long_as_it_is_there() -> None:
    hub = Hub()
    one = hub.subscribe((), ["test://one"])
    log = hub.everything(finds=True)
    hub.publish(FOUND)
    assert (len(one._pending), await anext(log)) == (0, FOUND)
    hub.publish(FOUND.plain, from_afar=True)
    assert (len(one._pending), len(log._pending)) == (1, 0)
    await anext(one)
    log.end()
    hub.publish(FOUND)
    assert len(one._pending) == 1


@pytest.mark.parametrize(
    ("causes", "left"), [(["a"], "a"), (["a", "b"], "b"), (["a", ""], ""), (["", "a"], ""), (["a", "", "b"], "")]
)
async def test_a_pending_find_gives_way_to_what_is_sure(causes: list[str], left: str) -> None:
    log = Hub().everything()
    for cause in causes:
        log.offer(Change("updated", "test://one", cause))
    assert (len(log._pending), log.accepted) == (1, 1)
    assert await anext(log) == Change("updated", "test://one", left)


async def test_what_is_changed_is_noted_where_it_is_changed() -> None:
    hub = Hub()
    log, listener = hub.everything(), hub.subscribe(("tools",))
    made: dict[Subscription, int] = {}

    async def change() -> None:
        changes_made.set(made)
        hub.publish(Change("tools"))
        await asyncio.to_thread(hub.publish, Change("prompts"))

    hub.publish(Change("resources"))
    await asyncio.create_task(change())
    hub.publish(Change("updated", "test://one"))
    await asyncio.sleep(0)
    assert made == {log: 3}
    assert listener not in made
