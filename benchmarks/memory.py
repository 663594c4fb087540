"""The memory after start and one answered call, of each idle session, and of each open listen stream.

Resident memory, as the system reports it. Every round starts a new process: what an old one has freed would hide
what the next sessions cost.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.case import Case, Measured, Round, Settings
from benchmarks.http_call import ARGUMENTS, check_sum
from benchmarks.http_contender import HANDSHAKE, HEADERS, MODERN, HttpServer, Offer, Post, call, serving
from benchmarks.listeners import changing_server, listeners
from benchmarks.pipe import IDS, INITIALIZE, INITIALIZED, add_call, check_calls, opened
from benchmarks.processes import resident_bytes
from benchmarks.stdio import command

MEGABYTE, KILOBYTE = 1e6, 1e3
WARM_UP = 20  # sessions or streams before the first look
QUICK = 20

Weigh = Callable[[str, int], float]


def after_start_stdio(contender: str, _count: int) -> float:
    with opened(command(contender)) as pipe:
        if contender == "floor":
            pipe.ask(add_call(IDS[0], MODERN))
        else:
            check_calls(pipe, MODERN, 1)
        return resident_bytes(pipe.pid) / MEGABYTE


def after_start_http(contender: str, _count: int) -> float:
    with serving(contender, Offer()) as server:
        check_sum(server.ask(call("add", ARGUMENTS)))
        return resident_bytes(server.process.pid) / MEGABYTE


def per_session(contender: str, count: int) -> float:
    with serving(contender, Offer(sessions=True)) as server:
        return _each(server, count, partial(_open_sessions, server))


def per_listen_stream(contender: str, count: int) -> float:
    with changing_server(contender) as server, listeners(server, 0) as them:
        return _each(server, count, them.open)


def _each(server: HttpServer, count: int, add: Callable[[int], None]) -> float:
    """What each of `count` more costs, when there are some already."""
    add(WARM_UP)
    before = resident_bytes(server.process.pid)
    add(count)
    return (resident_bytes(server.process.pid) - before) / count / KILOBYTE


def _open_sessions(server: HttpServer, count: int) -> None:
    headers = {**HEADERS, "mcp-protocol-version": HANDSHAKE}
    for _ in range(count):
        answer = server.ask(Post(headers, INITIALIZE.decode()))
        named = {**headers, "mcp-session-id": answer.headers["mcp-session-id"]}
        server.ask(Post(named, INITIALIZED.decode()))


@contextmanager
def opening(weigh: Weigh, count: int, contender: str, settings: Settings) -> Iterator[Round]:
    many = min(count, QUICK) if settings.quick else count
    weigh(contender, QUICK)  # shows whether the contender can do this at all; compiles what has no bytecode yet
    yield lambda: Measured(weigh(contender, many))


def _case(key: str, title: str, unit: str, weigh: Weigh, count: int = 0, others: tuple[str, ...] = ()) -> Case:
    return Case(
        key=key,
        title=title,
        unit=unit,
        more_is_better=False,
        contenders=("dovetail", "mcp", "fastmcp", *others),
        targets=TARGETS.get(key, {}),
        open=partial(opening, weigh, count),
    )


VARIANTS = ("dovetail-asgi", "floor")
TARGETS = {"memory-stdio": {"mcp": 0.40, "fastmcp": 0.33}}
CASES = (
    _case("memory-stdio", "memory after start and one call, stdio", "MB", after_start_stdio, others=("floor",)),
    _case("memory-http", "memory after start and one call, HTTP", "MB", after_start_http, others=VARIANTS),
    _case("memory-session", "memory for each idle session", "kB", per_session, count=500),
    _case("memory-listen", "memory for each open listen stream", "kB", per_listen_stream, count=500),
)
