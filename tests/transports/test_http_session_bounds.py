"""Sessions over HTTP: how many there may be, and whose they are."""

from typing import Any

import pytest
from session_opening import identify, initialize

from http_serving import Clock, endpoint_of, serving, until
from http_stage import Stage, text_of
from http_wire import HttpWire

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


async def test_a_session_with_a_running_call_is_in_use() -> None:
    stage, clock = Stage(), Clock()
    async with serving(stage.server, clock=clock, max_sessions=1, session_timeout=100, keep_alive=0.01) as app:
        wire = await HttpWire.session(app)
        call = wire.start_call("work")
        await stage.entered.wait()
        for _ in range(3):
            clock.sleep(90)
            beats = call.raw.count(b": keep-alive")
            await until(lambda beats=beats: call.raw.count(b": keep-alive") > beats)
        assert (await initialize(app)).status == 503
        stage.go.set()
        assert text_of((await call.done()).answer) == "done"
        assert (await wire.call("add", {"a": 1, "b": 1})).status == 200


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


async def test_that_is_half_of_all_unless_it_is_given() -> None:
    async with serving(Stage().server, max_sessions=4, identify=identify) as app:
        for _ in range(2):
            await HttpWire.session(app, headers=by("bob"))
        assert (await initialize(app, **by("bob"))).status == 429
        for _ in range(2):
            await HttpWire.session(app, headers=by("ann"))


async def test_the_networks_of_one_line_are_one_caller() -> None:
    async with serving(Stage().server, max_per_caller=2, trusted_proxies=["127.0.0.1"]) as app:
        for number in range(2):
            await HttpWire.session(app, headers=by(address=f"2001:db8:0:{number}::1"))
        assert (await initialize(app, **by(address="2001:db8:0:ff::1"))).status == 429
        assert (await initialize(app, **by(address="2001:db8:0:100::1"))).status == 200


async def test_those_behind_an_unnamed_proxy_on_this_machine_have_all_places() -> None:
    """They can't be told apart, and may be many."""
    async with serving(Stage().server, max_sessions=4, max_per_caller=1) as app:
        for number in range(4):
            await HttpWire.session(app, headers=by(address=f"192.0.2.{number}"))
        assert (await initialize(app)).status == 503


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


async def test_nobody_else_can_cancel_a_call() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        victim, other = await HttpWire.session(app), await HttpWire.session(app)
        call = victim.start_call("work", id=1)
        await stage.entered.wait()
        assert (await other.notify("notifications/cancelled", {"requestId": 1})).status == 202
        stage.go.set()
        assert text_of((await call.done()).answer) == "done"


async def test_the_same_ids_in_two_sessions_do_not_meet() -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wires = [await HttpWire.session(app) for _ in range(3)]
        calls = [wire.start_call("work", id=1) for wire in wires] + [HttpWire(app).start_call("work", id=1)]
        await until(lambda: len(stage.ran) == 4)
        again = await wires[0].post("ping", id=1)
        assert again.json["error"]["message"] == "A request with this id is still in flight"
        stage.go.set()
        assert [text_of((await call.done()).answer) for call in calls] == ["done"] * 4
        assert endpoint_of(app)._calls.here == {}
        assert (await wires[0].post("ping", id=1)).json["result"] == {}
