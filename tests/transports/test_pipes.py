"""Readers and writers on a pipe in this process, those that the loop watches and those with a thread."""

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.transports.pipes import (
    HIGH_WATER,
    LOW_WATER,
    Line,
    LineSplitter,
    ThreadReader,
    ThreadWriter,
    WatchedReader,
    WatchedWriter,
    as_line,
    is_watchable,
)


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
            writer.gather()
        elif number % 50 == 10:
            writer.send_gathered()
            await asyncio.sleep(0)
    assert await writer.flush(10)
    assert await reading == expected
    writer.close()
    assert os.get_blocking(pipe.into)


@by_writers
async def test_a_writer_is_full_until_it_is_read(pipe: Ends, open_writer: Any) -> None:
    changes: list[int] = []
    writer = open_writer(pipe.into, lambda: changes.append(writer._pending))
    await asyncio.wait_for(writer.drain(), 1)
    size = 0
    while not writer.full:
        writer.write(b"x" * 99_999)
        size += 100_000
    assert HIGH_WATER < size < HIGH_WATER + 300_000
    assert not await writer.has_room(0.05)
    assert not await writer.flush(0.05)
    draining = asyncio.create_task(writer.drain())
    await asyncio.sleep(0.01)
    assert not draining.done()
    await read_lines(pipe, size)
    await asyncio.wait_for(draining, 10)
    assert len(changes) == 1
    assert changes[0] <= LOW_WATER
    assert await writer.has_room(1)
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
    writer.write(b"to nobody")
    assert not await writer.flush(1)
    writer.close()


def test_only_pipes_and_sockets_are_watched(pipe: Ends) -> None:
    assert is_watchable(pipe.out)
    with open(__file__, "rb") as file, open(os.devnull, "rb") as null:
        assert not is_watchable(file.fileno())
        assert not is_watchable(null.fileno())


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
def test_lines_whatever_the_chunks_and_none_for_one_that_is_too_long(chunks: list[bytes], lines: list[Line]) -> None:
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
    assert as_line(b'{"a":1}') == b'{"a":1}\n'
    assert as_line(b'{\n"a":1}') == as_line(b'{\r"a":1}') == b'{ "a":1}\n'
    pretty = json.dumps({"text": "two\nlines\r"}, indent=2).replace("\n", "\r\n").encode()
    line = as_line(pretty)
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert json.loads(line) == {"text": "two\nlines\r"}
