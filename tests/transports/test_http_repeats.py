"""Calls with an idempotency key over HTTP: HTTP+SSE, a worker that is lost while it runs one, a drain in the middle."""

import asyncio
from typing import Any

from http_clients import FleetOf, connected

from http_serving import Stage, serving, until
from http_wire import HttpWire, text_of

KEY, REPLAY = "dovetail/idempotencyKey", "dovetail/idempotentReplay"
SECRET = "k" * 32
UNKNOWN = "may or may not have had its effect"


class Repeatable(Stage):
    """Its tool `once` waits until the test says go."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.server.add_tool(self.work, name="once", idempotency=True)


def once(app: Any) -> Any:
    return HttpWire(app).start_call("once", meta={KEY: SECRET})


async def test_two_clients_of_http_sse_are_two_callers() -> None:
    stage = Repeatable()
    stage.go.set()
    async with serving(stage.server) as app, connected(app) as ann, connected(app) as bob:
        call = {"name": "once", "arguments": {}, "_meta": {KEY: "k"}}
        results = [(await client.ask("tools/call", call))["result"] for client in (ann, bob, ann, bob)]
    assert [REPLAY in result.get("_meta", {}) for result in results] == [False, False, True, True]
    assert stage.ran == ["work", "work"]


async def test_a_worker_that_is_taken_for_lost_and_lives_has_the_last_word(fleet_of: FleetOf) -> None:
    fleet = await fleet_of(Repeatable, count=2)
    first = once(fleet.apps[0])
    await fleet.stages[0].entered.wait()
    second = once(fleet.apps[1])
    await second.watched.wait()
    await fleet.lose(0)
    outcome = (await second.done()).answer["result"]
    assert (outcome["isError"], UNKNOWN in outcome["content"][0]["text"]) == (True, True)
    fleet.stages[0].go.set()
    assert text_of((await first.done()).answer) == "done"
    late = (await once(fleet.apps[1]).done()).answer["result"]
    assert (late["content"][0]["text"], late["_meta"][REPLAY]) == ("done", True)  # it is known after all
    assert [stage.ran for stage in fleet.stages] == [["work"], []]


async def test_a_drain_that_stops_a_call_leaves_an_unknown_outcome(fleet_of: FleetOf) -> None:
    fleet = await fleet_of(Repeatable, count=2)
    first = once(fleet.apps[0])
    await fleet.stages[0].entered.wait()
    second = once(fleet.apps[1])
    await second.watched.wait()
    await asyncio.wait_for(fleet.apps[0].drain(0), 10)
    assert (await first.done()).status == 503
    assert UNKNOWN in text_of((await second.done()).answer)
    assert fleet.stages[1].ran == []


async def test_a_cancelled_call_of_a_session_frees_those_that_wait(fleet_of: FleetOf) -> None:
    """By its client, at another worker than the one that runs it."""
    fleet = await fleet_of(Repeatable, count=2)
    wires = await fleet.session()
    first = wires[0].start_call("once", meta={KEY: "k"}, id="a")
    await fleet.stages[0].entered.wait()
    second = wires[1].start_call("once", meta={KEY: "k"}, id="b")
    await second.watched.wait()
    await wires[1].notify("notifications/cancelled", {"requestId": "a"})
    assert UNKNOWN in text_of((await second.done()).answer)
    await until(lambda: fleet.stages[0].cancelled.is_set())
    await first.done()
