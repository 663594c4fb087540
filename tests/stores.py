"""Real Redis or Valkey servers for tests, each in a folder of its own, found by scripts/test_servers.py.

`StoreServer(folder)` starts one and waits until it answers; it can be paused, killed, ended and started again. Ending
is by the id of the process that was started here, and by nothing else.
"""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import test_servers

import missing

TIME_LIMIT = 10  # seconds for a server to start or end; only a broken one needs them
TRIES = 5  # another process may take a free port first


def why_missing() -> str | None:
    """What keeps the tests on a real store from running, in words."""
    try:
        test_servers.store()
    except test_servers.ServerMissing as problem:
        return str(problem)
    return None


def demand() -> None:
    """Skip loudly where no store can be had; in CI its absence is a failure."""
    missing.demand(why_missing())


class StoreServer:
    """One server on 127.0.0.1 that forgets everything when it ends, unless `options` say otherwise."""

    def __init__(self, folder: Path, *mode: str, **options: object) -> None:
        self.folder = folder
        self.mode = mode  # such as a configuration file and --sentinel
        self.options: dict[str, object] = {"save": "", "loglevel": "warning", **options}
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """On the port that it had before, if any."""
        for _ in range(TRIES):
            port = self.port or free_port()
            if self._begin(port):
                self.port = port
                return
        raise AssertionError("a store did not start:\n" + (self.folder / "store.log").read_text()[-2000:])

    def _begin(self, port: int) -> bool:
        options = {"bind": "127.0.0.1", "port": port, "dir": self.folder, **self.options}
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        with (self.folder / "store.log").open("ab") as log:
            command = [str(test_servers.store()), *self.mode, *words]
            self._process = process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + TIME_LIMIT
        while time.monotonic() < until and process.poll() is None:
            if _answers(port):
                return True
            time.sleep(0.01)
        self.kill()
        return False

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it in good order: it writes what it has to keep."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            process.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(TIME_LIMIT)

    def command(self, *words: str | bytes) -> bytes:
        """Ask it directly; what comes back within a moment, as it came."""
        return ask(self.port, *words)


def ask(port: int, *words: str | bytes) -> bytes:
    parts = [word if isinstance(word, bytes) else word.encode() for word in words]
    message = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(message)
        return connection.recv(1 << 20)


def _answers(port: int) -> bool:
    try:
        return ask(port, "PING").startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
