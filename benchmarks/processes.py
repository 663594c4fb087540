"""Processes under test, which are always ended, and the CPU and memory that they use.

They run in the root of the checkout, so that `python -m benchmarks.servers.…` works in every environment.
Settings for Python in this shell are not passed on: no contender runs without bytecode, unbuffered, or in debug mode.
The process under test is pinned to one core and its driver to another, where there are two. Each child is in a
session of its own, so that Ctrl-C reaches this program alone, which then ends its children one by one.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from benchmarks.case import CannotMeasure

ROOT = Path(__file__).resolve().parent.parent
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START_SECONDS, STOP_SECONDS = 180.0, 15.0
_CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
SERVER_CORE: int | None = _CORES[0] if len(_CORES) > 1 else None
LOAD_CORE: int | None = _CORES[1] if len(_CORES) > 1 else None
_TICKS = os.sysconf("SC_CLK_TCK")
Process = subprocess.Popen[bytes]


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    core: int | None = SERVER_CORE,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """A process for the time of the block, on its core; ended by its own id however the block ends."""
    process: Process | None = None
    try:
        with uninterrupted(), on_core(core):  # the child inherits the core, with every thread that it will ever have
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=ROOT,
                env={**own_environment(), **(environment or {})},
                start_new_session=True,
            )
        yield process
    finally:
        if process is not None:
            end(process)


def own_environment() -> dict[str, str]:
    """The variables that a child gets: ours, without the switches of Python itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") or name == "PYTHONPATH"}


@contextmanager
def listening(
    command: Sequence[str | Path], port: int, *, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """A server that accepts connections on its port. If it ends before that, its last words are in the exception."""
    with tempfile.TemporaryFile() as log, running(command, stdout=log, stderr=log, environment=environment) as process:
        if not _accepts(process, port):
            log.seek(0)
            words = log.read()[-2000:].decode(errors="replace").strip()
            raise CannotMeasure(f"the server does not listen: {words or 'it wrote nothing'}")
        yield process


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals wait until the block is over: one in the midst of a spawn would leave a process behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business
        return
    waiting: list[int] = []
    before = {number: signal.signal(number, lambda number, _: waiting.append(number)) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for missed in waiting:
            signal.raise_signal(missed)


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Keep this program on one core for the time of the block; without effect where there is only one."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def end(process: Process) -> None:
    """End a process that we started and wait for it; by force if asking does not help."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):  # it is gone, and something was still to be written
                pipe.close()
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """CPU that a process has used so far, in all its threads, user and system."""
    fields = _proc(pid, "stat").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM now."""
    line = next(line for line in _proc(pid, "status").splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def _proc(pid: int, name: str) -> str:
    if not sys.platform.startswith("linux"):
        raise CannotMeasure("CPU and memory of a process are read from /proc, which only Linux has")
    return Path(f"/proc/{pid}/{name}").read_text()


def _accepts(process: Process, port: int) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.05)
    return False
