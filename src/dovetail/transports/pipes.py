"""Non-blocking readers and writers of file descriptors, and the framing of messages as lines.

`open_reader` and `open_writer` choose how: pipes and sockets are watched by the event loop itself; for files and
terminals, and on Windows, a daemon thread does the blocking.
"""

import asyncio
import os
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from queue import SimpleQueue

STDIN, STDOUT, STDERR = range(3)
READ_SIZE = 64 * 1024  # bytes; all that fits into a pipe, and larger buffers are costly to allocate for each read
HIGH_WATER = 4 * 1024 * 1024  # bytes that may be pending for a client that does not read
LOW_WATER = 1024 * 1024  # pending bytes at which a full writer accepts messages again
LINES_PER_WRITE = 64  # of one writev

_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")

Line = bytes | bytearray | None  # None stands for a line that was longer than allowed


class LineSplitter:
    """Cuts chunks into lines, without blank ones. A carriage return stays: JSON takes it for white space.

    A line over the limit is reported once, as None, as soon as it is too long; the rest of it is discarded.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = bytearray()  # a line whose newline has not arrived
        self._discarding = False

    def feed(self, chunk: bytes) -> list[Line]:
        *pieces, rest = chunk.split(b"\n")
        lines: list[Line] = []
        if pieces and (self._partial or self._discarding):
            self._extend_partial(pieces.pop(0), lines)
            lines += self.end()
        limit = self._limit
        lines += [piece if len(piece) <= limit else None for piece in pieces if piece and not piece.isspace()]
        if rest:
            self._extend_partial(rest, lines)
        return lines

    def end(self) -> list[Line]:
        """End the partial line: its newline arrived, or the input has ended."""
        line, self._partial = self._partial, bytearray()
        discarded, self._discarding = self._discarding, False
        return [] if discarded or not line or line.isspace() else [line]

    def _extend_partial(self, piece: bytes, lines: list[Line]) -> None:
        if not self._discarding and len(self._partial) + len(piece) > self._limit:
            self._partial = bytearray()
            self._discarding = True
            lines.append(None)
        elif not self._discarding:
            self._partial += piece


def as_line(message: bytes) -> bytes:
    """One message as one line. A line break between tokens, as in an author's own JSON, becomes a space."""
    if b"\n" in message or b"\r" in message:
        message = message.translate(_LINE_BREAKS)
    return message + b"\n"


