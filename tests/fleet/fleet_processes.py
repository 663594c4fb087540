"""A fleet for tests: worker processes behind a real nginx, on loopback, killed and restarted at will.

nginx runs docs/deploy/nginx.conf, the file that the documentation shows; only its addresses are filled in.
"""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import test_servers

ROOT = Path(__file__).parent.parent.parent
NGINX_CONF = ROOT / "docs" / "deploy" / "nginx.conf"
FLEET_SERVER = Path(__file__).parent / "fleet_server.py"

# Below those that the system gives to outgoing connections: one of these could take the port of a worker that is down.
PORTS = range(20_000, 32_000)

NGINX_FRAME = """
daemon off;
master_process off;
pid nginx.pid;
events {{ worker_connections 1000; }}
http {{
    log_format fleet '$time_iso8601 $status $upstream_addr $upstream_status $request_time $request';
    access_log nginx-access.log fleet;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
{shown}
}}
"""


class FleetProcess:
    """One process that listens on a port of its own: it can be killed, paused, and started again at the same port."""

    def __init__(self, name: str, folder: Path, port: int, command: Sequence[str], **environment: str) -> None:
        self.name = name
        self.port = port
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._command = list(command)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return when it listens."""
        self.spawn()
        self.wait()

    def spawn(self) -> None:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}
        output = self.log.open("ab")
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        with output:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env={**ours, **self._environment}, **options
            )

    def wait(self) -> None:
        """Until it listens."""
        assert self._process is not None
        deadline = time.monotonic() + 30
        while not self.is_listening():
            is_hopeless = time.monotonic() > deadline or self._process.poll() is not None
            assert not is_hopeless, f"{self.name} does not listen: {self.said[-3000:]}"
            time.sleep(0.02)

    def is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """As `kill -9` does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end; by force if that does not help."""
        self.go_on()
        try:
            self._end(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self.kill()

    def ask_to_end(self) -> None:
        """Without waiting for it; a second time would be by force."""
        self._send(signal.SIGTERM)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _send(self, number: int) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def _end(self, number: int) -> None:
        self._send(number)
        if self._process is not None:
            self._process.wait(10)


class Fleet:
    """Some workers and the URL under which all of them are reached."""

    def __init__(self, workers: Sequence[FleetProcess], nginx: FleetProcess, store: FleetProcess | None) -> None:
        self.workers = workers
        self.nginx = nginx
        self.store = store

    @property
    def url(self) -> str:
        return f"{self.nginx.origin}/mcp"

    @property
    def urls(self) -> list[str]:
        """Of each worker, past nginx."""
        return [f"{worker.origin}/mcp" for worker in self.workers]

    def assert_clean(self) -> None:
        """No worker has failed in a way that it was not made for."""
        for worker in self.workers:
            assert "Traceback" not in worker.said, f"{worker.log}: {worker.said[-5000:]}"


@contextmanager
def fleet(
    folder: Path,
    *,
    workers: int,
    store: str | None = None,
    program: Path = FLEET_SERVER,
    processes: int = 1,
    **environment: str,
) -> Iterator[Fleet]:
    """`workers` single processes behind nginx, which share a `store`: "redis" or "sqlite".

    With `processes` above 1 each of them is a parent with so many workers of its own, which need none.
    """
    with ExitStack() as stack:

        def started(process: FleetProcess) -> FleetProcess:
            stack.callback(process.stop)
            process.start()
            return process

        redis = started(redis_server(folder)) if store == "redis" else None
        settings = {"DOVETAIL_WORKERS": str(processes), "DOVETAIL_DRAIN_TIMEOUT": "1", "FLEET_FOLDER": str(folder)}
        if redis is not None:
            settings["DOVETAIL_STATE"] = f"redis://127.0.0.1:{redis.port}/0"
        elif store == "sqlite":
            settings["DOVETAIL_STATE"] = f"sqlite:///{folder / 'state.sqlite'}"
        ports = free_ports(workers)
        commands = {port: [sys.executable, str(program), "--port", str(port)] for port in ports}
        environment = {**settings, **environment}
        each = [FleetProcess(f"worker-{port}", folder, port, commands[port], **environment) for port in ports]
        for worker in each:  # all at once, for a Python takes its time
            stack.callback(worker.stop)
            worker.spawn()
        for worker in each:
            worker.wait()
        yield Fleet(each, started(nginx_server(folder, ports)), redis)


def nginx_server(folder: Path, ports: Sequence[int]) -> FleetProcess:
    (port,) = free_ports(1)
    conf = folder / "nginx.conf"
    conf.write_text(NGINX_FRAME.format(shown=filled_in(NGINX_CONF.read_text(), port, ports)))
    command = [demand(test_servers.nginx), "-p", str(folder), "-e", str(folder / "nginx-error.log"), "-c", str(conf)]
    return FleetProcess("nginx", folder, port, command)


def filled_in(shown: str, port: int, workers: Sequence[int]) -> str:
    """The documented file with other addresses, and nothing else changed."""
    found = re.findall(r"^    server \S+( .*)$", shown, re.MULTILINE)
    assert found, "the documented file names no workers"
    lines = "".join(f"    server 127.0.0.1:{each}{found[0]}\n" for each in workers)
    shown = re.sub(r"(?:^    server \S+ .*\n)+", lines, shown, count=1, flags=re.MULTILINE)
    shown, times = re.subn(r"^    listen 80;", f"    listen 127.0.0.1:{port};", shown, flags=re.MULTILINE)
    assert times == 1
    return shown


def redis_server(folder: Path) -> FleetProcess:
    """It keeps what it holds over a restart, as docs/deploy.md says it should."""
    (port,) = free_ports(1)
    options = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync always".split()
    command = [demand(test_servers.store), *options, "--dir", str(folder), "--save", ""]
    return FleetProcess("redis", folder, port, command)


def demand(find: Callable[[], Path]) -> str:
    """Where a server is; without it the test is skipped loudly, and fails in CI."""
    try:
        return str(find())
    except test_servers.ServerMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI: {missing}")
        pytest.skip(f"! {missing}")


def free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)
