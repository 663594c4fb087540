"""stdio transport: the server is a child process, with one message per line on its stdin and stdout."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any, cast

from dovetail.client.transports.base import OutgoingMessage, Receiver, Transport, check_unread
from dovetail.errors import ConnectionLost, SetupError
from dovetail.transports.pipes import LineSplitter

# Ctrl-C in a terminal must not reach the server: the client stops it, in the order that MCP wants.
NEW_GROUP: dict[str, Any] = {"start_new_session": True}
if os.name != "posix":
    NEW_GROUP = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}


class ProcessGroup:
    """A program and all that it has started, as `uv run`, `npx` or a shell do; they are stopped together."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._is_gone = False

    def is_alive(self) -> bool:
        return os.name == "posix" and self._signal(0)  # other systems don't report it

    def terminate(self) -> None:
        self._signal(signal.SIGTERM if os.name == "posix" else signal.CTRL_BREAK_EVENT)  # type: ignore[attr-defined,unused-ignore]

    def kill(self) -> None:
        if os.name == "posix":
            self._signal(signal.SIGKILL)
        elif not self._is_gone:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                command = ["taskkill", "/T", "/F", "/PID", str(self._leader)]
                subprocess.run(command, capture_output=True, timeout=10, check=False)

    def _signal(self, number: int) -> bool:
        """Signal the group; True if it reached a process. An empty group gets no more: its number may be reused."""
        if self._is_gone:
            return False
        send = os.killpg if os.name == "posix" else os.kill
        try:
            send(self._leader, number)
        except ProcessLookupError:
            self._is_gone = True
        except OSError:  # raised by macOS for a group of zombies
            return False
        return not self._is_gone


MAX_LINE_BYTES = 256 * 1024 * 1024
STOP_TIMEOUT = 2.0  # seconds for each step of stopping a child: closed stdin, terminate, kill
STDIN = 0


class NotStarted(SetupError):
    """A command can't be started; `why` repeats nothing of it, as it may hold secrets."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class StdioTransport(Transport):
    """Starts the command when it is opened and stops it when it is closed."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        *,
        stop_timeout: float = STOP_TIMEOUT,
    ) -> None:
        self._stop_timeout = stop_timeout
        self._command = command
        self._env = None if env is None else {**os.environ, **env}
        self._cwd = None if cwd is None else str(cwd)
        self._child: _Child | None = None

    async def open(self, receiver: Receiver) -> None:
        name = self._command[0]
        start = asyncio.get_running_loop().subprocess_exec
        child = _Child(name, receiver)
        options: dict[str, Any] = {"env": self._env, "cwd": self._cwd, **NEW_GROUP}
        try:
            await start(lambda: child, *self._command, stdin=PIPE, stdout=PIPE, stderr=None, **options)
        except (OSError, ValueError) as failure:
            raise self._not_started(name, failure) from None
        self._child = child

    def _not_started(self, name: str, failure: OSError | ValueError) -> NotStarted:
        place, why = "", "it can't be run"
        if isinstance(failure, ValueError):
            why = "its words or its environment hold what no system takes, such as NUL, or = in the name of a variable"
        elif self._cwd is not None and failure.filename == self._cwd:
            place, why = f" in cwd={self._cwd!r}", f"its working folder can't be used: {failure.strerror}"
        elif isinstance(failure, FileNotFoundError):
            why = "there is no such command"
        elif failure.strerror:
            why = failure.strerror
        return NotStarted(f"Client: can't start {name!r}{place}: {why}", why)

    def write(self, message: OutgoingMessage) -> None:
        if self._child is None:
            raise ConnectionLost("There is no connection to write to")
        self._child.write(message)

    async def drain(self) -> None:
        if self._child is not None:
            await self._child.writable.wait()

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.stop(self._stop_timeout)


class _Child(asyncio.SubprocessProtocol):
    """The child process: passes its messages to the receiver, and reports its end once."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        self._name = name
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._splitter = LineSplitter(MAX_LINE_BYTES)
        self._exited = asyncio.Event()
        self._stdout_closed = asyncio.Event()
        self._closed = asyncio.Event()
        self._report_timer: asyncio.TimerHandle | None = None
        self._unread = 0  # responses written while it reads too slowly
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(STDIN))
        self._group = ProcessGroup(self._transport.get_pid())

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002
        for line in self._splitter.feed(data):
            if line is None:
                self._receiver.connection_lost(f"{self._name!r} sent a message of more than {MAX_LINE_BYTES} bytes")
            else:
                self._receiver.receive(bytes(line))

    def write(self, message: OutgoingMessage) -> None:
        self.stdin.write(message.body + b"\n")
        if not self.writable.is_set() and message.is_response:
            self._unread += 1
            check_unread(self._receiver, self._unread)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()
        self._unread = 0

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        if fd == STDIN:
            self.writable.set()
        else:
            self._stdout_closed.set()
            self._report_end()

    def process_exited(self) -> None:
        self._exited.set()
        self._report_end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed.set()

    def _report_end(self) -> None:
        """Report when stdout is closed and the exit code is known; after 0.2 s without one of them."""
        if self._report_timer is not None:
            self._report_timer.cancel()
        if self._stdout_closed.is_set() and self._exited.is_set():
            self._receiver.connection_lost(self._reason())
        else:
            self._report_timer = self._loop.call_later(0.2, lambda: self._receiver.connection_lost(self._reason()))

    def _reason(self) -> str:
        code = self._transport.get_returncode()
        if code is None:
            return f"{self._name!r} closed its output"
        return f"{self._name!r} exited with code {code}" if code >= 0 else f"{self._name!r} was ended by signal {-code}"

    async def stop(self, seconds: float) -> None:
        """Close its stdin, then terminate, then kill it; kill it at once if this is cancelled."""
        try:
            self.stdin.close()
            await stop_process_group(self._group, self._exited, seconds)
        finally:
            self._group.kill()
            self._transport.close()
            if self._report_timer is not None:
                self._report_timer.cancel()
            try:
                await wait_until(self._closed, seconds)
            except asyncio.CancelledError:  # wait once more: only this loop can collect the exit code
                await wait_until(self._closed, 1.0)
                raise


async def stop_process_group(group: ProcessGroup, exited: asyncio.Event, seconds: float) -> None:
    """Wait until the leader has exited; terminate the group, then kill it. Each step takes at most these seconds."""
    for step in (None, group.terminate, group.kill):
        if step is not None:
            step()
        if await wait_until(exited, seconds):
            break
    if group.is_alive():  # the leader has not waited for its children
        group.terminate()
        for _ in range(round(seconds / 0.02)):
            await asyncio.sleep(0.02)
            if not group.is_alive():
                break
        group.kill()


async def wait_until(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event; returns whether it was set in time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
