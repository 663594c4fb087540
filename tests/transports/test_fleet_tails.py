"""Streams that a client GETs, at one worker and then at another: each thing is told once, and every stream ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from far_views import View, no_answer

from asking_stage import AskingStage, answer_to
from dovetail.engine import member
from dovetail.state import base as patience
from dovetail.state.base import StateBackend
from dovetail.state.sqlite import SqliteState
from dovetail.transports import tails, traffic, way_back
from http_serving import PausingState, endpoint_of, settle
from http_stage import Stage
from http_wire import HttpWire

JSON_ONLY = {"accept": "application/json"}
CHANGED = "notifications/tools/list_changed"


class Workers:
    """Three that serve the same, each with its own view of the store."""

    def __init__(self, kind: Any, store: StateBackend | None = None, **options: Any) -> None:
        self.store = store or PausingState()
        self.views = [View(self.store) for _ in range(3)]
        self.stages = [kind() for _ in self.views]
        self.apps = [
            stage.server.asgi(state=view, **options) for stage, view in zip(self.stages, self.views, strict=True)
        ]

    async def session(self, **options: Any) -> list[HttpWire]:
        first = await HttpWire.session(self.apps[0], "2025-11-25", **options)
        wires = [HttpWire(app, "2025-11-25") for app in self.apps]
        for wire in wires:
            wire.session_id, wire.ids = first.session_id, first.ids
        return wires

    async def resumed_elsewhere(self) -> tuple[list[HttpWire], Any]:
        """A call that the first worker runs, whose rest is had at the second."""
        wires = await self.session()
        call = wires[0].start_call("tell", id="t")
        await call.message()
        await call.cut()
        rest = wires[1].get(call.events[0].id)
        await rest.message()
        return wires, rest

    async def lose(self, number: int) -> str:
        """The name of the worker, which shows no more that it lives."""
        lost = endpoint_of(self.apps[number]).member
        assert lost._renewing is not None
        lost._renewing.cancel()
        await settle()
        await self.store.delete(f"worker/{lost.id}")
        return lost.id

    async def hears(self, wire: HttpWire) -> bytes:
        """Who does: the newest stream of a session."""
        entry = await self.store.get(f"hears/{wire.session_id}")
        return b"" if entry is None else entry.value


@asynccontextmanager
async def running(workers: Workers) -> AsyncIterator[Workers]:
    for app in workers.apps:
        await app.start()
    await settle(50)
    yield workers
    for view in workers.views:
        view.fate = None
    for app in workers.apps:
        await asyncio.wait_for(app.drain(0.2), 10)
    await workers.store.close()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "CERTAIN_SECONDS", 0.1)
    monkeypatch.setattr(tails, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(patience, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(way_back, "HANDOVER_SECONDS", 0.3)


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    async with running(Workers(Stage)) as each:
        yield each


@pytest.fixture(params=["memory", "sqlite"])
async def on_any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Workers]:
    store = PausingState() if request.param == "memory" else SqliteState(tmp_path / "state.sqlite")
    async with running(Workers(Stage, store)) as each:
        yield each


@pytest.fixture
async def askers() -> AsyncIterator[Workers]:
    async with running(Workers(AskingStage)) as each:
        yield each


async def gone(*streams: Any) -> None:
    for stream in streams:
        stream.leave()
        await stream.done()


# ── from one stream to the next ──


@pytest.mark.parametrize("key", ["session/", "hears/"])
async def test_an_older_stream_ends_also_if_trouble_meets_its_question_for_a_newer_one(
    workers: Workers, key: str
) -> None:
    wires = await workers.session()
    older = await wires[0].get().started()
    await settle(50)
    workers.views[0].fate = no_answer("get", key)
    newer = await wires[1].get().started()
    await settle(50)
    workers.views[0].fate = None  # there was no outage that all are told of
    await older.done()
    workers.stages[2].change_tools()
    await newer.message()
    assert older.messages == []
    await gone(newer)


@pytest.mark.parametrize("at", [0, 1])
async def test_a_newer_stream_goes_on_where_the_older_one_was(workers: Workers, at: int) -> None:
    wires = await workers.session()
    older = await wires[0].get().started()
    workers.stages[2].change_tools()
    await older.message()
    newer = await wires[at].get().started()
    await older.done()
    await settle(100)
    assert newer.messages == []
    workers.stages[2].server.notify_resource_updated("test://one")
    workers.stages[2].change_tools()
    assert (await newer.message())["method"] == CHANGED
    await gone(newer)
    assert await workers.hears(wires[0]) == b""


async def test_a_client_that_comes_again_and_again_is_told_everything_once(on_any_store: Workers) -> None:
    wires = await on_any_store.session()
    streams = [await wires[0].get().started()]
    for number in range(12):
        on_any_store.stages[number % 3].change_tools()
        await streams[-1].message()
        streams.append(await wires[(number * 7) % 3].get().started())
    await asyncio.gather(*(stream.done() for stream in streams[:-1]))
    await asyncio.sleep(0.05)
    assert [len(stream.messages) for stream in streams] == [1] * 12 + [0]
    await gone(streams[-1])


async def test_of_streams_that_come_at_once_one_is_left(on_any_store: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way_back, "HANDOVER_SECONDS", 60.0)
    wires = await on_any_store.session()
    streams = [await wires[0].get().started()]

    def told() -> int:
        return sum(len(stream.messages) for stream in streams)

    def is_alone() -> bool:
        return sum(not stream.ended for stream in streams) == 1

    for number in range(5):
        on_any_store.stages[number % 3].change_tools()
        streams += [wires[at].get() for at in (0, 1, 2, 0, 1, 2)]
        async with asyncio.timeout(5):
            await asyncio.gather(*(stream.started() for stream in streams))
            while not (told() > number and is_alone()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert told() == 5
    await gone(*(stream for stream in streams if not stream.ended))


async def test_a_client_that_says_what_it_has_waits_for_no_older_stream(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(way_back, "HANDOVER_SECONDS", 60.0)
    wires = await workers.session()
    older = await wires[0].get().started()
    workers.stages[2].change_tools()
    await older.message()
    before = older.events[0].id
    workers.views[0].fate = no_answer()
    newer = wires[1].get(before)
    assert (await newer.message())["method"] == CHANGED
    workers.views[0].fate = None
    await older.done()
    await gone(newer)


async def test_what_a_stuck_stream_has_told_later_counts_no_more(workers: Workers) -> None:
    wires = await workers.session()
    older = await wires[0].get().started()
    older.stall()
    workers.stages[2].change_tools()
    await older.message()
    newer = wires[1].get()
    assert (await newer.message())["method"] == CHANGED  # nobody knows whether the client has it
    workers.stages[2].change_tools()
    await newer.message()
    older.read_on()
    await older.done()
    await gone(newer)
    again = await wires[2].get().started()
    await settle(100)
    assert again.messages == []
    await gone(again)


async def test_a_stream_that_leaves_takes_no_other_with_it(workers: Workers) -> None:
    wires = await workers.session()
    older = await wires[0].get().started()
    reached, gate = asyncio.Event(), asyncio.Event()

    async def fate(name: str, key: str) -> bool:
        if name in ("put", "delete") and key.startswith("hears/"):
            reached.set()
            await gate.wait()
        return True

    workers.views[0].fate = fate
    older.leave()
    await reached.wait()
    newer = wires[1].get()
    await settle(100)
    gate.set()
    await asyncio.gather(older.done(), newer.started())
    assert len(await workers.hears(wires[0])) == way_back.STREAM_BYTES
    await gone(newer)
    assert await workers.hears(wires[0]) == b""


async def test_a_stream_that_was_forgotten_does_not_drive_out_the_newer_one(workers: Workers) -> None:
    way = endpoint_of(workers.apps[0])._way_back.presence
    older, newer = b"older...", b"newer..."
    for stream in (older, newer):
        await way.enter("x", stream, lambda: True)
    await way.stay("x", older)
    assert await way.is_newest("x", newer)
    assert not await way.is_newest("x", older)
    await workers.store.delete("hears/x")
    await way.stay("x", newer)
    assert await way.is_newest("x", newer)
    assert not await way.is_newest("x", older)


# ── streams whose worker is killed ──


async def test_what_was_told_before_the_last_beat_is_not_told_again() -> None:
    async with running(Workers(Stage, keep_alive=0.05)) as workers:
        wires = await workers.session()
        older = await wires[0].get().started()
        workers.stages[2].change_tools()
        await older.message()
        await asyncio.sleep(0.3)
        workers.views[0].fate = no_answer()  # as if it were killed: nobody hears what it has told
        newer = await wires[1].get().started()
        await settle(100)
        assert newer.messages == []
        await gone(newer)
        await gone(older)


async def test_a_beat_does_not_take_back_what_was_told_since() -> None:
    async with running(Workers(Stage, keep_alive=0.05)) as workers:
        wires = await workers.session()
        older = await wires[0].get().started()
        reached, gate = asyncio.Event(), asyncio.Event()

        async def fate(name: str, key: str) -> bool:
            if name == "put" and key.startswith("session/") and not reached.is_set():
                reached.set()
                await gate.wait()
            return True

        workers.views[0].fate = fate
        workers.stages[2].change_tools()
        await older.message()
        await reached.wait()  # how far it was then
        workers.stages[2].change_tools()
        await older.message()
        newer = wires[1].get()
        await settle(100)
        gate.set()
        await asyncio.gather(older.done(), newer.started())
        await gone(newer)
        last = await wires[2].get().started()
        await settle(100)
        assert newer.messages == last.messages == []
        await gone(last)


async def test_no_beat_comes_before_a_stream_has_begun() -> None:
    async with running(Workers(Stage, keep_alive=0.14)) as workers:
        wires = await workers.session()
        older = await wires[0].get().started()
        workers.views[0].fate = no_answer()
        newer = wires[1].get()
        assert (await newer.event()).data == b""  # its id is what a client comes back with
        assert newer.raw.startswith(b"id: ")
        assert len(await workers.hears(wires[0])) == way_back.STREAM_BYTES
        await gone(newer)
        await gone(older)


async def test_beats_without_news_leave_the_session_alone() -> None:
    async with running(Workers(Stage, keep_alive=0.02)) as workers:
        wires = await workers.session()
        stream = await wires[0].get().started()
        for _ in range(3):  # which this session did not ask for
            workers.stages[1].server.notify_resource_updated("test://one")
            await asyncio.sleep(0.05)
        before = await workers.store.get(f"session/{wires[0].session_id}")
        workers.stages[1].server.notify_resource_updated("test://one")
        await asyncio.sleep(0.1)
        after = await workers.store.get(f"session/{wires[0].session_id}")
        assert before is not None
        assert before == after
        await gone(stream)


@pytest.mark.parametrize("is_answered", [True, False])
async def test_only_an_open_question_is_asked_again(askers: Workers, is_answered: bool) -> None:
    wires = await askers.session(capabilities={"roots": {}})
    stream = await wires[0].get().started()
    call = wires[1].start("tools/call", {"name": "ask", "arguments": {}}, headers=JSON_ONLY)
    question = await stream.message()
    answer = json.dumps(answer_to(question, {"roots": []})).encode()
    if is_answered:
        await wires[2].raw("POST", answer).done()
        await call.done()
    askers.views[0].fate = no_answer()
    again = await wires[1].get().started()
    await settle(100)
    assert again.messages == ([] if is_answered else [question])
    await wires[2].raw("POST", answer).done()
    await call.done()
    await gone(again)
    await gone(stream)


# ── the rest of a call elsewhere ──


async def test_news_of_the_session_do_not_hide_that_the_worker_is_lost(workers: Workers) -> None:
    wires, rest = await workers.resumed_elsewhere()

    async def news() -> None:
        while True:
            await workers.store.publish(f"session/{wires[0].session_id}")
            await asyncio.sleep(0.005)

    telling = asyncio.create_task(news())
    await workers.lose(0)
    await rest.done(3)
    assert "error" in rest.answer
    telling.cancel()
    await asyncio.wait([telling])


async def test_a_worker_that_is_known_to_be_lost_is_not_waited_for(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "LOOK_SECONDS", 60.0)
    wires, rest = await workers.resumed_elsewhere()
    lost = await workers.lose(0)
    await workers.store.put(f"missed/{lost}", b"", ttl=member.NOTE_SECONDS - 5)
    again = await wires[2].get(rest.events[0].id).done(3)
    assert "error" in again.answer
    await rest.done(3)


async def test_a_drain_ends_it_properly(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "LAST_SECONDS", 60.0)  # for streams that do not end
    wires, rest = await workers.resumed_elsewhere()
    await asyncio.wait_for(workers.apps[1].drain(5), 5)
    await rest.done()
    assert rest.sent[-1]["more_body"] is False
    assert len(rest.messages) == 1
    workers.stages[0].go.set()
    again = await wires[2].get(rest.events[-1].id).done()
    assert "result" in again.answer
