"""Sessions over HTTP: how they begin, who owns them, what they remember, and how they end."""

from typing import Any

import pytest
from http_clients import INVALID_REQUEST, check_refusal, identify, leave

from dovetail import ProtocolError
from http_serving import Clock, PausingState, Serve, Stage, settle, until
from http_wire import HttpWire, initialize, text_of


async def used(wire: HttpWire) -> int:
    """The status of a call."""
    return (await wire.call("add", {"a": 1, "b": 1})).status


async def test_a_refused_initialize_opens_no_session(stage: Stage, serve: Serve) -> None:
    @stage.server.middleware
    async def refuse(request: Any, call_next: Any) -> Any:
        raise ProtocolError("not today", code=-32600)

    app = await serve(max_sessions=1)
    for _ in range(2):
        answer = await initialize(app)
        assert answer.json["error"]["message"] == "not today"
        assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.rule("SH-29")
async def test_a_silent_session_ends_and_so_do_its_streams(
    stage: Stage, clock: Clock, serve: Serve, resumed: bool
) -> None:
    wire = await HttpWire.session(await serve(clock=clock, session_timeout=100, keep_alive=0.01))
    for _ in range(3):
        clock.sleep(90)
        assert await used(wire) == 200
    last = None
    if resumed:
        call = wire.start_call("warn")
        last = (await call.event()).id
        call.leave()
    stream = await wire.get(last).started()
    await settle()
    assert not stream.ended
    clock.sleep(101)
    await stream.done(2)
    assert await used(wire) == 404
    stage.go.set()


@pytest.mark.rule("SH-1", "SH-16", "SH-29", "SH-30")
@pytest.mark.parametrize("header", [None, "2025-06-18"])
async def test_delete_ends_a_session_with_its_streams_and_calls_and_no_other(
    stage: Stage, app: Any, header: str | None
) -> None:
    ended, other = await HttpWire.session(app), await HttpWire.session(app)
    streams = [await wire.get().started() for wire in (ended, other)]
    calls = [wire.start_call("work", id=1) for wire in (ended, other)]
    await until(lambda: len(stage.ran) == 2)
    answer = await ended.raw("DELETE", b"", {"mcp-protocol-version": header}).done()
    assert (answer.status, answer.raw) == (204, b"")
    assert [(await each.done()).messages for each in (streams[0], calls[0])] == [[], []]
    check_refusal(await ended.post("ping", id="q"), 404, INVALID_REQUEST, "q")
    check_refusal(await ended.notify("notifications/initialized"), 404, INVALID_REQUEST)
    for gone in (ended.get(), ended.get("changes.0"), ended.raw("DELETE")):
        check_refusal(await gone.done(), 404, INVALID_REQUEST)
    assert not streams[1].ended
    assert not calls[1].ended
    stage.go.set()
    assert text_of((await calls[1].done()).answer) == "done"
    await leave(streams[1])


@pytest.mark.parametrize(
    ("first", "second"), [("GET", "DELETE"), ("DELETE", "GET"), ("DELETE", "add"), ("add", "DELETE")]
)
async def test_nothing_goes_on_in_a_session_that_ends_at_the_same_moment(serve: Serve, first: str, second: str) -> None:
    app = await serve(state=PausingState())
    for turns in range(12):
        wire = await HttpWire.session(app)
        exchanges = []
        for verb in (first, second):
            exchanges.append(wire.start_call("add", {"a": 1, "b": 1}) if verb == "add" else wire.raw(verb))
            await settle(turns)
        for each in exchanges:
            await each.done(2)
            assert each.status in (200, 204, 404)


async def test_the_longest_silent_one_gives_way_and_its_stream_ends(clock: Clock, serve: Serve) -> None:
    app = await serve(clock=clock, max_sessions=2)
    silent, busy = [await HttpWire.session(app) for _ in range(2)]
    stream = await silent.get().started()
    clock.sleep(59)
    refused = await initialize(app)
    assert "2 sessions" in check_refusal(refused, 503, -32603, "q")
    assert refused.headers["retry-after"]
    clock.sleep(2)
    assert await used(busy) == 200
    new = await HttpWire.session(app)
    await stream.done()
    assert [await used(wire) for wire in (silent, busy, new)] == [404, 200, 200]


async def test_a_session_with_an_open_stream_is_in_use(clock: Clock, serve: Serve) -> None:
    app = await serve(clock=clock, max_sessions=1, session_timeout=100, keep_alive=0.01)
    wire = await HttpWire.session(app)
    stream = await wire.get().started()
    for _ in range(3):
        clock.sleep(90)
        beats = stream.raw.count(b": keep-alive")
        await until(lambda beats=beats: stream.raw.count(b": keep-alive") > beats)
    assert (await initialize(app)).status == 503
    assert await used(wire) == 200
    await leave(stream)


@pytest.mark.parametrize(
    ("options", "greedy", "other"),
    [
        ({"identify": identify}, {"x-user": "bob"}, {"x-user": "ann"}),
        ({"trusted_proxies": ["127.0.0.1"]}, {"x-forwarded-for": "192.0.2.1"}, {"x-forwarded-for": "192.0.2.2"}),
        (
            {"trusted_proxies": ["127.0.0.1"]},
            {"x-forwarded-for": "2001:db8::1"},
            {"x-forwarded-for": "2001:db8:0:100::1"},
        ),
    ],
    ids=["principal", "address", "network"],
)
async def test_one_user_keeps_no_other_from_opening_sessions_nor_ends_theirs(
    clock: Clock, serve: Serve, options: dict[str, Any], greedy: dict[str, str | None], other: dict[str, str | None]
) -> None:
    app = await serve(clock=clock, max_sessions=4, max_per_caller=4, **options)
    idle = await HttpWire.session(app, headers=other)
    clock.sleep(61)
    for _ in range(3):
        await HttpWire.session(app, headers=greedy)
    assert (await initialize(app, **greedy)).status == 503
    assert await used(idle) == 200
    second = await HttpWire.session(app, headers=other)  # in the place of one of theirs
    assert await used(second) == 200


async def test_a_caller_has_only_so_many_sessions(serve: Serve) -> None:
    app = await serve(max_per_caller=2, identify=identify)
    for _ in range(2):
        await HttpWire.session(app, headers={"x-user": "bob"})
    refused = await initialize(app, **{"x-user": "bob"})
    assert (refused.status, refused.headers["retry-after"]) == (429, "60")
    assert "max_per_caller" in refused.json["error"]["message"]
    assert (await initialize(app, **{"x-user": "ann"})).status == 200


async def test_no_other_caller_can_use_a_session(stage: Stage, serve: Serve) -> None:
    app = await serve(identify=identify)
    mine = await HttpWire.session(app, headers={"x-user": "ann"})
    stage.go.set()
    event = (await mine.call("warn")).events[0].id
    for other in ({"x-user": "bob"}, {}):
        thief = HttpWire(app, mine.version, headers=other)
        thief.session_id = mine.session_id
        for stolen in [
            await thief.call("add", {"a": 1, "b": 1}),
            await thief.get().done(),
            await thief.get(event).done(),
            await thief.delete(),
            await thief.notify("notifications/initialized"),
        ]:
            assert stolen.status == 404
    assert await used(mine) == 200
    assert (await mine.get(event).done()).status == 200
