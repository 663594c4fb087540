"""Non-blocking pipes and their framing: bytes from one descriptor, lines to another, beside the event loop.

`open_reader` and `open_writer` choose how: pipes and sockets are watched by the loop itself; for files and terminals,
and on Windows, a daemon thread does the blocking.
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
CHUNK = 64 * 1024  # all that fits into a pipe; room for much more is costly to get for each read
HIGH_WATER = 4 * 1024 * 1024  # so many bytes may wait for a client that does not read ...
LOW_WATER = 1024 * 1024  # ... and so few must be left before there is room again
LINES_AT_ONCE = 64

_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")

# ── framing ──

Line = bytes | bytearray | None  # None stands for a line that was longer than allowed


class LineSplitter:
    """Cuts chunks into lines. Blank lines are left out, and a carriage return is left in: JSON takes it for space.

    A line over the limit is reported once, as None, as soon as it is too long; the rest of it, up to its newline, is
    thrown away.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun = bytearray()  # a line whose newline is still to come
        self._discarding = False

    def feed(self, chunk: bytes) -> list[Line]:
        *pieces, rest = chunk.split(b"\n")
        lines: list[Line] = []
        if pieces and (self._begun or self._discarding):
            self._begin(pieces.pop(0), lines)
            lines += self.end()
        limit = self._limit
        lines += [piece if len(piece) <= limit else None for piece in pieces if piece and not piece.isspace()]
        if rest:
            self._begin(rest, lines)
        return lines

    def end(self) -> list[Line]:
        """The line that was begun is complete: its newline came, or the input is over."""
        line, self._begun = self._begun, bytearray()
        discarded, self._discarding = self._discarding, False
        return [] if discarded or not line or line.isspace() else [line]

    def _begin(self, piece: bytes, lines: list[Line]) -> None:
        """Add to the line that is begun, unless it is too long already."""
        if self._discarding:
            return
        if len(self._begun) + len(piece) > self._limit:
            self._begun = bytearray()
            self._discarding = True
            lines.append(None)
        else:
            self._begun += piece


def as_line(message: bytes) -> bytes:
    """One message as one line. A line break between its tokens, where a user's own JSON has one, becomes a space."""
    if b"\n" in message or b"\r" in message:
        message = message.translate(_LINE_BREAKS)
    return message + b"\n"


# ── descriptors ──


def is_watchable(descriptor: int) -> bool:
    """Tell whether the loop can watch it. That makes it non-blocking, which its other users must not feel."""
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


# ── in ──


Received = Callable[[bytes], None]


class WatchedReader:
    """Hands over what it reads in chunks; an empty one is the end. The loop calls when there is something to read."""

    def __init__(self, descriptor: int, received: Received) -> None:
        self._descriptor = descriptor
        self._received = received
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
            chunk = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a connection that was reset has ended too
            chunk = b""
        if not chunk:
            self.close()
        self._received(chunk)


class ThreadReader:
    """The same by a daemon thread: after a pause one more chunk may come."""

    def __init__(self, descriptor: int, received: Received) -> None:
        self._descriptor = descriptor
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Event()
        self._paused = False
        self._closed = False
        self.resume()
        threading.Thread(target=self._read, name="dovetail-stdin", daemon=True).start()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._wanted.set()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    def _read(self) -> None:
        chunk = b"?"
        while chunk:
            self._wanted.wait()
            self._wanted.clear()
            if self._closed:
                return
            try:
                chunk = os.read(self._descriptor, CHUNK)
            except OSError:
                chunk = b""
            if not _tell(self._loop, self._deliver, chunk):
                return

    def _deliver(self, chunk: bytes) -> None:
        if not self._closed:
            self._received(chunk)
            if not self._paused:
                self._wanted.set()


Reader = WatchedReader | ThreadReader


def open_reader(descriptor: int, received: Received) -> Reader:
    return (WatchedReader if is_watchable(descriptor) else ThreadReader)(descriptor, received)


# ── out ──


