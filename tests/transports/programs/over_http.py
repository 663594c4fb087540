"""A server over HTTP with tools that do not end well. The argument holds JSON: the options of `run`, and

`lifespan`, which says how that goes wrong, or names a file: while it is there, that fails at the start; `constants` of
modules of the transport to change.
"""

import asyncio
import importlib
import json
import logging
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dovetail.server import Server

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from judge import judge_this_process

options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
trouble = options.pop("lifespan", None)
for path, value in options.pop("constants", {}).items():
    module, _, name = path.partition(".")
    home = importlib.import_module(f"dovetail.transports.{module}")
    assert hasattr(home, name)
    setattr(home, name, value)


def say(text: str) -> None:
    """On stderr, where the test waits for it."""
    os.write(2, text.encode() + b"\n")


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[None]:
    if trouble == "fails at the start" or (trouble and os.path.exists(trouble)):  # noqa: ASYNC240
        raise RuntimeError(trouble)
    say("lifespan entered")
    if trouble == "hangs at the start":
        await asyncio.sleep(3600)
    yield
    say("lifespan left")
    if trouble == "fails at the end":
        raise RuntimeError(trouble)
    if trouble == "hangs at the end":
        await asyncio.sleep(3600)


server = Server("over-http", lifespan=lifespan)


@server.tool
async def echo(text: str) -> str:
    return text


@server.tool
async def nap(seconds: float) -> str:
    say("nap runs")
    await asyncio.sleep(seconds)
    return "rested"


@server.tool
def stuck() -> str:
    say("stuck runs")
    while True:
        time.sleep(0.02)


@server.tool
async def blocks_the_loop() -> str:
    say("blocks_the_loop runs")
    while True:
        time.sleep(0.02)  # noqa: ASYNC251


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
async def logs(text: str) -> str:
    logging.getLogger("dovetail.mine").warning(text)
    return "logged"


@server.custom_route("/page")
async def page(request: object) -> str:
    say("page runs")
    await asyncio.sleep(0.8)
    return "turned"


if __name__ == "__main__":
    judge_this_process()
    server.run(transport="http", **{"port": 0, **options})
    say(f"after run in {os.getpid()}")
