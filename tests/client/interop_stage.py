"""Servers that others have written, each in a process of its own: a command goes in, a URL comes out."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import node_tools
from served_http import free_port

START_SECONDS, STOP_SECONDS = 60, 10
OWN_GROUP = 0 if os.name == "posix" else None  # signals to us are not for it


def everything(transport: str) -> list[str]:
    """The command of the official everything-server."""
    package = node_tools.TARGET / "node_modules" / "@modelcontextprotocol" / "server-everything"
    return [str(node_tools.node()), str(package / "dist" / "index.js"), transport]


@contextmanager
def listening(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The origin of a server; `{port}` in its command or environment is the port it has to listen on."""
    port = free_port()
    filled = [part.replace("{port}", str(port)) for part in command]
    added = {name: value.replace("{port}", str(port)) for name, value in (env or {}).items()}
    with log.open("w") as output:
        process = subprocess.Popen(
            filled,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **added},
            process_group=OWN_GROUP,
        )
    try:
        _wait_for(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        _stop(process)


def _wait_for(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"the server does not listen:\n{log.read_text()[-2000:]}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
