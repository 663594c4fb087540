"""Pipes of a process, watched by the loop or by a thread; its log, which never blocks; and its default threads."""

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Server
from dovetail.engine.threads import ThreadPool
from dovetail.errors import ToolBusy
from dovetail.transports import pipes, process
from dovetail.transports.pipes import Line, LineSplitter, ThreadReader, ThreadWriter, WatchedReader, WatchedWriter
from dovetail.transports.process import MAX_LINE_BYTES, MAX_LINES, StderrHandler, log_to_stderr, run_process


class Ends:
    """Both ends of a pipe."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()

    def close(self, *names: str) -> None:
        for name in names or ("out", "into"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


@pytest.fixture
def pipe() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


by_readers = pytest.mark.parametrize("open_reader", [WatchedReader, ThreadReader])
by_writers = pytest.mark.parametrize("open_writer", [WatchedWriter, ThreadWriter])


async def read_lines(pipe: Ends, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await asyncio.to_thread(os.read, pipe.out, 1_000_000)
    return data


@by_readers
async def test_a_reader_reads_to_the_end_but_not_while_it_is_paused(pipe: Ends, open_reader: Any) -> None:
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    reader = open_reader(pipe.out, chunks.put_nowait)
    os.write(pipe.into, b"one")
    assert await asyncio.wait_for(chunks.get(), 10) == b"one"
    reader.pause()
    for number in range(5):
        os.write(pipe.into, b"%d" % number)
        await asyncio.sleep(0.02)
    assert chunks.qsize() <= 1
    reader.resume()
    seen = b""
    while seen != b"01234":
        seen += await asyncio.wait_for(chunks.get(), 10)
    pipe.close("into")
    assert await asyncio.wait_for(chunks.get(), 10) == b""
    reader.resume()  # nothing follows the end
    await asyncio.sleep(0.05)
    assert chunks.empty()
    reader.close()
    assert os.get_blocking(pipe.out)


@by_writers
async def test_a_writer_keeps_the_order(pipe: Ends, open_writer: Any) -> None:
    writer = open_writer(pipe.into, lambda: None)
    messages = [b"%d" % number * (number * 7 % 3000) + b"." for number in range(500)]
    expected = b"".join(message + b"\n" for message in messages)
    reading = asyncio.create_task(read_lines(pipe, len(expected)))
    for number, message in enumerate(messages):
        writer.write(message)
        if number % 50 == 0:
            writer.cork()
        elif number % 50 == 10:
            writer.uncork()
            await asyncio.sleep(0)
    assert await writer.flush(10)
    assert await reading == expected
    writer.close()
    assert os.get_blocking(pipe.into)


async def test_a_corked_writer_sends_all_at_once_when_it_is_uncorked(pipe: Ends) -> None:
    os.set_blocking(pipe.out, False)
    writer = WatchedWriter(pipe.into, lambda: None)
    for _ in range(2):
        writer.cork()
        for message in (b"one", b"two"):
            writer.write(message)
        with pytest.raises(BlockingIOError):
            os.read(pipe.out, 100)
        writer.uncork()
        writer.uncork()  # there is nothing more to be sent
        assert os.read(pipe.out, 100) == b"one\ntwo\n"
        writer.write(b"three")
        assert os.read(pipe.out, 100) == b"three\n"
    writer.close()


@by_writers
async def test_a_writer_is_full_until_it_is_read(pipe: Ends, open_writer: Any) -> None:
    changes: list[int] = []
    writer = open_writer(pipe.into, lambda: changes.append(writer._pending))
    await asyncio.wait_for(writer.drain(), 1)
    size = 0
    while not writer.full:
        writer.write(b"x" * 99_999)
        size += 100_000
    assert pipes.HIGH_WATER < size < pipes.HIGH_WATER + 300_000
    assert not await writer.wait_for_room(0.05)
    assert not await writer.flush(0.05)
    draining = asyncio.create_task(writer.drain())
    await asyncio.sleep(0.01)
    assert not draining.done()
    await read_lines(pipe, size)
    await asyncio.wait_for(draining, 10)
    assert len(changes) == 1
    assert changes[0] <= pipes.LOW_WATER
    assert await writer.wait_for_room(1)
    assert await writer.flush(10)
    writer.close()


@by_writers
async def test_a_writer_without_a_reader_is_broken(pipe: Ends, open_writer: Any) -> None:
    changed = asyncio.Event()
    writer = open_writer(pipe.into, changed.set)
    while not writer.full:
        writer.write(b"x" * 1_000_000)
    draining = asyncio.create_task(writer.drain())
    await asyncio.sleep(0.01)
    pipe.close("out")
    await asyncio.wait_for(changed.wait(), 10)
    await asyncio.wait_for(draining, 10)
    assert writer.broken
    writer.write(b"to no reader")
    assert not await writer.flush(1)
    writer.close()


@pytest.mark.parametrize("how", ["all is sent", "closed", "closed twice", "broken"])
async def test_the_loop_watches_a_writer_only_while_something_is_to_be_sent(pipe: Ends, how: str) -> None:
    """Or it would turn without end, or wait for another file that gets the number of this one."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    writer = WatchedWriter(pipe.into, changed.set)
    writer.write(b"x" * 1_000_000)
    if how == "all is sent":
        await read_lines(pipe, 1_000_001)
        assert await writer.flush(10)
    elif how == "broken":
        pipe.close("out")
        await asyncio.wait_for(changed.wait(), 10)
    else:
        for _ in how.split():
            writer.close()
    assert not loop.remove_writer(pipe.into)
    assert os.get_blocking(pipe.into) is (how != "all is sent")
    writer.close()


