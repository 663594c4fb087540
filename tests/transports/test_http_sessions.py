"""Sessions over HTTP: how they begin, what they remember, and how they end."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from session_opening import HELLO, identify, initialize, records

from dovetail import ProtocolError
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


# ── the cap ──


async def test_when_it_is_full_of_fresh_sessions_a_new_one_is_refused() -> None:
    clock = Clock()
    async with serving(Stage().server, clock=clock, max_sessions=2) as app:
        first, _ = [await HttpWire.session(app) for _ in range(2)]
        clock.sleep(59)
        refused = await initialize(app)
        assert refused.status == 503
        assert refused.headers["retry-after"]
        assert refused.json["id"] == 0
        assert "2 sessions" in refused.json["error"]["message"]
        assert (await first.call("add", {"a": 1, "b": 1})).status == 200


async def test_the_longest_silent_one_gives_way_and_its_stream_ends() -> None:
    clock = Clock()
    async with serving(Stage().server, clock=clock, max_sessions=2) as app:
        silent, used = [await HttpWire.session(app) for _ in range(2)]
        stream = await silent.get().started()
        clock.sleep(61)
        assert (await used.call("add", {"a": 1, "b": 1})).status == 200
        new = await HttpWire.session(app)
        await stream.done()
        assert (await silent.call("add", {"a": 1, "b": 1})).status == 404
        for wire in (used, new):
            assert (await wire.call("add", {"a": 1, "b": 1})).status == 200


async def test_a_session_with_an_open_stream_is_in_use() -> None:
    clock = Clock()
    async with serving(Stage().server, clock=clock, max_sessions=1, session_timeout=100, keep_alive=0.01) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        for _ in range(3):
            clock.sleep(90)
            beats = stream.raw.count(b": keep-alive")
            await until(lambda beats=beats: stream.raw.count(b": keep-alive") > beats)
        assert (await initialize(app)).status == 503
        assert (await wire.call("add", {"a": 1, "b": 1})).status == 200
        stream.leave()
        await stream.done()


# ── each caller's share ──


def by(user: str | None = None, address: str | None = None) -> dict[str, str | None]:
    return {"x-user": user} if address is None else {"x-forwarded-for": address}


@pytest.mark.parametrize(
    ("options", "greedy", "other"),
    [
        ({"identify": identify}, by("bob"), by("ann")),
        ({"trusted_proxies": ["127.0.0.1"]}, by(address="192.0.2.1"), by(address="192.0.2.2")),
        ({"trusted_proxies": ["127.0.0.1"]}, by(address="2001:db8::1"), by(address="2001:db8:0:100::1")),
    ],
    ids=["principal", "address", "network"],
)
async def test_one_user_keeps_nobody_from_opening_sessions_nor_ends_theirs(
    options: dict[str, Any], greedy: dict[str, str | None], other: dict[str, str | None]
) -> None:
    clock = Clock()
    async with serving(Stage().server, clock=clock, max_sessions=4, max_per_caller=4, **options) as app:
        idle = await HttpWire.session(app, headers=other)
        clock.sleep(61)
        for _ in range(3):
            await HttpWire.session(app, headers=greedy)
        assert (await initialize(app, **greedy)).status == 503
        assert (await idle.call("add", {"a": 1, "b": 1})).status == 200
        second = await HttpWire.session(app, headers=other)  # in the place of one of theirs
        assert (await second.call("add", {"a": 1, "b": 1})).status == 200


async def test_a_caller_has_only_so_many_sessions() -> None:
    async with serving(Stage().server, max_per_caller=2, identify=identify) as app:
        for _ in range(2):
            await HttpWire.session(app, headers=by("bob"))
        refused = await initialize(app, **by("bob"))
        assert (refused.status, refused.headers["retry-after"]) == (429, "60")
        assert "max_per_caller" in refused.json["error"]["message"]
        assert (await initialize(app, **by("ann"))).status == 200


# ── whose it is ──


async def test_nobody_else_can_use_a_session() -> None:
    stage = Stage()
    async with serving(stage.server, identify=identify) as app:
        answer = await initialize(app, **{"x-user": "ann"})
        wire = HttpWire(app, "2025-06-18")
        wire.session_id = answer.headers["mcp-session-id"]
        mine: dict[str, str | None] = {"x-user": "ann"}
        stage.go.set()
        call = await wire.start_call("tell", headers=mine).done()
        event = call.events[0].id
        for other in ({"x-user": "bob"}, {}):
            for stolen in [
                await wire.start_call("add", {"a": 1, "b": 1}, headers=other).done(),
                await wire.get(headers=other).done(),
                await wire.get(event, headers=other).done(),
                await wire.raw("DELETE", headers=other).done(),
                await wire.raw("POST", b'{"jsonrpc":"2.0","method":"notifications/initialized"}', other).done(),
            ]:
                assert stolen.status == 404
        assert (await wire.start_call("add", {"a": 1, "b": 1}, headers=mine).done()).status == 200
        assert (await wire.get(event, headers=mine).done()).status == 200
