"""Readers and writers on a pipe in this process, those that the loop watches and those with a thread."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from dovetail.transports.pipes import (
    HIGH_WATER,
    LOW_WATER,
    ThreadReader,
    ThreadWriter,
    WatchedReader,
    WatchedWriter,
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


@pytest.fixture(params=[WatchedReader, ThreadReader])
def reader_class(request: pytest.FixtureRequest) -> type[WatchedReader | ThreadReader]:
    return request.param


@pytest.fixture(params=[WatchedWriter, ThreadWriter])
def writer_class(request: pytest.FixtureRequest) -> type[WatchedWriter | ThreadWriter]:
    return request.param


async def read_lines(pipe: Ends, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await asyncio.to_thread(os.read, pipe.out, 1_000_000)
    return data


async def test_a_reader_reads_to_the_end(pipe: Ends, reader_class: type[WatchedReader | ThreadReader]) -> None:
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    reader = reader_class(pipe.out, chunks.put_nowait)
    for data in (b"one", b"two"):
        os.write(pipe.into, data)
        assert await asyncio.wait_for(chunks.get(), 10) == data
    pipe.close("into")
    assert await asyncio.wait_for(chunks.get(), 10) == b""
    reader.resume()  # nothing follows the end
    await asyncio.sleep(0.05)
    assert chunks.empty()
    reader.close()
    assert os.get_blocking(pipe.out)


async def test_a_reader_that_pauses(pipe: Ends, reader_class: type[WatchedReader | ThreadReader]) -> None:
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    reader = reader_class(pipe.out, chunks.put_nowait)
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
    reader.close()


async def test_a_writer_keeps_the_order(pipe: Ends, writer_class: type[WatchedWriter | ThreadWriter]) -> None:
    writer = writer_class(pipe.into, lambda: None)
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


async def test_what_is_gathered_is_sent_at_once(pipe: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = WatchedWriter(pipe.into, lambda: None)
    sent: list[int] = []
    real = os.writev

    def counted(descriptor: int, lines: list[bytes]) -> int:
        sent.append(len(lines))
        return real(descriptor, lines)

    monkeypatch.setattr(os, "writev", counted)
    writer.gather()
    for number in range(32):
        writer.write(b"%02d" % number)
    assert sent == []
    writer.send_gathered()
    writer.write(b"alone")
    assert sent == [32, 1]
    assert len(await read_lines(pipe, 32 * 3 + 6)) == 32 * 3 + 6
    writer.close()


async def test_a_writer_is_full_until_it_is_read(pipe: Ends, writer_class: type[WatchedWriter | ThreadWriter]) -> None:
    changes: list[int] = []
    writer = writer_class(pipe.into, lambda: changes.append(writer._pending))
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


async def test_a_writer_without_a_reader_is_broken(
    pipe: Ends, writer_class: type[WatchedWriter | ThreadWriter]
) -> None:
    changed = asyncio.Event()
    writer = writer_class(pipe.into, changed.set)
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
