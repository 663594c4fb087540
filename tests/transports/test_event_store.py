"""The event store alone: what a client finds there while its store or its worker fails."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.workers import WorkerLease
from dovetail.errors import ProtocolError
from dovetail.protocol.sse import EventId, SseDecoder
from dovetail.state.base import StoreFull, StoreUnavailable
from dovetail.state.memory import MemoryState
from dovetail.transports.http import event_store
from dovetail.transports.http.event_store import END, MAX_BYTES, MAX_EVENTS, EventStore, EventStream, StreamState
from dovetail.transports.http.response import HttpResponse

SESSION = "s" * 32
ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{}}'
FATES = ("kept", "lost", "kept without a word")


class ScriptedState(MemoryState):
    """A shared store: `script` says what becomes of the next appends."""

    shared = True

    def __init__(self, script: Sequence[str] = ()) -> None:
        super().__init__()
        self.script = list(script)
        self.is_away = False
        self.refuses: Callable[[bytes], bool] = lambda _: False

    async def append(self, log: str, data: bytes, **options: Any) -> int:
        fate = self.script.pop(0) if self.script else "kept"
        if fate == "lost" or self.is_away:
            raise StoreUnavailable
        if self.refuses(data):
            raise StoreFull("full")
        number = await super().append(log, data, **options)
        if fate == "kept without a word":
            raise StoreUnavailable
        return number

    async def put(self, key: str, value: bytes, **options: Any) -> int:
        if self.is_away:
            raise StoreUnavailable
        return await super().put(key, value, **options)


class Stage:
    """One worker that writes a stream, and what its client gets."""

    def __init__(self, state: ScriptedState, **options: Any) -> None:
        self.state = state
        self.store = EventStore(state, ttl=60.0, lease=WorkerLease(state), **options)
        self.raw = b""
        self.response = HttpResponse(self._send)
        self.stream = EventStream(self.store, SESSION, self.response, (7,))

    async def _send(self, message: Any) -> None:
        self.raw += message.get("body", b"")

    @property
    def sent(self) -> list[tuple[bytes, bool]]:
        """The events, and whether each has an id."""
        events = SseDecoder(max_bytes=1 << 20).feed(self.raw)
        return [(event.data, event.id is not None) for event in events if event.data]

    async def kept(self) -> list[bytes]:
        return [record.data for record in (await self.state.read(self.stream.name, 0, 2000)).records]

    async def find(self, number: int, message: int = 0) -> EventStream | None:
        return await self.store.find(SESSION, EventId(self.stream.stream, number, message))


@asynccontextmanager
async def staged(script: Sequence[str] = (), **options: Any) -> AsyncIterator[Stage]:
    stage = Stage(ScriptedState(script), **options)
    await stage.stream.open(1000)
    yield stage
    await stage.store.stop()


class Hasty(selectors.SelectSelector):
    """Time passes at once while all tasks wait for it: the pauses between two questions to a store."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.SelectorEventLoop(self)
        self._real, self._ahead = self.loop.time, 0.0
        self.loop.time = lambda: self._real() + self._ahead  # type: ignore[method-assign]

    def select(self, timeout: float | None = None) -> Any:
        self._ahead += timeout or 0
        return super().select(timeout and 0)


def hastily(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=lambda: Hasty().loop) as runner:
        runner.run(work)


async def ended(stage: Stage) -> None:
    async with asyncio.timeout(600):
        while stage.stream.state is not StreamState.ENDED:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@given(
    script=st.lists(st.sampled_from(FATES), max_size=12),
    events=st.lists(st.sampled_from([b"1", b"2"]), max_size=5),
    is_answered=st.booleans(),
    retry_seconds=st.sampled_from([0.0, 10.0]),
)
def test_through_all_failures_of_the_store_the_client_gets_all_and_the_log_has_it_in_order(
    script: list[str], events: list[bytes], is_answered: bool, retry_seconds: float
) -> None:
    """With an id each event is kept once; without, once at most. The end is kept in any case."""

    async def run() -> None:
        async with staged(script, retry_seconds=retry_seconds) as stage:
            for event in events:
                await stage.stream.send(event)
            await (stage.stream.send(ANSWER, last=True) if is_answered else stage.stream.end())
            await ended(stage)
            said = [*events, *([ANSWER] if is_answered else [])]
            assert [data for data, _ in stage.sent] == said
            *kept, end = await stage.kept()
            assert end == END + (ANSWER if is_answered else b"")
            with_id = [data for data, has_id in stage.sent if has_id and data != ANSWER]
            assert is_part(with_id, kept)
            assert is_part(kept, events)
            assert retry_seconds == 0.0 or all(has_id for _, has_id in stage.sent)
            assert not stage.store.running
            assert not await stage.store.has_writer(stage.stream.name)

    hastily(run())


def is_part(some: list[bytes], whole: list[bytes]) -> bool:
    """In the same order."""
    rest = iter(whole)
    return all(each in rest for each in some)


async def test_an_end_that_waits_for_the_store_does_not_keep_a_worker_from_stopping() -> None:
    async with staged(retry_seconds=0.0) as stage:
        stage.state.is_away = True
        await stage.stream.end()
    assert (stage.stream.state, await stage.kept()) == (StreamState.ENDING, [])


