"""Streams that a client GETs, at one worker and then at another: nothing is missed, and every stream ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from far_views import View, no_answer

from asking_stage import AskingStage, answer_to
from dovetail.state import base as patience
from dovetail.state.base import StateBackend
from dovetail.state.sqlite import SqliteState
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
    monkeypatch.setattr(patience, "AGAIN_SECONDS", 0.01)


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


async def test_a_newer_stream_goes_on_where_the_older_one_was(workers: Workers) -> None:
    wires = await workers.session()
    older = await wires[0].get().started()
    workers.stages[2].change_tools()
    await older.message()
    newer = await wires[0].get().started()
    await older.done()
    await settle(100)
    assert newer.messages == []
    workers.stages[2].change_tools()
    assert (await newer.message())["method"] == CHANGED
    await gone(newer)
    assert await workers.hears(wires[0]) == b""


async def test_at_another_worker_it_misses_nothing(on_any_store: Workers) -> None:
    """What was told since the last beat may be told once more."""
    wires = await on_any_store.session()
    streams = [await wires[0].get().started()]
    for number in range(6):
        on_any_store.stages[number % 3].change_tools()
        await streams[-1].message()
        streams.append(await wires[(number * 7) % 3].get().started())
        await streams[-2].done()
    last = streams[-1]
    before = len(last.messages)
    on_any_store.stages[1].change_tools()
    await last.until(lambda: len(last.messages) > before)
    await gone(last)


async def test_of_streams_that_come_at_once_one_is_left(on_any_store: Workers) -> None:
    wires = await on_any_store.session()
    streams = [wires[at].get() for at in (0, 1, 2, 0, 1, 2)]
    async with asyncio.timeout(5):
        await asyncio.gather(*(stream.started() for stream in streams))
        while sum(not stream.ended for stream in streams) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    on_any_store.stages[0].change_tools()
    (left,) = (stream for stream in streams if not stream.ended)
    assert (await left.message())["method"] == CHANGED
    await gone(left)


async def test_a_client_that_does_not_read_does_not_hold_up_its_newer_stream(workers: Workers) -> None:
    wires = await workers.session()
    older = await wires[0].get().started()
    older.stall()
    workers.stages[2].change_tools()
    await older.message()
    newer = wires[0].get()
    assert (await newer.message())["method"] == CHANGED  # whether the client has it is not known
    older.read_on()
    await older.done()
    await gone(newer)


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


async def test_a_drain_ends_it_properly(workers: Workers) -> None:
    wires, rest = await workers.resumed_elsewhere()
    await asyncio.wait_for(workers.apps[1].drain(5), 5)
    await rest.done()
    assert rest.sent[-1]["more_body"] is False
    assert len(rest.messages) == 1
    workers.stages[0].go.set()
    again = await wires[2].get(rest.events[-1].id).done()
    assert "result" in again.answer
