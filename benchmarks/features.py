"""The CPU that each feature a tool may use adds to one call, in this process, on a pipe."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from benchmarks.case import CannotMeasure, Case, Measured, Round, Settings
from dovetail import Context, Depends, Server
from dovetail.engine import call_tool, current_context, metrics
from dovetail.engine.connection import Connection

CALLS = 2_000
AT_ONCE = 20
LINE = (
    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"tool","arguments":%b,"_meta":'
    b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},'
    b'"progressToken":%d}}}'
)
NUMBERS = b'{"a":1,"b":2}'


@dataclass
class Order:
    article: str
    count: int
    price: float
    notes: list[str]


ORDER = b'{"order":{"article":"hat","count":3,"price":9.5,"notes":["red","large"]}}'


async def add(a: int, b: int) -> int:
    return a + b


async def with_context(a: int, b: int, ctx: Context) -> int:
    return a + b if ctx.protocol_version else 0


async def with_progress(a: int, b: int, ctx: Context) -> int:
    await ctx.report_progress(1, 1)
    return a + b


async def waiting(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


async def with_record(order: Order) -> Order:
    return order


def in_thread(a: int, b: int) -> int:
    return a + b


async def offset() -> int:
    return 0


async def with_dependency(a: int, b: int, offset: Annotated[int, Depends(offset)]) -> int:
    return a + b + offset


def plain_offset() -> int:
    return 0


def with_plain_dependency(a: int, b: int, offset: Annotated[int, Depends(plain_offset)]) -> int:
    return a + b + offset


async def with_state(a: int, b: int, ctx: Context) -> int:
    await ctx.state.get("sum", int, default=0)
    return a + b


async def passing(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
    return await call_next(request)


def plain(server: Server) -> None:
    server.add_tool(add, name="tool")


def timed(server: Server) -> None:
    server.tool(name="tool", timeout=30)(add)


def behind_middleware(server: Server) -> None:
    plain(server)
    server.middleware(passing)


def with_metrics(server: Server) -> None:
    plain(server)
    metrics.watch(server.engine)


VARIANTS: dict[str, tuple[Callable[[Server], Any], bytes]] = {
    "plain": (plain, NUMBERS),
    "context": (lambda server: server.add_tool(with_context, name="tool"), NUMBERS),
    "progress": (lambda server: server.add_tool(with_progress, name="tool"), NUMBERS),
    "get_context imported": (plain, NUMBERS),  # some module of the process has imported it
    "dependency": (lambda server: server.add_tool(with_dependency, name="tool"), NUMBERS),
    "state": (lambda server: server.add_tool(with_state, name="tool"), NUMBERS),
    "timeout": (timed, NUMBERS),
    "waits": (lambda server: server.add_tool(waiting, name="tool"), NUMBERS),
    "metrics": (with_metrics, NUMBERS),
    "middleware": (behind_middleware, NUMBERS),
    "dataclass": (lambda server: server.add_tool(with_record, name="tool"), ORDER),
    "thread": (lambda server: server.add_tool(in_thread, name="tool"), NUMBERS),
    "thread and dependency": (lambda server: server.add_tool(with_plain_dependency, name="tool"), NUMBERS),
}


class Answers:
    """The other end of the pipe: counts what is answered."""

    def __init__(self) -> None:
        self.results = 0
        self.complete = asyncio.Event()  # for each AT_ONCE results

    def write(self, message: bytes) -> None:
        self.results += b'"isError":false' in message
        if self.results % AT_ONCE == 0:
            self.complete.set()

    async def drain(self) -> None: ...


async def _serve(server: Server, arguments: bytes, calls: int) -> float:
    """CPU seconds of so many calls."""
    answers = Answers()
    await server.engine.start(server)
    connection = Connection(server.engine, answers)
    began = time.process_time()
    for first in range(0, calls, AT_ONCE):
        for id in range(first, first + AT_ONCE):
            connection.receive(LINE % (id, arguments, id))
        connection.start_calls()
        await answers.complete.wait()
        answers.complete.clear()
    spent = time.process_time() - began
    await connection.close()
    await server.engine.stop()
    return spent


@contextmanager
def _open(contender: str, settings: Settings) -> Iterator[Round]:
    register, arguments = VARIANTS[contender]
    server = Server("bench", version="1.0.0")
    register(server)
    calls = AT_ONCE if settings.quick else CALLS
    run_in_context = current_context.run_in_context if contender == "get_context imported" else None

    def measure(calls: int) -> Measured:
        call_tool.run_in_context = run_in_context
        try:
            return Measured(asyncio.run(asyncio.wait_for(_serve(server, arguments, calls), 60)) / calls * 1e6)
        except TimeoutError:
            raise CannotMeasure("not every call was answered") from None

    measure(AT_ONCE)
    yield lambda: measure(calls)


CASES = [
    Case(
        key="features",
        title="CPU of one call on a pipe, and with …",
        unit="µs",
        more_is_better=False,
        contenders=tuple(VARIANTS),
        open=_open,
        subject="plain",
    )
]
