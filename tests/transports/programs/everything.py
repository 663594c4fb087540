"""A server with every kind of tool that can go wrong, on a pipe or over HTTP.

An argument may hold JSON: `transport`; options, of the server on a pipe and of `run` over HTTP; `timings` of the
transport and of the `watchdog`; and `lifespan`, which says how that goes wrong, or names a file: while it is there, the
lifespan fails at its start.
"""

import asyncio
import atexit
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from dovetail import transports
from dovetail.engine.engine import WatchdogTimings
from dovetail.server import Server

options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
over_http = options.pop("transport", "stdio") == "http"
lifespan_failure = options.pop("lifespan", None)
timings = options.pop("timings", {})
watchdog = options.pop("watchdog", {})


def say(text: str) -> None:
    """On stderr, where the test waits for it."""
    os.write(2, text.encode() + b"\n")


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[None]:
    if lifespan_failure == "fails at the start" or (lifespan_failure and os.path.exists(lifespan_failure)):  # noqa: ASYNC240
        raise RuntimeError(lifespan_failure)
    say("lifespan entered")
    if lifespan_failure == "hangs at the start":
        await asyncio.sleep(3600)
    yield
    say("lifespan left")
    if lifespan_failure == "fails at the end":
        raise RuntimeError(lifespan_failure)
    if lifespan_failure == "hangs at the end":
        await asyncio.sleep(3600)


print("printed before run")  # noqa: T201
server = Server("everything", lifespan=lifespan, **({} if over_http else options))
server.engine.watchdog_timings = WatchdogTimings(**watchdog)


@server.tool
async def echo(text: str) -> str:
    return text


@server.tool
async def big(size: int) -> str:
    return "x" * size


@server.tool
async def nap(seconds: float) -> str:
    say("nap runs")
    await asyncio.sleep(seconds)
    return "rested"


@server.tool
async def stubborn() -> str:
    """Swallows its cancellation."""
    say("stubborn runs")
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@server.tool
def stuck() -> str:
    """Never comes back, and never stops printing."""
    say("stuck runs")
    while True:
        time.sleep(0.02)
        print("still here")  # noqa: T201


@server.tool
def flood(target: str) -> str:
    """Writes to stderr until it is full, and holds the lock that this takes."""
    say("flood runs")
    while True:
        if target == "print":
            print("x" * 1000)  # noqa: T201
        elif target == "logging":
            logging.getLogger("mine").warning("x" * 1000)


@server.tool
async def stuck_in_executor() -> str:
    say("stuck_in_executor runs")
    await asyncio.to_thread(threading.Event().wait)
    return "never"


@server.tool
async def blocks_the_loop() -> str:
    say("blocks_the_loop runs")
    while True:
        time.sleep(0.02)  # noqa: ASYNC251


@server.tool
async def blocks_for(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251


@server.tool
def noisy() -> dict[str, str]:
    """What user code, C libraries and child processes do to stdin and stdout."""
    print("by print")  # noqa: T201
    os.write(1, b"by write\n")
    subprocess.run([sys.executable, "-c", "print('by child')"], check=True)
    try:
        answer = input("by prompt")
    except EOFError:
        answer = "end of file"
    command = [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {"input": answer, "child": child.stdout.strip()}


LIST_PIPES = (
    "import os, stat; print([os.fstat(n).st_ino for n in range(3, 99) if os.path.exists(f'/proc/self/fd/{n}')])"
)


@server.tool
def pipes_of_children() -> list[int]:
    """The inodes of all that a child process has open beyond the standard descriptors, started or forked."""
    started = subprocess.run(
        [sys.executable, "-c", LIST_PIPES], stdout=subprocess.PIPE, text=True, check=True, close_fds=False
    )
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        numbers = [number for number in range(3, 99) if os.path.exists(f"/proc/self/fd/{number}")]
        os.write(writing, json.dumps([os.fstat(number).st_ino for number in numbers]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads(started.stdout) + json.loads(os.read(reading, 10_000))


@server.tool
async def shout(lines: int) -> str:
    """Logs more than any pipe holds."""
    log = logging.getLogger("dovetail.shout")
    for number in range(lines):
        log.warning("line %d password=hunter2 %s", number, "." * 200)
    return "shouted"


@server.tool
async def fails() -> str:
    def inner() -> None:
        raise ValueError("a secret detail")

    inner()
    return "never"


@server.tool
async def worker() -> dict[str, float]:
    return {"pid": os.getpid(), "drawn": random.random()}


@server.tool
async def memory() -> int:
    """The most that this process has ever held, in MiB."""
    with open("/proc/self/status") as file:  # noqa: ASYNC230
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmHWM"))


@server.resource("note://one")
def note() -> str:
    return "a note"


atexit.register(print, "printed at exit")
if __name__ == "__main__":
    if over_http:
        sys.path.insert(0, str(Path(__file__).parent.parent.parent))
        from official import judge_this_process

        judge_this_process()
        http_options = server.http_options({"port": 0, **options}, running=True)
        given = msgspec.convert(timings, transports.serve.Timings)
        transports.serve.serve_http(server.engine, http_options, owner=server, timings=given)
        say(f"after run in {os.getpid()}")
    else:
        given = msgspec.convert(timings, transports.stdio.Timings)
        transports.stdio.serve_stdio(server.engine, owner=server, timings=given)
        print("printed after run")  # noqa: T201
