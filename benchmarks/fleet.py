"""The cost of state that workers share, and the gain of more workers: rates, on one host.

A plain call of 2026-07-28 must not notice where state lives; a call in a session pays for what others may go on with.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks import http_call, http_session, wrk
from benchmarks.case import CannotMeasure, Case, Measured, Round, Settings
from benchmarks.http_call import ARGUMENTS, check_sum
from benchmarks.http_contender import NO_ERRORS, HttpServer, Offer, call
from benchmarks.processes import LOAD_CORE, ROOT, free_port, running

STORES = ("memory", "sqlite", "redis")
START_SECONDS = 30.0
CONNECTIONS = 32
PLAIN = call("add", ARGUMENTS)


# ── where state lives ──


@contextmanager
def _on_store(case: Case, store: str, settings: Settings) -> Iterator[Round]:
    """A case as Dovetail answers it with its state in some store."""
    with ExitStack() as stack:
        url = stack.enter_context(STARTERS[store]())
        with _environment(DOVETAIL_STATE=url):
            measure = stack.enter_context(case.open("dovetail", settings))
        yield measure


@contextmanager
def _memory() -> Iterator[str]:
    yield ""


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/state.sqlite"


@contextmanager
def _redis() -> Iterator[str]:
    """A Redis of its own, on the core of the load."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = {"port": str(port), "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "no"}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        with running([_redis_program(), *words], core=LOAD_CORE):
            _until(lambda: _accepts(port), "Redis does not listen")
            yield f"redis://127.0.0.1:{port}/0"


STARTERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _redis,
}


def _redis_program() -> str:
    """By the script that finds, or installs, it for the tests."""
    finder = "import test_servers; test_servers.install(); print(test_servers.store())"
    found = subprocess.run(
        [sys.executable, "-c", finder], cwd=ROOT / "scripts", capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise CannotMeasure(found.stderr.strip().rpartition("\n")[2] or "there is no Redis")
    return found.stdout.strip().rpartition("\n")[2]


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """What processes inherit that are started in the block."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in variables.items() if value})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# ── how many workers ──


@contextmanager
def _workers(contender: str, settings: Settings) -> Iterator[Round]:
    """On every core that there is: the workers, and the load beside them."""
    port, count = free_port(), contender.partition(" ")[0]
    command: list[str | Path] = [sys.executable, "-m", "benchmarks.servers.dovetail_http", str(port)]
    environment = {**Offer().environment, "DOVETAIL_WORKERS": count}
    with running(command, core=None, stderr=subprocess.DEVNULL, environment=environment) as process:
        _until(lambda: _accepts(port), "the server does not listen")
        server = HttpServer(process, port)
        check_sum(server.ask(PLAIN))
        _rate(server, PLAIN.lua + wrk.looking(NO_ERRORS), 1)  # also warms it up
        yield lambda: _rate(server, PLAIN.lua, settings.seconds)
        process.send_signal(signal.SIGTERM)


def _rate(server: HttpServer, lua: str, seconds: float) -> Measured:
    """The rate alone: the CPU of several processes is not measured."""
    figures = wrk.run(server.url, lua, seconds, CONNECTIONS)
    if figures.errors or not figures.requests:
        raise CannotMeasure(f"{figures.errors} of {figures.requests} requests failed under load")
    return Measured(figures.requests / figures.seconds)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(is_so: Callable[[], bool], failing: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise CannotMeasure(failing)
        time.sleep(0.05)


def _stored(key: str, title: str, case: Case, targets: dict[str, float]) -> Case:
    return Case(key, title, "calls/s", True, STORES, partial(_on_store, case), targets, subject="redis")


CASES = [
    _stored("fleet-plain", "HTTP call 2026-07-28, by where state lives", http_call.CASES[0], {"memory": 0.95}),
    _stored("fleet-session", "HTTP call in a session, by where state lives", http_session.CASES[0], {}),
    Case(
        key="fleet-workers",
        title="HTTP call 2026-07-28, by workers",
        unit="calls/s",
        more_is_better=True,
        contenders=("1 worker", "2 workers"),
        open=_workers,
        subject="2 workers",
    ),
]
