"""Sessions over HTTP: how they begin, what they remember, and how they end."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from session_opening import HELLO, initialize, records

from dovetail import Context, ProtocolError
from http_serving import Clock, PausingState, serving, sessions_of, settle, until
from http_stage import HANDSHAKE, Stage, text_of
from http_wire import CLIENT, HttpWire

# ── the beginning ──


@pytest.mark.parametrize("version", ["2024-11-05", *HANDSHAKE])
@pytest.mark.rule("SH-25")
async def test_the_answer_to_initialize_names_the_session(version: str) -> None:
    async with serving(Stage().server) as app:
        wire = await HttpWire.session(app, version)
        assert wire.session_id
        assert wire.welcome["protocolVersion"] == version
        (record,) = await records(app)
        assert record["id"] == wire.session_id
        assert record["version"] == version
        assert msgspec.json.decode(record["client"]) == CLIENT
        assert record["initialized"] is True


@pytest.mark.rule("SH-26", "SH-27")
async def test_ids_can_be_sent_in_a_header_and_not_be_guessed() -> None:
    async with serving(Stage().server) as app:
        ids = [(await initialize(app)).headers["mcp-session-id"] for _ in range(50)]
        assert len(set(ids)) == 50
        assert all(len(id) >= 32 and all(0x21 <= ord(character) <= 0x7E for character in id) for id in ids)


async def test_no_other_answer_names_it() -> None:
    async with serving(Stage().server) as app:
        wire = await HttpWire.session(app)
        for answer in [
            await wire.call("add", {"a": 1, "b": 1}),
            await wire.notify("notifications/cancelled", {"requestId": 9}),
            await HttpWire(app).call("add", {"a": 1, "b": 1}),
        ]:
            assert "mcp-session-id" not in answer.headers


async def test_a_session_begins_anew_even_if_one_is_named() -> None:
    async with serving(Stage().server) as app:
        first = await initialize(app)
        second = await initialize(app, **{"mcp-session-id": first.headers["mcp-session-id"]})
        assert second.headers["mcp-session-id"] != first.headers["mcp-session-id"]
        assert len(await records(app)) == 2


async def test_a_refused_initialize_opens_no_session() -> None:
    stage = Stage()

    @stage.server.middleware
    async def refuse(request: Any, call_next: Any) -> Any:
        if request.method == "initialize":
            raise ProtocolError("not today", code=-32600)
        return await call_next(request)

    async with serving(stage.server) as app:
        answer = await initialize(app)
        assert answer.json["error"]["message"] == "not today"
        assert "mcp-session-id" not in answer.headers
        assert await records(app) == []
        assert sessions_of(app)._known == {}


@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "application/json", "text/event-stream"])
async def test_a_slow_initialize_still_names_its_session(accept: str) -> None:
    stage = Stage()

    @stage.server.middleware
    async def dawdle(request: Any, call_next: Any) -> Any:
        await asyncio.sleep(0.1 if request.method == "initialize" and "event" in accept and "json" in accept else 0)
        return await call_next(request)

    async with serving(stage.server, keep_alive=0.02) as app:
        wire = await HttpWire.session(app, accept=accept)
        assert wire.session_id


@pytest.mark.rule("CAN-6")
async def test_initialize_is_not_cancelled() -> None:
    stage = Stage()
    waiting = asyncio.Event()

    @stage.server.middleware
    async def dawdle(request: Any, call_next: Any) -> Any:
        if request.method == "initialize":
            waiting.set()
            await stage.go.wait()
        return await call_next(request)

    async with serving(stage.server) as app:
        hello = HttpWire(app).raw("POST", json.dumps(HELLO).encode())
        await waiting.wait()
        (record,) = await records(app)
        wire = HttpWire(app, "2025-06-18")
        wire.session_id = record["id"]
        assert (await wire.notify("notifications/cancelled", {"requestId": 0})).status == 202
        stage.go.set()
        assert "result" in (await hello.done()).answer


# ── what a session remembers ──


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_tools_know_the_client_and_the_session(version: str) -> None:
    stage = Stage()

    @stage.server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.client.name} {ctx.session_id} {ctx.protocol_version} {sorted(ctx.client.capabilities)}"

    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version, capabilities={"sampling": {}})
        assert text_of((await wire.call("who")).answer) == f"wire {wire.session_id} {version} ['sampling']"


@pytest.mark.rule("SH-31")
async def test_the_negotiated_version_counts_whatever_a_header_says() -> None:
    stage = Stage()

    @stage.server.tool
    async def version(ctx: Context) -> str:
        return ctx.protocol_version

    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, "2025-06-18")
        for header in (None, "2025-03-26", "2025-11-25"):
            answer = await wire.call("version", headers={"mcp-protocol-version": header})
            assert text_of(answer.answer) == "2025-06-18"


async def test_each_session_has_its_own_log_level() -> None:
    stage = Stage()

    @stage.server.tool
    async def chat(ctx: Context) -> str:
        for level in ("debug", "info", "warning", "error"):
            await ctx.log(level, level)
        return "chatted"

    async with serving(stage.server) as app:
        loud, quiet, plain = [await HttpWire.session(app) for _ in range(3)]
        await loud.ask("logging/setLevel", {"level": "debug"})
        await quiet.ask("logging/setLevel", {"level": "error"})
        heard = [len((await wire.call("chat")).messages) - 1 for wire in (loud, quiet)]
        assert heard == [4, 1]
        await loud.ask("logging/setLevel", {"level": "emergency"})
        assert (await loud.call("chat")).json["result"]
        level = stage.server.engine.options.log_level
        expected = ["debug", "info", "warning", "error"]
        assert len((await plain.call("chat")).messages) - 1 == len(expected[expected.index(level or "debug") :])


async def test_subscriptions_that_are_made_at_once_are_all_kept() -> None:
    stage = Stage()
    names = [f"n{number}" for number in range(20)]
    for name in names:
        stage.server.add_resource(f"test://{name}", lambda: "x", name=name)
    async with serving(stage.server, state=PausingState()) as app:
        wire = await HttpWire.session(app)
        await asyncio.gather(*(wire.ask("resources/subscribe", {"uri": f"test://{name}"}) for name in names))
        (record,) = await records(app)
        assert set(record["subscriptions"]) == {f"test://{name}" for name in names}
        await asyncio.gather(*(wire.ask("resources/unsubscribe", {"uri": f"test://{name}"}) for name in names[1:]))
        (record,) = await records(app)
        assert record["subscriptions"] == ["test://n0"]
        assert set(stage.server.engine.hub._wanted) == {"test://n0"}


# ── the end ──


@pytest.mark.rule("SH-29")
async def test_a_silent_session_ends() -> None:
    stage, clock = Stage(), Clock()
    async with serving(stage.server, clock=clock, session_timeout=100) as app:
        wire = await HttpWire.session(app)
        for _ in range(5):
            clock.sleep(90)
            assert (await wire.call("add", {"a": 1, "b": 1})).status == 200
        clock.sleep(101)
        gone = await wire.call("add", {"a": 1, "b": 1})
        assert gone.status == 404
        assert gone.json["error"]["message"] == "There is no such session; it may have ended"


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-29", "SH-30")
async def test_delete_ends_it_for_everything(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version)
        await wire.ask("resources/subscribe", {"uri": "test://one"})
        ended = await wire.delete()
        assert ended.status == 204
        assert ended.raw == b""
        for answer in [
            await wire.call("add", {"a": 1, "b": 1}),
            await wire.notify("notifications/initialized"),
            await wire.get().done(),
            await wire.get("changes.0").done(),
            await wire.delete(),
        ]:
            assert answer.status == 404
            assert answer.json["error"]["code"] == -32600
        assert await records(app) == []
        assert not stage.server.engine.hub._wanted


async def test_delete_ends_the_streams_and_calls_of_that_session_only() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        ended, other = await HttpWire.session(app), await HttpWire.session(app)
        streams = [await wire.get().started() for wire in (ended, other)]
        calls = [wire.start_call("work", id=1) for wire in (ended, other)]
        await until(lambda: len(stage.ran) == 2)
        assert (await ended.delete()).status == 204
        await streams[0].done()
        await calls[0].done()
        assert streams[0].messages == []
        assert calls[0].messages == []
        await settle()
        assert not streams[1].ended
        assert not calls[1].ended
        stage.go.set()
        assert text_of((await calls[1].done()).answer) == "done"
        streams[1].leave()
        await streams[1].done()


async def test_delete_is_heard_by_a_call_in_a_thread() -> None:
    stage = Stage()
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()

    @stage.server.tool
    def block(ctx: Context) -> str:
        loop.call_soon_threadsafe(stage.entered.set)
        if ctx.cancelled.wait(5):
            loop.call_soon_threadsafe(heard.set)
        return "never"

    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("block")
        await stage.entered.wait()
        await wire.delete()
        await call.done()
        await asyncio.wait_for(heard.wait(), 5)


async def test_delete_at_the_moment_of_a_call() -> None:
    """Whichever comes first, nothing hangs and nothing is left."""
    for turns in range(12):
        stage = Stage()
        async with serving(stage.server, state=PausingState()) as app:
            wire = await HttpWire.session(app)
            call = wire.start_call("add", {"a": 1, "b": 1})
            await settle(turns)
            ended = await wire.delete()
            await call.done()
            assert ended.status == 204
            assert call.status in (200, 404)
            assert sessions_of(app)._known == {}, turns