class _Outbox:
    """The bytes that a writer still has to send. `changed` is called when there is room again.

    It is also called when the other side is gone: then `broken` is true, and what is still written is dropped.
    """

    def __init__(self, descriptor: int, changed: Callable[[], None]) -> None:
        self.full = False
        self.broken = False
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._pending = 0
        self._moved = asyncio.Event()

    async def drain(self) -> None:
        while self.full:
            self._moved.clear()
            await self._moved.wait()

    async def has_room(self, patience: float) -> bool:
        """Wait for room; False if nothing at all is read for `patience` seconds."""
        return await self._sinks_to(LOW_WATER if self.full else HIGH_WATER, patience)

    async def flush(self, patience: float) -> bool:
        """Wait until everything is sent; False if nothing at all is read for `patience` seconds."""
        return await self._sinks_to(0, patience)

    async def _sinks_to(self, level: int, patience: float) -> bool:
        while self._pending > level:
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), patience)
            except TimeoutError:
                return False
        return not self.broken

    def _sent(self, count: int) -> None:
        self._pending -= count
        self._moved.set()
        if self.full and self._pending <= LOW_WATER:
            self._make_room()

    def _break(self) -> None:
        if not self.broken:
            self.broken = True
            self._pending = 0
            self._moved.set()
            self._make_room()

    def _make_room(self) -> None:
        self.full = False
        self._loop.call_soon(self._changed)  # not while someone is still in `write`


class WatchedWriter(_Outbox):
    """Takes messages at once and sends them, each as one line, as fast as the pipe takes them; the loop calls then."""

    def __init__(self, descriptor: int, changed: Callable[[], None]) -> None:
        super().__init__(descriptor, changed)
        self._unsent: deque[bytes | memoryview] = deque()  # not empty only while gathering or watching
        self._gathering = False
        self._watching = False
        self._was_blocking = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)

    def gather(self) -> None:
        """Keep what is written until `send_gathered`, which sends all of that at once."""
        self._gathering = True

    def send_gathered(self) -> None:
        self._gathering = False
        if self._unsent and not self._watching:
            self._write()

    def write(self, message: bytes) -> None:
        if self.broken:
            return
        line = as_line(message)
        self._pending += len(line)
        self._unsent.append(line)
        if not self._gathering and not self._watching:
            self._write()
        if self._pending > HIGH_WATER:
            self.full = True

    def _write(self) -> None:
        try:
            count = os.writev(self._descriptor, list(islice(self._unsent, LINES_AT_ONCE)))
        except BlockingIOError:
            count = 0
        except OSError:
            self.close()
            self._break()
            return
        if count == self._pending:
            self._unsent.clear()
        else:
            self._forget(count)
        if self._unsent or self._watching:
            self._watch(bool(self._unsent))
        self._sent(count)

    def _forget(self, count: int) -> None:
        """Drop the first `count` bytes of what is unsent."""
        while count:
            line = self._unsent.popleft()
            if count < len(line):
                self._unsent.appendleft(memoryview(line)[count:])
            count -= min(count, len(line))

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._watching:
            self._loop.add_writer(self._descriptor, self._write)
        elif self._watching and not wanted:
            self._loop.remove_writer(self._descriptor)
        self._watching = wanted

    def close(self) -> None:
        """Drop what is still unsent."""
        self._unsent.clear()
        self._watch(False)
        os.set_blocking(self._descriptor, self._was_blocking)


class ThreadWriter(_Outbox):
    """The same by a daemon thread, which writes one line after the other."""

    def __init__(self, descriptor: int, changed: Callable[[], None]) -> None:
        super().__init__(descriptor, changed)
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._write, name="dovetail-stdout", daemon=True).start()

    def gather(self) -> None:
        """The thread gathers nothing."""

    def send_gathered(self) -> None:
        """See `gather`."""

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
                _tell(self._loop, self._break)
                return
            if not _tell(self._loop, self._sent, len(line)):
                return


Writer = WatchedWriter | ThreadWriter


def open_writer(descriptor: int, changed: Callable[[], None]) -> Writer:
    return (WatchedWriter if is_watchable(descriptor) else ThreadWriter)(descriptor, changed)


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> bool:
    """Call a function on the loop, from a thread; False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True