def test_only_pipes_and_sockets_are_watched(pipe: Ends) -> None:
    assert pipes.is_watchable(pipe.out)
    with open(__file__, "rb") as file, open(os.devnull, "rb") as null:
        assert not pipes.is_watchable(file.fileno())
        assert not pipes.is_watchable(null.fileno())


def split(*chunks: bytes, limit: int = 20) -> list[Line]:
    splitter = LineSplitter(limit)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [line if line is None else bytes(line) for line in lines + splitter.end()]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([], []),
        ([b"a\nb\r\n"], [b"a", b"b\r"]),
        ([b"a", b"b", b"c\nd", b"\n"], [b"abc", b"d"]),
        ([b"a\nlast"], [b"a", b"last"]),
        ([b"\n\n  \n\r\n\t\na\n\n"], [b"a"]),
        ([b" ", b" \n", b" "], []),
        ([b"12345\n"], [b"12345"]),
        ([b"123456\n"], [None]),
        ([b"123456"], [None]),
        ([b"123", b"456", b"789", b"\nok\n"], [None, b"ok"]),
        ([b"123", b"456\nok\n"], [None, b"ok"]),
        ([b"ok\n123456", b"{}\nok\n"], [b"ok", None, b"ok"]),  # the tail is no line of its own
        ([b"123456", b"x" * 100, b"\n", b"123456\n"], [None, None]),
        ([b"1234", b"5\n"], [b"12345"]),
        ([b"123456", b"\n", b"\n"], [None]),
    ],
)
@pytest.mark.rule("STDIO-1")
def test_lines_in_chunks_of_any_size_and_none_for_one_that_is_too_long(chunks: list[bytes], lines: list[Line]) -> None:
    assert split(*chunks, limit=5) == lines


