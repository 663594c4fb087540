"""The log of changes: written once, read by every session from where it left off."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail import Server
from dovetail.engine import changes
from dovetail.engine.changes import LOG, ChangeLog, Heard
from dovetail.engine.member import Member
from dovetail.engine.streams import Change
from dovetail.protocol.session import Session
from dovetail.state.memory import MemoryState
from http_serving import Clock, settle

TOOLS, PROMPTS, RESOURCES = Change("tools"), Change("prompts"), Change("resources")
ONE, TWO = Change("updated", "test://one"), Change("updated", "test://two")


def session(*announced: str, uris: tuple[str, ...] = ()) -> Session:
    return Session(
        id="s",
        version="2025-06-18",
        client=b"{}",
        capabilities=b"{}",
        announced=frozenset(announced),
        subscriptions=frozenset(uris),
    )


class Held:
    """A session as a stream holds it; `later` is what it has become when the stream looks again."""

    def __init__(self, record: Session, later: Session | None = None) -> None:
        self.record = record
        self.later = later or record

    async def reload(self) -> bool:
        self.record = self.later
        return True

    async def change(self, _change: object) -> None: ...


class Desk:
    """A log of changes that is being written."""

    def __init__(self, **options: Any) -> None:
        self.engine = Server("desk", version="1.0.0").engine
        self.clock = Clock()
        self.state = MemoryState(clock=self.clock)
        self.log = ChangeLog(self.engine, self.state, Member(self.state), again=0, **options)

    async def publish(self, *published: Change) -> None:
        for change in published:
            self.engine.hub.publish(change)
            await settle(5)

    async def heard(self, who: Session, after: int = 0) -> list[tuple[Change, int | None]]:
        return (await self.log.heard(Held(who), after, 0)).changes


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    desk.log.start()
    yield desk
    await desk.log.stop()


ALL = session("tools", "prompts", "resources", uris=("test://one", "test://two"))


async def test_everyone_hears_what_they_asked_for(desk: Desk) -> None:
    await desk.publish(TOOLS, ONE, PROMPTS, TWO, RESOURCES)
    assert await desk.heard(ALL) == [(TOOLS, 1), (ONE, 2), (PROMPTS, 3), (TWO, 4), (RESOURCES, 5)]
    assert await desk.heard(session("tools")) == [(TOOLS, 1)]
    assert await desk.heard(session(uris=("test://two",))) == [(TWO, 4)]
    assert await desk.heard(session()) == []


async def test_reading_goes_on_where_it_stopped(desk: Desk) -> None:
    await desk.publish(TOOLS, PROMPTS)
    first = await desk.log.heard(Held(ALL), 0, 0)
    assert first.position == 2
    await desk.publish(TOOLS)
    assert await desk.log.heard(Held(ALL), first.position, 0) == Heard([(TOOLS, 3)], 3, 0)
    assert await desk.log.heard(Held(ALL), 3, 0) == Heard([], 3, 0)


async def test_what_changed_often_is_told_once_where_it_came_last(desk: Desk) -> None:
    await desk.publish(TOOLS, ONE, TOOLS, ONE, PROMPTS, TOOLS)
    assert await desk.heard(ALL) == [(ONE, 4), (PROMPTS, 5), (TOOLS, 6)]


async def test_the_position_is_where_a_new_session_begins(desk: Desk) -> None:
    assert await desk.log.position() == 0
    await desk.publish(TOOLS, PROMPTS)
    assert await desk.log.position() == 2
    assert await desk.heard(ALL, 2) == []


async def test_changes_of_other_sessions_move_the_position(desk: Desk) -> None:
    await desk.publish(TWO, TWO)
    assert await desk.log.heard(Held(session("tools")), 0, 0) == Heard([], 2, 0)


async def test_more_than_a_page_is_read_page_by_page(desk: Desk) -> None:
    for number in range(250):
        record = changes._codec.encode(changes._Told("updated", f"test://{number}", "w"))
        await desk.state.append(LOG, record, keep=999, ttl=9)
    everything = session(uris=tuple(f"test://{number}" for number in range(250)))
    position, told = 0, []
    while (heard := await desk.log.heard(Held(everything), position, 0)).changes:
        told += heard.changes
        position = heard.position
    assert [number for _, number in told] == list(range(1, 251))


async def test_what_was_asked_for_before_a_change_is_heard_of(desk: Desk) -> None:
    """Even if the stream has not seen yet that it was asked for."""
    await desk.publish(ONE)
    held = Held(session(), session(uris=("test://one",)))
    assert await desk.log.heard(held, 0, 0) == Heard([(ONE, 1)], 1, 0)


async def test_what_can_not_be_read_is_left_out(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    await desk.publish(TOOLS)
    for record in (b"", b"hello", b"\x01\x93", b"\x02" + changes._codec.encode(changes._Told("tools", "", "w"))[1:]):
        await desk.state.append(LOG, record, keep=999, ttl=9)
    await desk.publish(PROMPTS)
    assert await desk.heard(ALL) == [(TOOLS, 1), (PROMPTS, 6)]
    assert "can't read" in caplog.text


# ── gaps ──


async def test_a_session_that_missed_something_is_told_that_all_may_have_changed() -> None:
    desk = Desk(keep=2)
    desk.log.start()
    await desk.publish(TOOLS, PROMPTS, TOOLS, PROMPTS)
    heard = await desk.log.heard(Held(ALL), 1, 0)
    assert heard == Heard([(each, None) for each in (TOOLS, PROMPTS, RESOURCES, ONE, TWO)], 4, 0)
    assert await desk.log.heard(Held(ALL), 2, 0) == Heard([(TOOLS, 3), (PROMPTS, 4)], 4, 0)
    await desk.log.stop()


@pytest.mark.parametrize("after", [1, 10**15 - 1])
async def test_a_position_of_another_log_counts_as_a_gap(desk: Desk, after: int) -> None:
    assert await desk.log.heard(Held(session("tools")), after, 0) == Heard([(TOOLS, None)], 0, 0)


async def test_a_log_that_was_emptied_counts_as_a_gap(desk: Desk) -> None:
    await desk.publish(TOOLS)
    await desk.state.drop(LOG)
    assert await desk.heard(session("tools"), 1) == [(TOOLS, None)]


async def test_positions_outlive_any_session(desk: Desk) -> None:
    await desk.publish(TOOLS)
    desk.clock.sleep(366 * 86_400)
    await desk.publish(TOOLS)
    assert await desk.heard(ALL, 1) == [(TOOLS, 2)]


# ── writing ──


async def test_changes_from_threads_arrive(desk: Desk) -> None:
    thread = threading.Thread(target=desk.engine.hub.publish, args=(TOOLS,))
    thread.start()
    thread.join()
    await settle()
    assert await desk.heard(ALL) == [(TOOLS, 1)]


async def test_what_was_said_before_the_stop_is_written(desk: Desk) -> None:
    desk.engine.hub.publish(TOOLS)
    desk.engine.hub.publish(ONE)
    await desk.log.stop()
    assert await desk.heard(ALL) == [(TOOLS, 1), (ONE, 2)]
    await desk.publish(PROMPTS)
    assert await desk.log.position() == 2


async def test_stopping_what_never_started_is_nothing() -> None:
    await Desk().log.stop()


async def test_nobody_watches_for_the_logs_sake(desk: Desk) -> None:
    await desk.publish(ONE)
    assert not desk.engine.hub._wanted


async def test_a_backend_that_fails_is_tried_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append, failures = desk.state.append, iter([OSError("away"), OSError("still away")])

    async def failing(*arguments, **options):
        for failure in failures:
            raise failure
        return await append(*arguments, **options)

    monkeypatch.setattr(desk.state, "append", failing)
    await desk.publish(TOOLS, PROMPTS)
    await settle()
    assert {change for change, _ in await desk.heard(ALL)} == {TOOLS, PROMPTS}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_failing_backend_does_not_hold_up_the_stop(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_arguments, **_options):
        raise OSError("away")

    monkeypatch.setattr(desk.state, "append", failing)
    await desk.publish(TOOLS, PROMPTS, RESOURCES)
    await asyncio.wait_for(desk.log.stop(), 1)


async def test_after_an_outage_all_may_have_changed_once(desk: Desk) -> None:
    await desk.publish(TOOLS, ONE)
    heard = await desk.log.heard(Held(session("tools")), 0, desk.log.outages - 1)
    assert heard == Heard([(TOOLS, None)], 2, desk.log.outages)
    assert await desk.log.heard(Held(session("tools")), heard.position, heard.outages) == Heard([], 2, 0)
