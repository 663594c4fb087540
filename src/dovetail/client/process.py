"""The link to a server that runs as a child process: one message per line on its stdin and stdout.

The child's stderr is ours. All of it happens in the loop's callbacks; there is no task and no thread to look after.
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import cast

from dovetail.client.links import Link, Receiver
from dovetail.errors import ConnectionLost, SetupError
from dovetail.transports.lines import LineSplitter

MAX_LINE_BYTES = 256 * 1024 * 1024
LEAVE_SECONDS = 2.0  # how long a child gets to leave at each step: closed stdin, terminate, kill
LAST_WORDS_SECONDS = 0.2  # how long the end of the output waits for the exit code, and the reverse
STDIN, STDOUT = 0, 1


class ProcessLink(Link):
    """Starts the command when it is opened and sees to its end when it is closed."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | Path | None) -> None:
        self._command = command
        self._env = None if env is None else {**os.environ, **env}
        self._cwd = cwd
        self._child: _Child | None = None

    async def open(self, receiver: Receiver) -> None:
        name = self._command[0]
        try:
            _, self._child = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Child(name, receiver), *self._command, stdin=PIPE, stdout=PIPE, stderr=None,
                env=self._env, cwd=self._cwd,
            )  # fmt: skip
        except OSError as failure:
            raise SetupError(f"Client: can't start {name!r}: {self._why(failure)}") from None

    def _why(self, failure: OSError) -> str:
        if self._cwd is not None and failure.filename == str(self._cwd):
            return f"{failure.strerror}: cwd={str(self._cwd)!r}"
        missing = isinstance(failure, FileNotFoundError)
        return "there is no such command" if missing else failure.strerror or "it can't be run"

    def write(self, message: bytes) -> None:
        if self._child is None:
            raise ConnectionLost("There is no connection to write to")
        self._child.stdin.write(message + b"\n")

    async def drain(self) -> None:
        if self._child is not None:
            await self._child.writable.wait()

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.leave()


class _Child(asyncio.SubprocessProtocol):
    """What the loop tells about the child, turned into messages and one reason for the end."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        self._name = name
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._splitter = LineSplitter(MAX_LINE_BYTES)
        self._exited = asyncio.Event()
        self._silent = asyncio.Event()
        self._gone = asyncio.Event()
        self._report: asyncio.TimerHandle | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(STDIN))

    # ── what it says ──

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002
        for line in self._splitter.feed(data):
            if line is None:
                self._receiver.lost(f"{self._name!r} sent a message of more than {MAX_LINE_BYTES} bytes")
            else:
                self._receiver.receive(bytes(line))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    # ── how it ends ──

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        if fd == STDIN:
            self.writable.set()
        else:
            self._silent.set()
            self._report_end()

    def process_exited(self) -> None:
        self._exited.set()
        self._report_end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._gone.set()

    def _report_end(self) -> None:
        """Once its output has ended and its exit code is known; if one of them stays away, without it."""
        if self._report is not None:
            self._report.cancel()
        if self._silent.is_set() and self._exited.is_set():
            self._receiver.lost(self._reason())
        else:
            self._report = self._loop.call_later(LAST_WORDS_SECONDS, lambda: self._receiver.lost(self._reason()))

    def _reason(self) -> str:
        code = self._transport.get_returncode()
        if code is None:
            return f"{self._name!r} closed its output"
        return f"{self._name!r} exited with code {code}" if code >= 0 else f"{self._name!r} was ended by signal {-code}"

    async def leave(self) -> None:
        """Close its stdin, then ask, then insist."""
        try:
            self.stdin.close()
            for insist in (None, self._transport.terminate, self._transport.kill):
                if insist is not None:
                    with contextlib.suppress(ProcessLookupError):
                        insist()
                if await _within(self._exited, LEAVE_SECONDS):
                    break
        finally:
            self._transport.close()
            if self._report is not None:
                self._report.cancel()
        await _within(self._gone, LEAVE_SECONDS)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it happened in time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