@given(st.lists(st.binary(min_size=1, max_size=30)), st.data())
def test_every_way_to_cut_a_stream_gives_the_same_lines(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"\n".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    wanted = [line for line in stream.split(b"\n") if len(line) > 20 or line.strip(b"\t\v\f\r ")]
    expected = [line if len(line) <= 20 else None for line in wanted]
    found = split(*(chunk for chunk in chunks if chunk))
    assert [line for line in found if line is not None] == [line for line in expected if line is not None]
    assert found.count(None) <= expected.count(None)


@pytest.mark.rule("STDIO-1")
def test_a_message_is_one_line() -> None:
    assert pipes.as_line(b'{"a":1}') == b'{"a":1}\n'
    assert pipes.as_line(b'{\n"a":1}') == pipes.as_line(b'{\r"a":1}') == b'{ "a":1}\n'
    pretty = json.dumps({"text": "two\nlines\r"}, indent=2).replace("\n", "\r\n").encode()
    line = pipes.as_line(pretty)
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert json.loads(line) == {"text": "two\nlines\r"}


def test_one_function_that_hangs_leaves_threads_to_the_others_of_to_thread() -> None:
    begun, go = threading.Semaphore(0), threading.Event()
    refusals: list[str] = []
    lengths: list[int] = []

    def hang() -> None:
        begun.release()
        go.wait(10)

    async def abandon() -> None:
        call = asyncio.create_task(asyncio.to_thread(hang))
        while not (begun.acquire(blocking=False) or call.done()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        call.cancel()
        try:
            await call
        except ToolBusy as refusal:
            refusals.append(str(refusal))
        except asyncio.CancelledError:
            pass

    async def main() -> None:
        try:
            for _ in range(200):
                await abandon()
            lengths.append(await asyncio.to_thread(len, "abc"))
            lengths.append(await asyncio.get_running_loop().run_in_executor(None, partial(len, "ab")))
        finally:
            go.set()

    run_process(main, ThreadPool())
    assert lengths == [3, 2]
    assert len(refusals) == 200 - 32
    assert "hang given to asyncio.to_thread is busy" in refusals[0]


def test_a_callback_that_fails_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon([].pop)
        await asyncio.sleep(0)

    run_process(main, ThreadPool())
    (logged,) = [each for each in caplog.records if each.name == "dovetail"]  # threads of earlier tests may log, too
    assert logged.levelname == "ERROR"
    assert "pop from empty list" in caplog.text


# ── the log ──


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("dovetail", logging.INFO, "file", 1, text, arguments, None)


def test_lines_that_are_not_read(pipe: Ends) -> None:
    handler = StderrHandler(pipe.into)
    for _ in range(10 * MAX_LINES):
        handler.emit(record("x" * 1000))
    assert handler.dropped > 8 * MAX_LINES
    handler.flush()  # returns, although nothing can be written
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(read_until(pipe.out, "the end")))
    reader.start()
    while reader.is_alive():  # until there is room for it
        handler.emit(record("the end"))
        reader.join(0.05)
    pipe.close("into")
    gaps = [int(line.split()[2]) for line in lines if line.endswith("lines that were not read in time were dropped")]
    assert lines.count("x" * 1000) + sum(gaps) >= 10 * MAX_LINES


def read_until(descriptor: int, last: str) -> list[str]:
    data = b""
    while not data.endswith(last.encode() + b"\n"):
        data += os.read(descriptor, 1_000_000)
    return data.decode().splitlines()


def test_lines_are_in_order_even_if_they_are_too_long_or_cannot_be_shown(pipe: Ends) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    handler = StderrHandler(pipe.into)
    handler.emit(record("line %d", 1))
    handler.emit(record("ä" * 20_000))
    handler.emit(record("%s", Broken()))
    handler.emit(record("\udc80"))
    handler.flush()
    pipe.close("into")
    lines = open(pipe.out, "rb", closefd=False).read().splitlines()  # noqa: SIM115
    assert len(lines[1]) <= MAX_LINE_BYTES + 10
    assert lines[:1] + lines[2:] == [b"line 1", b"INFO dovetail: [this record can't be shown]", b"\\udc80"]


@pytest.fixture
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    logger = logging.Logger("dovetail")
    monkeypatch.setattr(process, "log", logger)
    return logger


@pytest.mark.parametrize(
    ("variable", "level"), [("", logging.INFO), ("debug", logging.DEBUG), ("nonsense", logging.INFO)]
)
def test_the_level_comes_from_the_environment_and_secrets_are_redacted(
    fresh_log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capfd: Any, variable: str, level: int
) -> None:
    monkeypatch.setenv("DOVETAIL_LOG_LEVEL", variable)
    log_to_stderr(Server("s").engine)
    fresh_log.warning("password=%s", "hunter2")
    fresh_log.handlers[0].flush()
    assert fresh_log.level == level
    said = capfd.readouterr().err
    assert said.endswith("WARNING dovetail: password=[redacted]\n")
    assert ("nonsense is unknown" in said) is (variable == "nonsense")


def test_a_log_that_is_set_up_already_is_left_alone(fresh_log: logging.Logger) -> None:
    fresh_log.addHandler(logging.NullHandler())
    log_to_stderr(Server("s").engine)
    assert len(fresh_log.handlers) == 1
    assert fresh_log.level == logging.NOTSET
