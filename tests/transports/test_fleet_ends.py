"""The end of a call's events while the store is in trouble for its worker: it comes, in one answer or one error."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from far_pair import Pair, all_is_well, away, error_of, of, running_pair, shorten_waits

from dovetail.transports import event_log, late_logs
from dovetail.transports.event_log import ANSWER_LOST, WORKER_LOST
from dovetail.transports.response import Response
from http_serving import until
from http_stage import text_of


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with running_pair() as pair:
        yield pair


# ── an end that comes late ──


async def ends_in_an_outage(pair: Pair) -> None:
    pair.views[0].fate = away
    pair.stages[0].go.set()
    await until(lambda: len(pair.logs.late._waiting) == 1)


async def test_an_answer_is_had_after_any_outage(pair: Pair) -> None:
    rest = await pair.resumed()
    await ends_in_an_outage(pair)
    await asyncio.sleep(0.4)
    assert not rest.ended
    pair.views[0].fate = all_is_well
    await rest.done()
    assert text_of(rest.answer) == "told"
    await until(lambda: not pair.logs.late._waiting)


@pytest.mark.parametrize("bound", ["time", "bytes"])
async def test_an_answer_that_waits_too_long_or_is_too_large_becomes_an_error(
    pair: Pair, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound == "bytes":
        monkeypatch.setattr(late_logs, "LATE_BYTES", 10)
    else:
        pair.logs.late._seconds = 0.05
    rest = await pair.resumed()
    await ends_in_an_outage(pair)
    await asyncio.sleep(0.2)
    pair.views[0].fate = all_is_well
    await rest.done()
    assert error_of(rest.answer) == ANSWER_LOST
    assert len(rest.messages) == 2


async def test_an_answer_that_the_store_has_does_not_become_an_error(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_logs, "LATE_BYTES", 10)
    rest = await pair.resumed()
    pair.views[0].fate = lambda name, key, data: (
        "kept without a word" if b"told" in data else "lost" if name == "read" and key.startswith("events/") else "kept"
    )
    pair.stages[0].go.set()
    await until(lambda: len(pair.logs.late._waiting) == 1)
    pair.views[0].fate = all_is_well
    await rest.done()
    assert [text_of(each) for each in rest.messages if "id" in each] == ["told"]


async def test_a_worker_that_was_taken_for_lost_writes_no_second_answer(pair: Pair) -> None:
    rest = await pair.resumed()
    await ends_in_an_outage(pair)
    await pair.lose()
    await rest.done()
    assert error_of(rest.answer) == WORKER_LOST
    pair.views[0].fate = all_is_well
    await until(lambda: not pair.logs.late._waiting)
    again = await (await pair.session())[1].raw("GET", headers=resuming(rest)).done()
    assert again.messages == rest.messages


def resuming(rest: Any) -> dict[str, str]:
    id = ".".join((rest.events[0].id.split(".")[0], "0"))
    headers = {name.decode(): value.decode() for name, value in rest.scope["headers"]}
    return {"last-event-id": id, "mcp-session-id": headers["mcp-session-id"]}


async def test_an_answer_that_is_refused_becomes_an_error(pair: Pair) -> None:
    rest = await pair.resumed()
    pair.views[0].fate = lambda _name, _key, data: "refused" if b"told" in data else "kept"
    pair.stages[0].go.set()
    await rest.done()
    assert error_of(rest.answer) == ANSWER_LOST


# ── an end that takes its time, or is refused ──


@pytest.mark.parametrize("at", [0, 1])
async def test_a_tail_from_the_beginning_ends_also_if_nothing_was_kept(pair: Pair, at: int) -> None:
    wires = await pair.session()
    call = wires[0].start_call("work", id="w")
    primed = await call.event()
    await call.cut()
    rest = await wires[at].get(primed.id).started()
    pair.views[0].fate = of("append", "events/", "refused")
    pair.stages[0].go.set()
    await rest.done()
    assert rest.messages == []


def hold_up(pair: Pair, data: bytes) -> tuple[asyncio.Event, asyncio.Event]:
    """An append of that takes its time: it has begun, and it may end."""
    append, begun, gate = pair.store.append, asyncio.Event(), asyncio.Event()

    async def held_up(log: str, record: bytes, **options: Any) -> int:
        if record.find(data) >= 0 and log.startswith("events/"):
            begun.set()
            await gate.wait()
        return await append(log, record, **options)

    pair.store.append = held_up  # type: ignore[method-assign]
    return begun, gate


@pytest.mark.parametrize("comes", ["before", "meanwhile"])
async def test_a_call_is_neither_lost_nor_over_while_its_end_is_being_written(pair: Pair, comes: str) -> None:
    wires = await pair.session()
    call = wires[0].start_call("tell", id="t")
    await call.message()
    await call.cut()
    rest = await wires[0].get(call.events[0].id).started() if comes == "before" else None
    lost = ["lost"]
    pair.views[0].fate = lambda _name, _key, data: lost.pop() if lost and b"told" in data else "kept"
    begun, gate = hold_up(pair, b"told")
    pair.stages[0].go.set()
    await begun.wait()
    rest = rest or await wires[0].get(call.events[0].id).started()
    await pair.store.publish(f"session/{wires[0].session_id}")
    await asyncio.sleep(0.2)
    assert not rest.ended
    gate.set()
    await rest.done()
    assert text_of(rest.answer) == "told"


async def nowhere(_message: Any) -> None: ...


async def test_an_end_whose_writer_is_cancelled_comes_late(pair: Pair) -> None:
    log = event_log.EventLog(pair.logs, "s" * 32, Response(nowhere), ("x",))
    await log.begin()
    begun, gate = hold_up(pair, event_log.END)
    ending = asyncio.create_task(log.end())
    await begun.wait()
    assert log.name in pair.logs.running
    ending.cancel()
    await asyncio.wait([ending])
    assert log.name not in pair.logs.running
    assert log.name in pair.logs.late
    gate.set()
    await until(lambda: log.name not in pair.logs.late)
    assert (await pair.store.read(log.name, 0)).last == 1


async def test_an_end_is_written_once(pair: Pair) -> None:
    rest = await pair.resumed()
    pair.views[0].fate = of("delete", "asked/", "lost", times=3)
    pair.stages[0].go.set()
    await until(lambda: len(pair.logs.late._waiting) == 1)
    (name,) = pair.logs.late._waiting
    await until(lambda: not pair.logs.late._waiting)
    await rest.done()
    records = (await pair.store.read(name, 0)).records
    assert [record.data for record in records].count(event_log.END) == 1
