"""A program that was started before anything of the client was loaded comes in; a `Client` that speaks to it goes out.

Pipes of such a process can be waited for on POSIX only.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from subprocess import Popen, TimeoutExpired
from typing import Any

from dovetail.client.client import Client
from dovetail.client.transports.base import Receiver, Transport
from dovetail.client.transports.stdio import LEAVE_SECONDS, MAX_LINE_BYTES, REAP_SECONDS, ProcessGroup, see_out
from dovetail.transports.lines import LineSplitter

LAST_WORDS_SECONDS = 0.5  # how long the end of the output waits for the exit code


def client_of(process: "Popen[bytes]", shown: str, **options: Any) -> Client:
    """As `Client(command)`, but the command runs already, as the first of a group of its own."""
    return Client(StartedLink(process, shown), **options)


class StartedLink(Transport):
    """One message per line on the stdin and stdout of a process; closing it sees to its end."""

    def __init__(self, process: "Popen[bytes]", shown: str) -> None:
        self._process = process
        self._shown = shown
        self._family = ProcessGroup(process.pid)
        self._pipes: list[asyncio.BaseTransport] = []
        self._exited = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    async def open(self, receiver: Receiver) -> None:
        loop = asyncio.get_running_loop()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        threading.Thread(target=self._wait, args=(loop.call_soon_threadsafe,), daemon=True).start()
        reading, _ = await loop.connect_read_pipe(lambda: _Output(receiver, self._reason), self._process.stdout)
        self._writing, _ = await loop.connect_write_pipe(lambda: _Input(self._writable), self._process.stdin)
        self._pipes = [self._writing, reading]

    def write(self, message: bytes) -> None:
        if not self._writing.is_closing():  # else it has gone, and the end of its output will tell why
            self._writing.write(message + b"\n")

    async def drain(self) -> None:
        await self._writable.wait()

    async def close(self) -> None:
        """Close its stdin, then ask, then insist; if whoever waits for that is cancelled, insist at once."""
        try:
            for pipe in self._pipes[:1]:
                pipe.close()
            await see_out(self._family, self._exited, LEAVE_SECONDS)
        finally:
            self._family.kill()
            for pipe in self._pipes:
                pipe.close()
            with suppress(TimeoutExpired):
                self._process.wait(REAP_SECONDS)

    def _wait(self, tell: Callable[..., object]) -> None:
        self._process.wait()
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            tell(self._exited.set)

    async def _reason(self) -> str:
        """Why nothing more comes."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), LAST_WORDS_SECONDS)
        code = self._process.returncode
        if code is None:
            return f"{self._shown} closed its output"
        return f"{self._shown} exited with code {code}" if code >= 0 else f"{self._shown} was ended by signal {-code}"


class _Output(asyncio.Protocol):
    """What the process says."""

    def __init__(self, receiver: Receiver, reason: Callable[[], Any]) -> None:
        self._receiver = receiver
        self._reason = reason
        self._splitter = LineSplitter(MAX_LINE_BYTES)

    def data_received(self, data: bytes) -> None:
        for line in self._splitter.feed(data):
            if line is None:
                self._receiver.lost(f"the server sent a message of more than {MAX_LINE_BYTES} bytes")
            else:
                self._receiver.receive(bytes(line))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._end = asyncio.get_running_loop().create_task(self._report())

    async def _report(self) -> None:
        self._receiver.lost(await self._reason())


class _Input(asyncio.BaseProtocol):
    """What it hears: whether there is room for more."""

    def __init__(self, writable: asyncio.Event) -> None:
        self._writable = writable

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._writable.set()
