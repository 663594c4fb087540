"""What holds the event loop, and what does not give its thread back: named in the log, with its line, and counted."""

import asyncio
import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.engine.engine import WatchdogTimings
from dovetail.engine.metrics import Metrics
from http_serving import until
from processes import http_programs, programs

HASTY = WatchdogTimings(begin_after=0.0, blocked=0.04)
WAIT = 20.0  # seconds; a bound for what takes a moment
HOLDS = "holds the event loop"


class Reported(logging.Handler):
    """The lines about what holds the loop. A function that holds it waits in `until_reported` for one about itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if HOLDS in record.getMessage():
            self.lines.append(record.getMessage())
            self._event.set()

    def until_reported(self) -> None:
        assert self._event.wait(WAIT)
        self._event.clear()


@pytest.fixture
def reported() -> Iterator[Reported]:
    handler = Reported()
    logging.getLogger("dovetail").addHandler(handler)
    yield handler
    logging.getLogger("dovetail").removeHandler(handler)
    assert not [each for each in threading.enumerate() if each.name == "dovetail-watchdog" and not joined(each)]


def joined(thread: threading.Thread) -> bool:
    thread.join(WAIT)
    return not thread.is_alive()


def watched(timings: WatchdogTimings = HASTY) -> Server:
    server = Server("watched")
    server.engine.watchdog_timings = timings
    server.engine.metrics = Metrics()
    return server


def counted(server: Server, name: str = "dovetail_event_loop_blocked_total") -> dict[str, float]:
    assert server.engine.metrics is not None
    return {label: cells[0] for (label,), cells in server.engine.metrics.read()[name].items()}


def line_of(function: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(n for n, line in enumerate(lines) if text in line)} in "


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


async def hold(reported: Reported) -> None:
    reported.until_reported()  # which blocks


class Holder:
    def __init__(self, reported: Reported) -> None:
        self._reported = reported

    async def method(self) -> None:
        self._reported.until_reported()

    async def __call__(self) -> None:
        await hold(self._reported)


async def test_an_async_tool_that_holds_the_loop_is_named_with_its_line(reported: Reported) -> None:
    server, holder = watched(), Holder(reported)

    async def plain() -> None:
        await hold(reported)

    def on_the_loop() -> None:
        reported.until_reported()

    @decorated
    async def wrapped() -> None:
        await hold(reported)

    server.tool(plain)
    server.tool(wrapped)
    server.tool(partial(hold, reported), name="part")
    server.tool(holder.method, name="bound")
    server.tool(holder, name="callable")
    server.tool(on_the_loop, thread=False)
    names = ["plain", "wrapped", "part", "bound", "callable", "on_the_loop"]
    async with Client(server) as client:
        for name in names:
            await client.call_tool(name)
        await until(lambda: len(counted(server)) == len(names))
    assert counted(server) == dict.fromkeys(names, 1.0)
    for name, line in zip(names, reported.lines, strict=True):
        assert line.startswith(f"tool {name} holds the event loop"), line
        assert "make it a plain def, or await asyncio.to_thread(…)" in line
        assert line_of(Reported.until_reported, "self._event.wait") + "Reported.until_reported" in line


async def test_tools_that_share_one_function_are_shown_by_their_line(reported: Reported) -> None:
    server = watched()
    for name in ("one", "other"):
        server.add_tool(lambda: reported.until_reported(), name=name, thread=False)
    async with Client(server) as client:
        await client.call_tool("one")
        await until(lambda: bool(counted(server)))
    (line,) = reported.lines
    assert line.startswith("a tool holds the event loop")
    assert counted(server) == {"_OTHER": 1.0}


async def test_a_tool_is_named_once_in_an_interval_and_counted_each_time(reported: Reported) -> None:
    server = watched()

    @server.tool
    async def again(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    async with Client(server) as client:
        while counted(server).get("again", 0) < 2:
            await client.call_tool("again", {"seconds": 0.1})
    assert len(reported.lines) == 1


async def test_tools_of_mounted_servers_have_their_names_in_the_parent(reported: Reported) -> None:
    server, child = watched(), Server("child")

    @child.tool
    async def inner() -> None:
        await hold(reported)

    server.mount(child, namespace="below")
    async with Client(server) as client:
        await client.call_tool("below_inner")
        await until(lambda: bool(counted(server)))
    assert counted(server) == {"below_inner": 1.0}


async def test_the_thread_ends_with_the_server_and_begins_again(reported: Reported) -> None:
    server = watched()

    @server.tool
    async def held() -> None:
        await hold(reported)

    def is_watched() -> bool:
        return any(each.name == "dovetail-watchdog" for each in threading.enumerate())

    for _ in range(2):
        async with Client(server):
            await until(is_watched)
        await until(lambda: not is_watched())


def test_the_thread_ends_with_a_loop_whose_server_nothing_stops(reported: Reported) -> None:
    async def start() -> None:
        await watched().engine.start()
        await until(lambda: any(each.name == "dovetail-watchdog" for each in threading.enumerate()))

    asyncio.run(start())
    assert not reported.lines


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_real_servers_are_watched(transport: str) -> None:
    watchdog = {"begin_after": 0.0, "blocked": 0.04}
    with contextlib.ExitStack() as stack:
        if transport == "stdio":
            program: Any = stack.enter_context(programs())(watchdog=watchdog)
        else:
            program = stack.enter_context(http_programs())(watchdog=watchdog)
        while HOLDS not in program.said:
            program.call("blocks_for", seconds=0.2)
        program.until_logged("tool blocks_for holds the event loop")
        program.until_logged("everything.py")


async def test_a_def_tool_that_does_not_give_its_thread_back(caplog: pytest.LogCaptureFixture) -> None:
    server, gate = watched(), threading.Event()

    @server.tool(timeout=0.01)
    def keep() -> None:
        gate.wait(WAIT)

    async with Client(server) as client:
        for _ in range(2):
            await client.call_tool("keep", raise_on_error=False)
        await until(lambda: counted(server, "dovetail_stuck_calls_total") == {"keep": 2.0})
    gate.set()
    await until(lambda: server.engine.threads.stuck == 0)
    stuck = [each.getMessage() for each in caplog.records if " is stuck" in each.getMessage()]
    assert len(stuck) == 1
    assert "tool keep is stuck: its call has ended, but its thread " in stuck[0]
    assert line_of(keep, "gate.wait") in stuck[0]
