"""Many commands on one connection, before a store that the test plays itself."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable

import pytest
from redis_stage import eventually

from dovetail.state import redis_pipeline
from dovetail.state.redis_pipeline import Lost, Pipeline, Unsent, Way
from dovetail.state.redis_resp import Refused


class Stage:
    """The other end: what came, piece by piece, and how to answer."""

    def __init__(self) -> None:
        self.port = 0
        self.came: list[bytes] = []
        self.reads = True
        self.writers: list[asyncio.StreamWriter] = []
        self._ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while self.reads and (data := await reader.read(1 << 16)):
                self.came.append(data)
            if self.reads:
                self._ended += 1

    def say(self, data: bytes) -> None:
        self.writers[-1].write(data)

    async def connect(self) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        await eventually(lambda: bool(self.writers))
        return writer

    async def all_ended(self) -> None:
        await eventually(lambda: self._ended == len(self.writers))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    server = await asyncio.start_server(stage.serve, "127.0.0.1", 0)
    stage.port = server.sockets[0].getsockname()[1]
    yield stage
    server.close()
    for writer in stage.writers:
        writer.transport.abort()


@pytest.fixture
async def pipeline(stage: Stage) -> AsyncIterator[Pipeline]:
    pipeline = Pipeline(await stage.connect())
    yield pipeline
    await pipeline.close()


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_pipeline, "DEADLINE", 0.2)
    monkeypatch.setattr(redis_pipeline, "GRACE_SECONDS", 0.02)


async def test_what_is_asked_together_goes_out_together(pipeline: Pipeline, stage: Stage) -> None:
    answers = [pipeline.ask(b"<%d>" % n) for n in range(10)]
    await eventually(lambda: bool(stage.came))
    assert stage.came == [b"".join(b"<%d>" % n for n in range(10))]
    stage.say(b"".join(b":%d\r\n" % n for n in range(10)))
    assert await asyncio.gather(*answers) == list(range(10))


async def test_a_refusal_is_an_answer(pipeline: Pipeline, stage: Stage) -> None:
    answers = [pipeline.ask(b"1"), pipeline.ask(b"2")]
    stage.say(b"-OOM full\r\n+OK\r\n")
    refusal, fine = await asyncio.gather(*answers)
    assert isinstance(refusal, Refused)
    assert fine == b"OK"


async def test_who_has_given_up_disturbs_nobody(pipeline: Pipeline, stage: Stage) -> None:
    first, second = pipeline.ask(b"1"), pipeline.ask(b"2")
    first.cancel()
    stage.say(b":1\r\n:2\r\n")
    assert await second == 2


async def test_what_was_sent_is_lost_and_what_was_not_is_unsent(pipeline: Pipeline, stage: Stage) -> None:
    sent = pipeline.ask(b"1")
    await eventually(lambda: bool(stage.came))
    waiting = pipeline.ask(b"2")
    pipeline.drop("the test wants it so")
    assert type(await sent) is Lost
    assert type(await waiting) is Unsent
    assert type(await pipeline.ask(b"3")) is Unsent
    await stage.all_ended()
    assert stage.came == [b"1"]


async def test_the_other_end_closes(pipeline: Pipeline, stage: Stage) -> None:
    answer = pipeline.ask(b"1")
    await eventually(lambda: bool(stage.came))
    stage.writers[0].close()
    assert type(await answer) is Lost
    assert pipeline.is_lost
    assert not pipeline.is_ready


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
with contextlib.suppress(ImportError):
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("size", [10, 2 * redis_pipeline.LARGE_BYTES])
@pytest.mark.parametrize("resets", [True, False])
def test_nothing_is_sent_if_the_other_end_had_closed_before(loop: str, size: int, resets: bool) -> None:
    """Though this process was busy, and the event loop has not looked yet."""
    with socket.create_server(("127.0.0.1", 0)) as server, asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(_closed_before(server, bytes(size), resets))


async def _closed_before(server: socket.socket, message: bytes, resets: bool) -> None:
    async def connect() -> asyncio.StreamWriter:
        return (await asyncio.open_connection(*server.getsockname()))[1]

    way = Way(connect)
    for turns in range(4):  # until the loop looks, while it does, and when it has
        pipeline = await way.open()
        other_end, _ = server.accept()
        if resets:
            other_end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other_end.close()
        for _ in range(turns):
            await asyncio.sleep(0)
        assert type(await pipeline.ask(message)) is Unsent
        assert pipeline.is_lost
    await way.close()


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n", b":1\r\n:2\r\n"])
async def test_something_that_is_no_answer(pipeline: Pipeline, stage: Stage, words: bytes) -> None:
    answer = pipeline.ask(b"1")
    await eventually(lambda: bool(stage.came))
    stage.say(words)
    await eventually(lambda: pipeline.is_lost)
    assert type(await answer) is (int if words.startswith(b":") else Lost)
    await stage.all_ended()


@pytest.mark.usefixtures("hurry")
async def test_no_answer_in_time(pipeline: Pipeline, stage: Stage) -> None:
    first, second = pipeline.ask(b"1"), pipeline.ask(b"2")
    stage.say(b":1\r\n")
    assert await first == 1
    assert isinstance(await asyncio.wait_for(second, 2), TimeoutError)
    assert pipeline.is_lost
    await stage.all_ended()


@pytest.mark.usefixtures("hurry")
async def test_each_has_its_own_time(pipeline: Pipeline, stage: Stage) -> None:
    """A store that was slow may still answer what was asked later, and nothing of it is asked twice."""
    first = pipeline.ask(b"1")
    await asyncio.sleep(0.15)
    second = pipeline.ask(b"2")
    assert isinstance(await asyncio.wait_for(first, 2), TimeoutError)
    assert not second.done()
    assert not pipeline.is_ready
    stage.say(b":1\r\n:2\r\n")
    assert await second == 2
    assert pipeline.is_lost
    await stage.all_ended()


@pytest.mark.usefixtures("hurry")
async def test_the_time_ends_for_all_when_answers_only_trickle(pipeline: Pipeline, stage: Stage) -> None:
    answers = [pipeline.ask(b"<%d>" % n) for n in range(100)]
    began = asyncio.get_running_loop().time()
    trickle = asyncio.create_task(_trickle(stage))
    outcomes = await asyncio.wait_for(asyncio.gather(*answers), 2)
    assert asyncio.get_running_loop().time() - began < 1
    assert isinstance(outcomes[0], int)
    assert isinstance(outcomes[-1], TimeoutError)
    trickle.cancel()


async def _trickle(stage: Stage) -> None:
    for n in range(200):
        stage.say(b":%d\r\n" % n)
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("hurry")
async def test_an_answer_that_lies_there_counts(pipeline: Pipeline, stage: Stage) -> None:
    answer = pipeline.ask(b"1")
    await eventually(lambda: bool(stage.came))
    stage.say(b":1\r\n")
    time.sleep(0.4)  # noqa: ASYNC251 - the process is held up
    assert await answer == 1


@pytest.mark.usefixtures("hurry")
async def test_answers_keep_it_alive(pipeline: Pipeline, stage: Stage) -> None:
    for n in range(8):
        answer = pipeline.ask(b"1")
        await asyncio.sleep(0.05)
        stage.say(b":%d\r\n" % n)
        assert await answer == n
    await asyncio.sleep(0.3)
    assert not pipeline.is_lost
    assert pipeline._timer is None  # nothing runs while nothing is asked


async def test_it_takes_no_more_than_it_can_send(pipeline: Pipeline, stage: Stage) -> None:
    stage.reads = False
    pipeline.ask(bytes(32 * 1024 * 1024))
    assert not pipeline.is_ready
    waiting = asyncio.create_task(pipeline.until_writable())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    pipeline.drop("the test wants it so")
    await waiting


async def test_it_ends_when_everything_was_answered(pipeline: Pipeline, stage: Stage) -> None:
    answer = pipeline.ask(b"1")
    pipeline.end()
    assert not pipeline.is_lost
    stage.say(b":1\r\n")
    assert await answer == 1
    assert pipeline.is_lost
    await stage.all_ended()


class TestWay:
    async def test_one_pipe_for_all(self, stage: Stage) -> None:
        way = Way(stage.connect)
        assert way.ready() is None
        pipelines = await asyncio.gather(*(way.open() for _ in range(5)))
        assert set(pipelines) == {way.ready()}
        assert len(stage.writers) == 1
        await way.close()
        await stage.all_ended()

    async def test_another_one_after_it(self, stage: Stage) -> None:
        way = Way(stage.connect)
        first = await way.open()
        answer = first.ask(b"1")
        way.leave()
        second = await way.open()
        assert second is not first
        assert not first.is_lost
        await way.close()
        assert type(await answer) is Lost
        await stage.all_ended()

    @pytest.mark.usefixtures("hurry")
    async def test_another_one_when_it_does_not_answer(self, stage: Stage) -> None:
        way = Way(stage.connect)
        first = await way.open()
        overdue = first.ask(b"1")
        await asyncio.sleep(0.15)
        under_way = first.ask(b"2")
        assert isinstance(await overdue, TimeoutError)
        assert way.ready() is None
        assert await way.open() is not first
        assert way._ending == [first]
        assert isinstance(await under_way, TimeoutError)
        await way.close()
        await stage.all_ended()

    async def test_it_closes_while_a_pipe_is_opened(self, stage: Stage) -> None:
        way = Way(stage.connect)
        opening = asyncio.create_task(way.open())
        await asyncio.sleep(0)
        await way.close()
        assert (await opening).is_lost
        await stage.all_ended()

    async def test_a_try_that_fails_keeps_nobody_out(self, stage: Stage) -> None:
        tries = 0

        async def connect() -> asyncio.StreamWriter:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise Unsent("not now")
            return await stage.connect()

        way = Way(connect)
        first, second = await asyncio.gather(way.open(), way.open(), return_exceptions=True)
        assert isinstance(first, Unsent)
        assert isinstance(second, Pipeline)
        await way.close()
