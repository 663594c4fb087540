"""The time until 1,000 listeners are notified of one change, and its cost for the server.

Each listener has a `subscriptions/listen` open over HTTP. A call changes the list of tools; the time runs from that
request until the last listener has read the notification. The CPU is that of the server for one change.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from socket import create_connection

from benchmarks.case import Case, Measured, Round, Settings
from benchmarks.http_contender import HttpServer
from benchmarks.listeners import SECONDS, Listeners, changing_server, listeners
from benchmarks.processes import LOAD_CORE, cpu_seconds, on_core

LISTENERS = 1000


@contextmanager
def opening(contender: str, settings: Settings) -> Iterator[Round]:
    with changing_server(contender) as server, listeners(server, LISTENERS) as them:
        yield lambda: one_round(server, them, settings.seconds)


def one_round(server: HttpServer, them: Listeners, seconds: float) -> Measured:
    """One change after the other, at least three; the median of their times."""
    changer = create_connection(("127.0.0.1", server.port), SECONDS)
    with closing(changer), on_core(LOAD_CORE):
        them.change_ms(changer)  # to warm up
        began, before = time.perf_counter(), cpu_seconds(server.process.pid)
        times: list[float] = []
        while len(times) < 3 or time.perf_counter() - began < seconds:
            times.append(them.change_ms(changer))
        cpu = cpu_seconds(server.process.pid) - before
    return Measured(statistics.median(times), cpu / len(times) * 1e6)


CASES = (
    Case(
        key="fan-out",
        title=f"one change sent to {LISTENERS:,} listeners",
        unit="ms",
        more_is_better=False,
        contenders=("dovetail", "dovetail-asgi", "mcp", "fastmcp"),
        open=opening,
    ),
)
