"""The drain of a server: what is refused, what may finish, and what is stopped; and its start."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from http_clients import LISTEN, OldClient, leave

from dovetail import Context, Server
from http_serving import PausingState, Serve, Stage, serving, settle
from http_wire import MODERN, REVISIONS, HttpWire, open_wire, text_of


async def status(app: Any, path: str) -> int:
    return (await HttpWire(app).raw("GET", path=path).done()).status


async def in_time(app: Any, timeout: float | None = None) -> None:
    """Drain, long before anything would end by itself."""
    await asyncio.wait_for(app.drain(timeout), 5)


class Alive(Stage):
    """Notes what happens to its lifespan."""

    def __init__(self, *, starts: bool = True) -> None:
        super().__init__(lifespan=self._lifespan)
        self.notes: list[str] = []
        self.starts = starts
        self.server.add_tool(self.spirit)

    @asynccontextmanager
    async def _lifespan(self, _server: Server) -> AsyncIterator[str]:
        if not self.starts:
            raise RuntimeError("no database")
        self.notes.append("entered")
        yield "alive"
        self.notes.append("left")

    async def spirit(self, ctx: Context) -> str:
        return str(ctx.lifespan)


@pytest.fixture
async def stage() -> Alive:
    return Alive()


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_it_is_alive_but_not_ready_and_new_requests_are_refused_in_json(app: Any, version: str) -> None:
    live, ready = ("/health", "/health/live"), ("/ready", "/health/ready")
    wire = await open_wire(app, version)
    assert [await status(app, path) for path in (*live, *ready)] == [200] * 4
    app.begin_drain()
    assert [await status(app, path) for path in (*live, *ready)] == [200, 200, 503, 503]
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200  # as before
    await in_time(app)
    assert [await status(app, path) for path in (*live, *ready)] == [200, 200, 503, 503]
    refused = await wire.call("add", {"a": 1, "b": 2})
    assert refused.status == 503
    assert refused.headers["retry-after"]
    assert refused.json["error"] == {"code": -32603, "message": "The server is shutting down"}
    if version != MODERN:
        others = (await wire.get().done(), await wire.delete(), await wire.notify("notifications/initialized"))
        assert [each.status for each in others] == [503] * 3


@pytest.mark.parametrize("reads", ["all", "nothing", "nothing, but is notified"])
async def test_open_streams_end_at_once_and_properly(stage: Alive, app: Any, reads: str) -> None:
    """Also those of clients that read nothing."""
    old = [await OldClient(app).open() for _ in range(2)]
    await old[1].shake_hands()
    get_stream = await (await HttpWire.session(app)).get().started()
    listen = HttpWire(app).start("subscriptions/listen", LISTEN, id=7)
    await listen.message()
    await settle()
    streams = [get_stream, listen, *(client.stream for client in old)]
    if reads != "all":
        for stream in streams:
            stream.stall()
    if reads == "nothing, but is notified":
        stage.change_tools()
        await settle()
    await asyncio.wait_for(app.drain(30), 5)
    for stream in streams:
        await stream.done(1)
    if reads == "all":
        assert [stream.sent[-1]["more_body"] for stream in streams] == [False] * 4
        assert get_stream.messages == []
        assert (listen.answer["id"], listen.answer["result"]["resultType"]) == (7, "complete")


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("version", REVISIONS)
async def test_calls_finish_before_the_lifespan_is_left_or_are_stopped_with_an_error(
    stage: Alive, app: Any, version: str, is_late: bool
) -> None:
    call = (await open_wire(app, version)).start_call("work", id=4)
    await stage.entered.wait()
    drains = [asyncio.create_task(in_time(app, 0.02 if is_late else None)) for _ in range(2)]
    if not is_late:
        await settle(50)
        assert not any(drain.done() for drain in drains)
        assert stage.notes == ["entered"]
        stage.go.set()
    await asyncio.gather(*drains)
    await call.done()
    assert (stage.cancelled.is_set(), call.answer["id"]) == (is_late, 4)
    assert call.status == (503 if is_late and version == MODERN else 200)
    if is_late:
        assert "shutting down and has stopped this call" in call.answer["error"]["message"]
    else:
        assert text_of(call.answer) == "done"
    assert stage.notes == ["entered", "left"]


async def test_every_moment_of_a_request_is_good_for_a_drain() -> None:
    """Served or refused, it gets an answer, and no call runs in a server that is over."""
    for state in (None, PausingState):
        for turns in range(20):
            stage = Alive()
            async with serving(stage.server, state=state and state()) as app:
                wire = await HttpWire.session(app)
                call = wire.start_call("spirit")
                await settle(turns)
                await in_time(app)
                await call.done()
                assert call.status in (200, 503), turns
                assert call.status == 503 or text_of(call.answer) == "alive", turns


async def test_a_tool_that_will_not_stop_does_not_hang_it(
    stage: Alive, serve: Serve, pass_time: Callable[[float], None]
) -> None:
    @stage.server.tool
    async def stubborn() -> str:
        stage.entered.set()
        while not stage.go.is_set():
            try:
                await stage.go.wait()
            except asyncio.CancelledError:
                stage.cancelled.set()
        return "stubborn"

    app = await serve()
    call = HttpWire(app).start_call("stubborn")
    await stage.entered.wait()
    draining = asyncio.create_task(app.drain(0))
    await stage.cancelled.wait()
    pass_time(2)
    await asyncio.wait_for(draining, 5)
    assert stage.notes == ["entered", "left"]
    stage.go.set()
    await call.done()


async def test_a_client_that_does_not_take_its_answer_does_not_hang_it(app: Any) -> None:
    call = HttpWire(app).start_call("add", {"a": 1, "b": 2})
    call.stall()
    await call.started()
    await in_time(app, 0.02)
    await leave(call)


async def test_it_may_start_again(stage: Alive, app: Any) -> None:
    wire = await HttpWire.session(app)
    await wire.ask("resources/subscribe", {"uri": "test://one"})
    for _ in range(2):
        await in_time(app)
        assert await status(app, "/ready") == 503
        await app.start()
        assert await status(app, "/ready") == 200
        assert text_of((await wire.call("spirit")).answer) == "alive"  # its session is still there
    assert stage.notes == ["entered", "left"] * 2 + ["entered"]
    stream = await wire.get().started()
    stage.server.notify_resource_updated("test://one")
    assert (await stream.message())["params"]["uri"] == "test://one"


async def test_two_apps_of_one_server_end_one_after_the_other() -> None:
    stage = Alive()
    async with serving(stage.server) as first, serving(stage.server) as second:
        assert text_of((await HttpWire(first).call("spirit")).answer) == "alive"
        await in_time(first)
        assert stage.notes == ["entered"]
        assert text_of((await HttpWire(second).call("spirit")).answer) == "alive"
        await in_time(second)
        assert stage.notes == ["entered", "left"]


class Host:
    """An ASGI server's side of the lifespan protocol."""

    def __init__(self, app: Any) -> None:
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self.task = asyncio.create_task(app(scope, self.inbox.get, self.outbox.put))

    async def say(self, what: str) -> dict[str, Any]:
        self.inbox.put_nowait({"type": f"lifespan.{what}"})
        return await asyncio.wait_for(self.outbox.get(), 2)


async def test_a_host_may_begin_and_end_it_and_gets_the_error_of_a_start_that_fails(stage: Alive) -> None:
    app = stage.server.asgi()
    host = Host(app)
    assert await host.say("startup") == {"type": "lifespan.startup.complete"}
    assert stage.notes == ["entered"]
    stream = HttpWire(app).start("subscriptions/listen", LISTEN)
    await stream.message()
    assert await host.say("shutdown") == {"type": "lifespan.shutdown.complete"}
    assert stage.notes == ["entered", "left"]
    assert (await stream.done()).answer["result"]
    await host.task
    host = Host(Alive(starts=False).server.asgi())
    failed = await host.say("startup")
    assert (failed["type"], "no database" in failed["message"]) == ("lifespan.startup.failed", True)
    await host.task
