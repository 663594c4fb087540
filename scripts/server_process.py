"""A server in a process of its own: a program that takes `--port N`, and the port on which it listens.

The process is ended by its own id. Complaints (it stayed, it failed, it wrote a traceback) are collected after its end.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

OWN_GROUP = 0 if os.name == "posix" else None  # signals to us are not for it
START_SECONDS, STOP_SECONDS = 20, 15


class NotListening(Exception):
    """The program has ended, or listens on no port; with what it wrote."""


class Serving(NamedTuple):
    port: int
    complaints: list[str]  # filled when the server has ended

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(program: Sequence[str], log: Path, python: str | Path = sys.executable) -> Iterator[Serving]:
    """Run a Python program as a server; all that it writes goes into the log. Raises NotListening."""
    served = Serving(_free_port(), [])
    command = [str(python), *program, "--port", str(served.port)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, process_group=OWN_GROUP
        )
    try:
        _wait_for(process, served.port, log)
        yield served
    finally:
        served.complaints.extend(_stop(process))
    if "Traceback" in log.read_text():
        served.complaints.append(f"the server wrote a traceback, see {log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise NotListening(f"the server does not listen:\n{log.read_text()[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> list[str]:
    process.terminate()
    try:
        code = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return [f"the server was still there {STOP_SECONDS} s after SIGTERM"]
    return [f"the server ended with exit code {code}"] if code != 0 else []
