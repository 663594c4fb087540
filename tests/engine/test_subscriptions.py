"""Subscriptions: who is notified of what in both eras, the hub of a process, and the log that all workers share."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Server
from dovetail.engine.handlers import MAX_LISTEN_URIS
from dovetail.engine.subscriptions import LIST_KINDS, Change, ChangeLog, Hub, Refresher, SessionChanges, changes_made
from dovetail.engine.threads import ThreadPool
from dovetail.engine.workers import WorkerLease
from dovetail.protocol.session import MAX_SUBSCRIPTIONS, Session
from dovetail.state.base import StoreUnavailable
from dovetail.state.memory import MemoryState
from http_serving import settle, until
from remote_state import RemoteState
from wire import MODERN, Wire

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


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
    assert ack["method"] == "notifications/subscriptions/acknowledged"
    assert (type(mark(ack)), mark(ack)) == (type(id), id)
    return ack["params"]["notifications"]


def mark(message: dict[str, Any]) -> Any:
    return message["params"]["_meta"][SUBSCRIPTION]


# ── subscriptions/listen ──


@pytest.mark.rule("SUB-1", "SUB-2", "SUB-3", "SUB-4", "SUB-12")
async def test_the_acknowledgement_comes_first_and_says_what_is_honoured() -> None:
    async with Wire(new_server(), MODERN) as wire:
        asked = {"toolsListChanged": True, "promptsListChanged": False, "unknownKind": True}
        honoured = await listen(wire, "l", **asked, resourceSubscriptions=["a://1", "x://", "a://1", "n://7"])
        assert honoured == {"toolsListChanged": True, "resourceSubscriptions": ["a://1", "n://7"]}
        assert await listen(wire, 0) == {}
        wire.server.engine.hub.end_all()


async def test_what_is_not_offered_is_not_honoured() -> None:
    bare = Server("bare", version="1.0.0")
    everything: dict[str, Any] = {f"{kind}ListChanged": True for kind in LIST_KINDS}
    everything["resourceSubscriptions"] = ["a://1"]
    async with Wire(bare, MODERN) as wire:
        assert await listen(wire, 1, **everything) == {}
        bare.engine.hub.end_all()
    async with Wire(new_server(list_changed=False), MODERN) as wire:
        assert await listen(wire, 1, **everything) == {"resourceSubscriptions": ["a://1"]}
        wire.server.engine.hub.end_all()


@pytest.mark.rule("SUB-1", "SUB-4", "SUB-6", "TOOL-5")
async def test_several_listens_receive_what_they_asked_for() -> None:
    server = new_server()
    async with Wire(server, MODERN) as wire:
        await listen(wire, 1, toolsListChanged=True)
        await listen(wire, "1", toolsListChanged=True, resourceSubscriptions=["a://1"])
        server.add_tool(lambda: "", name="u")
        received = [await wire.receive(), await wire.receive()]
        assert {(type(mark(each)), mark(each)) for each in received} == {(int, 1), (str, "1")}
        assert {each["method"] for each in received} == {"notifications/tools/list_changed"}
        server.notify_resource_updated("a://1")
        update = await wire.receive()
        assert (update["method"], update["params"]["uri"]) == ("notifications/resources/updated", "a://1")
        assert mark(update) == "1"
        server.notify_resource_updated("a://2")
        server.add_prompt(lambda: "", name="q")
        server.add_resource("a://3", lambda: "", name="r")
        await wire.quiet()
        server.engine.hub.end_all()


@pytest.mark.rule("SUB-7", "CAN-2", "STDIO-6")
async def test_the_end_of_the_server_is_the_result_and_a_cancelled_listen_is_silent() -> None:
    server = new_server()
    async with Wire(server, MODERN) as wire:
        await listen(wire, 1, toolsListChanged=True, resourceSubscriptions=["a://1"])
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await listen(wire, "l", toolsListChanged=True)
        assert server.engine.hub.uri_subscriptions == 0
        server.add_tool(lambda: "", name="u")
        await server.engine.stop()
        assert mark(await wire.receive()) == "l"  # what was pending is sent
        answer = await wire.receive()
        assert (answer["id"], answer["result"]["resultType"]) == ("l", "complete")
        assert answer["result"]["_meta"][SUBSCRIPTION] == "l"
        server.add_tool(lambda: "", name="v")
        await wire.quiet()


async def test_a_listen_needs_a_filter_and_its_own_era_and_too_many_uris_are_cut() -> None:
    async with Wire(new_server(), MODERN) as wire:
        for params in ({}, {"notifications": None}, {"notifications": {"toolsListChanged": "yes"}}):
            assert (await wire.refusal("subscriptions/listen", params))["code"] == -32602
        honoured = await listen(
            wire, 1, resourceSubscriptions=[f"n://{number}" for number in range(MAX_LISTEN_URIS + 5)]
        )
        assert len(honoured["resourceSubscriptions"]) == MAX_LISTEN_URIS
        wire.server.engine.hub.end_all()
    async with Wire(new_server(), "2025-11-25") as wire:
        assert (await wire.refusal("subscriptions/listen", {"notifications": {}}))["code"] == -32601


# ── resources/subscribe ──


@pytest.mark.rule("RES-4")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25"])
async def test_a_session_is_notified_of_what_it_subscribed_to(version: str) -> None:
    server = new_server()
    async with Wire(server, version) as wire:
        server.notify_resource_updated("a://1")
        await wire.quiet(0.02)
        assert await wire.ask("resources/subscribe", {"uri": "a://1"}) == {}
        assert await wire.ask("resources/subscribe", {"uri": "a://1"}) == {}
        assert await wire.ask("resources/subscribe", {"uri": "n://5"}) == {}
        server.notify_resource_updated("a://2")
        server.notify_resource_updated("a://1")
        server.notify_resource_updated("a://1")  # notified once
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
        full = wire.connection.record.replace(subscriptions=frozenset(f"n://{n}" for n in range(MAX_SUBSCRIPTIONS)))
        await wire.connection.change(lambda _: full)
        assert (await wire.refusal("resources/subscribe", {"uri": "a://1"}))["code"] == -32602


# ── the hub of a process ──

TOOLS, PROMPTS, RESOURCES = Change("tools"), Change("prompts"), Change("resources")
ONE, TWO = Change("updated", "test://one"), Change("updated", "test://two")
CHANGES = st.sampled_from([TOOLS, PROMPTS, RESOURCES, ONE, TWO])
KINDS = st.sets(st.sampled_from(LIST_KINDS))
URIS = st.sets(st.sampled_from([ONE.uri, TWO.uri]))
HUB_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), KINDS, URIS),
        st.tuples(st.just("publish"), CHANGES, st.booleans()),
        st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 3), st.sampled_from([ONE.uri, TWO.uri])),
        st.tuples(st.sampled_from(["read", "end"]), st.integers(0, 3), st.none()),
    ),
    max_size=40,
)


class Listener:
    """A subscription, and what it should have to tell."""

    def __init__(self, subscription: Any, kinds: set[Any], uris: set[str]) -> None:
        self.subscription = subscription
        self.kinds, self.uris = kinds, set(uris)
        self.pending: dict[Change, None] = {}
        self.ended = False

    def wants(self, change: Change) -> bool:
        return not self.ended and (change.uri in self.uris if change.uri else change.kind in self.kinds)


@given(HUB_STEPS)
async def test_each_listener_is_notified_once_and_the_hub_watches_the_subscribed_uris(steps: list[Any]) -> None:
    watched: set[str] = set()

    def on_uri(uri: str, wanted: bool) -> None:
        assert (uri in watched) != wanted
        (watched.add if wanted else watched.remove)(uri)

    hub, listeners = Hub(on_uri), list[Listener]()
    log = hub.subscribe(LIST_KINDS, is_log=True)
    logged: dict[Change, None] = {}
    for name, first, second in steps:
        if name == "subscribe":
            listeners.append(Listener(hub.subscribe(first, second), first, second))
        elif name == "publish":
            hub.publish(first, from_other_worker=second)
            logged.update({} if second else {first: None})
            for each in listeners:
                each.pending.update({first: None} if each.wants(first) else {})
        elif first < len(listeners):
            await step(listeners[first], name, second)
        assert watched == {uri for each in listeners if not each.ended for uri in each.uris}
        assert hub.uri_subscriptions == sum(len(each.uris) for each in listeners if not each.ended)
    hub.end_all()
    for each in listeners:
        assert [change async for change in each.subscription] == list(each.pending)
    assert [change async for change in log] == list(logged)
    assert not watched
    assert [change async for change in hub.subscribe(LIST_KINDS)] == []  # it came too late
    hub.begin()
    again = hub.subscribe(LIST_KINDS)
    hub.publish(TOOLS)
    assert await anext(again) == TOOLS


async def step(listener: Listener, name: str, uri: str) -> None:
    if name == "read":
        if listener.pending:
            assert await anext(listener.subscription) == next(iter(listener.pending))
            del listener.pending[next(iter(listener.pending))]
    elif name == "end":
        listener.ended = True
        listener.subscription.end()
    elif not listener.ended and name == "add":
        listener.uris.add(uri)
        listener.subscription.add_uri(uri)
    elif not listener.ended:
        listener.uris.discard(uri)
        listener.pending.pop(Change("updated", uri), None)
        listener.subscription.remove_uri(uri)


async def test_after_an_outage_everything_that_was_asked_for_is_notified() -> None:
    hub = Hub()
    one, log = hub.subscribe(["resources", "tools"], [TWO.uri, ONE.uri]), hub.subscribe(LIST_KINDS, is_log=True)
    hub.publish_all()
    hub.end_all()
    assert [change async for change in one] == [TOOLS, RESOURCES, ONE, TWO]
    assert [change async for change in log] == []


@pytest.mark.parametrize("thread", [False, True])
def test_a_loop_that_died_is_no_listener(thread: bool) -> None:
    """It was closed without a word, and what it left behind must not break what comes after."""
    hub = Hub()

    async def listen() -> None:
        waiting = asyncio.ensure_future(anext(hub.subscribe(["tools"])))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(listen())
    if thread:
        asyncio.run(asyncio.to_thread(hub.publish, TOOLS))
    else:
        hub.publish(TOOLS)


async def test_the_changes_of_a_call_are_counted_where_it_makes_them() -> None:
    hub, made = Hub(), dict[Any, int]()
    log, _ = hub.subscribe(LIST_KINDS, is_log=True), hub.subscribe(("tools",))

    async def change() -> None:
        changes_made.set(made)
        hub.publish(TOOLS)
        await asyncio.to_thread(hub.publish, PROMPTS)

    hub.publish(RESOURCES)
    await asyncio.create_task(change())
    hub.publish(ONE)
    await asyncio.sleep(0)
    assert made == {log: 3}


# ── the log of all workers ──


def session(*announced: str, uris: tuple[str, ...] = ()) -> Session:
    return Session(
        id="s", version="2025-06-18", client=b"{}", capabilities=b"{}", announced=frozenset(announced),
        subscriptions=frozenset(uris),
    )  # fmt: skip


class Held:
    """A session as a stream holds it; `later` is what it has become when the stream looks again, None if it is gone."""

    def __init__(self, record: Session, *later: Session | None) -> None:
        self.record = record
        self.later = later[0] if later else record

    async def reload(self) -> bool:
        self.record = self.later or self.record
        return self.later is not None

    async def change(self, _change: object) -> None: ...


class LogStage:
    """A log of changes that is being written."""

    def __init__(self, **options: Any) -> None:
        self.engine: Any = SimpleNamespace(hub=Hub(), refresher=None)
        self.state = MemoryState()
        self.log = ChangeLog(self.engine, self.state, WorkerLease(self.state), retry_delay=0, **options)

    async def publish(self, *published: Change) -> None:
        for change in published:
            self.engine.hub.publish(change)
            await settle(5)

    async def changes_for(self, who: Session, after: int = 0) -> list[tuple[Change, int | None]]:
        return (await self.log.changes_for(Held(who), after, 0)).changes


@pytest.fixture
async def stage() -> AsyncIterator[LogStage]:
    stage = LogStage()
    stage.log.start()
    yield stage
    await stage.log.stop()


ALL = session("tools", "prompts", "resources", uris=(ONE.uri, TWO.uri))


@given(st.lists(CHANGES, max_size=12), KINDS, URIS, st.integers(0, 14), st.integers(1, 12))
async def test_a_session_receives_the_latest_of_what_it_wants_or_everything_after_a_gap(
    published: list[Change], kinds: set[Any], uris: set[str], after: int, keep: int
) -> None:
    stage = LogStage(keep=keep)
    stage.log.start()
    await stage.publish(*published)
    who, last = Listener(stage.engine.hub.subscribe((), ()), kinds, uris), len(published)
    if after > last or after < last - keep:
        everything = [each for each in (TOOLS, PROMPTS, RESOURCES, ONE, TWO) if who.wants(each)]
        notified: list[tuple[Change, int | None]] = [(each, None) for each in everything]
    else:
        numbers = {each: n for n, each in enumerate(published, 1) if n > after and who.wants(each)}
        notified = sorted(numbers.items(), key=lambda each: each[1])
    received = await stage.log.changes_for(Held(session(*kinds, uris=tuple(uris))), after, 0)
    assert received == SessionChanges(notified, last, 0)
    assert await stage.log.position() == last
    await stage.log.stop()


async def test_more_than_a_page_is_read_page_by_page(stage: LogStage) -> None:
    wanted = [Change("updated", f"test://{number}") for number in range(250)]
    for change in wanted:
        stage.engine.hub.publish(change)
    await settle(600)
    everything = session(uris=tuple(change.uri for change in wanted))
    position, notified, more = 0, [], True
    while more:
        received = await stage.log.changes_for(Held(everything), position, 0)
        notified += received.changes
        position, more = received.position, received.more
    assert notified == [(change, number) for number, change in enumerate(wanted, 1)]


async def test_changes_are_notified_that_were_asked_for_before(stage: LogStage) -> None:
    """Even if the stream has not seen yet that it was asked for; a session that is gone receives nothing."""
    await stage.publish(ONE)
    assert await stage.log.changes_for(Held(session(), session(uris=(ONE.uri,))), 0, 0) == SessionChanges(
        [(ONE, 1)], 1, 0
    )
    assert await stage.log.changes_for(Held(ALL, None), 0, 0) == SessionChanges([], 0, 0)


async def test_what_can_not_be_read_is_left_out(stage: LogStage, caplog: pytest.LogCaptureFixture) -> None:
    await stage.publish(TOOLS)
    good = (await stage.state.read("changes", 0)).records[0].data
    for record in (b"", b"hello", b"\x01\x93", b"\x02" + good[1:]):
        await stage.state.append("changes", record, keep=999, ttl=9)
    await stage.publish(PROMPTS)
    assert await stage.changes_for(ALL) == [(TOOLS, 1), (PROMPTS, 6)]
    assert "can't read" in caplog.text


async def test_what_was_said_before_the_stop_is_written_and_the_log_watches_no_uri(stage: LogStage) -> None:
    stage.engine.hub.publish(TOOLS)
    stage.engine.hub.publish(ONE)
    assert stage.engine.hub.uri_subscriptions == 0
    await stage.log.stop()
    assert await stage.changes_for(ALL) == [(TOOLS, 1), (ONE, 2)]
    await stage.publish(PROMPTS)
    assert await stage.log.position() == 2
    await LogStage().log.stop()  # which never started


@pytest.mark.parametrize("failures", [2, 10**9])
async def test_a_backend_that_fails_is_tried_again_and_does_not_hold_up_the_stop(
    stage: LogStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    append, left = stage.state.append, iter(range(failures))

    async def failing(*arguments: Any, **options: Any) -> int:
        if next(left, None) is not None:
            raise OSError("away")
        return await append(*arguments, **options)

    monkeypatch.setattr(stage.state, "append", failing)
    await stage.publish(TOOLS, PROMPTS)
    await settle()
    await asyncio.wait_for(stage.log.stop(), 5)
    assert {change for change, _ in await stage.changes_for(ALL)} == ({TOOLS, PROMPTS} if failures == 2 else set())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_after_an_outage_all_may_have_changed_once(stage: LogStage) -> None:
    await stage.publish(TOOLS, ONE)
    received = await stage.log.changes_for(Held(session("tools")), 0, stage.log.outages - 1)
    assert received == SessionChanges([(TOOLS, None)], 2, stage.log.outages)
    assert await stage.log.changes_for(Held(session("tools")), received.position, received.outages) == SessionChanges(
        [], 2, 0
    )


# ── refreshes ──


async def test_what_a_refresh_changes_is_announced_once() -> None:
    server = Server("notes", version="1.0.0")

    @server.on_refresh
    async def load() -> None:
        for n in range(20):
            server.add_tool(lambda: "x", name=f"tool{n}")
            await asyncio.sleep(0)

    notified: list[Change] = []
    server.engine.publish = notified.append  # type: ignore[method-assign]
    await server.refresh()
    assert notified == [TOOLS]


class RefreshingWorker:
    """As much of an engine as a refresh needs; its function changes the list of tools."""

    def __init__(self, state: MemoryState, *, fails: bool = False) -> None:
        self.state = state
        self.threads = ThreadPool()
        self.notified: list[Change] = []
        self.runs = 0
        self.fails = fails
        self.refresher = Refresher(self)  # type: ignore[arg-type]
        self.refresher.add(self.change)

    def mounted_engines(self) -> list[Any]:
        return []

    def publish(self, change: Change) -> None:
        self.notified.append(change)

    def change(self) -> None:
        self.runs += 1
        self.refresher.changed |= {"tools"}
        if self.fails:
            raise ValueError("no database")


async def test_a_refresh_runs_at_every_worker_and_each_announces_it() -> None:
    state = RemoteState()
    workers = [RefreshingWorker(state) for _ in range(3)]
    listeners = [state.listen(["refresh"]) for _ in workers]
    pairs = zip(workers[:2], listeners, strict=False)
    following = [asyncio.create_task(worker.refresher.follow(state, listener)) for worker, listener in pairs]
    assert workers[0].refresher.changed is None
    for number in range(1, 4):
        await workers[number % 2].refresher.refresh()
        await until(lambda number=number: [worker.runs for worker in workers] == [number, number, 0])
        await until(lambda number=number: [len(worker.notified) for worker in workers] == [number, number, 0])
        if number == 2:
            await state.delete("refresh")  # the store loses the count, and the next refresh reaches all nevertheless
    await workers[2].refresher.catch_up(state)  # it starts late
    await workers[2].refresher.catch_up(state)
    assert (workers[2].runs, workers[2].notified) == (1, [TOOLS])
    for listener in listeners:
        listener.close()
    await asyncio.gather(*following)


@pytest.mark.parametrize("shared", [False, True])
async def test_a_function_that_fails_is_raised_here_and_what_it_changed_is_announced(
    shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    state = RemoteState() if shared else MemoryState()
    worker, other = RefreshingWorker(state, fails=True), RefreshingWorker(state, fails=True)
    for number in (1, 2):
        with pytest.raises(ValueError, match="no database"):
            await worker.refresher.refresh()
        assert (worker.refresher.count, worker.notified) == (number, [TOOLS] * number)
    if shared:
        state.break_down()  # type: ignore[attr-defined]
        with pytest.raises(StoreUnavailable):
            await other.refresher.catch_up(state)
        state.error = None  # type: ignore[attr-defined]
        await other.refresher.catch_up(state)
        assert (other.runs, "no database" in caplog.text) == (1, True)
