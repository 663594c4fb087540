"""The end of a server and its lifespan: what is left, in which order, and the way back to life."""

import asyncio
from typing import Any

import pytest
from drain_stage import LISTEN, Alive, in_time, status

from http_serving import serving, settle
from http_stage import text_of
from http_wire import HttpWire


async def test_the_lifespan_is_left_once() -> None:
    stage = Alive()
    async with serving(stage.server) as app:
        await asyncio.gather(app.drain(), app.drain(), app.drain())
        await app.drain()
        assert stage.notes == ["entered", "left"]


async def test_it_is_left_after_the_last_call() -> None:
    stage = Alive()
    async with serving(stage.server) as app:
        call = HttpWire(app).start_call("work")
        await stage.entered.wait()
        drains = [asyncio.create_task(app.drain()) for _ in range(2)]
        await settle()
        assert stage.notes == ["entered"]
        stage.go.set()
        await asyncio.gather(*drains)
        await call.done()
        assert stage.notes == ["entered", "left"]


async def test_it_may_start_again() -> None:
    stage = Alive()
    async with serving(stage.server) as app:
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


async def test_it_may_start_again_before_the_end_is_over() -> None:
    stage = Alive()
    async with serving(stage.server) as app:
        call = HttpWire(app).start_call("work")
        await stage.entered.wait()
        drain = asyncio.create_task(app.drain())
        await settle()
        await app.start()
        assert text_of((await HttpWire(app).call("spirit")).answer) == "alive"
        stage.go.set()
        await drain
        await call.done()
        assert text_of((await HttpWire(app).call("spirit")).answer) == "alive"


async def test_two_apps_of_one_server_end_one_after_the_other() -> None:
    stage = Alive()
    async with serving(stage.server) as first, serving(stage.server) as second:
        assert text_of((await HttpWire(first).call("spirit")).answer) == "alive"
        await in_time(first)
        assert stage.notes == ["entered"]
        assert text_of((await HttpWire(second).call("spirit")).answer) == "alive"
        await in_time(second)
        assert stage.notes == ["entered", "left"]


async def test_a_lifespan_that_fails_at_its_end_is_told() -> None:
    stage = Alive(trouble="end")
    app = stage.server.asgi()
    await app.start()
    with pytest.raises(RuntimeError, match="no farewell"):
        await app.drain()
    assert (await HttpWire(app).call("spirit")).status == 503


async def test_a_start_that_fails_is_tried_again_by_the_next_request(caplog: pytest.LogCaptureFixture) -> None:
    stage = Alive(trouble="start")
    app = stage.server.asgi()
    failed = await HttpWire(app).call("spirit")
    assert failed.status in (500, 503)
    assert failed.json["error"]["code"] == -32603
    assert b"no database" not in failed.raw
    assert "no database" in caplog.text
    stage.trouble = ""
    assert text_of((await HttpWire(app).call("spirit")).answer) == "alive"
    await app.drain()


async def test_a_request_at_the_moment_of_a_failing_start_is_not_served() -> None:
    for turns in range(12):
        stage = Alive(trouble="start")
        app = stage.server.asgi()
        first = HttpWire(app).start_call("spirit")
        await settle(turns)
        second = HttpWire(app).start_call("spirit")
        await first.done()
        await second.done()
        assert [first.status, second.status] == [500, 500], turns


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


async def test_a_host_may_begin_and_end_it() -> None:
    stage = Alive()
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


async def test_a_host_is_told_of_a_start_that_fails() -> None:
    host = Host(Alive(trouble="start").server.asgi())
    told = await host.say("startup")
    assert told["type"] == "lifespan.startup.failed"
    assert "no database" in told["message"]
    await host.task


async def test_a_host_is_told_of_an_end_that_fails() -> None:
    host = Host(Alive(trouble="end").server.asgi())
    await host.say("startup")
    told = await host.say("shutdown")
    assert told["type"] == "lifespan.shutdown.failed"
    assert "no farewell" in told["message"]
    await host.task