def is_watchable(descriptor: int) -> bool:
    """Whether the event loop can watch it. Watching makes it non-blocking, so no other code may depend on it."""
    if sys.platform == "win32":
        return False
    mode = os.fstat(descriptor).st_mode
    # With `2>&1` the same pipe is stderr too, where a non-blocking `print` would fail.
    return (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and not os.path.sameopenfile(descriptor, STDERR)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however long that blocks."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


OnChunk = Callable[[bytes], None]  # called with each chunk that was read; an empty one is the end of the input


class WatchedReader:
    """Reader of a descriptor that the event loop watches."""

    def __init__(self, descriptor: int, on_chunk: OnChunk) -> None:
        self._descriptor = descriptor
        self._on_chunk = on_chunk
        self._loop = asyncio.get_running_loop()
        self._watching = False
        self._closed = False
        self._was_blocking = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)
        self.resume()

    def pause(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        if not self._watching and not self._closed:
            self._watching = True
            self._loop.add_reader(self._descriptor, self._read)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.pause()
            os.set_blocking(self._descriptor, self._was_blocking)

    def _read(self) -> None:
        try:
            chunk = os.read(self._descriptor, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:  # a connection that was reset has ended, too
            chunk = b""
        if not chunk:
            self.close()
        self._on_chunk(chunk)


class ThreadReader:
    """Reader with a daemon thread: one more chunk may arrive after `pause`."""

    def __init__(self, descriptor: int, on_chunk: OnChunk) -> None:
        self._descriptor = descriptor
        self._on_chunk = on_chunk
        self._loop = asyncio.get_running_loop()
        self._read_wanted = threading.Event()
        self._paused = False
        self._closed = False
        self.resume()
        threading.Thread(target=self._read, name="dovetail-stdin", daemon=True).start()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._read_wanted.set()

    def close(self) -> None:
        self._closed = True
        self._read_wanted.set()

    def _read(self) -> None:
        chunk = b"?"
        while chunk:
            self._read_wanted.wait()
            self._read_wanted.clear()
            if self._closed:
                return
            try:
                chunk = os.read(self._descriptor, READ_SIZE)
            except OSError:
                chunk = b""
            if not _call_on_loop(self._loop, self._deliver, chunk):
                return

    def _deliver(self, chunk: bytes) -> None:
        if not self._closed:
            self._on_chunk(chunk)
            if not self._paused:
                self._read_wanted.set()


Reader = WatchedReader | ThreadReader


def open_reader(descriptor: int, on_chunk: OnChunk) -> Reader:
    return (WatchedReader if is_watchable(descriptor) else ThreadReader)(descriptor, on_chunk)


class _SendBuffer:
    """The pending bytes of a writer. `on_change` is called when it is not full any more, or when it is broken.

    It is broken when the other side has closed the pipe. Messages written after that are dropped.
    """

    def __init__(self, descriptor: int, on_change: Callable[[], None]) -> None:
        self.full = False
        self.broken = False
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._on_change = on_change
        self._pending = 0
        self._progress = asyncio.Event()

    async def drain(self) -> None:
        while self.full:
            self._progress.clear()
            await self._progress.wait()

    async def wait_for_room(self, timeout: float) -> bool:
        """Wait until it is not full; False if the client reads nothing at all for `timeout` seconds."""
        return await self.flush(timeout, LOW_WATER if self.full else HIGH_WATER)

    async def flush(self, timeout: float, remaining: int = 0) -> bool:
        """Wait until at most `remaining` bytes are pending; False if nothing is read for `timeout` seconds."""
        while self._pending > remaining:
            self._progress.clear()
            try:
                await asyncio.wait_for(self._progress.wait(), timeout)
            except TimeoutError:
                return False
        return not self.broken

    def _sent(self, count: int) -> None:
        self._pending -= count
        self._progress.set()
        if self.full and self._pending <= LOW_WATER:
            self._notify_room()

    def _mark_broken(self) -> None:
        if not self.broken:
            self.broken = True
            self._pending = 0
            self._progress.set()
            self._notify_room()

    def _notify_room(self) -> None:
        self.full = False
        self._loop.call_soon(self._on_change)  # later: the caller may still be in `write`


class WatchedWriter(_SendBuffer):
    """Writer of a descriptor that the event loop watches. `write` never blocks; each message is sent as one line."""

    def __init__(self, descriptor: int, on_change: Callable[[], None]) -> None:
        super().__init__(descriptor, on_change)
        self._unsent: deque[bytes | memoryview] = deque()  # not empty only while corked or watching
        self._corked = False
        self._watching = False
        self._was_blocking = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)

    def cork(self) -> None:
        """Hold messages back until `uncork`, which sends all of them at once."""
        self._corked = True

    def uncork(self) -> None:
        self._corked = False
        if self._unsent and not self._watching:
            self._write()

    def write(self, message: bytes) -> None:
        if self.broken:
            return
        line = as_line(message)
        self._pending += len(line)
        self._unsent.append(line)
        if not self._corked and not self._watching:
            self._write()
        if self._pending > HIGH_WATER:
            self.full = True

    def _write(self) -> None:
        try:
            count = os.writev(self._descriptor, list(islice(self._unsent, LINES_PER_WRITE)))
        except BlockingIOError:
            count = 0
        except OSError:
            self.close()
            self._mark_broken()
            return
        if count == self._pending:
            self._unsent.clear()
        else:
            rest = count
            while rest:
                line = self._unsent.popleft()
                if rest < len(line):
                    self._unsent.appendleft(memoryview(line)[rest:])
                rest -= min(rest, len(line))
        if self._unsent or self._watching:
            self._watch(bool(self._unsent))
        self._sent(count)

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._watching:
            self._loop.add_writer(self._descriptor, self._write)
        elif self._watching and not wanted:
            self._loop.remove_writer(self._descriptor)
        self._watching = wanted

    def close(self) -> None:
        """Drop unsent messages."""
        self._unsent.clear()
        self._watch(False)
        os.set_blocking(self._descriptor, self._was_blocking)


class ThreadWriter(_SendBuffer):
    """Writer with a daemon thread, which writes one line after the other."""

    def __init__(self, descriptor: int, on_change: Callable[[], None]) -> None:
        super().__init__(descriptor, on_change)
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._write, name="dovetail-stdout", daemon=True).start()

    def cork(self) -> None:
        """Do nothing: the thread writes every line by itself."""

    uncork = cork

    def write(self, message: bytes) -> None:
        if not self.broken:
            line = as_line(message)
            self._pending += len(line)
            self._lines.put(line)
            self.full = self.full or self._pending > HIGH_WATER

    def close(self) -> None:
        self._lines.put(None)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                write_all(self._descriptor, line)
            except OSError:
                _call_on_loop(self._loop, self._mark_broken)
                return
            if not _call_on_loop(self._loop, self._sent, len(line)):
                return


Writer = WatchedWriter | ThreadWriter


def open_writer(descriptor: int, on_change: Callable[[], None]) -> Writer:
    return (WatchedWriter if is_watchable(descriptor) else ThreadWriter)(descriptor, on_change)


def _call_on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> bool:
    """Call a function on the loop, from a thread; False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True
