"""The events of a call while the store is in trouble for its worker: what can be kept is kept, once and in order."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from far_pair import Pair, all_is_well, error_of, of, running_pair, shorten_waits

from dovetail import Context
from dovetail.transports import event_log
from dovetail.transports.event_log import WORKER_LOST
from http_serving import endpoint_of
from http_stage import text_of
from http_wire import HttpWire


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with running_pair() as pair:
        yield pair


# ── a beginning in trouble ──


async def test_what_is_asked_is_noted_by_the_next_event(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LOOK_SECONDS", 60.0)
    wires = await pair.session()
    pair.views[0].fate = of("put", "asked/", "lost", times=1)
    call = wires[0].start_call("tell", id="t")
    await call.message()
    await call.cut()
    await pair.lose()
    rest = await wires[1].get(call.events[0].id).done()
    assert error_of(rest.answer) == WORKER_LOST
    assert len(rest.messages) == 2


async def test_what_is_asked_is_noted_also_if_nothing_happens(pair: Pair) -> None:
    wires = await pair.session()
    pair.views[0].fate = of("put", "asked/", "lost", times=2)
    call = wires[0].start_call("work", id="w")
    primed = await call.event()
    await call.cut()
    await asyncio.sleep(0.2)
    rest = await wires[1].get(primed.id).started()
    assert rest.status == 200
    pair.stages[0].go.set()
    await rest.done()
    assert text_of(rest.answer) == "done"
    assert await pair.store.get(f"asked/events/{wires[0].session_id}/{primed.id.split('.')[0]}") is None


async def test_nothing_is_kept_of_which_nobody_could_tell_the_end(pair: Pair) -> None:
    wires = await pair.session()
    pair.views[0].fate = of("put", "asked/", "lost")
    call = wires[0].start_call("tell", {"times": 3}, id="t")
    for _ in range(3):
        await call.message()
    assert [event.id for event in call.events[1:]] == [None] * 3
    await call.cut()
    await pair.lose()
    assert (await wires[1].get(call.events[0].id).done()).status == 400


async def test_a_call_of_days_stays_known(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "WHILE_RUNNING_SHARED", 0.3)
    monkeypatch.setattr(event_log, "RENEW_SECONDS", 0.05)
    wires = await pair.session()
    silent, talking = wires[0].start_call("work", id="w"), wires[0].start_call("tell", id="t")
    primed = [(await call.event()).id for call in (silent, talking)]
    await talking.message()
    for call in (silent, talking):
        await call.cut()
    await asyncio.sleep(0.8)
    pair.stages[0].go.set()
    rests = [await wires[1].get(id).done() for id in primed]
    assert [text_of(rest.answer) for rest in rests] == ["done", "told"]
    assert [len(rest.messages) for rest in rests] == [1, 3]


async def test_a_call_that_is_noted_is_left_alone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[str] = []

    async def renew(log: event_log.EventLog) -> None:
        renewed.append(log.name)

    monkeypatch.setattr(event_log.EventLog, "renew", renew)
    await pair.resumed()
    await asyncio.sleep(0.1)
    assert renewed == []
    assert pair.logs.running
    pair.stages[0].go.set()


async def test_one_that_could_not_be_noted_makes_no_other_one_impatient(pair: Pair) -> None:
    """Only who has waited for the store knows that it is not worth waiting for."""
    wires = await pair.session()
    pair.views[0].fate = of("put", "asked/", "lost", times=1)
    call = wires[0].start_call("work", id="t")
    await call.started()
    assert not endpoint_of(pair.apps[0])._logs.is_in_trouble
    pair.stages[0].go.set()
    await call.done()


# ── many events ──


async def test_a_connection_is_not_closed_for_one_before_it(pair: Pair) -> None:
    """However many events come between."""

    async def chatter(ctx: Context) -> str:
        await ctx.warning("begin")
        await pair.stages[0].go.wait()
        for number in range(150):
            await ctx.warning(f"{number}")
        await ctx.close_stream(0)
        pair.stages[0].entered.set()
        await pair.stages[1].go.wait()
        return "answer"

    pair.stages[0].server.add_tool(chatter)
    wires = await pair.session()
    call = wires[0].start_call("chatter", id="t")
    await call.message()
    await call.cut()
    pair.stages[0].go.set()
    await pair.stages[0].entered.wait()
    rest = await wires[1].get(call.events[0].id).started()
    await asyncio.sleep(0.1)
    pair.stages[1].go.set()
    await rest.done()
    assert text_of(rest.answer) == "answer"
    assert len(rest.messages) == 152


async def chatting(pair: Pair, says: list[str]) -> tuple[list[HttpWire], Any]:
    """A call that has begun and will say all that; what it has said first is kept."""

    async def chatter(ctx: Context) -> str:
        await ctx.warning("begin")
        await pair.stages[0].go.wait()
        for each in says:
            await ctx.warning(each)
        pair.views[0].fate = all_is_well
        return "answer"

    pair.stages[0].server.add_tool(chatter)
    wires = await pair.session()
    call = wires[0].start_call("chatter", id="t")
    await call.message()
    return wires, call


@pytest.mark.parametrize("reads", [True, False])
async def test_a_call_that_says_much_in_an_outage_is_answered(
    pair: Pair, reads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The first event is kept without a word, and the store is away for all others."""
    wires, call = await chatting(pair, [f"{number}" for number in range(1100)])

    def fate(name: str, key: str, data: bytes) -> str:
        if not key.startswith("events/") or (reads and name == "read"):
            return "kept"
        return "kept without a word" if name == "append" and b'"0"' in data else "lost"

    pair.views[0].fate = fate
    pair.stages[0].go.set()
    await call.done()
    assert len(call.messages) == 1102
    assert text_of(call.answer) == "answer"
    rest = await wires[1].get(call.events[1].id).done()
    assert [each.get("params", {}).get("data") for each in rest.messages] == ["0", None]
    assert text_of(rest.answer) == "answer"
    assert len([each for each in caplog.records if "can't be kept" in each.message]) == 1


async def test_every_trouble_is_told_of(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    wires, call = await chatting(pair, ["1", "2", "3", "4", "5", "6"])
    pair.views[0].fate = lambda _name, key, data: (
        "lost" if key.startswith("events/") and any(b'"%d"' % n in data for n in (1, 2, 5, 6)) else "kept"
    )
    pair.stages[0].go.set()
    await call.done()
    assert len([each for each in caplog.records if "can't be kept" in each.message]) == 2
    rest = await wires[1].get(call.events[0].id).done()
    assert [each["params"]["data"] for each in rest.messages[:-1]] == ["begin", "3", "4"]


@pytest.mark.parametrize("hold", [0.0, 5.0])
async def test_equal_events_are_kept_each(pair: Pair, hold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "HOLD_SECONDS", hold)
    wires, call = await chatting(pair, ["same", "same", "same"])
    pair.views[0].fate = of("append", "events/", "kept without a word", times=1)
    pair.stages[0].go.set()
    await call.done()
    rest = await wires[1].get(call.events[0].id).done()
    assert rest.messages == call.messages
    assert len(rest.messages) == 5
    assert [event.id is None for event in call.events].count(True) == (0 if hold else 1)