def test_an_end_whose_writer_is_cancelled_is_written() -> None:
    async def run() -> None:
        async with staged() as stage:
            stage.state.is_away = True
            ending = asyncio.create_task(stage.stream.end())
            await asyncio.sleep(0)
            ending.cancel()
            await asyncio.wait([ending])
            stage.state.is_away = False
            await ended(stage)
            assert await stage.kept() == [END]

    hastily(run())


async def test_a_stream_that_could_not_be_announced_is_with_its_next_event() -> None:
    state = ScriptedState()
    state.is_away = True
    stage = Stage(state, retry_seconds=0.0)
    await stage.stream.open(1000)
    assert stage.stream.state is StreamState.NEW
    assert stage.raw == b""  # no id that other workers do not know
    state.is_away = False
    await stage.stream.send(b"1")
    assert stage.stream.state is StreamState.RUNNING
    assert await stage.store.has_writer(stage.stream.name)


@pytest.mark.parametrize("refused", ["the answer", "everything"])
async def test_a_response_that_the_full_store_refuses(refused: str) -> None:
    async with staged() as stage:
        await stage.stream.send(b"1")
        stage.state.refuses = lambda data: refused == "everything" or data == END + ANSWER
        await stage.stream.send(ANSWER, last=True)
        assert stage.sent[-1] == (ANSWER, refused == "the answer")
        kept = await stage.kept()
        assert (event_store.RESPONSE_LOST.encode() in kept[-1]) if kept else refused == "everything"
        assert stage.stream.state is StreamState.ENDED


async def test_a_store_that_has_forgotten_the_stream() -> None:
    async with staged(retry_seconds=0.0) as stage:
        await stage.stream.send(b"1")
        await stage.state.drop(stage.stream.name)
        await stage.stream.send(b"2")
        await stage.stream.send(ANSWER, last=True)
        assert stage.sent == [(b"1", True), (b"2", False), (ANSWER, False)]
        assert stage.stream.state is StreamState.ENDED


@pytest.mark.parametrize("said", [0, 2])
async def test_the_stream_of_a_lost_worker_is_ended_once_and_that_of_a_living_one_is_not(said: int) -> None:
    async with staged() as stage:
        for number in range(said):
            await stage.stream.send(b"%d" % number)
        others = [EventStore(stage.state, ttl=60.0, lease=WorkerLease(stage.state)) for _ in range(2)]
        await others[0].end_lost(stage.stream.name, said - 1)
        assert len(await stage.kept()) == said  # it has said more than it was lost with
        await asyncio.gather(*(each.end_lost(stage.stream.name, said) for each in others))
        assert not await others[0].has_writer(stage.stream.name)
        assert not await stage.stream.send(b"late")
        assert not await stage.stream.send(ANSWER, last=True)
        assert stage.stream.state is StreamState.REPLACED
        kept = await stage.kept()
        assert len(kept) == said + 1
        assert event_store.WORKER_LOST.encode() in kept[-1]
        assert not stage.store.running
    async with staged() as stage:
        await stage.stream.send(ANSWER, last=True)
        await stage.store.end_lost(stage.stream.name, 1)
        assert await stage.kept() == [END + ANSWER]


@pytest.mark.parametrize(("size", "kept"), [(8, MAX_EVENTS), (MAX_BYTES // 4, 4), (MAX_BYTES, 1), (2 * MAX_BYTES, 1)])
async def test_the_newest_events_are_kept_up_to_the_limits(size: int, kept: int) -> None:
    async with staged() as stage:
        said = [str(number).encode().ljust(size, b"x") for number in range(MAX_EVENTS + 5 if size == 8 else 6)]
        for event in said:
            await stage.stream.append(event, 60.0)
        assert await stage.kept() == said[-kept:]


async def test_only_so_many_streams_are_kept_of_those_that_have_ended() -> None:
    state = ScriptedState()
    state.shared = False
    stage = Stage(state, max_streams=3)
    await stage.stream.send(b"runs")
    streams = [EventStream(stage.store, SESSION, HttpResponse(stage._send), (7,)) for _ in range(6)]
    for stream in streams:
        await stream.send(ANSWER, last=True)
    kept = [bool((await state.read(each.name, 0)).last) for each in (stage.stream, *streams)]
    assert kept == [True, False, False, False, True, True, True]


async def test_an_event_id_is_known_if_the_stream_has_come_so_far() -> None:
    async with staged() as stage:
        for event in (b"1", b"2"):
            await stage.stream.send(event)
        for number in range(3):
            assert await stage.find(number) is stage.stream
        for number, message in ((3, 0), (1, 1)):
            with pytest.raises(ProtocolError, match="Last-Event-ID"):
                await stage.find(number, message)


@pytest.mark.parametrize("said", [0, 1, 2])
async def test_a_stream_that_has_ended_is_known_until_it_is_dropped(said: int) -> None:
    async with staged() as stage:
        for _ in range(said):
            await stage.stream.send(b"1")
        await stage.stream.send(ANSWER, last=True)
        for number in range(said + 2):
            assert await stage.find(number) is None  # nobody writes it any more
        with pytest.raises(ProtocolError, match="Last-Event-ID"):
            await stage.find(said + 2)
        await stage.state.drop(stage.stream.name)
        for number in range(said + 2):
            with pytest.raises(ProtocolError, match="Last-Event-ID"):
                await stage.find(number)
