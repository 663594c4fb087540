"""The events of a call while the store is in trouble for its worker: every stream ends, in one answer or one error."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dovetail import Context
from dovetail.engine import member
from dovetail.state import patience
from dovetail.state.base import NoRoom, StoreTrouble
from dovetail.transports import event_log, late_logs, tails
from dovetail.transports.event_log import ANSWER_LOST, WORKER_LOST
from http_serving import PausingState, endpoint_of, settle, until
from http_stage import Stage, text_of
from http_wire import HttpWire

CALLS = ("get", "put", "touch", "remaining", "delete", "claim", "add", "append", "read", "drop", "publish", "check")
Fate = Callable[[str, str, bytes], str]  # of a call, its key and its data, if any


class View:
    """What one worker sees of a store in memory that it shares with others: for this one alone it may be in trouble."""

    shared = True
    outages = 0

    def __init__(self, store: PausingState) -> None:
        self._store = store
        self.fate: Fate = all_is_well
        self.listen = store.listen

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)

        async def asked(*args: Any, **options: Any) -> Any:
            key, data = (*args, "", b"")[:2]
            fate = self.fate(name, key, data if isinstance(data, bytes) else b"")
            if fate == "lost":
                raise StoreTrouble
            if fate == "refused":
                raise NoRoom("full")
            answer = await getattr(self._store, name)(*args, **options)
            if fate == "kept without a word":
                raise StoreTrouble
            return answer

        return asked

    async def close(self) -> None: ...


def all_is_well(_name: str, _key: str, _data: bytes) -> str:
    return "kept"


def away(_name: str, _key: str, _data: bytes) -> str:
    return "lost"


def of(name: str, key: str, fate: str, times: int = 1_000_000) -> Fate:
    """For the next calls of that name, with a key that begins so."""
    left = [fate] * times if times < 1_000_000 else None

    def decide(asked: str, its: str, _data: bytes) -> str:
        if asked != name or not its.startswith(key):
            return "kept"
        return fate if left is None else left.pop() if left else "kept"

    return decide


class Pair:
    """Two workers that serve the same."""

    def __init__(self) -> None:
        self.store = PausingState()
        self.views = [View(self.store), View(self.store)]
        self.stages = [Stage(), Stage()]
        self.apps = [stage.server.asgi(state=view) for stage, view in zip(self.stages, self.views, strict=True)]

    @property
    def logs(self) -> event_log.EventLogs:
        return endpoint_of(self.apps[0])._logs

    async def session(self) -> list[HttpWire]:
        first = await HttpWire.session(self.apps[0], "2025-11-25")
        wires = [HttpWire(app, "2025-11-25") for app in self.apps]
        for wire in wires:
            wire.session_id, wire.ids = first.session_id, first.ids
        return wires

    async def resumed(self, tool: str = "tell") -> Any:
        """The rest of a call that the first worker runs, at the second."""
        wires = await self.session()
        call = wires[0].start_call(tool, id="t")
        await call.message()
        await call.cut()
        rest = wires[1].get(call.events[0].id)
        await rest.message()
        return rest

    async def lose(self) -> None:
        """The first shows no more that it lives."""
        lost = endpoint_of(self.apps[0])._member
        assert lost._renewing is not None
        lost._renewing.cancel()
        await settle()
        await self.store.delete(f"worker/{lost.id}")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "CERTAIN_SECONDS", 0.1)
    monkeypatch.setattr(tails, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(patience, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(late_logs, "MAX_PAUSE", 0.02)
    monkeypatch.setattr(event_log, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(event_log, "HOLD_SECONDS", 0.0)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    for app in pair.apps:
        await app.start()
    await settle(50)
    yield pair
    for view in pair.views:
        view.fate = all_is_well
    for app in pair.apps:
        await asyncio.wait_for(app.drain(0.2), 10)
    assert not pair.store._topics.names


def error_of(answer: Any) -> str:
    return answer["error"]["message"]


# ── an end that comes late ──


async def ends_in_an_outage(pair: Pair) -> None:
    pair.views[0].fate = away
    pair.stages[0].go.set()
    await until(lambda: len(pair.logs.late) == 1)


async def test_an_answer_is_had_after_any_outage(pair: Pair) -> None:
    rest = await pair.resumed()
    await ends_in_an_outage(pair)
    await asyncio.sleep(0.4)
    assert not rest.ended
    pair.views[0].fate = all_is_well
    await rest.done()
    assert text_of(rest.answer) == "told"
    await until(lambda: not len(pair.logs.late))


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
    await until(lambda: len(pair.logs.late) == 1)
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
    await until(lambda: not len(pair.logs.late))
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


# ── many events in trouble ──


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
